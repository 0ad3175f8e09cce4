//! Nodes that change one large value at a majority at the same time.

use std::time::{Duration, Instant};

use futures::future::join_all;
use ostraca::prelude::*;

use crate::fixture::Plan;
use crate::waits::{SOON, eventually, soon};

const KEYS: u32 = 20_000;

/// Changes that a writer makes at a time.
const AT_ONCE: usize = 5;

/// Longer than a lease lasts.
const WRITES: Duration = Duration::from_secs(8);

type Map = LWWMap<u32, u64>;

fn key() -> Key<Map> {
    Key::new("map")
}

/// Removes and inserts random keys at a majority, for [`WRITES`]. Returns the number of changes.
async fn write(replicator: Replicator, mut random: u64) -> u64 {
    let (began, mut done) = (Instant::now(), 0);
    while began.elapsed() < WRITES {
        let changes = (0..AT_ONCE).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (name, value) = ((random % u64::from(KEYS)) as u32, random);
            replicator.update(&key(), WriteMajority::within(secs(5)), move |map| {
                map.remove(&name)?;
                map.insert(&name, &value)
            })
        });
        for changed in join_all(changes).await {
            changed.expect("a majority is there");
            done += 1;
        }
    }
    done
}

/// The load that once stopped three Replicators for seconds: the leases of all nodes lapsed, changes
/// timed out, and one of three writers made a thirtieth of the changes of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn majority_writers_that_remove_keep_leases() {
    let plan = Plan::changed(3, |_| {});
    let nodes = plan.start().await;
    for first in (0..KEYS).step_by(500) {
        let fill = move |map: &mut Edit<'_, Map>| {
            (first..first + 500).try_for_each(|name| map.insert(&name, &1))
        };
        let filled = nodes[0].replicator().update(&key(), WriteAll::within(SOON), fill);
        filled.await.expect("all nodes answer");
    }
    for node in &nodes {
        eventually("it has a lease", async || node.lease().serves()).await;
    }

    let seeds = 88_172_645_463_325_252..;
    let writers: Vec<_> = nodes
        .iter()
        .zip(seeds)
        .map(|(node, seed)| tokio::spawn(write(node.replicator(), seed)))
        .collect();
    while !writers.iter().all(|writer| writer.is_finished()) {
        for node in &nodes {
            assert!(node.lease().serves(), "a lease has lapsed");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut done = Vec::new();
    for writer in writers {
        done.push(soon(writer).await.expect("no change fails"));
    }
    let least = *done.iter().min().expect("three writers");
    assert!(done.iter().all(|changes| *changes <= 5 * least), "changes of each node: {done:?}");

    for node in &nodes {
        let read = node.replicator().get(&key(), ReadMajority::within(SOON)).await;
        let map = read.expect("a majority is there").expect("it was filled");
        assert_eq!(map.len(), KEYS as usize, "each removed key was inserted again");
    }
    for node in nodes {
        soon(node.stop()).await;
    }
}
