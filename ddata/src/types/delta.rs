//! [`KeyState`] and [`Delta`]: the content of one key with its causal context, and a change of it.
//!
//! **Causal delta rule** (docs/protocol/replication.md#causal-delta-rule): a delta is merged only
//! if every dot that it overwrites is in the receiver's context or among the delta's own dots.
//! Otherwise nothing changes and the answer is [`Lack`]. So a dot in a context means that the whole
//! effect of its mutation has been applied, and equal contexts mean equal states. Without the rule
//! a majority read could miss an acknowledged removal.
//!
//! A *repair* is computed from the peer's context alone: it contains the live entries and the
//! removal records that the peer lacks. It is an ordinary delta, so it may be lost, duplicated or
//! reach another replica. Because it contains only news for that peer, it carries the peer's
//! context, and a receiver that has not seen all of it answers [`Lack`]. A state keeps only the
//! last [`RECORDS_MAX`] removal records; a peer that lacks an older one gets the full state.
//!
//! A leaf (a flag, a counter, a register) has no records: it is one place, and all dots that were
//! seen and are not live were overwritten. So its repair is the full state without the content that
//! the peer has. A receiver that has seen less than the peer would lose that content, and answers
//! [`Lack`] as well.

use std::sync::Arc;

use crate::causal::{CLOUD_RUNS_MAX, CausalContext, Dot, DotSet, Seen};
use crate::clock::HybridTimestamp;
use crate::encoded::{DecodeError, LayoutReader, LayoutWriter};
use crate::types::dot_store::{DotStore, Empty};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;

/// Maximum number of removal records of one state; beyond it the oldest is dropped. The Replicator
/// also bounds their sum over all keys.
pub const RECORDS_MAX: usize = 4_096;

/// Level up to which the dots of departed replicas are folded away. It is 0 as long as forgetting
/// is not implemented (docs/protocol/replication.md#forgetting-needs-a-decision). Every encoded
/// state contains it, from the first version on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoldLevel(pub u64);

/// One change or several joined ones: the new dots, the overwritten dots and the touched places.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    pub(crate) dots: DotSet, // of its mutations, also those overwritten since; empty: no change
    pub(crate) gone: DotSet, // overwritten; may include own dots
    pub(crate) store: AnyDotStore, // new entries and touched places
    pub(crate) after: Option<Box<CausalContext>>, // of a repair: the required context
}

/// Refusal of a delta or read that requires more than the receiver knows, or of a delta that would
/// fragment its context too much. It contains the receiver's context; the sender answers with a
/// repair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the delta builds on changes not seen here; nothing was changed, a repair is needed")]
pub struct Lack {
    /// Context of the replica that refused.
    pub context: CausalContext,
}

/// Result of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeResult {
    /// All changes were known already.
    Unchanged,
    /// Some changes were new.
    Changed,
}

/// The dots that one or more mutations overwrote, and their places, kept for repairs of peers.
#[derive(Debug, PartialEq)]
struct RemovalRecord {
    dots: DotSet,        // of the mutations that overwrote
    gone: DotSet,        // overwritten by them
    places: AnyDotStore, // where content was overwritten; without entries, perhaps swept
}

/// The content of one key with the context of all mutations that made it.
#[derive(Clone, Debug)]
pub struct KeyState {
    shape: Shape,
    pub(crate) store: AnyDotStore,
    context: CausalContext,
    fold: FoldLevel,
    records: imbl::Vector<Arc<RemovalRecord>>, // ≤ RECORDS_MAX, oldest first; empty for a leaf
    /// Dots of a map whose removal records are not kept, because they were dropped or the dots were
    /// learned from a full state; a part of the context. Ignored for a leaf: [`merge`](Self::merge)
    /// leaves it alone there, `decode` and `snapshot` fill it all the same.
    floor: CausalContext,
}

/// Compares shape, content and context. Records for repairs and the fold level are ignored.
impl PartialEq for KeyState {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.context == other.context && self.store == other.store
    }
}

/// A message that brings a peer up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// The peer has seen everything that this replica has seen, perhaps more.
    Nothing,
    /// The changes that the peer lacks, never an empty delta.
    Delta(Delta),
    /// The full state, because removal records that the peer lacks are not kept. Never for a leaf.
    Full,
}

