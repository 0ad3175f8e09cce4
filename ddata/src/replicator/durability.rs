//! What waits for the durable store: nothing that depends on a record leaves before it is safe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::epoch::{EpochId, EpochInput, EpochMessage};
use super::port::Output;
use super::request::RequestId;
use super::wire::{Body, Scope};
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// What is done when records are safe, or when they are not.
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
        /// The epoch in which they were merged; in a later one the acknowledgement counts for
        /// nothing, since a term may have been promised in between.
        epoch: Option<EpochId>,
    },
    /// This replica holds what a request asks for.
    Here(RequestId),
    /// This replica has promised what a fencing read asks for, in this epoch.
    Promised(RequestId, EpochId),
    /// Reply to a request that waits for nothing else.
    Reply(RequestId, Box<super::request::Reply>),
    /// Send these. On a failure nothing is sent: the promise was never given.
    Send(Vec<Output>),
    /// All of another replica's state is merged.
    Merged(Owed),
    /// What was held back behind a voter's promise; it meets the gate again.
    Held(Vec<Output>), // ≤ HELD_MAX
}

/// A sync that is over when the disk has all of it.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    /// What is said then.
    pub(super) said: EpochInput,
    /// Keys that were not on disk up to there when it ended; ≤ durable keys.
    pub(super) owed: Vec<(KeyName, CausalContext)>,
}

/// Messages held back behind one promise; beyond, they are dropped as a network may drop them.
const HELD_MAX: usize = 65_536;

/// A disk that failed to take a voter's promise is tried again after this time.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a voter's last promise lets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    /// It is on disk: everything.
    #[default]
    Open,
    /// It is being written by this order: nothing yet.
    Behind(u64),
    /// The same, after the disk had failed to take the one before.
    Again(u64),
    /// The disk failed: what depends on no promise. The promise is written again at that time.
    Shut(Instant),
}

/// Whether a message says what only a replica may say whose promises are safe.
fn depends_on_promise(output: &Output) -> bool {
    let Output::Send { message, .. } = output else { return false };
    match &message.body {
        Body::Epoch(said) => !matches!(
            said,
            EpochMessage::Install { .. }
                | EpochMessage::Ask { .. }
                | EpochMessage::Ping { .. }
                | EpochMessage::Pong { .. }
                | EpochMessage::Withheld { .. }
        ),
        Body::Ack { counts, .. }
        | Body::ReadAnswer { counts, .. }
        | Body::Promised { counts, .. } => *counts,
        _ => false,
    }
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Durability {
    next: u64,
    pending: BTreeMap<u64, Vec<After>>, // ≤ batches the store has not written
    gate: Gate,
    /// Syncs whose end the disk failed to take, and when that is tried again.
    owed: VecDeque<(Instant, Owed)>, // ≤ syncs under way
    behind: BTreeSet<KeyName>, // durable keys changed and not yet ordered ≤ keys
    behind_due: Option<Instant>,
}

impl Durability {
    pub(super) fn order(&mut self, after: Vec<After>) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, after);
        self.next
    }

    /// The last order carries a voter's promise: messages queue behind it.
    pub(super) fn order_gate(&mut self) {
        let id = self.next;
        self.gate = if self.is_shut() { Gate::Again(id) } else { Gate::Behind(id) };
    }

    /// Whether what this replica has promised as a voter did not reach the disk: it counts for
    /// nobody until it does.
    pub(super) const fn is_shut(&self) -> bool {
        matches!(self.gate, Gate::Shut(_) | Gate::Again(_))
    }

    /// Whether everything passes.
    pub(super) fn is_open(&self) -> bool {
        self.gate == Gate::Open
    }

    /// Holds a message back behind the last promise, or gives it back if it may leave.
    pub(super) fn gate(&mut self, output: Output) -> Option<Output> {
        let id = match self.gate {
            Gate::Open => return Some(output),
            Gate::Shut(_) => return Some(output).filter(|output| !depends_on_promise(output)),
            Gate::Behind(id) | Gate::Again(id) => id,
        };
        let Some(after) = self.pending.get_mut(&id) else { return Some(output) };
        match after.last_mut() {
            Some(After::Held(held)) if held.len() >= HELD_MAX => {}
            Some(After::Held(held)) => held.push(output),
            _ => after.push(After::Held(vec![output])),
        }
        None
    }

    /// An order is done, or has failed: what follows from it.
    pub(super) fn done(&mut self, now: Instant, id: u64, stored: bool) -> Vec<After> {
        if [Gate::Behind(id), Gate::Again(id)].contains(&self.gate) {
            self.gate = if stored { Gate::Open } else { Gate::Shut(now + RETRY_AFTER) };
        }
        self.pending.remove(&id).unwrap_or_default()
    }

    /// Whether it is time to write a promise again that the disk has not taken.
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        matches!(self.gate, Gate::Shut(at) if at <= now)
    }

    /// Changed keys are written later.
    pub(super) fn write_behind(&mut self, key: &KeyName, due: Instant) {
        self.behind.insert(key.clone());
        self.behind_due.get_or_insert(due);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let retry = if let Gate::Shut(at) = self.gate { Some(at) } else { None };
        let owed = self.owed.front().map(|(at, _)| *at);
        [retry, owed, self.behind_due].into_iter().flatten().min()
    }

    /// The disk failed at the end of a sync: that is tried again.
    pub(super) fn owe_later(&mut self, now: Instant, owed: Owed) {
        self.owed.retain(|(_, other)| other.said != owed.said);
        self.owed.push_back((now + RETRY_AFTER, owed));
    }

    /// A sync whose end is to be tried again.
    pub(super) fn take_owed(&mut self, now: Instant) -> Option<Owed> {
        let due = self.owed.front().is_some_and(|(at, _)| *at <= now);
        if due { self.owed.pop_front().map(|(_, owed)| owed) } else { None }
    }

    pub(super) fn is_behind_due(&self, now: Instant) -> bool {
        self.behind_due.is_some_and(|at| at <= now)
    }

    pub(super) fn take_behind(&mut self) -> BTreeSet<KeyName> {
        self.behind_due = None;
        std::mem::take(&mut self.behind)
    }
}
