//! `majority-leader`: the leader of the majority downs the rest.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::Decision;
use super::view::{MEMBERS, POSSIBLE, View, lowest_is_reachable};

/// `[cluster.downing.majority-leader]`: `keep-majority` without its double check. Needs
/// `trust-downing`.
///
/// Source: the custom downing of seed 004 (spec/reference/pekko-cluster.md §2.10). There reachable
/// Joining members count against the own side; here only unreachable ones do.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MajorityLeader {
    /// Counts only members with this role, and their leader acts; unset: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub majority_member_role: Option<String>,
    /// A minority shuts itself down.
    pub down_if_in_minority: bool,
    /// Whether a minority stops the whole node or only leaves the cluster.
    pub shutdown_on_resolution: bool,
}

impl Default for MajorityLeader {
    fn default() -> Self {
        Self { majority_member_role: None, down_if_in_minority: true, shutdown_on_resolution: true }
    }
}

impl MajorityLeader {
    /// What this node should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        let role = self.majority_member_role.as_deref();
        let sides = view.sides(role, [MEMBERS, POSSIBLE]);
        let is_majority = match sides.reachable.len().cmp(&sides.unreachable.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => lowest_is_reachable(&sides) == Some(true),
            std::cmp::Ordering::Less => false,
        };
        match is_majority {
            _ if view.unreachable.is_empty() => Decision::Nothing,
            true if view.leads(role) => Decision::DownUnreachable,
            false if self.down_if_in_minority && self.shutdown_on_resolution => {
                Decision::ShutDownSelf
            }
            false if self.down_if_in_minority => Decision::LeaveCluster,
            _ => Decision::Nothing,
        }
    }
}