/// Dots that a delta adds or overwrites. An entry under one of them is not added again when another
/// delta is joined.
struct TouchedDots<'a> {
    dots: &'a DotSet,
    gone: &'a DotSet,
}

impl Seen for TouchedDots<'_> {
    fn seen(&self, dot: Dot) -> bool {
        self.dots.seen(dot) || self.gone.seen(dot)
    }
}

impl Delta {
    /// Returns the dots that the delta adds to a context. Empty only if the delta contains no
    /// change.
    #[must_use]
    pub const fn dots(&self) -> &DotSet {
        &self.dots
    }

    /// Returns the dots that the delta overwrites. They may include its own dots.
    #[must_use]
    pub const fn overwritten(&self) -> &DotSet {
        &self.gone
    }

    /// Returns an estimate of the encoded size, in bytes; 0 for an empty delta. Only entries and
    /// places count, plus 16 for the rest; the overwritten dots and the required context of a
    /// repair may be far larger.
    pub(crate) fn size(&self) -> usize {
        if self.is_empty() { 0 } else { 16 + self.store.size() }
    }

    /// Whether the delta adds entries, in addition to overwriting; `false` for a pure removal.
    pub(crate) fn adds(&self) -> bool {
        let mut any = false;
        self.store.each_dot(&mut |_| any = true);
        any
    }

    /// Returns the highest time that a clock gave to a register write in it, for the receiver's
    /// clock. `None` without such a write: guarded writes, versions chosen by callers and times
    /// raised above a live one do not count.
    pub(crate) fn latest_time(&self) -> Option<HybridTimestamp> {
        self.store.latest_time()
    }

    /// Whether the delta contains no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dots.is_empty()
    }

    /// Joins another delta of the same key, earlier or later, into this one. Entries that one of
    /// them overwrites are dropped; their places stay listed. Joining a delta twice, or an empty
    /// one, changes nothing. If one of them is a repair, the result requires the repair's context;
    /// of two repairs, both contexts.
    ///
    /// # Panics
    /// If the shapes are stored differently.
    pub fn join(&mut self, other: &Self) {
        let mine = TouchedDots { dots: &self.dots, gone: &self.gone };
        self.store.join_delta(&mine, &other.store, &other.gone, Empty::Keep);
        self.dots.extend(&other.dots);
        self.gone.extend(&other.gone);
        if let Some(theirs) = &other.after {
            self.after.get_or_insert_default().merge(theirs);
        }
    }

    /// Encodes the delta: version, replicas (a table in the order of their first use), dots,
    /// overwritten dots, required context of a repair, touched places.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = LayoutWriter::new();
        self.dots.encode(&mut writer);
        self.gone.encode(&mut writer);
        writer.byte(u8::from(self.after.is_some()));
        if let Some(after) = &self.after {
            after.encode(&mut writer);
        }
        self.store.encode(&mut writer);
        writer.finish()
    }

    /// Decodes the result of [`encode`](Self::encode). The encoding contains no shape.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a delta of this shape. After all bytes are read:
    /// `Truncated` for a delta without dots, then `DotOutsideContext` if the dot of an entry is not
    /// among the delta's own dots or is overwritten by it. Bytes of another shape may decode all
    /// the same. Never panics, and allocates at most a small multiple of the input's size.
    pub fn decode(bytes: &[u8], shape: &Shape) -> Result<Self, DecodeError> {
        let mut reader = LayoutReader::new(bytes)?;
        let (dots, gone) = (DotSet::decode(&mut reader)?, DotSet::decode(&mut reader)?);
        let after = match reader.byte()? {
            0 => None,
            1 => Some(Box::new(CausalContext::decode(&mut reader)?)),
            found => return Err(DecodeError::Tag { what: "a delta", found }),
        };
        let store = AnyDotStore::decode(&mut reader, shape)?;
        reader.end()?;
        let delta = Self { dots, gone, store, after };
        if delta.dots.is_empty() {
            return Err(DecodeError::Truncated);
        }
        let mut is_covered = true;
        delta
            .store
            .each_dot(&mut |dot| is_covered &= delta.dots.seen(dot) && !delta.gone.seen(dot));
        if is_covered { Ok(delta) } else { Err(DecodeError::DotOutsideContext) }
    }
}

