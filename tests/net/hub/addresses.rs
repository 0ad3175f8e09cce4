//! Tests of the slots for unfinished handshakes that are reserved for known addresses.

use std::net::{IpAddr, SocketAddr};

use super::*;
use tokio::net::{TcpSocket, TcpStream};

const HANDSHAKES: usize = 8;
const UNRESERVED: usize = HANDSHAKES * 3 / 4;
const FLOOD: usize = 20;

/// Settings with few slots for handshakes, none of which times out.
fn crowded() -> NetConfig {
    let limits = NetLimits {
        handshakes: HANDSHAKES,
        first_message_within: SOON * 10,
        handshake_within: SOON * 10,
        ..quick().limits
    };
    NetConfig { limits, ..quick() }
}

/// Connects from that loopback address and sends nothing.
async fn silent(host: &TestNode, from: IpAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::new(from, 0)).expect("loopback is a /8");
    let to = SocketAddr::from(([127, 0, 0, 1], host.port()));
    let connected = tokio::time::timeout(SOON, socket.connect(to)).await;
    connected.expect("it answers").expect("it listens")
}

/// Number of slots that silent connections from that address can hold at a time.
async fn held_by_flood(host: &TestNode, from: IpAddr) -> usize {
    let before = host.net.stats().await.exceeded.handshakes;
    let mut flood = Vec::new();
    for _ in 0..FLOOD {
        flood.push(silent(host, from).await);
    }
    let mut held = 0;
    eventually("each connection holds a slot or was evicted", async || {
        let stats = host.net.stats().await;
        held = stats.handshakes;
        (stats.exceeded.handshakes - before) as usize + held == FLOOD
    })
    .await;
    drop(flood);
    eventually("all handshakes have ended", async || host.net.stats().await.handshakes == 0).await;
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn address_of_an_admitted_node_has_reserved_slots() {
    let mut host = TestNode::start(&crowded()).await;
    let home = IpAddr::from([127, 0, 0, 1]);
    assert_eq!(held_by_flood(&host, home).await, UNRESERVED, "not known yet");
    let friend = TestNode::start(&quick()).await;
    friend.keep(&host);
    assert_eq!(host.up().await, friend.id());
    // The node is reported up before its first lane is registered.
    eventually("all slots are open to its address", async || {
        held_by_flood(&host, home).await == HANDSHAKES
    })
    .await;
    let other = IpAddr::from([127, 0, 0, 2]);
    assert_eq!(held_by_flood(&host, other).await, UNRESERVED);
}

#[tokio::test(flavor = "multi_thread")]
async fn dialled_address_has_reserved_slots() {
    let mut host = TestNode::start(&crowded()).await;
    let seed = IpAddr::from([127, 0, 0, 3]);
    assert_eq!(held_by_flood(&host, seed).await, UNRESERVED, "not known yet");
    let closed = std::net::TcpListener::bind(SocketAddr::new(seed, 0)).expect("a port");
    let port = closed.local_addr().expect("bound").port();
    drop(closed);
    host.net.dial(format!("/ip4/{seed}/tcp/{port}").parse().expect("an address"));
    let failed = |event| matches!(event, NetEvent::DialRefused { .. }).then_some(());
    host.event("the dial has failed", failed).await;
    assert_eq!(held_by_flood(&host, seed).await, HANDSHAKES);
}
