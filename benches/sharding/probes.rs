//! Probes: entities that are asked continuously while their shards move. They measure the longest
//! wait of each entity, and detect lost and repeated messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ostraca::prelude::*;

use crate::Error;
use crate::figures::Spans;
use crate::subject::{Command, Subject};

/// Pause between two asks of an entity.
const PACE: Duration = Duration::from_millis(25);

/// Time before and after the event, so that all entities are answered before and after it.
const ASIDE: Duration = Duration::from_millis(500);

/// Timeout of an ask, after which the probe asks again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As in a program that expects no crash; every failed ask is an error.
    Normal,
    /// Short, because messages on their way to a killed node are never answered.
    Short,
}

/// Measurements of one probe.
#[derive(Default)]
struct Seen {
    answers: u64,
    longest: Duration,
    /// Time of the first answer from another node.
    moved: Option<Instant>,
    failed: u64,
    /// Visits that were counted twice, or not at all.
    wrong: u64,
}

/// Measurements of all probes.
pub(crate) struct Watched {
    pub(crate) answers: u64,
    /// Longest wait of each entity that moved; `stayed`: of each other one.
    pub(crate) moved: Spans,
    pub(crate) stayed: Spans,
    /// Time from the event to the first answer of each moved entity.
    pub(crate) first: Spans,
    pub(crate) failed: u64,
    pub(crate) wrong: u64,
}

async fn probe(
    entity: EntityRef<Subject>,
    phase: Duration,
    patience: Patience,
    over: Arc<AtomicBool>,
) -> Seen {
    let within = if patience == Patience::Short { PACE * 10 } else { secs(5) };
    let (mut seen, mut last) = (Seen::default(), None::<(u64, u64)>);
    tokio::time::sleep(phase).await;
    let mut unanswered_since = None;
    while !over.load(Ordering::Relaxed) || unanswered_since.is_some() {
        let asked_at = *unanswered_since.get_or_insert_with(Instant::now);
        match entity.ask_within(within, Command::Visit).await {
            Ok((visits, node)) => {
                let now = Instant::now();
                seen.longest = seen.longest.max(now - asked_at);
                seen.answers += 1;
                if let Some((before, on)) = last.replace((visits, node)) {
                    seen.wrong += u64::from(visits != before + 1);
                    if on != node {
                        seen.moved = Some(now);
                    }
                }
                unanswered_since = None;
                tokio::time::sleep(PACE).await;
            }
            Err(_) => seen.failed += 1,
        }
    }
    seen
}

/// Probes all these entities during an event.
pub(crate) async fn watch<T>(
    entities: &[EntityRef<Subject>],
    patience: Patience,
    event: impl Future<Output = Result<T, Error>>,
) -> Result<(T, Watched), Error> {
    let over = Arc::<AtomicBool>::default();
    let probes = entities.iter().enumerate().map(|(n, entity)| {
        let phase = PACE * u32::try_from(n % 1_000).unwrap_or_default() / 1_000;
        tokio::spawn(probe(entity.clone(), phase, patience, over.clone()))
    });
    let probes: Vec<_> = probes.collect();
    tokio::time::sleep(ASIDE).await;
    let happens = Instant::now();
    let result = event.await?;
    tokio::time::sleep(ASIDE).await;
    over.store(true, Ordering::Relaxed);
    let mut all = Vec::with_capacity(probes.len());
    for probe in probes {
        all.push(probe.await?);
    }
    let longest = |moved: bool| {
        let chosen = all.iter().filter(|seen| seen.moved.is_some() == moved);
        Spans::of(chosen.map(|seen| seen.longest).collect())
    };
    let first = all.iter().filter_map(|seen| seen.moved).map(|at| at - happens).collect();
    let sum = |figure: fn(&Seen) -> u64| all.iter().map(figure).sum();
    let watched = Watched {
        answers: sum(|seen| seen.answers),
        moved: longest(true),
        stayed: longest(false),
        first: Spans::of(first),
        failed: sum(|seen| seen.failed),
        wrong: sum(|seen| seen.wrong),
    };
    Ok((result, watched))
}
