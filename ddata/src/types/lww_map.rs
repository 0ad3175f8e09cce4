//! [`LWWMap`]: a map with keys as in an ORSet, each with an LWW register.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::lww_register::winner;
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, LWWRegister, ORMap, Open};

/// A map of registers. Among concurrent writes of a key, readers get the one with the highest
/// (term, time, replica id). A write wins over a concurrent removal. A key exists from its first
/// write to its removal, whatever its value.
///
/// Costs: O(log n); a change of one entry among 100,000 takes 50–80 B on the wire.
pub struct LWWMap<K, T: 'static> {
    map: ORMap<K, LWWRegister<T>>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<K, T: 'static> Clone for LWWMap<K, T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone() }
    }
}

impl<K, T: 'static> PartialEq for LWWMap<K, T> {
    /// Compares keys and values and ignores which replica wrote them.
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K, T> fmt::Debug for LWWMap<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K, T> LWWMap<K, T>
where
    K: Serialize + DeserializeOwned,
    T: Serialize + DeserializeOwned,
{
    /// Returns the value of a key; `None` if the key is missing or does not encode.
    ///
    /// # Errors
    /// [`ValueError`] if the value is not a `T`.
    pub fn get<Q>(&self, key: &Q) -> Result<Option<T>, ValueError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.get(key).map_or(Ok(None), |register| register.get())
    }

    /// Whether the map contains the key, even if its value is not a `T`. A key that does not encode
    /// is not contained.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.contains_key(key)
    }

    /// Number of keys in the map.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Iterates over the entries. Their order is the same on every node, but has no meaning. An
    /// entry with a key that is not a `K` or a value that is not a `T` is an error in its place.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, T), ValueError>> + '_ {
        self.map.registers().filter_map(|(key, register)| {
            let (_, stamped) = winner(register)?;
            Some(key.key().decode().and_then(|key| Ok((key, stamped.value.decode()?))))
        })
    }

    /// Collects the entries.
    ///
    /// # Errors
    /// [`ValueError`] if a key is not a `K` or a value not a `T`: the first such entry.
    pub fn entries<C: FromIterator<(K, T)>>(&self) -> Result<C, ValueError> {
        self.iter().collect()
    }
}

impl<K: 'static, T: 'static> DataType for LWWMap<K, T> {
    fn shape() -> Shape {
        Shape::LWWMap
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<K, T> Open for LWWMap<K, T> {
    fn open(store: AnyDotStore) -> Self {
        Self { map: ORMap::open(store) }
    }
}

impl<K, T> Edit<'_, LWWMap<K, T>>
where
    K: Serialize + DeserializeOwned + 'static,
    T: Serialize + DeserializeOwned + 'static,
{
    /// Writes the value of a key. An equal value is written again. The change does not lean.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key or the value does not encode; then those of `set` of the
    /// register. Only this key is compared, not the terms of other keys.
    pub fn insert<Q, W>(&mut self, key: &Q, value: &W) -> Result<(), EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        self.inner::<LWWRegister<T>, _>(Encoded::new(key)?, |register| register.set(value))
    }

    /// Writes the value of a key under a version chosen by the caller: see `set_at` of the
    /// register. An ordinary change then [leans](crate::types::edit::Prepared::leans).
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key or the value does not encode; [`EditError::Stale`] if the
    /// version is not above the current one. A missing key accepts every version.
    pub fn insert_at<Q, W>(&mut self, version: u64, key: &Q, value: &W) -> Result<(), EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        let key = Encoded::new(key)?;
        self.inner::<LWWRegister<T>, _>(key, |register| register.set_at(version, value))
    }

    /// Removes a key and returns whether it was present. Removing a missing key changes nothing.
    /// The change [leans](crate::types::edit::Prepared::leans) in both cases.
    ///
    /// # Errors
    /// [`EditError::Encode`]; [`EditError::GuardedRemove`] in a guarded change, if the key is
    /// present. An ordinary change removes guarded writes as well; the Replicator refuses it
    /// before.
    pub fn remove<Q>(&mut self, key: &Q) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(key)?)
    }

    /// Removes every key that this replica has seen and returns whether there was one. Concurrent
    /// writes survive. The change [leans](crate::types::edit::Prepared::leans), also if the map is
    /// empty.
    ///
    /// # Errors
    /// [`EditError::GuardedRemove`] in a guarded change, unless the map is empty.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
