//! The Replicator's surroundings: what it is told and what it orders.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::epoch::{Change, Consenting, Declined, Epoch, EpochId, Outcome, Remaining};
use super::request::{Notice, Reply, Request, RequestError, RequestId, SubscriptionId};
use super::wire::Message;
use crate::durable::{Record, StoreError};
use crate::id::ReplicaId;

/// A node that membership knows, as far as the Replicator cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its incarnation.
    pub id: ReplicaId,
    /// It has announced its stop: `All` leaves it out.
    pub stopping: bool,
    /// Somebody finds it unreachable: gossip prefers others.
    pub reachable: bool,
}

/// A fact for the Replicator.
#[derive(Debug)]
pub enum Input {
    /// A deadline may have passed.
    Tick,
    /// A user asks.
    Request {
        /// Names the request.
        id: RequestId,
        /// What is asked.
        request: Request,
    },
    /// A peer says.
    Message {
        /// The sending incarnation, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: Message,
    },
    /// The link to a peer is new: what was under way may be lost.
    LinkUp(ReplicaId),
    /// A peer named its configuration in a message that is not the Replicator's: a heartbeat.
    PeerEpoch {
        /// The peer.
        from: ReplicaId,
        /// What it has installed; `None`: nothing yet.
        id: Option<EpochId>,
    },
    /// The nodes that membership knows now, joining ones included; this node may be among them.
    Members(Vec<Peer>),
    /// Membership (or an operator) wants this change of the configuration.
    Propose(Change),
    /// The same, but only while this configuration is the installed one: a proposal that waited on
    /// its way while another configuration was installed is answered by `Superseded`.
    ProposeAfter {
        /// The installed configuration that the change was made for.
        base: EpochId,
        /// The change.
        change: Change,
    },
    /// An operator: these members, and this one, are to go on without a quorum's consent.
    Force {
        /// What is installed. Nothing happens if it is not any more.
        replaced: EpochId,
        /// Who goes on.
        kept: BTreeSet<ReplicaId>,
    },
    /// The lease machine's answer.
    Consent {
        /// As asked.
        query: u64,
        /// Leases that still run.
        remaining: Vec<Remaining>,
    },
    /// The lease machine's promise to this one ended before its time: what it answered is stale.
    Released(ReplicaId),
    /// The first configuration of the cluster.
    Found(Arc<Epoch>),
    /// The durable records of a former life, or none. Only awaited with durable keys.
    Loaded(Vec<Record>),
    /// What was to be persisted is safe, or is not.
    Persisted {
        /// As ordered.
        id: u64,
        /// What the store said.
        result: Result<(), StoreError>,
    },
}

/// Which lane a message takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Few and urgent: configurations.
    Control,
    /// Changes, acknowledgements, reads.
    Data,
    /// Pieces of large messages, repairs in bulk.
    Bulk,
}

/// Something that an operator should see. At most one of a kind in a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alarm {
    /// This node's peer stamps its writes with a clock that is far ahead.
    ImpossibleClock {
        /// Who brought the stamp; not always who made it.
        from: ReplicaId,
        /// How far it is ahead of this node's clock.
        ahead: Duration,
    },
    /// This node's peer stamps its writes with a clock that is noticeably ahead; they are taken.
    ClockAhead {
        /// Who brought the stamp; not always who made it.
        from: ReplicaId,
        /// How far it is ahead of this node's clock.
        ahead: Duration,
    },
    /// A value has grown large: every full repair sends all of it.
    LargeValue {
        /// The key.
        key: crate::key::KeyName,
        /// About how large, in bytes.
        bytes: usize,
    },
    /// A peer sent what does not decode, or data of a type that is unknown here.
    Undecodable {
        /// The peer.
        from: ReplicaId,
        /// What is wrong with it.
        why: String,
    },
    /// A key holds another kind of data here than at a peer: two programs use one key.
    WrongType {
        /// The peer.
        from: ReplicaId,
        /// The key.
        key: crate::key::KeyName,
    },
    /// A message, a value's repair most likely, is longer than `assembly_bytes_max`: it was not
    /// sent, or not taken, and the peer stays behind until both settings allow it.
    TooLarge {
        /// Who was to get it, or sent it.
        peer: ReplicaId,
        /// How long it is, in bytes.
        bytes: usize,
        /// The setting.
        limit: usize,
    },
    /// A peer sent a newer configuration that was not taken.
    Declined {
        /// The sender.
        from: ReplicaId,
        /// What it sent.
        epoch: EpochId,
        /// What stands against it.
        why: Declined,
    },
    /// The durable store failed; what was not written is not acknowledged.
    Store(StoreError),
}

/// Durable records that can't be read. Nothing is served, and nothing on disk is overwritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{failed} durable records can't be read, the first of them {what}: {why}; nothing is served \
     and nothing was overwritten. Bring the data directory back from a copy, register the missing \
     types, or start with an empty one: the other members give back what they hold"
)]
pub struct LoadError {
    /// How many.
    pub failed: usize,
    /// The first of them.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}

/// An order of the Replicator.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// Send to a peer, in order within a class.
    Send {
        /// The receiver.
        to: ReplicaId,
        /// The lane.
        class: Class,
        /// The message.
        message: Message,
    },
    /// The answer to a request.
    Reply {
        /// Whose.
        id: RequestId,
        /// What became of it.
        reply: Result<Reply, RequestError>,
    },
    /// A notice to a subscriber.
    Notify {
        /// Which subscription.
        subscription: SubscriptionId,
        /// What it is told.
        notice: Notice,
    },
    /// Write these to the durable store, after all that was ordered before, and say when it is
    /// safe.
    Persist {
        /// To be named in [`Input::Persisted`].
        id: u64,
        /// What to write.
        records: Vec<Record>,
    },
    /// Ask the lease machine.
    AskConsent {
        /// Names the question.
        query: u64,
        /// Members that are to go.
        removed: Vec<ReplicaId>,
        /// What the answer is for.
        why: Consenting,
    },
    /// A configuration is installed.
    Installed(Arc<Epoch>),
    /// This replica is synced for it and counts from now on.
    Synced(EpochId),
    /// What became of a proposal.
    Outcome(Outcome),
    /// This incarnation was removed: it acknowledges nothing any more. Stop the node.
    Excluded(EpochId),
    /// Begin no further message until a configuration with this node is installed.
    StopServing,
    /// This configuration may be the next one, whatever this replica hears; over with the next
    /// `Installed`. May be said again.
    Pending(Arc<Epoch>),
    /// What a former life left on disk can't be read: this replica serves nothing. Stop the node.
    LoadFailed(LoadError),
    /// For an operator.
    Alarm(Alarm),
}
