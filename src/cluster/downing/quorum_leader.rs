//! `quorum-leader`: the leader downs the unreachable members while enough members remain.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::{MEMBERS, View};

/// `[cluster.downing.quorum-leader]`: needs `trust-downing`, because the cluster may grow until two
/// sides are large enough.
///
/// The strategy follows a custom downing provider published for Akka. There, a graceful leave that
/// takes the cluster below the quorum also ends it; here, only unreachable members matter.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuorumLeader {
    /// Only members with this role are counted, and their leader acts; unset: all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Number of members that must remain. Must be set.
    pub quorum_size: usize,
    /// Whether the remaining nodes stop if they are fewer than `quorum-size`.
    pub down_if_out_of_quorum: bool,
}

impl Default for QuorumLeader {
    fn default() -> Self {
        Self { role: None, quorum_size: 0, down_if_out_of_quorum: true }
    }
}

impl QuorumLeader {
    /// The decision of this node. If at least `quorum_size` Up and Leaving members with the role
    /// are reachable, their leader downs the unreachable members and other nodes do nothing;
    /// otherwise every node stops, with the role or without, if `down_if_out_of_quorum`. `Nothing`
    /// if no member is unreachable.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        let role = self.role.as_deref();
        let remaining = view.sides(role, [MEMBERS, MEMBERS]).reachable.len();
        if view.unreachable.is_empty() {
            DowningDecision::Nothing
        } else if remaining >= self.quorum_size {
            if view.leads(role) {
                DowningDecision::DownUnreachable
            } else {
                DowningDecision::Nothing
            }
        } else if self.down_if_out_of_quorum {
            DowningDecision::ShutDownSelf
        } else {
            DowningDecision::Nothing
        }
    }
}
