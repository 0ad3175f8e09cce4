//! Durable data: the contract of a store, and an in-memory implementation.
//!
//! The Replicator does no I/O. It outputs records to write ([`DurableRecord`]), and withholds every
//! acknowledgement that depends on them until its caller reports that they are stored.

use std::collections::BTreeMap;

use crate::key::{Group, KeyName};
use crate::replicator::epoch::AcceptorState;
use crate::types::Term;

/// A durable record. A later record of the same kind and key replaces an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub enum DurableRecord {
    /// The encoded state of a durable key.
    Data {
        /// Name of the key.
        key: KeyName,
        /// Name of its shape.
        shape: String,
        /// The group that guards the key.
        group: Option<Group>,
        /// The result of [`KeyState::encode`](crate::types::delta::KeyState::encode).
        state: Vec<u8>,
    },
    /// A promise to refuse guarded writes below a term.
    Promise {
        /// The group that is guarded.
        group: Group,
        /// The lowest term that is not refused.
        term: Term,
    },
    /// The promises and accepted proposals of this replica as a voter.
    Acceptor(AcceptorState),
}

/// The store failed. The replica loses its vote for the records that were not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the durable store failed: {0}")]
pub struct StoreError(pub String);

/// A store for durable records. Implementations do the I/O.
pub trait DurableStore {
    /// Writes records in order, all or none. When it returns, they survive a power loss.
    ///
    /// # Errors
    /// [`StoreError`]: any of the records may or may not be stored. The caller must not retry as if
    /// the write had not happened.
    fn write(&mut self, records: &[DurableRecord]) -> Result<(), StoreError>;

    /// Returns the latest record of each kind and key; none from a new store.
    ///
    /// # Errors
    /// [`StoreError`] if the store is corrupt. The error names the file and the remedy. Data must
    /// never be lost silently.
    fn load(&self) -> Result<Vec<DurableRecord>, StoreError>;
}

/// An in-memory store for tests and simulations. It keeps records as long as it exists.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    data: BTreeMap<KeyName, DurableRecord>, // as many as there are durable keys
    promises: BTreeMap<Group, Term>,        // as many as there are groups
    acceptor: Option<AcceptorState>,
}

impl MemoryStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl DurableStore for MemoryStore {
    /// Replaces the record of the same kind and key, also by a lower term or for another group. Of
    /// several such records in one call the last one stays. Never fails.
    fn write(&mut self, records: &[DurableRecord]) -> Result<(), StoreError> {
        for record in records {
            match record {
                DurableRecord::Data { key, .. } => {
                    self.data.insert(key.clone(), record.clone());
                }
                DurableRecord::Promise { group, term } => {
                    self.promises.insert(group.clone(), *term);
                }
                DurableRecord::Acceptor(state) => self.acceptor = Some(state.clone()),
            }
        }
        Ok(())
    }

    /// Returns data by key, then promises by group, then the acceptor if one was written. Never
    /// fails.
    fn load(&self) -> Result<Vec<DurableRecord>, StoreError> {
        let data = self.data.values().cloned();
        let promises = self
            .promises
            .iter()
            .map(|(group, term)| DurableRecord::Promise { group: group.clone(), term: *term });
        let acceptor = self.acceptor.iter().cloned().map(DurableRecord::Acceptor);
        Ok(data.chain(promises).chain(acceptor).collect())
    }
}
