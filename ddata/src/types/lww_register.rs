//! [`LWWRegister`]: a last-writer-wins register in which a causally later write always wins.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::id::ReplicaId;
use crate::types::dot_store::{DotFun, DotStore, Stamp, Stamped};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::AnyDotStore;
use crate::types::{DataType, Open};

/// A register. A write replaces all values that its writer has seen, whatever the clocks show,
/// unless it is refused as stale. Among concurrent writes, readers get the one with the highest
/// (term, time, replica id).
///
/// The other concurrent values stay in the state until the next write, because a merge that dropped
/// them would not be associative. Costs: O(siblings); about 40 B on the wire plus the value.
pub struct LWWRegister<T> {
    siblings: DotFun<Stamped>,
    kind: PhantomData<fn() -> T>,
}

/// Takes a snapshot in nanoseconds, independent of the size.
impl<T> Clone for LWWRegister<T> {
    fn clone(&self) -> Self {
        Self { siblings: self.siblings.clone(), kind: PhantomData }
    }
}

/// Returns the value that readers get, with its writer: the highest (term, time, replica id), then
/// the later dot. `None` if the register was never written or was deleted.
pub(crate) fn winner(siblings: &DotFun<Stamped>) -> Option<(ReplicaId, &Stamped)> {
    let order = |(dot, s): &(crate::causal::Dot, &Stamped)| (s.stamp, dot.actor, dot.counter);
    siblings.iter().max_by_key(order).map(|(dot, stamped)| (dot.actor, stamped))
}

impl<T> PartialEq for LWWRegister<T> {
    /// Compares the encoded values that readers get. Writers, stamps and other concurrent values
    /// are ignored.
    fn eq(&self, other: &Self) -> bool {
        let value = |r: &Self| winner(&r.siblings).map(|(_, s)| s.value.clone());
        value(self) == value(other)
    }
}

impl<T> fmt::Debug for LWWRegister<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LWWRegister").field(&winner(&self.siblings).map(|(_, s)| s)).finish()
    }
}

impl<T: Serialize + DeserializeOwned> LWWRegister<T> {
    /// Returns the value; `None` if the register was never written or was deleted.
    ///
    /// # Errors
    /// [`ValueError`] if the value is not a `T`.
    pub fn get(&self) -> Result<Option<T>, ValueError> {
        winner(&self.siblings).map(|(_, stamped)| stamped.value.decode()).transpose()
    }

    /// Returns the stamp of the value: for a guarded register its (term, sequence number). `None`
    /// if there is no value.
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        winner(&self.siblings).map(|(_, stamped)| stamped.stamp)
    }

    /// Returns the replica that wrote the value; `None` if there is no value.
    #[must_use]
    pub fn writer(&self) -> Option<ReplicaId> {
        winner(&self.siblings).map(|(replica, _)| replica)
    }

    /// Number of concurrent values kept, the one that is read included; 0 without a value.
    #[must_use]
    pub fn siblings(&self) -> usize {
        self.siblings.len()
    }
}

impl<T: 'static> DataType for LWWRegister<T> {
    fn shape() -> Shape {
        Shape::LWWRegister
    }
}

#[expect(private_interfaces, reason = "sealed")]
impl<T> Open for LWWRegister<T> {
    fn open(store: AnyDotStore) -> Self {
        Self { siblings: DotFun::from_store(store), kind: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, LWWRegister<T>> {
    /// Writes a value, also one that is equal, and replaces all siblings. Its stamp is the node's
    /// clock, raised above the time of the value that it replaces, or, in a guarded change, the
    /// next sequence number of its term (1 over a value of a lower term or none). Other clocks do
    /// not learn a raised time. The change does not lean.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the value does not encode; [`EditError::Stale`] if the register has
    /// a guarded write of a higher term, which in an ordinary change every guarded write is, or one
    /// of this term with the last sequence number.
    pub fn set<Q>(&mut self, value: &Q) -> Result<(), EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.put(Encoded::new(value)?, None)
    }

    /// Writes a value under a version chosen by the caller, which becomes its time or, in a guarded
    /// change, its sequence number. Clocks do not learn such versions, so do not use both `set_at`
    /// and [`set`](Self::set) on one register. An ordinary change then
    /// [leans](crate::types::edit::Prepared::leans), because a deleted value may have had a higher
    /// version. A register without a value accepts every version, 0 included.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the value does not encode; [`EditError::Stale`] if the version is
    /// not above the current one, so no version replaces `u64::MAX`, or if the register has
    /// a guarded write of a higher term.
    pub fn set_at<Q>(&mut self, version: u64, value: &Q) -> Result<(), EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.put(Encoded::new(value)?, Some(version))
    }

    /// Writes a value only if the register holds none: the first write wins. Returns whether this
    /// write is the first that this replica knows; otherwise nothing changes. After a delete of the
    /// key the next write is a first one again. Among concurrent first writes, readers get the one
    /// with the earliest time, because its stamp is the complement of the clock. That is far above
    /// the stamps of [`set`](Self::set), so do not use both on one register. In a guarded change,
    /// the usual order holds.
    ///
    /// The change [leans](crate::types::edit::Prepared::leans), except for a first write in a
    /// guarded change.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the register holds none and the value does not encode. Never
    /// `Stale`.
    pub fn set_first<Q>(&mut self, value: &Q) -> Result<bool, EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        if self.leaf::<Stamped>().len() > 0 {
            self.lean();
            return Ok(false);
        }
        // Guarded writes are ordered by the owner's sequence numbers instead of a clock.
        let reverse = (!self.change().is_guarded()).then(|| !self.change().time().raw());
        self.put(Encoded::new(value)?, reverse)?;
        Ok(true)
    }

    /// Writes an encoded value under a stamp from `ChangeBuilder::stamp`, and replaces all
    /// siblings. With a version in an ordinary change, the change leans. Fails with `Stale` before
    /// anything is changed. The write is `clocked` if it is ordinary and its time is exactly that
    /// of the author.
    fn put(&mut self, value: Encoded, version: Option<u64>) -> Result<(), EditError> {
        let live = winner(self.leaf::<Stamped>()).map(|(_, stamped)| stamped.stamp);
        let stamp = self.change().stamp(live, version)?;
        let clocked = !self.change().is_guarded() && stamp.time == self.change().time();
        if version.is_some() && !self.change().is_guarded() {
            self.lean(); // a deleted value may have a higher version
        }
        self.write(Stamped { stamp, clocked, value }, |_| true);
        Ok(())
    }
}
