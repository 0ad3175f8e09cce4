//! What opens a lane, and its bytes: MessagePack with short named fields, so that a field more or
//! a field less decodes on the release before and after.
//!
//! The opening of a lane, on a fresh substream from A to B: B says [`Greeting`], A says [`Hello`],
//! B says [`Answer`]. Both nonces are then known to both, and each proof covers both. A client's
//! call goes alike: [`Greeting`], [`ClientHello`], [`ClientAnswer`].

use std::fmt;

use ostraca_ddata::id::ReplicaId;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Class;

/// The version of the protocol: raised when an old node could not understand a new one.
pub const PROTOCOL_VERSION: u16 = 1;

/// Names in the header of a message.
pub const FIELDS_MAX: usize = 4;

/// The longest opening message, in bytes.
pub const OPENING_BYTES_MAX: usize = 4 * 1024;

/// Addresses that a node tells about itself.
pub const ADDRESSES_MAX: usize = 16;

/// 32 random bytes, used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(#[serde(with = "fixed_bytes")] pub [u8; 32]);

/// 16 random bytes of one life of a node, from which its
/// [incarnation](super::identity::incarnation) follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IncarnationNonce(#[serde(with = "fixed_bytes")] pub [u8; 16]);

/// HMAC-SHA-256 over role, peer ids and nonces, keyed with the cluster's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Proof(#[serde(with = "fixed_bytes")] pub [u8; 32]);

/// The first word on a lane, from the node that is to receive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The highest protocol version that it speaks.
    #[serde(rename = "v")]
    pub version: u16,
    /// To be covered by the opener's proof.
    #[serde(rename = "n")]
    pub nonce: Nonce,
}

/// What a node tells about itself, in [`Hello`] and [`Welcome`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The version that it speaks.
    #[serde(rename = "v")]
    pub version: u16,
    /// Only nodes of the same cluster name talk to each other.
    #[serde(rename = "c")]
    pub cluster: String,
    /// Which cluster of that name; absent before it has joined one.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<u64>,
    /// This life.
    #[serde(rename = "r")]
    pub incarnation: ReplicaId,
    /// Shows that the incarnation is the peer's own. A node that tells none is refused.
    #[serde(rename = "j", default, skip_serializing_if = "Option::is_none")]
    pub incarnation_nonce: Option<IncarnationNonce>,
    /// The boot of the host that it runs on.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// Device and inode of the lock that it holds on its data directory: the same lock on the same
    /// boot proves that an earlier incarnation is dead.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<(u64, u64)>,
    /// The addresses under which it may be known: multiaddrs; at most [`ADDRESSES_MAX`], more are
    /// left out. They tell a seed from others, and are not dialled: nothing shows that they are its
    /// own.
    #[serde(
        rename = "a",
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "few_addresses"
    )]
    pub addresses: Vec<String>,
    /// The longest message that it takes, in bytes.
    #[serde(rename = "m")]
    pub message_bytes_max: u32,
    /// The longest frame that it takes, in bytes, its length included; absent:
    /// [`FRAME_BYTES`](super::frame::FRAME_BYTES).
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub frame_bytes_max: Option<u32>,
}

#[cfg(test)]
impl Facts {
    /// Of a life in the cluster `shop` that takes messages of 1,000 bytes.
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

/// The opener's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Who it is.
    #[serde(rename = "f")]
    pub facts: Facts,
    /// To be covered by the receiver's proof.
    #[serde(rename = "n")]
    pub nonce: Nonce,
    /// Of knowing the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// The incarnation that the lane is meant for; absent at first contact.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ReplicaId>,
    /// What the lane is to carry.
    #[serde(rename = "k")]
    pub class: Class,
    /// Counts the substreams of this lane; the highest one is the lane.
    #[serde(rename = "g")]
    pub generation: u64,
    /// The number of the first message that the opener still keeps; the first ever is 1.
    #[serde(rename = "u")]
    pub first_unacknowledged: u64,
}

/// The receiver's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Go on.
    #[serde(rename = "w")]
    Welcome(Welcome),
    /// No.
    #[serde(rename = "r")]
    Refused(Refusal),
}

/// The lane is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Who it is.
    #[serde(rename = "f")]
    pub facts: Facts,
    /// Of knowing the secret.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
    /// The number of the last message that was accepted; the next one to send is one higher.
    #[serde(rename = "a")]
    pub accepted: u64,
}

