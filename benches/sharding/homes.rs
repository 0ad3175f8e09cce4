//! Time to allocate homes for a thousand shards at once. Limit: one majority write.

use std::time::{Duration, Instant};

use ostraca::prelude::*;

use crate::figures::{Row, Spans, middle, runs, span};
use crate::peers::Cluster;
use crate::subject::{Command, one_per_shard};
use crate::{Error, RUNS};

const WRITES: u64 = 500;

pub(crate) async fn run() -> Result<(), Error> {
    let mut cluster = Cluster::start(2).await?;
    let (mut ours, mut writes) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        ours.push(cold(&mut cluster, run).await?);
        writes.extend(majority_writes(&cluster.node.replicator()).await?);
    }
    let write = Spans::of(writes).at(50);
    let each = middle(&ours).as_secs_f64() / write.as_secs_f64();
    Row {
        what: "1,000 shards at once, cold, 3 nodes, answered",
        goal: "< 250 ms",
        ours: runs(&ours),
        limit: format!("a WriteMajority {}: {each:.0} of them", span(write)),
    }
    .print();
    cluster.stop().await;
    Ok(())
}

/// Each run uses a new entity type.
async fn cold(cluster: &mut Cluster, run: usize) -> Result<Duration, Error> {
    let region = cluster.host(&format!("cold-{run}")).await?;
    let entities = one_per_shard(&region);
    let begun = Instant::now();
    let asked: Vec<_> = entities.iter().map(|entity| entity.ask(Command::Get)).collect();
    for asked in asked {
        asked.await?;
    }
    Ok(begun.elapsed())
}

async fn majority_writes(replicator: &Replicator) -> Result<Vec<Duration>, Error> {
    let (key, mut spans) = (Key::<LWWRegister<u64>>::new("written"), Vec::new());
    for n in 0..WRITES {
        let begun = Instant::now();
        let level = WriteMajority::within(secs(5));
        replicator.update(&key, level, move |one| one.set(&n)).await?;
        spans.push(begun.elapsed());
    }
    Ok(spans)
}
