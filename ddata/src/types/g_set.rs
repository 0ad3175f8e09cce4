//! [`GSet`]: a set that only grows.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, Flag, ORSet, Open};

/// A set that only grows.
///
/// Costs as of [`ORSet`]; adding what is there already costs nothing and sends nothing.
pub struct GSet<T> {
    set: ORSet<T>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<T> Clone for GSet<T> {
    fn clone(&self) -> Self {
        Self { set: self.set.clone() }
    }
}

impl<T> PartialEq for GSet<T> {
    /// Equal elements, whoever added them.
    fn eq(&self, other: &Self) -> bool {
        self.set == other.set
    }
}

impl<T> fmt::Debug for GSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.set.fmt(f)
    }
}

impl<T: Serialize + DeserializeOwned> GSet<T> {
    /// Whether the element is there.
    pub fn contains<Q>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.set.contains(element)
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The elements, in an order that is the same on every node but has no meaning.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, ValueError>> + '_ {
        self.set.iter()
    }

    /// The elements, collected.
    ///
    /// # Errors
    /// [`ValueError`] if one of them is no `T`.
    pub fn elements<C: FromIterator<T>>(&self) -> Result<C, ValueError> {
        self.set.elements()
    }
}

impl<T: 'static> DataType for GSet<T> {
    fn shape() -> Shape {
        Shape::GSet
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for GSet<T> {
    fn open(store: Store) -> Self {
        Self { set: ORSet::open(store) }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, GSet<T>> {
    /// Adds an element. Says whether it was new; one that is there already changes nothing.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the element does not encode.
    pub fn insert<Q>(&mut self, element: &Q) -> Result<bool, EditError>
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let key = Encoded::new(element)?;
        if self.has_key(&key) {
            self.lean();
            return Ok(false);
        }
        self.inner::<Flag, _>(key, |flag| {
            flag.write((), |_| true);
            Ok(true)
        })
    }
}
