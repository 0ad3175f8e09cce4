//! Messages that open a lane or a client's stream, encoded as MessagePack with short field names,
//! so that adjacent releases can decode each other's messages with a field more or less.
//!
//! A lane from A to B is opened on a fresh substream: B sends [`Greeting`], A sends [`Hello`], B
//! sends [`HandshakeAnswer`]. Both sides then know both nonces, which each proof covers. A client's
//! call works alike: [`Greeting`], [`ClientHello`], [`ClientAnswer`].

use std::fmt;

use ostraca_ddata::id::ReplicaId;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::TrafficClass;

/// Protocol version. It must be raised when an older node could not understand a newer one.
pub const PROTOCOL_VERSION: u16 = 1;

/// Maximum number of names in the header of a message. A sender refuses a message with more, and a
/// received frame with more is malformed.
pub const FIELDS_MAX: usize = 4;

/// Maximum length of an opening message, in bytes, without its length field. Both ends refuse a
/// longer one.
pub const OPENING_BYTES_MAX: usize = 4 * 1024;

/// Maximum number of addresses that a node tells about itself.
pub const ADDRESSES_MAX: usize = 16;

/// 32 random bytes that are used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(#[serde(with = "fixed_bytes")] pub [u8; 32]);

/// 16 random bytes drawn at each start, from which the [incarnation](super::identity::incarnation)
/// is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IncarnationNonce(#[serde(with = "fixed_bytes")] pub [u8; 16]);

/// HMAC-SHA-256 over role, peer ids and nonces, keyed with the cluster's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proof(#[serde(with = "fixed_bytes")] pub [u8; 32]);

/// First message on a lane, sent by the acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Highest protocol version that the acceptor supports.
    #[serde(rename = "v")]
    pub version: u16,
    /// Nonce that the opener's proof covers.
    #[serde(rename = "n")]
    pub nonce: Nonce,
}

/// Facts that a node tells about itself in [`Hello`] and [`Welcome`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Protocol version of this lane: the lower one of both ends.
    #[serde(rename = "v")]
    pub version: u16,
    /// Name of the node's cluster. Nodes with different names refuse each other.
    #[serde(rename = "c")]
    pub cluster: String,
    /// Id of the cluster with that name; absent before the node has joined one.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<u64>,
    /// Incarnation of the node.
    #[serde(rename = "r")]
    pub incarnation: ReplicaId,
    /// Proves that the incarnation belongs to the peer. A node without it is refused with
    /// [`LaneRefusal::FalseIncarnation`].
    #[serde(rename = "j", default, skip_serializing_if = "Option::is_none")]
    pub incarnation_nonce: Option<IncarnationNonce>,
    /// Boot id of the node's host.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Device and inode of the lock that the node holds on its data directory. The same lock on the
    /// same boot proves that an earlier incarnation is dead.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<(u64, u64)>,
    /// Multiaddrs under which the node may be known, at most [`ADDRESSES_MAX`]; further ones are
    /// ignored. They distinguish seeds from other nodes. They are never dialled, because nothing
    /// proves that they are the node's own.
    #[serde(
        rename = "a",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "few_addresses"
    )]
    pub addresses: Vec<String>,
    /// Maximum length of a message that the node accepts, in bytes.
    #[serde(rename = "m")]
    pub message_bytes_max: u32,
    /// Maximum length of a frame that the node accepts, in bytes, length field included; absent:
    /// [`FRAME_BYTES`](super::frame::FRAME_BYTES).
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub frame_bytes_max: Option<u32>,
}

#[cfg(test)]
impl NodeInfo {
    /// Facts of an incarnation in the cluster `shop` that accepts messages of 1,000 bytes.
    pub(crate) fn of(incarnation: ReplicaId) -> Self {
        Self {
            version: 1,
            cluster: "shop".to_owned(),
            cluster_id: None,
            incarnation,
            incarnation_nonce: None,
            boot: None,
            lock: None,
            addresses: Vec::new(),
            message_bytes_max: 1_000,
            frame_bytes_max: None,
        }
    }
}

/// Request of the opener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Facts about the opener.
    #[serde(rename = "f")]
    pub facts: NodeInfo,
    /// Nonce that the acceptor's proof covers.
    #[serde(rename = "n")]
    pub nonce: Nonce,
    /// Proof of the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Incarnation to which the lane is opened; absent at first contact.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ReplicaId>,
    /// Traffic class of the lane.
    #[serde(rename = "k")]
    pub class: TrafficClass,
    /// Generation of the substream: the highest one carries the lane.
    #[serde(rename = "g")]
    pub generation: u64,
    /// Number of the first message that the opener still buffers, or of its next one if it buffers
    /// none, counted from 1.
    #[serde(rename = "u")]
    pub first_unacknowledged: u64,
}

/// Answer of the acceptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HandshakeAnswer {
    /// The lane is accepted.
    #[serde(rename = "w")]
    Welcome(Welcome),
    /// The lane is refused.
    #[serde(rename = "r")]
    Refused(LaneRefusal),
}

/// The acceptor's part of an accepted opening.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Facts about the acceptor.
    #[serde(rename = "f")]
    pub facts: NodeInfo,
    /// Proof of the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// Number of the last accepted message, 0 before the first; the opener continues with the next
    /// one.
    #[serde(rename = "a")]
    pub accepted: u64,
}

/// Request of a client. It contains no incarnation and no address, because a client is not a peer
/// of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// Protocol version of the call.
    #[serde(rename = "v")]
    pub version: u16,
    /// Name of the cluster that the client calls.
    #[serde(rename = "c")]
    pub cluster: String,
    /// Nonce that the node's proof covers.
    #[serde(rename = "n")]
    pub nonce: Nonce,
    /// Proof of the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}

