//! [`State`] and [`Delta`]: one key's content with its causal context, and one change of it.
//!
//! **Rule R**: a delta is merged only if every dot it overwrites is in the receiver's context (or
//! among its own); otherwise nothing changes and the answer is [`Lack`]. So a dot in a context
//! means that the whole effect of its mutation has been applied, and equal contexts mean equal
//! states. Without the rule an acknowledged removal can be invisible to a later majority read
//! (spec/reference/crdts.md §6).
//!
//! A *repair* is computed from the peer's context alone: the live entries it lacks and the
//! removal records it lacks. It is a delta like any other, so it may be lost, doubled, or reach
//! somebody else; but it says only what is news to that peer, so it carries the peer's context,
//! and who has not seen all of that answers [`Lack`]. Only the last [`RECORDS_MAX`] removal
//! records are kept; a peer behind their floor gets the full state.
//!
//! Of a leaf (a flag, a counter, a register) nothing is recorded: it is one place, and what was seen
//! of it and does not live was overwritten. So its repair says all that its full state says, but
//! for the content that the peer has; who has seen less than the peer would lose that, and answers
//! [`Lack`] as well.

use std::sync::Arc;

use crate::causal::{CLOUD_RUNS_MAX, CausalContext, Dot, DotSet, Seen};
use crate::clock::HybridTimestamp;
use crate::encoded::{DecodeError, Reader, Writer};
use crate::types::dot_store::{DotStore, Empty};
use crate::types::shape::Shape;
use crate::types::store::Store;

/// Removal records that one state keeps. The Replicator bounds their sum over all keys as well.
pub const RECORDS_MAX: usize = 4_096;

/// The number up to which departed replicas' dots are folded away; 0 until forgetting exists
/// (spec/safety.md §7). It stands in every encoded state from the first version on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoldLevel(pub u64);

/// One change, or several joined: the dots it made, the dots it overwrote, the places it touched.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    pub(crate) dots: DotSet,
    pub(crate) gone: DotSet,
    pub(crate) store: Store,
    pub(crate) after: Option<Box<CausalContext>>, // of a repair: what its receiver must have seen
}

/// The receiver's context, for a delta or a read that needs more than it knows: the sender
/// answers with a repair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the delta builds on changes not seen here; nothing was changed, a repair is needed")]
pub struct Lack {
    /// What the receiver knows.
    pub context: CausalContext,
}

/// What a merge did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// Everything was known already.
    Unchanged,
    /// Something new came in.
    Changed,
}

/// What one or more mutations overwrote, and where: kept so that peers can be repaired.
#[derive(Debug, PartialEq)]
struct Record {
    dots: DotSet,
    gone: DotSet,
    places: Store,
}

/// One key's content, with the context of all mutations that made it.
#[derive(Clone, Debug)]
pub struct State {
    shape: Shape,
    pub(crate) store: Store,
    context: CausalContext,
    fold: FoldLevel,
    records: imbl::Vector<Arc<Record>>, // ≤ RECORDS_MAX, oldest first; none of a leaf
    floor: CausalContext,               // dots whose removal records are gone: ≤ the context
}

/// Equal content and equal knowledge; what a state remembers for repairs does not count.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.context == other.context && self.store == other.store
    }
}

/// What brings a peer up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// The peer knows everything.
    Nothing,
    /// What it lacks.
    Delta(Delta),
    /// Everything: the removal records it lacks are gone. Never of a leaf.
    Full,
}

/// What a delta has made known or overwritten.
struct Known<'a> {
    dots: &'a DotSet,
    gone: &'a DotSet,
}

impl Seen for Known<'_> {
    fn seen(&self, dot: Dot) -> bool {
        self.dots.seen(dot) || self.gone.seen(dot)
    }
}

impl Delta {
    /// The dots this delta makes known.
    #[must_use]
    pub const fn dots(&self) -> &DotSet {
        &self.dots
    }

    /// The dots it overwrites.
    #[must_use]
    pub const fn overwritten(&self) -> &DotSet {
        &self.gone
    }

    /// About its encoded size, in bytes.
    pub(crate) fn size(&self) -> usize {
        if self.is_empty() { 0 } else { 16 + self.store.size() }
    }

    /// Whether it brings anything, besides overwriting.
    pub(crate) fn adds(&self) -> bool {
        let mut any = false;
        self.store.each_dot(&mut |_| any = true);
        any
    }

