//! Identities: of a replica in dots, and of a node among nodes.
//!
//! A [`ReplicaId`] identifies one *incarnation* of a node. It is drawn at random at every start and
//! never derived from an address, because a replica id that is used twice destroys data: two
//! changes would have the same dot
//! (docs/protocol/replication.md#nobody-teaches-a-replica-its-own-dots).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One incarnation of a node in dots, configurations and ballots: 8 random bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReplicaId(u64);

impl ReplicaId {
    /// Creates the id with this number.
    #[inline]
    #[must_use]
    pub const fn new(incarnation: u64) -> Self {
        Self(incarnation)
    }

    /// Returns the incarnation as a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Formats as 16 hexadecimal digits with leading zeros.
impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<u64> for ReplicaId {
    fn from(incarnation: u64) -> Self {
        Self(incarnation)
    }
}

/// A node's ed25519 public key, which is the same for all its incarnations. The transport derives
/// the peer id from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerKey([u8; 32]);

impl PeerKey {
    /// Creates the key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Formats the first 4 bytes in hexadecimal, which is enough to distinguish nodes in logs.
impl fmt::Display for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A node: its key and its incarnation. The same key with another incarnation is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId {
    /// Public key of the node.
    #[serde(rename = "p")]
    pub peer: PeerKey,
    /// Incarnation, drawn at random at every start.
    #[serde(rename = "i")]
    pub incarnation: ReplicaId,
}

/// Formats the beginning of the key, a slash and the incarnation: `890bb1ab/00000000c0ffee01`.
/// Logs, the command line and JSON use this form.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.peer, self.incarnation)
    }
}
