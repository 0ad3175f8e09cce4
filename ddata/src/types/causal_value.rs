//! [`Causal`]: a typed value with its causal context, the thing that merges.
//!
//! It speaks the `crdts` crate's traits: `CvRDT` (full states), `CmRDT` (deltas as operations,
//! with rule R as their validation) and, for interoperability, `ResetRemove`. The Replicator keeps
//! the erased [`State`] instead.

use std::convert::Infallible;
use std::marker::PhantomData;

use crdts::{CmRDT, CvRDT, ResetRemove, VClock};

use crate::causal::CausalContext;
use crate::encoded::DecodeError;
use crate::id::ReplicaId;
use crate::types::delta::{Delta, Lack, Merged, Repair, State};
use crate::types::edit::{Author, Edit, EditError};
use crate::types::{DataType, Open};

/// A value of type `T` as one replica knows it.
///
/// # Example
/// ```
/// use ostraca_ddata::clock::HybridTimestamp;
/// use ostraca_ddata::id::ReplicaId;
/// use ostraca_ddata::types::edit::Author;
/// use ostraca_ddata::types::{Causal, ORSet};
///
/// let alice = Author::new(ReplicaId::new(1), HybridTimestamp::default());
/// let bob = Author::new(ReplicaId::new(2), HybridTimestamp::default());
/// let (mut a, mut b) = (Causal::<ORSet<String>>::new(), Causal::<ORSet<String>>::new());
///
/// let (_, added) = a.edit(alice, |set| set.insert("tea"))?;
/// b.apply(&added).expect("builds on nothing");
/// let (_, removed) = b.edit(bob, |set| set.remove("tea"))?;
/// let (_, again) = a.edit(alice, |set| set.insert("tea"))?; // concurrent with the removal
/// a.apply(&removed).expect("its dot is known");
/// b.apply(&again).expect("its dot is known");
/// assert!(a.value().contains("tea") && b.value().contains("tea")); // add wins
/// assert_eq!(a, b);
/// # Ok::<(), ostraca_ddata::types::edit::EditError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Causal<T> {
    state: State,
    kind: PhantomData<fn() -> T>,
}

impl<T> PartialEq for Causal<T> {
    fn eq(&self, other: &Self) -> bool {
        self.state == other.state
    }
}

impl<T: DataType> Default for Causal<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: DataType> Causal<T> {
    /// A value nobody has written.
    #[must_use]
    pub fn new() -> Self {
        Self { state: State::new(T::shape()), kind: PhantomData }
    }

    /// A snapshot to read.
    #[must_use]
    pub fn value(&self) -> T {
        T::open(self.state.store.clone())
    }

    /// What has been seen.
    #[must_use]
    pub const fn context(&self) -> &CausalContext {
        self.state.context()
    }

    /// The erased state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Changes the value: all of what `f` does or, on an error, nothing.
    ///
    /// # Errors
    /// Whatever `f` says.
    pub fn edit<R>(
        &mut self,
        author: Author,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError>,
    ) -> Result<(R, Delta), EditError> {
        self.state.edit(author, f)
    }

    /// Deletes everything seen; what is concurrent survives.
    pub fn delete(&mut self, author: Author) -> Delta {
        self.state.delete(author)
    }

    /// Merges a delta.
    ///
    /// # Errors
    /// [`Lack`] by rule R; nothing was changed.
    pub fn apply(&mut self, delta: &Delta) -> Result<Merged, Lack> {
        self.state.apply(delta)
    }

    /// Merges a delta without asking rule R: a bug that suites must catch.
    #[cfg(feature = "canaries")]
    pub fn apply_without_rule_r(&mut self, delta: &Delta) -> Merged {
        self.state.apply_without_rule_r(delta)
    }

    /// Merges a full state.
    pub fn merge(&mut self, other: &Self) -> Merged {
        self.state.merge(&other.state)
    }

    /// What brings a replica that has seen `peer` up to date.
    #[must_use]
    pub fn repair(&self, peer: &CausalContext) -> Repair {
        self.state.repair(peer)
    }

    /// Forgets the oldest removal record.
    pub fn forget_record(&mut self) {
        self.state.forget_record();
    }

    /// The hand-laid layout of the full state.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.state.encode()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no state of this type.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { state: State::decode(bytes, &T::shape())?, kind: PhantomData })
    }
}

impl<T: DataType> CvRDT for Causal<T> {
    type Validation = Infallible;

    fn validate_merge(&self, _other: &Self) -> Result<(), Infallible> {
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        self.state.merge(&other.state);
    }
}

impl<T: DataType> CmRDT for Causal<T> {
    type Op = Delta;
    type Validation = Lack;

    fn validate_op(&self, delta: &Delta) -> Result<(), Lack> {
        self.state.clone().apply(delta).map(|_| ())
    }

    /// An inapplicable delta changes nothing: ask [`validate_op`](CmRDT::validate_op) first, or
    /// use [`Causal::apply`], which answers.
    fn apply(&mut self, delta: Delta) {
        let _ = self.state.apply(&delta);
    }
}

impl<T: DataType> ResetRemove<ReplicaId> for Causal<T> {
    /// Drops what `clock` covers. For code written against the crate only: it takes no dot, so a
    /// replica that is reset no longer has "equal contexts, equal states" with its peers.
    fn reset_remove(&mut self, clock: &VClock<ReplicaId>) {
        self.state.reset(clock);
    }
}

impl State {
    /// A typed snapshot, if this is a `T`.
    #[must_use]
    pub fn view<T: DataType>(&self) -> Option<T> {
        (*self.shape() == T::shape()).then(|| <T as Open>::open(self.store.clone()))
    }
}
