//! `oldest`: the oldest member downs the members that it cannot reach; members that cannot reach
//! the oldest stop.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::DowningDecision;
use super::view::{MEMBERS, View};
use crate::cluster::member::{Member, Status};

/// `[cluster.downing.oldest]`: like `keep-oldest`, but it neither compares sides nor checks the
/// worst case of joins and leaves. Needs `trust-downing`.
///
/// The strategy follows a custom downing provider published for Akka, with two changes: the oldest
/// is alone only if no other member at all is on its side, regardless of roles; and of two members
/// the oldest survives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Oldest {
    /// The oldest member with this role decides; unset: the oldest of all members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_member_role: Option<String>,
    /// The oldest stops if it is alone against two or more members; the second oldest downs it.
    pub down_if_alone: bool,
}

impl Default for Oldest {
    fn default() -> Self {
        Self { oldest_member_role: None, down_if_alone: true }
    }
}

impl Oldest {
    /// The decision of this node. `Nothing` if no member is unreachable, or no Up or Leaving member
    /// has the role. Unless the oldest is alone against two or more: the oldest downs the members
    /// that it cannot reach, and nodes that cannot reach the oldest stop. If it is alone, it stops
    /// and the second oldest downs the unreachable members; all other nodes wait. No node downs
    /// others while any member is Exiting or Down; nodes stop even then.
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        if view.unreachable.is_empty() {
            return DowningDecision::Nothing;
        }
        let by_age = by_age(view, self.oldest_member_role.as_deref());
        let Some(oldest) = by_age.first() else { return DowningDecision::Nothing };
        if self.down_if_alone && is_alone(view, oldest) {
            return match second(view, &by_age) {
                _ if oldest.node == view.own => DowningDecision::ShutDownSelf,
                Some(second) if second.node == view.own => act(view),
                _ => DowningDecision::Nothing,
            };
        }
        if !view.is_reachable(oldest.node) {
            return DowningDecision::ShutDownSelf;
        }
        if oldest.node == view.own { act(view) } else { DowningDecision::Nothing }
    }
}

/// The second oldest member with the role; if there is none, the oldest other member. `of_role`
/// must not be empty.
fn second<'a>(view: &'a View, of_role: &[&'a Member]) -> Option<&'a Member> {
    let next = || by_age(view, None).into_iter().find(|member| member.node != of_role[0].node);
    of_role.get(1).copied().or_else(next)
}

/// Up and Leaving members with `role` on both sides, oldest first.
fn by_age<'a>(view: &'a View, role: Option<&str>) -> Vec<&'a Member> {
    let counted = |member: &&Member| MEMBERS.contains(&member.status) && member.has_role(role);
    let mut members: Vec<&Member> = view.members.iter().filter(counted).collect();
    members.sort_by(|a, b| a.by_age(b));
    members
}

/// Whether `oldest` is the only member of its side, with two or more members on the other. Counts
/// Up and Leaving members of any role.
fn is_alone(view: &View, oldest: &Member) -> bool {
    let sides = view.sides(None, [MEMBERS, MEMBERS]);
    let (with, against) = if view.is_reachable(oldest.node) {
        (sides.reachable, sides.unreachable)
    } else {
        (sides.unreachable, sides.reachable)
    };
    with.len() == 1 && against.len() >= 2
}

/// Downs the unreachable members, but does nothing while any member is Exiting or Down, reachable
/// or not, because another member may soon be the oldest.
fn act(view: &View) -> DowningDecision {
    let going = |member: &Member| matches!(member.status, Status::Exiting | Status::Down);
    if view.members.iter().any(going) {
        DowningDecision::Nothing
    } else {
        DowningDecision::DownUnreachable
    }
}
