//! [`Causal`]: a typed value with its causal context; the unit of merging.
//!
//! It implements the traits of the `crdts` crate: `CvRDT` (full states), `CmRDT` (deltas as
//! operations, validated by the causal delta rule) and, for interoperability, `ResetRemove`. The
//! Replicator works with the type-erased [`KeyState`] instead.

use std::convert::Infallible;
use std::marker::PhantomData;

use crdts::{CmRDT, CvRDT, ResetRemove, VClock};

use crate::causal::CausalContext;
use crate::encoded::DecodeError;
use crate::id::ReplicaId;
use crate::types::delta::{Delta, KeyState, Lack, MergeResult, Repair};
use crate::types::edit::{Author, Edit, EditError};
use crate::types::{DataType, Open};

/// A value of type `T` in the state of one replica.
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
    state: KeyState,
    kind: PhantomData<fn() -> T>,
}

impl<T> PartialEq for Causal<T> {
    /// Compares content and context, dot by dot. Records for repairs are ignored.
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
    /// Creates a value that was never written.
    #[must_use]
    pub fn new() -> Self {
        Self { state: KeyState::new(T::shape()), kind: PhantomData }
    }

    /// Returns a snapshot for reading; later changes of this value don't show in it.
    #[must_use]
    pub fn value(&self) -> T {
        T::open(self.state.store.clone())
    }

    /// Returns the context: the dots of all changes that this replica has made or merged, also of
    /// overwritten and removed content.
    #[must_use]
    pub const fn context(&self) -> &CausalContext {
        self.state.context()
    }

    /// Returns the type-erased state.
    #[must_use]
    pub const fn state(&self) -> &KeyState {
        &self.state
    }

    /// Changes the value. Either all changes of `f` are made or, on any error, none. Returns the
    /// result of `f` and the delta for peers, which is empty if nothing changed.
    ///
    /// # Errors
    /// The error of `f`, and those of [`KeyState::edit`].
    pub fn edit<R>(
        &mut self,
        author: Author,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError>,
    ) -> Result<(R, Delta), EditError> {
        self.state.edit(author, f)
    }

    /// Deletes everything that this replica has seen, also of a grow-only type; concurrent changes
    /// survive. The author's term is ignored. The delta is empty if there was nothing
    /// to delete or this replica has no dot left: see [`KeyState::delete`].
    pub fn delete(&mut self, author: Author) -> Delta {
        self.state.delete(author)
    }

    /// Merges a delta. Returns [`MergeResult::Unchanged`] if all its changes were known.
    ///
    /// # Errors
    /// [`Lack`] if the delta is refused: see [`KeyState::apply`]. Nothing was changed.
    ///
    /// # Panics
    /// If the delta was made for a shape that is stored differently.
    pub fn apply(&mut self, delta: &Delta) -> Result<MergeResult, Lack> {
        self.state.apply(delta)
    }

    /// Merges a delta without the causal delta rule: a planted fault that test suites must catch.
    #[cfg(feature = "canaries")]
    pub fn apply_without_rule_r(&mut self, delta: &Delta) -> MergeResult {
        self.state.apply_without_rule_r(delta)
    }

    /// Merges a full state. Returns [`MergeResult::Unchanged`] if this replica has seen all of it.
    /// Removal records are not taken over: see [`KeyState::merge`].
    pub fn merge(&mut self, other: &Self) -> MergeResult {
        self.state.merge(&other.state)
    }

    /// Returns the repair that brings a replica with the context `peer` up to date: see
    /// [`KeyState::repair`].
    #[must_use]
    pub fn repair(&self, peer: &CausalContext) -> Repair {
        self.state.repair(peer)
    }

    /// Drops the oldest removal record, if there is one. A peer that lacks it will get the full
    /// state.
    pub fn forget_record(&mut self) {
        self.state.forget_record();
    }

    /// Encodes the full state, without its shape and its removal records.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.state.encode()
    }

    /// Decodes the result of [`encode`](Self::encode). The result has no removal records.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a state of this type.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { state: KeyState::decode(bytes, &T::shape())?, kind: PhantomData })
    }
}

impl<T: DataType> CvRDT for Causal<T> {
    type Validation = Infallible;

    /// Accepts every state, because `T` determines the shape.
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

    /// Tries the delta on a copy of the state; this state is unchanged. Fails with the error of
    /// [`Causal::apply`].
    fn validate_op(&self, delta: &Delta) -> Result<(), Lack> {
        self.state.clone().apply(delta).map(|_| ())
    }

    /// Merges a delta. One that [`Causal::apply`] refuses changes nothing and causes no error: call
    /// [`validate_op`](CmRDT::validate_op) first, or use [`Causal::apply`], which returns the
    /// error.
    fn apply(&mut self, delta: Delta) {
        let _ = self.state.apply(&delta);
    }
}

impl<T: DataType> ResetRemove<ReplicaId> for Causal<T> {
    /// Drops the entries that `clock` covers. Only for code that is written against the `crdts`
    /// crate: the reset takes no dot, so this replica and its peers may have equal contexts and
    /// different states.
    fn reset_remove(&mut self, clock: &VClock<ReplicaId>) {
        self.state.reset(clock);
    }
}

impl KeyState {
    /// Returns a typed snapshot; `None` if this state has another shape than `T`.
    #[must_use]
    pub fn view<T: DataType>(&self) -> Option<T> {
        (*self.shape() == T::shape()).then(|| <T as Open>::open(self.store.clone()))
    }
}