    /// The highest time in the registers it writes, for the clock.
    pub(crate) fn latest_time(&self) -> Option<HybridTimestamp> {
        self.store.latest_time()
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dots.is_empty()
    }

    /// Joins another delta of the same key into this one, earlier or later. With a repair among
    /// them, the whole asks for what the repair asks for.
    pub fn join(&mut self, other: &Self) {
        let mine = Known { dots: &self.dots, gone: &self.gone };
        self.store.join_delta(&mine, &other.store, &other.gone, Empty::Keep);
        self.dots.extend(&other.dots);
        self.gone.extend(&other.gone);
        if let Some(theirs) = &other.after {
            self.after.get_or_insert_default().merge(theirs);
        }
    }

    /// The hand-laid layout: version, replicas, dots, overwritten dots, what a repair builds
    /// on, touched places.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.dots.encode(&mut writer);
        self.gone.encode(&mut writer);
        writer.byte(u8::from(self.after.is_some()));
        if let Some(after) = &self.after {
            after.encode(&mut writer);
        }
        self.store.encode(&mut writer);
        writer.finish()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no delta of this shape. Never panics, and allocates no
    /// more than a small multiple of the input.
    pub fn decode(bytes: &[u8], shape: &Shape) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let (dots, gone) = (DotSet::decode(&mut reader)?, DotSet::decode(&mut reader)?);
        let after = match reader.byte()? {
            0 => None,
            1 => Some(Box::new(CausalContext::decode(&mut reader)?)),
            found => return Err(DecodeError::Tag { what: "a delta", found }),
        };
        let store = Store::decode(&mut reader, shape)?;
        reader.end()?;
        let delta = Self { dots, gone, store, after };
        if delta.dots.is_empty() {
            return Err(DecodeError::Truncated);
        }
        let mut inside = true;
        delta.store.each_dot(&mut |dot| inside &= delta.dots.seen(dot) && !delta.gone.seen(dot));
        if inside { Ok(delta) } else { Err(DecodeError::DotOutsideContext) }
    }
}