impl KeyState {
    /// Creates an empty value that was never written.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            store: AnyDotStore::empty(&shape),
            shape,
            context: CausalContext::new(),
            fold: FoldLevel::default(),
            records: imbl::Vector::new(),
            floor: CausalContext::new(),
        }
    }

    /// Returns the kind of data, which never changes.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the context: the dots of all changes seen. It serves as digest, version and
    /// acknowledgement.
    #[must_use]
    pub const fn context(&self) -> &CausalContext {
        &self.context
    }

    /// Whether nothing is live: the value was never written, was deleted or was emptied. A counter
    /// that was written and is 0 is live.
    #[must_use]
    pub fn is_bottom(&self) -> bool {
        self.store.is_bottom()
    }

    /// Merges a delta, or returns the context that shows what is missing.
    /// [`MergeResult::Unchanged`] means that all its dots were seen, and that nothing was changed.
    ///
    /// # Errors
    /// [`Lack`] if the delta overwrites dots that are neither seen here nor its own (causal delta
    /// rule), if it is a repair whose required context this state does not include, or if the set
    /// of non-contiguous dots would be longer than [`CLOUD_RUNS_MAX`] runs after it. Nothing was
    /// changed. The last two also refuse a delta whose dots were all seen. The bound does not apply
    /// to a repair.
    ///
    /// # Panics
    /// If the delta is new and was made for a shape that is stored differently.
    pub fn apply(&mut self, delta: &Delta) -> Result<MergeResult, Lack> {
        self.check(delta)?;
        Ok(self.apply_unchecked(delta))
    }

    /// Checks whether [`apply`](Self::apply) would accept a delta, known ones included. Returns the
    /// same error for each reason.
    pub(crate) fn check(&self, delta: &Delta) -> Result<(), Lack> {
        let unseen = self.context.unseen(&delta.gone);
        let is_misdirected =
            delta.after.as_ref().is_some_and(|after| !self.context.includes(after));
        if !delta.dots.includes(&unseen) || is_misdirected || self.cloud_overflows(delta) {
            return Err(Lack { context: self.context.clone() });
        }
        Ok(())
    }

    /// Merges a delta with the fault [`NoRuleR`](crate::fault_injection::ReplicatorFault::NoRuleR),
    /// for suites that must catch it.
    #[cfg(feature = "canaries")]
    pub fn apply_without_rule_r(&mut self, delta: &Delta) -> MergeResult {
        self.apply_unchecked(delta)
    }

    /// Merges a delta without [`check`](Self::check). Callers have called it or plant a fault. Does
    /// nothing if all dots of the delta were seen. Records what the delta overwrites in a map, for
    /// repairs.
    ///
    /// The context takes the delta's own dots only, neither the overwritten ones nor the required
    /// context of a repair.
    pub(crate) fn apply_unchecked(&mut self, delta: &Delta) -> MergeResult {
        if self.context.includes_all(&delta.dots) {
            return MergeResult::Unchanged;
        }
        if let Some(places) = self.overwritten_by(delta) {
            self.record_removal(delta, places);
        }
        self.store.join_delta(&self.context, &delta.store, &delta.gone, Empty::Drop);
        self.context.extend(&delta.dots);
        MergeResult::Changed
    }

    /// Commits a local mutation whose content is already in `store`, without any check. Records
    /// what it overwrites in a map, for repairs; the recorded place of a clear or a delete may be a
    /// swept map. Content that the mutation itself wrote and overwrote needs no record. `delta`
    /// must contain the same mutation, built on exactly this state.
    pub(crate) fn commit(&mut self, store: AnyDotStore, delta: &Delta) {
        if !delta.gone.is_empty()
            && !self.store.is_leaf()
            && let Some(places) = self.store.places(&delta.store, &delta.gone)
        {
            self.record_removal(delta, places);
        }
        self.store = store;
        self.context.extend(&delta.dots);
    }

    /// Merges the full state of another replica. Returns [`MergeResult::Unchanged`] if all its
    /// changes were seen.
    ///
    /// Takes over no removal records and keeps its own. So a peer that lacks a change learned here,
    /// of a map, gets the full state instead of a repair. No bound applies to the non-contiguous
    /// dots.
    ///
    /// # Panics
    /// If the shapes differ, also if `other` was never written.
    pub fn merge(&mut self, other: &Self) -> MergeResult {
        assert_eq!(self.shape, other.shape, "shapes are compared before states are merged");
        if self.context.includes(&other.context) {
            return MergeResult::Unchanged;
        }
        let learned = other.context.minus(&self.context);
        self.store.join(&self.context, &other.store, &other.context);
        self.context.merge(&other.context);
        self.fold = self.fold.max(other.fold);
        if !self.store.is_leaf() {
            self.floor.extend(&learned); // their overwritten dots are not known one by one
        }
        MergeResult::Changed
    }

    /// Returns the repair for a replica with the context `peer`. Scans the live entries and, for a
    /// leaf, the context. The delta requires all of `peer`, also dots that this state has not seen.
    ///
    /// A map gives [`Repair::Full`] if the peer lacks a change whose removal record was dropped, or
    /// one that this replica learned from a full state or decoded, whether it removed anything or
    /// not.
    #[must_use]
    pub fn repair(&self, peer: &CausalContext) -> Repair {
        let dots = self.context.minus(peer);
        if dots.is_empty() {
            return Repair::Nothing;
        }
        let is_leaf = self.store.is_leaf();
        if !is_leaf && !peer.includes(&self.floor) {
            return Repair::Full;
        }
        let mut store = self.store.only(&dots);
        let mut gone = if is_leaf { self.overwritten() } else { DotSet::new() };
        for record in self.records.iter().filter(|record| record.dots.intersects(&dots)) {
            store.join_delta(&dots, &record.places, &DotSet::new(), Empty::Keep);
            gone.extend(&record.gone);
        }
        Repair::Delta(Delta { dots, gone, store, after: Some(Box::new(peer.clone())) })
    }

    /// Returns all dots that were seen and are not live: overwritten ones, and those that added
    /// nothing, such as the dots of removals. Scans the whole state. Once folded dots leave the
    /// context, replicas with different fold levels will need the full state instead.
    fn overwritten(&self) -> DotSet {
        let mut live = DotSet::new();
        self.store.each_dot(&mut |dot| live.insert(dot));
        self.context.except(live)
    }

    /// Returns the highest time that a clock gave to a live register write, for the clock; `None`
    /// without one, as for a [`Delta`].
    pub(crate) fn latest_time(&self) -> Option<HybridTimestamp> {
        self.store.latest_time()
    }

    /// Returns content and context without the records for repairs, for readers. It equals the
    /// state. A repair from it, for a peer that lacks any dot, is the full state, except for a
    /// leaf.
    #[must_use]
    pub(crate) fn snapshot(&self) -> Self {
        Self {
            shape: self.shape.clone(),
            store: self.store.clone(),
            context: self.context.clone(),
            fold: self.fold,
            records: imbl::Vector::new(),
            floor: self.context.clone(),
        }
    }

    /// Merge of a planted fault: a register that holds a dot of `arrived` keeps only those,
    /// whatever their stamps. Does nothing to other kinds, maps of registers included.
    pub(crate) fn keep_arrived(&mut self, arrived: &DotSet) {
        self.store.keep_arrived(arrived);
    }

    /// Number of removal records kept.
    #[must_use]
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// Drops the oldest removal record. A peer that lacks any of its dots will get the full state.
    /// Does nothing without a record. Content and context are unchanged.
    pub fn forget_record(&mut self) {
        if let Some(oldest) = self.records.pop_front() {
            self.floor.extend(&oldest.dots);
        }
    }

    /// Returns the places at which a remote delta overwrites entries, for its removal record.
    /// `None` if it overwrites only seen dots and none of them is live here, and always for a leaf.
    ///
    /// An overwritten dot that was seen and is not live here was overwritten by another mutation,
    /// which has its own record or is below the floor. A dot that arrives together with its
    /// overwriter was never live here, but may be live at a peer, so that peer must look at all
    /// places: the result is then a swept map without keys, even if nothing is live here.
    fn overwritten_by(&self, delta: &Delta) -> Option<AnyDotStore> {
        if delta.gone.is_empty() || self.store.is_leaf() {
            return None;
        }
        if self.context.includes_all(&delta.gone) {
            return self.store.places(&delta.store, &delta.gone);
        }
        let mut everywhere = self.store.empty_like();
        everywhere.sweep();
        Some(everywhere)
    }

    /// Records what a delta is about to overwrite, for repairs of peers: all its dots and
    /// overwritten dots, one record even for a joined delta. Beyond [`RECORDS_MAX`] the oldest
    /// record is [forgotten](Self::forget_record).
    fn record_removal(&mut self, delta: &Delta, places: AnyDotStore) {
        let (dots, gone) = (delta.dots.clone(), delta.gone.clone());
        self.records.push_back(Arc::new(RemovalRecord { dots, gone, places }));
        if self.records.len() > RECORDS_MAX {
            self.forget_record();
        }
    }

    /// Whether the cloud would be longer than [`CLOUD_RUNS_MAX`] runs after the delta; always
    /// `false` for a repair. If merges have made the cloud longer already, every delta that does
    /// not close enough gaps overflows, also a known one. Copies the context only if the sum of
    /// both numbers of runs exceeds the bound.
    fn cloud_overflows(&self, delta: &Delta) -> bool {
        if delta.after.is_some() {
            return false;
        }
        let cloud = self.context.cloud().runs().len() + delta.dots.runs().len();
        if cloud <= CLOUD_RUNS_MAX {
            return false;
        }
        let mut after = self.context.clone();
        after.extend(&delta.dots);
        after.cloud().runs().len() > CLOUD_RUNS_MAX
    }

    /// Encodes the state: version, replicas (a table in the order of their first use), context,
    /// fold level, content. The shape and the records for repairs are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = LayoutWriter::new();
        self.context.encode(&mut writer);
        writer.varint(self.fold.0);
        self.store.encode(&mut writer);
        writer.finish()
    }

    /// Decodes the result of [`encode`](Self::encode). The result has no removal records, so a
    /// repair of a map from it, for a peer that lacks any dot, is the full state.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a state of this shape. After all bytes are read:
    /// `DotOutsideContext` for an entry whose dot is not in the context, then `NotCanonical` for a
    /// map with empty or swept places. Bytes of another shape may decode all the same. Never
    /// panics, and allocates at most a small multiple of the input's size.
    pub fn decode(bytes: &[u8], shape: &Shape) -> Result<Self, DecodeError> {
        let mut reader = LayoutReader::new(bytes)?;
        let context = CausalContext::decode(&mut reader)?;
        let fold = FoldLevel(reader.varint()?);
        let store = AnyDotStore::decode(&mut reader, shape)?;
        reader.end()?;
        let mut is_covered = true;
        store.each_dot(&mut |dot| is_covered &= context.seen(dot));
        if !is_covered {
            return Err(DecodeError::DotOutsideContext);
        }
        if has_empty_places(&store) {
            return Err(DecodeError::NotCanonical);
        }
        let floor = context.clone();
        Ok(Self { shape: shape.clone(), store, context, fold, records: imbl::Vector::new(), floor })
    }

    /// Drops every live entry that the version vector of the `crdts` crate covers; for
    /// `ResetRemove`. Keys that become empty are removed. The context stays, also without the dots
    /// of `clock` that it lacks, and no removal is recorded.
    pub(crate) fn reset(&mut self, clock: &crdts::VClock<crate::id::ReplicaId>) {
        self.store.forget(&CausalContext::from(clock.clone()));
    }

    /// Returns the dot of `replica`'s next mutation of this key, and does not take it: the same
    /// again until the state changes. Its counter may exceed the highest valid one, which the
    /// caller must check.
    pub(crate) fn next_dot(&self, replica: crate::id::ReplicaId) -> Dot {
        self.context.next_dot(replica)
    }
}

/// Whether a decoded state contains places without content or swept maps, at any depth, which only
/// deltas may have. `false` for a leaf, which may be empty.
fn has_empty_places(store: &AnyDotStore) -> bool {
    match store {
        AnyDotStore::Set(map) => map.sweeps() || map.iter().any(|(_, inner)| inner.is_bottom()),
        AnyDotStore::Registers(map) => {
            map.sweeps() || map.iter().any(|(_, inner)| inner.is_bottom())
        }
        AnyDotStore::Map(map) => {
            map.sweeps()
                || map.iter().any(|(_, inner)| inner.is_bottom() || has_empty_places(inner))
        }
        _ => false,
    }
}
