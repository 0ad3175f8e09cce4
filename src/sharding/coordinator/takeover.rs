//! Takeover (docs/protocol/sharding.md#takeover-rewrites-before-speaking): the coordinator takes a
//! term, reads all cells, and rewrites them under its term before it sends anything; and its end,
//! when another coordinator holds a higher term.
//!
//! The rewrite gives every cell a stamp of the coordinator's term and keeps the decision's
//! generation. An unacknowledged cell of a lower term, which this read did not see, can lie on a
//! minority, and need not list the regions that this coordinator is about to order. Against the new
//! stamps it loses for ever. Rewriting only the cells in which the answers differ is not enough:
//! with four coordinators two hosts follow (tests/sharding/moves).

use std::collections::BTreeMap;
use std::sync::Arc;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::types::Term;

use super::outbound::send;
use super::pending_decisions::{PendingDecisions, Writing};
use super::port::CoordinatorOutput;
use super::record::ShardRecord;
use super::{BATCH_MAX, Coordinator, CoordinatorOutbox, CoordinatorPhase};
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, ShardId};
use crate::sharding::installed::ForcedGeneration;
use crate::sharding::store::{StoreAnswer, StoreRequest};
use crate::sharding::wire::ToRegion;

impl Coordinator {
    /// The singleton starts here: takes a term above `above`, above its own last one, and above
    /// those that a forced configuration gave up. The fencing read is sent with the next tick.
    /// Steps down if no higher term exists. Does nothing if the coordinator runs, or has stepped
    /// down.
    pub(super) fn start(&mut self, now: Now, above: u64, out: &mut CoordinatorOutbox) {
        if self.phase != CoordinatorPhase::Off {
            return; // it runs, or has stepped down for good
        }
        self.phase = CoordinatorPhase::Reading;
        // Writes and promises of members that a recovery gave up, past or future, must not win.
        let forced = self
            .installed
            .forced
            .as_ref()
            .filter(|_| !self.fault_injection.has(ShardingFault::TermsGoOn));
        let forced = forced.map_or(0, ForcedGeneration::terms_above);
        self.raise(now.mono, Term { number: above.max(forced), owner: self.me }, out);
    }

    /// Holds the term of this number from now on; no write was made under it.
    fn take(&mut self, number: u64) {
        (self.term, self.seq) = (Term { number, owner: self.me }, 0);
    }

    /// The singleton is handed over: [forgets](Self::forget) the term's state, sends nothing, and
    /// waits for a start. The next coordinator may read a decision that is still on its way to the
    /// Replicator, like any other. A coordinator that has stepped down stays down.
    pub(super) fn stop(&mut self) {
        if self.phase != CoordinatorPhase::Down {
            self.forget();
            self.phase = CoordinatorPhase::Off;
        }
    }

    /// Forgets all that holds for one term, unsent messages and the pending request included, whose
    /// answer is ignored. The term, the installed configuration, the remembered decisions and their
    /// events of this batch, the counters and `preparing` stay.
    fn forget(&mut self) {
        (self.agreeing, self.recount) = (false, None);
        (self.pending_decisions, self.pending_request, self.ask_at) =
            (PendingDecisions::default(), None, None);
        self.hindrance = None;
        self.records.clear();
        self.regions.clear();
        self.slow.clear();
        self.leavers.clear();
        self.repeats.clear();
        self.slow_decisions.forget_all();
        self.stops.clear();
        self.outbound = super::CoordinatorOutboundBatch::default();
    }

    /// Ends this coordinator for good: [forgets](Self::forget) the term's state and reports why. It
    /// sends no message from now on, and those that wait for the end of the batch are dropped;
    /// events are still reported. Reports the own term if `highest` is lower.
    pub(super) fn step_down(&mut self, highest: Term, why: &str, out: &mut CoordinatorOutbox) {
        self.forget();
        self.phase = CoordinatorPhase::Down;
        let highest = highest.max(self.term);
        out.push(CoordinatorOutput::SteppedDown { highest, why: why.into() });
    }

    /// Sends the Replicator the request of the current phase, for the first time or again; none
    /// while a recount asks regions, or if nothing must be written.
    pub(super) fn ask_store(&mut self, out: &mut CoordinatorOutbox) {
        match self.phase {
            CoordinatorPhase::Reading => {
                let ask = StoreRequest::Fence { term: self.term, within: self.config.reading };
                self.ask(ask, out);
            }
            CoordinatorPhase::Rewriting | CoordinatorPhase::Active => self.write(out),
            CoordinatorPhase::Off | CoordinatorPhase::Recounting | CoordinatorPhase::Down => {}
        }
    }

