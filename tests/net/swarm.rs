//! Tests of connections and substreams: within the limits, and on the named connection.

use libp2p::swarm::ConnectionId;
use ostraca::net::TrafficClass;
use ostraca::net::config::{NetConfig, NetLimits};
use ostraca::net::handshake::HandshakeError;
use ostraca::net::identity::Identity;
use ostraca::net::swarm::{NetStartError, OpenFailed, swarm};

use crate::nodes::{Node, Seen, config, serves};

fn within(change: impl FnOnce(&mut NetLimits)) -> NetConfig {
    let mut config = config();
    change(&mut config.limits);
    config
}

#[tokio::test]
async fn second_node_on_a_port_fails_and_the_first_is_unharmed() {
    let first = Node::start(config()).await;
    let taken = NetConfig { listen: vec![first.address.clone()], ..config() };
    let identity = Identity::load(None).expect("an identity");
    for _ in 0..3 {
        let error = swarm(&taken, identity.keypair()).err().expect("the port is taken");
        assert!(matches!(error, NetStartError::PortTaken { .. }), "{error}");
        assert!(error.to_string().contains(&first.address.to_string()), "{error}");
    }
    for _ in 0..10 {
        serves(&first).await;
    }
}

#[tokio::test]
async fn restarted_node_can_listen_on_the_same_port() {
    let first = Node::start(config()).await;
    serves(&first).await; // leaves connections behind
    let again = NetConfig { listen: vec![first.address.clone()], ..config() };
    first.stop().await;
    let second = Node::start(again.clone()).await;
    assert_eq!(second.address, again.listen[0]);
    serves(&second).await;
}

#[tokio::test]
async fn unprotected_settings_do_not_start() {
    let identity = Identity::load(None).expect("an identity");
    let open = NetConfig {
        listen: vec!["/ip4/0.0.0.0/tcp/0".parse().expect("valid")],
        ..NetConfig::default()
    };
    let error = swarm(&open, identity.keypair()).err().expect("any peer could join");
    assert!(matches!(error, NetStartError::Config(_)), "{error}");
    for not_tcp in ["/ip4/127.0.0.1/udp/0/quic-v1", "/memory/1"] {
        let other = NetConfig { listen: vec![not_tcp.parse().expect("valid")], ..config() };
        assert!(swarm(&other, identity.keypair()).is_err(), "{not_tcp}");
    }
}

#[tokio::test]
async fn a_lane_runs_on_the_connection_that_was_named() {
    let node = Node::start(config()).await;
    let mut peer = Node::start(config()).await;
    let ids = [peer.connect(&node).await, peer.connect(&node).await];
    let mut lines = Vec::new();
    for id in ids {
        let (_, line) = peer.open(id, node.peer(), |_| {}).await.expect("welcome");
        lines.push(line);
    }
    peer.close(ids[0]);
    let gone = peer.next("closed", |seen| match seen {
        Seen::Closed(closed) => Some(closed),
        _ => None,
    });
    assert_eq!(gone.await, ids[0]);
    peer.open(ids[1], node.peer(), |_| {}).await.expect("the other stands");
}

#[tokio::test]
async fn closing_connection_is_reported_and_opens_nothing() {
    let node = Node::start(config()).await;
    let mut peer = Node::start(config()).await;
    let id = peer.connect(&node).await;
    peer.close(id);
    let failed = peer.line(id, TrafficClass::User).await.expect_err("it closes");
    assert!(matches!(failed, OpenFailed::Closed), "{failed}");
    let told = peer.next("closing", |seen| match seen {
        Seen::Closing(closing) => Some(closing),
        _ => None,
    });
    assert_eq!(told.await, id);
    let gone = peer.next("closed", |seen| match seen {
        Seen::Closed(closed) => Some(closed),
        _ => None,
    });
    assert_eq!(gone.await, id);
    let failed = peer.line(id, TrafficClass::User).await.expect_err("it is closed");
    assert!(matches!(failed, OpenFailed::Closed), "{failed}");
}

#[tokio::test]
async fn a_peer_beyond_its_connections_keeps_the_newest() {
    let mut node = Node::start(within(|limits| limits.connections_per_peer = 2)).await;
    let mut peer = Node::start(config()).await;
    let mut ids = Vec::new();
    let mut theirs: Vec<ConnectionId> = Vec::new();
    for _ in 0..3 {
        ids.push(peer.connect(&node).await);
        let established = node.next("established", |seen| match seen {
            Seen::Established(_, id) => Some(id),
            _ => None,
        });
        theirs.push(established.await);
    }
    let closing = node.next("closing", |seen| match seen {
        Seen::Closing(id) => Some(id),
        _ => None,
    });
    assert_eq!(closing.await, theirs[0]);
    let gone = peer.next("the oldest is closed", |seen| match seen {
        Seen::Closed(id) => Some(id),
        _ => None,
    });
    assert_eq!(gone.await, ids[0]);
    for id in &ids[1..] {
        peer.open(*id, node.peer(), |_| {}).await.expect("the newer ones stand");
    }
    assert_eq!(node.count().await.0.connections_per_peer, 1);
}

#[tokio::test]
async fn crossing_dials_make_two_connections_and_both_serve() {
    let (mut one, mut two) = (Node::start(config()).await, Node::start(config()).await);
    one.dial(&two);
    two.dial(&one);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let established = one.next("established", |seen| match seen {
            Seen::Established(_, id) => Some(id),
            _ => None,
        });
        ids.push(established.await);
    }
    for id in ids {
        one.open(id, two.peer(), |_| {}).await.expect("welcome");
    }
    assert_eq!(one.count().await.0, ostraca::net::swarm::Refusals::default());
    assert!(two.asked().await.is_ok());
}

#[tokio::test]
async fn lane_beyond_the_peers_limit_is_reset_and_counted() {
    let mut node = Node::start(within(|limits| limits.lanes_per_peer = 3)).await;
    let mut peer = Node::start(config()).await;
    let id = peer.connect(&node).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(peer.open(id, node.peer(), |_| {}).await.expect("within the limit"));
    }
    let beyond = peer.open(id, node.peer(), |_| {}).await;
    assert!(matches!(beyond, Err(HandshakeError::Io(_))), "{:?}", beyond.err());
    assert_eq!(node.count().await.0.lanes, 1);
    let lane = node.next("its lane", |seen| match seen {
        Seen::Lane(line) => Some(line),
        _ => None,
    });
    drop(lane.await);
    peer.open(id, node.peer(), |_| {}).await.expect("there is room again");
}

#[tokio::test]
async fn opening_lanes_respects_the_own_limit() {
    let node = Node::start(config()).await;
    let mut peer = Node::start(within(|limits| limits.lanes_per_peer = 2)).await;
    let id = peer.connect(&node).await;
    let held = [peer.line(id, TrafficClass::User).await, peer.line(id, TrafficClass::Data).await];
    let failed = peer.line(id, TrafficClass::Bulk).await.expect_err("one too many");
    assert!(matches!(failed, OpenFailed::TooMany(2)), "{failed}");
    drop(held);
    peer.open(id, node.peer(), |_| {}).await.expect("there is room again");
}

#[tokio::test]
async fn connection_without_lanes_closes_when_idle() {
    let node = Node::start(config()).await;
    let idle = std::time::Duration::from_millis(500);
    let mut peer = Node::start(within(|limits| limits.idle_timeout = idle)).await;
    let id = peer.connect(&node).await;
    let gone = peer.next("closed", |seen| match seen {
        Seen::Closed(id) => Some(id),
        _ => None,
    });
    assert_eq!(gone.await, id);
}
