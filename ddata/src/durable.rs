//! Durable data: what a store must promise, and one in memory.
//!
//! The Replicator does no I/O. It orders records to be written ([`Record`]), and holds back every
//! acknowledgement that depends on them until it is told that they are safe.

use std::collections::BTreeMap;

use crate::key::{Group, KeyName};
use crate::replicator::epoch::AcceptorState;
use crate::types::Term;

/// One durable fact. A later record of the same kind and key replaces an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The whole state of a durable key, in its hand-laid layout.
    Data {
        /// The key.
        key: KeyName,
        /// The name of its shape.
        shape: String,
        /// The group it is guarded by.
        group: Option<Group>,
        /// [`State::encode`](crate::types::delta::State::encode).
        state: Vec<u8>,
    },
    /// A promise to refuse guarded writes below a term.
    Promise {
        /// The group.
        group: Group,
        /// The term.
        term: Term,
    },
    /// What this replica promised and accepted as a voter.
    Acceptor(AcceptorState),
}

/// The store said no. The replica gives up its voting right for what was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the durable store failed: {0}")]
pub struct StoreError(pub String);

/// Where durable records live. Implementations do I/O and stand where I/O is allowed.
pub trait DurableStore {
    /// Writes records, in order, all or none. When it returns they survive a power loss.
    ///
    /// # Errors
    /// [`StoreError`]: nothing is promised about any of them. Never retried as if nothing
    /// happened.
    fn write(&mut self, records: &[Record]) -> Result<(), StoreError>;

    /// Everything written, the latest of each.
    ///
    /// # Errors
    /// [`StoreError`] if the store is corrupt: it names the file and the way out. Never a silent
    /// loss.
    fn load(&self) -> Result<Vec<Record>, StoreError>;
}

/// A store in memory, for tests and simulations: durable as long as it is kept.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    data: BTreeMap<KeyName, Record>, // as many as there are durable keys
    promises: BTreeMap<Group, Term>, // as many as there are groups
    acceptor: Option<AcceptorState>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl DurableStore for MemoryStore {
    fn write(&mut self, records: &[Record]) -> Result<(), StoreError> {
        for record in records {
            match record {
                Record::Data { key, .. } => {
                    self.data.insert(key.clone(), record.clone());
                }
                Record::Promise { group, term } => {
                    self.promises.insert(group.clone(), *term);
                }
                Record::Acceptor(state) => self.acceptor = Some(state.clone()),
            }
        }
        Ok(())
    }

    fn load(&self) -> Result<Vec<Record>, StoreError> {
        let data = self.data.values().cloned();
        let promises = self
            .promises
            .iter()
            .map(|(group, term)| Record::Promise { group: group.clone(), term: *term });
        let acceptor = self.acceptor.iter().cloned().map(Record::Acceptor);
        Ok(data.chain(promises).chain(acceptor).collect())
    }
}
