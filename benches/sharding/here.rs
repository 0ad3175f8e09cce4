//! Messages to entities of the same node. Limit: a task behind a channel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ostraca::prelude::*;

use crate::figures::{Rate, Row, Spans, Watch, beside, median, rate, span, times};
use crate::limits::{Choice, channel_asks, channel_round_trips, channel_tells, in_flight, p99};
use crate::subject::{Command, Subject, one_per_shard, start};
use crate::{Error, RUN, RUNS, peers, progress};

const ROUND_TRIPS: usize = 20_000;

/// Returns the sum that all these entities have counted.
pub(crate) async fn sum(entities: &[EntityRef<Subject>]) -> Result<u64, Error> {
    let mut sum = 0;
    for entity in entities {
        sum += loop {
            match entity.ask_within(secs(30), Command::Get).await {
                Err(AskError::NotSent(full)) if full.is_full() => tokio::task::yield_now().await,
                answer => break answer?,
            }
        };
    }
    Ok(sum)
}

/// One sender that sends to the entities in turn.
async fn tells(entities: &[EntityRef<Subject>]) -> Result<Rate, Error> {
    let before = sum(entities).await?;
    let (watch, mut told, mut next) = (Watch::start(Vec::new()), 0, 0);
    while watch.elapsed() < RUN {
        for _ in 0..1_000 {
            let entity = &entities[next];
            if entity.tell(Command::Add(1)).is_err() {
                entity.tell_wait(Command::Add(1)).await?;
            }
            next = if next + 1 == entities.len() { 0 } else { next + 1 };
        }
        told += 1_000;
        tokio::task::consume_budget().await;
    }
    let counted = sum(entities).await? - before;
    assert_eq!(counted, told, "every message is handled");
    Ok(watch.stop(told))
}

/// Measures asks of these entities, many in flight at the same time.
pub(crate) async fn asks(
    entities: &[EntityRef<Subject>],
    choice: Choice,
    others: Vec<u32>,
) -> Result<(Rate, Vec<Duration>), Error> {
    let entities: Arc<[_]> = entities.into();
    in_flight(others, choice, move |n| {
        let asked = entities[n % entities.len()].ask(Command::Get);
        async move { Ok(asked.await?) }
    })
    .await
}

pub(crate) async fn round_trips(
    entity: &EntityRef<Subject>,
    count: usize,
) -> Result<Vec<Duration>, Error> {
    let mut spans = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        entity.ask(Command::Get).await?;
        spans.push(begun.elapsed());
    }
    Ok(spans)
}

pub(crate) async fn run() -> Result<(), Error> {
    let node = peers::start(&[]).await?;
    let region = start(&node, "here").await?;
    let all = one_per_shard(&region);
    sum(&all).await?; // starts all entities
    // With some hundred entities all memory that a message touches is cached; all threads compete
    // for a single one.
    for (count, name) in [(1, "1 entity"), (334, "334 entities"), (1_000, "1,000 entities")] {
        let entities = &all[..count];
        progress(&format!("tells to {name}"));
        tell(entities, name).await?;
        progress(&format!("asks of {name}"));
        ask(entities, Choice::Own, name).await?;
    }
    ask(&all, Choice::Any, "any of 1,000").await?;
    ask_alone(&all[0]).await?;
    node.stop().await;
    Ok(())
}

async fn tell(entities: &[EntityRef<Subject>], name: &str) -> Result<(), Error> {
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(tells(entities).await?);
        limit.push(channel_tells().await?);
    }
    let (ours, limit) = (median(ours), median(limit));
    Row {
        what: &format!("tell here, 1 sender, {name}"),
        goal: ">= 5 M/s",
        ours: rate(ours),
        limit: beside(ours, limit, "mpsc, 1 task"),
    }
    .print();
    Ok(())
}

async fn ask(entities: &[EntityRef<Subject>], choice: Choice, name: &str) -> Result<(), Error> {
    let (mut ours, mut spans) = (Vec::new(), Vec::new());
    let (mut limit, mut limit_spans) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let (rate, took) = asks(entities, choice, Vec::new()).await?;
        ours.push(rate);
        spans.push(took);
        let (rate, took) = channel_asks(entities.len(), choice).await?;
        limit.push(rate);
        limit_spans.push(took);
    }
    let (ours, limit) = (median(ours), median(limit));
    Row {
        what: &format!("ask here, 1,024 in flight, {name}"),
        goal: ">= 2 M/s",
        ours: rate(ours),
        limit: format!(
            "p99 {}; {}, p99 {}",
            span(p99(&spans)),
            beside(ours, limit, "mpsc + oneshot, as many tasks"),
            span(p99(&limit_spans))
        ),
    }
    .print();
    Ok(())
}

async fn ask_alone(entity: &EntityRef<Subject>) -> Result<(), Error> {
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.extend(round_trips(entity, ROUND_TRIPS).await?);
        limit.extend(channel_round_trips(ROUND_TRIPS).await?);
    }
    let (ours, limit) = (Spans::of(ours), Spans::of(limit));
    Row {
        what: "ask here, one at a time, p50",
        goal: "<= 2 µs",
        ours: span(ours.at(50)),
        limit: format!(
            "p99 {}; {}",
            span(ours.at(99)),
            times(ours.at(50), limit.at(50), "mpsc + oneshot")
        ),
    }
    .print();
    Ok(())
}
