//! `keep-majority`: the larger side stays. The default.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::indirect::Indirect;
use super::view::{MEMBERS, POSSIBLE, SURE, Sides, View, lowest_is_reachable};
use super::{Decision, Stays};

/// `[cluster.downing.keep-majority]`: suits clusters whose size changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeepMajority {
    /// Counts only members with this role; unset: all. A side with the larger part of a role but
    /// no quorum of the configuration cannot remove the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Which of two equal sides stays.
    pub tie_break: TieBreak,
}

/// Which of two equal sides stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TieBreak {
    /// The one with the tiebreaker of the installed configuration (its oldest voter), so that
    /// verdict and quorum agree. While there is none, or it is gone: the lowest address.
    #[default]
    Tiebreaker,
    /// The one with the lowest address, as in Akka.
    LowestAddress,
}

impl KeepMajority {
    /// What this side should do.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
        if !Indirect::of(view).is_empty() {
            return Decision::DownIndirectlyConnected;
        }
        let role = self.role.as_deref();
        let now = view.sides(role, [MEMBERS, MEMBERS]);
        if now.is_empty() {
            return Decision::DownAll;
        }
        let sure = view.sides(role, [SURE, SURE]);
        let worst = || self.larger(view, &view.sides(role, [SURE, POSSIBLE]), &sure);
        self.larger(view, &now, &now).unless_doubtful(worst)
    }

    /// The larger side; of equal ones the one that `tie` gives.
    fn larger(&self, view: &View, counted: &Sides<'_>, tie: &Sides<'_>) -> Stays {
        let reachable = match counted.reachable.len().cmp(&counted.unreachable.len()) {
            std::cmp::Ordering::Greater => Some(true),
            std::cmp::Ordering::Less => Some(false),
            std::cmp::Ordering::Equal => self.tie_break.is_reachable(view, tie),
        };
        Stays::from_reachable(reachable)
    }
}

impl TieBreak {
    /// Whether this side has what breaks a tie; `None` if there is no such member.
    pub(super) fn is_reachable(self, view: &View, sides: &Sides<'_>) -> Option<bool> {
        let tiebreaker = view.electorate.as_ref().map(|electorate| electorate.tiebreaker);
        let tiebreaker = tiebreaker.filter(|node| view.member(*node).is_some());
        match (self, tiebreaker) {
            (Self::Tiebreaker, Some(node)) => Some(view.is_reachable(node)),
            _ => lowest_is_reachable(sides),
        }
    }
}
