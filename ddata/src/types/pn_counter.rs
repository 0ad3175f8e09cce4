//! [`PNCounter`]: a counter that can be increased and decreased.

use crate::causal::Dot;
use crate::types::dot_store::{DotFun, DotStore};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A counter that can be increased and decreased: the sum of the totals of all replicas, as an
/// `i128`.
///
/// Costs: a change takes O(replicas that have counted) time and 11–30 B on the wire; the state is
/// 11–30 B per replica that has counted. Each replica has one dot with its running total, which may
/// be negative. So a removal (of the key or of a map's key) that is concurrent with a change keeps
/// that replica's *whole* total, not only the change (as in Riak's counters in maps). `==` compares
/// each replica's total and its dot, not the sums.
#[derive(Clone, Debug, PartialEq)]
pub struct PNCounter {
    totals: DotFun<i128>,
}

/// The lower 64 bits of an `i128`.
const LOW_HALF: i128 = (1 << 64) - 1;

impl PNCounter {
    /// Returns the sum, saturating at both ends of `i128`. Only the sum of all replicas saturates,
    /// not the sums in between.
    #[must_use]
    pub fn value(&self) -> i128 {
        // Sums the upper and lower halves of the replicas' totals apart. Neither sum can overflow,
        // so only the result saturates, whatever the order of the replicas.
        let halves = self.totals.iter().map(|(_, total)| (*total >> 64, *total & LOW_HALF));
        let (high, low) =
            halves.fold((0_i128, 0_i128), |sums, half| (sums.0 + half.0, sums.1 + half.1));
        let high = high + (low >> 64);
        match i64::try_from(high) {
            Ok(high) => (i128::from(high) << 64) | (low & LOW_HALF),
            Err(_) if high < 0 => i128::MIN,
            Err(_) => i128::MAX,
        }
    }

    /// Number of replicas that have counted since the last delete, also of those whose total is 0
    /// again.
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
    /// Adds `n`, which may be negative, to the total of the author's replica, which starts at 0
    /// again after a delete. Adding 0 changes nothing and never fails. The change never leans.
    ///
    /// # Errors
    /// [`EditError::Overflow`] if this replica's total, or the (saturated) sum known here, would
    /// leave `i128`. Concurrent changes may leave it together; [`value`](PNCounter::value) then
    /// saturates.
    pub fn add(&mut self, n: i128) -> Result<(), EditError> {
        if n == 0 {
            return Ok(());
        }
        self.view().value().checked_add(n).ok_or(EditError::Overflow)?;
        let me = self.replica();
        let own = self.leaf::<i128>().of(me).map_or(0, |(_, total)| *total);
        let is_own = |dot: Dot| dot.actor == me; // the new total replaces this replica's old one
        self.write(own.checked_add(n).ok_or(EditError::Overflow)?, is_own);
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
