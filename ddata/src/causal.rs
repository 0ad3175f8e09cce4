//! Dots, sets of dots and causal contexts: the changes of one key that a replica has seen.
//!
//! Every mutation, also a removal, takes the next [`Dot`] of its replica. A [`CausalContext`] is a
//! version vector plus a *cloud* of dots beyond gaps. It is canonical, so equal sets of dots are
//! equal contexts, and under the causal delta rule (see [`crate::types::delta`]) equal contexts
//! mean equal states. The module knows neither keys nor peers nor merge rules.
//!
//! Source: Almeida, Shoker, Baquero, *Delta State Replicated Data Types* (arXiv 1603.01529).

use std::collections::BTreeMap;
use std::sync::Arc;

use crdts::VClock;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::encoded::{DecodeError, LayoutReader, LayoutWriter};
use crate::id::ReplicaId;

/// A mutation: the `counter`-th that `actor` made to a key, counted from 1.
pub type Dot = crdts::Dot<ReplicaId>;

/// Sort key of a dot: by replica, then by counter.
pub(crate) const fn dot_key(dot: Dot) -> (ReplicaId, u64) {
    (dot.actor, dot.counter)
}

/// A set of dots whose effects are known.
pub trait Seen {
    /// Whether the effect of `dot` is known.
    fn seen(&self, dot: Dot) -> bool;
}

/// Consecutive dots of one replica, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DotRange {
    /// The replica of the dots.
    pub replica: ReplicaId,
    /// The first counter, at least 1.
    pub first: u64,
    /// The last counter, at least `first`.
    pub last: u64,
}

/// Up to this number, runs are inserted one by one, each of which moves all later runs.
const SINGLE_INSERTS_MAX: usize = 8;

/// A set of dots as sorted, disjoint, non-adjacent runs, so that equal sets have equal runs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DotSet {
    runs: SmallVec<[DotRange; 1]>,
}

impl Clone for DotSet {
    fn clone(&self) -> Self {
        Self { runs: SmallVec::from_slice(&self.runs) } // copies all runs at once
    }
}

impl DotSet {
    /// Creates the empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the runs, ordered by replica and counter.
    #[inline]
    #[must_use]
    pub fn runs(&self) -> &[DotRange] {
        &self.runs
    }

