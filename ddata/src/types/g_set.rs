//! [`GSet`]: a grow-only set.

use std::borrow::Borrow;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Flag, ORSet, Open};

/// A grow-only set. Only a delete of its key, or a removal in the map that contains it, removes
/// elements; a concurrent addition of a new element survives it.
///
/// Costs: those of [`ORSet`]. Adding an element that is present costs nothing and sends nothing.
pub struct GSet<T> {
    set: ORSet<T>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<T> Clone for GSet<T> {
    fn clone(&self) -> Self {
        Self { set: self.set.clone() }
    }
}

impl<T> PartialEq for GSet<T> {
    /// Compares the elements and ignores which replica added them.
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
    /// Whether the set contains the element. An element that does not encode is not contained.
    pub fn contains<Q>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.set.contains(element)
    }

    /// Number of elements in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Iterates over the elements. Their order is the same on every node, but has no meaning. An
    /// element that is not a `T` is an error in its place.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, ValueError>> + '_ {
        self.set.iter()
    }

    /// Collects the elements in the order of [`iter`](Self::iter).
    ///
    /// # Errors
    /// [`ValueError`] if an element is not a `T`: the first such element.
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
    fn open(store: AnyDotStore) -> Self {
        Self { set: ORSet::open(store) }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, GSet<T>> {
    /// Adds an element and returns whether it was new. Adding an element that is present changes
    /// nothing; the edit then [leans](crate::types::edit::Prepared::leans) on it. So unlike in an
    /// [`ORSet`], it does not protect the element from a concurrent delete.
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
