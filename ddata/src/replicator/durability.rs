//! Actions and messages that wait for the durable store.
//!
//! Rule "Durable before acknowledged" (docs/protocol/replication.md#durable-before-acknowledged):
//! an acknowledgement must outlive the process, so nothing that depends on a record leaves before
//! the record is on disk. Each write to the store is an *order* with a number; the actions that
//! follow from it are kept here until its result arrives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::epoch::{EpochId, EpochInput, EpochMessage};
use super::port::ReplicatorOutput;
use super::request::RequestId;
use super::wire::{AckScope, Body};
use crate::causal::CausalContext;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// An action that follows when the records of an order are on disk, or when writing them failed.
#[derive(Clone, Debug)]
pub(super) enum WriteCompletion {
    /// Records that these keys are on disk up to these contexts. On a failure they are written
    /// again later, because no change or message need follow that would order it.
    Synced(Vec<(KeyName, CausalContext)>),
    /// Acknowledges a push. On a failure the entries in `stored` are refused.
    Ack {
        to: ReplicaId,
        push: u64,
        scope: AckScope,
        nacks: Vec<(u32, super::wire::Nack)>,
        stored: Vec<u32>,
        /// The epoch in which the entries were merged. In a later one the acknowledgement does not
        /// count, because a term may have been promised in between. `None`: it never counts.
        epoch: Option<EpochId>,
    },
    /// Counts this replica as a holder of the entries of a request. On a failure it counts as a
    /// replica whose store failed.
    Here(RequestId),
    /// Counts this replica's own promise for a fencing read that was made in this epoch. On a
    /// failure it does not count.
    Promised(RequestId, EpochId),
    /// Replies to a request that waits for nothing else. On a failure the request fails with
    /// `StoreFailure`.
    Reply(RequestId, Box<super::request::ReplicatorReply>),
    /// Sends these messages. On a failure nothing is sent, because the promise was not given.
    Send(Vec<ReplicatorOutput>),
    /// Ends a sync: the state of another replica is merged and on disk. On a failure, and while a
    /// key is missing on disk, it is tried again after [`RETRY_AFTER`].
    Merged(PendingSync),
    /// Releases messages that were held back behind a vote; each passes the gate again, also after
    /// a failure.
    Held(Vec<ReplicatorOutput>), // ≤ HELD_MAX
}

/// A sync that has merged everything and ends when all of it is on disk.
#[derive(Clone, Debug)]
pub(super) struct PendingSync {
    /// The input that reports the end of the sync to the configuration machine.
    pub(super) said: EpochInput,
    /// Keys with the contexts that must be on disk before the sync ends; ≤ durable keys.
    pub(super) owed: Vec<(KeyName, CausalContext)>,
}

/// Maximum number of messages held back behind one vote. Further ones are dropped, which is safe
/// because a network may drop messages, too.
const HELD_MAX: usize = 65_536;

/// How long after a failed write of a vote, or of the end of a sync, it is tried again; without
/// write-behind also of a key.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The gate for outgoing messages, by the state of this replica's latest vote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum OutputGate {
    /// The vote is on disk: all messages pass.
    #[default]
    Open,
    /// The vote is being written by this order: all messages are held back.
    Behind(u64),
    /// As `Behind`, after an earlier write had failed.
    Again(u64),
    /// The write failed: only messages that depend on no vote pass. It is repeated at that time.
    Shut(Instant),
}

/// Whether a message may be sent only by a replica whose votes and promises are on disk: answers
/// that count, and configuration messages that rest on a ballot of this replica. Those do not:
/// `Install`, `Ask`, `Ping`, `Pong`, `Withheld`, and outputs that are no messages.
fn depends_on_promise(output: &ReplicatorOutput) -> bool {
    let ReplicatorOutput::Send { message, .. } = output else { return false };
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

/// Number of requests to which these actions reply.
fn replies_in(after: &[WriteCompletion]) -> usize {
    after.iter().filter(|action| matches!(action, WriteCompletion::Reply(..))).count()
}

/// The open orders, the gate, and durable keys that wait for write-behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Durability {
    next: u64,                                    // the number of the last order
    pending: BTreeMap<u64, Vec<WriteCompletion>>, // ≤ batches the store has not written
    replies: usize,                               // `Reply` actions in `pending`
    gate: OutputGate,
    /// Syncs of which a write failed, and when their last write is tried again.
    owed: VecDeque<(Instant, PendingSync)>, // ≤ open syncs
    behind: BTreeSet<KeyName>, // changed durable keys that are not ordered yet; ≤ keys
    behind_due: Option<Instant>,
}

impl Durability {
    /// Registers an order and returns its number, which the store's result will name.
    pub(super) fn order(&mut self, after: Vec<WriteCompletion>) -> u64 {
        self.next += 1;
        self.replies += replies_in(&after);
        self.pending.insert(self.next, after);
        self.next
    }

