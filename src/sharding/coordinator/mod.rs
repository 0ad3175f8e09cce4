//! The coordinator of one entity type: a machine that decides where shards live
//! (docs/protocol/sharding.md#rules-of-the-coordinator).
//!
//! It runs where the type's singleton runs, and its state is the replicated map of homes. It takes
//! a term, reads the map, and rewrites it under its term before it sends anything
//! (docs/protocol/sharding.md#takeover-rewrites-before-speaking). A quorum holds every decision
//! before a region learns it, and one write carries all decisions that wait. A coordinator that is
//! refused once is silent for good. It sees no user messages, and learns only the choices of a
//! strategy.
//!
//! An input changes the state, and may be answered at once. It makes the deadline due, and the
//! following [`CoordinatorInput::Tick`] does the work for all inputs since the last one, in this
//! order: due request to the Replicator, questions of a recount, question to the strategy, write of
//! the waiting decisions, `MayLeave`, repetitions, events, then all messages, joined by receiver. A
//! *batch* is all that happens from one tick to the next.
//!
//! A shard passes through these states: *unplaced* (needs a home), *planned* (its decision waits
//! for a write or is being written), *acknowledged* (a quorum holds the decision; only then the
//! shard has a record with it), *settled* (the regions have carried it out).

mod agreement;
mod announcements;
mod decision_log;
mod decisions;
mod leaving_regions;
mod outbound;
mod pending_decisions;
mod port;
mod record;
mod recount;
mod registry;
mod slow_handlers;
mod stats;
mod stop_requests;
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

use self::outbound::{CoordinatorOutboundBatch, send};
use self::pending_decisions::PendingDecisions;
pub use self::port::{Chosen, CoordinatorInput, CoordinatorOutput};
pub use self::record::ShardRecord;
use self::recount::{Recount, RecountPart, RecountReport};
pub use self::registry::RegisteredRegion;
pub use self::stats::CoordinatorStats;
use super::agreed_settings::AgreedSettings;
use super::decision_history::{DecisionHistory, DecisionStep, REMEMBERED_MAX};
use super::fault_injection::ShardingFaultInjection;
use super::ids::{RegionId, SHARDS_MAX, ShardId};
use super::installed::Installed;
use super::repeat::{Pauses, Repeats};
use super::slow_decisions::SlowDecisionDetector;
use super::store::RecountRecord;
use super::wire::{ToCoordinator, ToRegion};

type CoordinatorOutbox = Outbox<CoordinatorOutput>;

/// Maximum number of cells in one write. Further ones wait for the next write.
pub const BATCH_MAX: usize = 4_096;

/// Times and limits of a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinatorConfig {
    /// Number of shards of the type, 1 to [`SHARDS_MAX`].
    pub shards: u32,
    /// `waiting-for-state-timeout`: timeout of a fencing read.
    pub reading: Duration,
    /// `updating-state-timeout`: timeout of a write, which is repeated until it succeeds or is
    /// refused.
    pub writing: Duration,
    /// Pause before a request that the Replicator could not execute, or whose term was too low, is
    /// repeated.
    pub retry: Duration,
    /// Time that the strategy has for an answer before it is asked again, also after an answer
    /// without a usable choice.
    pub allocating: Duration,
    /// Pauses between repetitions of `Host` and `Release`.
    pub repeat: Pauses,
    /// `min-nr-of-members`: number of targets (registered, no proxy, not leaving) before the first
    /// shard of a cluster gets its home. 0 counts as 1.
    pub min_regions: usize,
    /// Whether all shards get a home as soon as regions are registered.
    pub preallocate: bool,
    /// Whether each question to the strategy names one shard only. The other shards are listed by
    /// [`Coordinator::unplaced`].
    pub one_by_one: bool,
    /// `remembered-decisions`: number of decisions that the coordinator remembers, each with its
    /// reason and duration.
    pub remembered: usize,
    /// Maximum length of a message about many shards, in bytes.
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

/// Phase of a coordinator between the start of its singleton and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoordinatorPhase {
    /// The singleton does not run here.
    #[default]
    Off,
    /// It takes its term and reads the homes.
    Reading,
    /// It writes the homes that it has read, and the settings of the type, under its term.
    Rewriting,
    /// A configuration was forced: it asks all members for the decisions that survived. Then it is
    /// `Rewriting` again.
    Recounting,
    /// It decides, and answers regions.
    Active,
    /// It has stepped down and is silent for good.
    Down,
}

