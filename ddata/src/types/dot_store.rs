//! Dot stores: the trait of the state of every replicated type, and its leaf, [`DotFun`].
//!
//! A dot store contains live entries, each under the dot of the mutation that wrote it. An entry
//! disappears when a known mutation has overwritten its dot. A join of two stores compares dots
//! with contexts, so it depends neither on clocks nor on the order of arrival.
//!
//! A delta has the form of a store as well. It lists the *places* that its mutations touched: a
//! leaf as a whole, or keys of a map. A place without entries means that dots were only overwritten
//! there. The dots that a delta overwrites are dropped at its places only; a map that
//! [sweeps](super::dot_map) is one place with everything below it.
//!
//! Source: Almeida, Shoker, Baquero, *Delta State Replicated Data Types* (arXiv 1603.01529), §7.

use std::fmt::Debug;

use smallvec::SmallVec;

use crate::causal::{COUNTER_MAX, Dot, DotSet, Seen, dot_key};
use crate::clock::HybridTimestamp;
use crate::encoded::{DecodeError, Encoded, LayoutReader, LayoutWriter};
use crate::id::ReplicaId;
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;

/// Treatment of keys that become empty in the join of a delta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    /// Removes them, for a join into a state: it contains only live content.
    Drop,
    /// Keeps them, for a join into a delta: it lists them as the places where something was
    /// overwritten.
    Keep,
}

/// A set of live entries under dots: the state of one replicated value, or the places of a delta.
///
/// A store knows no context: callers pass the contexts of both sides as they were before the join,
/// and merge the contexts afterwards. Two stores of one operation must have the same shape.
pub(crate) trait DotStore: Clone + PartialEq + Debug + Into<AnyDotStore> + Sized {
    /// Creates an empty store of this shape. A leaf ignores the shape.
    fn empty(shape: &Shape) -> Self;
    /// Creates an empty store of the same shape.
    fn empty_like(&self) -> Self;
    /// Extracts the store from its type-erased form. Panics if it is of another kind, a bug of this
    /// crate.
    fn from_store(store: AnyDotStore) -> Self;
    /// Whether nothing is live and, in a delta, no place is listed and nothing is swept.
    fn is_bottom(&self) -> bool;
    /// Joins a full state: an entry of either side remains if both sides have it or the other side
    /// has not seen it; one that both have keeps this side's payload. `mine` and `theirs` are the
    /// dots that the two sides have seen. Keys that become empty are removed.
    fn join(&mut self, mine: &impl Seen, other: &Self, theirs: &impl Seen);
    /// Joins a delta: at its places, first drops the dots in `gone`, also of entries that the
    /// receiver has not seen overwritten, then adds the entries of the delta that `mine` has not
    /// seen, without a look at `gone`. A leaf and a swept map are places as a whole. Costs time
    /// proportional to the delta, except for a swept map.
    fn join_delta(&mut self, mine: &impl Seen, delta: &Self, gone: &DotSet, empty: Empty);
    /// Drops every entry whose dot is in `gone`, at all places, and keys that become empty by that.
    /// Scans the whole store.
    fn forget(&mut self, gone: &impl Seen);
    /// Whether a live entry's dot is in `seen`.
    fn meets(&self, seen: &impl Seen) -> bool;
    /// Calls `f` once for every live dot, in no useful order.
    fn each_dot(&self, f: &mut dyn FnMut(Dot));
    /// Returns a new store with the live entries whose dots are in `dots`, without places that have
    /// none; perhaps an empty one.
    fn only(&self, dots: &DotSet) -> Self;
    /// Returns the places of `delta` at which a live entry's dot is in `gone`, without content;
    /// `None` if there is no such place.
    fn places(&self, delta: &Self, gone: &DotSet) -> Option<Self>;
    /// Appends the store to a layout; [`decode`](Self::decode) reads it back.
    fn encode(&self, writer: &mut LayoutWriter);
    /// Reads a store of this shape. Places without entries and swept maps are accepted, because
    /// deltas have them; the caller must reject them in a state.
    ///
    /// # Errors
    /// [`DecodeError`] if dots or keys are not in strictly ascending order, a dot or a term is
    /// impossible, a tag is unknown, or the bytes end too early. The first fault in the order of
    /// the bytes decides.
    fn decode(reader: &mut LayoutReader<'_>, shape: &Shape) -> Result<Self, DecodeError>;
}

/// The payload that a leaf stores under each dot. It determines the variant of the type-erased
/// store.
pub(crate) trait DotPayload: Clone + PartialEq + Debug {
    fn encode(&self, writer: &mut LayoutWriter);
    fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError>;
    /// Wraps a leaf as the variant of this payload.
    fn wrap(fun: DotFun<Self>) -> AnyDotStore;
    /// Inverts [`wrap`](Self::wrap); `None` for another variant.
    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>>;
    /// Borrows the leaf; `None` for another variant.
    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>>;
}

/// Map from dots to payloads that no known mutation has overwritten (siblings). Sorted by dot.
#[derive(Debug, PartialEq)]
pub(crate) struct DotFun<P> {
    entries: SmallVec<[(Dot, P); 1]>, // ≤ concurrent writers since the last write that saw them
}

impl<P: Clone> Clone for DotFun<P> {
    /// Copies the entries, with a fast path for the usual single one.
    fn clone(&self) -> Self {
        // Fast path for the usual single entry: no loop and no reallocation.
        let entries = match &*self.entries {
            [one] => SmallVec::from_buf([one.clone()]),
            more => more.iter().cloned().collect(),
        };
        Self { entries }
    }
}

impl<P> Default for DotFun<P> {
    fn default() -> Self {
        Self { entries: SmallVec::new() }
    }
}

impl<P: DotPayload> DotFun<P> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Dot, &P)> {
        self.entries.iter().map(|(dot, payload)| (*dot, payload))
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the highest dot of `replica` with its payload, its lower ones are left out; `None`
    /// if it has no entry.
    pub(crate) fn of(&self, replica: ReplicaId) -> Option<(Dot, &P)> {
        self.iter().filter(|(dot, _)| dot.actor == replica).last()
    }

