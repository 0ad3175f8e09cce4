//! [`ORMap`]: a map whose values are replicated data.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_store::{DotFun, Stamped};
use crate::types::edit::{Edit, EditError};
use crate::types::hash_ordered::HashedKey;
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A map whose values are replicated data; values of a key are merged.
///
/// A key exists as long as its value has content. An update concurrent with a removal of its key
/// keeps the key, with the content that the removal had not seen. A removed key that is added again
/// starts from an empty value.
///
/// Costs: O(log n) plus the costs of the value; a change of one entry among 100,000 takes 50–90 B
/// on the wire.
pub struct ORMap<K, V> {
    store: AnyDotStore,
    kind: PhantomData<fn() -> (K, V)>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<K, V> Clone for ORMap<K, V> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), kind: PhantomData }
    }
}

impl<K, V: DataType + PartialEq> PartialEq for ORMap<K, V> {
    /// Compares keys and values, key by key, with the `==` of `V`: a map of sets or registers
    /// ignores which replica wrote them, a map of counters does not.
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self
                .raw()
                .zip(other.raw())
                .all(|((k, v), (l, w))| k == l && V::open(v) == V::open(w))
    }
}

impl<K, V: DataType> fmt::Debug for ORMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.raw().map(|(k, v)| (k.key().clone(), V::open(v)))).finish()
    }
}

impl<K, V: DataType> ORMap<K, V> {
    /// Number of keys in the map.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.store {
            AnyDotStore::Set(map) => map.len(), // the store of no `ORMap` shape, flags included
            AnyDotStore::Registers(map) => map.len(),
            AnyDotStore::Map(map) => map.len(),
            _ => 0, // a leaf, which `open` never gets for the shape of a map
        }
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the encoded keys in their order, by hash, each with a copy of its store that
    /// shares the content. Empty for a leaf.
    fn raw(&self) -> Box<dyn Iterator<Item = (&HashedKey, AnyDotStore)> + '_> {
        match &self.store {
            AnyDotStore::Set(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone().into()))),
            AnyDotStore::Registers(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone().into()))),
            AnyDotStore::Map(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone()))),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// Iterates over the registers of a map of registers without copying them; empty for a map of
    /// other values.
    pub(super) fn registers(&self) -> impl Iterator<Item = (&HashedKey, &DotFun<Stamped>)> {
        let map =
            if let AnyDotStore::Registers(map) = &self.store { Some(map.iter()) } else { None };
        map.into_iter().flatten()
    }

    /// Returns the store of a key; `None` if the key is missing.
    fn raw_get(&self, key: &HashedKey) -> Option<AnyDotStore> {
        match &self.store {
            AnyDotStore::Set(map) => map.get(key).cloned().map(Into::into),
            AnyDotStore::Registers(map) => map.get(key).cloned().map(Into::into),
            AnyDotStore::Map(map) => map.get(key).cloned(),
            _ => None,
        }
    }
}

impl<K: Serialize + DeserializeOwned, V: DataType> ORMap<K, V> {
    /// Returns the value of a key; `None` if the key is missing or does not encode.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.raw_get(&HashedKey::new(Encoded::new(key).ok()?)).map(V::open)
    }

    /// Whether the map contains the key, whatever its value. A key that does not encode is not
    /// contained.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.get(key).is_some()
    }

    /// Iterates over the entries. Their order is the same on every node, but has no meaning. A key
    /// that is not a `K` is an error beside its value.
    pub fn iter(&self) -> impl Iterator<Item = (Result<K, ValueError>, V)> + '_ {
        self.raw().map(|(key, store)| (key.key().decode(), V::open(store)))
    }

    /// Collects the keys in the order of [`iter`](Self::iter).
    ///
    /// # Errors
    /// [`ValueError`] if a key is not a `K`: the first such key.
    pub fn keys<C: FromIterator<K>>(&self) -> Result<C, ValueError> {
        self.raw().map(|(key, _)| key.key().decode()).collect()
    }
}

impl<K: 'static, V: DataType> DataType for ORMap<K, V> {
    fn shape() -> Shape {
        Shape::ORMap(V::shape().into())
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<K, V> Open for ORMap<K, V> {
    fn open(store: AnyDotStore) -> Self {
        Self { store, kind: PhantomData }
    }
}

impl<K: Serialize + DeserializeOwned + 'static, V: DataType> Edit<'_, ORMap<K, V>> {
    /// Changes the value of a key; `f` gets an empty one for a missing key. A new key exists only
    /// if `f` gives it content. A key whose value `f` empties disappears. If `f` changes nothing,
    /// the map does not change.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key does not encode, without a call of `f`; the error of `f`.
    /// If `f` fails after it has changed something, the whole edit fails: with
    /// [`EditError::Torn`] if the caller ignores the error.
    pub fn update<Q, R>(
        &mut self,
        key: &Q,
        f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
    ) -> Result<R, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.inner(Encoded::new(key)?, f)
    }

    /// Replaces the value of a key: removes the current one, if any, then changes an empty one. If
    /// `f` gives it no content, the key stays removed. The change
    /// [leans](crate::types::edit::Prepared::leans), also for a missing key. Content that a peer
    /// adds concurrently is merged with the new value.
    ///
    /// # Errors
    /// Those of [`remove`](Self::remove), without a call of `f`; then those of
    /// [`update`](Self::update). If the value was removed and `f` fails, the whole edit fails: with
    /// [`EditError::Torn`] if the caller ignores the error.
    pub fn replace<Q, R>(
        &mut self,
        key: &Q,
        f: impl FnOnce(&mut Edit<'_, V>) -> Result<R, EditError>,
    ) -> Result<R, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = Encoded::new(key)?;
        let removed = self.remove_key(key.clone())?;
        let replaced = self.inner(key, f);
        if removed && replaced.is_err() {
            self.tear(); // the removal must not be sent alone, even if the caller ignores the error
        }
        replaced
    }

    /// Removes a key with all content that this replica has seen. Returns whether it was present. A
    /// missing key changes nothing. The change [leans](crate::types::edit::Prepared::leans) in both
    /// cases.
    ///
    /// # Errors
    /// [`EditError::Encode`]; [`EditError::GuardedRemove`] in a guarded change (one by the owner of
    /// a guarded group), if the key is present.
    pub fn remove<Q>(&mut self, key: &Q) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(key)?)
    }

    /// Removes every key that this replica has seen and returns whether there was one. Later and
    /// concurrent additions survive. The change [leans](crate::types::edit::Prepared::leans), also
    /// if the map is empty.
    ///
    /// # Errors
    /// [`EditError::GuardedRemove`] in a guarded change, unless the map is empty.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