impl State {
    /// An empty value nobody has written.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self {
            store: Store::empty(&shape),
            shape,
            context: CausalContext::new(),
            fold: FoldLevel::default(),
            records: imbl::Vector::new(),
            floor: CausalContext::new(),
        }
    }

    /// What kind of data this is.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// What has been seen of this key: digest, version and acknowledgement in one.
    #[must_use]
    pub const fn context(&self) -> &CausalContext {
        &self.context
    }

    /// Whether nothing is live: never written, deleted, or emptied.
    #[must_use]
    pub fn is_bottom(&self) -> bool {
        self.store.is_bottom()
    }

    /// Merges a delta, or says what is lacking.
    ///
    /// # Errors
    /// [`Lack`] if the delta overwrites dots never seen here (rule R), is a repair for somebody who
    /// has seen more, or would make the cloud of stray dots too large. Nothing was changed.
    pub fn apply(&mut self, delta: &Delta) -> Result<Merged, Lack> {
        let unseen = self.context.unseen(&delta.gone);
        let astray = delta.after.as_ref().is_some_and(|after| !self.context.includes(after));
        if !delta.dots.includes(&unseen) || astray || self.cloud_overflows(delta) {
            return Err(Lack { context: self.context.clone() });
        }
        Ok(self.apply_unchecked(delta))
    }

    /// Merges a delta as [`Bug::NoRuleR`](crate::bug::Bug::NoRuleR) would have it. For suites that
    /// must catch that.
    #[cfg(feature = "canaries")]
    pub fn apply_without_rule_r(&mut self, delta: &Delta) -> Merged {
        self.apply_unchecked(delta)
    }

    /// Merges a delta without asking rule R. Only a canary may.
    pub(crate) fn apply_unchecked(&mut self, delta: &Delta) -> Merged {
        if self.context.includes_all(&delta.dots) {
            return Merged::Unchanged;
        }
        if let Some(places) = self.overwritten_by(delta) {
            self.remember(delta, places);
        }
        self.store.join_delta(&self.context, &delta.store, &delta.gone, Empty::Drop);
        self.context.extend(&delta.dots);
        Merged::Changed
    }

    /// Takes over what a local mutation did: its content is in the store already.
    pub(crate) fn commit(&mut self, store: Store, delta: &Delta) {
        if !delta.gone.is_empty()
            && !self.store.is_leaf()
            && let Some(places) = self.store.places(&delta.store, &delta.gone)
        {
            self.remember(delta, places);
        }
        self.store = store;
        self.context.extend(&delta.dots);
    }

    /// Merges another replica's full state. Both must be of one shape.
    pub fn merge(&mut self, other: &Self) -> Merged {
        assert_eq!(self.shape, other.shape, "shapes are compared before states are merged");
        if self.context.includes(&other.context) {
            return Merged::Unchanged;
        }
        let learned = other.context.minus(&self.context);
        self.store.join(&self.context, &other.store, &other.context);
        self.context.merge(&other.context);
        self.fold = self.fold.max(other.fold);
        if !self.store.is_leaf() {
            self.floor.extend(&learned); // what those mutations overwrote is not known one by one
        }
        Merged::Changed
    }

    /// What brings a replica that has seen `peer` up to date. Costs a scan of the live entries, of a
    /// leaf also of the context.
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

    /// All that was seen and does not live: what was overwritten, and what added nothing. Once folded
    /// dots leave the context, replicas of unequal fold levels need the full state instead.
    fn overwritten(&self) -> DotSet {
        let mut live = DotSet::new();
        self.store.each_dot(&mut |dot| live.insert(dot));
        self.context.except(live)
    }

    /// The highest time in its registers, for the clock.
    pub(crate) fn latest_time(&self) -> Option<HybridTimestamp> {
        self.store.latest_time()
    }

    /// The same content and context without what only repairs need: for readers.
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

    /// A canary's merge: registers keep what arrived last.
    pub(crate) fn keep_arrived(&mut self, arrived: &DotSet) {
        self.store.keep_arrived(arrived);
    }

    /// Removal records kept.
    #[must_use]
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// Forgets the oldest removal record: a peer that lacks it will get the full state.
    pub fn forget_record(&mut self) {
        if let Some(oldest) = self.records.pop_front() {
            self.floor.extend(&oldest.dots);
        }
    }

    /// Where a delta from elsewhere overwrites anything. What it overwrites, was seen and is not
    /// live here was overwritten by another mutation, which has its own record or lies below the
    /// floor. What came together with its overwriter was never live here, but may be at a peer:
    /// that one has to look everywhere.
    fn overwritten_by(&self, delta: &Delta) -> Option<Store> {
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

    /// Keeps what a delta is about to overwrite here, so that peers can be repaired.
    fn remember(&mut self, delta: &Delta, places: Store) {
        let (dots, gone) = (delta.dots.clone(), delta.gone.clone());
        self.records.push_back(Arc::new(Record { dots, gone, places }));
        if self.records.len() > RECORDS_MAX {
            self.forget_record();
        }
    }

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

    /// The hand-laid layout: version, replicas, context, fold level, content.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        self.context.encode(&mut writer);
        writer.varint(self.fold.0);
        self.store.encode(&mut writer);
        writer.finish()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no state of this shape. Never panics, and allocates no
    /// more than a small multiple of the input.
    pub fn decode(bytes: &[u8], shape: &Shape) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes)?;
        let context = CausalContext::decode(&mut reader)?;
        let fold = FoldLevel(reader.varint()?);
        let store = Store::decode(&mut reader, shape)?;
        reader.end()?;
        let mut inside = true;
        store.each_dot(&mut |dot| inside &= context.seen(dot));
        if !inside {
            return Err(DecodeError::DotOutsideContext);
        }
        if has_empty_places(&store) {
            return Err(DecodeError::NotCanonical);
        }
        let floor = context.clone();
        Ok(Self { shape: shape.clone(), store, context, fold, records: imbl::Vector::new(), floor })
    }

    /// Drops every live entry that the crate's version vector covers, as `ResetRemove` asks.
    pub(crate) fn reset(&mut self, clock: &crdts::VClock<crate::id::ReplicaId>) {
        self.store.forget(&CausalContext::from(clock.clone()));
    }

    /// The dot that `replica`'s next mutation of this key takes.
    pub(crate) fn next_dot(&self, replica: crate::id::ReplicaId) -> Dot {
        self.context.next_dot(replica)
    }
}

/// Whether a decoded state names places without content, which only deltas may.
fn has_empty_places(store: &Store) -> bool {
    match store {
        Store::Set(map) => map.sweeps() || map.iter().any(|(_, inner)| inner.is_bottom()),
        Store::Registers(map) => map.sweeps() || map.iter().any(|(_, inner)| inner.is_bottom()),
        Store::Map(map) => {
            map.sweeps()
                || map.iter().any(|(_, inner)| inner.is_bottom() || has_empty_places(inner))
        }
        _ => false,
    }
}
