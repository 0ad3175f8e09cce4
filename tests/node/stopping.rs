//! Stop of a node: queued requests are handled, pending ones fail, and no caller hangs.

use futures::FutureExt;
use ostraca::ddata::id::ReplicaId;
use ostraca::net::TrafficClass;
use ostraca::node::message_sender::{MessageSender, NotSent};
use ostraca::node::parts::start_replicator;
use ostraca::node::replicator::{FlushError, QueryError};
use ostraca::node::routes::{Fact, ReplicatorEvent};
use ostraca::prelude::*;

use crate::cluster::{Cluster, epoch, hold, setup};
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_interrupts_pending_requests() {
    let mut cluster = Cluster::of_three().await;
    cluster.network.cut(Cluster::id(0));
    let node = cluster.nodes.remove(0);
    let (write, read) = (WriteMajority::within(secs(600)), ReadMajority::within(secs(600)));
    let mut updates = Vec::new();
    let (mut reads, mut deletes) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let handle = node.handle.clone();
        updates.push(tokio::spawn(async move {
            handle.update(&hits(), write, |counter| counter.increment()).await
        }));
        let handle = node.handle.clone();
        reads.push(tokio::spawn(async move { handle.get(&hits(), read).await }));
        let handle = node.handle.clone();
        deletes.push(tokio::spawn(async move { handle.delete(&hits(), write).await }));
    }
    let handle = node.handle.clone();
    let flush = tokio::spawn(async move { handle.flush_changes(secs(600)).await });
    eventually("all are under way", async || {
        node.handle.stats().await.expect("the Replicator runs").requests_pending >= 101
    })
    .await;
    soon(node.running.stop()).await.expect("the Replicator did not panic");
    for update in updates {
        let update = soon(update).await.expect("no panic");
        assert!(matches!(update, Err(UpdateError::Interrupted)), "{update:?}");
    }
    for read in reads {
        assert!(matches!(soon(read).await.expect("no panic"), Err(GetError::Stopped)));
    }
    for delete in deletes {
        // A delete that ran before every update found no value.
        let delete = soon(delete).await.expect("no panic");
        assert!(matches!(delete, Ok(()) | Err(DeleteError::Interrupted)), "{delete:?}");
    }
    assert!(matches!(soon(flush).await.expect("no panic"), Err(FlushError::Stopped)));
    let late = soon(node.handle.update(&hits(), WriteLocal, |counter| counter.increment())).await;
    assert!(matches!(late, Err(UpdateError::Stopped)), "{late:?}");
    assert!(matches!(soon(node.handle.get(&hits(), ReadLocal)).await, Err(GetError::Stopped)));
    assert!(matches!(soon(node.handle.stats()).await, Err(QueryError::Stopped)));
    assert_eq!(node.handle.load().replies_awaited, 0);
    node.facts.tell(Fact::Found(epoch(1))); // has no effect after the stop
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn stop_handles_queued_requests_and_sends_their_changes() {
    let mut cluster = Cluster::of_three().await;
    let node = cluster.nodes.remove(0);
    let held = hold(&node.handle).await;
    let updates: Vec<_> = (0..100)
        .map(|_| {
            let handle = node.handle.clone();
            tokio::spawn(async move { handle.update(&hits(), WriteLocal, |c| c.increment()).await })
        })
        .collect();
    eventually("all are queued", async || node.handle.load().waiting.requests == 100).await;
    let stop = tokio::spawn(node.running.stop());
    eventually("the inbox is closed", async || {
        let read = node.handle.get(&hits(), ReadLocal).now_or_never();
        matches!(read, Some(Err(GetError::Stopped)))
    })
    .await;
    drop(held);
    soon(stop).await.expect("no panic").expect("the Replicator did not panic");
    for update in updates {
        soon(update).await.expect("no panic").expect("a queued update is handled");
    }
    eventually("the last output was sent", async || {
        let there = cluster.at(0).get(&hits(), ReadLocal).await.expect("local");
        there.is_some_and(|counter| counter.value() == 100)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_running_handle_stops_the_replicator() {
    let mut cluster = Cluster::of_three().await;
    let node = cluster.nodes.remove(0);
    let mut changes = node.handle.subscribe(&hits());
    drop(node.running);
    assert!(soon(changes.next()).await.is_none());
    cluster.stop().await;
}

/// A network that panics, as a bug would.
struct Broken;

impl MessageSender for Broken {
    fn send(&mut self, _: ReplicaId, _: TrafficClass, _: &[u8]) -> Result<(), NotSent> {
        panic!("a bug of ours");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_the_replicator_fails_all_requests() {
    let setup = setup(0, Default::default());
    let mut node = start_replicator(setup, Broken).await.expect("memory is readable");
    node.facts.tell(Fact::Found(epoch(3)));
    let mut changes = node.handle.subscribe(&Key::<Flag>::new("quiet"));
    let write = WriteMajority::within(secs(600));
    let update = soon(node.handle.update(&hits(), write, |counter| counter.increment())).await;
    assert!(matches!(update, Err(UpdateError::Interrupted | UpdateError::Stopped)), "{update:?}");
    assert!(soon(changes.next()).await.is_none());
    let mut last = None;
    while let Some(event) = soon(node.events.recv()).await {
        last = Some(event);
    }
    assert_eq!(last, Some(ReplicatorEvent::Failed("a bug of ours".to_owned())));
    let failed = soon(node.running.stop()).await.expect_err("it panicked");
    assert_eq!(failed.message, "a bug of ours");
}