    /// Number of dots; saturates.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.runs.iter().fold(0, |sum: u64, run| sum.saturating_add(run.last - run.first + 1))
    }

    /// Adds one dot to the set. Panics if its counter is 0.
    pub fn insert(&mut self, dot: Dot) {
        self.insert_run(DotRange { replica: dot.actor, first: dot.counter, last: dot.counter });
    }

    /// Adds a run and joins it with adjacent and overlapping ones. Panics unless
    /// `1 ≤ first ≤ last`.
    pub fn insert_run(&mut self, run: DotRange) {
        assert!(run.first >= 1 && run.first <= run.last, "a run has a first and a last dot");
        let touches = |other: &DotRange| {
            other.replica == run.replica
                && other.first <= run.last.saturating_add(1)
                && run.first <= other.last.saturating_add(1)
        };
        let start = self.runs.partition_point(|other| {
            (other.replica, other.last.saturating_add(1)) < (run.replica, run.first)
        });
        let met = self.runs[start..].iter().take_while(|other| touches(other)).count();
        if met == 0 {
            self.runs.insert(start, run);
            return;
        }
        let first = self.runs[start].first.min(run.first);
        let last = self.runs[start + met - 1].last.max(run.last);
        self.runs[start] = DotRange { replica: run.replica, first, last };
        self.runs.drain(start + 1..start + met);
    }

    /// Adds every dot of `other`: run by run if there are few, otherwise in one pass over both.
    pub fn extend(&mut self, other: &Self) {
        if other.runs.len() <= SINGLE_INSERTS_MAX {
            for &run in &other.runs {
                self.insert_run(run);
            }
        } else {
            self.runs.extend_from_slice(&other.runs);
            self.join_runs();
        }
    }

    /// Sorts the runs and joins adjacent and overlapping ones.
    fn join_runs(&mut self) {
        self.runs.sort(); // the sort detects the two sorted halves and merges them
        self.runs.dedup_by(|later, run| {
            let meets = run.replica == later.replica && later.first <= run.last.saturating_add(1);
            if meets {
                run.last = run.last.max(later.last);
            }
            meets
        });
    }

    /// Whether the sets have a common dot.
    #[must_use]
    pub fn intersects(&self, other: &Self) -> bool {
        match (&*self.runs, &*other.runs) {
            ([one], _) => return other.intersects_run(*one),
            (_, [one]) => return self.intersects_run(*one),
            _ => {}
        }
        let (mut a, mut b) = (self.runs.iter().peekable(), other.runs.iter().peekable());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            if (x.replica, x.last) < (y.replica, y.first) {
                a.next();
            } else if (y.replica, y.last) < (x.replica, x.first) {
                b.next();
            } else {
                return true;
            }
        }
        false
    }

    /// Whether the set has a dot of `run`.
    fn intersects_run(&self, run: DotRange) -> bool {
        let at = self.runs.partition_point(|r| (r.replica, r.last) < (run.replica, run.first));
        self.runs.get(at).is_some_and(|r| r.replica == run.replica && r.first <= run.last)
    }

    /// Whether this set contains every dot of `other`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.runs.iter().all(|run| {
            let at =
                self.runs.partition_point(|r| (r.replica, r.first) <= (run.replica, run.first));
            at.checked_sub(1).and_then(|at| self.runs.get(at)).is_some_and(|covering| {
                covering.replica == run.replica && covering.last >= run.last
            })
        })
    }

    /// Iterates over all dots, ordered by replica and counter. Their number, [`len`](Self::len),
    /// may be large.
    pub fn iter(&self) -> impl Iterator<Item = Dot> + '_ {
        self.runs
            .iter()
            .flat_map(|run| (run.first..=run.last).map(|counter| Dot::new(run.replica, counter)))
    }

    /// Writes the number of runs, then each run: replica, first counter, length less one.
    pub(crate) fn encode(&self, writer: &mut LayoutWriter) {
        writer.length(self.runs.len());
        for run in &self.runs {
            writer.replica(run.replica);
            writer.varint(run.first);
            writer.varint(run.last - run.first);
        }
    }

    /// Reads a set that [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// `ImpossibleDot` for a counter of 0 or above [`COUNTER_MAX`], `NotCanonical` for runs that
    /// overlap, are adjacent or out of order.
    pub(crate) fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        let count = reader.length(3)?;
        let mut set = Self::new();
        for _ in 0..count {
            let replica = reader.replica()?;
            let first = reader.varint()?;
            let last = first.checked_add(reader.varint()?).ok_or(DecodeError::ImpossibleDot)?;
            if first == 0 || last > COUNTER_MAX {
                return Err(DecodeError::ImpossibleDot);
            }
            let before = set.runs.last().copied();
            if before.is_some_and(|b| (b.replica, b.last + 1) >= (replica, first)) {
                return Err(DecodeError::NotCanonical);
            }
            set.insert_run(DotRange { replica, first, last });
        }
        Ok(set)
    }
}

impl Seen for DotSet {
    /// Whether the set has `dot`; `false` for the counter 0.
    fn seen(&self, dot: Dot) -> bool {
        let after = self.runs.partition_point(|run| (run.replica, run.first) <= dot_key(dot));
        after
            .checked_sub(1)
            .and_then(|at| self.runs.get(at))
            .is_some_and(|run| run.replica == dot.actor && dot.counter <= run.last)
    }
}

/// Collects dots in any order; repeated ones count once. Their counters must be at least 1, which
/// is not checked: a dot with the counter 0 enters the set, unlike with [`insert`](DotSet::insert).
impl FromIterator<Dot> for DotSet {
    fn from_iter<I: IntoIterator<Item = Dot>>(dots: I) -> Self {
        let one = |dot: Dot| DotRange { replica: dot.actor, first: dot.counter, last: dot.counter };
        let mut set = Self { runs: dots.into_iter().map(one).collect() };
        set.join_runs();
        set
    }
}