    /// Adds an entry, or replaces the payload of its dot. Other entries stay.
    pub(crate) fn insert(&mut self, dot: Dot, payload: P) {
        match self.entries.binary_search_by_key(&dot_key(dot), |(d, _)| dot_key(*d)) {
            Ok(at) => self.entries[at].1 = payload,
            Err(at) => self.entries.insert(at, (dot, payload)),
        }
    }

    /// Keeps only the entries for whose dots `keep` returns true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Dot) -> bool) {
        self.entries.retain(|(dot, _)| keep(*dot));
    }

    /// Whether there is an entry under this dot.
    fn has(&self, dot: Dot) -> bool {
        self.entries.binary_search_by_key(&dot_key(dot), |(d, _)| dot_key(*d)).is_ok()
    }

    /// Copies the entries of `other` whose dots are not in `mine`.
    fn add_unseen(&mut self, mine: &impl Seen, other: &Self) {
        for (dot, payload) in &other.entries {
            if !mine.seen(*dot) {
                self.insert(*dot, payload.clone());
            }
        }
    }
}

impl<P: DotPayload> From<DotFun<P>> for AnyDotStore {
    fn from(fun: DotFun<P>) -> Self {
        P::wrap(fun)
    }
}

impl<P: DotPayload> DotStore for DotFun<P> {
    fn empty(_shape: &Shape) -> Self {
        Self::default()
    }

    fn empty_like(&self) -> Self {
        Self::default()
    }

    fn from_store(store: AnyDotStore) -> Self {
        P::unwrap(store).expect("a store is only ever opened as the kind its shape names")
    }

    fn is_bottom(&self) -> bool {
        self.entries.is_empty()
    }

    fn join(&mut self, mine: &impl Seen, other: &Self, theirs: &impl Seen) {
        self.entries.retain(|(dot, _)| !theirs.seen(*dot) || other.has(*dot));
        self.add_unseen(mine, other);
    }

