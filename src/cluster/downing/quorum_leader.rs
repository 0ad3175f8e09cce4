//! `quorum-leader`: the leader downs the unreachable while enough members remain.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::Decision;
use super::view::{MEMBERS, View};

/// `[cluster.downing.quorum-leader]`: needs `trust-downing`; nothing keeps a cluster from growing
/// until two sides are large enough.
///
/// Source: the custom downing of seed 004 (spec/reference/pekko-cluster.md §2.10). There a graceful
/// leave that takes the cluster below the quorum ends it too; here only unreachable members count.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct QuorumLeader {
    /// Counts only members with this role, and their leader acts; unset: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Members that must remain. Must be set.
    pub quorum_size: usize,
    /// The remaining shut themselves down if they are fewer.
    pub down_if_out_of_quorum: bool,
}

impl Default for QuorumLeader {
    fn default() -> Self {
        Self { role: None, quorum_size: 0, down_if_out_of_quorum: true }
    }
}

impl QuorumLeader {
    /// What this node should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        let role = self.role.as_deref();
        let remaining = view.sides(role, [MEMBERS, MEMBERS]).reachable.len();
        if view.unreachable.is_empty() {
            Decision::Nothing
        } else if remaining >= self.quorum_size {
            if view.leads(role) { Decision::DownUnreachable } else { Decision::Nothing }
        } else if self.down_if_out_of_quorum {
            Decision::ShutDownSelf
        } else {
            Decision::Nothing
        }
    }
}
