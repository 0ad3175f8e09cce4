//! [`MVRegister`]: a register that keeps all concurrent values.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A register that keeps all concurrent values, so that its reader can choose. A write replaces all
/// values that its writer has seen. A delete removes only those that it has seen.
///
/// Costs: O(siblings); about 30 B on the wire plus the value.
pub struct MVRegister<T> {
    siblings: DotFun<Encoded>,
    kind: PhantomData<fn() -> T>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<T> Clone for MVRegister<T> {
    fn clone(&self) -> Self {
        Self { siblings: self.siblings.clone(), kind: PhantomData }
    }
}

impl<T> PartialEq for MVRegister<T> {
    /// Compares the siblings dot by dot: equal values of different writes are different siblings.
    fn eq(&self, other: &Self) -> bool {
        self.siblings == other.siblings
    }
}

impl<T> fmt::Debug for MVRegister<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.siblings.iter().map(|(_, value)| value)).finish()
    }
}

impl<T: Serialize + DeserializeOwned> MVRegister<T> {
    /// Iterates over the concurrent values, ordered by writer; empty if the register was never
    /// written or was deleted. A value that is not a `T` is an error in its place.
    pub fn iter(&self) -> impl Iterator<Item = Result<T, ValueError>> + '_ {
        self.siblings.iter().map(|(_, value)| value.decode())
    }

    /// Collects the concurrent values, ordered by writer.
    ///
    /// # Errors
    /// [`ValueError`] if a value is not a `T`: the first such value.
    pub fn values<C: FromIterator<T>>(&self) -> Result<C, ValueError> {
        self.iter().collect()
    }

    /// Number of concurrent values. Equal values of different writes count each.
    #[must_use]
    pub fn len(&self) -> usize {
        self.siblings.len()
    }

    /// Whether the register has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: 'static> DataType for MVRegister<T> {
    fn shape() -> Shape {
        Shape::MVRegister
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for MVRegister<T> {
    fn open(store: AnyDotStore) -> Self {
        Self { siblings: DotFun::from_store(store), kind: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, MVRegister<T>> {
    /// Writes a value, also one that is equal to the only one, and replaces all values that this
    /// replica has seen. The change always
    /// [leans](crate::types::edit::Prepared::leans), because it also replaces values that were
    /// removed before, which are not in its delta.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the value does not encode.
    pub fn set<Q>(&mut self, value: &Q) -> Result<(), EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        let value = Encoded::new(value)?;
        self.lean(); // also replaces values that were removed before, which are not in the delta
        self.write(value, |_| true);
        Ok(())
    }
}