/// State machine of a coordinator. See the module documentation.
#[derive(Clone, Debug)]
pub struct Coordinator {
    me: ReplicaId,
    config: CoordinatorConfig,
    agreed: AgreedSettings,
    /// Whether the settings of the type must be written, or are being written. The method of this
    /// name sets `agreed` instead.
    agreeing: bool,
    recovered: Option<RecountRecord>, // the last forced configuration that was recounted, as read
    recount: Option<Recount>,         // while it runs
    fault_injection: ShardingFaultInjection,
    phase: CoordinatorPhase,
    term: Term,
    seq: u64, // of the last write under this term
    installed: Installed,
    regions: BTreeMap<RegionId, RegisteredRegion>, // ≤ members
    slow: BTreeMap<RegionId, BTreeSet<ShardId>>,   // ≤ members × SLOW_SHARDS_MAX
    leavers: BTreeMap<RegionId, ShardId>, // wait for `MayLeave`; shard to check next; ≤ regions
    records: BTreeMap<ShardId, ShardRecord>, // acknowledged decisions; ≤ config.shards
    pending_decisions: PendingDecisions,
    pending_request: Option<u64>, // the pending request to the Replicator
    last_id: u64,                 // of requests to the Replicator and questions to the strategy
    ask_at: Option<Instant>, // when to send the request of the phase, again or for the first time
    hindrance: Option<Arc<str>>,
    outbound: CoordinatorOutboundBatch,
    repeats: Repeats,
    stops: BTreeMap<ShardId, BTreeMap<RegionId, u64>>, // request numbers; ≤ shards × members
    preparing: bool, // the whole cluster prepares for shutdown; never taken back
    dirty: bool,     // inputs came since the last `work`
    decision_history: DecisionHistory,
    steps: Vec<DecisionStep>, // of this batch
    slow_decisions: SlowDecisionDetector,
    stats: CoordinatorStats,
}

impl Coordinator {
    /// Creates the coordinator on incarnation `me`, which does nothing until the singleton starts
    /// here. `fault_injection` is [`ShardingFaultInjection::none`] except in test suites.
    ///
    /// # Panics
    /// If the type has no shards, or more than [`SHARDS_MAX`].
    #[must_use]
    pub fn new(
        me: ReplicaId,
        config: CoordinatorConfig,
        fault_injection: ShardingFaultInjection,
    ) -> Self {
        assert!((1..=SHARDS_MAX).contains(&config.shards), "1 to {SHARDS_MAX} shards");
        Self {
            me,
            config,
            agreed: AgreedSettings::default(),
            agreeing: false,
            recovered: None,
            recount: None,
            fault_injection,
            phase: CoordinatorPhase::Off,
            term: Term::default(),
            seq: 0,
            installed: Installed::default(),
            regions: BTreeMap::new(),
            slow: BTreeMap::new(),
            leavers: BTreeMap::new(),
            records: BTreeMap::new(),
            pending_decisions: PendingDecisions::default(),
            pending_request: None,
            last_id: 0,
            ask_at: None,
            hindrance: None,
            outbound: CoordinatorOutboundBatch::default(),
            repeats: Repeats::default(),
            stops: BTreeMap::new(),
            preparing: false,
            dirty: false,
            decision_history: DecisionHistory::new(config.remembered),
            steps: Vec::new(),
            slow_decisions: SlowDecisionDetector::default(),
            stats: CoordinatorStats::default(),
        }
    }

    /// Sets the settings of the type on this node, before the start. Regions with other settings
    /// are not registered. Without this call the settings that are stored are neither compared nor
    /// written, and only regions that send the default settings are registered.
    #[must_use]
    pub fn agreeing(self, agreed: AgreedSettings) -> Self {
        Self { agreed, ..self }
    }

    /// Continues the record of decisions of a former coordinator on this node. Its limit then holds
    /// instead of [`CoordinatorConfig::remembered`].
    #[must_use]
    pub fn remembering(self, decision_history: DecisionHistory) -> Self {
        Self { decision_history, ..self }
    }

    /// The phase of this coordinator.
    #[must_use]
    pub const fn phase(&self) -> CoordinatorPhase {
        self.phase
    }

