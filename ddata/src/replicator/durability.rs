//! What waits for the durable store: nothing that depends on a record leaves before it is safe.

use std::collections::{BTreeMap, BTreeSet};

use super::epoch::EpochId;
use super::port::Output;
use super::request::RequestId;
use super::wire::Scope;
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// What is done when records are safe, or when they are not.
#[expect(clippy::large_enum_variant, reason = "moved once or twice: boxing would cost more")]
#[derive(Clone, Debug)]
pub(super) enum After {
    /// These keys are on disk up to these contexts.
    Synced(Vec<(KeyName, CausalContext)>),
    /// Acknowledge a push; on a failure the named entries are refused.
    Ack {
        to: ReplicaId,
        push: u64,
        scope: Scope,
        nacks: Vec<(u32, super::wire::Nack)>,
        stored: Vec<u32>,
    },
    /// This replica holds what a request asks for.
    Here(RequestId),
    /// This replica has promised what a fencing read asks for, in this epoch.
    Promised(RequestId, EpochId),
    /// Reply to a request that waits for nothing else.
    Reply(RequestId, super::request::Reply),
    /// Send these. On a failure nothing is sent: the promise was never given.
    Send(Vec<Output>),
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Durability {
    next: u64,
    pending: BTreeMap<u64, Vec<After>>, // ≤ batches the store has not written
    /// The last order that carries a voter's promise: messages queue behind it.
    gate: Option<u64>,
    behind: BTreeSet<KeyName>, // durable keys changed and not yet ordered ≤ keys
    behind_due: Option<Instant>,
}

impl Durability {
    pub(super) fn order(&mut self, after: Vec<After>) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, after);
        self.next
    }

    pub(super) fn order_gate(&mut self) {
        let id = self.next;
        self.gate = Some(id);
    }

    /// Holds a message back behind the last promise, or gives it back if that is safe already.
    pub(super) fn gate(&mut self, output: Output) -> Option<Output> {
        let Some(after) = self.gate.and_then(|id| self.pending.get_mut(&id)) else {
            return Some(output);
        };
        if let Some(After::Send(held)) = after.iter_mut().find(|a| matches!(a, After::Send(_))) {
            held.push(output);
        } else {
            after.push(After::Send(vec![output]));
        }
        None
    }

    pub(super) fn done(&mut self, id: u64) -> Vec<After> {
        if self.gate == Some(id) {
            self.gate = None;
        }
        self.pending.remove(&id).unwrap_or_default()
    }

    pub(super) fn write_behind(&mut self, key: &KeyName, due: Instant) {
        self.behind.insert(key.clone());
        self.behind_due.get_or_insert(due);
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.behind_due
    }

    pub(super) fn take_behind(&mut self) -> BTreeSet<KeyName> {
        self.behind_due = None;
        std::mem::take(&mut self.behind)
    }
}
