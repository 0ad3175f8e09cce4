//! `static-quorum`: a side survives if it has a fixed number of members.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::indirect::Indirect;
use super::view::{MEMBERS, POSSIBLE, SURE, Sides, View};
use super::{DowningDecision, SurvivingSide};

/// `[cluster.downing.static-quorum]`: for clusters of fixed size.
///
/// A cluster of more than `2 · quorum-size − 1` members downs all of them when any member is
/// unreachable, because two sides could have the quorum. A side below the quorum stops even if it
/// is all that is left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct StaticQuorum {
    /// Minimum number of members of a surviving side: more than half of the planned size. Must be
    /// set.
    pub quorum_size: usize,
    /// Only members with this role are counted; unset: all members. Needs `trust-downing`, with
    /// which this release does not start, because a quorum of a role is not a quorum of the
    /// configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl StaticQuorum {
    /// The decision of this side. A cluster that is too large downs all members; otherwise
    /// indirectly connected members, if any, are downed. Without them the side with the quorum
    /// survives, this side only if it would also survive in the worst case (here only Up members
    /// count, there also those that are not yet Up); if not, none does. A side without the quorum
    /// decides that the other survives, whether or not that one has it.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        let now = view.sides(self.role.as_deref(), [MEMBERS, MEMBERS]);
        if self.is_too_many(&now) {
            return DowningDecision::DownAll;
        }
        if !Indirect::of(view).is_empty() {
            return DowningDecision::DownIndirectlyConnected;
        }
        let worst = || self.side(&view.sides(self.role.as_deref(), [SURE, POSSIBLE]));
        self.side(&now).unless_doubtful(worst)
    }

    /// Whether two sides could have the quorum: at least `2 · quorum_size` members are counted.
    /// Always `true` if `quorum_size` is 0.
    fn is_too_many(&self, sides: &Sides<'_>) -> bool {
        sides.len() >= self.quorum_size.saturating_mul(2)
    }

    /// The side with the quorum; if both sides have it, none survives. If neither has it, the other
    /// side is named, so that this one stops.
    fn side(&self, sides: &Sides<'_>) -> SurvivingSide {
        let [here, there] =
            [&sides.reachable, &sides.unreachable].map(|side| side.len() >= self.quorum_size);
        match (here, there) {
            (true, false) => SurvivingSide::Reachable,
            (true, true) => SurvivingSide::Nobody,
            (false, _) => SurvivingSide::Unreachable,
        }
    }
}