/// Answer of the node to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientAnswer {
    /// The client is admitted.
    #[serde(rename = "w")]
    Welcome(ClientWelcome),
    /// The client is refused.
    #[serde(rename = "r")]
    Refused(LaneRefusal),
}

/// The node's part of an accepted call. The following bytes belong to the application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientWelcome {
    /// Protocol version of the call.
    #[serde(rename = "v")]
    pub version: u16,
    /// Name of the node's cluster.
    #[serde(rename = "c")]
    pub cluster: String,
    /// Proof of the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}

/// Why a lane was not opened, or a client not admitted. The texts are for the log of the refused
/// node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LaneRefusal {
    /// The protocol versions are incompatible.
    #[serde(rename = "v")]
    #[error("it speaks protocol version {theirs}, this node {PROTOCOL_VERSION}: upgrade the older")]
    Version {
        /// Version of the refusing node.
        #[serde(rename = "t")]
        theirs: u16,
    },
    /// The nodes belong to different clusters.
    #[serde(rename = "c")]
    #[error("it belongs to cluster {theirs:?}: set cluster-name to that, or remove the address")]
    ClusterName {
        /// Cluster name of the refusing node.
        #[serde(rename = "t")]
        theirs: String,
    },
    /// The proof is missing or wrong.
    #[serde(rename = "s")]
    #[error("the cluster secrets differ: give all nodes the same cluster-secret-file")]
    Secret,
    /// The peer is not on the allow-list.
    #[serde(rename = "a")]
    #[error("this node is not in its allowed-peers")]
    NotAllowed,
    /// The lane was opened to an earlier incarnation of the refusing node.
    #[serde(rename = "i")]
    #[error("it has restarted: its incarnation is {current} now")]
    WrongIncarnation {
        /// Current incarnation of the refusing node.
        #[serde(rename = "c")]
        current: ReplicaId,
    },
    /// The opener was removed from the cluster and must restart to join again.
    #[serde(rename = "q")]
    #[error("this incarnation was removed from the cluster: restart the node")]
    Quarantined,
    /// A later substream already carries this lane.
    #[serde(rename = "o")]
    #[error("a later connection carries this lane already")]
    Superseded,
    /// Messages that the opener no longer buffers are missing at the acceptor, so the lane cannot
    /// continue.
    #[serde(rename = "g")]
    #[error("messages {accepted} to {first} are lost: the lane starts anew")]
    Gap {
        /// Last message that the acceptor has accepted.
        #[serde(rename = "a")]
        accepted: u64,
        /// First message that the opener buffers.
        #[serde(rename = "f")]
        first: u64,
    },
    /// A limit is reached.
    #[serde(rename = "l")]
    #[error("it is at a limit ({what:?}): try again later, or raise it there")]
    Limit {
        /// Name of the limit.
        #[serde(rename = "w")]
        what: String,
    },
    /// The refusing node is shutting down.
    #[serde(rename = "z")]
    #[error("it is stopping")]
    Stopping,
    /// The application on the refusing node accepts no clients.
    #[serde(rename = "n")]
    #[error("its program takes no clients: ask another node, such as one run by `ostraca node`")]
    Unserved,
    /// The client has the identity of a known node.
    #[serde(rename = "k")]
    #[error("a node of the cluster has this identity: give the client another, or none")]
    Twin,
    /// The incarnation is not the hash of peer id and nonce, or no nonce was told.
    #[serde(rename = "j")]
    #[error(
        "this incarnation does not follow from the node's peer id and nonce: upgrade the node that \
         tells it"
    )]
    FalseIncarnation,
    /// Another node, or the refusing one itself, has this incarnation: two hashes of 64 bits are
    /// equal, which does not happen by chance.
    #[serde(rename = "d")]
    #[error("another node has this incarnation: restart this one, from its own data directory")]
    Claimed,
    /// A reason that only a later release knows. Never sent: the receiver puts it in place of a
    /// variant that it cannot decode.
    #[serde(skip)]
    #[error("it refuses for a reason that this release does not know: look at its log")]
    Unknown,
}

impl From<LaneRefusal> for HandshakeAnswer {
    fn from(refusal: LaneRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<LaneRefusal> for ClientAnswer {
    fn from(refusal: LaneRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Decodes a list without trusting its announced length, and keeps the first [`ADDRESSES_MAX`]
/// entries. Further entries are decoded and dropped, and may be of any type. Fails if the value is
/// no list, if one of the first entries is no string, or if the input ends within the list.
fn few_addresses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of addresses")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
            let mut few = Vec::new(); // ≤ ADDRESSES_MAX
            while few.len() < ADDRESSES_MAX
                && let Some(address) = list.next_element()?
            {
                few.push(address);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(few)
        }
    }

    from.deserialize_seq(Few)
}

/// Encodes N bytes as MessagePack's byte string: always 2 bytes longer, where a list of numbers
/// would take up to twice as many. Decoding fails if the length is not N, or the value is such a
/// list.
mod fixed_bytes {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer, const N: usize>(
        bytes: &[u8; N],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(
        from: D,
    ) -> Result<[u8; N], D::Error> {
        struct FixedBytes<const N: usize>;

        impl<const N: usize> Visitor<'_> for FixedBytes<N> {
            type Value = [u8; N];

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{N} bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
                bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }

        from.deserialize_bytes(FixedBytes)
    }
}
