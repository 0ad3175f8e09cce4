//! The state of requests that wait until other replicas hold something: updates, deletes,
//! write-backs of reads, recovery writes of fences.
//!
//! A request is complete when enough replicas hold all its entries. Only acknowledgements of the
//! epoch that the request counts in are counted; when another epoch is installed, counting starts
//! anew. Otherwise two quorums of different configurations, which need not intersect, could be
//! mixed (docs/protocol/replication.md#acknowledgements-count-in-one-epoch).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use super::epoch::EpochId;
use super::quorum::{Answers, Level, Need};
use super::request::{Guard, MISSING_MAX, ReplicatorReply, RequestId, Tally};
use crate::clock::Instant;
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::key::Group;
use crate::types::Term;

/// The purpose of a request, and its reply once enough replicas hold its entries. Only a `Change`
/// can be refused for lack of a guard.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum WritePurpose {
    /// An update or delete requested by the program.
    Change(ReplicatorReply),
    /// The write-back of a read whose answers differed.
    ReadRepair(ReplicatorReply),
    /// The recovery write of a fence.
    Recovery(ReplicatorReply),
}

/// A refusal because a higher term was promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fenced {
    /// The higher term that was promised.
    pub(super) by: Term,
    /// Whether the replica may have accepted the write before; then it may be on a majority.
    pub(super) held: bool,
}

/// An open request and its acknowledgements so far. It ends when [`Writes`] removes it; whether it
/// is complete is checked only by `check_write` of the Replicator.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) purpose: WritePurpose,
    /// The group and term of a guarded write; a higher promise of this replica ends it.
    pub(super) guard: Option<Guard>,
    pub(super) level: Level,
    pub(super) need: Need,
    pub(super) epoch: EpochId,
    pub(super) deadline: Instant,
    /// Its entries as (push, index in the push). Of a change filled when the batch ends, and empty
    /// if there were no peers then.
    pub(super) pushes: SmallVec<[(u64, u32); 1]>, // ≤ entries
    /// The number of entries that a replica must hold to be counted.
    entries: usize,
    held: BTreeMap<ReplicaId, BTreeSet<(u64, u32)>>, // with several entries; ≤ replicas × entries
    counted: SmallVec<[ReplicaId; 2]>, // replicas that hold all entries; ≤ replicas, each once
    failed: BTreeSet<ReplicaId>,       // replicas whose store failed, perhaps this one
    fenced: BTreeMap<ReplicaId, Fenced>, // the latest refusal of each replica
    /// The guarded group of the key, if a replica refused the request because of it; of several
    /// refusals the latest.
    pub(super) guarded: Option<Group>,
    /// Whether this replica holds it; of durable keys: on disk. It counts only while this replica
    /// is eligible.
    pub(super) here: bool,
}

/// The replicas whose answers count in the installed configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Electors<'a> {
    pub(super) me: ReplicaId,
    pub(super) eligible: bool, // whether this replica's own answer counts
    /// Members of the configuration that have not announced their stop, perhaps this replica too.
    pub(super) members: &'a BTreeSet<ReplicaId>,
    pub(super) voters: &'a [ReplicaId],
}

impl Electors<'_> {
    /// Counts members and voters among the replicas that have answered, each of which must be given
    /// once. A replica that is both counts in both numbers, one that is neither in none.
    pub(super) fn count<'a>(&self, answered: impl Iterator<Item = &'a ReplicaId>) -> Answers {
        let mut answers = Answers::default();
        for id in answered {
            answers.members += usize::from(self.members.contains(id));
            answers.voters += usize::from(self.voters.contains(id));
        }
        answers
    }

    /// The members that count, then the voters that have announced their stop. These still answer,
    /// and count as voters.
    pub(super) fn all(&self) -> impl Iterator<Item = &ReplicaId> {
        let members = self.members;
        members.iter().chain(self.voters.iter().filter(move |id| !members.contains(id)))
    }

    /// At most [`MISSING_MAX`] members and voters that have not answered, members first. This
    /// replica is among them if it has not, or is not eligible.
    pub(super) fn missing(&self, answered: &BTreeSet<ReplicaId>) -> Vec<ReplicaId> {
        let missing = self.all().filter(|id| !answered.contains(id));
        missing.take(MISSING_MAX).copied().collect()
    }
}

