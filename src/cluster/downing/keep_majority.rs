//! `keep-majority`: the side with more members survives. The default.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::indirect::Indirect;
use super::view::{MEMBERS, POSSIBLE, SURE, Sides, View, lowest_is_reachable};
use super::{DowningDecision, SurvivingSide};

/// `[cluster.downing.keep-majority]`: for clusters of changing size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeepMajority {
    /// Only members with this role are counted; unset: all members. A side with more members of the
    /// role but without a quorum of the configuration cannot remove the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Which of two sides of equal size survives.
    pub tie_break: TieBreak,
}

/// Which of two sides of equal size survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TieBreak {
    /// The side with the tiebreaker of the installed configuration (its oldest voter), so that
    /// decision and quorum agree. Without a tiebreaker among the members: as `lowest-address`.
    #[default]
    Tiebreaker,
    /// The side with the lowest address, as in Akka.
    LowestAddress,
}

impl KeepMajority {
    /// The decision of this side. Indirectly connected members, if any, are downed; if no member is
    /// counted, all are. Otherwise the larger side survives, this side only if it would also
    /// survive in the worst case; if not, none does. In the worst case only Up members of this side
    /// count, and of the other side also Leaving ones and those that are not yet Up; a tie by
    /// address compares Up members only.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if !Indirect::of(view).is_empty() {
            return DowningDecision::DownIndirectlyConnected;
        }
        let role = self.role.as_deref();
        let now = view.sides(role, [MEMBERS, MEMBERS]);
        if now.is_empty() {
            return DowningDecision::DownAll;
        }
        let sure = view.sides(role, [SURE, SURE]);
        let worst = || self.larger(view, &view.sides(role, [SURE, POSSIBLE]), &sure);
        self.larger(view, &now, &now).unless_doubtful(worst)
    }

    /// The larger side of `counted`; if they are equal, the side that wins the tie in `tie`, or
    /// `Nobody` if no member decides it.
    fn larger(&self, view: &View, counted: &Sides<'_>, tie: &Sides<'_>) -> SurvivingSide {
        let reachable = match counted.reachable.len().cmp(&counted.unreachable.len()) {
            std::cmp::Ordering::Greater => Some(true),
            std::cmp::Ordering::Less => Some(false),
            std::cmp::Ordering::Equal => self.tie_break.is_reachable(view, tie),
        };
        SurvivingSide::from_reachable(reachable)
    }
}

impl TieBreak {
    /// Whether this side wins the tie. The tiebreaker decides whatever its role and status; `sides`
    /// are used only for the lowest address. `None` if no member decides it.
    pub(super) fn is_reachable(self, view: &View, sides: &Sides<'_>) -> Option<bool> {
        let tiebreaker = view.electorate.as_ref().map(|electorate| electorate.tiebreaker);
        let tiebreaker = tiebreaker.filter(|node| view.member(*node).is_some());
        match (self, tiebreaker) {
            (Self::Tiebreaker, Some(node)) => Some(view.is_reachable(node)),
            _ => lowest_is_reachable(sides),
        }
    }
}
