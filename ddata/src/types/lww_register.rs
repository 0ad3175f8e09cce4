//! [`LWWRegister`]: the last write wins, and "last" never goes against causality.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::encoded::{Encoded, ValueError};
use crate::id::ReplicaId;
use crate::types::dot_store::{DotFun, DotStore, Stamp, Stamped};
use crate::types::edit::{Edit, EditError};
use crate::types::shape::Shape;
use crate::types::store::Store;
use crate::types::{DataType, Open};

/// A register. A write overwrites what its writer has seen, whatever the clocks say; among
/// concurrent writes the highest (term, stamp, replica id) is read.
///
/// The losers of a race stay in the state until the next write: dropping them at a merge would
/// make merges depend on their grouping. Costs: O(siblings); about 40 B on the wire plus the value.
pub struct LWWRegister<T> {
    siblings: DotFun<Stamped>,
    kind: PhantomData<fn() -> T>,
}

/// A snapshot: nanoseconds, whatever the size.
impl<T> Clone for LWWRegister<T> {
    fn clone(&self) -> Self {
        Self { siblings: self.siblings.clone(), kind: PhantomData }
    }
}

/// What is read among siblings: the highest (term, stamp, replica id), then the later dot.
pub(crate) fn winner(siblings: &DotFun<Stamped>) -> Option<(ReplicaId, &Stamped)> {
    let order = |(dot, s): &(crate::causal::Dot, &Stamped)| (s.stamp, dot.actor, dot.counter);
    siblings.iter().max_by_key(order).map(|(dot, stamped)| (dot.actor, stamped))
}

impl<T> PartialEq for LWWRegister<T> {
    /// Equal content as read.
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
    /// The value; `None` if nobody has written.
    ///
    /// # Errors
    /// [`ValueError`] if it is no `T`.
    pub fn get(&self) -> Result<Option<T>, ValueError> {
        winner(&self.siblings).map(|(_, stamped)| stamped.value.decode()).transpose()
    }

    /// The stamp of the value read: for a guarded register its (term, sequence number).
    #[must_use]
    pub fn stamp(&self) -> Option<Stamp> {
        winner(&self.siblings).map(|(_, stamped)| stamped.stamp)
    }

    /// Who wrote the value read.
    #[must_use]
    pub fn writer(&self) -> Option<ReplicaId> {
        winner(&self.siblings).map(|(replica, _)| replica)
    }

    /// Concurrent writes kept, the one that is read included.
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
    fn open(store: Store) -> Self {
        Self { siblings: DotFun::from_store(store), kind: PhantomData }
    }
}

impl<T: Serialize + DeserializeOwned + 'static> Edit<'_, LWWRegister<T>> {
    /// Writes a value, stamped by this node's clock, or, in a guarded change, with the next
    /// sequence number of its term.
    ///
    /// # Errors
    /// [`EditError::Stale`] if a guarded write of a higher term is there;
    /// [`EditError::Encode`] if the value does not encode.
    pub fn set<Q>(&mut self, value: &Q) -> Result<(), EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.put(Encoded::new(value)?, None)
    }

    /// Writes a value under a sequence number or version of the caller's own. Where others use
    /// [`set`](Self::set), no clock learns of such versions: keep to one of the two in a register.
    ///
    /// # Errors
    /// [`EditError::Stale`] if it is not above what is there.
    pub fn set_at<Q>(&mut self, version: u64, value: &Q) -> Result<(), EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        self.put(Encoded::new(value)?, Some(version))
    }

    /// Writes a value only if nobody has written: the first write wins. Says whether this one is
    /// the first as far as this replica knows; among concurrent ones the earliest is read.
    ///
    /// # Errors
    /// [`EditError::Encode`] if the value does not encode.
    pub fn set_first<Q>(&mut self, value: &Q) -> Result<bool, EditError>
    where
        T: std::borrow::Borrow<Q>,
        Q: Serialize + ?Sized,
    {
        if self.leaf::<Stamped>().len() > 0 {
            self.lean();
            return Ok(false);
        }
        // Guarded writes are ordered by their owner's sequence numbers, not by any clock.
        let reverse = (!self.change().is_guarded()).then(|| !self.change().time().raw());
        self.put(Encoded::new(value)?, reverse)?;
        Ok(true)
    }

    fn put(&mut self, value: Encoded, version: Option<u64>) -> Result<(), EditError> {
        let live = winner(self.leaf::<Stamped>()).map(|(_, stamped)| stamped.stamp);
        let stamp = self.change().stamp(live, version)?;
        let clocked = !self.change().is_guarded() && stamp.time == self.change().time();
        if version.is_some() && !self.change().is_guarded() {
            self.lean(); // what was deleted before may stand above it; guarded ones are never removed
        }
        self.write(Stamped { stamp, clocked, value }, |_| true);
        Ok(())
    }
}
