//! `leader-roles`: the leader downs unreachable members that have one of the target roles.

use std::collections::BTreeSet;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::View;

/// `[cluster.downing.leader-roles]`: for roles that get no traffic while they are disconnected.
/// Both sides of a split act: needs `trust-downing`.
///
/// The strategy follows a custom downing provider published for Akka
/// (docs/protocol/membership.md#strategies-that-need-trust).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeaderRoles {
    /// Members with any of these roles may be downed. Must not be empty.
    pub target_roles: BTreeSet<String>,
}

impl LeaderRoles {
    /// The decision of this node: `DownTargets` if it leads, otherwise `Nothing`.
    /// `DowningStrategy::down` selects the members.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if view.leads(None) { DowningDecision::DownTargets } else { DowningDecision::Nothing }
    }
}
