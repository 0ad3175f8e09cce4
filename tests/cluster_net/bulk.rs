//! Long messages over sockets: other entities of their shard go on answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ostraca::prelude::*;
use serde::{Deserialize, Serialize};

use crate::fixture::{Plan, free_addresses};
use crate::waits::{SOON, eventually, soon};

/// Bytes of a long message.
const LONG: usize = 1_000_000;

const ASKS: usize = 60;

/// Maximum number of long messages that are handled during one ask, in the median. An ask follows
/// 256 KiB and one long message in its lane, and 2 MiB in buffers of the connection; the rest is
/// for delays of tasks. If it followed all that its shard or its lane may buffer, this would be 64.
const PASSING_MAX: u64 = 24;

/// Handled long messages, by entity.
static HANDLED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn handled() -> [u64; 2] {
    [0, 1].map(|entity: usize| HANDLED[entity].load(Ordering::SeqCst))
}

/// Waits until each entity has handled more long messages.
async fn both_progress(since: [u64; 2]) {
    eventually("both go on", async || {
        handled().into_iter().zip(since).all(|(now, since)| now >= since + 20)
    })
    .await;
}

struct Depot;

#[derive(Serialize, Deserialize)]
enum Freight {
    /// The number of the entity, and text that only adds length.
    Long(usize, String),
    Short(Reply<bool>),
}

impl Entity for Depot {
    type Message = Freight;

    async fn handle(&mut self, freight: Freight, _: &mut Context<'_, Self>) {
        match freight {
            Freight::Long(entity, _) => {
                HANDLED[entity].fetch_add(1, Ordering::SeqCst);
            }
            Freight::Short(reply) => reply.send(true),
        }
    }
}

/// Four callers send long messages to two entities of the other node without a pause. Meanwhile
/// another entity of the same shard is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_leaves_shard_mates_answering() {
    let plan = Plan::changed(1, |_| {});
    let host = plan.seed(0).await;
    soon(host.cluster().wait_until_up()).await.expect("it founds alone");
    let hosting = host.sharding().start("depot", |_| Depot).await.expect("it starts");
    soon(host.sharding().wait_until_registered("depot")).await.expect("it serves");
    let mut config = plan.config(&free_addresses(1).remove(0), None);
    config.net.limits.lane_bytes_max[2] = 64 << 20; // of messages to entities
    let sender = Node::start(config).await.expect("it starts");
    soon(sender.cluster().wait_until_up()).await.expect("it joins");
    let region = sender.sharding().start_proxy::<Depot>("depot").await.expect("it starts");

    let first = region.entity("bulk");
    let names = (0..).map(|number: u32| region.entity(&format!("depot-{number}")));
    let mut mates = names.filter(|entity| entity.shard() == first.shard());
    let (second, mate) = (mates.next().expect("endless"), mates.next().expect("endless"));
    assert!(soon(mate.ask_within(SOON, Freight::Short)).await.expect("it answers"));

    let ends = Arc::<AtomicBool>::default();
    let mut senders = Vec::new();
    for number in 0..4 {
        let (entity, ends) = (number % 2, Arc::clone(&ends));
        let to = [&first, &second][entity].clone();
        senders.push(tokio::spawn(async move {
            while !ends.load(Ordering::SeqCst) {
                let long = Freight::Long(entity, "x".repeat(LONG));
                to.tell_wait(long).await.expect("it waits for room");
            }
        }));
    }
    both_progress([0; 2]).await;

    let mut passing = Vec::new();
    for _ in 0..ASKS {
        let before: u64 = handled().iter().sum();
        assert!(soon(mate.ask_within(SOON, Freight::Short)).await.expect("it answers"));
        passing.push(handled().iter().sum::<u64>() - before);
    }
    both_progress(handled()).await; // the asks do not starve the long messages

    passing.sort_unstable();
    assert!(passing[ASKS / 2] <= PASSING_MAX, "long messages during each ask: {passing:?}");
    ends.store(true, Ordering::SeqCst);
    for sender in senders {
        soon(sender).await.expect("it does not panic");
    }
    drop(hosting);
    soon(sender.stop()).await;
    soon(host.stop()).await;
}
