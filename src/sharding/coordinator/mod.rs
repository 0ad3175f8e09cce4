//! The coordinator of one entity type: decides where shards live, by rules C1 to C4 of
//! spec/sharding.md §5.
//!
//! It runs where the singleton runs. Its memory is the replicated map of homes: it takes a term,
//! reads, writes what it has read under its term, and only then says anything. Every decision is
//! held by a quorum before it is spoken of; all decisions that wait go in one write. Refused once,
//! it is silent for good. Knows no message of a user, and of a strategy only its choices.

mod agreeing;
mod decisions;
mod desk;
mod leaving;
mod mail;
mod port;
mod record;
mod recounting;
mod registry;
mod remembering;
mod slow_handlers;
mod speaking;
mod stats;
mod stopping;
mod takeover;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::types::Term;

use self::desk::Desk;
use self::mail::{Mail, send};
pub use self::port::{Chosen, CoordinatorInput, CoordinatorOutput};
pub use self::record::Record;
use self::recounting::{Count, Part, Recount};
pub use self::registry::Registered;
pub use self::stats::CoordinatorStats;
use super::agreed::Agreed;
use super::bug::Canary;
use super::ids::{RegionId, SHARDS_MAX, ShardId};
use super::installed::Installed;
use super::pace::Pace;
use super::remembered::{REMEMBERED_MAX, Ring, Step};
use super::repeat::{Pauses, Repeats};
use super::store::Recovered;
use super::wire::{ToCoordinator, ToRegion};

type Out = Outbox<CoordinatorOutput>;

/// Cells in one write; more wait for the next one.
pub const BATCH_MAX: usize = 4_096;

/// Times and limits of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorConfig {
    /// Shards of the type. At most [`SHARDS_MAX`].
    pub shards: u32,
    /// `waiting-for-state-timeout`: for a fencing read.
    pub reading: Duration,
    /// `updating-state-timeout`: for a write, which is repeated until it succeeds or is refused.
    pub writing: Duration,
    /// Before a question to the Replicator that it could not take up is asked again.
    pub retry: Duration,
    /// For an answer of the strategy, before it is asked again.
    pub allocating: Duration,
    /// Between repetitions of Host and Release.
    pub repeat: Pauses,
    /// `min-nr-of-members`: regions there must be before the first shard of a cluster's life gets
    /// its home.
    pub min_regions: usize,
    /// All shards get a home as soon as there are regions.
    pub preallocate: bool,
    /// Who allocates is told of one shard at a time, and looks for the others itself, by
    /// [`Coordinator::unplaced`].
    pub one_by_one: bool,
    /// `remembered-decisions`: with why and how long.
    pub remembered: usize,
    /// How long a message about many shards may be, in bytes.
    pub word_bytes_max: usize,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            shards: 1_000,
            reading: Duration::from_secs(2),
            writing: Duration::from_secs(5),
            retry: Duration::from_millis(200),
            allocating: Duration::from_secs(5),
            repeat: Pauses::default(),
            min_regions: 1,
            preallocate: false,
            one_by_one: false,
            remembered: REMEMBERED_MAX,
            word_bytes_max: 2 << 20,
        }
    }
}

/// How far a coordinator is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The singleton does not run here.
    #[default]
    Off,
    /// It takes its term and reads.
    Reading,
    /// A quorum is to hold under this term what was read, and what all nodes must agree on.
    Rewriting,
    /// A majority was lost: nodes are asked what survives.
    Recounting,
    /// It decides.
    Active,
    /// It was refused: silent for good.
    Down,
}

/// The machine.
#[derive(Clone, Debug)]
pub struct Coordinator {
    me: ReplicaId,
    config: CoordinatorConfig,
    agreed: Agreed,
    agreeing: bool,               // it is written
    recovered: Option<Recovered>, // of the last forced one of which all that survived was counted
    recount: Option<Recount>,
    canary: Canary,
    phase: Phase,
    term: Term,
    seq: u64, // of the last write under this term
    installed: Installed,
    regions: BTreeMap<RegionId, Registered>,     // ≤ members
    slow: BTreeMap<RegionId, BTreeSet<ShardId>>, // ≤ members × SLOW_SHARDS_MAX
    leavers: BTreeMap<RegionId, ShardId>, // that wait for a word, and what to look at; ≤ regions
    records: BTreeMap<ShardId, Record>,   // ≤ config.shards
    desk: Desk,
    asked: Option<u64>, // the question under way to the Replicator
    last_id: u64,
    ask_at: Option<Instant>,
    hindrance: Option<Arc<str>>,
    mail: Mail,
    repeats: Repeats,
    stops: BTreeMap<ShardId, BTreeMap<RegionId, u64>>, // by which wish; ≤ shards × members
    preparing: bool,
    dirty: bool,
    ring: Ring,
    steps: Vec<Step>, // of this batch
    pace: Pace,
    stats: CoordinatorStats,
}

