//! Tests of a transport that stops while its connections break: peers must still receive its
//! messages.

use super::*;

const MESSAGES: u64 = 100;

impl TestNode {
    /// Waits until the stop has begun, which means that there are no lanes for senders.
    async fn stops(&self, to: ReplicaId) {
        eventually("the stop has begun", async || self.net.lane(to, TrafficClass::User).is_none())
            .await;
    }

    fn has_lost_nothing(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            assert!(!matches!(event, NetEvent::LaneBroken { .. }), "{event:?}");
        }
    }
}

/// Starts two nodes, the second one behind a proxy and without room, with messages in flight to it.
async fn with_messages_under_way() -> (TestNode, TestNode, Proxy) {
    // A connection without lanes stays open, so that the lanes of the other one can move to it.
    let limits = NetLimits { idle_timeout: SOON, ..patient(SOON).limits };
    let config = NetConfig { limits, ..quick() };
    let proxy = Proxy::start().await;
    let of_b = NetConfig { advertise: vec![proxy.address.clone()], ..config.clone() };
    let (mut a, b) = (TestNode::start(&config).await, TestNode::with_room(&of_b, 0).await);
    proxy.lead_to(b.port());
    a.net.keep(b.id().peer, vec![proxy.address.clone()]);
    assert_eq!(a.up().await, b.id());
    for n in 0..MESSAGES {
        a.send(b.id().incarnation, TrafficClass::User, &n.to_be_bytes());
    }
    let lane = a.net.lane(b.id().incarnation, TrafficClass::User).expect("known");
    eventually("all are under way", async || lane.stats().unsent == 0).await;
    (a, b, proxy)
}

#[tokio::test(flavor = "multi_thread")]
async fn lane_moves_connections_during_stop_with_its_messages() {
    let (mut a, b, first) = with_messages_under_way().await;
    let second = Proxy::start().await;
    second.lead_to(b.port());
    a.net.dial(second.address.clone());
    let answered = a.event("the second connection is there", |event| match event {
        NetEvent::Answered { node, .. } => Some(node),
        _ => None,
    });
    assert_eq!(answered.await, b.id()); // the later of two connections carries the lanes
    let stopping = tokio::spawn({
        let net = a.net.clone();
        async move { net.stop().await }
    });
    a.stops(b.id().incarnation).await;
    first.refuse(); // only the open connections can be used
    second.close();
    b.inbox.room.store(usize::MAX / 2, Ordering::SeqCst);
    stopping.await.expect("it ends");
    a.has_lost_nothing();
    receives_in_order(&b, MESSAGES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_broken_during_stop_is_redialled() {
    let (mut a, b, proxy) = with_messages_under_way().await;
    let stopping = tokio::spawn({
        let net = a.net.clone();
        async move { net.stop().await }
    });
    a.stops(b.id().incarnation).await;
    proxy.cut();
    b.inbox.room.store(usize::MAX / 2, Ordering::SeqCst);
    stopping.await.expect("it ends");
    a.has_lost_nothing();
    receives_in_order(&b, MESSAGES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_does_not_wait_for_a_gone_peer() {
    let (mut a, b, proxy) = with_messages_under_way().await;
    proxy.close();
    let refused = a.event("it is dialled in vain", |event| match event {
        NetEvent::DialRefused { .. } => Some(()),
        _ => None,
    });
    refused.await;
    let stopped = tokio::time::timeout(SOON / 2, a.net.stop()).await;
    assert!(stopped.is_ok(), "link_down_max is {SOON:?}");
    let lost = a.event("it is counted", |event| match event {
        NetEvent::LaneBroken { node, class: TrafficClass::User, messages } => {
            Some((node, messages))
        }
        _ => None,
    });
    assert_eq!(lost.await, (b.id(), MESSAGES));
}

/// A node has only the time of its last shutdown phase, which may be shorter than `link_down_max`.
#[tokio::test(flavor = "multi_thread")]
async fn short_stop_counts_remaining_messages() {
    let (mut a, b, _proxy) = with_messages_under_way().await;
    let short = a.net.stop_within(Duration::from_millis(100));
    let stopped = tokio::time::timeout(SOON / 2, short).await;
    assert!(stopped.is_ok(), "link_down_max is {SOON:?}");
    let lost = a.event("it is counted", |event| match event {
        NetEvent::LaneBroken { node, class: TrafficClass::User, messages } => {
            Some((node, messages))
        }
        _ => None,
    });
    assert_eq!(lost.await, (b.id(), MESSAGES));
}
