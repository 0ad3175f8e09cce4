//! `static-quorum`: a side stays if it has a fixed number of members.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::indirect::Indirect;
use super::view::{MEMBERS, POSSIBLE, SURE, Sides, View};
use super::{Decision, Stays};

/// `[cluster.downing.static-quorum]`: for clusters whose size is fixed.
///
/// A cluster of more than `2 · quorum-size − 1` members downs itself as a whole when anybody is
/// unreachable, since two quorums could stand side by side. A side below the quorum downs itself
/// even if it is all that is left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StaticQuorum {
    /// Members that a side must have to stay: more than half of the planned size. Must be set.
    pub quorum_size: usize,
    /// Counts only members with this role; unset: all. Needs `trust-downing`, for a quorum of a
    /// role is none of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl StaticQuorum {
    /// What this side should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        let now = view.sides(self.role.as_deref(), [MEMBERS, MEMBERS]);
        if self.is_too_many(&now) {
            return Decision::DownAll;
        }
        if !Indirect::of(view).is_empty() {
            return Decision::DownIndirectlyConnected;
        }
        let worst = || self.side(&view.sides(self.role.as_deref(), [SURE, POSSIBLE]));
        self.side(&now).unless_doubtful(worst)
    }

    fn is_too_many(&self, sides: &Sides<'_>) -> bool {
        sides.len() + 1 > 2 * self.quorum_size
    }

    /// Nobody stays where both could.
    fn side(&self, sides: &Sides<'_>) -> Stays {
        let [here, there] =
            [&sides.reachable, &sides.unreachable].map(|side| side.len() >= self.quorum_size);
        match (here, there) {
            (true, false) => Stays::Reachable,
            (true, true) => Stays::Nobody,
            (false, _) => Stays::Unreachable,
        }
    }
}
