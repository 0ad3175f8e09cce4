//! Load: batches, bounds and back-pressure.

use std::time::Duration;

use ostraca::node::InboxLimits;
use ostraca::node::routes::ReplicatorEvent;
use ostraca::prelude::*;

use crate::cluster::{Cluster, Plan, hold};
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_concurrent_updates_are_batched() {
    let cluster = Cluster::of_three().await;
    let write = WriteMajority::within(secs(60));
    let updates: Vec<_> = (0..10_000)
        .map(|_| {
            let node = cluster.at(0);
            tokio::spawn(async move { node.update(&hits(), write, |c| c.increment()).await })
        })
        .collect();
    for update in updates {
        soon(update).await.expect("no panic").expect("acknowledged");
    }
    let read = soon(cluster.at(1).get(&hits(), ReadMajority::within(secs(60)))).await;
    assert_eq!(read.expect("answered").map(|counter| counter.value()), Some(10_000));
    let load = cluster.at(0).load();
    assert!(load.turns.batch_max > 1 && load.turns.batch_max <= 1_024, "{load:?}");
    assert!(load.turns.turns < load.turns.inputs, "{load:?}");
    assert!(load.sent.messages < 20_000, "changes of one batch share messages: {load:?}");
    assert_eq!(load.replies_awaited, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn full_inbox_makes_callers_wait_until_their_timeout() {
    let inbox = InboxLimits { requests: 4, ..InboxLimits::default() };
    let cluster = Plan { nodes: 1, inbox, ..Plan::default() }.start().await;
    let node = cluster.at(0);
    let held = hold(&node).await;
    let updates: Vec<_> = (0..20)
        .map(|_| {
            let node = node.clone();
            tokio::spawn(async move { node.update(&hits(), WriteLocal, |c| c.increment()).await })
        })
        .collect();
    eventually("the inbox is full and the other callers wait", async || {
        let waiting = node.load().waiting;
        (waiting.requests, waiting.callers) == (4, 16)
    })
    .await;
    let hurry = WriteMajority::within(Duration::from_millis(20));
    let refused = soon(node.update(&hits(), hurry, |counter| counter.increment())).await;
    assert!(matches!(refused, Err(UpdateError::Overloaded { limit: 4 })), "{refused:?}");
    drop(held);
    for update in updates {
        soon(update).await.expect("no panic").expect("the caller got a place");
    }
    let read = node.get(&hits(), ReadLocal).await.expect("local");
    assert_eq!(read.map(|counter| counter.value()), Some(20), "the refused update changed nothing");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_inboxes_lose_no_messages() {
    let inbox = InboxLimits { requests: 2, messages: 2, message_bytes: 512 };
    let cluster = Plan { inbox, ..Plan::default() }.start().await;
    let write = WriteAll::within(secs(60));
    let updates: Vec<_> = (0..300)
        .map(|n| {
            let node = cluster.at(n % 3);
            tokio::spawn(async move { node.update(&hits(), write, |c| c.increment()).await })
        })
        .collect();
    for update in updates {
        soon(update).await.expect("no panic").expect("acknowledged");
    }
    for number in 0..3 {
        let here = cluster.at(number).get(&hits(), ReadLocal).await.expect("local");
        assert_eq!(here.map(|counter| counter.value()), Some(300));
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_gets_installed_and_synced_events() {
    let mut cluster = Cluster::of_three().await;
    let events = &mut cluster.nodes[0].events;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.push(soon(events.recv()).await.expect("the Replicator runs"));
    }
    assert!(
        matches!(&heard[0], ReplicatorEvent::Installed(epoch) if epoch.members().len() == 3),
        "{heard:?}"
    );
    assert!(matches!(&heard[1], ReplicatorEvent::Synced(_)), "{heard:?}");
    cluster.stop().await;
}
