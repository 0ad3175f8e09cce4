//! [`ORMultiMap`]: a map from keys to sets.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, ORMap, ORSet, Open};

/// A map from keys to sets of values. A key disappears with its last value. A binding added
/// concurrently with the removal of its key survives, without the other bindings.
///
/// Costs: O(log n + log m); a change of one binding takes 25–35 B on the wire plus key and value.
pub struct ORMultiMap<K, T: 'static> {
    map: ORMap<K, ORSet<T>>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<K, T: 'static> Clone for ORMultiMap<K, T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone() }
    }
}

impl<K, T: 'static> PartialEq for ORMultiMap<K, T> {
    /// Compares keys and values and ignores which replica bound them.
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K, T> fmt::Debug for ORMultiMap<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map.fmt(f)
    }
}

impl<K, T> ORMultiMap<K, T>
where
    K: Serialize + DeserializeOwned,
    T: Serialize + DeserializeOwned,
{
    /// Returns the values bound to a key; `None` if there are none or the key does not encode.
    pub fn get<Q>(&self, key: &Q) -> Option<ORSet<T>>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.map.get(key)
    }

    /// Whether the value is bound to the key; `false` as well if one of them does not encode.
    pub fn contains<Q, W>(&self, key: &Q, value: &W) -> bool
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        self.get(key).is_some_and(|set| set.contains(value))
    }

    /// Number of keys in the map, not of bindings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Iterates over the entries, each with at least one value. Their order is the same on every
    /// node, but has no meaning. A key that is not a `K` is an error beside its values.
    pub fn iter(&self) -> impl Iterator<Item = (Result<K, ValueError>, ORSet<T>)> + '_ {
        self.map.iter()
    }
}

impl<K: 'static, T: 'static> DataType for ORMultiMap<K, T> {
    fn shape() -> Shape {
        Shape::ORMultiMap
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<K, T> Open for ORMultiMap<K, T> {
    fn open(store: AnyDotStore) -> Self {
        Self { map: ORMap::open(store) }
    }
}

impl<K, T> Edit<'_, ORMultiMap<K, T>>
where
    K: Serialize + DeserializeOwned + 'static,
    T: Serialize + DeserializeOwned + 'static,
{
    /// Binds a value to a key and returns whether the binding is new. A binding that is present is
    /// added again, so that it survives removals that have not seen this addition. The change does
    /// not lean.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key or the value does not encode.
    pub fn bind<Q, W>(&mut self, key: &Q, value: &W) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        self.inner::<ORSet<T>, _>(Encoded::new(key)?, |set| set.insert(value))
    }

    /// Removes a value from a key and returns whether it was bound. The key disappears with its
    /// last value. A missing binding changes nothing. The change
    /// [leans](crate::types::edit::Prepared::leans) in both cases.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key or the value does not encode.
    pub fn unbind<Q, W>(&mut self, key: &Q, value: &W) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
        T: Borrow<W>,
        W: Serialize + ?Sized,
    {
        self.inner::<ORSet<T>, _>(Encoded::new(key)?, |set| set.remove(value))
    }

    /// Removes a key with all its values and returns whether it was present. A missing key changes
    /// nothing. The change [leans](crate::types::edit::Prepared::leans) in both cases.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the key does not encode.
    pub fn remove<Q>(&mut self, key: &Q) -> Result<bool, EditError>
    where
        K: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(key)?)
    }

    /// Removes every key that this replica has seen and returns whether there was one. Concurrent
    /// bindings survive. The change [leans](crate::types::edit::Prepared::leans), also if the map
    /// is empty.
    ///
    /// # Errors
    /// None at present.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
