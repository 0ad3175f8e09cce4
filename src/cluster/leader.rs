//! Election of the leader: every node computes it from the gossip state, without a vote.
//!
//! The leader is the first reachable member in address order that is Up or Leaving. If there is
//! none, the order continues with WeaklyUp, Joining, Exiting and Down members. Each side of a
//! network split has a leader of its own. The configuration protocol ensures that no two leaders
//! decide differently (docs/protocol/membership.md#leader-and-turns). Downing strategies restrict
//! the candidates further: [`View::leader`](super::downing::View::leader). The order follows Akka.
//!
//! A node is always reachable to itself, also if others accuse it; accusations by Down members do
//! not count.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::ReplicaId;

use super::gossip::Gossip;
use super::member::{Member, Status};

/// The leader of the cluster as seen by `me`. `None` if there are no members, or if `me` is not a
/// member and reaches none.
#[must_use]
pub fn leader(gossip: &Gossip, me: ReplicaId) -> Option<ReplicaId> {
    first(&reachable(gossip, me), None)
}

/// The leader of each role that a member has, reachable or not: among the members with that role,
/// of any status. `None`: no such member is reachable.
#[must_use]
pub fn role_leaders(gossip: &Gossip, me: ReplicaId) -> BTreeMap<String, Option<ReplicaId>> {
    let reachable = reachable(gossip, me);
    let roles: BTreeSet<_> = gossip.members().flat_map(|member| &member.roles).collect();
    roles.into_iter().map(|role| (role.to_owned(), first(&reachable, Some(role)))).collect()
}

/// Number of reachable members accepted by `counts` that precede `me` in the order of leadership.
/// Node `me` acts in their place if none of them acts in its turn. 0 if `me` leads or is not a
/// member; `me` itself need not be accepted by `counts`.
#[must_use]
pub fn ahead_of(gossip: &Gossip, me: ReplicaId, counts: impl Fn(ReplicaId) -> bool) -> usize {
    let Some(own) = gossip.member(me) else { return 0 };
    let members = reachable(gossip, me).into_iter();
    let before = members.filter(|member| by_right(member, own) == Ordering::Less);
    before.filter(|member| counts(member.incarnation())).count()
}

/// Members that `me` considers reachable, including itself: all except the
/// [unreachable](Gossip::unreachable_to) ones, of any status, in the order of incarnations.
fn reachable(gossip: &Gossip, me: ReplicaId) -> Vec<&Member> {
    let unreachable = gossip.unreachable_to(me);
    let members = gossip.members().map(AsRef::as_ref);
    members.filter(|member| !unreachable.contains(&member.incarnation())).collect()
}

/// The first member in the order of leadership among those with `role`, or among all for `None`.
fn first(reachable: &[&Member], role: Option<&str>) -> Option<ReplicaId> {
    let candidates = reachable.iter().filter(|member| member.has_role(role));
    candidates.min_by(|one, other| by_right(one, other)).map(|member| member.incarnation())
}

/// The order of leadership, the leader first: by status as in the head of this file, then by
/// address, then by node id.
fn by_right(one: &Member, other: &Member) -> Ordering {
    let class = |status: Status| match status {
        Status::Up | Status::Leaving => 0,
        Status::WeaklyUp => 1,
        Status::Joining => 2,
        Status::Exiting => 3,
        Status::Down | Status::Removed => 4,
    };
    class(one.status).cmp(&class(other.status)).then_with(|| one.by_address(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::gossip::tests::{id, state};

    /// Name, state, observing node, expected leader.
    const LEADERS: &[(&str, &str, char, char)] = &[
        ("the lowest address that is Up", "A B C", 'C', 'A'),
        ("Leaving leads, too", "Al B C", 'C', 'A'),
        ("Joining only if nobody is Up", "Aj B C", 'C', 'B'),
        ("WeaklyUp only if nobody is Up", "Aw B C", 'C', 'B'),
        ("Exiting only if nobody is Up", "Ax B C", 'C', 'B'),
        ("Down only if nobody is Up", "Ad B C", 'C', 'B'),
        ("WeaklyUp before Joining", "Aj Bw Cw", 'A', 'B'),
        ("Joining before Exiting", "Ax Bj Cj", 'A', 'B'),
        ("Exiting before Down", "Ad Bx Cx", 'A', 'B'),
        ("Down if there is no other", "Ad Bd", 'B', 'A'),
        ("a founder, not Up yet", "Aj", 'A', 'A'),
        ("not an unreachable member", "A B C; C>A", 'B', 'B'),
        ("not a terminated member", "A B C; C>>A", 'B', 'B'),
        ("a node never considers itself unreachable", "A B C; C>A", 'A', 'A'),
        ("accusations of a Down member do not count", "A B Cd; C>A", 'B', 'A'),
        ("all others unreachable", "A B C; C>A C>B", 'C', 'C'),
        ("unreachable, and no other member Up", "A Bj; B>A", 'B', 'B'),
    ];

    #[test]
    fn leader_is_the_first_up_or_leaving() {
        for (name, text, me, expected) in LEADERS {
            assert_eq!(leader(&state(text), id(*me)), Some(id(*expected)), "{name}");
        }
        assert_eq!(leader(&state(""), id('A')), None);
    }

    #[test]
    fn a_role_has_a_leader_of_its_own() {
        let roles = "; role role1 B D; role role2 C D; role role3 A B D";
        let table = [
            ("A B C D E", 'E', ['B', 'C', 'A']),
            ("Aj B Cl D E", 'E', ['B', 'C', 'B']),
            ("A B C D E; E>B", 'E', ['D', 'C', 'A']),
            ("A B C D E; E>B", 'B', ['B', 'C', 'A']),
            ("A Bx C D E", 'E', ['D', 'C', 'A']),
        ];
        for (text, me, expected) in table {
            let leaders = role_leaders(&state(&format!("{text}{roles}")), id(me));
            for (role, expected) in ["role1", "role2", "role3"].into_iter().zip(expected) {
                let found = leaders[role];
                assert_eq!(found, Some(id(expected)), "{role} of {text} as {me} sees it");
            }
        }
        let leaders = role_leaders(&state("A B C; role r B; A>B"), id('A'));
        let unreachable = BTreeMap::from([("r".to_owned(), None)]);
        assert_eq!(leaders, unreachable, "its only member is unreachable");
    }

    #[test]
    fn ahead_of_counts_the_members_that_precede() {
        let gossip = state("A Bj C Dl Ex F Gw; A>C");
        for (place, name) in ['A', 'D', 'F', 'G', 'B', 'E'].into_iter().enumerate() {
            assert_eq!(ahead_of(&gossip, id(name), |_| true), place, "{name}");
        }
        assert_eq!(ahead_of(&gossip, id('B'), |other| other != id('D')), 3);
        assert_eq!(ahead_of(&gossip, id('Z'), |_| true), 0);
    }
}
