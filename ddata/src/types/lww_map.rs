//! [`LWWMap`]: keys as in an ORSet, each with an LWW register.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::lww_register::winner;
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, LWWRegister, ORMap, Open};

/// A map of registers: concurrent writes of one key are settled by (stamp, replica), a write wins
/// over a concurrent removal.
///
/// Costs: O(log n); one entry changed in 100,000 takes 50–80 B on the wire.
pub struct LWWMap<K, T: 'static> {
    map: ORMap<K, LWWRegister<T>>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<K, T: 'static> Clone for LWWMap<K, T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone() }
    }
}

impl<K, T: 'static> PartialEq for LWWMap<K, T> {
    /// Equal keys with equal values, whoever wrote them.
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
    /// The value under a key.
    ///
    /// # Errors
    /// [`ValueError`] if it is no `T`.
    pub fn get<Q>(&self, key: &Q) -> Result<Option<T>, ValueError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.get(key).map_or(Ok(None), |register| register.get())
    }

    /// Whether the key is there.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.contains_key(key)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The entries, in an order that is the same on every node but has no meaning.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, T), ValueError>> + '_ {
        self.map.registers().filter_map(|(key, register)| {
            let (_, stamped) = winner(register)?;
            Some(key.key().decode().and_then(|key| Ok((key, stamped.value.decode()?))))
        })
    }

    /// The entries, collected.
    ///
    /// # Errors
    /// [`ValueError`] if a key is no `K` or a value no `T`.
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
    fn open(store: Store) -> Self {
        Self { map: ORMap::open(store) }
    }
}

impl<K, T> Edit<'_, LWWMap<K, T>>
where
    K: Serialize + DeserializeOwned + 'static,
    T: Serialize + DeserializeOwned + 'static,
{
    /// Writes a key's value.
    ///
    /// # Errors
    /// [`EditError::Stale`] if a guarded write of a higher term is there; [`EditError::Encode`].
    pub fn insert<Q, W>(&mut self, key: &Q, value: &W) -> Result<(), EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        self.inner::<LWWRegister<T>, _>(Encoded::new(key)?, |register| register.set(value))
    }

    /// Writes a key's value under a version of the caller's own.
    ///
    /// # Errors
    /// [`EditError::Stale`] if it is not above what is there; [`EditError::Encode`].
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

    /// Removes a key. Says whether it was there.
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