impl Write {
    /// A request that no other replica has acknowledged yet, without a guard and pushes, and held
    /// here: the caller sets `guard`, and clears `here` while its own store is not durable.
    /// `entries` is the number of entries that it will push; with 0 no other replica ever counts.
    pub(super) fn new(
        purpose: WritePurpose,
        level: Level,
        need: Need,
        epoch: EpochId,
        deadline: Instant,
        entries: usize,
    ) -> Self {
        Self {
            purpose,
            guard: None,
            level,
            need,
            epoch,
            deadline,
            pushes: smallvec![],
            entries,
            held: BTreeMap::new(),
            counted: smallvec![],
            failed: BTreeSet::new(),
            fenced: BTreeMap::new(),
            guarded: None,
            here: true,
        }
    }

    /// Records that a replica holds all entries; a second time changes nothing.
    fn count(&mut self, from: ReplicaId) {
        if !self.counted.contains(&from) {
            self.counted.push(from);
        }
    }

    /// The replicas that hold all entries, this one included if it holds them and is eligible.
    /// Replicas that are no longer members or voters stay among them.
    fn answered(&self, electors: &Electors<'_>) -> BTreeSet<ReplicaId> {
        let mut answered: BTreeSet<ReplicaId> = self.counted.iter().copied().collect();
        if self.here && electors.eligible {
            answered.insert(electors.me);
        }
        answered
    }

    /// Whether enough replicas hold all entries, this one included if it holds them and is
    /// eligible. Only members and voters of `electors` count. Refusals and failed stores are not
    /// looked at.
    pub(super) fn is_met(&self, electors: &Electors<'_>) -> bool {
        if self.counted.len() + 1 < self.need.answers() {
            return false; // nearly every acknowledgement but the last: skip the count
        }
        let me = &electors.me;
        let here = self.here && electors.eligible && !self.counted.contains(me);
        self.need.is_met(electors.count(self.counted.iter().chain(here.then_some(me))))
    }

    /// The counts for the error of a timeout. Replicas that hold only some of the entries count as
    /// missing. `answered` may reach `needed` although the request is not complete: it also counts
    /// replicas that are no longer members or voters, and `needed` is the higher of two needs.
    pub(super) fn tally(&self, electors: &Electors<'_>) -> Tally {
        let answered = self.answered(electors);
        let missing = electors.missing(&answered);
        Tally { answered: answered.len(), needed: self.need.answers(), missing }
    }

    /// The number of all replicas whose store failed, if the level cannot be reached without them;
    /// `None` while it can, or if no store failed. All other members and voters count as reachable,
    /// this replica also if it is not eligible. A replica whose store failed counts as unreachable
    /// even if it holds the entries now, so [`is_met`](Self::is_met) must be asked first.
    pub(super) fn store_failed(&self, electors: &Electors<'_>) -> Option<usize> {
        if self.failed.is_empty() {
            return None;
        }
        let rest = electors.all().filter(|id| !self.failed.contains(id));
        let reachable = self.need.is_met(electors.count(rest));
        (!reachable).then_some(self.failed.len())
    }

    /// The highest term for which it was refused, and whether so many voters refused it without
    /// ever having held it that no majority can have accepted it
    /// (docs/protocol/replication.md#fenced-and-timeout-are-indeterminate). `None` if no replica
    /// refused it; one refusal is enough, also that of a replica that does not vote.
    pub(super) fn fenced(&self, electors: &Electors<'_>) -> Option<(Term, bool)> {
        let current = self.fenced.values().map(|fenced| fenced.by).max()?;
        let never = |id: &&ReplicaId| self.fenced.get(id).is_some_and(|fenced| !fenced.held);
        let never = electors.voters.iter().filter(never).count();
        Some((current, electors.voters.len() - never < electors.voters.len() / 2 + 1))
    }
}

/// The deadlines of writes in order, including some of writes that have ended. Most writes end long
/// before their deadline, roughly in the order in which they started, and most have the same
/// timeout. So an ended write is not searched for: its deadline is dropped when it comes first.
#[derive(Clone, Debug, Default)]
struct WriteDeadlines {
    all: VecDeque<(Instant, RequestId)>, // in order, first an open write; ≤ 2 × open + SLACK
    ended: usize,                        // number of `all` whose write has ended
}

/// Number of deadlines of ended writes that are kept before the list is compacted.
const SLACK: usize = 64;

