//! [`DotMap`]: a map from encoded keys to inner dot stores. A key exists as long as its inner store
//! has live entries.
//!
//! In a delta the map contains the touched keys, also those that became empty. A map *sweeps* if it
//! refers to every key of the receiver's map, because a `clear` does not list keys: there the
//! overwritten dots of the delta are dropped under all keys, at any depth. Only a delta's map ever
//! sweeps; nothing unsets the flag.

use crate::causal::{Dot, DotSet, Seen};
use crate::encoded::{DecodeError, Encoded, LayoutReader, LayoutWriter};
use crate::types::dot_store::{DotFun, DotStore, Empty, Stamped};
use crate::types::hash_ordered::{HashOrdered, HashedKey};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;

/// A dot store that maps encoded keys to inner stores.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DotMap<S: Clone> {
    entries: HashOrdered<S>,
    inner: Shape,
    sweep: bool, // only ever set in a delta; a sweeping map without keys is not bottom
}

impl<S: DotStore> DotMap<S> {
    /// Creates an empty map whose inner stores have the shape `inner`.
    pub(crate) fn with_inner(inner: Shape) -> Self {
        Self { entries: HashOrdered::default(), inner, sweep: false }
    }

    /// Returns the number of keys, in a delta also those without content.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&self, key: &HashedKey) -> Option<&S> {
        self.entries.get(key)
    }

    /// Iterates over the keys by hash, then by bytes, with their inner stores.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&HashedKey, &S)> {
        self.entries.iter()
    }

    /// Stores an inner store, also an empty one, in place of the current one.
    pub(crate) fn insert(&mut self, key: HashedKey, inner: S) {
        self.entries.insert(key, inner);
    }

    pub(crate) fn remove(&mut self, key: &HashedKey) -> Option<S> {
        self.entries.remove(key)
    }

    /// Creates an empty inner store, for a key that the map lacks. The map is unchanged.
    pub(crate) fn fresh(&self) -> S {
        S::empty(&self.inner)
    }

    /// Makes this part of a delta refer to everything below it. Its keys are kept.
    pub(crate) const fn sweep(&mut self) {
        self.sweep = true;
    }

    /// Whether this part of a delta refers to everything below it; `false` in a state.
    pub(crate) const fn sweeps(&self) -> bool {
        self.sweep
    }

    /// Whether both are snapshots of one map without a change between them. `false` proves nothing:
    /// small maps are never recognized. Does not compare the sweep flags.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.entries.same(&other.entries)
    }

    /// Stores the inner store of a key. With [`Empty::Drop`] an empty one removes the key instead.
    fn put(&mut self, key: &HashedKey, inner: S, empty: Empty) {
        if inner.is_bottom() && empty == Empty::Drop {
            self.entries.remove(key);
        } else {
            self.entries.insert(key.clone(), inner);
        }
    }

    /// Returns the keys whose inner stores do not [read like](AnyDotStore::reads_like) those in
    /// `before`, in no defined order; added and removed keys are included. Skips parts that both
    /// snapshots share.
    pub(crate) fn keys_changed(&self, before: &Self) -> Vec<Encoded>
    where
        AnyDotStore: From<S>,
    {
        let mut keys = Vec::new();
        self.entries.diff(&before.entries, |key, now, then| {
            let alike = match (now, then) {
                (Some(now), Some(then)) => {
                    AnyDotStore::from(now.clone()).reads_like(&AnyDotStore::from(then.clone()))
                }
                _ => false,
            };
            if !alike {
                keys.push(key.key().clone());
            }
        });
        keys
    }

    /// Changes the inner stores of `keys` and removes those that are empty afterwards, in a delta
    /// as well; keys that the map lacks are skipped. All others stay shared with older snapshots.
    fn change_each(&mut self, keys: Vec<HashedKey>, change: impl Fn(&mut S)) {
        for key in keys {
            let Some(inner) = self.entries.get_mut(&key) else { continue };
            change(inner);
            if inner.is_bottom() {
                self.entries.remove(&key);
            }
        }
    }

    /// Returns the keys whose inner stores have a live dot in `seen`. Scans the whole map.
    fn keys_with(&self, seen: &impl Seen) -> Vec<HashedKey> {
        let hit = self.entries.iter().filter(|(_, inner)| inner.meets(seen));
        hit.map(|(key, _)| key.clone()).collect()
    }
}