    /// Sends the Replicator a request. The answer to an earlier one is ignored from now on.
    pub(super) fn ask(&mut self, ask: StoreRequest, out: &mut CoordinatorOutbox) {
        self.last_id += 1;
        self.pending_request = Some(self.last_id);
        out.push(CoordinatorOutput::Ask { id: self.last_id, ask });
    }

    /// Requests one write of the pending data, each attempt under a new stamp, and counts it: the
    /// settings of the type, else the completion of a recount, else the cells. A decision keeps the
    /// generation of its first write. Does nothing if nothing is pending.
    pub(super) fn write(&mut self, out: &mut CoordinatorOutbox) {
        if self.agreeing {
            return self.write_agreed(out);
        }
        if self.write_recovered(out) {
            return;
        }
        let Some(writing) = &self.pending_decisions.writing else { return };
        let cells = writing.cells.clone();
        self.seq += 1;
        self.stats.writes += 1;
        let (term, seq, within) = (self.term, self.seq, self.config.writing);
        self.ask(StoreRequest::Write { term, seq, cells, within }, out);
    }

    /// The generation of a decision that is made now: the stamp of the next write, of whatever
    /// kind.
    pub(super) const fn next_generation(&self) -> Generation {
        Generation::new(self.term, self.seq + 1)
    }

    /// Handles the answer to the pending request; ignores any other.
    ///
    /// A refusal of the fencing read makes the coordinator take a higher term after a pause; any
    /// other refusal makes it step down, as does the removal of this node. Without a quorum in time
    /// the request of the phase is repeated with the next tick, and counted in `repeated`; after
    /// another error, which [`hindrance`](Self::hindrance) then names, it is repeated after a pause
    /// and not counted. Does nothing when the coordinator is off or down.
    pub(super) fn answered(
        &mut self,
        now: Now,
        id: u64,
        answer: StoreAnswer,
        out: &mut CoordinatorOutbox,
    ) {
        if self.pending_request != Some(id) {
            return;
        }
        (self.pending_request, self.hindrance) = (None, None);
        match (self.phase, answer) {
            (CoordinatorPhase::Off | CoordinatorPhase::Down, _) => {}
            (CoordinatorPhase::Reading, StoreAnswer::Fenced(cells, agreed, recovered)) => {
                self.recovered = recovered;
                self.read(now, cells, agreed, out);
            }
            (CoordinatorPhase::Reading, StoreAnswer::Refused { current }) => {
                self.raise(now.mono + self.config.retry, current, out);
            }
            (_, StoreAnswer::Refused { current }) => {
                self.step_down(current, "another coordinator holds a higher term", out);
            }
            (CoordinatorPhase::Rewriting | CoordinatorPhase::Active, StoreAnswer::Written) => {
                self.written(now, out);
            }
            (_, StoreAnswer::Late) => {
                self.stats.repeated += 1;
                self.ask_at = Some(now.mono);
            }
            (_, StoreAnswer::NotNow { why }) => {
                self.hindrance = Some(why.into());
                self.ask_at = Some(now.mono + self.config.retry);
            }
            (_, StoreAnswer::Over { why }) => self.step_down(self.term, &why, out),
            (_, StoreAnswer::Fenced(..) | StoreAnswer::Written) => {} // answers no request of this phase
        }
    }

    /// Takes the term number after its own and `current`, and sends the fencing read at `at`. No
    /// region has learned the old term, so nothing is lost. Steps down if no higher term exists.
    fn raise(&mut self, at: Instant, current: Term, out: &mut CoordinatorOutbox) {
        let number = current.number.max(self.term.number);
        if number >= Term::NUMBER_MAX {
            return self.step_down(current, "no higher term is possible", out);
        }
        self.take(number + 1);
        self.ask_at = Some(at);
    }

