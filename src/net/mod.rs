//! Transport: nodes that talk over libp2p, and refuse strangers (spec/transport.md).
//!
//! Knows how bytes move and who may send; never what bytes mean. Messages leave through a
//! [`Lane`](lane::Lane), one ordered line per peer and class that outlives connections, and
//! arrive at a [`Receiver`].

pub mod address;
pub mod admission;
mod advertised;
pub mod client;
pub mod complaints;
pub mod config;
mod directory;
pub mod frame;
pub mod handle;
pub mod handshake;
mod handshake_failure;
mod hub;
pub mod identity;
pub mod lane;
pub mod link;
pub mod muxer;
pub mod noise;
pub mod secrets;
mod stock;
pub mod swarm;
pub mod transport;
pub mod wire;

use std::fmt;

use libp2p::PeerId;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

/// A node: who it is, and which of its lives this is.
///
/// The same peer with another incarnation is another node: nothing meant for the old one may
/// reach the new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// The hash of its public key.
    pub peer: PeerId,
    /// Drawn at random at every start.
    pub incarnation: ReplicaId,
}

/// What stands before the key in the peer id of an ed25519 key: no hash, 36 bytes; the kind of key,
/// 32 bytes of it.
pub(crate) const ED25519: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// As [`ostraca_ddata::id::NodeId`] is spelled: the first 4 bytes of its key, a slash and its
/// incarnation, in hexadecimal.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.peer.to_bytes();
        let key = id.strip_prefix(&ED25519).unwrap_or(&id);
        key.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{}", self.incarnation)
    }
}

/// What kind of traffic a lane carries. The order is that of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Membership, heartbeats, coordinators, configurations: never dropped.
    #[serde(rename = "c")]
    Control,
    /// Replicated data. A full lane refuses; the Replicator sends again.
    #[serde(rename = "d")]
    Data,
    /// Messages of users. A full lane refuses: back-pressure.
    #[serde(rename = "u")]
    User,
    /// Pieces of what is large, on a connection of its own.
    #[serde(rename = "b")]
    Bulk,
}

impl Class {
    /// All, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Control, Self::Data, Self::User, Self::Bulk];

    /// The name of the protocol that a substream of this class speaks.
    #[must_use]
    pub const fn protocol(self) -> &'static str {
        match self {
            Self::Control => "/ostraca/1/control",
            Self::Data => "/ostraca/1/data",
            Self::User => "/ostraca/1/user",
            Self::Bulk => "/ostraca/1/bulk",
        }
    }
}

/// The name of the protocol that a client's substream speaks. See [`client`].
pub const CLIENT_PROTOCOL: &str = "/ostraca/1/client";

/// A message that has arrived, still in the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Who sent it.
    pub from: NodeId,
    /// On which lane.
    pub class: Class,
    /// The header: names that repeat from message to message, each spelled once on a lane and a
    /// number from then on (≤ [`wire::FIELDS_MAX`]). For envelopes of sharding, whose entity types
    /// and handlers repeat; the Replicator's messages carry their keys in the body, many in one,
    /// and have no header.
    pub fields: &'a [std::sync::Arc<str>],
    /// What it says.
    pub body: &'a [u8],
}

/// There is no room for another message at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Takes what arrives. Called from the lanes' readers, one call at a time and in order per lane.
pub trait Receiver: Send + Sync + 'static {
    /// Takes one message, or refuses it for now: then the reader waits for [`ready`](Self::ready)
    /// and offers it again. What was taken is acknowledged to the sender and never comes again.
    ///
    /// # Errors
    /// [`Busy`] if there is no room.
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy>;

    /// How many ordinary messages this one counts for, when the reader of a user lane considers
    /// whether it is others' turn: more, if it wakes a task as soon as it is received.
    fn weight(&self, message: &Inbound<'_>) -> usize {
        let _ = message;
        1
    }

    /// No further message of this lane is at hand. Comes after one or more that were received,
    /// before their reader waits for anything, and when it ends; a receiver may put off until then
    /// what it does once for many.
    fn pause(&self, class: Class) {
        let _ = class;
    }

    /// Ends when there is (probably) room again for messages of this class.
    fn ready(&self, class: Class) -> futures::future::BoxFuture<'_, ()>;
}
