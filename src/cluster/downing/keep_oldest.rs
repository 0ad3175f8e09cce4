//! `keep-oldest`: the side with the oldest member survives.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::indirect::Indirect;
use super::view::{MEMBERS, SURE, Sides, View};
use super::{DowningDecision, SurvivingSide};
use crate::cluster::member::Status;

/// `[cluster.downing.keep-oldest]`: preserves what runs on the oldest member, especially
/// singletons.
///
/// It may keep the smaller side, which has no quorum: needs `trust-downing`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KeepOldest {
    /// The oldest member is downed if it is alone against two or more members. If `false`, a
    /// failure of the oldest member downs the whole cluster.
    pub down_if_alone: bool,
    /// Only members with this role are counted, and the oldest of them decides; unset: all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

impl Default for KeepOldest {
    fn default() -> Self {
        Self { down_if_alone: true, role: None }
    }
}

/// Worst case with `down-if-alone`: Leaving members are already gone, and members that are not yet
/// Up have become Up. Applies to both sides; without `down-if-alone` only Up members count.
const STAYING: &[Status] = &[Status::Joining, Status::WeaklyUp, Status::Up];

impl KeepOldest {
    /// The decision of this side. Indirectly connected members, if any, are downed; if no member is
    /// counted, all are. Otherwise the side of the oldest counted member survives, this side only
    /// if it would also survive in the worst case; if not, none does.
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
        let counted = if self.down_if_alone { STAYING } else { SURE };
        let worst = || self.side(&view.sides(role, [counted, counted]));
        self.side(&now).unless_doubtful(worst)
    }

    /// The side with the oldest of the counted members, or the other side if `down_if_alone` and
    /// the oldest is alone against two or more of them. Members that never were Up are the
    /// youngest. `Nobody` if no member is counted.
    fn side(&self, sides: &Sides<'_>) -> SurvivingSide {
        let all = sides.reachable.iter().chain(&sides.unreachable);
        let Some(oldest) = all.min_by(|a, b| a.by_age(b)) else { return SurvivingSide::Nobody };
        let here = sides.reachable.iter().any(|member| member.node == oldest.node);
        let (with, against) = if here {
            (&sides.reachable, &sides.unreachable)
        } else {
            (&sides.unreachable, &sides.reachable)
        };
        let goes = self.down_if_alone && with.len() == 1 && against.len() >= 2;
        SurvivingSide::from_reachable(Some(here != goes))
    }
}