/// A client's request: it tells no incarnation and no address, since it is nobody's peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The version that it speaks.
    #[serde(rename = "v")]
    pub version: u16,
    /// The cluster that it is meant for.
    #[serde(rename = "c")]
    pub cluster: String,
    /// To be covered by the node's proof.
    #[serde(rename = "n")]
    pub nonce: Nonce,
    /// Of knowing the secret; absent without one.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}

/// The node's answer to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientAnswer {
    /// Go on.
    #[serde(rename = "w")]
    Welcome(ClientWelcome),
    /// No.
    #[serde(rename = "r")]
    Refused(Refusal),
}

/// The client is let in: what follows is no more the transport's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientWelcome {
    /// The version that it speaks.
    #[serde(rename = "v")]
    pub version: u16,
    /// The node's cluster.
    #[serde(rename = "c")]
    pub cluster: String,
    /// Of knowing the secret.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<Proof>,
}

/// Why a lane is not opened, or a client not let in. The sentences are for the log of the node that
/// is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Another protocol version.
    #[serde(rename = "v")]
    #[error("it speaks protocol version {theirs}, this node {PROTOCOL_VERSION}: upgrade the older")]
    Version {
        /// The refusing node's.
        #[serde(rename = "t")]
        theirs: u16,
    },
    /// Another cluster.
    #[serde(rename = "c")]
    #[error("it belongs to cluster {theirs:?}: set cluster-name to that, or remove the address")]
    ClusterName {
        /// The refusing node's.
        #[serde(rename = "t")]
        theirs: String,
    },
    /// The proof is missing or wrong.
    #[serde(rename = "s")]
    #[error("the cluster secrets differ: give all nodes the same cluster-secret-file")]
    Secret,
    /// Not in the list.
    #[serde(rename = "a")]
    #[error("this node is not in its allowed-peers")]
    NotAllowed,
    /// The lane was meant for an earlier life of that node.
    #[serde(rename = "i")]
    #[error("it has restarted: its incarnation is {current} now")]
    WrongIncarnation {
        /// The one that is alive.
        #[serde(rename = "c")]
        current: ReplicaId,
    },
    /// The opener was removed from the cluster; it must restart to join anew.
    #[serde(rename = "q")]
    #[error("this incarnation was removed from the cluster: restart the node")]
    Quarantined,
    /// A later substream carries this lane already.
    #[serde(rename = "o")]
    #[error("a later connection carries this lane already")]
    Superseded,
    /// Messages that the opener no longer keeps are missing here: the lane cannot go on.
    #[serde(rename = "g")]
    #[error("messages {accepted} to {first} are lost: the lane starts anew")]
    Gap {
        /// The last that was accepted.
        #[serde(rename = "a")]
        accepted: u64,
        /// The first that the opener has.
        #[serde(rename = "f")]
        first: u64,
    },
    /// A limit is reached.
    #[serde(rename = "l")]
    #[error("it is at a limit ({what:?}): try again later, or raise it there")]
    Limit {
        /// Which.
        #[serde(rename = "w")]
        what: String,
    },
    /// It is about to stop.
    #[serde(rename = "z")]
    #[error("it is stopping")]
    Stopping,
    /// The program there takes no clients.
    #[serde(rename = "n")]
    #[error("its program takes no clients: ask another node, such as one run by `ostraca node`")]
    Unserved,
    /// A client has the identity of a node that is known.
    #[serde(rename = "k")]
    #[error("a node of the cluster has this identity: give the client another, or none")]
    Twin,
    /// The incarnation does not follow from the peer id and the nonce, or no nonce was told.
    #[serde(rename = "j")]
    #[error(
        "this incarnation does not follow from the node's peer id and nonce: upgrade the node that \
         tells it"
    )]
    FalseIncarnation,
    /// Another node has this incarnation, or the refusing one itself: two hashes of 64 bits are
    /// equal, which is no chance.
    #[serde(rename = "d")]
    #[error("another node has this incarnation: restart this one, from its own data directory")]
    Claimed,
    /// A reason of a later release. Never sent.
    #[serde(skip)]
    #[error("it refuses for a reason that this release does not know: look at its log")]
    Unknown,
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Refusal> for ClientAnswer {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Reads a list without believing the length that it claims, and keeps the first few.
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

/// N bytes as MessagePack's byte string: always 2 bytes more, where a list of numbers takes up to
/// twice as many.
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
