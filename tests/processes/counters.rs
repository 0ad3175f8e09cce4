//! Counter entities, and senders that keep ledgers of them: each message that a sender tells must
//! be counted exactly once and in order, by a single instance.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ostraca::node::sharding::Sharding;
use ostraca::prelude::*;
use ostraca::sharding::entity::BoxError;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::served::{Kind, tell};
use crate::waits::SOON;

pub(crate) const SHARDS: u32 = 30;

/// Number of counters, each with its own sender; enough for several in every shard.
const COUNTERS: u64 = 240;

/// Number of messages that a sender tells before each ask.
const TOLD: u64 = 3;

/// Pause between two asks of one sender, so that other tasks run.
const PAUSE: Duration = Duration::from_millis(40);

/// Timeout of an ask: longer than a move delays it on a busy machine, and less than [`SOON`].
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

const TYPE: &str = "counter";

// ── The counter ──

/// State of a counter, handed over when its shard moves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    /// Lineage of the state: random number that every new counter draws and hands over.
    line: u64,
    messages: u64,
    /// Highest number of a message.
    last: u64,
    /// Messages whose number was not higher than that of an earlier one.
    disordered: u64,
}

struct Counter(Counted);

#[derive(Serialize, Deserialize)]
enum Command {
    Count(u64),
    /// Asks for the state, and the node on which the counter lives.
    Tell(Reply<(Counted, u64)>),
}

impl Counter {
    fn new() -> Self {
        Self(Counted { line: RandomState::new().hash_one(0), ..Counted::default() })
    }
}

impl Entity for Counter {
    type Message = Command;

    async fn handle(&mut self, command: Command, cx: &mut Context<'_, Self>) {
        match command {
            Command::Count(number) => {
                self.0.disordered += u64::from(number <= self.0.last);
                self.0.last = self.0.last.max(number);
                self.0.messages += 1;
            }
            Command::Tell(reply) => reply.send((self.0.clone(), cx.node().replica().get())),
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        rmp_serde::to_vec(&self.0).ok()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.0 = rmp_serde::from_slice(state)?;
        Ok(())
    }
}

// ── The ledgers ──

/// A sender's knowledge of its counter.
#[derive(Debug, Default)]
struct Ledger {
    told: u64,
    known: Option<(Counted, u64)>,
    /// Messages told since the answer `known`.
    open: u64,
    sums: Sums,
}

/// Sums over all counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Messages that were told.
    pub(crate) told: u64,
    /// Messages that were not counted although the lineage of their counter continues.
    pub(crate) lost: u64,
    /// Messages counted by a lineage that has ended, or told to one while it ended.
    pub(crate) gone: u64,
    /// Messages that were counted but never told.
    pub(crate) too_many: u64,
    /// Messages counted out of order, or twice.
    pub(crate) disordered: u64,
    /// Asks that were not answered.
    pub(crate) unanswered: u64,
    /// Last known nodes of lineages that have ended.
    pub(crate) ended_on: BTreeSet<String>,
}

impl Ledger {
    /// Compares an answer with the ledger: all messages told before are counted by now, or lost.
    fn hear(&mut self, (counted, node): (Counted, u64)) {
        let before = match self.known.take() {
            Some((known, _)) if known.line == counted.line => known.messages,
            Some((known, on)) => {
                self.sums.gone += known.messages + self.open.saturating_sub(counted.messages);
                self.sums.ended_on.insert(format!("{on:016x}"));
                self.open = self.open.min(counted.messages);
                0
            }
            None => 0,
        };
        let new = counted.messages.saturating_sub(before);
        self.sums.lost += self.open.saturating_sub(new);
        self.sums.too_many += new.saturating_sub(self.open);
        self.open = 0;
        self.known = Some((counted, node));
    }

    fn close(mut self) -> Sums {
        self.sums.told = self.told;
        self.sums.disordered = self.known.map_or(0, |(counted, _)| counted.disordered);
        self.sums
    }
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.told += other.told;
        self.lost += other.lost;
        self.gone += other.gone;
        self.too_many += other.too_many;
        self.disordered += other.disordered;
        self.unanswered += other.unanswered;
        self.ended_on.extend(other.ended_on);
    }

    fn text(&self) -> String {
        let Self { told, lost, gone, too_many, disordered, unanswered, ended_on } = self;
        let ended_on: Vec<&str> = ended_on.iter().map(String::as_str).collect();
        let ended_on = ended_on.join(",");
        format!("{told} {lost} {gone} {too_many} {disordered} {unanswered} -{ended_on}")
    }

    pub(crate) fn parse(text: &str) -> Self {
        let parts: Vec<&str> = text.split(' ').collect();
        let [told, lost, gone, too_many, disordered, unanswered, ended_on] = parts[..] else {
            panic!("no sums: {text:?}")
        };
        let figure = |text: &str| text.parse().expect("a count");
        let nodes = ended_on.trim_start_matches('-').split(',').filter(|node| !node.is_empty());
        Self {
            told: figure(told),
            lost: figure(lost),
            gone: figure(gone),
            too_many: figure(too_many),
            disordered: figure(disordered),
            unanswered: figure(unanswered),
            ended_on: nodes.map(str::to_owned).collect(),
        }
    }
}

