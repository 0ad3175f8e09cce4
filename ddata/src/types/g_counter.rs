//! [`GCounter`]: a grow-only counter.

use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A grow-only counter: the sum of the totals of all replicas, as a `u128`.
///
/// Costs: an increment O(replicas that have counted); 11–30 B on the wire; the state as much per
/// replica. Each replica has one dot with its running total, so a delete that is concurrent with an
/// increment keeps that replica's whole total. `==` compares each replica's total and its dot, not
/// the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct GCounter {
    totals: DotFun<u128>,
}

impl GCounter {
    /// Returns the sum, saturating at `u128::MAX`.
    #[must_use]
    pub fn value(&self) -> u128 {
        self.totals.iter().fold(0, |sum: u128, (_, total)| sum.saturating_add(*total))
    }

    /// Number of replicas that have counted since the last delete.
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.totals.len()
    }
}

impl DataType for GCounter {
    fn shape() -> Shape {
        Shape::GCounter
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl Open for GCounter {
    fn open(store: AnyDotStore) -> Self {
        Self { totals: DotFun::from_store(store) }
    }
}

impl Edit<'_, GCounter> {
    /// Adds `n` to the total of the author's replica, which starts at 0 again after a delete.
    /// Adding 0 changes nothing and never fails. The change never leans.
    ///
    /// # Errors
    /// [`EditError::Overflow`] if the sum over all replicas known here would leave `u128`.
    /// Concurrent increments may exceed it together; [`value`](GCounter::value) then saturates.
    pub fn increment(&mut self, n: u128) -> Result<(), EditError> {
        if n == 0 {
            return Ok(());
        }
        let totals = self.leaf::<u128>();
        let sum = totals.iter().try_fold(0_u128, |sum, (_, total)| sum.checked_add(*total));
        sum.and_then(|sum| sum.checked_add(n)).ok_or(EditError::Overflow)?;
        let own = totals.of(self.replica()).map_or(0, |(_, total)| *total);
        let me = self.replica();
        self.write(own.checked_add(n).ok_or(EditError::Overflow)?, |dot| dot.actor == me);
        Ok(())
    }
}
