//! [`ORMap`]: a map whose values are replicated data themselves.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_store::{DotFun, Stamped};
use crate::types::edit::{Edit, EditError};
use crate::types::hash_ordered::Hashed;
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, Open};

/// A map whose values are replicated data, merged key by key.
///
/// A key is there as long as its value holds anything. An update that is concurrent with a
/// removal of its key keeps the key, with what the remover had not seen. The value of a removed
/// key restarts from empty when the key is added again.
///
/// Costs: O(log n) and the value's own; one entry changed in 100,000 takes 50–90 B on the wire.
pub struct ORMap<K, V> {
    store: Store,
    kind: PhantomData<fn() -> (K, V)>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<K, V> Clone for ORMap<K, V> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), kind: PhantomData }
    }
}

impl<K, V: DataType + PartialEq> PartialEq for ORMap<K, V> {
    /// Equal keys with equal values, whoever wrote them.
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
    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.store {
            Store::Set(map) => map.len(),
            Store::Registers(map) => map.len(),
            Store::Map(map) => map.len(),
            _ => 0,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn raw(&self) -> Box<dyn Iterator<Item = (&Hashed, Store)> + '_> {
        match &self.store {
            Store::Set(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone().into()))),
            Store::Registers(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone().into()))),
            Store::Map(map) => Box::new(map.iter().map(|(k, v)| (k, v.clone()))),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// The registers of a map of registers, as they stand.
    pub(super) fn registers(&self) -> impl Iterator<Item = (&Hashed, &DotFun<Stamped>)> {
        let map = if let Store::Registers(map) = &self.store { Some(map.iter()) } else { None };
        map.into_iter().flatten()
    }

    fn raw_get(&self, key: &Hashed) -> Option<Store> {
        match &self.store {
            Store::Set(map) => map.get(key).cloned().map(Into::into),
            Store::Registers(map) => map.get(key).cloned().map(Into::into),
            Store::Map(map) => map.get(key).cloned(),
            _ => None,
        }
    }
}

impl<K: Serialize + DeserializeOwned, V: DataType> ORMap<K, V> {
    /// The value under a key.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.raw_get(&Hashed::new(Encoded::new(key).ok()?)).map(V::open)
    }

    /// Whether the key is there.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.get(key).is_some()
    }

    /// The entries, in an order that is the same on every node but has no meaning.
    pub fn iter(&self) -> impl Iterator<Item = (Result<K, ValueError>, V)> + '_ {
        self.raw().map(|(key, store)| (key.key().decode(), V::open(store)))
    }

    /// The keys, collected.
    ///
    /// # Errors
    /// [`ValueError`] if one of them is no `K`.
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
    fn open(store: Store) -> Self {
        Self { store, kind: PhantomData }
    }
}

impl<K: Serialize + DeserializeOwned + 'static, V: DataType> Edit<'_, ORMap<K, V>> {
    /// Changes the value under a key, which is created from empty if it is not there.
    ///
    /// # Errors
    /// Whatever `f` says, and [`EditError::Encode`] if the key does not encode.
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

    /// Replaces the value under a key: what is there is removed first.
    ///
    /// # Errors
    /// As [`update`](Self::update).
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
            self.tear();
        }
        replaced
    }

    /// Removes a key with all that this replica has seen under it. Says whether it was there.
    ///
    /// # Errors
    /// [`EditError::GuardedRemove`] in a guarded change; [`EditError::Encode`].
    pub fn remove<Q>(&mut self, key: &Q) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(key)?)
    }

    /// Removes every key that this replica has seen. Says whether there was any.
    ///
    /// # Errors
    /// [`EditError::GuardedRemove`] in a guarded change.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
