//! Recount after a forced configuration: before it decides anything, a coordinator collects what
//! the survivors know (docs/protocol/sharding.md#recount-after-a-forced-configuration).
//!
//! The lost majority may have held decisions that no survivor's replica shows, for shards that a
//! survivor runs or will start. So every node of the forced configuration reports what it knows,
//! and acts on no older decision from then on. For each reported shard the newest decision is made
//! again under this term, which is above all reported ones. A running shard continues where it
//! runs; other regions that may run the shard or keep a payload are listed as predecessors; a home
//! that was given up counts as lost.
//!
//! That the recount is done is written with the homes, so it happens once per forced configuration,
//! or again if this coordinator ends halfway. Cells that only a survivor's replica holds and a
//! later coordinator reads are decided again by that one, because regions ignore the old
//! generation.
//!
//! Only members of the forced configuration are asked, because later members know of nothing older.
//! No region starts a shard before all of them have answered. The machines in `machines` ensure
//! that members given up have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::outbound::send;
use super::pending_decisions::PlannedHome;
use super::port::CoordinatorOutput;
use super::takeover::reason;
use super::{Coordinator, CoordinatorOutbox, CoordinatorPhase};
use crate::sharding::decision_history::SlowDecisions;
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId, SHARDS_MAX, ShardId};
use crate::sharding::store::{RecountRecord, StoreRequest};
use crate::sharding::wire::{RouteTable, ShardRoute, ToRegion};

/// After this time a warning names the silent nodes, and again after each [`WARN_AGAIN`].
const WARN_AFTER: Duration = Duration::from_secs(10);
const WARN_AGAIN: Duration = Duration::from_secs(60);

/// Knowledge of one node: hosted shards, the newest decisions it was told, its highest generation.
/// Hosted shards include those that it drains or keeps a payload of.
#[derive(Clone, Debug, Default)]
pub(super) struct RecountReport {
    hosted: Vec<(ShardId, Generation)>, // ≤ SHARDS_MAX
    told: Vec<ShardRoute>,              // ≤ SHARDS_MAX
    highest: Generation,
}

impl RecountReport {
    pub(super) fn new(
        hosted: Vec<(ShardId, Generation)>,
        told: &RouteTable,
        highest: Generation,
    ) -> Self {
        Self { hosted, told: told.iter().collect(), highest }
    }
}

/// Knowledge of one node about the shards from `first` up to `next`, or up to the last one.
#[derive(Clone, Debug)]
pub(super) struct RecountPart {
    pub(super) first: ShardId,
    pub(super) next: Option<ShardId>,
    pub(super) count: RecountReport,
}

