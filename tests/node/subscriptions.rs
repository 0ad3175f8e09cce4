//! Subscriptions: current values, changes, skipped values, and the end of streams.

use futures::{Stream, StreamExt};
use ostraca::prelude::*;

use crate::cluster::{Cluster, hold, single};
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

async fn increment(replicator: &Replicator) {
    let update = replicator.update(&hits(), WriteLocal, |counter| counter.increment());
    soon(update).await.expect("local");
}

/// Reads changes until the latest value. An update may return before subscribers are notified, so a
/// few older values may come first; most must be skipped.
async fn reads(changes: &mut (impl Stream<Item = Change<PNCounter>> + Unpin), latest: i128) {
    for _ in 0..10 {
        let Some(Change::Changed(seen)) = soon(changes.next()).await else { panic!("changed") };
        if seen.value() == latest {
            return;
        }
        assert!(seen.value() < latest);
    }
    panic!("the first ten values do not contain {latest}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_gets_the_current_value_then_changes_of_others() {
    let cluster = Cluster::of_three().await;
    increment(&cluster.at(0)).await;
    let mut here = cluster.at(0).subscribe(&hits());
    let Some(Change::Changed(first)) = soon(here.next()).await else { panic!("no first value") };
    assert_eq!(first.value(), 1);
    let mut last = 1;
    for number in [1, 2, 1] {
        let write = WriteAll::within(secs(30)); // so that the deleting node has seen every update
        let update = cluster.at(number).update(&hits(), write, |counter| counter.increment());
        soon(update).await.expect("acknowledged");
        last += 1;
        loop {
            let Some(Change::Changed(seen)) = soon(here.next()).await else { panic!("changed") };
            if seen.value() == last {
                break;
            }
            assert!(seen.value() < last);
        }
    }
    soon(cluster.at(2).delete(&hits(), WriteAll::within(secs(30)))).await.expect("acknowledged");
    assert_eq!(soon(here.next()).await.map(|change| change == Change::Deleted), Some(true));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_gets_the_latest_value_and_delays_nothing() {
    let node = single().await;
    let mut changes = node.handle.subscribe(&hits());
    for _ in 0..1_000 {
        increment(&node.handle).await;
    }
    reads(&mut changes, 1_000).await;
    increment(&node.handle).await;
    reads(&mut changes, 1_001).await;
    node.running.stop().await.expect("the Replicator did not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_subscription_yields_all_matching_keys() {
    let cluster = Cluster::of_three().await;
    let mut rooms = cluster.at(0).subscribe_prefix("room/");
    for name in ["room/a", "hall", "room/b"] {
        let key = Key::<ORSet<u32>>::new(name);
        let update = cluster.at(1).update(&key, WriteAll::within(secs(30)), |set| set.insert(&7));
        soon(update).await.expect("acknowledged");
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        let KeyChange { key, value } = soon(rooms.next()).await.expect("a change");
        let set = value.and_then(|value| value.get::<ORSet<u32>>()).expect("a set");
        assert!(set.contains(&7));
        seen.push(key.as_str().to_owned());
    }
    assert_eq!(seen, ["room/a", "room/b"]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_reports_a_key_of_another_type() {
    let node = single().await;
    increment(&node.handle).await;
    let mut changes = node.handle.subscribe(&Key::<Flag>::new("hits"));
    match soon(changes.next()).await {
        Some(Change::WrongType { expected, found }) => {
            assert_eq!((expected, found), (Flag::shape(), PNCounter::shape()));
        }
        other => panic!("{other:?}"),
    }
    node.running.stop().await.expect("the Replicator did not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn dropped_stream_unsubscribes_while_the_task_is_busy() {
    let node = single().await;
    let held = hold(&node.handle).await;
    let streams: Vec<_> = (0..5_000).map(|_| node.handle.subscribe(&hits())).collect();
    assert_eq!(node.handle.load().subscriptions, 5_000);
    drop(streams);
    let load = node.handle.load();
    assert_eq!((load.subscriptions, load.waiting.requests), (0, 10_000));
    drop(held);
    eventually("all are handled", async || node.handle.load().waiting.requests == 0).await;
    let before = node.handle.load().turns.outputs;
    increment(&node.handle).await;
    eventually("the turn has ended", async || node.handle.load().turns.outputs > before).await;
    assert!(node.handle.load().turns.outputs - before < 10, "the machine notifies no subscriber");
    node.running.stop().await.expect("the Replicator did not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_after_unread_changes_when_the_node_stops() {
    let node = single().await;
    let mut changes = node.handle.subscribe(&hits());
    let mut others = node.handle.subscribe_prefix("x");
    increment(&node.handle).await;
    let waits = tokio::spawn(async move { others.next().await });
    let replicator = node.handle.clone();
    node.running.stop().await.expect("the Replicator did not panic");
    assert!(matches!(soon(changes.next()).await, Some(Change::Changed(_))));
    assert!(soon(changes.next()).await.is_none());
    assert_eq!(soon(waits).await.expect("no panic"), None);
    let late: Vec<_> = soon(replicator.subscribe(&hits()).collect()).await;
    assert!(late.is_empty());
}