/// Creates a ledger with the counter's first answer.
async fn begin(counter: &EntityRef<Counter>) -> Ledger {
    let mut ledger = Ledger::default();
    let until = Instant::now() + SOON;
    while !ask(counter, &mut ledger).await {
        assert!(Instant::now() < until, "a counter does not answer");
    }
    ledger
}

/// Tells a counter numbers in order, with asks in between, until `enough` is set and the counter
/// has answered once more.
async fn feed(counter: EntityRef<Counter>, mut ledger: Ledger, enough: Arc<AtomicBool>) -> Sums {
    while !enough.load(Ordering::Relaxed) {
        for _ in 0..TOLD {
            if counter.tell(Command::Count(ledger.told + 1)).is_ok() {
                ledger.told += 1;
                ledger.open += 1;
            }
        }
        ask(&counter, &mut ledger).await;
        tokio::time::sleep(PAUSE).await;
    }
    let until = Instant::now() + SOON;
    while !ask(&counter, &mut ledger).await {
        assert!(Instant::now() < until, "a counter does not answer again");
    }
    ledger.close()
}

async fn ask(counter: &EntityRef<Counter>, ledger: &mut Ledger) -> bool {
    match counter.ask_within(ANSWER_WITHIN, Command::Tell).await {
        Ok(answer) => {
            ledger.hear(answer);
            true
        }
        Err(why) => {
            eprintln!("no answer: {why}");
            ledger.sums.unanswered += 1;
            false
        }
    }
}

// ── On a member ──

/// The counters of a member: as a host, or as the feeder that sends to all of them.
pub(crate) struct Counters {
    sharding: Sharding,
    region: ShardRegion<Counter>,
    enough: Arc<AtomicBool>,
    feeds: Mutex<Vec<JoinHandle<Sums>>>, // ≤ COUNTERS
}

impl Counters {
    pub(crate) async fn start(node: &Node, kind: Kind) -> Option<Self> {
        let sharding = node.sharding();
        let region = match kind {
            Kind::Host => sharding.start(TYPE, |_| Counter::new()).await,
            Kind::Feeder => sharding.start_proxy::<Counter>(TYPE).await,
            _ => return None,
        };
        let region = region.expect("the type starts");
        let (enough, feeds) = (Arc::default(), Mutex::default());
        Some(Self { sharding, region, enough, feeds })
    }

    pub(crate) async fn obey(&self, line: &str) {
        match line {
            "hosting" => self.say_hosting().await,
            "feed-on" => {
                let mut feeds = Vec::new();
                for number in 0..COUNTERS {
                    let counter = self.region.entity(&format!("counter-{number}"));
                    let ledger = begin(&counter).await;
                    feeds.push(tokio::spawn(feed(counter, ledger, self.enough.clone())));
                }
                *self.feeds.lock().expect("no panic inside") = feeds;
                tell("feed-on");
            }
            "fed" => {
                self.enough.store(true, Ordering::Relaxed);
                let feeds = std::mem::take(&mut *self.feeds.lock().expect("no panic inside"));
                tokio::spawn(async {
                    let mut sums = Sums::default();
                    for feed in feeds {
                        sums.add(feed.await.expect("no feed panics"));
                    }
                    tell(&format!("fed {}", sums.text()));
                });
            }
            _ => panic!("no order: {line:?}"),
        }
    }

    /// Reports whether the region is registered, the coordinator's node, and the number of local
    /// shards.
    async fn say_hosting(&self) {
        let Ok(types) = self.sharding.types().await else { return }; // the node reports its end
        let Some(counters) = types.first() else { return tell("hosting false - 0") };
        let coordinator = counters.coordinator.map_or_else(|| "-".to_owned(), |at| at.to_string());
        let shards = counters.shards.len();
        tell(&format!("hosting {} {coordinator} {shards}", counters.registered));
    }
}

// ── Test of the ledgers ──

#[test]
fn ledger_detects_lost_duplicate_and_vanished_counts() {
    let counted = |line, messages| (Counted { line, messages, last: messages, disordered: 0 }, 7);
    let mut ledger = Ledger { told: 3, open: 3, ..Ledger::default() };
    ledger.hear(counted(1, 3));
    assert_eq!(ledger.sums, Sums::default(), "all messages are counted");
    (ledger.told, ledger.open) = (6, 3);
    ledger.hear(counted(1, 5));
    assert_eq!((ledger.sums.lost, ledger.sums.too_many), (1, 0));
    (ledger.told, ledger.open) = (9, 3);
    ledger.hear(counted(1, 9));
    assert_eq!((ledger.sums.lost, ledger.sums.too_many), (1, 1));
    (ledger.told, ledger.open) = (12, 3);
    ledger.hear(counted(2, 1));
    let sums = ledger.close();
    assert_eq!((sums.told, sums.lost, sums.too_many, sums.gone), (12, 1, 1, 9 + 2));
    assert_eq!(sums.ended_on, BTreeSet::from([format!("{:016x}", 7)]));
    assert_eq!(Sums::parse(&sums.text()), sums);
}
