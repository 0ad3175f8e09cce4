//! Inputs, outputs and alarms of the Replicator.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::epoch::{
    ConfigurationRefusal, Consenting, Epoch, EpochId, MembershipChange, ProposalOutcome, Remaining,
};
use super::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, RequestId, SubscriptionId, SubscriptionNotice,
};
use super::wire::ReplicatorMessage;
use crate::durable::{DurableRecord, StoreError};
use crate::id::ReplicaId;

/// A node that membership knows, with the state that matters to the Replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The incarnation of the node.
    pub id: ReplicaId,
    /// It has announced its stop. Requests with `All` do not wait for it.
    pub stopping: bool,
    /// No member finds it unreachable. Gossip prefers reachable peers; nothing else depends on it
    /// here.
    pub reachable: bool,
}

/// An input of the Replicator. After [`ReplicatorOutput::LoadFailed`] all but `Request` are
/// ignored.
#[derive(Debug)]
pub enum ReplicatorInput {
    /// A deadline may have passed, or a batch of inputs ends, whose changes are then pushed.
    Tick,
    /// A request of a user of this node. Waits while durable data is expected.
    Request {
        /// The id of the request, which its answer names.
        id: RequestId,
        /// The request, with its consistency level.
        request: ReplicatorRequest,
    },
    /// A message of a peer. Ignored while durable data is expected, and from this replica itself.
    Message {
        /// The sending incarnation, authenticated by the transport.
        from: ReplicaId,
        /// The message, already decoded.
        message: ReplicatorMessage,
    },
    /// The connection to a peer is new. Messages under way may be lost: what the peer has not
    /// acknowledged is sent again.
    LinkUp(ReplicaId),
    /// A peer named its configuration in a message of another protocol, for example a heartbeat.
    PeerEpoch {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// Its installed configuration; `None` before the first.
        id: Option<EpochId>,
    },
    /// The nodes that membership knows now, joining ones included; replaces the last list. This
    /// node may be among them.
    Members(Vec<Peer>),
    /// Membership or an operator wants this change of the configuration. Answered by
    /// [`ReplicatorOutput::Outcome`].
    Propose(MembershipChange),
    /// As `Propose`, but only while `base` is the installed configuration. If another one is
    /// installed, the outcome is `Superseded` at once, and nothing is proposed.
    ProposeAfter {
        /// The installed configuration that the change was made for.
        base: EpochId,
        /// The change to propose.
        change: MembershipChange,
    },
    /// An operator's order: these members and this one go on without the consent of a quorum.
    Force {
        /// The configuration to replace. Ignored if another one is installed.
        replaced: EpochId,
        /// The members that stay.
        kept: BTreeSet<ReplicaId>,
    },
    /// The lease machine's answer.
    Consent {
        /// The id of the question.
        query: u64,
        /// Lease promises that still run.
        remaining: Vec<Remaining>,
    },
    /// The lease machine's promise to this member ended early, so that its earlier answers are
    /// stale.
    Released(ReplicaId),
    /// The first configuration of the cluster. Ignored if a configuration is installed already,
    /// unless this one succeeds it with this node as its only member.
    Found(Arc<Epoch>),
    /// The durable records of an earlier run, or none. Expected only with durable keys in the
    /// settings: until it comes, requests wait, except for subscriptions and `ReplicaCount`. May be
    /// answered by [`ReplicatorOutput::LoadFailed`].
    Loaded(Vec<DurableRecord>),
    /// The store has written the records of a [`ReplicatorOutput::Persist`], or has failed to.
    Persisted {
        /// The id of the order. The result of an unknown or ended order has no effect but an alarm
        /// of a failure.
        id: u64,
        /// The result of the store.
        result: Result<(), StoreError>,
    },
}

/// The lane of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneClass {
    /// Configuration messages: few and urgent.
    Control,
    /// Changes, acknowledgements and reads.
    Data,
    /// Pieces of large messages.
    Bulk,
}