    /// Closes the gate until the last order is done, because that order carries a vote. Must
    /// directly follow its [`order`](Self::order). A later vote replaces an earlier one that is
    /// being written: the end of the earlier order then leaves the gate as it is. After a failure
    /// the replica counts as shut until the new order has succeeded.
    pub(super) fn order_gate(&mut self) {
        let id = self.next;
        self.gate = if self.is_shut() { OutputGate::Again(id) } else { OutputGate::Behind(id) };
    }

    /// Whether writing this replica's latest vote failed and was not made up for. Until then its
    /// answers must not count.
    pub(super) const fn is_shut(&self) -> bool {
        matches!(self.gate, OutputGate::Shut(_) | OutputGate::Again(_))
    }

    /// Whether all messages pass the gate. Not the opposite of [`is_shut`](Self::is_shut): while a
    /// vote is being written, the gate is neither.
    pub(super) fn is_open(&self) -> bool {
        self.gate == OutputGate::Open
    }

    /// Returns the message if it may leave now. Otherwise returns `None`: while the vote is being
    /// written, any message is held back behind it, or dropped above [`HELD_MAX`]; after the write
    /// has failed, a message that depends on a vote is dropped. Held messages come back from
    /// [`done`](Self::done) with the other actions of that order, and must pass the gate again.
    pub(super) fn gate(&mut self, output: ReplicatorOutput) -> Option<ReplicatorOutput> {
        let id = match self.gate {
            OutputGate::Open => return Some(output),
            OutputGate::Shut(_) => {
                return Some(output).filter(|output| !depends_on_promise(output));
            }
            OutputGate::Behind(id) | OutputGate::Again(id) => id,
        };
        let Some(after) = self.pending.get_mut(&id) else { return Some(output) };
        match after.last_mut() {
            Some(WriteCompletion::Held(held)) if held.len() >= HELD_MAX => {}
            Some(WriteCompletion::Held(held)) => held.push(output),
            _ => after.push(WriteCompletion::Held(vec![output])),
        }
        None
    }

    /// Ends an order, which succeeded if `stored`, and returns its actions in their order, also
    /// after a failure; none for an unknown or ended order. If it carried the latest vote, the gate
    /// opens or, after a failure, shuts until a repeated write has succeeded.
    pub(super) fn done(&mut self, now: Instant, id: u64, stored: bool) -> Vec<WriteCompletion> {
        if [OutputGate::Behind(id), OutputGate::Again(id)].contains(&self.gate) {
            self.gate = if stored { OutputGate::Open } else { OutputGate::Shut(now + RETRY_AFTER) };
        }
        let after = self.pending.remove(&id).unwrap_or_default();
        self.replies -= replies_in(&after);
        after
    }

    /// Number of requests that wait for nothing but their order.
    pub(super) const fn replies(&self) -> usize {
        self.replies
    }

    /// Whether a failed write of a vote must be repeated now. Stays true until the caller orders
    /// the write with [`order_gate`](Self::order_gate).
    pub(super) fn is_retry_due(&self, now: Instant) -> bool {
        matches!(self.gate, OutputGate::Shut(at) if at <= now)
    }

    /// Schedules a changed key for write-behind: at `due` if no other key waits, otherwise at the
    /// time that the first waiting key has set, even if `due` is earlier.
    pub(super) fn write_behind(&mut self, key: &KeyName, due: Instant) {
        self.behind.insert(key.clone());
        self.behind_due.get_or_insert(due);
    }

    /// Schedules another write of a key whose write has failed, after the interval of write-behind
    /// or, without one, [`RETRY_AFTER`].
    pub(super) fn write_again(&mut self, now: Instant, key: &KeyName, interval: Option<Duration>) {
        self.write_behind(key, now + interval.unwrap_or(RETRY_AFTER));
    }

    /// The earliest time of a retry (of a vote or of the end of a sync) or of a write-behind;
    /// `None` if nothing waits for a time.
    pub(super) fn due(&self) -> Option<Instant> {
        let retry = if let OutputGate::Shut(at) = self.gate { Some(at) } else { None };
        let owed = self.owed.front().map(|(at, _)| *at);
        [retry, owed, self.behind_due].into_iter().flatten().min()
    }

    /// Schedules another try for the end of a sync of which a write failed. It replaces an earlier
    /// one of the same sync.
    pub(super) fn owe_later(&mut self, now: Instant, owed: PendingSync) {
        self.owed.retain(|(_, other)| other.said != owed.said);
        self.owed.push_back((now + RETRY_AFTER, owed));
    }

    /// Takes a sync whose end must be tried again now; the caller repeats this until `None`.
    pub(super) fn take_owed(&mut self, now: Instant) -> Option<PendingSync> {
        let due = self.owed.front().is_some_and(|(at, _)| *at <= now);
        if due { self.owed.pop_front().map(|(_, owed)| owed) } else { None }
    }

    pub(super) fn is_behind_due(&self, now: Instant) -> bool {
        self.behind_due.is_some_and(|at| at <= now)
    }

    /// Takes all keys that are scheduled for write-behind, due or not, and ends the schedule.
    pub(super) fn take_behind(&mut self) -> BTreeSet<KeyName> {
        self.behind_due = None;
        std::mem::take(&mut self.behind)
    }
}
