//! C2: what needs a home, what the strategy chose, and one guarded write for all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::clock::Now;

use super::desk::{Question, Writing};
use super::port::{Chosen, CoordinatorOutput};
use super::record::Record;
use super::takeover::words;
use super::{BATCH_MAX, Coordinator, Out, Phase};
use crate::sharding::bug::Bug;
use crate::sharding::home::{Decision, ShardHome};
use crate::sharding::ids::{Generation, RegionId, ShardId};

impl Coordinator {
    /// Where every shard that has a home lives or is to live, decisions under way included: what
    /// a strategy balances.
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

    /// Shards whose newest decision is not carried out yet.
    pub fn moving(&self) -> impl Iterator<Item = ShardId> + '_ {
        let open = self.records.iter().filter(|(_, record)| !record.is_settled());
        open.map(|(shard, _)| *shard)
    }

    /// Shards that are on their way, see [`moving_of`](Self::moving_of): from where, if they had a
    /// home, and to where.
    pub fn under_way(&self) -> impl Iterator<Item = (ShardId, Option<RegionId>, RegionId)> + '_ {
        let moving = |shard| self.moving_of(shard).map(|(from, to)| (shard, from, to));
        self.placed().into_iter().filter_map(moving)
    }

    /// Whence and whither a shard is on its way, by a decision that waits for its write or is not
    /// carried out yet.
    #[must_use]
    pub fn moving_of(&self, shard: ShardId) -> Option<(Option<RegionId>, RegionId)> {
        let record = self.records.get(&shard);
        if let Some(planned) = self.desk.planned(shard) {
            return Some((record.and_then(|record| record.home().region), planned?));
        }
        let record = record.filter(|record| !record.is_settled())?;
        let home = record.home();
        let from = home.after.iter().max_by_key(|(_, at)| **at).map(|(id, _)| *id);
        Some((from, home.region?))
    }

    /// Shards that were ever decided upon, those that wait for their first write included.
    fn placed(&self) -> BTreeSet<ShardId> {
        let written = self.desk.writing.iter().filter(|writing| !writing.recovery);
        let first = written.flat_map(|writing| writing.cells.iter().map(|(id, _)| *id));
        let new = self.desk.wishes.keys().copied().chain(first);
        self.records.keys().copied().chain(new).collect()
    }

    /// Where a shard lives once everything that is decided is carried out.
    #[must_use]
    pub fn planned(&self, shard: ShardId) -> Option<RegionId> {
        let acked = || self.records.get(&shard).and_then(|record| record.home().region);
        self.desk.planned(shard).unwrap_or_else(acked)
    }

    /// A shard needs a home, since a region asks for it or its home is none any more.
    pub(super) fn unplace(&mut self, shard: ShardId, asker: Option<RegionId>) {
        let first = self.desk.unplaced.entry(shard).or_default();
        *first = first.or(asker);
    }

    /// Looks at every home: those that are lost or leave are to be replaced.
    pub(super) fn check_homes(&mut self) {
        let shards: Vec<ShardId> = self.records.keys().copied().collect();
        shards.into_iter().for_each(|shard| self.check_home(shard));
    }

    pub(super) fn check_home(&mut self, shard: ShardId) {
        let Some(record) = self.records.get(&shard) else { return };
        if self.desk.planned(shard).is_some() {
            return; // looked at again once that is written
        }
        if record.is_lost(&self.installed) || self.is_leaving(shard) && !self.preparing {
            self.unplace(shard, None);
        }
    }

    /// Asks the strategy for what has no home.
    pub(super) fn place(&mut self, now: Now, out: &mut Out) {
        let targets = self.targets().count();
        let waits = |question: &Question| question.ask_again > now.mono && targets > 0;
        if self.desk.question.as_ref().is_some_and(waits) {
            return;
        }
        self.desk.question = None; // who answers it late finds another number
        let first = self.records.is_empty() && self.desk.writing.is_none();
        if first && targets < self.config.min_regions.max(1) {
            return;
        }
        if targets > 0 && self.config.preallocate && !self.desk.preallocated {
            self.desk.preallocated = true; // who loses its plan is unplaced again by itself
            let all = (0..self.config.shards).map(ShardId::new);
            let new: Vec<_> = all.filter(|id| !self.is_known(*id)).collect();
            new.into_iter().for_each(|shard| self.unplace(shard, None));
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
        self.desk.question = Some(Question { number: question, ask_again, vain: false });
        out.push(CoordinatorOutput::Allocate { question, shards });
    }

    /// What needs a home now and who asked for it, from this shard on.
    pub fn unplaced(
        &self,
        from: ShardId,
    ) -> impl Iterator<Item = (ShardId, Option<RegionId>)> + '_ {
        let unplaced = self.desk.unplaced.range(from..).map(|(shard, asker)| (*shard, *asker));
        unplaced.filter(|(shard, _)| !self.is_stopping(*shard))
    }

    /// Whether a shard needs a home now.
    #[must_use]
    pub fn is_unplaced(&self, shard: ShardId) -> bool {
        self.desk.unplaced.contains_key(&shard) && !self.is_stopping(shard)
    }

    /// Shards whose place, or way there, has changed since this was asked last; `None`: anything may
    /// have changed, regions as well.
    pub fn take_changed(&mut self) -> Option<BTreeSet<ShardId>> {
        self.desk.changed.replace(BTreeSet::new())
    }

    fn is_known(&self, shard: ShardId) -> bool {
        self.records.contains_key(&shard) || self.desk.planned(shard).is_some()
    }

    /// Nobody can host: what a leaving region hosts is to live nowhere.
    fn leave_nowhere(&mut self, now: Now) {
        let why = words("its region leaves and there is no other");
        for shard in self.desk.unplaced.keys().copied().collect::<Vec<_>>() {
            let home = self.planned(shard);
            if home.is_some_and(|home| self.leaves(home)) {
                self.desk.wish(now, shard, None, &why);
            }
        }
    }

    pub(super) fn allocated(&mut self, now: Now, question: u64, homes: &[Chosen]) {
        let asked = self.desk.question.as_ref().is_some_and(|asked| asked.number == question);
        if !asked || self.phase != Phase::Active {
            return;
        }
        let (mut chosen, mut vain) = (false, homes.is_empty());
        for Chosen { shard, to, why } in homes {
            let waits = self.is_unplaced(*shard);
            if waits && self.is_target(*to) {
                let why = self.cause(*shard, why);
                self.desk.wish(now, *shard, Some(*to), &why);
                chosen = true;
            } else {
                self.stats.refused += 1;
                vain |= waits; // else it has got a home meanwhile, by a move
            }
        }
        // A choice that helps nothing waits for its time, or strategy and coordinator would spin.
        match &mut self.desk.question {
            Some(question) if !chosen && vain => question.vain = true,
            question => *question = None,
        }
    }

    pub(super) fn wish_move(
        &mut self,
        now: Now,
        shard: ShardId,
        to: Option<RegionId>,
        why: &Arc<str>,
    ) {
        let fits = to.is_none_or(|to| self.is_target(to)) && shard.get() < self.config.shards;
        let there = self.planned(shard) == to || self.desk.planned(shard).is_some();
        let fits = fits && !(to.is_some() && self.is_stopping(shard));
        if self.phase != Phase::Active || self.preparing || !fits || there {
            self.stats.refused += 1;
            return;
        }
        self.desk.wish(now, shard, to, why);
    }

    /// Everything that waits goes in one write.
    pub(super) fn commit(&mut self, now: Now, out: &mut Out) {
        if self.desk.writing.is_some() {
            return;
        }
        let (generation, epoch) = (self.next_generation(), self.installed.epoch);
        let mut cells = Vec::new();
        while cells.len() < BATCH_MAX
            && let Some((shard, wish)) = self.desk.wishes.pop_first()
        {
            let record = self.records.get(&shard);
            let hosted = record.map_or(Generation::NEVER, Record::hosted);
            let before = record.map(Record::home);
            let decision = Decision { generation, region: wish.to, epoch, hosted };
            let home = ShardHome::decide(before, decision, self.canary);
            let from = before.and_then(|before| before.region);
            self.remember(now, shard, &home, from, wish);
            cells.push((shard, home));
        }
        if cells.is_empty() {
            return;
        }
        let early = self.canary.has(Bug::SpeaksBeforeAck).then(|| cells.clone());
        self.desk.writing = Some(Writing { cells, recovery: false });
        self.write(out);
        for (shard, home) in early.into_iter().flatten() {
            self.decided(now, shard, home);
        }
    }

    /// A quorum holds a decision: it is spoken of.
    pub(super) fn decided(&mut self, now: Now, shard: ShardId, home: ShardHome) {
        let hosted = self.records.get(&shard).map_or(Generation::NEVER, Record::hosted);
        let mut record = Record::new(home, hosted);
        let empty = record.settle_empty(&self.installed);
        self.records.insert(shard, record);
        self.desk.touch(shard);
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
