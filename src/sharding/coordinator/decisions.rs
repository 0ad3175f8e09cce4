//! Decisions: shards that need a home, the choices of the strategy, and one guarded write for all
//! waiting decisions (docs/protocol/sharding.md#one-write-for-all-waiting-decisions).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::clock::Now;

use super::pending_decisions::{StrategyQuestion, Writing};
use super::port::{Chosen, CoordinatorOutput};
use super::record::ShardRecord;
use super::takeover::reason;
use super::{BATCH_MAX, Coordinator, CoordinatorOutbox, CoordinatorPhase};
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::home::{NewDecision, ShardHome};
use crate::sharding::ids::{Generation, RegionId, ShardId};

impl Coordinator {
    /// Shards per region once all decisions that wait or are under way are carried out. Strategies
    /// balance these sizes. Lists every target, also without shards, and any other region that is
    /// the home of a shard, leaving and lost ones included.
    #[must_use]
    pub fn allocation(&self) -> BTreeMap<RegionId, Vec<ShardId>> {
        let mut by_region: BTreeMap<RegionId, Vec<ShardId>> =
            self.targets().map(|region| (region, Vec::new())).collect();
        for shard in self.placed() {
            if let Some(home) = self.planned(shard) {
                by_region.entry(home).or_default().push(shard);
            }
        }
        by_region
    }