impl WriteDeadlines {
    /// The earliest deadline of an open write; `None` if none is open.
    fn first(&self) -> Option<(Instant, RequestId)> {
        self.all.front().copied()
    }

    /// Adds the deadline of a new write at its place in the order; of equal deadlines the lower id
    /// comes first.
    fn insert(&mut self, at: Instant, id: RequestId) {
        if self.all.back().is_none_or(|last| *last <= (at, id)) {
            return self.all.push_back((at, id));
        }
        let place = self.all.partition_point(|other| *other <= (at, id));
        self.all.insert(place, (at, id));
    }

    /// Records that a write has ended, which `is_open` already tells. Must be called once for each
    /// write that ends: the first deadline would otherwise be that of an ended one. Deadlines of
    /// ended writes are dropped from the front, and then from the whole list if more than
    /// [`SLACK`] of them, and more than half of the list, are left.
    fn removed(&mut self, is_open: impl Fn(Instant, RequestId) -> bool) {
        self.ended += 1;
        while self.all.front().is_some_and(|(at, id)| !is_open(*at, *id)) {
            self.all.pop_front();
            self.ended = self.ended.saturating_sub(1);
        }
        if self.ended > SLACK && self.ended > self.all.len() / 2 {
            self.all.retain(|(at, id)| is_open(*at, *id));
            self.ended = 0;
        }
    }
}

/// All open requests of this kind, with their deadlines.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes {
    /// Boxed, because the entries are large and the map moves them.
    open: FxHashMap<RequestId, Box<Write>>, // ≤ max_pending_requests, with reads and fences
    deadlines: WriteDeadlines,
}

impl Writes {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Opens a request. Its id must not be open, and its deadline must not change later. Neither
    /// this nor the bound on open requests is checked here.
    pub(super) fn insert(&mut self, id: RequestId, write: Write) {
        self.deadlines.insert(write.deadline, id);
        self.open.insert(id, Box::new(write));
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Write> {
        self.open.get(&id).map(|write| &**write)
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> Option<&mut Write> {
        self.open.get_mut(&id).map(|write| &mut **write)
    }

    /// Ends a request and returns its state; `None` if it is not open. The caller replies, and
    /// takes the request out of its pushes.
    pub(super) fn remove(&mut self, id: RequestId) -> Option<Box<Write>> {
        let write = self.open.remove(&id)?;
        let is_open = |at, id| self.open.get(&id).is_some_and(|write| write.deadline == at);
        self.deadlines.removed(is_open);
        Some(write)
    }

    /// The ids of all open requests, oldest first.
    pub(super) fn ids(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.open.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| at)
    }

    /// Removes and returns the requests whose deadline has been reached, in the order of their
    /// deadlines. The caller replies, and takes them out of their pushes.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<(RequestId, Box<Write>)> {
        let mut due = Vec::new();
        while let Some((at, id)) = self.deadlines.first() {
            if at > now {
                break;
            }
            due.extend(self.remove(id).map(|write| (id, write)));
        }
        due
    }

    /// Records that a replica holds an entry, as acknowledged in `epoch`. The replica counts once
    /// it holds as many different entries as the request has; a repeated one changes nothing.
    /// Ignored if the request has ended or counts in another epoch, or if `epoch` is `None`. The
    /// caller checks whether the request is complete.
    pub(super) fn held(
        &mut self,
        id: RequestId,
        from: ReplicaId,
        entry: (u64, u32),
        epoch: Option<EpochId>,
        fault_injection: FaultInjection,
    ) {
        let Some(write) = self.open.get_mut(&id) else { return };
        if epoch != Some(write.epoch) && !fault_injection.has(ReplicatorFault::MixedEpochs) {
            return;
        }
        if write.entries == 1 {
            write.count(from);
            return;
        }
        let held = write.held.entry(from).or_default();
        held.insert(entry);
        if held.len() >= write.entries {
            write.count(from);
        }
    }

    /// Records that the store of a replica (perhaps this one) failed, in whatever epoch, until
    /// [`restart`](Self::restart). Ignored if the request has ended. The caller checks the request.
    pub(super) fn store_failed(&mut self, id: RequestId, from: ReplicaId) {
        if let Some(write) = self.open.get_mut(&id) {
            write.failed.insert(from);
        }
    }

