//! [`ORSet`]: a set in which an addition wins over a concurrent removal.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_map::DotMap;
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::hash_ordered::Hashed;
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, Flag, Open};

/// An observed-remove set: a removal takes out the additions it has seen, so an addition that is
/// concurrent with it survives.
///
/// Costs: O(log n) per change; 20–40 B on the wire plus the element; 60–90 B of memory per element.
pub struct ORSet<T> {
    pub(super) map: DotMap<DotFun<()>>,
    kind: PhantomData<fn() -> T>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<T> Clone for ORSet<T> {
    fn clone(&self) -> Self {
        Self { map: self.map.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for ORSet<T> {
    /// Equal elements, whoever added them.
    fn eq(&self, other: &Self) -> bool {
        self.map.len() == other.map.len()
            && self.map.iter().zip(other.map.iter()).all(|(a, b)| a.0 == b.0)
    }
}

impl<T> fmt::Debug for ORSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.map.iter().map(|(key, _)| key.key())).finish()
    }
}

impl<T: Serialize + DeserializeOwned> ORSet<T> {
    /// Whether the element is there.
    pub fn contains<Q>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        Encoded::new(element).is_ok_and(|e| self.map.get(&Hashed::new(e)).is_some())
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, in an order that is the same on every node but has no meaning.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, ValueError>> + '_ {
        self.map.iter().map(|(key, _)| key.key().decode())
    }

    /// The elements, collected.
    ///
    /// # Errors
    /// [`ValueError`] if one of them is no `T`.
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
    fn open(store: Store) -> Self {
        Self { map: DotMap::from_store(store), kind: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, ORSet<T>> {
    /// Adds an element. Says whether it was new. An element that is there already is added
    /// again, so that it survives removals which have not seen this.
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

    /// Removes an element. Says whether it was there.
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

    /// Removes every element that this replica has seen. Says whether there was any.
    ///
    /// # Errors
    /// None today.
    pub fn clear(&mut self) -> Result<bool, EditError> {
        self.clear_all()
    }
}
