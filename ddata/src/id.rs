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
    #[must_use]
    pub const fn new(incarnation: u64) -> Self {
        Self(incarnation)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl From<u64> for ReplicaId {
    fn from(incarnation: u64) -> Self {
        Self(incarnation)
    }
}