    /// Records that a replica refused the write for a higher term, in whatever epoch. Replaces an
    /// earlier refusal of the same replica; acknowledgements of it stay counted. Ignored if the
    /// request has ended. The caller checks the request.
    pub(super) fn fenced(&mut self, id: RequestId, from: ReplicaId, fenced: Fenced) {
        if let Some(write) = self.open.get_mut(&id) {
            write.fenced.insert(from, fenced);
        }
    }

    /// Records that a replica refused an unguarded change, because `group` guards its key. Returns
    /// `false` and records nothing if the request is not a change but a write-back or a recovery
    /// write, which needs no guard; `true` if it has ended. The caller checks the request.
    pub(super) fn guarded(&mut self, id: RequestId, group: &Group) -> bool {
        let Some(write) = self.open.get_mut(&id) else { return true };
        let change = matches!(write.purpose, WritePurpose::Change(_));
        if change {
            write.guarded = Some(group.clone());
        }
        change
    }

    /// Records that a replica holds all entries of a request, for one whose answer the caller has
    /// checked, its epoch included. Ignored if the request has ended or the replica counts already.
    pub(super) fn holds_all(&mut self, id: RequestId, from: ReplicaId) {
        if let Some(write) = self.open.get_mut(&id) {
            write.count(from);
        }
    }

    /// Whether a request counts members (levels `Count` and `All`) and not only voters. Then its
    /// push goes to every peer. `false` if the request has ended.
    pub(super) fn wait_for_all(&self, id: RequestId) -> bool {
        let level = self.get(id).map(|write| write.level);
        matches!(level, Some(Level::Count(_) | Level::All))
    }

    /// Recomputes the need of every request: the members that count have changed within the epoch.
    /// Acknowledgements stay counted. A request for whose level `need` gives `None` keeps its need.
    /// The caller checks which requests are complete.
    pub(super) fn recompute_need(&mut self, need: impl Fn(Level) -> Option<Need>) {
        for write in self.open.values_mut() {
            write.need = need(write.level).unwrap_or(write.need);
        }
    }

    /// Restarts the count of every open request, which from now on counts in `epoch`:
    /// acknowledgements, refusals for a term and failed stores are forgotten, and the need is
    /// computed anew (kept if `need` gives `None`). Its pushes, its deadline, its own store and a
    /// refusal for lack of a guard stay. The caller pushes again, then checks the requests: some
    /// may be complete.
    pub(super) fn restart(
        &mut self,
        epoch: EpochId,
        need: impl Fn(Level) -> Option<Need>,
        fault_injection: FaultInjection,
    ) {
        for write in self.open.values_mut() {
            if fault_injection.has(ReplicatorFault::MixedEpochs) {
                continue;
            }
            write.need = need(write.level).unwrap_or(write.need);
            write.epoch = epoch;
            write.held.clear();
            write.counted.clear();
            write.fenced.clear();
            write.failed.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum DeadlineStep {
        Begin { deadline: u64 },
        End { nth: usize },
    }

    proptest! {
        /// Compares with a set of the deadlines of open writes.
        #[test]
        fn first_deadline_belongs_to_an_open_write(steps in proptest::collection::vec(
            prop_oneof![
                prop_oneof![Just(1_000), 0..2_000_u64]
                    .prop_map(|deadline| DeadlineStep::Begin { deadline }),
                (0..300_usize).prop_map(|nth| DeadlineStep::End { nth }),
            ],
            0..2_000,
        )) {
            let (mut deadlines, mut twin) = (WriteDeadlines::default(), BTreeSet::new());
            for (id, step) in (0..).zip(steps) {
                match step {
                    DeadlineStep::Begin { deadline } => {
                        // Deadlines mostly rise, as time goes on.
                        let at = (Instant::from_nanos(deadline + id), RequestId(id));
                        deadlines.insert(at.0, at.1);
                        twin.insert(at);
                    }
                    DeadlineStep::End { nth } if !twin.is_empty() => {
                        let ended = *twin.iter().nth(nth % twin.len()).expect("nth is in range");
                        twin.remove(&ended);
                        let open: BTreeSet<_> = twin.iter().map(|(_, id)| *id).collect();
                        deadlines.removed(|_, id| open.contains(&id));
                    }
                    DeadlineStep::End { .. } => {}
                }
                prop_assert_eq!(deadlines.first(), twin.first().copied());
                prop_assert!(deadlines.all.len() <= 2 * twin.len() + SLACK + 1);
            }
        }
    }
}
