//! Tests of the statistics of the transport, `Net::stats`.

use super::*;
use crate::nodes::{self, Node};
use ostraca::net::handle::PeerStats;

async fn of_peer(host: &TestNode, other: &TestNode) -> PeerStats {
    let stats = host.net.stats().await;
    let peer = stats.peers.into_iter().find(|peer| peer.peer == other.id().peer);
    peer.expect("it is known")
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_batches_and_bytes_are_counted_by_lane_and_peer() {
    const MESSAGES: u64 = 1_000;
    const FRAMED: u64 = 6 + 94; // length, kind, number of names
    let (a, b) = (TestNode::start(&quick()).await, TestNode::with_room(&quick(), 0).await);
    let (mut a, mut b) = (a, b);
    a.keep(&b);
    assert_eq!((a.up().await, b.up().await), (b.id(), a.id()));
    for n in 0..MESSAGES {
        let body = [&n.to_be_bytes()[..], &[0; 86]].concat();
        a.send(b.id().incarnation, TrafficClass::User, &body);
    }
    // The receiver accepts nothing, so everything stays in the lane.
    eventually("all is written", async || {
        let user = of_peer(&a, &b).await.outbound[TrafficClass::User as usize];
        user.is_some_and(|user| user.sent == MESSAGES)
    })
    .await;
    let user = of_peer(&a, &b).await.outbound[TrafficClass::User as usize].expect("it is used");
    assert_eq!((user.unacknowledged, user.unsent), (MESSAGES, 0), "the depth of the queue");
    assert_eq!((user.kept_bytes as u64, user.sent_bytes), (MESSAGES * FRAMED, MESSAGES * FRAMED));
    assert!((1..MESSAGES / 2).contains(&user.batches), "coalesced: {}", user.batches);
    // It may not have read any of it yet.
    eventually("there is no room", async || {
        of_peer(&b, &a).await.inbound[TrafficClass::User as usize].busy > 0
    })
    .await;
    b.inbox.room.store(usize::MAX / 2, Ordering::SeqCst);
    receives_in_order(&b, MESSAGES).await;
    eventually("all is acknowledged", async || {
        let user = of_peer(&a, &b).await.outbound[TrafficClass::User as usize];
        user.is_some_and(|user| user.unacknowledged == 0 && user.kept_bytes == 0)
    })
    .await;
    let inbound = of_peer(&b, &a).await.inbound;
    let user = inbound[TrafficClass::User as usize];
    assert_eq!((user.accepted, user.bytes, user.skipped), (MESSAGES, MESSAGES * FRAMED, 0));
    assert_eq!(inbound[TrafficClass::Bulk as usize], Default::default(), "nothing came there");
    assert!(of_peer(&a, &b).await.outbound[TrafficClass::Bulk as usize].is_none(), "never used");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_violations_are_counted() {
    let host = TestNode::start(&NetConfig { secret: Some(nodes::secret(1)), ..quick() }).await;
    let address = host.net.listening()[0].clone();
    let mut other = Node::start(nodes::config()).await;
    other.standing.facts.cluster = "another".to_owned();
    let connection = other.connect_at(host.id().peer, address).await;
    let refused = other.open(connection, host.id().peer, |_| {}).await;
    assert!(refused.is_err(), "another cluster");
    eventually("it is counted", async || host.net.stats().await.refused == 1).await;
    other.standing.facts.cluster = "ostraca".to_owned();
    let lane = other.open(connection, host.id().peer, |_| {}).await;
    let (_, mut line) = lane.expect("its own cluster");
    futures::AsyncWriteExt::write_all(&mut line, &[0xff; 64]).await.expect("written");
    futures::AsyncWriteExt::flush(&mut line).await.expect("written");
    eventually("it is counted", async || host.net.stats().await.violations == 1).await;
    let stats = host.net.stats().await;
    assert_eq!((stats.refused, stats.given_up, stats.exceeded.lanes), (1, 0, 0));
}
