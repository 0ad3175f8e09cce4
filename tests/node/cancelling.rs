//! Cancellation: dropped futures leave no state behind.

use std::time::Duration;

use futures::FutureExt;
use ostraca::node::InboxLimits;
use ostraca::prelude::*;

use crate::cluster::{Cluster, Plan, hold};
use crate::waits::{eventually, soon};

fn hits() -> Key<PNCounter> {
    Key::new("hits")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_requests_leave_nothing_pending() {
    let inbox = InboxLimits { requests: 16, ..InboxLimits::default() };
    let cluster = Plan { inbox, ..Plan::default() }.start().await;
    cluster.network.cut(Cluster::id(0));
    let node = cluster.at(0);
    let span = Duration::from_millis(200);
    for round in 0..5_000 {
        let increment = |counter: &mut Edit<'_, PNCounter>| counter.increment();
        let gone = match round % 4 {
            0 => node
                .update(&hits(), WriteMajority::within(span), increment)
                .now_or_never()
                .is_none(),
            1 => node.get(&hits(), ReadMajority::within(span)).now_or_never().is_none(),
            2 => node.delete(&hits(), WriteMajority::within(span)).now_or_never().is_none(),
            _ => node.flush_changes(span).now_or_never().is_none(),
        };
        assert!(gone, "no replica can have answered");
        assert_eq!(node.load().replies_awaited, 0);
        if round % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let load = node.load();
    assert_eq!((load.replies_awaited, load.waiting.callers), (0, 0));
    eventually("the machine drops the requests too", async || {
        let pending = node.stats().await.expect("the Replicator runs").requests_pending;
        pending == 0 && node.load().waiting.requests == 0
    })
    .await;
    cluster.network.heal(Cluster::id(0));
    let all = (0..64).map(|_| node.update(&hits(), WriteAll::within(secs(30)), |c| c.increment()));
    let all = soon(futures::future::join_all(all)).await;
    assert!(all.iter().all(Result::is_ok), "every place was released: {all:?}");
    assert_eq!(node.load().replies_awaited, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn cancelled_wait_for_a_place_takes_none() {
    let inbox = InboxLimits { requests: 2, ..InboxLimits::default() };
    let cluster = Plan { nodes: 1, inbox, ..Plan::default() }.start().await;
    let node = cluster.at(0);
    let held = hold(&node).await;
    let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(node.get(&hits(), ReadLocal))).collect();
    for future in &mut waiting {
        assert!(future.now_or_never().is_none());
    }
    let load = node.load();
    assert_eq!((load.waiting.requests, load.waiting.callers), (2, 98));
    assert_eq!(load.replies_awaited, 3, "two queued requests, and the one that blocks the task");
    drop(waiting);
    let load = node.load();
    assert_eq!((load.waiting.requests, load.waiting.callers, load.replies_awaited), (2, 0, 1));
    drop(held);
    for _ in 0..10 {
        assert_eq!(soon(node.get(&hits(), ReadLocal)).await.expect("local"), None);
    }
    cluster.stop().await;
}