/// Differences that a walk over two maps finds.
struct MapDiff<'a, S> {
    /// Keys that only the first map contains and that hold dots which the second side has seen, so
    /// the second side has overwritten them. Other dots of such a key may be unseen, and stay.
    overwritten: Vec<HashedKey>,
    /// Entries of the second map that the first lacks or has with another content, in key order.
    differing: Vec<(&'a HashedKey, &'a S)>,
}

/// Walks over two maps, both ordered by key. `theirs` is what the side of `other` has seen. Left
/// out are keys with equal inner stores, and keys of `mine` alone that `theirs` has not seen.
fn diff_maps<'a, S: DotStore>(
    mine: &HashOrdered<S>,
    other: &'a HashOrdered<S>,
    theirs: &impl Seen,
) -> MapDiff<'a, S> {
    let mut found = MapDiff { overwritten: Vec::new(), differing: Vec::new() };
    let mut others = other.iter().peekable();
    for (key, inner) in mine.iter() {
        while let Some(ahead) = others.next_if(|(theirs_key, _)| *theirs_key < key) {
            found.differing.push(ahead);
        }
        match others.next_if(|(theirs_key, _)| *theirs_key == key) {
            Some((_, same)) if same == inner => {}
            Some(differing) => found.differing.push(differing),
            None if inner.meets(theirs) => found.overwritten.push(key.clone()),
            None => {}
        }
    }
    found.differing.extend(others);
    found
}