    /// The term that it holds or tries to take.
    #[must_use]
    pub const fn term(&self) -> Term {
        self.term
    }

    /// Reason why the Replicator could not execute the last request, which is repeated; `None` once
    /// any request was answered otherwise.
    #[must_use]
    pub fn hindrance(&self) -> Option<&str> {
        self.hindrance.as_deref()
    }

    /// State of a shard, by decisions that a quorum holds; `None` if there is none, as for every
    /// shard before the takeover has rewritten it.
    #[must_use]
    pub fn record(&self, shard: ShardId) -> Option<&ShardRecord> {
        self.records.get(&shard)
    }

    /// State of every shard that a decision was ever made about, as far as this term has rewritten
    /// or made it; empty when the coordinator is off or down.
    pub fn records(&self) -> impl Iterator<Item = (ShardId, &ShardRecord)> {
        self.records.iter().map(|(id, record)| (*id, record))
    }

    /// Registered regions and proxies.
    pub fn regions(&self) -> impl Iterator<Item = (RegionId, RegisteredRegion)> + '_ {
        self.regions.iter().map(|(id, registered)| (*id, *registered))
    }

    /// The most recent decisions, with reason and duration.
    #[must_use]
    pub const fn remembered(&self) -> &DecisionHistory {
        &self.decision_history
    }

    /// Counters since the coordinator was created.
    #[must_use]
    pub const fn stats(&self) -> &CoordinatorStats {
        &self.stats
    }

    /// Handles a message of a region. Unless active, refuses registrations and ignores everything
    /// else except answers to a recount; the regions repeat their messages. A registration that
    /// reports a higher term ends an active coordinator, without an answer; this is checked before
    /// the reasons to [refuse](Self::refusal) it. Only a registration requires that the sender is a
    /// member; senders of other messages need not be registered. In `Hosted` and `Drained`, shards
    /// without an acknowledged decision are ignored.
    fn message(
        &mut self,
        now: Now,
        from: RegionId,
        message: ToCoordinator,
        out: &mut CoordinatorOutbox,
    ) {
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
                self.counted(now, from, term, RecountReport::new(hosted, &told, highest), out);
            }
            ToCoordinator::CountedPart { term, first, next, hosted, told, highest } => {
                let count = RecountReport::new(hosted, &told, highest);
                self.counted_part(now, (from, term), RecountPart { first, next, count }, out);
            }
            _ if self.phase != CoordinatorPhase::Active => {} // the region repeats the message
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

    /// Does the work that is due, in the order of the module documentation, then sends the messages
    /// of this batch. The order matters: decisions that the strategy's last answer made possible go
    /// into this write, and a region may leave only if this write does not make it a home. In every
    /// phase the events and messages of the batch are sent; decisions are made only when active.
    fn work(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        self.dirty = false;
        if self.ask_at.is_some_and(|at| at <= now.mono) {
            self.ask_at = None;
            self.ask_store(out);
        }
        self.ask_all(now, out);
        if self.phase == CoordinatorPhase::Active {
            self.place(now, out);
            self.commit(now, out);
            self.let_leave(out);
            self.repeat(now);
            self.look_for_slow(now, out);
        }
        self.tell_steps(out);
        self.outbound.flush(self.config.word_bytes_max, out);
    }
}

impl Machine for Coordinator {
    type Input = CoordinatorInput;
    type Output = CoordinatorOutput;

    /// Handles an input. [`CoordinatorInput::Tick`] does the work of all inputs before it; most
    /// messages are sent only then. Every other input, also one that is ignored, makes a tick due.
    fn handle(&mut self, now: Now, input: CoordinatorInput, out: &mut CoordinatorOutbox) {
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

    /// The time of the next tick: at once (a time in the past) after any other input, otherwise the
    /// earliest repetition or timeout. `None` while the coordinator waits for inputs only, as when
    /// it is off or down. Slow decisions and `MayLeave` have no time of their own.
    fn next_deadline(&self) -> Option<Instant> {
        if self.dirty {
            return Some(Instant::default()); // right after this batch
        }
        if self.phase != CoordinatorPhase::Active {
            return self.ask_at.into_iter().chain(self.recounts_at()).min();
        }
        let question = self.pending_decisions.question.as_ref().map(|question| question.ask_again);
        [self.ask_at, self.repeats.next(), question].into_iter().flatten().min()
    }
}