impl RecountPart {
    /// Whether the part is plausible: its range is not empty and ends at [`SHARDS_MAX`] at most,
    /// and it lists only shards of that range and not more than there are. It may list none.
    fn is_sound(&self) -> bool {
        let Self { first, next, count: RecountReport { hosted, told, .. } } = self;
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

/// The parts received so far from one node.
#[derive(Clone, Debug, Default)]
struct ReceivedParts {
    count: RecountReport, // all parts so far; its `highest` is not kept
    next: ShardId,        // the first shard of the part that is missing
    moves: bool,          // a part arrived since the last request
}

/// State of the recount for one forced configuration.
#[derive(Clone, Debug)]
pub(super) struct Recount {
    since: Instant,                            // when it began
    ask_at: Instant,                           // when to repeat the requests
    warn_at: Instant,                          // when to warn, the first time or again
    counts: BTreeMap<RegionId, RecountReport>, // complete answers; ≤ members
    parts: BTreeMap<RegionId, ReceivedParts>,  // of nodes that were asked; ≤ members
    stage: RecountStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecountStage {
    /// Nodes are being asked.
    Asking,
    /// The decisions made again are being written.
    Deciding,
    /// The completion is being written.
    Recording,
}

/// Combined knowledge of all nodes about one shard.
#[derive(Clone, Debug, Default)]
struct MergedShard {
    newest: Generation,
    home: Option<RegionId>,                // of the newest decision
    runs: Option<(Generation, RegionId)>,  // the highest reported tenure
    after: BTreeMap<RegionId, Generation>, // ≤ regions
    epoch: EpochId,                        // the highest of the merged decisions
}

impl MergedShard {
    /// Adds a decision. Its home may host, also if a newer decision is known. Of two decisions of
    /// one generation the first added one names the home, and both homes may host.
    fn decided(&mut self, generation: Generation, home: Option<RegionId>) {
        if generation > self.newest {
            (self.newest, self.home) = (generation, home);
        }
        if let Some(home) = home {
            self.may_host(home, generation);
        }
    }

    /// Notes that the region may host the shard by a decision up to `at`; the highest one counts.
    fn may_host(&mut self, region: RegionId, at: Generation) {
        let last = self.after.entry(region).or_default();
        *last = at.max(*last);
    }

    /// Notes a reported tenure. Of equal generations the one of the higher region id counts.
    fn hosts(&mut self, region: RegionId, at: Generation) {
        self.runs = self.runs.max(Some((at, region)));
        self.may_host(region, at);
    }
}

impl Coordinator {
    /// Whether the installed configuration was forced, or follows a forced one, and no recount for
    /// that forced one was completed, by what the fencing read returned.
    fn is_to_recount(&self) -> bool {
        let origin = self.installed.origin();
        let recovered = self.recovered.map(|recovered| recovered.origin);
        origin.is_some()
            && recovered != origin
            && !self.fault_injection.has(ShardingFault::NothingRecounted)
    }

    /// All cells are written: begins the recount if one is due and none has begun, requests the
    /// write of its completion if its decisions were written, otherwise becomes active. A recount
    /// asks the nodes in this call; one that has no node to ask goes on to its decisions in it.
    pub(super) fn rewritten(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        let is_to_recount = self.is_to_recount();
        match self.recount.as_mut().map(|recount| &mut recount.stage) {
            None if is_to_recount => {
                self.phase = CoordinatorPhase::Recounting;
                self.recount = Some(Recount {
                    since: now.mono,
                    ask_at: now.mono,
                    warn_at: now.mono + WARN_AFTER,
                    counts: BTreeMap::new(),
                    parts: BTreeMap::new(),
                    stage: RecountStage::Asking,
                });
                self.ask_all(now, out);
                self.decide_if_all_answered(now, out); // at once if there is nobody to ask
            }
            Some(stage @ RecountStage::Deciding) => {
                *stage = RecountStage::Recording;
                self.write(out);
            }
            _ => self.act(now, out),
        }
    }

    /// The next time to repeat the request or to warn; `None` unless nodes are being asked.
    pub(super) fn recounts_at(&self) -> Option<Instant> {
        let asking = self.recount.as_ref().filter(|recount| recount.stage == RecountStage::Asking);
        asking.map(|recount| recount.ask_at.min(recount.warn_at))
    }

    /// Members of the forced configuration that are still members; only they can know of older
    /// decisions.
    fn asked(&self) -> impl Iterator<Item = RegionId> + '_ {
        let kept = self.installed.forced.iter().flat_map(|forced| &forced.kept).copied();
        kept.filter(|id| self.installed.members.contains(id))
    }

    /// The nodes that must answer and have not, or only in part; none without a recount.
    fn silent(&self) -> Vec<RegionId> {
        let Some(recount) = &self.recount else { return Vec::new() };
        self.asked().filter(|id| !recount.counts.contains_key(id)).collect()
    }

    /// Asks the nodes that have not answered, if `ask_at` has passed, each for the first part that
    /// is missing; the next time is `repeat.longest` later. A node that has sent a part since the
    /// last request is left out once, because the next part was requested with it.
    ///
    /// If `warn_at` has passed, also warns, with all nodes that have not answered completely.
    /// Called with each tick; does nothing unless nodes are being asked. Counts nothing.
    pub(super) fn ask_all(&mut self, now: Now, out: &mut CoordinatorOutbox) {
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
            let slow = SlowDecisions { shards: Vec::new(), waited, limit, awaited: silent };
            out.push(CoordinatorOutput::Slow(slow));
        }
    }

    /// Handles a complete answer of a node; a later one replaces it, and it replaces parts. Makes
    /// the decisions if it was the last one. Ignores an answer that [`admit`] rejects.
    ///
    /// [`admit`]: Self::admit
    pub(super) fn counted(
        &mut self,
        now: Now,
        from: RegionId,
        term: Term,
        count: RecountReport,
        out: &mut CoordinatorOutbox,
    ) {
        let Some(count) = self.admit((from, term), count, out) else { return };
        if let Some(recount) = &mut self.recount {
            recount.counts.insert(from, count);
        }
        self.decide_if_all_answered(now, out);
    }

    /// Handles a part of an answer and asks for the next one. The answer counts only when it is
    /// complete: otherwise the coordinator would not know which regions may still host the shards
    /// of the missing parts. Makes the decisions if it was the last part of the last node.
    ///
    /// Counts an implausible part as `strange` and ignores it, before anything else is checked.
    /// Then ignores a part that [`admit`](Self::admit) rejects, that is not the next one, or of an
    /// answer that is complete.
    pub(super) fn counted_part(
        &mut self,
        now: Now,
        (from, term): (RegionId, Term),
        part: RecountPart,
        out: &mut CoordinatorOutbox,
    ) {
        if !part.is_sound() {
            self.stats.strange += 1;
            return;
        }
        let RecountPart { first, next, count } = part;
        let Some(count) = self.admit((from, term), count, out) else { return };
        let origin = self.installed.origin().unwrap_or_default();
        let Some(recount) = &mut self.recount else { return };
        let parts = recount.parts.entry(from).or_default();
        if first != parts.next || recount.counts.contains_key(&from) {
            return; // a duplicate: its node was asked twice
        }
        parts.count.hosted.extend(count.hosted);
        parts.count.told.extend(count.told);
        if let Some(next_first) =
            next.filter(|_| !self.fault_injection.has(ShardingFault::PartCountsAsAll))
        {
            (parts.next, parts.moves) = (next_first, true);
            send(from.replica(), ToRegion::Recount { term, origin, first: next }, out);
            return;
        }
        let count = std::mem::take(&mut parts.count);
        recount.counts.insert(from, count);
        self.decide_if_all_answered(now, out);
    }

    /// Returns the [`credible`](Self::credible) content of an answer; the rest is counted even if
    /// the answer is rejected. `None` if no nodes are being asked, the answer names another term,
    /// or its node is not asked. Checked last: a reported term, of a shard or the highest one, that
    /// is not below this coordinator's makes it step down, also with `None`.
    fn admit(
        &mut self,
        (from, term): (RegionId, Term),
        count: RecountReport,
        out: &mut CoordinatorOutbox,
    ) -> Option<RecountReport> {
        let count = self.credible(count);
        let asks = self.recounts_at().is_some() && term == self.term;
        if !asks || !self.asked().any(|id| id == from) {
            return None; // an answer to another request, or of a node that is not asked
        }
        let hosted = count.hosted.iter().map(|(_, at)| *at);
        let told = count.told.iter().map(|route| route.generation);
        let terms = hosted.chain(told).chain([count.highest]).map(|at| at.term);
        let highest = terms.max().unwrap_or_default();
        if highest >= self.term {
            self.step_down(highest, "a region knows a higher term", out);
            return None;
        }
        Some(count)
    }

    /// Drops rows whose generation no coordinator can have decided, [`Generation::NEVER`] included,
    /// so that a faulty peer's claim is not stored. Counts each dropped row as `strange`. An
    /// impossible `highest` becomes `NEVER` and is not counted. Shards and homes are not checked.
    fn credible(&mut self, count: RecountReport) -> RecountReport {
        let RecountReport { mut hosted, mut told, highest } = count;
        let rows = hosted.len() + told.len();
        let can_be = |at: Generation| at.term.is_valid();
        hosted.retain(|(_, at)| can_be(*at));
        told.retain(|route| can_be(route.generation));
        self.stats.strange += (rows - hosted.len() - told.len()) as u64;
        let highest = Some(highest).filter(|at| can_be(*at)).unwrap_or_default();
        RecountReport { hosted, told, highest }
    }

    /// The members changed while they were being asked: forgets the answers of removed ones and
    /// asks the silent ones again in this call, as [`ask_all`](Self::ask_all) does. If only removed
    /// ones were silent, makes the decisions. New members are not asked. Does nothing at another
    /// stage.
    pub(super) fn recount_members(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        if let Some(recount) = self.recount.as_mut().filter(|it| it.stage == RecountStage::Asking) {
            recount.counts.retain(|id, _| self.installed.members.contains(id));
            recount.parts.retain(|id, _| self.installed.members.contains(id));
            recount.ask_at = now.mono;
            self.ask_all(now, out);
            self.decide_if_all_answered(now, out);
        }
    }

    /// Once all have answered, makes every known decision again and begins to write the cells, as
    /// `Rewriting`; without any cell, the completion. Does nothing while one is silent. Must be
    /// called only while nodes are being asked: the stage is not checked.
    fn decide_if_all_answered(&mut self, now: Now, out: &mut CoordinatorOutbox) {
        if !self.silent().is_empty() {
            return;
        }
        let Some(recount) = &mut self.recount else { return };
        recount.stage = RecountStage::Deciding;
        let counts = std::mem::take(&mut recount.counts);
        self.pending_decisions.unread = self.merge_reports(now, &counts);
        self.phase = CoordinatorPhase::Rewriting;
        self.rewrite(now, out);
    }

    /// Merges the own records, which count first, and all reports, and returns a decision of this
    /// term for every shard that any of them names, all of one generation. Remembers each for
    /// `explain` and prepares its event `Decided`. Shards that the type does not have are dropped;
    /// each counts as `strange` once, however many nodes named it.
    fn merge_reports(
        &mut self,
        now: Now,
        counts: &BTreeMap<RegionId, RecountReport>,
    ) -> BTreeMap<ShardId, ShardHome> {
        let mut all: BTreeMap<ShardId, MergedShard> = BTreeMap::new();
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
        let why = reason("counted after a recovery by force");
        for (shard, merged) in all {
            let (from, home) = (merged.home, self.decide_again(merged));
            let wish = PlannedHome { to: home.region, why: why.clone(), since: now, runs: false };
            self.remember(now, shard, &home, from, wish);
            homes.insert(shard, home);
        }
        homes
    }

    /// Makes the newest decision again. If its home is no member, the region with the highest
    /// reported tenure becomes the home; without such a region the lost home stays, and the shard
    /// is unplaced when the coordinator becomes active. A decision without a home keeps none, even
    /// if a region runs the shard. All other regions that may host are listed, removed ones
    /// included.
    fn decide_again(&self, merged: MergedShard) -> ShardHome {
        let MergedShard { home, runs, mut after, epoch, .. } = merged;
        let is_lost = home.is_some_and(|home| !self.installed.members.contains(&home));
        let region = runs.filter(|_| is_lost).map(|(_, runs)| runs).or(home);
        after.retain(|id, _| Some(*id) != region);
        let (generation, epoch) = (self.next_generation(), epoch.max(self.installed.epoch));
        ShardHome { generation, region, after, epoch }
    }

    /// Makes decisions below the term of the last recount again, in `cells`, with a generation of
    /// this term and without changing their homes and predecessors. Remembers each, and prepares
    /// its event. They come from a survivor's replica only, or from a recount that did not
    /// complete, and regions ignore their generations. Nothing is done if there was no recount, or
    /// if one follows, because that makes all decisions again.
    pub(super) fn renew_older_decisions(
        &mut self,
        now: Now,
        cells: &mut BTreeMap<ShardId, ShardHome>,
    ) {
        if self.is_to_recount() {
            return;
        }
        let Some(RecountRecord { term, .. }) = self.recovered else { return };
        let older = cells.iter().filter(|(_, home)| home.generation.term < term);
        let why = reason("it was decided before a recovery by force");
        for shard in older.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            let Some(home) = cells.get_mut(&shard) else { continue };
            home.generation = self.next_generation();
            home.epoch = home.epoch.max(self.installed.epoch); // never lower than in the old cell
            let (from, home) = (home.region, home.clone());
            let wish = PlannedHome { to: from, why: why.clone(), since: now, runs: false };
            self.remember(now, shard, &home, from, wish);
        }
    }

    /// Asks the Replicator to write that the recount is completed, under a new stamp; counts a
    /// write. Called again for a repetition. Returns `false`, and does nothing, unless the recount
    /// has come that far.
    pub(super) fn write_recovered(&mut self, out: &mut CoordinatorOutbox) -> bool {
        let records = self.recount.as_ref().is_some_and(|it| it.stage == RecountStage::Recording);
        if records {
            self.seq += 1;
            self.stats.writes += 1;
            let (term, seq, within) = (self.term, self.seq, self.config.writing);
            let origin = self.installed.origin().unwrap_or_default();
            self.ask(
                StoreRequest::Recover { recovered: RecountRecord { origin, term }, seq, within },
                out,
            );
        }
        records
    }

    /// A quorum holds the completion: ends the recount and counts it. The caller then makes the
    /// coordinator active. Returns `false`, and does nothing, unless the completion was being
    /// written.
    pub(super) fn recovered(&mut self) -> bool {
        let recorded =
            self.recount.take_if(|recount| recount.stage == RecountStage::Recording).is_some();
        if recorded {
            let term = self.term;
            self.recovered = self.installed.origin().map(|origin| RecountRecord { origin, term });
            self.stats.recounts += 1;
        }
        recorded
    }
}