impl Coordinator {
    /// The coordinator on incarnation `me`, which does nothing until the singleton starts here.
    /// `canary` is [`Canary::none`] but in the suites.
    ///
    /// # Panics
    /// If the type has no shards, or more than [`SHARDS_MAX`].
    #[must_use]
    pub fn new(me: ReplicaId, config: CoordinatorConfig, canary: Canary) -> Self {
        assert!((1..=SHARDS_MAX).contains(&config.shards), "1 to {SHARDS_MAX} shards");
        Self {
            me,
            config,
            agreed: Agreed::default(),
            agreeing: false,
            recovered: None,
            recount: None,
            canary,
            phase: Phase::Off,
            term: Term::default(),
            seq: 0,
            installed: Installed::default(),
            regions: BTreeMap::new(),
            slow: BTreeMap::new(),
            leavers: BTreeMap::new(),
            records: BTreeMap::new(),
            desk: Desk::default(),
            asked: None,
            last_id: 0,
            ask_at: None,
            hindrance: None,
            mail: Mail::default(),
            repeats: Repeats::default(),
            stops: BTreeMap::new(),
            preparing: false,
            dirty: false,
            ring: Ring::new(config.remembered),
            steps: Vec::new(),
            pace: Pace::default(),
            stats: CoordinatorStats::default(),
        }
    }

    /// The same, of a type of which this node says this.
    #[must_use]
    pub fn agreeing(self, agreed: Agreed) -> Self {
        Self { agreed, ..self }
    }

    /// The same, with what another one that ran on this node remembers.
    #[must_use]
    pub fn remembering(self, ring: Ring) -> Self {
        Self { ring, ..self }
    }

    /// How far it is.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The term that it holds or tries to take.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Why the Replicator could not take up what was asked last; it is asked again.
    #[must_use]
    pub fn hindrance(&self) -> Option<&str> {
        self.hindrance.as_deref()
    }

    /// What it knows of a shard, by decisions that a quorum holds.
    #[must_use]
    pub fn record(&self, shard: ShardId) -> Option<&Record> {
        self.records.get(&shard)
    }

    /// Every shard that was ever decided upon.
    pub fn records(&self) -> impl Iterator<Item = (ShardId, &Record)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// Regions and proxies that have registered.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, Registered)> + '_ {
        self.regions.iter().map(|(id, registered)| (*id, *registered))
    }

    /// The last decisions.
    #[must_use]
    pub const fn remembered(&self) -> &Ring {
        &self.ring
    }

    /// What was counted so far.
    #[must_use]
    pub const fn stats(&self) -> &CoordinatorStats {
        &self.stats
    }

    fn message(&mut self, now: Now, from: RegionId, message: ToCoordinator, out: &mut Out) {
        match message {
            ToCoordinator::Register { proxy, hosted, highest, agreed, slow } => {
                if self.is_superseded(highest, out) {
                    return;
                }
                match self.refusal(from, &agreed) {
                    Some(why) => send(from.replica(), ToRegion::NotYet(why), out),
                    None => {
                        self.note_slow_handlers(from, slow);
                        self.register(now, from, proxy, &hosted, highest, out);
                    }
                }
            }
            ToCoordinator::Counted { term, hosted, told, highest } => {
                self.counted(now, from, term, Count::new(hosted, &told, highest), out);
            }
            ToCoordinator::CountedPart { term, first, next, hosted, told, highest } => {
                let count = Count::new(hosted, &told, highest);
                self.counted_part(now, (from, term), Part { first, next, count }, out);
            }
            _ if self.phase != Phase::Active => {} // said again once it is
            ToCoordinator::GetShardHome(shards) => self.get_homes(from, shards),
            ToCoordinator::Hosted(shards) => {
                for (shard, at) in shards {
                    self.confirmed(now, shard, from, at);
                }
            }
            ToCoordinator::Drained(shards) => {
                for (shard, at) in shards {
                    let record = self.records.get_mut(&shard);
                    if record.is_some_and(|record| record.drained(from, at, &self.installed)) {
                        self.settled(now, shard);
                    }
                }
            }
            ToCoordinator::Leaving => self.leaving(from, out),
            ToCoordinator::Stop(shards) => self.stop_shards(now, from, &shards),
        }
    }

    /// What is due, then everything said in this batch.
    fn work(&mut self, now: Now, out: &mut Out) {
        self.dirty = false;
        if self.ask_at.is_some_and(|at| at <= now.mono) {
            self.ask_at = None;
            self.ask_store(out);
        }
        self.ask_all(now, out);
        if self.phase == Phase::Active {
            self.place(now, out);
            self.commit(now, out);
            self.let_leave(out);
            self.repeat(now);
            self.look_for_slow(now, out);
        }
        self.tell_steps(out);
        self.mail.flush(self.config.word_bytes_max, out);
    }
}

impl Machine for Coordinator {
    type Input = CoordinatorInput;
    type Output = CoordinatorOutput;

    fn handle(&mut self, now: Now, input: CoordinatorInput, out: &mut Out) {
        match input {
            CoordinatorInput::Tick => return self.work(now, out),
            CoordinatorInput::Start { above } => self.start(now, above, out),
            CoordinatorInput::Stop => self.stop(),
            CoordinatorInput::Installed(installed) => self.install(now, installed, out),
            CoordinatorInput::Message { from, message } => {
                self.message(now, RegionId::new(from), message, out);
            }
            CoordinatorInput::Answered { id, answer } => self.answered(now, id, answer, out),
            CoordinatorInput::Allocated { question, homes } => {
                self.allocated(now, question, &homes);
            }
            CoordinatorInput::Move { shard, to, why } => self.wish_move(now, shard, to, &why),
            CoordinatorInput::Prepare => self.preparing = true,
        }
        self.dirty = true;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.dirty {
            return Some(Instant::default()); // right after this batch
        }
        if self.phase != Phase::Active {
            return self.ask_at.into_iter().chain(self.recounts_at()).min();
        }
        let question = self.desk.question.as_ref().map(|question| question.ask_again);
        [self.ask_at, self.repeats.next(), question].into_iter().flatten().min()
    }
}
