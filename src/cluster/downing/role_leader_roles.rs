//! `role-leader-roles`: the leader of one role downs unreachable members that have one of the
//! target roles.

use std::collections::BTreeSet;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::View;

/// `[cluster.downing.role-leader-roles]`: like `leader-roles`, but the leader of a role acts. Both
/// sides of a split may act: needs `trust-downing`.
///
/// The strategy follows a custom downing provider published for Akka.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct RoleLeaderRoles {
    /// The leader of this role acts. Must be set.
    pub leader_role: String,
    /// Members with any of these roles may be downed. Must not be empty.
    pub target_roles: BTreeSet<String>,
}

impl RoleLeaderRoles {
    /// The decision of this node: `DownTargets` if it leads the members with `leader_role`,
    /// otherwise `Nothing`. `DowningStrategy::down` selects the members.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if view.leads(Some(&self.leader_role)) {
            DowningDecision::DownTargets
        } else {
            DowningDecision::Nothing
        }
    }
}