/// An event that an operator should see. At most one a minute of each kind about each node; of more
/// than 64 nodes with alarms of one kind the further ones share one, known nodes and strangers
/// apart. A further one within the minute is dropped, not delayed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicatorAlarm {
    /// A peer sent a stamp so far ahead of this node's clock that the clock did not follow it.
    ImpossibleClock {
        /// The sender, which may not be the replica that made the stamp.
        from: ReplicaId,
        /// How far it is ahead of this node's clock.
        ahead: Duration,
    },
    /// A peer sent a stamp noticeably ahead of this node's clock; it was accepted.
    ClockAhead {
        /// The sender, which may not be the replica that made the stamp.
        from: ReplicaId,
        /// How far it is ahead of this node's clock.
        ahead: Duration,
    },
    /// A value has grown larger than `log_data_size_exceeding` by a local update. A full repair
    /// sends all of it. At most one a minute over all keys; never for a group with a promised term.
    LargeValue {
        /// The key of the value.
        key: crate::key::KeyName,
        /// Approximate size in bytes.
        bytes: usize,
    },
    /// A peer sent data that does not decode, is of a type that is not registered here, or that no
    /// correct peer sends.
    Undecodable {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// The reason why it was refused.
        why: String,
    },
    /// A key holds another data type here than at a peer: two programs use the same key.
    WrongType {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// The key with two types.
        key: crate::key::KeyName,
    },
    /// A message, probably with a large value, exceeds `assembly_bytes_max` here. It was not sent
    /// or not taken, and the peer stays behind until both settings allow it.
    TooLarge {
        /// The receiver or the sender.
        peer: ReplicaId,
        /// The length in bytes.
        bytes: usize,
        /// The value of `assembly_bytes_max`.
        limit: usize,
    },
    /// A newer configuration from a peer was refused.
    Declined {
        /// The incarnation that sent it.
        from: ReplicaId,
        /// The id of the refused configuration.
        epoch: EpochId,
        /// The reason of the refusal.
        why: ConfigurationRefusal,
    },
    /// The durable store failed to write. Data that was not written is not acknowledged, except
    /// with write-behind.
    Store(StoreError),
}

/// Durable records cannot be read. Nothing is served, and nothing on disk is overwritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{failed} durable records can't be read, the first of them {what}: {why}; nothing is served \
     and nothing was overwritten. Bring the data directory back from a copy, register the missing \
     types, or start with an empty one: the other members give back what they hold"
)]
pub struct StateLoadError {
    /// Number of records that cannot be read.
    pub failed: usize,
    /// The first of them: its key, or the group of its promise.
    pub what: String,
    /// The reason why it cannot be read.
    pub why: String,
}

/// An order of the Replicator.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReplicatorOutput {
    /// Send a message to a peer, in order within a class.
    Send {
        /// The incarnation that receives it.
        to: ReplicaId,
        /// The lane that it takes.
        class: LaneClass,
        /// The message to send.
        message: ReplicatorMessage,
    },
    /// The answer to a request.
    Reply {
        /// The id of the request.
        id: RequestId,
        /// The result of the request.
        reply: Result<ReplicatorReply, RequestError>,
    },
    /// A notice to a subscriber. The subscription may have ended since.
    Notify {
        /// The subscription that the notice is for.
        subscription: SubscriptionId,
        /// The notice to deliver.
        notice: SubscriptionNotice,
    },
    /// Write these to the durable store, after everything ordered before, and answer with
    /// [`ReplicatorInput::Persisted`], also if there are no records. Later outputs need not wait
    /// for it.
    Persist {
        /// The id of the order.
        id: u64,
        /// The records to write.
        records: Vec<DurableRecord>,
    },
    /// A question to the lease machine, answered by [`ReplicatorInput::Consent`].
    AskConsent {
        /// The id of the question.
        query: u64,
        /// Members that the proposal removes.
        removed: Vec<ReplicaId>,
        /// The purpose of the question.
        why: Consenting,
    },
    /// A configuration is installed.
    Installed(Arc<Epoch>),
    /// This replica is synced for the installed configuration: it holds all that was acknowledged
    /// before. As a member it counts from now on, until it is sealed.
    Synced(EpochId),
    /// The result of a proposed change.
    Outcome(ProposalOutcome),
    /// This incarnation was removed: it acknowledges nothing any longer. Stop the node.
    Excluded(EpochId),
    /// Begin no further message until a configuration that lists this node is installed.
    StopServing,
    /// This configuration may be decided, whatever this replica hears. Ends with the next
    /// `Installed`; may be repeated.
    Pending(Arc<Epoch>),
    /// Durable records of an earlier run cannot be read: this replica serves nothing. Stop the
    /// node.
    LoadFailed(StateLoadError),
    /// An event that an operator should see.
    Alarm(ReplicatorAlarm),
}