/// The dots of one key that a replica has seen: a version vector and the dots beyond its gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CausalContext {
    vector: Option<Arc<VClock<ReplicaId>>>, // shared by copies; `None` if empty
    /// Runs beyond a gap: none touches the entry of its replica in the vector. Deltas fill it up to
    /// [`CLOUD_RUNS_MAX`] runs, merges to any number.
    cloud: DotSet,
}

/// Capacity that a decoded context reserves before it has read its entries.
const RESERVED_REPLICAS_MAX: usize = 64;

/// The empty vector, for contexts without one.
static EMPTY_VECTOR: VClock<ReplicaId> = VClock { dots: BTreeMap::new() };

/// Highest counter of a dot. A higher one from a peer is invalid.
pub const COUNTER_MAX: u64 = 1 << 62;

/// Maximum number of runs in a context's cloud; deltas that would exceed it are refused.
///
/// [`KeyState::apply`](crate::types::delta::KeyState::apply) refuses them. The methods of the
/// context have no bound.
///
/// Repairs and full states are not refused: they close more gaps than they open, and a replica that
/// refused one for its size would refuse the next one, too. Their runs are bounded by those of the
/// sender.
pub const CLOUD_RUNS_MAX: usize = 1_024;

impl CausalContext {
    /// Creates the empty context.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the part without gaps: for each replica, the highest counter up to which every dot
    /// was seen.
    #[inline]
    #[must_use]
    pub fn vector(&self) -> &VClock<ReplicaId> {
        self.vector.as_deref().unwrap_or(&EMPTY_VECTOR)
    }

    /// Returns the dots seen beyond a gap.
    #[inline]
    #[must_use]
    pub const fn cloud(&self) -> &DotSet {
        &self.cloud
    }

