//! [`Flag`]: a switch from false to true that never goes back.

use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A switch that stays on once it is on (until its key is deleted).
///
/// Costs: O(1); 19 B on the wire for each replica that switched it on before it knew of another
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flag {
    on: bool,
}

impl Flag {
    /// Whether a replica has switched it on; `false` again after a delete.
    #[must_use]
    pub const fn is_on(self) -> bool {
        self.on
    }
}

impl DataType for Flag {
    fn shape() -> Shape {
        Shape::Flag
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl Open for Flag {
    /// Opens a store: on if any dot is live. Panics if it is the store of another type.
    fn open(store: AnyDotStore) -> Self {
        Self { on: !DotFun::<()>::from_store(store).is_bottom() }
    }
}

impl Edit<'_, Flag> {
    /// Switches the flag on and returns whether that changed it. A flag that is on already is left
    /// as it is, without a dot; the change then [leans](crate::types::edit::Prepared::leans) on it.
    /// A switch that changed it survives a concurrent delete.
    ///
    /// # Errors
    /// None at present.
    pub fn switch_on(&mut self) -> Result<bool, EditError> {
        if self.leaf::<()>().len() > 0 {
            self.lean();
            return Ok(false);
        }
        self.write((), |_| true);
        Ok(true)
    }
}
