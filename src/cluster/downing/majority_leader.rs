//! `majority-leader`: the leader of the majority downs the other members.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::{MEMBERS, POSSIBLE, View, lowest_is_reachable};

/// `[cluster.downing.majority-leader]`: `keep-majority` without the worst-case check. Needs
/// `trust-downing`.
///
/// The strategy follows a custom downing provider published for Akka. There, reachable Joining
/// members count against their own side; here, only unreachable ones are counted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct MajorityLeader {
    /// Only members with this role are counted, and their leader acts; unset: all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub majority_member_role: Option<String>,
    /// Whether the nodes of a minority stop.
    pub down_if_in_minority: bool,
    /// Whether such a node stops as a whole (`true`) or only leaves the cluster.
    pub shutdown_on_resolution: bool,
}

impl Default for MajorityLeader {
    fn default() -> Self {
        Self { majority_member_role: None, down_if_in_minority: true, shutdown_on_resolution: true }
    }
}

impl MajorityLeader {
    /// The decision of this node. In the majority only the leader acts; in a minority every node
    /// stops or leaves, with the role or without, if `down_if_in_minority`. Counts Up and Leaving
    /// members, and on the other side also those that are not yet Up. Of two equal sides the one
    /// with the lowest counted address is the majority, and if no member is counted both are a
    /// minority. `Nothing` if no member is unreachable. Indirectly connected members are not
    /// considered.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        let role = self.majority_member_role.as_deref();
        let sides = view.sides(role, [MEMBERS, POSSIBLE]);
        let is_majority = match sides.reachable.len().cmp(&sides.unreachable.len()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => lowest_is_reachable(&sides) == Some(true),
            std::cmp::Ordering::Less => false,
        };
        match is_majority {
            _ if view.unreachable.is_empty() => DowningDecision::Nothing,
            true if view.leads(role) => DowningDecision::DownUnreachable,
            false if self.down_if_in_minority && self.shutdown_on_resolution => {
                DowningDecision::ShutDownSelf
            }
            false if self.down_if_in_minority => DowningDecision::LeaveCluster,
            _ => DowningDecision::Nothing,
        }
    }
}
