//! Rate of entity starts, and the memory of an idle entity.

use std::sync::atomic::Ordering;

use ostraca::prelude::*;
use tokio::sync::mpsc;

use crate::figures::{Rate, Row, Watch, beside, median, rate};
use crate::subject::{Command, Subject, start_counted};
use crate::{Error, IN_FLIGHT, RUNS, peers};

const STARTED: u64 = 200_000;
const IDLE: u64 = 1_000_000;
const STATE: f64 = 16.0; // bytes of a subject

// ── Started per second ──

pub(crate) async fn run() -> Result<(), Error> {
    let node = peers::start(&[]).await?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let (region, begun) = start_counted(&node, &format!("started-{run}")).await?;
        for shard in crate::subject::one_per_shard(&region) {
            // allocates the homes
            shard.ask(Command::Get).await?; // homes are known from here on
        }
        let before = begun.load(Ordering::Relaxed);
        let watch = Watch::start(Vec::new());
        fill(&region, STARTED, || begun.load(Ordering::Relaxed) - before).await?;
        ours.push(watch.stop(STARTED));
        limit.push(bare_tasks().await?);
    }
    let (ours, limit) = (median(ours), median(limit));
    Row {
        what: "entities started by a tell, 1 sender",
        goal: "-",
        ours: rate(ours),
        limit: beside(ours, limit, "a task and a channel"),
    }
    .print();
    node.stop().await;
    Ok(())
}

/// Sends a message to `count` entities and waits until all have begun. Only a few thousand run at a
/// time, so that afterwards only the memory of idle ones remains.
async fn fill(
    region: &ShardRegion<Subject>,
    count: u64,
    begun: impl Fn() -> u64,
) -> Result<(), Error> {
    let mut asked = Vec::with_capacity(IN_FLIGHT);
    for n in 0..count {
        let entity = region.entity(&format!("filled-{n:07}"));
        if n % IN_FLIGHT as u64 == 0 {
            for asked in std::mem::take(&mut asked) {
                let _: u64 = asked.await?;
            }
        }
        entity.tell(Command::Add(n))?;
        if n % 64 == 0 || n + 1 == count {
            asked.push(entity.ask(Command::Get));
        }
    }
    for asked in asked {
        asked.await?;
    }
    while begun() < count {
        tokio::task::yield_now().await;
    }
    assert_eq!(begun(), count, "each begins once");
    Ok(())
}

/// The limit: tokio tasks, each with a channel and a first message.
async fn bare_tasks() -> Result<Rate, Error> {
    let watch = Watch::start(Vec::new());
    let mut tasks = Vec::with_capacity(STARTED as usize);
    let (done, mut all) = mpsc::channel::<()>(1);
    for n in 0..STARTED {
        let (sender, mut receiver) = mpsc::channel::<u64>(8);
        let done = (n + 1 == STARTED).then(|| done.clone());
        tokio::spawn(async move {
            let mut sum = 0;
            while let Some(n) = receiver.recv().await {
                sum += n;
                if let Some(done) = &done {
                    let _ = done.send(()).await; // the run has ended
                }
            }
            std::hint::black_box(sum);
        });
        sender.try_send(n)?;
        tasks.push(sender);
    }
    all.recv().await.ok_or("the last one says so")?;
    Ok(watch.stop(STARTED))
}

// ── Bytes ──

/// Measures memory in a process of its own, so that nothing else is counted.
pub(crate) async fn run_memory() -> Result<(), Error> {
    let mut process = peers::process(&["memory"])?;
    let each: f64 = process.line().await?.parse()?;
    Row {
        what: "an idle entity of 1,000,000 beyond its state",
        goal: "<= 200 B",
        ours: format!("{:.0} B", each - STATE),
        limit: format!("{each:.0} B with {STATE} B of state; the growth of the process"),
    }
    .print();
    Ok(())
}

/// Prints the bytes by which the process grew per idle entity, for a million of them.
pub(crate) async fn memory() -> Result<(), Error> {
    let node = peers::start(&[]).await?;
    let (region, begun) = start_counted(&node, "idle").await?;
    for shard in crate::subject::one_per_shard(&region) {
        shard.ask(Command::Get).await?; // allocates the homes
    }
    let before = (begun.load(Ordering::Relaxed), resident()?);
    fill(&region, IDLE, || begun.load(Ordering::Relaxed) - before.0).await?;
    let grown = resident()?.saturating_sub(before.1);
    println!("{}", grown as f64 / IDLE as f64);
    drop(region);
    Ok(())
}

/// Returns the anonymous memory of this process in bytes.
fn resident() -> Result<u64, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes: u64 = line.ok_or("no RssAnon")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
