//! [`ORSet`]: an observed-remove set; an addition wins over a concurrent removal.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_map::DotMap;
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::hash_ordered::HashedKey;
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Flag, Open};

/// An observed-remove set: a removal removes only the additions that it has seen, so a concurrent
/// addition survives.
///
/// Costs: O(log n) per change; 20–40 B on the wire plus the element; 60–90 B of memory per element.
pub struct ORSet<T> {
    pub(super) map: DotMap<DotFun<()>>,
    kind: PhantomData<fn() -> T>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<T> Clone for ORSet<T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for ORSet<T> {
    /// Compares the encoded elements and ignores which replica added them.
    fn eq(&self, other: &Self) -> bool {
        self.map.len() == other.map.len()
            && self.map.iter().zip(other.map.iter()).all(|(a, b)| a.0 == b.0)
    }
}

/// Shows the encoded elements, not decoded ones.
impl<T> fmt::Debug for ORSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.map.iter().map(|(key, _)| key.key())).finish()
    }
}

impl<T: Serialize + DeserializeOwned> ORSet<T> {
    /// Whether the set contains the element. An element that does not encode is not contained.
    pub fn contains<Q>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Encoded::new(element).is_ok_and(|e| self.map.get(&HashedKey::new(e)).is_some())
    }

    /// Number of elements in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the elements. Their order is the same on every node, but has no meaning. An
    /// element that is not a `T` is an error in its place.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, ValueError>> + '_ {
        self.map.iter().map(|(key, _)| key.key().decode())
    }

    /// Collects the elements in the order of [`iter`](Self::iter).
    ///
    /// # Errors
    /// [`ValueError`] if an element is not a `T`: the first such element.
    pub fn elements<C: FromIterator<T>>(&self) -> Result<C, ValueError> {
        self.iter().collect()
    }
}

impl<T: 'static> DataType for ORSet<T> {
    fn shape() -> Shape {
        Shape::ORSet
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for ORSet<T> {
    fn open(store: AnyDotStore) -> Self {
        Self { map: DotMap::from_store(store), kind: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, ORSet<T>> {
    /// Adds an element and returns whether it was new. An element that is present is added again,
    /// so that it survives removals that have not seen this addition: the delta is never empty, and
    /// the change does not lean.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the element does not encode.
    pub fn insert<Q>(&mut self, element: &Q) -> Result<bool, EditError>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = Encoded::new(element)?;
        let new = !self.has_key(&key);
        self.inner::<Flag, _>(key, |flag| {
            flag.write((), |_| true);
            Ok(())
        })?;
        Ok(new)
    }

    /// Removes an element and returns whether it was present. A missing element changes nothing.
    /// The change [leans](crate::types::edit::Prepared::leans) in both cases.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the element does not encode.
    pub fn remove<Q>(&mut self, element: &Q) -> Result<bool, EditError>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.remove_key(Encoded::new(element)?)
    }

    /// Removes every element that this replica has seen and returns whether there was one.
    /// Concurrent additions survive. The change [leans](crate::types::edit::Prepared::leans), also
    /// if the set is empty.
    ///
    /// # Errors
    /// None at present.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