impl<S: DotStore> DotStore for DotMap<S>
where
    AnyDotStore: From<DotMap<S>>,
    Self: FromStore,
{
    /// Creates an empty map. A shape without an inner shape gets flags as inner stores.
    fn empty(shape: &Shape) -> Self {
        Self::with_inner(shape.inner().cloned().unwrap_or(Shape::Flag))
    }

    fn empty_like(&self) -> Self {
        Self::with_inner(self.inner.clone())
    }

    fn from_store(store: AnyDotStore) -> Self {
        Self::open(store).expect("a store is only ever opened as the kind its shape names")
    }

    fn is_bottom(&self) -> bool {
        self.entries.is_empty() && !self.sweep
    }

    /// Joins a full state. Returns immediately if both are the same snapshot. Looks at every key of
    /// both maps, but changes only those that differ. The sweep flags are not looked at.
    fn join(&mut self, mine: &impl Seen, other: &Self, theirs: &impl Seen) {
        if self.same(other) {
            return;
        }
        let found = diff_maps(&self.entries, &other.entries, theirs);
        self.change_each(found.overwritten, |inner| inner.forget(theirs));
        for (key, theirs_inner) in found.differing {
            let held = self.entries.get(key).cloned();
            let mut inner = held.unwrap_or_else(|| theirs_inner.empty_like());
            inner.join(mine, theirs_inner, theirs);
            self.put(key, inner, Empty::Drop);
        }
    }

    /// Joins a delta. If it sweeps, first drops `gone` under every key, and removes the keys that
    /// become empty by that even with [`Empty::Keep`]: this map then sweeps as well, which covers
    /// them. Then joins the touched keys one by one. With [`Empty::Keep`] a touched key that this
    /// map lacks is added, also without content.
    fn join_delta(&mut self, mine: &impl Seen, delta: &Self, gone: &DotSet, empty: Empty) {
        if delta.sweep {
            self.forget(gone);
            if empty == Empty::Keep {
                self.sweep = true;
            }
        }
        for (key, touched) in delta.entries.iter() {
            if let Some(inner) = self.entries.get_mut(key) {
                inner.join_delta(mine, touched, gone, empty);
                if inner.is_bottom() && empty == Empty::Drop {
                    self.entries.remove(key);
                }
            } else {
                let mut inner = touched.empty_like();
                inner.join_delta(mine, touched, gone, empty);
                self.put(key, inner, empty);
            }
        }
    }

    fn forget(&mut self, gone: &impl Seen) {
        self.change_each(self.keys_with(gone), |inner| inner.forget(gone));
    }

    fn meets(&self, seen: &impl Seen) -> bool {
        self.entries.iter().any(|(_, inner)| inner.meets(seen))
    }

    fn each_dot(&self, f: &mut dyn FnMut(Dot)) {
        for (_, inner) in self.entries.iter() {
            inner.each_dot(f);
        }
    }

    /// Returns the matching entries, keys without one left out; the result never sweeps.
    fn only(&self, dots: &DotSet) -> Self {
        let mut part = self.empty_like();
        for (key, inner) in self.entries.iter().filter(|(_, inner)| inner.meets(dots)) {
            part.entries.insert(key.clone(), inner.only(dots));
        }
        part
    }

    /// Returns the touched keys at whose touched places a dot of `gone` is live. The result also
    /// sweeps if the delta does and any key, touched or not, has such a dot. `None` if neither.
    fn places(&self, delta: &Self, gone: &DotSet) -> Option<Self> {
        let mut part = self.empty_like();
        part.sweep = delta.sweep && self.entries.iter().any(|(_, inner)| inner.meets(gone));
        for (key, touched) in delta.entries.iter() {
            if let Some(inner) = self.entries.get(key).and_then(|i| i.places(touched, gone)) {
                part.entries.insert(key.clone(), inner);
            }
        }
        (!part.is_bottom()).then_some(part)
    }

    /// Writes the sweep flag, the number of keys, then each key with its inner store, in key order.
    fn encode(&self, writer: &mut LayoutWriter) {
        writer.byte(u8::from(self.sweep));
        writer.length(self.entries.len());
        for (key, inner) in self.entries.iter() {
            writer.bytes(key.key().as_bytes());
            inner.encode(writer);
        }
    }

    /// Reads what [`encode`](DotStore::encode) wrote. Fails with `Tag` for a sweep flag other than
    /// 0 and 1, and with `NotCanonical` unless the keys ascend strictly by hash, then by bytes. A
    /// key is checked before its inner store is read; its bytes need not be a valid value.
    fn decode(reader: &mut LayoutReader<'_>, shape: &Shape) -> Result<Self, DecodeError> {
        let mut map = Self::empty(shape);
        map.sweep = match reader.byte()? {
            0 => false,
            1 => true,
            found => return Err(DecodeError::Tag { what: "a map", found }),
        };
        let mut before: Option<HashedKey> = None;
        for _ in 0..reader.length(2)? {
            let key = HashedKey::new(Encoded::from_bytes(reader.bytes()?));
            if before.as_ref().is_some_and(|earlier| *earlier >= key) {
                return Err(DecodeError::NotCanonical);
            }
            let inner = S::decode(reader, &map.inner)?;
            map.entries.insert(key.clone(), inner);
            before = Some(key);
        }
        Ok(map)
    }
}

/// Extracts one kind of map from the type-erased store.
pub(crate) trait FromStore: Sized {
    /// Returns the map; `None` if the store is of another kind.
    fn open(store: AnyDotStore) -> Option<Self>;
}

impl FromStore for DotMap<DotFun<()>> {
    fn open(store: AnyDotStore) -> Option<Self> {
        if let AnyDotStore::Set(map) = store { Some(map) } else { None }
    }
}

impl FromStore for DotMap<DotFun<Stamped>> {
    fn open(store: AnyDotStore) -> Option<Self> {
        if let AnyDotStore::Registers(map) = store { Some(map) } else { None }
    }
}

impl FromStore for DotMap<AnyDotStore> {
    fn open(store: AnyDotStore) -> Option<Self> {
        if let AnyDotStore::Map(map) = store { Some(*map) } else { None }
    }
}
