//! The receiving side: bounds, malformed messages, and messages for other parts.

use std::sync::Arc;

use futures::FutureExt;
use ostraca::cluster::lease::LeaseMessage;
use ostraca::cluster::wire::ClusterMessage;
use ostraca::ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca::net::{Busy, Inbound, TrafficClass};
use ostraca::node::InboxLimits;
use ostraca::node::routes::{self, Subsystem};

use crate::cluster::{Plan, hold};
use crate::network::node_id;
use crate::waits::{eventually, soon};

fn message() -> Vec<u8> {
    ReplicatorMessage { epoch: None, body: Body::Used(vec![]) }.encode()
}

fn inbound(class: TrafficClass, body: &[u8]) -> Inbound<'_> {
    Inbound { from: node_id(1), class, fields: &[], body }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn full_inbox_makes_lanes_wait_for_room() {
    let body = message();
    for inbox in [
        InboxLimits { messages: 4, ..InboxLimits::default() },
        InboxLimits { message_bytes: body.len() * 4, ..InboxLimits::default() },
    ] {
        let cluster = Plan { nodes: 1, inbox, ..Plan::default() }.start().await;
        let receiver = cluster.nodes[0].receiver.clone();
        let held = hold(&cluster.at(0)).await;
        for _ in 0..4 {
            assert_eq!(receiver.receive(inbound(TrafficClass::Data, &body)), Ok(()));
        }
        assert_eq!(receiver.receive(inbound(TrafficClass::Data, &body)), Err(Busy));
        let mut ready = receiver.ready(TrafficClass::Data);
        assert_eq!((&mut ready).now_or_never(), None);
        let load = cluster.at(0).load();
        assert_eq!((load.waiting.messages, load.received), (4, 4));
        assert_eq!(load.waiting.message_bytes, body.len() * 4);
        drop(held);
        soon(ready).await;
        assert_eq!(receiver.receive(inbound(TrafficClass::Data, &body)), Ok(()));
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_messages_are_counted_and_skipped() {
    let cluster = Plan { nodes: 1, ..Plan::default() }.start().await;
    let receiver = cluster.nodes[0].receiver.clone();
    let deep = vec![0x91; 5_000];
    for garbage in [&b""[..], b"\xc1", b"hello", &deep, &[0xff; 64]] {
        assert_eq!(receiver.receive(inbound(TrafficClass::Data, garbage)), Ok(()));
    }
    assert_eq!(receiver.receive(inbound(TrafficClass::User, &message())), Ok(()));
    let load = cluster.at(0).load();
    assert_eq!((load.undecodable, load.received, load.waiting.messages), (6, 0, 0));
    let inputs = load.turns.inputs;
    for class in [TrafficClass::Control, TrafficClass::Data, TrafficClass::Bulk] {
        assert_eq!(receiver.receive(inbound(class, &message())), Ok(()));
        receiver.pause(class);
    }
    eventually("they are handled", async || cluster.at(0).load().turns.inputs >= inputs + 3).await;
    assert_eq!(cluster.at(0).load().received, 3);
    let strangers = soon(cluster.at(0).stats()).await.expect("the Replicator runs").strangers;
    assert_eq!(strangers, 3, "the machine handles them, but the sender is no member");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_messages_reach_their_part_or_are_counted() {
    let cluster = Plan { nodes: 1, ..Plan::default() }.start().await;
    let receiver = cluster.nodes[0].receiver.clone();
    let say = |names: &[&str], body: &[u8]| {
        let fields: Vec<Arc<str>> = names.iter().map(|name| Arc::from(*name)).collect();
        let inbound = Inbound { fields: &fields, ..inbound(TrafficClass::Control, body) };
        assert_eq!(receiver.receive(inbound), Ok(()));
        let load = cluster.at(0).load();
        (load.received, load.undecodable)
    };
    let release = routes::encode(&LeaseMessage::Release { number: 1 });
    assert_eq!(say(Subsystem::Lease.header(), &release), (1, 0));
    assert_eq!(say(&["another"], &release), (1, 1), "a part that only a later release has");
    assert_eq!(say(Subsystem::Lease.header(), b"\xc1"), (1, 2));
    let heartbeat = routes::encode(&ClusterMessage::Heartbeat(1));
    assert_eq!(
        say(Subsystem::Membership.header(), &heartbeat),
        (1, 3),
        "this node has no membership"
    );
    assert_eq!(say(Subsystem::Replicator.header(), &message()), (2, 3));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_node_makes_no_lane_wait() {
    let cluster = Plan { nodes: 1, ..Plan::default() }.start().await;
    let receiver = cluster.nodes[0].receiver.clone();
    cluster.stop().await;
    assert_eq!(receiver.receive(inbound(TrafficClass::Data, &message())), Ok(()));
    soon(receiver.ready(TrafficClass::Data)).await;
}
