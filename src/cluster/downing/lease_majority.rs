//! `lease-majority`: the side that acquires a lease from a third party survives; the larger side
//! requests it first.

use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::indirect::Indirect;
use super::keep_majority::TieBreak;
use super::view::{MEMBERS, View};

/// `[cluster.downing.lease-majority]`: a lease outside of the cluster decides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeaseMajority {
    /// Name of the lease; unset: `<cluster name>-downing`. Clusters that share a lease provider
    /// must use different names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_name: Option<String>,
    /// How long the smaller side waits before it requests the lease.
    #[serde(with = "humantime_serde")]
    pub acquire_lease_delay_for_minority: Duration,
    /// How long the answer is awaited before it counts as a refusal.
    #[serde(with = "humantime_serde")]
    pub acquire_within: Duration,
    /// How long the lease is kept after the last downed member was removed, so that a late side
    /// finds it taken.
    #[serde(with = "humantime_serde")]
    pub release_after: Duration,
    /// Only members with this role are counted; unset: all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl Default for LeaseMajority {
    fn default() -> Self {
        Self {
            lease_name: None,
            acquire_lease_delay_for_minority: Duration::from_secs(2),
            acquire_within: Duration::from_secs(5),
            release_after: Duration::from_secs(40),
            role: None,
        }
    }
}

impl LeaseMajority {
    /// The decision of this side: it always requests the lease, also if no member is counted. The
    /// smaller side does so after a delay, but immediately if there are indirectly connected
    /// members. Does not look at the quorum, which [`resolve`](super::resolve) applies later.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if !Indirect::of(view).is_empty() {
            return DowningDecision::AcquireLeaseAndDownIndirectlyConnected;
        }
        let after = if self.is_minority(view) {
            self.acquire_lease_delay_for_minority
        } else {
            Duration::ZERO
        };
        DowningDecision::AcquireLeaseAndDownUnreachable { after }
    }

    /// Whether this side has fewer counted members, or as many and loses the tie, which the
    /// tiebreaker decides as by default in `keep-majority`. `false` if no member is counted.
    fn is_minority(&self, view: &View) -> bool {
        let sides = view.sides(self.role.as_deref(), [MEMBERS, MEMBERS]);
        let tie = || TieBreak::default().is_reachable(view, &sides) == Some(false);
        match sides.reachable.len().cmp(&sides.unreachable.len()) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => !sides.is_empty() && tie(),
            std::cmp::Ordering::Greater => false,
        }
    }
}
