//! Settings that belong to a configuration, so that all nodes of a cluster have the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest lease ([`LeaseSettings::duration`]) of a configuration. A longer one is refused, also
/// when a peer sends it: every removal of a silent member would have to wait for it.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of hosting leases that all nodes must agree on. The founder sets them, or the successor
/// of a sole member; no decision of this release changes them
/// (docs/protocol/leases.md#lease-settings-belong-to-the-configuration).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseSettings {
    /// Whether leases are used. If false, removals wait for a margin instead, which gives the
    /// guarantee of Akka.
    #[serde(rename = "e")]
    pub enabled: bool,
    /// T_q: for how long a grantor's promise holds, on the grantor's clock; at most [`LEASE_MAX`],
    /// the only bound that a configuration checks here.
    #[serde(rename = "d")]
    pub duration: Duration,
    /// ρ, the assumed bound on the drift of clock rates, in parts per million. Not checked here.
    #[serde(rename = "r")]
    pub drift_ppm: u32,
    /// Whether a restart with the same lock file proves that the old process is dead.
    #[serde(rename = "p")]
    pub restart_is_proof: bool,
    /// Reserved for a configuration that one survivor installs without a quorum: nodes of this
    /// release set it to false and do not read it. The downing setting of that name is local.
    #[serde(rename = "t")]
    pub trust_downing: bool,
}

impl Default for LeaseSettings {
    /// Leases are enabled, with 5 s and a drift of 1 %; a restart is proof, and the downing
    /// strategy is not trusted.
    fn default() -> Self {
        Self {
            enabled: true,
            duration: Duration::from_secs(5),
            drift_ppm: 10_000,
            restart_is_proof: true,
            trust_downing: false,
        }
    }
}

/// Settings that the founder chooses and every later configuration inherits. Only
/// [`Epoch::succeeded`](super::Epoch::succeeded) replaces `lease`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpochSettings {
    /// Settings of hosting leases.
    pub lease: LeaseSettings,
    /// Up to this many members all of them vote; above it the [`FEW_VOTERS`](super::FEW_VOTERS)
    /// oldest. A limit below 9 counts as 9.
    pub voter_limit: u32,
    /// Random key of the anti-entropy sums. 0: derived from the members, whose ids are random.
    pub digest_seed: u64,
    /// The random id of the cluster. 0: the cluster was given its members and has no id.
    pub cluster: u64,
}

impl Default for EpochSettings {
    /// Default leases, all of up to 100 members vote, and neither digest seed nor cluster id is
    /// given.
    fn default() -> Self {
        Self { lease: LeaseSettings::default(), voter_limit: 100, digest_seed: 0, cluster: 0 }
    }
}
