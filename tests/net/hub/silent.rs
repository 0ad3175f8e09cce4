//! Tests of peers that finish the handshake of a connection and then open no lane.

use super::*;
use crate::nodes::{self, Node, Seen};

const UNADMITTED: usize = 4;

/// Settings with which only the limit of unadmitted connections closes a connection.
fn crowded(config: NetConfig) -> NetConfig {
    let limits = NetLimits { idle_timeout: SOON * 2, unadmitted: UNADMITTED, ..config.limits };
    NetConfig { secret: Some(nodes::secret(1)), limits, ..config }
}

/// Each of many peers knows the secret, holds a connection and a substream, and sends no `Hello`.
/// They must neither hold more than `unadmitted` connections, nor displace a node or keep it out.
#[tokio::test(flavor = "multi_thread")]
async fn peers_without_hello_hold_few_connections() {
    let config = crowded(quick());
    let (mut friend, mut host) = pair(&config).await; // the friend dials
    let address = host.net.listening()[0].clone();
    let mut silent = VecDeque::new();
    for _ in 0..3 * UNADMITTED {
        let mut peer = Node::start(crowded(nodes::config())).await;
        let connection = peer.connect_at(host.id().peer, address.clone()).await;
        let line = peer.line(connection, TrafficClass::User).await;
        silent.push_back((peer, line));
        if silent.len() > UNADMITTED {
            let (mut oldest, _line) = silent.pop_front().expect("some are held");
            let is_closed = |seen| matches!(seen, Seen::Closed(_)).then_some(());
            oldest.next("the oldest connection is closed", is_closed).await;
        }
    }
    assert_eq!(host.net.stats().await.exceeded.unadmitted, 2 * UNADMITTED as u64);
    host.send(friend.id().incarnation, TrafficClass::User, b"still linked");
    eventually("the first node is linked", async || !friend.inbox.take().is_empty()).await;
    let late = TestNode::start(&config).await;
    late.keep(&host);
    assert_eq!(host.up().await, late.id());
    while let Ok(event) = friend.events.try_recv() {
        assert!(!matches!(event, NetEvent::Closed { .. }), "{event:?}");
    }
}