    /// Whether no dot was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vector.is_none() && self.cloud.is_empty()
    }

    /// Number of vector entries and cloud runs, an upper bound of the replicas with a dot.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.vector().dots.len() + self.cloud.runs.len()
    }

    /// Returns the dot of `replica`'s next mutation: one above its highest counter, also beyond
    /// gaps; 1 if no dot of it was seen. Its counter exceeds [`COUNTER_MAX`] if the replica has no
    /// dot left; the caller must then refuse the change, as
    /// [`KeyState::edit`](crate::types::delta::KeyState::edit) does.
    #[must_use]
    pub fn next_dot(&self, replica: ReplicaId) -> Dot {
        let beyond = self.cloud.runs.iter().filter(|run| run.replica == replica);
        let highest =
            beyond.map(|run| run.last).max().unwrap_or(0).max(self.vector().get(&replica));
        Dot::new(replica, highest + 1)
    }

    /// Adds one dot to the context. Does nothing if it was seen, or if its counter is 0.
    pub fn insert(&mut self, dot: Dot) {
        self.insert_run(DotRange { replica: dot.actor, first: dot.counter, last: dot.counter });
    }

    /// Adds every dot of a set.
    pub fn extend(&mut self, dots: &DotSet) {
        for &run in &dots.runs {
            self.insert_run(run);
        }
    }

    /// Adds every dot of `other`. An empty context becomes a copy that shares the vector; one that
    /// lacks nothing of `other`'s vector keeps the allocation that it has.
    pub fn merge(&mut self, other: &Self) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        let news: SmallVec<[DotRange; 8]> = other.ahead_of(self).collect();
        for run in news {
            self.insert_run(run);
        }
        self.extend(&other.cloud);
    }

    /// Whether every dot of `other` was seen.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.ahead_of(self).all(|run| self.includes_run(run)) && self.includes_all(&other.cloud)
    }

    /// Returns, as runs from the first dot on, the vector entries that are higher here than in
    /// `other`. The clouds are not looked at. One pass over both vectors; none if both share one
    /// allocation.
    fn ahead_of<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = DotRange> + 'a {
        let shared = match (&self.vector, &other.vector) {
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        let mine = if shared { EMPTY_VECTOR.dots.iter() } else { self.vector().dots.iter() };
        let mut theirs = other.vector().dots.iter().peekable();
        mine.filter_map(move |(&replica, &last)| {
            while theirs.next_if(|(theirs, _)| **theirs < replica).is_some() {}
            let same = theirs.next_if(|(theirs, _)| **theirs == replica);
            let known = same.map_or(0, |(_, known)| *known);
            (last > known).then_some(DotRange { replica, first: 1, last })
        })
    }

    /// Whether every dot of a set was seen.
    #[must_use]
    pub fn includes_all(&self, dots: &DotSet) -> bool {
        dots.runs.iter().all(|&run| self.includes_run(run))
    }

    /// Returns the dots that were seen here and not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> DotSet {
        let mut unseen = DotSet::new();
        for run in self.ahead_of(other) {
            other.collect_unseen(run, &mut unseen);
        }
        for &run in &self.cloud.runs {
            other.collect_unseen(run, &mut unseen);
        }
        unseen
    }

    /// Returns the dots seen here that are not in `dots`.
    pub(crate) fn except(&self, dots: DotSet) -> DotSet {
        self.minus(&Self { vector: None, cloud: dots })
    }

    /// Returns the dots of `dots` that were not seen.
    #[must_use]
    pub fn unseen(&self, dots: &DotSet) -> DotSet {
        let mut unseen = DotSet::new();
        for &run in &dots.runs {
            self.collect_unseen(run, &mut unseen);
        }
        unseen
    }

    /// Returns a 64-bit digest of the context, keyed by `seed`: the wrapping sum of the hashes of
    /// vector entries and cloud runs. Equal contexts have equal digests for one seed, and a peer
    /// that does not know the seed can't choose contexts that collide. The digest of the empty
    /// context is 0.
    #[must_use]
    pub fn digest(&self, seed: u64) -> u64 {
        let mut sum = 0_u64;
        let mut mix = |tag: u8, replica: ReplicaId, first: u64, last: u64| {
            let mut bytes = [0_u8; 25];
            bytes[0] = tag;
            bytes[1..9].copy_from_slice(&replica.get().to_le_bytes());
            bytes[9..17].copy_from_slice(&first.to_le_bytes());
            bytes[17..25].copy_from_slice(&last.to_le_bytes());
            sum = sum.wrapping_add(xxh3_64_with_seed(&bytes, seed));
        };
        for (&replica, &last) in &self.vector().dots {
            mix(0, replica, 1, last);
        }
        for run in &self.cloud.runs {
            mix(1, run.replica, run.first, run.last);
        }
        sum
    }

    /// Adds a run: beyond a gap to the cloud, otherwise to the vector, together with the cloud runs
    /// that the entry then reaches. Does nothing if the vector covers the run, or if `last` is 0.
    /// A change of a vector that copies share clones it first. Checks no bound of the cloud.
    fn insert_run(&mut self, run: DotRange) {
        let known = self.vector().get(&run.replica);
        if run.last <= known {
            return;
        }
        if run.first > known + 1 {
            self.cloud.insert_run(run);
            return;
        }
        let mut last = run.last;
        if !self.cloud.is_empty() {
            last = self.take_contiguous(run.replica, last);
        }
        Arc::make_mut(self.vector.get_or_insert_default()).dots.insert(run.replica, last);
    }

    /// Removes the runs of `replica` that a vector entry up to `last` covers or touches from the
    /// cloud. Returns the entry extended by them.
    fn take_contiguous(&mut self, replica: ReplicaId, mut last: u64) -> u64 {
        self.cloud.runs.retain(|run| {
            let met = run.replica == replica && run.first <= last.saturating_add(1);
            if met {
                last = last.max(run.last);
            }
            !met
        });
        last
    }

    /// Whether every dot of `run` was seen, in the vector, in the cloud or partly in each.
    fn includes_run(&self, run: DotRange) -> bool {
        let known = self.vector().get(&run.replica);
        run.last <= known || {
            let first = run.first.max(known + 1);
            let at =
                self.cloud.runs.partition_point(|r| (r.replica, r.first) <= (run.replica, first));
            at > 0 && {
                let covering = self.cloud.runs[at - 1];
                covering.replica == run.replica && covering.last >= run.last
            }
        }
    }

    /// Adds the dots of `run` that were not seen here to `unseen`, joined with its own runs.
    fn collect_unseen(&self, run: DotRange, unseen: &mut DotSet) {
        let mut first = run.first.max(self.vector().get(&run.replica).saturating_add(1));
        let from = self.cloud.runs.partition_point(|r| (r.replica, r.last) < (run.replica, first));
        for seen in self.cloud.runs[from..].iter().take_while(|r| r.replica == run.replica) {
            if seen.first > run.last {
                break;
            }
            if first < seen.first {
                unseen.insert_run(DotRange { replica: run.replica, first, last: seen.first - 1 });
            }
            first = first.max(seen.last.saturating_add(1));
        }
        if first <= run.last {
            unseen.insert_run(DotRange { replica: run.replica, first, last: run.last });
        }
    }

    /// Writes the entries of the vector, then the cloud.
    pub(crate) fn encode(&self, writer: &mut LayoutWriter) {
        writer.length(self.vector().dots.len());
        for (&replica, &last) in &self.vector().dots {
            writer.replica(replica);
            writer.varint(last);
        }
        self.cloud.encode(writer);
    }

    /// Reads a context that [`encode`](Self::encode) wrote. The number of cloud runs is not
    /// limited.
    ///
    /// # Errors
    /// In this order: for each entry of the vector `ImpossibleDot` for a counter of 0 or above
    /// [`COUNTER_MAX`], then `NotCanonical` if its replica is out of order or repeated; the errors
    /// of [`DotSet::decode`]; `NotCanonical` if a cloud run overlaps or touches the entry of its
    /// replica, or starts at 1. Also the errors of the reader.
    pub(crate) fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        let count = reader.length(2)?;
        let mut dots: Vec<(ReplicaId, u64)> = Vec::with_capacity(count.min(RESERVED_REPLICAS_MAX));
        for _ in 0..count {
            let (replica, last) = (reader.replica()?, reader.varint()?);
            if last == 0 || last > COUNTER_MAX {
                return Err(DecodeError::ImpossibleDot);
            }
            if dots.last().is_some_and(|(earlier, _)| *earlier >= replica) {
                return Err(DecodeError::NotCanonical);
            }
            dots.push((replica, last));
        }
        let vector = VClock { dots: dots.into_iter().collect() }; // sorted entries: built at once
        let cloud = DotSet::decode(reader)?;
        for run in &cloud.runs {
            if run.first <= vector.get(&run.replica) + 1 {
                return Err(DecodeError::NotCanonical);
            }
        }
        Ok(Self { cloud, ..Self::from(vector) })
    }
}

