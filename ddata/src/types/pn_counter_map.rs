//! [`PNCounterMap`]: a map with keys as in an ORSet, each with a counter.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, ORMap, Open, PNCounter};

/// A map of counters. A counter at 0 keeps its key until it is removed. A removal that is
/// concurrent with a change keeps the *whole* total of the replica that made the change (see
/// [`PNCounter`]).
///
/// Costs: O(log n); a change of one entry takes 22–40 B on the wire plus the key.
pub struct PNCounterMap<K> {
    map: ORMap<K, PNCounter>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<K> Clone for PNCounterMap<K> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone() }
    }
}

impl<K> PartialEq for PNCounterMap<K> {
    /// Compares keys and totals. The totals are compared per replica, with their dots, so maps with
    /// equal counts may differ.
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K> fmt::Debug for PNCounterMap<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K: Serialize + DeserializeOwned> PNCounterMap<K> {
    /// Returns the count of a key; `None` if the key is missing or does not encode.
    pub fn get<Q>(&self, key: &Q) -> Option<i128>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.get(key).map(|counter| counter.value())
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

    /// Iterates over the entries, also those with a count of 0. Their order is the same on every
    /// node, but has no meaning. A key that is not a `K` is an error in its place.
    pub fn iter(&self) -> impl Iterator<Item = Result<(K, i128), ValueError>> + '_ {
        self.map.iter().map(|(key, counter)| Ok((key?, counter.value())))
    }

    /// Collects the entries.
    ///
    /// # Errors
    /// [`ValueError`] if a key is not a `K`.
    pub fn entries<C: FromIterator<(K, i128)>>(&self) -> Result<C, ValueError> {
        self.iter().collect()
    }
}

impl<K: 'static> DataType for PNCounterMap<K> {
    fn shape() -> Shape {
        Shape::PNCounterMap
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<K> Open for PNCounterMap<K> {
    fn open(store: AnyDotStore) -> Self {
        Self { map: ORMap::open(store) }
    }
}

impl<K: Serialize + DeserializeOwned + 'static> Edit<'_, PNCounterMap<K>> {
    /// Adds `n`, which may be negative, to the counter of a key. A missing key starts at 0. Adding
    /// 0 changes nothing and creates no key.
    ///
    /// # Errors
    /// [`EditError::Encode`], also for `n` = 0; [`EditError::Overflow`] as for [`PNCounter`].
    pub fn add<Q>(&mut self, key: &Q, n: i128) -> Result<(), EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.inner::<PNCounter, _>(Encoded::new(key)?, |counter| counter.add(n))
    }

    /// Removes a key and returns whether it was present. A missing key changes nothing. The change
    /// [leans](crate::types::edit::Prepared::leans) in both cases.
    ///
    /// # Errors
    /// [`EditError::Encode`].
    pub fn remove<Q>(&mut self, key: &Q) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(key)?)
    }
}
