//! After a recovery by force: what survives is counted before anything is decided (spec/safety.md
//! §1, spec/sharding.md §5).
//!
//! The majority that is lost may have held decisions that no survivor's data show, of shards that a
//! survivor runs or is about to. So every node of the configuration is asked what it knows, and none
//! of them acts on an older word from then on. Of every shard that anybody has heard of the newest
//! decision is made again, under this term, which is above all that were reported: what runs goes on
//! where it runs, who else may run it, or keeps what it left, is told to release it, and a home that
//! was given up is lost like any other. That it was done for this configuration is written with the
//! homes, so that it is done once, and again if this coordinator ends in the middle. What only a
//! survivor's replica holds, and is read later, is decided again by whoever reads it: no region acts
//! on the older word.
//!
//! Only members of the configuration that was forced are asked: who came later knows of nothing older.
//! Nobody starts a shard before all of them have answered. (That those who were given up have ended is the
//! business of whoever tells of configurations: see `machines`.)

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::desk::Wish;
use super::mail::send;
use super::port::CoordinatorOutput;
use super::takeover::words;
use super::{Coordinator, Out, Phase};
use crate::sharding::bug::Bug;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId, SHARDS_MAX, ShardId};
use crate::sharding::remembered::Slow;
use crate::sharding::store::{Ask, Recovered};
use crate::sharding::wire::{RouteTable, ShardRoute, ToRegion};

/// Who has not answered by then is named in a warning, and again after [`WARN_AGAIN`].
const WARN_AFTER: Duration = Duration::from_secs(10);
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// What one node knows.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
    told: Vec<ShardRoute>,              // ≤ SHARDS_MAX
    highest: Generation,
}

impl Count {
    pub(super) fn new(
        hosted: Vec<(ShardId, Generation)>,
        told: &RouteTable,
        highest: Generation,
    ) -> Self {
        Self { hosted, told: told.iter().collect(), highest }
    }
}

/// What one node knows of the shards from `first` up to `next`, or up to the last one.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) first: ShardId,
    pub(super) next: Option<ShardId>,
    pub(super) count: Count,
}

impl Part {
    /// Whether a node can have said so, and has said no more than there are shards.
    fn is_sound(&self) -> bool {
        let Self { first, next, count: Count { hosted, told, .. } } = self;
        let until = next.map_or(SHARDS_MAX, ShardId::get);
        let about = first.get()..until;
        let rows_max = about.len();
        let told_of = told.iter().map(|route| route.shard);
        let mut of = hosted.iter().map(|(shard, _)| *shard).chain(told_of);
        until <= SHARDS_MAX
            && first.get() < until
            && hosted.len().max(told.len()) <= rows_max
            && of.all(|shard| about.contains(&shard.get()))
    }
}

/// What has come of a count that comes in parts.
#[derive(Clone, Debug, Default)]
struct Parts {
    count: Count,
    next: ShardId,
    moves: bool, // one has come since its node was asked last
}

/// The count of one forced generation.
#[derive(Clone, Debug)]
pub(super) struct Recount {
    since: Instant,
    ask_at: Instant,
    warn_at: Instant,
    counts: BTreeMap<RegionId, Count>, // ≤ members
    parts: BTreeMap<RegionId, Parts>,  // ≤ members
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nodes are asked.
    Asking,
    /// What they said is decided, and to be held by a quorum.
    Deciding,
    /// That it is done is to be held by a quorum.
    Recording,
}

/// What is known of one shard, of all who know of it.
#[derive(Clone, Debug, Default)]
struct Merged {
    newest: Generation,
    home: Option<RegionId>, // of the newest decision
    runs: Option<(Generation, RegionId)>,
    after: BTreeMap<RegionId, Generation>, // ≤ regions
    epoch: EpochId,                        // the highest of what is merged
}

impl Merged {
    fn decided(&mut self, generation: Generation, home: Option<RegionId>) {
        if generation > self.newest {
            (self.newest, self.home) = (generation, home);
        }
        if let Some(home) = home {
            self.may_host(home, generation);
        }
    }

    fn may_host(&mut self, region: RegionId, at: Generation) {
        let last = self.after.entry(region).or_default();
        *last = at.max(*last);
    }

    fn hosts(&mut self, region: RegionId, at: Generation) {
        self.runs = self.runs.max(Some((at, region)));
        self.may_host(region, at);
    }
}

impl Coordinator {
    /// Whether what survives a recovery by force is still to be counted.
    fn is_to_recount(&self) -> bool {
        let origin = self.installed.origin();
        let recovered = self.recovered.map(|recovered| recovered.origin);
        origin.is_some() && recovered != origin && !self.canary.has(Bug::NothingRecounted)
    }

