//! [`Edit`]: a value together with the replica id and the clock of its author, so that user code is
//! only `set.insert("alice")`.
//!
//! Every mutation goes through a `ChangeBuilder`, which assigns the dots and collects the delta.
//! The mutators are in the files of their types.

use std::marker::PhantomData;

use crate::causal::{COUNTER_MAX, CausalContext, Dot, DotSet, Seen};
use crate::clock::HybridTimestamp;
use crate::encoded::{EncodeError, Encoded, LayoutWriter};
use crate::fault_injection::{FaultInjection, ReplicatorFault};
use crate::id::ReplicaId;
use crate::types::DataType;
use crate::types::delta::{Delta, KeyState};
use crate::types::dot_map::{DotMap, FromStore};
use crate::types::dot_store::{DotFun, DotPayload, DotStore, Stamp, Term};
use crate::types::hash_ordered::HashedKey;
use crate::types::store::AnyDotStore;

/// Why a mutation was refused. It has changed nothing, except before [`Torn`](Self::Torn). An error
/// that the closure of an edit ignores does not make the edit fail, except with `Torn`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The write is not above the content that it would overwrite: an owner with a higher term
    /// wrote here (for an ordinary write, any owner), a guarded write has a later or the last
    /// sequence number, or a version chosen by the caller is not higher than the current one. Read
    /// again; a guarded owner must step down.
    #[error("stale write: {attempted:?} is not above the {live:?} that it would overwrite")]
    Stale {
        /// Stamp of the refused write.
        attempted: Stamp,
        /// Highest stamp that is live at the place of the write.
        live: Stamp,
    },
    /// A counter would leave the range of its type.
    #[error("the counter would overflow")]
    Overflow,
    /// This replica has no dots left for the key: a dot above [`COUNTER_MAX`] can't be decoded.
    /// Detected after the closure of the edit, whose mutators succeed.
    #[error("replica {replica} has made 2^62 changes of this key; no further one can be encoded")]
    NoDotLeft {
        /// The replica that makes the change.
        replica: ReplicaId,
    },
    /// A key of a guarded map can't be removed, nor the map cleared, because an add-wins map could
    /// restore what a refused writer touched. Write a `None` instead.
    #[error("keys of a guarded map are never removed: write a register that says `None`")]
    GuardedRemove,
    /// The type can't be guarded; only registers and maps of registers can.
    #[error("data of this kind can't be guarded: use an LWWRegister, or a map of them")]
    NotGuardable,
    /// An element or value can't be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The current content is not of the requested type.
    #[error(transparent)]
    Decode(#[from] crate::encoded::ValueError),
    /// A change of a map's inner value, or a `replace`, failed after a part of it was made, and the
    /// closure ignored its error. If the closure returns an error, that one is returned instead.
    #[error("an inner change failed halfway and its error was swallowed: return it with `?`")]
    Torn,
    /// The caller's closure returned an error of its own.
    #[error("the update was given up by its caller")]
    Custom(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EditError {
    /// Wraps an error of the caller as [`Custom`](Self::Custom).
    pub fn custom(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Custom(error.into())
    }
}

/// The replica that makes a change, and the stamp of its register writes.
#[derive(Clone, Copy, Debug)]
pub struct Author {
    /// The replica whose dots the change takes.
    pub replica: ReplicaId,
    /// The node's clock, already advanced for this change.
    pub time: HybridTimestamp,
    /// The term of a guarded change; `None` for an ordinary one.
    pub term: Option<Term>,
    /// The planted fault of this run, if any.
    pub fault_injection: FaultInjection,
}

impl Author {
    /// Creates the author of an ordinary change.
    #[must_use]
    pub const fn new(replica: ReplicaId, time: HybridTimestamp) -> Self {
        Self { replica, time, term: None, fault_injection: FaultInjection::none() }
    }
}

/// A change that is being built, with all mutations of one edit. It takes at least one dot for each
/// mutation that changes something; a change without dots has an empty delta.
#[derive(Debug)]
pub(crate) struct ChangeBuilder {
    author: Author,
    next: u64,      // counter of the next dot
    dots: DotSet,   // taken so far
    gone: Vec<Dot>, // overwritten so far; may include taken ones
    torn: bool,     // a part of a mutation was made and the rest failed: the whole edit must fail
    /// The change relies on effects that its author found present. They are not in its delta, so a
    /// peer has the whole promised result only once it holds everything that the author held.
    leans: bool,
}

impl ChangeBuilder {
    /// Takes the next dot of the author. Whether it can be encoded is checked at the end of the
    /// edit, by [`is_encodable`](Self::is_encodable).
    fn dot(&mut self) -> Dot {
        let dot = Dot::new(self.author.replica, self.next);
        self.next += 1;
        self.dots.insert(dot);
        dot
    }

    /// Returns a number that rises with every dot taken. If it did not rise in between, nothing was
    /// changed.
    fn made(&self) -> u64 {
        self.next
    }

    /// Fails with `NoDotLeft` if a dot above [`COUNTER_MAX`] was taken, which no decoder accepts.
    const fn is_encodable(&self) -> Result<(), EditError> {
        if self.next > COUNTER_MAX + 1 {
            return Err(EditError::NoDotLeft { replica: self.author.replica });
        }
        Ok(())
    }

    pub(crate) const fn replica(&self) -> ReplicaId {
        self.author.replica
    }

    pub(crate) const fn is_guarded(&self) -> bool {
        self.author.term.is_some()
    }

    /// Returns the clock of the author, also in a guarded change.
    pub(crate) const fn time(&self) -> HybridTimestamp {
        self.author.time
    }

    /// Fails with `GuardedRemove` in a guarded change, unless a planted fault allows it. Mutators
    /// ask this only if there is something to remove, before they change anything.
    pub(crate) fn may_remove(&self) -> Result<(), EditError> {
        if self.author.term.is_some()
            && !self.author.fault_injection.has(ReplicatorFault::GuardedKeyRemoved)
        {
            return Err(EditError::GuardedRemove);
        }
        Ok(())
    }

    /// Takes one dot, also if `store` is empty, and marks every live dot of `store` as overwritten.
    /// The caller removes the content and lists its place in the delta.
    fn overwrite(&mut self, store: &impl DotStore) {
        self.dot();
        store.each_dot(&mut |dot| self.gone.push(dot));
    }

    /// Returns the stamp of a write over content with the highest stamp `live`. `seq` is a version
    /// chosen by the caller, which becomes the time as it is. Without it, a guarded write takes the
    /// next sequence number of its term, above the live one or 1, and an ordinary one the author's
    /// clock, raised above a live time of another ordinary write.
    ///
    /// Fails with `Stale` unless the stamp is above `live`; an ordinary write meets this at any
    /// guarded one. Exception: an ordinary write without `seq` at [`HybridTimestamp::MAX`] over the
    /// same stamp, because a clock has no higher one.
    pub(crate) fn stamp(&self, live: Option<Stamp>, seq: Option<u64>) -> Result<Stamp, EditError> {
        let term = self.author.term.unwrap_or_default();
        let above = live.filter(|live| live.term == term).map(|live| live.time.next());
        let time = match (seq, self.author.term) {
            (Some(seq), _) => HybridTimestamp::from_raw(seq),
            (None, Some(_)) => above.unwrap_or(HybridTimestamp::from_raw(1)),
            (None, None) => self.author.time.max(above.unwrap_or_default()),
        };
        let attempted = Stamp { term, time };
        // Only a clock that has reached the end may repeat its time; a chosen version must rise.
        let is_clock = seq.is_none() && self.author.term.is_none();
        let saturated = is_clock && time == HybridTimestamp::MAX;
        match live {
            Some(live)
                if attempted <= live
                    && !(saturated && attempted == live)
                    && !self.author.fault_injection.has(ReplicatorFault::NoStaleCheck) =>
            {
                Err(EditError::Stale { attempted, live })
            }
            _ => Ok(attempted),
        }
    }
}

/// A value that is being changed. The mutators are methods of `Edit<'_, ORSet<_>>` and so on;
/// [`view`](Edit::view) reads the value. A mutator that finds its work done already changes
/// nothing, but the change then [leans](Prepared::leans). Each mutator sees the changes of the
/// earlier ones of the same edit.
#[derive(Debug)]
pub struct Edit<'a, T> {
    store: &'a mut AnyDotStore,   // the value with the changes so far
    touched: &'a mut AnyDotStore, // the places of the delta so far
    change: &'a mut ChangeBuilder,
    kind: PhantomData<fn() -> T>,
}

impl<'a, T: DataType> Edit<'a, T> {
    /// Returns a snapshot of the value with this edit's own changes.
    ///
    /// The change does not promise content that was only read: a majority that acknowledges the
    /// change may lack it. So call the mutator even if its result is already present: `remove`, not
    /// `if view().contains(..)`.
    #[must_use]
    pub fn view(&self) -> T {
        T::open(self.store.clone())
    }

    pub(crate) const fn change(&self) -> &ChangeBuilder {
        self.change
    }

    /// Returns the replica whose dots this change takes.
    #[must_use]
    pub const fn replica(&self) -> ReplicaId {
        self.change.replica()
    }

    /// Makes the whole edit fail with [`EditError::Torn`] (or the error that the closure returns),
    /// because a part of it was made and the rest can't be. Can't be undone.
    pub(crate) const fn tear(&mut self) {
        self.change.torn = true;
    }

    /// Marks the change as relying on more than its delta contains: see [`Prepared::leans`].
    pub(crate) const fn lean(&mut self) {
        self.change.leans = true;
    }

    /// Returns the leaf of a type whose state is a leaf. Panics for another payload.
    pub(crate) fn leaf<P: DotPayload>(&self) -> &DotFun<P> {
        P::peek(self.store).expect("a type opens only stores of its own shape")
    }

    /// Whether a map contains the key, with the changes of this edit; `false` for a leaf. Does not
    /// make the change lean.
    pub(crate) fn has_key(&self, key: &Encoded) -> bool {
        let key = HashedKey::new(key.clone());
        match &*self.store {
            AnyDotStore::Set(map) => map.get(&key).is_some(),
            AnyDotStore::Registers(map) => map.get(&key).is_some(),
            AnyDotStore::Map(map) => map.get(&key).is_some(),
            _ => false,
        }
    }

    /// Writes a payload to a leaf under a new dot, also if the payload is the current one, and
    /// overwrites the siblings whose dots `replaces` selects; the others stay. Checks no stamp and
    /// does not lean. Panics if `P` is not the payload of the leaf.
    pub(crate) fn write<P: DotPayload>(&mut self, payload: P, replaces: impl Fn(Dot) -> bool) {
        let (store, touched) = (take(self.store), take(self.touched));
        let (mut fun, mut told) =
            (DotFun::<P>::from_store(store), DotFun::<P>::from_store(touched));
        let dot = self.change.dot();
        write_into(&mut fun, &mut told, self.change, dot, payload, replaces);
        (*self.store, *self.touched) = (fun.into(), told.into());
    }

    /// Removes all live content of a map and returns whether there was any. Takes one dot. If
    /// nothing is live, takes none and returns `false`. The change leans in both cases, and if the
    /// call fails. The delta then sweeps, in place of the places that earlier steps touched.
    ///
    /// Fails with `GuardedRemove` in a guarded change, unless nothing is live.
    pub(crate) fn clear_all(&mut self) -> Result<bool, EditError> {
        self.lean();
        if self.store.is_bottom() {
            return Ok(false);
        }
        self.change.may_remove()?;
        self.change.overwrite(&*self.store);
        *self.store = self.store.empty_like();
        *self.touched = self.touched.empty_like();
        self.touched.sweep();
        Ok(true)
    }

    /// Changes the inner value of an encoded key of a map, which is created if it is missing: see
    /// [`descend`]. Panics for a leaf. `V` must be the type of the inner values.
    pub(crate) fn inner<V: DataType, R>(
        &mut self,
        key: Encoded,
        f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
    ) -> Result<R, EditError> {
        let key = HashedKey::new(key);
        match (&mut *self.store, &mut *self.touched) {
            (AnyDotStore::Set(s), AnyDotStore::Set(t)) => descend(s, t, self.change, &key, f),
            (AnyDotStore::Registers(s), AnyDotStore::Registers(t)) => {
                descend(s, t, self.change, &key, f)
            }
            (AnyDotStore::Map(s), AnyDotStore::Map(t)) => {
                descend(&mut **s, &mut **t, self.change, &key, f)
            }
            _ => unreachable!("only maps are descended into"),
        }
    }

    /// Removes an encoded key of a map with its live content and returns whether it was present.
    /// Panics for a leaf.
    ///
    /// A missing key takes no dot, a present one takes one. The change leans in both cases, and if
    /// the call fails. Fails with `GuardedRemove` in a guarded change, unless the key is missing.
    pub(crate) fn remove_key(&mut self, key: Encoded) -> Result<bool, EditError> {
        let key = HashedKey::new(key);
        match (&mut *self.store, &mut *self.touched) {
            (AnyDotStore::Set(s), AnyDotStore::Set(t)) => remove_from(s, t, self.change, &key),
            (AnyDotStore::Registers(s), AnyDotStore::Registers(t)) => {
                remove_from(s, t, self.change, &key)
            }
            (AnyDotStore::Map(s), AnyDotStore::Map(t)) => {
                remove_from(&mut **s, &mut **t, self.change, &key)
            }
            _ => unreachable!("only maps have keys"),
        }
    }
}

/// Takes the store and leaves an empty one of the same shape, so that a change needs no copy.
fn take(store: &mut AnyDotStore) -> AnyDotStore {
    let empty = store.empty_like();
    std::mem::replace(store, empty)
}

/// Removes the dots that `replaces` selects from a leaf and from its place in the delta (`told`),
/// then writes `payload` under `dot` into both, whatever `replaces` selects. The removed dots of
/// the leaf count as overwritten, also those of this edit. The caller has taken `dot`.
fn write_into<P: DotPayload>(
    fun: &mut DotFun<P>,
    told: &mut DotFun<P>,
    change: &mut ChangeBuilder,
    dot: Dot,
    payload: P,
    replaces: impl Fn(Dot) -> bool,
) {
    change.gone.extend(fun.iter().map(|(old, _)| old).filter(|old| replaces(*old)));
    fun.retain(|old| !replaces(old));
    told.retain(|old| !replaces(old));
    fun.insert(dot, payload.clone());
    told.insert(dot, payload);
}

/// Runs `f` on the inner value of a key, which is empty if the key is missing, and writes it back.
///
/// If `f` takes no dot, or fails, neither map nor delta changes. An inner value that is empty
/// afterwards removes its key; the delta lists the key anyway. If `f` fails after it took a dot,
/// the whole edit is torn, even if the caller ignores the error; the dots stay taken.
fn descend<S: DotStore, V: DataType, R>(
    map: &mut DotMap<S>,
    touched: &mut DotMap<S>,
    change: &mut ChangeBuilder,
    key: &HashedKey,
    f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
) -> Result<R, EditError>
where
    AnyDotStore: From<DotMap<S>>,
    DotMap<S>: FromStore,
{
    let made = change.made();
    let mut store: AnyDotStore = map.get(key).cloned().unwrap_or_else(|| map.fresh()).into();
    let mut told: AnyDotStore = touched.get(key).cloned().unwrap_or_else(|| map.fresh()).into();
    let mut inner =
        Edit { store: &mut store, touched: &mut told, change, kind: PhantomData::<fn() -> V> };
    let result = f(&mut inner);
    if result.is_err() && change.made() != made {
        change.torn = true;
    }
    let result = result?;
    if change.made() != made {
        touched.insert(key.clone(), S::from_store(told));
        if store.is_bottom() {
            map.remove(key);
        } else {
            map.insert(key.clone(), S::from_store(store));
        }
    }
    Ok(result)
}

/// Removes a key: see [`Edit::remove_key`]. The delta lists the key as a swept place, in place of
/// everything that earlier steps of this edit wrote or touched there.
fn remove_from<S: DotStore>(
    map: &mut DotMap<S>,
    touched: &mut DotMap<S>,
    change: &mut ChangeBuilder,
    key: &HashedKey,
) -> Result<bool, EditError>
where
    AnyDotStore: From<DotMap<S>>,
    DotMap<S>: FromStore,
{
    change.leans = true; // an earlier removal and the content that it removed are not in this delta
    if map.get(key).is_none() {
        return Ok(false);
    }
    change.may_remove()?;
    if let Some(inner) = map.remove(key) {
        change.overwrite(&inner);
        touched.insert(key.clone(), swept(map.fresh()));
    }
    Ok(true)
}

/// Returns an empty store as a touched place that refers to everything below it. A leaf is returned
/// unchanged, because it always does.
fn swept<S: DotStore>(empty: S) -> S {
    let mut store: AnyDotStore = empty.into();
    store.sweep();
    S::from_store(store)
}

/// A change that is complete but not yet made. Dropping it changes nothing; its dots are then free
/// for the next change.
#[derive(Clone, Debug)]
pub struct Prepared {
    store: AnyDotStore, // the value after the change
    delta: Delta,
    leans: bool,
}

impl Prepared {
    /// Returns the delta of the change; empty if it changes nothing.
    #[must_use]
    pub const fn delta(&self) -> &Delta {
        &self.delta
    }

    /// Whether the change relies on effects that its author found present: a removal, a clear, a
    /// part that had nothing to do, or a write whose result depends on content that may have been
    /// removed (of an MV register, of a user type, or under a chosen version). Possible also with
    /// an empty delta. A peer that holds the [`delta`](Self::delta) then may lack a part of the
    /// promised result, so the Replicator must ask it for everything that the author holds
    /// (docs/protocol/replication.md#leaning-changes-await-everything).
    #[must_use]
    pub const fn leans(&self) -> bool {
        self.leans
    }

    /// Returns the encoded size of the value after the change, without its context, in bytes.
    /// Encodes the value.
    pub(crate) fn size(&self) -> usize {
        let mut writer = LayoutWriter::new();
        self.store.encode(&mut writer);
        writer.finish().len()
    }
}

impl KeyState {
    /// Runs `f` on the value as `author`. Either all changes are made or, on an error, none.
    ///
    /// Returns the result of `f` and the delta, which is empty if nothing changed. Whether the
    /// change [leans](Prepared::leans) is not returned: use [`prepare`](Self::prepare) to learn it.
    ///
    /// # Errors
    /// In this order: [`EditError::NotGuardable`] for a guarded change of a type that is not a
    /// register or a map of registers, without a call of `f`; the error of `f`;
    /// [`EditError::Torn`] if `f` ignored the error of a mutator of which a part was made;
    /// [`EditError::NoDotLeft`] after 2^62 changes.
    ///
    /// # Panics
    /// If the state is not a `T`.
    pub fn edit<T: DataType, R>(
        &mut self,
        author: Author,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError>,
    ) -> Result<(R, Delta), EditError> {
        let (result, prepared) = self.prepare(author, f)?;
        Ok((result, self.make(prepared)))
    }

    /// Runs `f` on a copy of the value, which shares its content. This state is unchanged.
    /// [`make`](Self::make) then makes the change.
    ///
    /// # Errors
    /// The same as [`edit`](Self::edit).
    ///
    /// # Panics
    /// If the state is not a `T`.
    pub fn prepare<T: DataType, R>(
        &self,
        author: Author,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError>,
    ) -> Result<(R, Prepared), EditError> {
        assert_eq!(*self.shape(), T::shape(), "shapes are compared before values are edited");
        if author.term.is_some() && !self.shape().is_guardable() {
            return Err(EditError::NotGuardable);
        }
        let next = self.next_dot(author.replica).counter;
        let mut change = ChangeBuilder {
            author,
            next,
            dots: DotSet::new(),
            gone: Vec::new(),
            torn: false,
            leans: false,
        };
        let (mut store, mut touched) = (self.store.clone(), self.store.empty_like());
        let result = f(&mut Edit {
            store: &mut store,
            touched: &mut touched,
            change: &mut change,
            kind: PhantomData,
        })?;
        if change.torn {
            return Err(EditError::Torn);
        }
        change.is_encodable()?;
        let mut delta = Delta {
            dots: change.dots,
            gone: change.gone.into_iter().collect(),
            store: touched,
            after: None,
        };
        if author.fault_injection.has(ReplicatorFault::DeltaWithWholeContext) && !delta.is_empty() {
            delta = self.with_whole_context(delta);
        }
        Ok((result, Prepared { store, delta, leans: change.leans }))
    }

    /// Makes a change that was prepared on exactly this state, which is not checked, and returns
    /// its delta. Changes nothing if the delta is empty, which is returned all the same. Another
    /// change in between would be lost.
    pub fn make(&mut self, prepared: Prepared) -> Delta {
        if !prepared.delta.is_empty() {
            self.commit(prepared.store, &prepared.delta);
        }
        prepared.delta
    }

    /// Deletes everything that this state has seen, under one dot, and returns the delta. Works for
    /// every shape, also a grow-only one. Neither term nor time of the author matter, so the caller
    /// must refuse it for a guarded value. Shape and context stay.
    ///
    /// The delta is empty and nothing is changed if nothing was live or this replica has no dot
    /// left; there is no error. A delete always [leans](Prepared::leans): its delta does not
    /// contain earlier removals.
    pub fn delete(&mut self, author: Author) -> Delta {
        if self.is_bottom() || self.next_dot(author.replica).counter > COUNTER_MAX {
            let store = self.store.empty_like();
            return Delta { dots: DotSet::new(), gone: DotSet::new(), store, after: None };
        }
        let mut dots = DotSet::new();
        dots.insert(self.next_dot(author.replica));
        let mut gone = Vec::new();
        self.store.each_dot(&mut |dot| gone.push(dot));
        let gone = gone.into_iter().collect();
        let delta = Delta { dots, gone, store: swept(self.store.empty_like()), after: None };
        self.commit(self.store.empty_like(), &delta);
        delta
    }

    /// Delete of a planted fault: also takes the next three dots of every other replica with an
    /// entry in the context's vector, so that their next writes count as deleted. They are in the
    /// delta and are applied here, also if nothing was live.
    pub(crate) fn delete_unseen(&mut self, author: Author) -> Delta {
        let mut delta = self.delete(author);
        for (replica, last) in self.context().vector().dots.clone() {
            if replica != author.replica {
                let run = crate::causal::DotRange { replica, first: last + 1, last: last + 3 };
                delta.dots.insert_run(run);
                delta.gone.insert_run(run);
            }
        }
        let _ = self.apply_unchecked(&delta);
        delta
    }

    /// Planted fault: a delta whose context claims everything that its sender has seen, and that
    /// overwrites all of it except its own entries (the rule:
    /// docs/protocol/replication.md#a-delta-context-covers-only-its-dots).
    fn with_whole_context(&self, delta: Delta) -> Delta {
        let mut whole = self.context().minus(&CausalContext::new());
        whole.extend(&delta.dots);
        let mut gone = DotSet::new();
        let mut told = DotSet::new();
        delta.store.each_dot(&mut |dot| told.insert(dot));
        for dot in whole.iter().filter(|dot| !told.seen(*dot)) {
            gone.insert(dot);
        }
        let mut store = delta.store;
        store.sweep();
        Delta { dots: whole, gone, store, after: None }
    }
}