    /// Joins a delta. Drops `gone` everywhere, whatever the delta contains, because a leaf is one
    /// place. An empty leaf stays, so `_empty` does not matter.
    fn join_delta(&mut self, mine: &impl Seen, delta: &Self, gone: &DotSet, _empty: Empty) {
        self.forget(gone);
        self.add_unseen(mine, delta);
    }

    fn forget(&mut self, gone: &impl Seen) {
        self.entries.retain(|(dot, _)| !gone.seen(*dot));
    }

    fn meets(&self, seen: &impl Seen) -> bool {
        self.entries.iter().any(|(dot, _)| seen.seen(*dot))
    }

    fn each_dot(&self, f: &mut dyn FnMut(Dot)) {
        for (dot, _) in &self.entries {
            f(*dot);
        }
    }

    fn only(&self, dots: &DotSet) -> Self {
        Self { entries: self.entries.iter().filter(|(dot, _)| dots.seen(*dot)).cloned().collect() }
    }

    /// Returns an empty leaf, which represents the whole place, if a live dot is in `gone`. The
    /// content of the delta does not matter.
    fn places(&self, _delta: &Self, gone: &DotSet) -> Option<Self> {
        self.meets(gone).then(Self::default)
    }

    /// Writes the number of entries, then each with its dot, in the order of the dots.
    fn encode(&self, writer: &mut LayoutWriter) {
        writer.length(self.entries.len());
        for (dot, payload) in &self.entries {
            writer.replica(dot.actor);
            writer.varint(dot.counter);
            payload.encode(writer);
        }
    }

    /// Reads what [`encode`](DotStore::encode) wrote. Fails with `ImpossibleDot` for a counter of 0
    /// or above [`COUNTER_MAX`], and with `NotCanonical` unless the dots ascend.
    fn decode(reader: &mut LayoutReader<'_>, _shape: &Shape) -> Result<Self, DecodeError> {
        let mut fun = Self::default();
        for _ in 0..reader.length(2)? {
            let dot = Dot::new(reader.replica()?, reader.varint()?);
            if dot.counter == 0 || dot.counter > COUNTER_MAX {
                return Err(DecodeError::ImpossibleDot);
            }
            if fun.entries.last().is_some_and(|(before, _)| dot_key(*before) >= dot_key(dot)) {
                return Err(DecodeError::NotCanonical);
            }
            fun.entries.push((dot, P::decode(reader)?));
        }
        Ok(fun)
    }
}

impl DotPayload for () {
    fn encode(&self, _writer: &mut LayoutWriter) {}

    fn decode(_reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }

    fn wrap(fun: DotFun<Self>) -> AnyDotStore {
        AnyDotStore::Unit(fun)
    }

    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>> {
        if let AnyDotStore::Unit(fun) = store { Some(fun) } else { None }
    }

    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>> {
        if let AnyDotStore::Unit(fun) = store { Some(fun) } else { None }
    }
}

impl DotPayload for u128 {
    fn encode(&self, writer: &mut LayoutWriter) {
        writer.wide(*self);
    }

    fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        reader.wide()
    }

    fn wrap(fun: DotFun<Self>) -> AnyDotStore {
        AnyDotStore::Total(fun)
    }

    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>> {
        if let AnyDotStore::Total(fun) = store { Some(fun) } else { None }
    }

    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>> {
        if let AnyDotStore::Total(fun) = store { Some(fun) } else { None }
    }
}

/// Encodes as ZigZag, so that small negative totals stay short.
impl DotPayload for i128 {
    fn encode(&self, writer: &mut LayoutWriter) {
        // ZigZag, so that small negative totals stay short.
        writer.wide(((*self << 1) ^ (*self >> 127)).cast_unsigned());
    }

    fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        let wide = reader.wide()?;
        Ok((wide >> 1).cast_signed() ^ -((wide & 1).cast_signed()))
    }

    fn wrap(fun: DotFun<Self>) -> AnyDotStore {
        AnyDotStore::Net(fun)
    }

    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>> {
        if let AnyDotStore::Net(fun) = store { Some(fun) } else { None }
    }

    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>> {
        if let AnyDotStore::Net(fun) = store { Some(fun) } else { None }
    }
}

