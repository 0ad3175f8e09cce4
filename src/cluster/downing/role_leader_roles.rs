//! `role-leader-roles`: the leader of one role downs unreachable members that have one of some
//! roles.

use std::collections::BTreeSet;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::Decision;
use super::view::View;

/// `[cluster.downing.role-leader-roles]`: `leader-roles` with the word given to a role. Both sides
/// of a split may act: needs `trust-downing`.
///
/// Source: the custom downing of seed 004 (spec/reference/pekko-cluster.md §2.10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RoleLeaderRoles {
    /// Whose leader acts. Must be set.
    pub leader_role: String,
    /// Who may be downed: members with any of these roles. Must not be empty.
    pub target_roles: BTreeSet<String>,
}

impl RoleLeaderRoles {
    /// What this node should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        if view.leads(Some(&self.leader_role)) { Decision::DownTargets } else { Decision::Nothing }
    }
}
