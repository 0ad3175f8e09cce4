//! [`Edit`]: a value, a replica id and a clock together, so that user code says
//! `set.insert("alice")` and nothing else.
//!
//! Every mutation goes through a `Change`, which hands out the dots and gathers the delta. The
//! mutators themselves stand beside their types.

use std::marker::PhantomData;

use crate::bug::{Bug, Canary};
use crate::causal::{COUNTER_MAX, CausalContext, Dot, DotSet, Seen};
use crate::clock::HybridTimestamp;
use crate::encoded::{EncodeError, Encoded, Writer};
use crate::id::ReplicaId;
use crate::types::DataType;
use crate::types::delta::{Delta, State};
use crate::types::dot_map::{DotMap, FromStore};
use crate::types::dot_store::{DotFun, DotStore, Payload, Stamp, Term};
use crate::types::hash_ordered::Hashed;
use crate::types::store::Store;

/// Why a mutation was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The write is not above what it would overwrite: somebody with a higher term, or a later
    /// guarded sequence number, wrote here. Read again; a guarded owner steps down.
    #[error("stale write: {attempted:?} is not above the {live:?} that it would overwrite")]
    Stale {
        /// The stamp of the refused write.
        attempted: Stamp,
        /// The highest stamp that is live.
        live: Stamp,
    },
    /// A counter would leave the range of its type.
    #[error("the counter would overflow")]
    Overflow,
    /// This replica's dots of the key are used up: a dot above [`COUNTER_MAX`] decodes nowhere.
    #[error("replica {replica} has made 2^62 changes of this key; no further one can be encoded")]
    NoDotLeft {
        /// This replica.
        replica: ReplicaId,
    },
    /// A key of a guarded map can't be removed: an add-wins map could resurrect what a refused
    /// writer touched. Write a `None` instead.
    #[error("keys of a guarded map are never removed: write a register that says `None`")]
    GuardedRemove,
    /// Only registers, and maps of registers, can be guarded.
    #[error("data of this kind can't be guarded: use an LWWRegister, or a map of them")]
    NotGuardable,
    /// An element or value does not encode.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// An element or value already there does not decode as the type asked for.
    #[error(transparent)]
    Decode(#[from] crate::encoded::ValueError),
    /// A change of a map's inner value failed halfway and its error was swallowed.
    #[error("an inner change failed halfway and its error was swallowed: return it with `?`")]
    Torn,
    /// The caller's closure gave up.
    #[error("the update was given up by its caller")]
    Custom(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EditError {
    /// Wraps an error of the caller's own.
    pub fn custom(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Custom(error.into())
    }
}

/// The replica that makes a change, and the stamp its register writes take.
#[derive(Clone, Copy, Debug)]
pub struct Author {
    /// Whose dots the change takes.
    pub replica: ReplicaId,
    /// This node's clock, already ticked for this change.
    pub time: HybridTimestamp,
    /// The term of a guarded change; `None` for an ordinary one.
    pub term: Option<Term>,
    /// The deliberate bug of this run, if any.
    pub canary: Canary,
}

impl Author {
    /// An ordinary author.
    #[must_use]
    pub const fn new(replica: ReplicaId, time: HybridTimestamp) -> Self {
        Self { replica, time, term: None, canary: Canary::none() }
    }
}

/// One change in the making.
#[derive(Debug)]
pub(crate) struct Change {
    author: Author,
    next: u64,
    dots: DotSet,
    gone: Vec<Dot>,
    torn: bool, // an inner change failed halfway: the whole edit must fail
    /// It builds on what its author found done already, which its dots and what they overwrite do
    /// not say: others have done all of it only once they hold all that its author held.
    leans: bool,
}

impl Change {
    fn dot(&mut self) -> Dot {
        let dot = Dot::new(self.author.replica, self.next);
        self.next += 1;
        self.dots.insert(dot);
        dot
    }

    fn made(&self) -> u64 {
        self.next
    }

    /// Refuses dots that no decoder takes.
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

    pub(crate) const fn time(&self) -> HybridTimestamp {
        self.author.time
    }

    /// Refuses what would remove a key of a guarded map.
    pub(crate) fn may_remove(&self) -> Result<(), EditError> {
        if self.author.term.is_some() && !self.author.canary.has(Bug::GuardedKeyRemoved) {
            return Err(EditError::GuardedRemove);
        }
        Ok(())
    }

    /// Overwrites every dot of `store` and takes one dot for that.
    fn overwrite(&mut self, store: &impl DotStore) {
        self.dot();
        store.each_dot(&mut |dot| self.gone.push(dot));
    }

    /// The stamp of a write over content whose highest stamp is `live`; `seq` for guarded ones.
    pub(crate) fn stamp(&self, live: Option<Stamp>, seq: Option<u64>) -> Result<Stamp, EditError> {
        let term = self.author.term.unwrap_or_default();
        let above = live.filter(|live| live.term == term).map(|live| live.time.next());
        let time = match (seq, self.author.term) {
            (Some(seq), _) => HybridTimestamp::from_raw(seq),
            (None, Some(_)) => above.unwrap_or(HybridTimestamp::from_raw(1)),
            (None, None) => self.author.time.max(above.unwrap_or_default()),
        };
        let attempted = Stamp { term, time };
        let saturated = self.author.term.is_none() && time == HybridTimestamp::MAX;
        match live {
            Some(live)
                if attempted <= live
                    && !(saturated && attempted == live)
                    && !self.author.canary.has(Bug::NoStaleCheck) =>
            {
                Err(EditError::Stale { attempted, live })
            }
            _ => Ok(attempted),
        }
    }
}

/// A value being changed. Mutators are methods of `Edit<'_, ORSet<_>>` and so on; reading goes
/// through [`view`](Edit::view).
#[derive(Debug)]
pub struct Edit<'a, T> {
    store: &'a mut Store,
    touched: &'a mut Store,
    change: &'a mut Change,
    kind: PhantomData<fn() -> T>,
}

impl<'a, T: DataType> Edit<'a, T> {
    /// A snapshot of the value as it stands now, this edit's own changes included.
    ///
    /// What is only looked at is not promised by the change: a majority that acknowledges it may
    /// lack what was seen here. Call the mutator also where it finds its work done: `remove`, not
    /// `if view().contains(..)`.
    #[must_use]
    pub fn view(&self) -> T {
        T::open(self.store.clone())
    }

    pub(crate) const fn change(&self) -> &Change {
        self.change
    }

    /// The author of this change: whose dots it takes.
    #[must_use]
    pub const fn replica(&self) -> ReplicaId {
        self.change.replica()
    }

    /// Makes the whole edit fail: a part of it has happened and the rest can't.
    pub(crate) const fn tear(&mut self) {
        self.change.torn = true;
    }

    /// This change builds on more than its delta says: see [`Prepared::leans`].
    pub(crate) const fn lean(&mut self) {
        self.change.leans = true;
    }

    /// The value's leaf, for a type whose state is a leaf.
    pub(crate) fn leaf<P: Payload>(&self) -> &DotFun<P> {
        P::peek(self.store).expect("a type opens only stores of its own shape")
    }

    /// The map, for a type whose state is a map.
    pub(crate) fn has_key(&self, key: &Encoded) -> bool {
        let key = Hashed::new(key.clone());
        match &*self.store {
            Store::Set(map) => map.get(&key).is_some(),
            Store::Registers(map) => map.get(&key).is_some(),
            Store::Map(map) => map.get(&key).is_some(),
            _ => false,
        }
    }

    /// Writes one payload and overwrites the siblings that `replaces` picks.
    pub(crate) fn write<P: Payload>(&mut self, payload: P, replaces: impl Fn(Dot) -> bool) {
        let (store, touched) = (take(self.store), take(self.touched));
        let (mut fun, mut told) =
            (DotFun::<P>::from_store(store), DotFun::<P>::from_store(touched));
        let dot = self.change.dot();
        write_into(&mut fun, &mut told, self.change, dot, payload, replaces);
        (*self.store, *self.touched) = (fun.into(), told.into());
    }

    /// Empties the value, observing everything that is live. Says whether anything was.
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

    /// Changes the inner value under an encoded key of a map.
    pub(crate) fn inner<V: DataType, R>(
        &mut self,
        key: Encoded,
        f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
    ) -> Result<R, EditError> {
        let key = Hashed::new(key);
        match (&mut *self.store, &mut *self.touched) {
            (Store::Set(s), Store::Set(t)) => descend(s, t, self.change, &key, f),
            (Store::Registers(s), Store::Registers(t)) => descend(s, t, self.change, &key, f),
            (Store::Map(s), Store::Map(t)) => descend(&mut **s, &mut **t, self.change, &key, f),
            _ => unreachable!("only maps are descended into"),
        }
    }

    /// Removes an encoded key of a map, observing what is live there. Says whether it was there.
    pub(crate) fn remove_key(&mut self, key: Encoded) -> Result<bool, EditError> {
        let key = Hashed::new(key);
        match (&mut *self.store, &mut *self.touched) {
            (Store::Set(s), Store::Set(t)) => remove_from(s, t, self.change, &key),
            (Store::Registers(s), Store::Registers(t)) => remove_from(s, t, self.change, &key),
            (Store::Map(s), Store::Map(t)) => remove_from(&mut **s, &mut **t, self.change, &key),
            _ => unreachable!("only maps have keys"),
        }
    }
}

fn take(store: &mut Store) -> Store {
    let empty = store.empty_like();
    std::mem::replace(store, empty)
}

fn write_into<P: Payload>(
    fun: &mut DotFun<P>,
    told: &mut DotFun<P>,
    change: &mut Change,
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

fn descend<S: DotStore, V: DataType, R>(
    map: &mut DotMap<S>,
    touched: &mut DotMap<S>,
    change: &mut Change,
    key: &Hashed,
    f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
) -> Result<R, EditError>
where
    Store: From<DotMap<S>>,
    DotMap<S>: FromStore,
{
    let made = change.made();
    let mut store: Store = map.get(key).cloned().unwrap_or_else(|| map.fresh()).into();
    let mut told: Store = touched.get(key).cloned().unwrap_or_else(|| map.fresh()).into();
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

fn remove_from<S: DotStore>(
    map: &mut DotMap<S>,
    touched: &mut DotMap<S>,
    change: &mut Change,
    key: &Hashed,
) -> Result<bool, EditError>
where
    Store: From<DotMap<S>>,
    DotMap<S>: FromStore,
{
    change.leans = true; // what was removed before, and what was there then, is in no delta of this
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

/// A touched place that says "everything below".
fn swept<S: DotStore>(empty: S) -> S {
    let mut store: Store = empty.into();
    store.sweep();
    S::from_store(store)
}

/// A change that is ready and not yet made.
#[derive(Clone, Debug)]
pub struct Prepared {
    store: Store,
    delta: Delta,
    leans: bool,
}

impl Prepared {
    /// What the change says; empty if it changes nothing.
    #[must_use]
    pub const fn delta(&self) -> &Delta {
        &self.delta
    }

    /// Whether it builds on what its author found done already: a removal, a clearing, or a part
    /// that had nothing to do. Who holds the [`delta`](Self::delta) holds then not all that the
    /// change has promised, and must be asked for all that its author holds.
    #[must_use]
    pub const fn leans(&self) -> bool {
        self.leans
    }

    /// The encoded size of the value after the change, without its context, in bytes. Costs an
    /// encoding.
    pub(crate) fn size(&self) -> usize {
        let mut writer = Writer::new();
        self.store.encode(&mut writer);
        writer.finish().len()
    }
}

impl State {
    /// Runs `f` on the value as `author`: all of it happens or, on an error, nothing.
    ///
    /// Returns `f`'s answer and the delta, which is empty if nothing changed.
    ///
    /// # Errors
    /// Whatever `f` says; [`EditError::NotGuardable`] for a guarded change of data that is not
    /// made of registers; [`EditError::NoDotLeft`] after 2^62 changes.
    pub fn edit<T: DataType, R>(
        &mut self,
        author: Author,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError>,
    ) -> Result<(R, Delta), EditError> {
        let (result, prepared) = self.prepare(author, f)?;
        Ok((result, self.make(prepared)))
    }

    /// Runs `f` on a copy of the value: what [`make`](Self::make) would change.
    ///
    /// # Errors
    /// As [`edit`](Self::edit).
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
        let mut change = Change {
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
        if author.canary.has(Bug::DeltaWithWholeContext) && !delta.is_empty() {
            delta = self.with_whole_context(delta);
        }
        Ok((result, Prepared { store, delta, leans: change.leans }))
    }

    /// Makes a change that was prepared on this very state.
    pub fn make(&mut self, prepared: Prepared) -> Delta {
        if !prepared.delta.is_empty() {
            self.commit(prepared.store, &prepared.delta);
        }
        prepared.delta
    }

    /// Deletes everything that this state has seen. The delta is empty if nothing was live, or if
    /// this replica has no dot left.
    pub fn delete(&mut self, author: Author) -> Delta {
        if self.is_bottom() || self.next_dot(author.replica).counter > COUNTER_MAX {
            let store = self.store.clone();
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

    /// A canary's delete: also claims the next dots of everybody, so that what they are about to
    /// write counts as deleted.
    pub(crate) fn delete_unseen(&mut self, author: Author) -> Delta {
        let mut delta = self.delete(author);
        for (replica, last) in self.context().vector().dots.clone() {
            if replica != author.replica {
                let run = crate::causal::Run { replica, first: last + 1, last: last + 3 };
                delta.dots.insert_run(run);
                delta.gone.insert_run(run);
            }
        }
        let _ = self.apply_unchecked(&delta);
        delta
    }

    /// Known failure 15: claims to speak of everything its sender has seen.
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
