//! Who is who: a replica's identity in dots, and a node's identity among nodes.
//!
//! A [`ReplicaId`] is one *incarnation* of a node: drawn at random at every start, never derived
//! from an address. A replica id that is used twice destroys data (spec/reference/crdts.md §3).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One incarnation of a node, as it stands in dots, configurations and ballots: 8 random bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ReplicaId(u64);

impl ReplicaId {
    /// The replica with this number.
    #[inline]
    #[must_use]
    pub const fn new(incarnation: u64) -> Self {
        Self(incarnation)
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// 16 hexadecimal digits, leading zeros included.
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

/// A node's ed25519 public key: who it is, whatever its incarnation. The transport derives its
/// peer id from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerKey([u8; 32]);

impl PeerKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The first 4 bytes, in hexadecimal: enough to tell nodes apart by eye.
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

/// A node: who it is, and which of its lives this is. The same peer with another incarnation is
/// another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId {
    /// Who it is.
    #[serde(rename = "p")]
    pub peer: PeerKey,
    /// Drawn at random at every start.
    #[serde(rename = "i")]
    pub incarnation: ReplicaId,
}

/// The beginning of its key, a slash and its incarnation: `890bb1ab/00000000c0ffee01`. Logs, the
/// command line and JSON spell nodes like this.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.peer, self.incarnation)
    }
}
