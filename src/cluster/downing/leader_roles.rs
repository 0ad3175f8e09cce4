//! `leader-roles`: the leader downs unreachable members that have one of some roles.

use std::collections::BTreeSet;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::Decision;
use super::view::View;

/// `[cluster.downing.leader-roles]`: for roles that get no traffic while they are cut off. Both
/// sides of a split act: needs `trust-downing`.
///
/// Source: the custom downing of seed 004 (spec/reference/pekko-cluster.md §2.10).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeaderRoles {
    /// Who may be downed: members with any of these roles. Must not be empty.
    pub target_roles: BTreeSet<String>,
}

impl LeaderRoles {
    /// What this node should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        if view.leads(None) { Decision::DownTargets } else { Decision::Nothing }
    }
}
