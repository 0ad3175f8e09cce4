//! [`PNCounter`]: a counter that can be increased and decreased.

use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A counter that can be increased and decreased: the sum of the totals of all replicas, as an
/// `i128`.
///
/// Costs: a change O(replicas that have counted); 11–30 B on the wire; the state as much per
/// replica. Each replica has one dot with its running total. So a removal (of the key or of a map's
/// key) that is concurrent with a change keeps that replica's *whole* total, not only the change
/// (as in Riak's counters in maps). `==` compares the totals of each replica, not the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct PNCounter {
    totals: DotFun<i128>,
}

impl PNCounter {
    /// Returns the sum, saturating at both ends of `i128`.
    #[must_use]
    pub fn value(&self) -> i128 {
        // Sums increments and decrements apart, so that saturation does not depend on the order.
        let parts = self.totals.iter().map(|(_, total)| *total);
        let (ups, downs) = parts.fold((0_u128, 0_u128), |(ups, downs), total| {
            let size = total.unsigned_abs();
            if total >= 0 {
                (ups.saturating_add(size), downs)
            } else {
                (ups, downs.saturating_add(size))
            }
        });
        if ups >= downs {
            i128::try_from(ups - downs).unwrap_or(i128::MAX)
        } else {
            i128::try_from(downs - ups).map_or(i128::MIN, |size| -size)
        }
    }

    /// Number of replicas that have counted.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.totals.len()
    }
}

impl DataType for PNCounter {
    fn shape() -> Shape {
        Shape::PNCounter
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl Open for PNCounter {
    fn open(store: AnyDotStore) -> Self {
        Self { totals: DotFun::from_store(store) }
    }
}

impl Edit<'_, PNCounter> {
    /// Adds `n`, which may be negative. Adding 0 changes nothing.
    ///
    /// # Errors
    /// [`EditError::Overflow`] if this replica's total, or the sum, would leave `i128`.
    pub fn add(&mut self, n: i128) -> Result<(), EditError> {
        if n == 0 {
            return Ok(());
        }
        self.view().value().checked_add(n).ok_or(EditError::Overflow)?;
        let me = self.replica();
        let own = self.leaf::<i128>().of(me).map_or(0, |(_, total)| *total);
        self.write(own.checked_add(n).ok_or(EditError::Overflow)?, |dot| dot.actor == me);
        Ok(())
    }

    /// Adds 1.
    ///
    /// # Errors
    /// The same as [`add`](Self::add).
    pub fn increment(&mut self) -> Result<(), EditError> {
        self.add(1)
    }

    /// Subtracts 1.
    ///
    /// # Errors
    /// The same as [`add`](Self::add).
    pub fn decrement(&mut self) -> Result<(), EditError> {
        self.add(-1)
    }
}