impl DotPayload for Encoded {
    fn encode(&self, writer: &mut LayoutWriter) {
        writer.bytes(self.as_bytes());
    }

    fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        reader.bytes().map(Self::from_bytes)
    }

    fn wrap(fun: DotFun<Self>) -> AnyDotStore {
        AnyDotStore::Plain(fun)
    }

    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>> {
        if let AnyDotStore::Plain(fun) = store { Some(fun) } else { None }
    }

    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>> {
        if let AnyDotStore::Plain(fun) = store { Some(fun) } else { None }
    }
}

/// The right to write a guarded key group. Ordered by number, then by the holder's incarnation, so
/// no two owners hold the same term
/// (docs/protocol/replication.md#terms-are-unique-and-promises-only-rise).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct Term {
    /// Number of takeovers; 0 means unguarded.
    #[serde(rename = "n")]
    pub number: u64,
    /// The replica that holds the term.
    #[serde(rename = "o")]
    pub owner: ReplicaId,
}

impl Term {
    /// Highest valid number. It is far beyond any real number of takeovers, and every valid term
    /// must have a successor.
    pub const NUMBER_MAX: u64 = u64::MAX / 2;

    /// Whether a replica can hold this term: its number is 1 to [`NUMBER_MAX`](Self::NUMBER_MAX).
    /// The owner is not checked.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.number >= 1 && self.number <= Self::NUMBER_MAX
    }
}

/// Order of concurrent register writes: the term, then the time or, if guarded, the sequence
/// number. So every guarded write is above all ordinary ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Term of a guarded write; the zero term of an ordinary one.
    pub term: Term,
    /// Hybrid time of an ordinary write; sequence number of a guarded one.
    pub time: HybridTimestamp,
}

/// Content of a register under one dot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stamped {
    pub(crate) stamp: Stamp,
    /// Whether a clock produced the stamp's time, so other clocks may learn from it. `false` for a
    /// guarded write, a version of the caller, and a time that was raised above the live one.
    pub(crate) clocked: bool,
    pub(crate) value: Encoded,
}

/// Encodes a tag first: 0 for an ordinary write with a time of a clock, 1 for a guarded one, 2 for
/// an ordinary write with another time (a version of the caller, or a raised time). Decoding fails
/// with `NotCanonical` if the term of a guarded write is not [valid](Term::is_valid). A guarded
/// write is never `clocked`.
impl DotPayload for Stamped {
    fn encode(&self, writer: &mut LayoutWriter) {
        if self.stamp.term == Term::default() {
            writer.byte(if self.clocked { 0 } else { 2 });
            writer.fixed(self.stamp.time.raw());
        } else {
            writer.byte(1);
            writer.varint(self.stamp.term.number);
            writer.replica(self.stamp.term.owner);
            writer.varint(self.stamp.time.raw());
        }
        writer.bytes(self.value.as_bytes());
    }

    fn decode(reader: &mut LayoutReader<'_>) -> Result<Self, DecodeError> {
        let kind = reader.byte()?;
        let (term, time) = match kind {
            0 | 2 => (Term::default(), reader.fixed()?),
            1 => {
                let term = Term { number: reader.varint()?, owner: reader.replica()? };
                if !term.is_valid() {
                    return Err(DecodeError::NotCanonical);
                }
                (term, reader.varint()?)
            }
            found => return Err(DecodeError::Tag { what: "a stamp", found }),
        };
        let stamp = Stamp { term, time: HybridTimestamp::from_raw(time) };
        Ok(Self { stamp, clocked: kind == 0, value: Encoded::from_bytes(reader.bytes()?) })
    }

    fn wrap(fun: DotFun<Self>) -> AnyDotStore {
        AnyDotStore::Register(fun)
    }

    fn unwrap(store: AnyDotStore) -> Option<DotFun<Self>> {
        if let AnyDotStore::Register(fun) = store { Some(fun) } else { None }
    }

    fn peek(store: &AnyDotStore) -> Option<&DotFun<Self>> {
        if let AnyDotStore::Register(fun) = store { Some(fun) } else { None }
    }
}
