//! Transport: authenticated, ordered message lanes between nodes over libp2p.
//!
//! This layer moves bytes and decides which peers are admitted; it does not interpret messages. A
//! message is sent on a [`Lane`](lane::Lane), an ordered stream per peer and [`TrafficClass`] that
//! survives broken connections, and is delivered to the [`Receiver`] of the other node.
//! [`handle::Net`] starts the transport; the rest of the node uses nothing else of it.

pub mod address;
pub mod admission;
mod advertised;
pub mod client;
pub mod config;
mod connection_manager;
mod directory;
pub mod frame;
pub mod handle;
pub mod handshake;
mod handshake_failure;
pub mod identity;
pub mod lane;
pub mod link;
pub mod muxer;
pub mod noise;
pub mod secrets;
mod stock;
pub mod swarm;
pub mod transport;
pub mod warning_throttle;
pub mod wire;

use std::fmt;

use libp2p::PeerId;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

/// Identity of a node: its peer id together with the incarnation of this run of the process.
///
/// A restarted peer has a new incarnation and counts as another node: messages for the old
/// incarnation must not reach the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Peer id, derived from the node's public key.
    pub peer: PeerId,
    /// Incarnation: a hash of the peer id and a nonce that is drawn at every start
    /// ([`identity::incarnation`]).
    pub incarnation: ReplicaId,
}

/// Prefix of the peer id of an ed25519 key: identity multihash (no hash) of 36 bytes, then key type
/// ed25519 with a key of 32 bytes.
pub(crate) const ED25519: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];

/// Formatted like [`ostraca_ddata::id::NodeId`]: the first 4 bytes of the key, a slash, and the
/// incarnation, in hexadecimal. For a peer id that is not of an ed25519 key, the first 4 bytes are
/// those of the peer id itself.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.peer.to_bytes();
        let key = id.strip_prefix(&ED25519).unwrap_or(&id);
        key.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{}", self.incarnation)
    }
}

/// Traffic class of a lane. The variants are ordered by urgency, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrafficClass {
    /// Membership, heartbeats, coordinators and configurations. Messages are never dropped
    /// silently: a full lane disconnects the peer
    /// (docs/protocol/transport.md#control-is-never-dropped).
    #[serde(rename = "c")]
    Control,
    /// Replicated data. A full lane rejects the message; the Replicator sends it again later.
    #[serde(rename = "d")]
    Data,
    /// Messages of the application. A full lane rejects the message, which is the back-pressure.
    #[serde(rename = "u")]
    User,
    /// Pieces of large values, on a connection of their own.
    #[serde(rename = "b")]
    Bulk,
}

impl TrafficClass {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 4] = [Self::Control, Self::Data, Self::User, Self::Bulk];

    /// Name of the libp2p protocol that a substream of this class negotiates.
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

/// Name of the libp2p protocol that a client's substream negotiates. See [`client`].
pub const CLIENT_PROTOCOL: &str = "/ostraca/1/client";

/// A received message that still lies in the reader's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// Node that sent the message.
    pub from: NodeId,
    /// Class of the lane that carried the message.
    pub class: TrafficClass,
    /// Names in the header (≤ [`wire::FIELDS_MAX`]) that repeat from message to message: a lane
    /// spells each name once and sends a number afterwards. Sharding uses them for entity types and
    /// handlers. Messages of the Replicator have no header names: one message holds many keys,
    /// which are part of its body.
    pub fields: &'a [std::sync::Arc<str>],
    /// Payload, opaque to the transport.
    pub body: &'a [u8],
}

/// The receiver has no room for another message at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Consumer of received messages. The lanes' readers call it: for one lane, calls come one at a
/// time and in order.
pub trait Receiver: Send + Sync + 'static {
    /// Accepts one message, or rejects it for now: the reader then waits for [`ready`](Self::ready)
    /// and offers the message again. An accepted message is acknowledged to the sender and never
    /// offered again.
    ///
    /// # Errors
    /// [`Busy`] if there is no room.
    fn receive(&self, message: Inbound<'_>) -> Result<(), Busy>;

    /// Weight of this message in ordinary messages, 1 by default. The reader of a user lane yields
    /// to other lanes after a certain weight; a message that wakes a task as soon as it is received
    /// should weigh more. Called only for user lanes, before each offer of the message to
    /// [`receive`](Self::receive), so again after [`Busy`].
    fn weight(&self, message: &Inbound<'_>) -> usize {
        let _ = message;
        1
    }

    /// Signals that no further message of a lane of this class is at hand. Called once after one or
    /// more messages were accepted, before the reader reads from the stream again, waits for room
    /// or ends, so that a receiver can defer work that is done once per batch. Does nothing by
    /// default.
    fn pause(&self, class: TrafficClass) {
        let _ = class;
    }

    /// Completes when there is probably room again for messages of this class. The reader offers
    /// the message again then, and may get [`Busy`] again.
    fn ready(&self, class: TrafficClass) -> futures::future::BoxFuture<'_, ()>;
}