    /// All that was to be written is: on with the count, or with the work of a coordinator.
    pub(super) fn rewritten(&mut self, now: Now, out: &mut Out) {
        let is_to_recount = self.is_to_recount();
        match self.recount.as_mut().map(|recount| &mut recount.stage) {
            None if is_to_recount => {
                self.phase = Phase::Recounting;
                self.recount = Some(Recount {
                    since: now.mono,
                    ask_at: now.mono,
                    warn_at: now.mono + WARN_AFTER,
                    counts: BTreeMap::new(),
                    parts: BTreeMap::new(),
                    stage: Stage::Asking,
                });
                self.ask_all(now, out);
                self.take_stock(now, out); // at once if nobody is left to ask
            }
            Some(stage @ Stage::Deciding) => {
                *stage = Stage::Recording;
                self.write(out);
            }
            _ => self.act(now, out),
        }
    }

    /// When it is to ask again, or to complain.
    pub(super) fn recounts_at(&self) -> Option<Instant> {
        let asking = self.recount.as_ref().filter(|recount| recount.stage == Stage::Asking);
        asking.map(|recount| recount.ask_at.min(recount.warn_at))
    }

    /// Who can know of anything older, and still is a member.
    fn asked(&self) -> impl Iterator<Item = RegionId> + '_ {
        let kept = self.installed.forced.iter().flat_map(|forced| &forced.kept).copied();
        kept.filter(|id| self.installed.members.contains(id))
    }

    fn silent(&self) -> Vec<RegionId> {
        let Some(recount) = &self.recount else { return Vec::new() };
        self.asked().filter(|id| !recount.counts.contains_key(id)).collect()
    }

    /// Asks who has not answered, if it is time.
    pub(super) fn ask_all(&mut self, now: Now, out: &mut Out) {
        if self.recounts_at().is_none_or(|at| now.mono < at) {
            return;
        }
        let silent = self.silent();
        let Some(recount) = &mut self.recount else { return };
        if now.mono >= recount.ask_at {
            recount.ask_at = now.mono + self.config.repeat.longest;
            let (term, origin) = (self.term, self.installed.origin().unwrap_or_default());
            for region in &silent {
                let parts = recount.parts.entry(*region).or_default();
                if !std::mem::take(&mut parts.moves) {
                    let first = Some(parts.next);
                    send(region.replica(), ToRegion::Recount { term, origin, first }, out);
                }
            }
        }
        if now.mono >= recount.warn_at {
            recount.warn_at = now.mono + WARN_AGAIN;
            let (waited, limit) = (now.mono - recount.since, WARN_AFTER);
            let slow = Slow { shards: Vec::new(), waited, limit, awaited: silent };
            out.push(CoordinatorOutput::Slow(slow));
        }
    }

    /// A node has answered.
    pub(super) fn counted(
        &mut self,
        now: Now,
        from: RegionId,
        term: Term,
        count: Count,
        out: &mut Out,
    ) {
        let Some(count) = self.admit((from, term), count, out) else { return };
        if let Some(recount) = &mut self.recount {
            recount.counts.insert(from, count);
        }
        self.take_stock(now, out);
    }

    /// A node has answered of some shards, and is asked of those that follow. It counts once all have
    /// come: whoever took some for all would not know who may still host the others.
    pub(super) fn counted_part(
        &mut self,
        now: Now,
        (from, term): (RegionId, Term),
        part: Part,
        out: &mut Out,
    ) {
        if !part.is_sound() {
            self.stats.strange += 1;
            return;
        }
        let Part { first, next, count } = part;
        let Some(count) = self.admit((from, term), count, out) else { return };
        let origin = self.installed.origin().unwrap_or_default();
        let Some(recount) = &mut self.recount else { return };
        let parts = recount.parts.entry(from).or_default();
        if first != parts.next || recount.counts.contains_key(&from) {
            return; // it came before: its node was asked twice
        }
        parts.count.hosted.extend(count.hosted);
        parts.count.told.extend(count.told);
        if let Some(next_first) = next.filter(|_| !self.canary.has(Bug::PartCountsAsAll)) {
            (parts.next, parts.moves) = (next_first, true);
            send(from.replica(), ToRegion::Recount { term, origin, first: next }, out);
            return;
        }
        let count = std::mem::take(&mut parts.count);
        recount.counts.insert(from, count);
        self.take_stock(now, out);
    }

    /// What is to be counted of an answer; it may also end this coordinator.
    fn admit(
        &mut self,
        (from, term): (RegionId, Term),
        count: Count,
        out: &mut Out,
    ) -> Option<Count> {
        let count = self.credible(count);
        let asks = self.recounts_at().is_some() && term == self.term;
        if !asks || !self.asked().any(|id| id == from) {
            return None; // of an earlier question, or of who is not asked, or not any more
        }
        let hosted = count.hosted.iter().map(|(_, at)| *at);
        let told = count.told.iter().map(|route| route.generation);
        let terms = hosted.chain(told).chain([count.highest]).map(|at| at.term);
        let highest = terms.max().unwrap_or_default();
        if highest >= self.term {
            self.step_down(highest, "a region has heard of a higher term", out);
            return None;
        }
        Some(count)
    }

    /// Without what nobody can have decided: the word of a peer is not to be held for ever.
    fn credible(&mut self, count: Count) -> Count {
        let Count { mut hosted, mut told, highest } = count;
        let rows = hosted.len() + told.len();
        let can_be = |at: Generation| at.term.is_valid();
        hosted.retain(|(_, at)| can_be(*at));
        told.retain(|route| can_be(route.generation));
        self.stats.strange += (rows - hosted.len() - told.len()) as u64;
        let highest = Some(highest).filter(|at| can_be(*at)).unwrap_or_default();
        Count { hosted, told, highest }
    }

    /// Members have come or gone while they were asked.
    pub(super) fn recount_members(&mut self, now: Now, out: &mut Out) {
        if let Some(recount) = self.recount.as_mut().filter(|it| it.stage == Stage::Asking) {
            recount.counts.retain(|id, _| self.installed.members.contains(id));
            recount.parts.retain(|id, _| self.installed.members.contains(id));
            recount.ask_at = now.mono;
            self.ask_all(now, out);
            self.take_stock(now, out);
        }
    }

    /// Once all have answered, everything that anybody knows of is decided again.
    fn take_stock(&mut self, now: Now, out: &mut Out) {
        if !self.silent().is_empty() {
            return;
        }
        let Some(recount) = &mut self.recount else { return };
        recount.stage = Stage::Deciding;
        let counts = std::mem::take(&mut recount.counts);
        self.desk.unread = self.stock(now, &counts);
        self.phase = Phase::Rewriting;
        self.rewrite(now, out);
    }

    fn stock(
        &mut self,
        now: Now,
        counts: &BTreeMap<RegionId, Count>,
    ) -> BTreeMap<ShardId, ShardHome> {
        let mut all: BTreeMap<ShardId, Merged> = BTreeMap::new();
        for (shard, record) in &self.records {
            let ShardHome { generation, region, after, epoch } = record.home();
            let merged = all.entry(*shard).or_default();
            merged.epoch = merged.epoch.max(*epoch);
            after.iter().for_each(|(id, at)| merged.may_host(*id, *at));
            merged.decided(*generation, *region);
        }
        for (from, count) in counts {
            for route in &count.told {
                all.entry(route.shard).or_default().decided(route.generation, route.home);
            }
            for (shard, at) in &count.hosted {
                all.entry(*shard).or_default().hosts(*from, *at);
            }
        }
        let known = all.len();
        all.retain(|shard, _| shard.get() < self.config.shards);
        self.stats.strange += (known - all.len()) as u64;
        let mut homes = BTreeMap::new();
        let why = words("counted after a recovery by force");
        for (shard, merged) in all {
            let (from, home) = (merged.home, self.decide_again(merged));
            let wish = Wish { to: home.region, why: why.clone(), since: now };
            self.remember(now, shard, &home, from, wish);
            homes.insert(shard, home);
        }
        homes
    }

    /// The newest decision stands; where its home is given up, whoever runs it is the home.
    fn decide_again(&self, merged: Merged) -> ShardHome {
        let Merged { home, runs, mut after, epoch, .. } = merged;
        let is_lost = home.is_some_and(|home| !self.installed.members.contains(&home));
        let region = runs.filter(|_| is_lost).map(|(_, runs)| runs).or(home);
        after.retain(|id, _| Some(*id) != region);
        let (generation, epoch) = (self.next_generation(), epoch.max(self.installed.epoch));
        ShardHome { generation, region, after, epoch }
    }

    /// Decisions below the term that has counted: some survivor's replica alone held them, of before
    /// the force or of a count that came to no end. Regions act on no such word, so they are made
    /// again, as they are. (While there is a count to come, that does it.)
    pub(super) fn decide_again_what_is_older(
        &mut self,
        now: Now,
        cells: &mut BTreeMap<ShardId, ShardHome>,
    ) {
        if self.is_to_recount() {
            return;
        }
        let Some(Recovered { term, .. }) = self.recovered else { return };
        let older = cells.iter().filter(|(_, home)| home.generation.term < term);
        let why = words("it was decided before a recovery by force");
        for shard in older.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            let Some(home) = cells.get_mut(&shard) else { continue };
            home.generation = self.next_generation();
            home.epoch = home.epoch.max(self.installed.epoch); // as each decision (C2)
            let (from, home) = (home.region, home.clone());
            let wish = Wish { to: from, why: why.clone(), since: now };
            self.remember(now, shard, &home, from, wish);
        }
    }

    /// Writes that it is done.
    pub(super) fn write_recovered(&mut self, out: &mut Out) -> bool {
        let records = self.recount.as_ref().is_some_and(|it| it.stage == Stage::Recording);
        if records {
            self.seq += 1;
            self.stats.writes += 1;
            let (term, seq, within) = (self.term, self.seq, self.config.writing);
            let origin = self.installed.origin().unwrap_or_default();
            self.ask(Ask::Recover { recovered: Recovered { origin, term }, seq, within }, out);
        }
        records
    }

    /// A quorum holds it.
    pub(super) fn recovered(&mut self) -> bool {
        let recorded = self.recount.take_if(|recount| recount.stage == Stage::Recording).is_some();
        if recorded {
            let term = self.term;
            self.recovered = self.installed.origin().map(|origin| Recovered { origin, term });
            self.stats.recounts += 1;
        }
        recorded
    }
}
