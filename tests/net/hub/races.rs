//! Tests of events that coincide, and of dials that fail every time.

use super::*;
use crate::nodes::{self, Node};
use futures::{AsyncReadExt, AsyncWriteExt};
use ostraca::ddata::encoded::from_msgpack;
use ostraca::net::admission::{LaneProofContext, ProverRole};
use ostraca::net::handshake::encode;
use ostraca::net::wire::{Greeting, Hello, Nonce};

/// The peer sends its hello and closes the connection at once.
#[tokio::test(flavor = "multi_thread")]
async fn hello_before_its_connection_closes_leaves_no_connection() {
    let config = NetConfig { secret: Some(nodes::secret(1)), ..quick() };
    let host = TestNode::start(&config).await;
    let address = host.net.listening()[0].clone();
    let mut mean = Node::start(nodes::config()).await;
    for generation in 1..=50_u64 {
        let id = mean.connect_at(host.id().peer, address.clone()).await;
        let mut line = mean.line(id, TrafficClass::Control).await.expect("a substream");
        let mut len = [0; 4];
        line.read_exact(&mut len).await.expect("a length");
        let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
        line.read_exact(&mut bytes).await.expect("a greeting");
        let greeting: Greeting = from_msgpack(&bytes).expect("a greeting");
        let nonce = Nonce([7; 32]);
        let opening = LaneProofContext {
            opener: mean.peer(),
            acceptor: host.id().peer,
            opener_nonce: &nonce,
            acceptor_nonce: &greeting.nonce,
            class: TrafficClass::Control,
            generation,
        };
        let hello = Hello {
            facts: mean.standing.facts.clone(),
            nonce,
            proof: mean.standing.prove(ProverRole::Opener, &opening),
            to: None,
            class: TrafficClass::Control,
            generation,
            first_unacknowledged: 1,
        };
        line.write_all(&encode(&hello).expect("encodes")).await.expect("written");
        line.flush().await.expect("flushed");
        mean.close(id);
        mean.next("it is closed", |seen| match seen {
            nodes::Seen::Closed(_) => Some(()),
            _ => None,
        })
        .await;
    }
    mean.stop().await;
    tokio::time::sleep(Duration::from_secs(5)).await; // usually enough for late events
    eventually("of 50 connections, all closed, none is left", async || {
        host.net.peers().await.iter().all(|peer| peer.connections == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unlisted_peer_backs_off() {
    let listed = libp2p::PeerId::random();
    let closed = NetConfig { allowed_peers: vec![listed], ..nodes::config() };
    let node = Node::start(closed).await;
    let host =
        TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..NetConfig::default() })
            .await;
    host.net.keep(node.peer(), vec![node.address.clone()]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (refusals, _) = node.count().await;
    assert!(refusals.not_allowed < 40, "{refusals:?} in three seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_of_a_lane_is_sent_before_the_stop() {
    let mut lost = 0;
    for _ in 0..20 {
        let (a, b) = pair(&patient(SOON)).await;
        eventually("the control lane is up", async || {
            a.net.peers().await.iter().all(|peer| peer.linked)
        })
        .await;
        a.send(b.id().incarnation, TrafficClass::User, b"goodbye");
        a.net.stop().await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        lost += usize::from(b.inbox.take().is_empty());
    }
    assert_eq!(lost, 0, "of 20");
}