    /// Shards under way, see [`moving_of`](Self::moving_of): the shard, its previous home if it had
    /// one, and its next home.
    pub fn under_way(&self) -> impl Iterator<Item = (ShardId, Option<RegionId>, RegionId)> + '_ {
        let moving = |shard| self.moving_of(shard).map(|(from, to)| (shard, from, to));
        self.placed().into_iter().filter_map(moving)
    }

    /// Previous and next home of a shard whose newest decision waits, is being written, or is not
    /// settled; `None` if there is no such decision or it names no home. The previous home is
    /// `None` at a first allocation. Until the decision is acknowledged, it is the acknowledged
    /// home, `None` also if that decision named none; afterwards, the predecessor of the highest
    /// generation.
    #[must_use]
    pub fn moving_of(&self, shard: ShardId) -> Option<(Option<RegionId>, RegionId)> {
        let record = self.records.get(&shard);
        if let Some(planned) = self.pending_decisions.planned(shard) {
            return Some((record.and_then(|record| record.home().region), planned?));
        }
        let record = record.filter(|record| !record.is_settled())?;
        let home = record.home();
        let from = home.after.iter().max_by_key(|(_, at)| **at).map(|(id, _)| *id);
        Some((from, home.region?))
    }

    /// Shards with an acknowledged or planned decision, also one without a home.
    fn placed(&self) -> BTreeSet<ShardId> {
        let written = self.pending_decisions.writing.iter().filter(|writing| !writing.recovery);
        let first = written.flat_map(|writing| writing.cells.iter().map(|(id, _)| *id));
        let new = self.pending_decisions.wishes.keys().copied().chain(first);
        self.records.keys().copied().chain(new).collect()
    }

    /// The home of a shard once every decision that waits or is under way is carried out. `None` if
    /// it will have none, or is unknown. May be a lost or leaving region.
    #[must_use]
    pub fn planned(&self, shard: ShardId) -> Option<RegionId> {
        let acked = || self.records.get(&shard).and_then(|record| record.home().region);
        self.pending_decisions.planned(shard).unwrap_or_else(acked)
    }

    /// Marks a shard as needing a home, because a region asks for it or its home is lost or leaves.
    /// Of several askers the first one counts. A planned decision for the shard takes the mark
    /// away. Checks nothing: the shard may have a home, or must stop first.
    pub(super) fn mark_unplaced(&mut self, shard: ShardId, asker: Option<RegionId>) {
        let first = self.pending_decisions.unplaced.entry(shard).or_default();
        *first = first.or(asker);
    }

    /// Marks every shard as unplaced whose home is lost or leaves, as [`check_home`] does.
    ///
    /// [`check_home`]: Self::check_home
    pub(super) fn check_homes(&mut self) {
        let shards: Vec<ShardId> = self.records.keys().copied().collect();
        shards.into_iter().for_each(|shard| self.check_home(shard));
    }

    /// Marks a shard as unplaced if its home is lost, or leaves while the cluster does not prepare
    /// for shutdown. Not if a decision for it waits or is being written: its acknowledgement causes
    /// the next check. Never takes a mark away.
    pub(super) fn check_home(&mut self, shard: ShardId) {
        let Some(record) = self.records.get(&shard) else { return };
        if self.pending_decisions.planned(shard).is_some() {
            return; // checked again after that write
        }
        if record.is_lost(&self.installed) || self.is_leaving(shard) && !self.preparing {
            self.mark_unplaced(shard, None);
        }
    }

    /// Asks the strategy for homes of the unplaced shards; only for the first one with
    /// `one_by_one`.
    ///
    /// Does nothing while there is a target and a question is open, in vain or not, whose timeout
    /// has not expired. Otherwise gives up the open question, and then:
    /// - returns, while no decision was acknowledged or is being written, with fewer than
    ///   `min_regions` targets (at least one);
    /// - without a target plans no home for shards of leaving regions
    ///   ([`leave_nowhere`](Self::leave_nowhere));
    /// - with `preallocate` marks all shards that never had a decision, once in a term;
    /// - asks, if any shard is unplaced.
    pub(super) fn place(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        let targets = self.targets().count();
        let waits = |question: &StrategyQuestion| question.ask_again > now.mono && targets > 0;
        if self.pending_decisions.question.as_ref().is_some_and(waits) {
            return;
        }
        self.pending_decisions.question = None; // its late answer has another number
        let first = self.records.is_empty() && self.pending_decisions.writing.is_none();
        if first && targets < self.config.min_regions.max(1) {
            return;
        }
        if targets > 0 && self.config.preallocate && !self.pending_decisions.preallocated {
            // A shard whose plan is taken back is unplaced again without this.
            self.pending_decisions.preallocated = true;
            let all = (0..self.config.shards).map(ShardId::new);
            let new: Vec<_> = all.filter(|id| !self.is_known(*id)).collect();
            new.into_iter().for_each(|shard| self.mark_unplaced(shard, None));
        }
        if targets == 0 {
            return self.leave_nowhere(now);
        }
        let most = if self.config.one_by_one { 1 } else { usize::MAX };
        let shards: Vec<_> = self.unplaced(ShardId::default()).take(most).collect();
        if shards.is_empty() {
            return;
        }
        self.last_id += 1;
        let question = self.last_id;
        let ask_again = now.mono + self.config.allocating;
        self.pending_decisions.question =
            Some(StrategyQuestion { number: question, ask_again, vain: false });
        out.push(CoordinatorOutput::Allocate { question, shards });
    }

    /// Shards from `from` on that need a home now, by number, each with the region that asked
    /// first. Shards that must stop first are left out.
    pub fn unplaced(
        &self,
        from: ShardId,
    ) -> impl Iterator<Item = (ShardId, Option<RegionId>)> + '_ {
        let unplaced =
            self.pending_decisions.unplaced.range(from..).map(|(shard, asker)| (*shard, *asker));
        unplaced.filter(|(shard, _)| !self.is_stopping(*shard))
    }

    /// Whether a shard needs a home now; `false` while it must stop first.
    #[must_use]
    pub fn is_unplaced(&self, shard: ShardId) -> bool {
        self.pending_decisions.unplaced.contains_key(&shard) && !self.is_stopping(shard)
    }

    /// Shards whose home or move has changed since the last call; `None`: anything may have
    /// changed, including the regions, or this is the first call.
    pub fn take_changed(&mut self) -> Option<BTreeSet<ShardId>> {
        self.pending_decisions.changed.replace(BTreeSet::new())
    }

    /// Whether a decision about the shard was acknowledged, waits or is being written.
    fn is_known(&self, shard: ShardId) -> bool {
        self.records.contains_key(&shard) || self.pending_decisions.planned(shard).is_some()
    }

    /// Plans no home for the unplaced shards of leaving regions, because there is no target
    /// (docs/protocol/sharding.md#no-target-means-home-none). Other unplaced shards, those of lost
    /// homes included, wait for a target.
    fn leave_nowhere(&mut self, now: Now) {
        let why = reason("its region leaves and there is no other");
        for shard in self.pending_decisions.unplaced.keys().copied().collect::<Vec<_>>() {
            let home = self.planned(shard);
            if home.is_some_and(|home| self.leaves(home)) {
                self.pending_decisions.plan(now, shard, None, &why);
            }
        }
    }

    /// Handles an answer of the strategy: plans each usable choice, also for a shard that the
    /// question did not name. A choice is refused and counted if the shard needs no home now, also
    /// because an earlier choice of the answer gave it one, or if the region is no target. Ignores
    /// an answer to another question than the open one.
    ///
    /// The answer closes the question. If it is empty, or no choice is usable although a named
    /// shard still needs a home, the question stays open in vain until its timeout or a change of
    /// regions.
    pub(super) fn allocated(&mut self, now: Now, question: u64, homes: &[Chosen]) {
        let asked =
            self.pending_decisions.question.as_ref().is_some_and(|asked| asked.number == question);
        if !asked || self.phase != CoordinatorPhase::Active {
            return;
        }
        let (mut chosen, mut vain) = (false, homes.is_empty());
        for Chosen { shard, to, why } in homes {
            let waits = self.is_unplaced(*shard);
            if waits && self.is_target(*to) {
                let why = self.cause(*shard, why);
                self.pending_decisions.plan(now, *shard, Some(*to), &why);
                chosen = true;
            } else {
                self.stats.refused += 1;
                vain |= waits; // otherwise a move has given it a home meanwhile
            }
        }
        // After an answer without a usable choice the question waits for its timeout; otherwise the
        // strategy and the coordinator would ask and answer in a busy loop.
        match &mut self.pending_decisions.question {
            Some(question) if !chosen && vain => question.vain = true,
            question => *question = None,
        }
    }

    /// Plans a move, or with `None` that the shard has no home. Refuses and counts the wish if the
    /// coordinator is not active or the cluster prepares for shutdown, if the shard does not exist,
    /// is there already (with `None`: has no home, or never had one), has a planned decision, or if
    /// `to` is no target. A shard that must stop first is refused a home, but not `None`. A shard
    /// without a home may be moved, too. Slow handlers do not matter here.
    pub(super) fn wish_move(
        &mut self,
        now: Now,
        shard: ShardId,
        to: Option<RegionId>,
        why: &Arc<str>,
    ) {
        let fits = to.is_none_or(|to| self.is_target(to)) && shard.get() < self.config.shards;
        let there = self.planned(shard) == to || self.pending_decisions.planned(shard).is_some();
        let fits = fits && !(to.is_some() && self.is_stopping(shard));
        if self.phase != CoordinatorPhase::Active || self.preparing || !fits || there {
            self.stats.refused += 1;
            return;
        }
        self.pending_decisions.plan(now, shard, to, why);
    }

    /// Puts all waiting decisions, by shard number and at most [`BATCH_MAX`], into one write. Each
    /// lists every predecessor (docs/protocol/sharding.md#a-decision-lists-every-predecessor),
    /// because a region left out could still host beside the new home. All decisions of a write
    /// have one generation. Records them in the history; the shards' records change with the
    /// acknowledgement. Does nothing while a write is under way; the decisions then wait for the
    /// next one.
    pub(super) fn commit(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        if self.pending_decisions.writing.is_some() {
            return;
        }
        let (generation, epoch) = (self.next_generation(), self.installed.epoch);
        let mut cells = Vec::new();
        while cells.len() < BATCH_MAX
            && let Some((shard, wish)) = self.pending_decisions.wishes.pop_first()
        {
            let record = self.records.get(&shard);
            let hosted = record.map_or(Generation::NEVER, ShardRecord::hosted);
            let before = record.map(ShardRecord::home);
            let decision = NewDecision { generation, region: wish.to, epoch, hosted };
            let home = ShardHome::decide(before, decision, self.fault_injection);
            let from = before.and_then(|before| before.region);
            self.remember(now, shard, &home, from, wish);
            cells.push((shard, home));
        }
        if cells.is_empty() {
            return;
        }
        let early = self.fault_injection.has(ShardingFault::SpeaksBeforeAck).then(|| cells.clone());
        self.pending_decisions.writing = Some(Writing { cells, recovery: false });
        self.write(out);
        for (shard, home) in early.into_iter().flatten() {
            self.decided(now, shard, home);
        }
    }

    /// A quorum holds a decision, so the regions may hear of it
    /// (docs/protocol/sharding.md#speak-after-the-acknowledgement): announces the home, sends
    /// `Host` and `Release` and begins to repeat them. A decision without a home that lists no
    /// predecessor, or only such as are out, is announced and settled at once instead. The highest
    /// hosted generation of the shard is kept. The shard is unplaced again if its home is lost or
    /// leaves by now.
    pub(super) fn decided(&mut self, now: Now, shard: ShardId, home: ShardHome) {
        let hosted = self.records.get(&shard).map_or(Generation::NEVER, ShardRecord::hosted);
        let mut record = ShardRecord::new(home, hosted);
        let empty = record.settle_empty(&self.installed);
        self.records.insert(shard, record);
        self.pending_decisions.touch(shard);
        self.announce(shard);
        if empty {
            return self.settled(now, shard);
        }
        self.speak(shard);
        self.note_open(now, shard);
        self.repeats.begin(now.mono, shard, self.config.repeat);
        self.check_home(shard);
    }
}