    /// Handles the cells and settings of the fencing read: begins to rewrite them, after the
    /// settings if these must be written. A cell decided under a higher term makes the coordinator
    /// take a still higher one and read again after a pause; this is checked first. Settings that
    /// bind and differ make it step down, and are reported. Decisions below the term of the last
    /// recount are made again.
    fn read(
        &mut self,
        now: Now,
        cells: Vec<(ShardId, ShardHome)>,
        agreed: Option<AgreedSettings>,
        out: &mut CoordinatorOutbox,
    ) {
        // A replica that promised this term early may show cells that a higher term wrote since.
        let highest = cells.iter().map(|(_, home)| home.generation.term).max();
        if let Some(current) = highest.filter(|highest| *highest > self.term) {
            return self.raise(now.mono + self.config.retry, current, out);
        }
        if !self.agrees(!cells.is_empty(), agreed, out) {
            return;
        }
        let mut cells: BTreeMap<_, _> = cells.into_iter().collect();
        self.renew_older_decisions(now, &mut cells);
        if self.fault_injection.has(ShardingFault::RecoveryDropsAfter) {
            cells.values_mut().for_each(|home| home.after.clear());
        }
        self.phase = CoordinatorPhase::Rewriting;
        if self.fault_injection.has(ShardingFault::NoRewrite) {
            self.adopt(cells.into_iter().collect());
            return self.rewritten(now, out);
        }
        self.pending_decisions.unread = cells;
        if self.agreeing { self.write(out) } else { self.rewrite(now, out) }
    }

    /// Rewrites the next batch of the cells that were read, or that a recount decided; at most
    /// [`BATCH_MAX`]. Without any left, continues as [`rewritten`](Self::rewritten) does.
    pub(super) fn rewrite(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        let mut cells = Vec::new();
        while cells.len() < BATCH_MAX
            && let Some(cell) = self.pending_decisions.unread.pop_first()
        {
            cells.push(cell);
        }
        if cells.is_empty() {
            return self.rewritten(now, out);
        }
        self.pending_decisions.writing = Some(Writing { cells, recovery: true });
        self.write(out);
    }

    /// Makes records of cells that a quorum holds under this term, in place of former ones. They
    /// count as unsettled, and as hosted by no region, until registrations report what is hosted.
    fn adopt(&mut self, cells: Vec<(ShardId, ShardHome)>) {
        for (shard, home) in cells {
            self.records.insert(shard, ShardRecord::new(home, Generation::NEVER));
        }
    }

    /// A quorum holds the last write. After the settings or a batch of rewritten cells, rewrites
    /// the next batch; after the completion of a recount, becomes active. Of new decisions, each is
    /// counted, noted, and [carried out](Self::decided); the next write begins with the next tick.
    fn written(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        if std::mem::take(&mut self.agreeing) {
            return self.rewrite(now, out);
        }
        if self.recovered() {
            return self.act(now, out);
        }
        let Some(writing) = self.pending_decisions.writing.take() else { return };
        if writing.recovery {
            self.adopt(writing.cells);
            return self.rewrite(now, out);
        }
        for (shard, home) in writing.cells {
            self.stats.decisions += 1;
            self.note_written(now, shard, home.generation);
            self.decided(now, shard, home);
        }
    }

    /// Becomes active, because a quorum holds all cells under this term. Counts the term, reports
    /// `Acting`, sends `Here` to all members, and marks the shards of lost homes as unplaced.
    /// Decisions without a home are settled here, without an event, if all their predecessors are
    /// out. Every other one gets its first repetition after the usual pause, not with the next
    /// tick.
    pub(super) fn act(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        self.phase = CoordinatorPhase::Active;
        self.stats.terms += 1;
        out.push(CoordinatorOutput::Acting(self.term));
        for region in &self.installed.members {
            send(region.replica(), ToRegion::Here(self.term), out);
        }
        // Registrations confirm the decisions that are carried out; only the others are repeated.
        let mut open = Vec::new();
        for (shard, record) in &mut self.records {
            if !record.settle_empty(&self.installed) {
                self.repeats.begin(now.mono, *shard, self.config.repeat);
                open.push(*shard);
            }
        }
        open.into_iter().for_each(|shard| self.note_open(now, shard));
        self.check_homes();
    }

    /// Steps down if a region has received a generation of a higher term
    /// (docs/protocol/sharding.md#a-reported-higher-term-ends-a-coordinator), and returns whether
    /// it did. `false` if the coordinator is not active, and for an impossible term, which is not
    /// counted.
    pub(super) fn is_superseded(
        &mut self,
        highest: Generation,
        out: &mut CoordinatorOutbox,
    ) -> bool {
        let is_higher = highest.term.is_valid() && highest.term > self.term; // a peer's word
        let superseded = self.phase == CoordinatorPhase::Active && is_higher;
        if superseded {
            self.step_down(highest.term, "a region knows a higher term", out);
        }
        superseded
    }
}

/// Reason of a decision that no strategy proposed.
pub(super) fn reason(text: &str) -> Arc<str> {
    text.into()
}
