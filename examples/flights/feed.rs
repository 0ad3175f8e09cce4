//! Feeds the flights of a file into the cluster, with a bound on unanswered flights, and queries
//! the state of every entity at the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use indicatif::{ProgressBar, ProgressStyle};
use ostraca::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::Failed;
use crate::acts::{Play, Speed};
use crate::entities::{Account, Aircraft, MESSAGES_PER_FLIGHT, Regions, Seen, Told};
use crate::records::{FileError, Input, Problems, Record};
use crate::tally::Totals;

/// Maximum number of unanswered flights: fewer than the capacity of a mailbox (`mailbox-size`,
/// 10,000), so that no mailbox is ever full.
const WINDOW: usize = 4_096;

/// Timeout of an ask: longer than the cluster needs to detect a dead node, remove it, and start its
/// entities on other nodes (5 s).
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Maximum number of concurrent queries at the end.
const ASKED_AT_ONCE: usize = 256;

/// Number of attempts to query an entity.
const TRIES: usize = 3;

/// Number of flights that the reader passes to the feeder at a time.
const BATCH: usize = 256;

/// Result of a sequential pass over the file.
pub(crate) struct Pass {
    pub(crate) totals: Totals,
    pub(crate) problems: Problems,
}

pub(crate) fn sequential(input: &Input) -> Result<Pass, FileError> {
    let mut records = input.records()?;
    let mut totals = Totals::default();
    for record in &mut records {
        totals.add(&record);
    }
    Ok(Pass { totals, problems: records.problems })
}

/// Statistics of the feeding.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Fed {
    pub(crate) flights: u64,
    pub(crate) seconds: f64,
    /// Flights fed while no disturbance took place.
    pub(crate) undisturbed_flights: u64,
    /// Time without a disturbance, in seconds.
    pub(crate) undisturbed_seconds: f64,
    /// Messages to entities per second, without a disturbance.
    pub(crate) messages_per_second: f64,
    /// Number of flights without an answer, by the reason of the failure.
    pub(crate) unanswered: BTreeMap<String, u64>,
}

impl Fed {
    fn answered(&mut self, outcome: Option<Result<(), AskError>>) {
        if let Some(Err(why)) = outcome {
            *self.unanswered.entry(reason(&why)).or_default() += 1;
        }
    }
}

fn reason(why: &AskError) -> String {
    match why {
        AskError::Timeout { kept, .. } => format!("no answer in time: {kept}"),
        AskError::Refused { why, .. } => format!("refused: {why}"),
        other => other.to_string(),
    }
}

/// Creates a progress bar, which is hidden without a terminal.
pub(crate) fn bar(length: u64, what: &'static str) -> ProgressBar {
    let template = "{msg:>10} [{bar:40}] {human_pos}/{human_len}  {per_sec}  {eta}";
    let style = ProgressStyle::with_template(template).expect("a constant");
    ProgressBar::new(length).with_style(style.progress_chars("=> ")).with_message(what)
}

/// Feeds all flights of the file. Ends when the ask of each flight has been answered or has failed.
pub(crate) async fn feed(
    input: Input,
    to: &ShardRegion<Aircraft>,
    play: &mut Play,
    bar: &ProgressBar,
) -> Result<Fed, Failed> {
    let (sender, mut batches) = mpsc::channel(4);
    let reads = tokio::task::spawn_blocking(move || read(&input, &sender));
    let (mut fed, mut under_way) = (Fed::default(), FuturesUnordered::new());
    let (began, mut watch) = (Instant::now(), Stopwatch::default());
    while let Some(batch) = batches.recv().await {
        for Record { tailnum, flight } in batch {
            let row = flight.row;
            watch.goes(play.before(row).await? == Speed::Full, &mut fed);
            if under_way.len() == WINDOW {
                fed.answered(under_way.next().await);
            }
            let aircraft = to.entity(&tailnum);
            under_way.push(aircraft.ask_within(ANSWER_WITHIN, |done| Told::Flown(flight, done)));
            fed.flights = row;
        }
        bar.set_position(fed.flights);
    }
    play.finish(fed.flights).await?;
    while let Some(outcome) = under_way.next().await {
        fed.answered(Some(outcome));
    }
    watch.goes(false, &mut fed);
    reads.await??;
    fed.seconds = began.elapsed().as_secs_f64();
    let messages = fed.undisturbed_flights * MESSAGES_PER_FLIGHT;
    fed.messages_per_second = messages as f64 / fed.undisturbed_seconds.max(f64::EPSILON);
    Ok(fed)
}

/// Measures flights and time without a disturbance.
#[derive(Default)]
struct Stopwatch {
    since: Option<(Instant, u64)>,
}

impl Stopwatch {
    fn goes(&mut self, undisturbed: bool, fed: &mut Fed) {
        match (undisturbed, self.since) {
            (true, None) => self.since = Some((Instant::now(), fed.flights)),
            (false, Some((since, flights))) => {
                fed.undisturbed_flights += fed.flights - flights;
                fed.undisturbed_seconds += since.elapsed().as_secs_f64();
                self.since = None;
            }
            _ => {}
        }
    }
}

fn read(input: &Input, to: &mpsc::Sender<Vec<Record>>) -> Result<(), FileError> {
    let mut records = input.records()?;
    loop {
        let batch: Vec<Record> = records.by_ref().take(BATCH).collect();
        if batch.is_empty() || to.blocking_send(batch).is_err() {
            return Ok(()); // the file has ended, or the feeder has failed
        }
    }
}

/// Collected reports of all entities.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) totals: Totals,
    /// Number of entities on each node, by type.
    pub(crate) homes: BTreeMap<u64, [usize; 3]>,
    /// Number of flights that reached an aircraft out of order.
    pub(crate) disorder: u64,
}

impl Said {
    fn note<S>(&mut self, of_type: usize, account: Account<S>) -> S {
        self.homes.entry(account.node).or_default()[of_type] += 1;
        self.disorder += account.disorder;
        account.known
    }
}

/// Queries every entity of `expected`. Entities that do not answer are not in the totals.
pub(crate) async fn ask_all(regions: &Regions, expected: &Totals, bar: &ProgressBar) -> Said {
    let mut said = Said::default();
    let Regions { aircraft, airlines, airports } = regions;
    for (id, account) in each(aircraft, expected.aircraft.keys(), Told::Report, bar).await {
        let known = said.note(0, account);
        said.totals.aircraft.insert(id, known);
    }
    for (id, account) in each(airlines, expected.airlines.keys(), Told::Report, bar).await {
        let known = said.note(1, account);
        said.totals.airlines.insert(id, known);
    }
    for (id, account) in each(airports, expected.airports.keys(), Seen::Report, bar).await {
        let known = said.note(2, account);
        said.totals.airports.insert(id, known);
    }
    said
}

async fn each<E: Entity, S: DeserializeOwned + Send + 'static>(
    region: &ShardRegion<E>,
    ids: impl Iterator<Item = &String>,
    question: fn(Reply<Account<S>>) -> E::Message,
    bar: &ProgressBar,
) -> Vec<(String, Account<S>)> {
    let asked = ids.map(|id| async {
        for _ in 0..TRIES {
            match region.entity(id).ask_within(ANSWER_WITHIN, question).await {
                Ok(account) => return Some((id.clone(), account)),
                Err(error) => {
                    tracing::warn!(%error, "flights.no_answer: the entity is asked again");
                }
            }
        }
        None
    });
    let answers = futures::stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
    let answers = answers.inspect(|_| bar.inc(1));
    answers.filter_map(async |answer| answer).collect().await
}