impl Seen for CausalContext {
    /// Whether `dot` was seen, in the vector or in the cloud; always `true` for the counter 0.
    fn seen(&self, dot: Dot) -> bool {
        self.vector().get(&dot.actor) >= dot.counter || self.cloud.seen(dot)
    }
}

/// Creates a context with this vector and an empty cloud. Counters must be at least 1, which is not
/// checked: an entry of 0 makes an unequal context with equal dots.
impl From<VClock<ReplicaId>> for CausalContext {
    fn from(vector: VClock<ReplicaId>) -> Self {
        let vector = (!vector.dots.is_empty()).then(|| Arc::new(vector));
        Self { vector, cloud: DotSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn dots() -> impl Strategy<Value = Vec<Dot>> {
        proptest::collection::vec((0_u64..3, 1_u64..12), 0..30).prop_map(|pairs| {
            pairs.into_iter().map(|(r, c)| Dot::new(ReplicaId::new(r), c)).collect()
        })
    }

    fn context(dots: &[Dot]) -> CausalContext {
        let mut context = CausalContext::new();
        for &dot in dots {
            context.insert(dot);
        }
        context
    }

    fn plain(dots: &[Dot]) -> BTreeSet<(ReplicaId, u64)> {
        dots.iter().map(|&d| dot_key(d)).collect()
    }

    proptest! {
        #[test]
        fn context_equals_a_plain_set_of_dots(a in dots(), b in dots()) {
            let (ca, cb) = (context(&a), context(&b));
            let (pa, pb) = (plain(&a), plain(&b));
            for replica in 0..3 {
                for counter in 1..14 {
                    let dot = Dot::new(ReplicaId::new(replica), counter);
                    prop_assert_eq!(ca.seen(dot), pa.contains(&dot_key(dot)));
                }
            }
            let minus: BTreeSet<_> = ca.minus(&cb).iter().map(dot_key).collect();
            prop_assert_eq!(minus, pa.difference(&pb).copied().collect::<BTreeSet<_>>());
            prop_assert_eq!(ca.includes(&cb), pa.is_superset(&pb));
            let set: DotSet = b.iter().copied().collect();
            prop_assert_eq!(ca.includes_all(&set), pa.is_superset(&pb));
            prop_assert_eq!(set.len(), pb.len() as u64);
            let own: DotSet = a.iter().copied().collect();
            let mut one_by_one = DotSet::new();
            a.iter().for_each(|dot| one_by_one.insert(*dot));
            prop_assert_eq!(&own, &one_by_one);
            let mut both = own.clone();
            both.extend(&set);
            prop_assert_eq!(both, a.iter().chain(&b).copied().collect());
            prop_assert_eq!(own.intersects(&set), !pa.is_disjoint(&pb));
            prop_assert_eq!(own.includes(&set), pa.is_superset(&pb));
        }

        #[test]
        fn context_is_independent_of_insertion_order(mut a in dots(), b in dots()) {
            let mut merged = context(&a);
            merged.merge(&context(&b));
            a.extend(b);
            a.reverse();
            let reversed = context(&a);
            prop_assert_eq!(merged.digest(7), reversed.digest(7));
            prop_assert_eq!(merged, reversed);
        }

        #[test]
        fn context_round_trips_through_its_encoding(a in dots()) {
            let before = context(&a);
            let mut writer = LayoutWriter::new();
            before.encode(&mut writer);
            let bytes = writer.finish();
            let mut reader = LayoutReader::new(&bytes).unwrap();
            prop_assert_eq!(CausalContext::decode(&mut reader).unwrap(), before);
            prop_assert!(reader.end().is_ok());
        }
    }

    #[test]
    fn runs_that_are_not_joined_are_refused() {
        let decode = |second: u64| {
            let mut writer = LayoutWriter::new();
            writer.length(2);
            for first in [2, second] {
                writer.replica(ReplicaId::new(7));
                writer.varint(first);
                writer.varint(1); // each run has two dots
            }
            let bytes = writer.finish();
            DotSet::decode(&mut LayoutReader::new(&bytes)?)
        };
        assert_eq!(decode(5).map(|set| set.runs().len()), Ok(2));
        assert_eq!(decode(4), Err(DecodeError::NotCanonical), "adjacent");
        assert_eq!(decode(3), Err(DecodeError::NotCanonical), "overlapping");
    }

    #[test]
    fn padded_number_is_refused() {
        let decode = |counter: &[u8]| {
            let start: &[u8] = &[1, 1, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0]; // a vector with replica 7
            let bytes = [start, counter, &[0]].concat();
            CausalContext::decode(&mut LayoutReader::new(&bytes)?)
        };
        assert!(decode(&[5]).is_ok() && decode(&[0x85, 1]).is_ok());
        assert_eq!(decode(&[0x85, 0]), Err(DecodeError::NotCanonical));
    }

    #[test]
    fn next_dot_is_above_dots_beyond_gaps() {
        let me = ReplicaId::new(1);
        let mut seen = CausalContext::new();
        seen.insert(Dot::new(me, 5));
        assert_eq!(seen.next_dot(me), Dot::new(me, 6));
    }
}
