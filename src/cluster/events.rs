//! Events for subscribers of membership: first the whole [`ClusterState`], then every change in a
//! fixed order.
//!
//! Events are the difference between two states as one node sees them. States that were skipped
//! between the two produce no events. The module does not manage subscribers. The order of events
//! follows Akka.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::id::{NodeId, ReplicaId};

use super::gossip::Gossip;
use super::leader;
use super::member::{Member, Status};

/// State of the cluster as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// All members, keyed by incarnation.
    pub members: BTreeMap<ReplicaId, Arc<Member>>,
    /// Members that at least one observer cannot reach; never contains the observing node itself.
    pub unreachable: BTreeSet<ReplicaId>,
    /// The leader of the cluster.
    pub leader: Option<NodeId>,
    /// The leader of each role in the cluster; `None` if all members with that role are
    /// unreachable.
    pub role_leaders: BTreeMap<String, Option<NodeId>>,
    /// Whether all members have seen the state (docs/protocol/membership.md#convergence).
    pub converged: bool,
    /// Whether joins, promotions, rebalancing and handover are frozen before a shutdown of the
    /// whole cluster.
    pub preparing_for_shutdown: bool,
}

/// An event for subscribers of membership.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterEvent {
    /// The whole state. It is the first event of every subscription and never occurs later.
    CurrentState(Arc<ClusterState>),
    /// The member was removed for ever.
    MemberRemoved {
        /// Last known state of the member, with status Removed.
        member: Arc<Member>,
        /// Status before the removal.
        previous: Status,
    },
    /// The member was admitted.
    MemberJoined(Arc<Member>),
    /// No configuration has included the member yet: it routes, but hosts nothing.
    MemberWeaklyUp(Arc<Member>),
    /// The member was included in the configuration.
    MemberUp(Arc<Member>),
    /// The member was asked to leave.
    MemberLeft(Arc<Member>),
    /// The member has moved everything away.
    MemberExited(Arc<Member>),
    /// The member was declared dead.
    MemberDowned(Arc<Member>),
    /// The member hosts other entity types, or started or stopped draining.
    MemberHostingChanged(Arc<Member>),
    /// At least one observer cannot reach the member.
    UnreachableMember(Arc<Member>),
    /// Every observer reaches the member again.
    ReachableMember(Arc<Member>),
    /// The leader changed; `None` if there is none.
    LeaderChanged(Option<NodeId>),
    /// The leader of a role changed.
    RoleLeaderChanged {
        /// Name of the role.
        role: String,
        /// The new leader; `None` if no member with the role is reachable.
        leader: Option<NodeId>,
    },
    /// Whether all members have seen the state.
    ConvergenceChanged(bool),
    /// Joins, promotions, rebalancing and handover are frozen from now on.
    PreparingForShutdown,
}

impl ClusterState {
    /// The state `gossip` as seen by `me`, which need not be a member. Shares the members with
    /// gossip; the leaders are those of the module `leader`.
    #[must_use]
    pub fn of(gossip: &Gossip, me: ReplicaId) -> Self {
        let node = |id: ReplicaId| gossip.member(id).map(|member| member.node);
        let role_leaders = leader::role_leaders(gossip, me);
        Self {
            members: gossip.members().map(|m| (m.incarnation(), Arc::clone(m))).collect(),
            unreachable: gossip.unreachable_to(me),
            leader: leader::leader(gossip, me).and_then(node),
            role_leaders: role_leaders
                .into_iter()
                .map(|(role, id)| (role, id.and_then(node)))
                .collect(),
            converged: gossip.converged(me),
            preparing_for_shutdown: gossip.is_preparing_for_shutdown(),
        }
    }

    /// Whether shards may be allocated to this node: a reachable member that
    /// [stays](Member::stays).
    #[must_use]
    pub fn may_take(&self, id: ReplicaId) -> bool {
        let stays = self.members.get(&id).is_some_and(|member| member.stays());
        stays && !self.unreachable.contains(&id)
    }

    /// The events that lead from this state to `next`, in this order: removals, status changes,
    /// hosting changes, unreachable, reachable, leader, role leaders, convergence, preparation for
    /// shutdown. Within a group, members are in address order. Empty if the states are equal.
    ///
    /// A new member, or one that skipped a status, produces only the event of its status in `next`.
    /// Changes of other fields of a member produce no event, and neither does the end of a
    /// preparation for shutdown; so two different states may have no events between them.
    #[must_use]
    pub fn events_to(&self, next: &Self) -> Vec<ClusterEvent> {
        let mut events = Vec::new();
        self.removals(next, &mut events);
        self.statuses(next, &mut events);
        self.reachabilities(next, &mut events);
        if self.leader != next.leader {
            events.push(ClusterEvent::LeaderChanged(next.leader));
        }
        self.role_leaders(next, &mut events);
        if self.converged != next.converged {
            events.push(ClusterEvent::ConvergenceChanged(next.converged));
        }
        if !self.preparing_for_shutdown && next.preparing_for_shutdown {
            events.push(ClusterEvent::PreparingForShutdown);
        }
        events
    }

    /// Applies an event: the inverse of [`events_to`](Self::events_to), except that roles without a
    /// reachable member may be missing afterwards, and changes that have no event as well. Each
    /// event changes only its own part: `UnreachableMember` and `ReachableMember` do not update the
    /// member itself; only `MemberRemoved` changes both, `members` and `unreachable`. Nothing is
    /// checked: an event about an unknown member takes effect as well. `CurrentState` replaces the
    /// whole state. Applying an event twice in succession has no further effect.
    pub fn apply(&mut self, event: &ClusterEvent) {
        match event {
            ClusterEvent::CurrentState(state) => self.clone_from(state),
            ClusterEvent::MemberRemoved { member, .. } => {
                self.members.remove(&member.incarnation());
                self.unreachable.remove(&member.incarnation());
            }
            ClusterEvent::MemberJoined(member)
            | ClusterEvent::MemberWeaklyUp(member)
            | ClusterEvent::MemberUp(member)
            | ClusterEvent::MemberLeft(member)
            | ClusterEvent::MemberExited(member)
            | ClusterEvent::MemberDowned(member)
            | ClusterEvent::MemberHostingChanged(member) => {
                self.members.insert(member.incarnation(), Arc::clone(member));
            }
            ClusterEvent::UnreachableMember(member) => {
                self.unreachable.insert(member.incarnation());
            }
            ClusterEvent::ReachableMember(member) => {
                self.unreachable.remove(&member.incarnation());
            }
            ClusterEvent::LeaderChanged(leader) => self.leader = *leader,
            ClusterEvent::RoleLeaderChanged { role, leader: None } => {
                self.role_leaders.remove(role);
            }
            ClusterEvent::RoleLeaderChanged { role, leader } => {
                self.role_leaders.insert(role.clone(), *leader);
            }
            ClusterEvent::ConvergenceChanged(converged) => self.converged = *converged,
            ClusterEvent::PreparingForShutdown => self.preparing_for_shutdown = true,
        }
    }

    /// Reports members that `next` lacks, with status Removed. No other event tells that such a
    /// member is reachable again. The last known state is that of `self`, not of `next`.
    fn removals(&self, next: &Self, events: &mut Vec<ClusterEvent>) {
        let gone = |member: &&Arc<Member>| !next.members.contains_key(&member.incarnation());
        for member in in_order(self.members.values().filter(gone)) {
            let removed = Member { status: Status::Removed, ..Member::clone(member) };
            let previous = member.status;
            events.push(ClusterEvent::MemberRemoved { member: Arc::new(removed), previous });
        }
    }

    /// Reports members that are new, or have another status or age; a changed age alone repeats the
    /// event of the status. Then reports members whose hosting changed, but not that of new
    /// members; a member may have both events.
    fn statuses(&self, next: &Self, events: &mut Vec<ClusterEvent>) {
        let mut hosting = Vec::new();
        let is_new = |member: &&Arc<Member>| {
            let before = self.members.get(&member.incarnation());
            before.is_none_or(|before| !Arc::ptr_eq(before, member))
        };
        for member in in_order(next.members.values().filter(is_new)) {
            let before = self.members.get(&member.incarnation());
            let standing = |member: &Member| (member.status, member.up_number);
            if before.is_none_or(|before| standing(before) != standing(member)) {
                events.extend(status_event(member));
            }
            if before.is_some_and(|before| before.hosting != member.hosting) {
                hosting.push(ClusterEvent::MemberHostingChanged(Arc::clone(member)));
            }
        }
        events.append(&mut hosting);
    }

    /// Reports members of `next` that became unreachable, then those that became reachable. A
    /// removed member is not reported.
    fn reachabilities(&self, next: &Self, events: &mut Vec<ClusterEvent>) {
        let lost = next.unreachable.difference(&self.unreachable);
        let lost = in_order(lost.filter_map(|id| next.members.get(id)));
        events.extend(lost.into_iter().cloned().map(ClusterEvent::UnreachableMember));
        let back = self.unreachable.difference(&next.unreachable);
        let back = in_order(back.filter_map(|id| next.members.get(id)));
        events.extend(back.into_iter().cloned().map(ClusterEvent::ReachableMember));
    }

    /// Reports roles whose leader changed, ordered by name. Reports `None` as the leader of a role
    /// that no member has any longer. A new role without a reachable member is not reported.
    fn role_leaders(&self, next: &Self, events: &mut Vec<ClusterEvent>) {
        let roles: BTreeSet<_> = self.role_leaders.keys().chain(next.role_leaders.keys()).collect();
        for role in roles {
            let leader_in = |state: &Self| state.role_leaders.get(role).copied().flatten();
            let leader = leader_in(next);
            if leader_in(self) != leader {
                events.push(ClusterEvent::RoleLeaderChanged { role: role.clone(), leader });
            }
        }
    }
}

/// Sorts members by address, then by node id.
fn in_order<'a>(members: impl Iterator<Item = &'a Arc<Member>>) -> Vec<&'a Arc<Member>> {
    let mut members: Vec<_> = members.collect();
    members.sort_by(|one, other| one.by_address(other));
    members
}

/// The event for the present status of a member; `None` for Removed, which has an event of its own.
fn status_event(member: &Arc<Member>) -> Option<ClusterEvent> {
    let event = match member.status {
        Status::Joining => ClusterEvent::MemberJoined,
        Status::WeaklyUp => ClusterEvent::MemberWeaklyUp,
        Status::Up => ClusterEvent::MemberUp,
        Status::Leaving => ClusterEvent::MemberLeft,
        Status::Exiting => ClusterEvent::MemberExited,
        Status::Down => ClusterEvent::MemberDowned,
        Status::Removed => return None,
    };
    Some(event(Arc::clone(member)))
}

/// Computes the events for all subscribers and remembers the state that they describe.
#[derive(Clone, Debug, Default)]
pub struct Publisher {
    /// The last published state.
    told: Arc<ClusterState>,
}

impl Publisher {
    /// No state was published yet: no members, no leader.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The last published state, which may be older than the present gossip.
    #[must_use]
    pub const fn told(&self) -> &Arc<ClusterState> {
        &self.told
    }

    /// The events for all subscribers, now that `me` sees `gossip`; empty if nothing changed that
    /// has an event. Afterwards this state is the published one, also if there were no events. The
    /// caller delivers the events.
    pub fn publish(&mut self, gossip: &Gossip, me: ReplicaId) -> Vec<ClusterEvent> {
        let next = ClusterState::of(gossip, me);
        let events = self.told.events_to(&next);
        if *self.told != next {
            self.told = Arc::new(next);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::gossip::tests::{id, node, state};
    use crate::cluster::name_set::NameSet;

    /// Short form of an event: `+A` joined, `wA` weakly up, `^A` up, `-A` left, `xA` exited, `dA`
    /// downed, `!A Up` removed, `hA` hosting, `?A` unreachable, `=A` reachable, `L A` leader, `r A`
    /// leader of r.
    fn short(event: &ClusterEvent) -> String {
        let name = |node: &NodeId| char::from(b'A' + node.incarnation.get() as u8 - 1);
        let named = |sign: &str, member: &Member| format!("{sign}{}", name(&member.node));
        let leads = |role: &str, leader: &Option<NodeId>| {
            format!("{role} {}", leader.as_ref().map_or('-', name))
        };
        match event {
            ClusterEvent::CurrentState(_) => "state".into(),
            ClusterEvent::MemberRemoved { member, previous } => {
                assert_eq!(member.status, Status::Removed);
                format!("{} {previous}", named("!", member))
            }
            ClusterEvent::MemberJoined(member) => named("+", member),
            ClusterEvent::MemberWeaklyUp(member) => named("w", member),
            ClusterEvent::MemberUp(member) => named("^", member),
            ClusterEvent::MemberLeft(member) => named("-", member),
            ClusterEvent::MemberExited(member) => named("x", member),
            ClusterEvent::MemberDowned(member) => named("d", member),
            ClusterEvent::MemberHostingChanged(member) => named("h", member),
            ClusterEvent::UnreachableMember(member) => named("?", member),
            ClusterEvent::ReachableMember(member) => named("=", member),
            ClusterEvent::LeaderChanged(leader) => leads("L", leader),
            ClusterEvent::RoleLeaderChanged { role, leader } => leads(role, leader),
            ClusterEvent::ConvergenceChanged(converged) => format!("converged {converged}"),
            ClusterEvent::PreparingForShutdown => "preparing".into(),
        }
    }

    /// Name, state before, state after, expected events, as seen by A.
    const CHANGES: &[(&str, &str, &str, &[&str])] = &[
        ("nothing", "A B; seen A", "A B; seen A", &[]),
        ("more have seen it, not all", "A B C; seen A", "A B C; seen A B", &[]),
        ("the first state", "", "A; seen A", &["^A", "L A"]),
        ("a join", "A; seen A", "A Bj; seen A", &["+B", "converged false"]),
        ("weakly up", "A Bj", "A Bw", &["wB"]),
        ("up", "A Bj", "A B", &["^B"]),
        ("a step that was missed", "A Bj", "A Bl", &["-B"]),
        ("left", "A B", "A Bl", &["-B"]),
        ("exited", "A Bl; seen A", "A Bx; seen A", &["xB", "converged true"]),
        ("downed", "A B", "A Bd", &["dB"]),
        ("removed", "A Bx C", "A C", &["!B Exiting"]),
        ("unreachable", "A B; seen A B", "A B; seen A B; A>B", &["?B", "converged false"]),
        ("accused by one more", "A B C; A>B", "A B C; A>B C>B", &[]),
        ("unreachable to one still", "A B C; A>B C>B", "A B C; C>B", &[]),
        ("reachable", "A B; seen A B; A>B", "A B; seen A B", &["=B", "converged true"]),
        ("it is never unreachable itself", "A B", "A B; B>A", &[]),
        ("its accuser is Down", "A B C; C>B", "A B Cd; C>B", &["dC", "=B"]),
        ("unreachable, then removed", "A Bd; seen A; A>B", "A; seen A", &["!B Down"]),
        ("new and unreachable", "A C", "A B C; C>B", &["^B", "?B"]),
        ("the leader leaves for good", "A B; role r A", "Ax B; role r A", &["xA", "L B"]),
        (
            "all at once, in order",
            "Ax B C Dd E; seen A B C D E; role r B E; A>C",
            "A Bl Ej F Gj; seen A B; role r E; A>F",
            &["!C Up", "!D Down", "^A", "-B", "+E", "^F", "+G", "?F", "L A", "r E"],
        ),
        ("a role without members", "A B; role r B", "A", &["!B Up", "r -"]),
        ("a role's leader is lost", "A B; role r B", "A B; role r B; A>B", &["?B", "r -"]),
    ];

    #[test]
    fn events_are_the_ordered_difference() {
        for (name, before, after, expected) in CHANGES {
            let of = |text: &str| ClusterState::of(&state(text), id('A'));
            let events = of(before).events_to(&of(after));
            assert_eq!(events.iter().map(short).collect::<Vec<_>>(), *expected, "{name}");
            let (mut told, mut next) = (of(before), of(after));
            events.iter().for_each(|event| told.apply(event));
            for state in [&mut told, &mut next] {
                state.role_leaders.retain(|_, leader| leader.is_some());
            }
            assert_eq!(told, next, "{name}");
            assert_eq!(of(after).events_to(&of(after)), [], "{name}");
        }
    }

    #[test]
    fn hosting_changes_and_draining_produce_events() {
        let mut gossip = state("A B; seen A B");
        let before = ClusterState::of(&gossip, id('A'));
        assert!(gossip.host(id('B'), NameSet::new(), true));
        assert!(gossip.prepare_for_full_shutdown(id('A')));
        let events = before.events_to(&ClusterState::of(&gossip, id('A')));
        let events: Vec<_> = events.iter().map(short).collect();
        assert_eq!(events, ["hB", "converged false", "preparing"]);
    }

    #[test]
    fn changed_age_produces_member_up() {
        let one = ClusterState::of(&state("A B"), id('A'));
        let mut other = one.clone();
        Arc::make_mut(other.members.get_mut(&id('B')).unwrap()).up_number = Some(7);
        assert_eq!(one.events_to(&other).iter().map(short).collect::<Vec<_>>(), ["^B"]);
    }

    #[test]
    fn each_change_is_published_once() {
        let mut publisher = Publisher::new();
        assert_eq!(**publisher.told(), ClusterState::default());

        let mut gossip = state("A B; seen A B");
        let first = publisher.publish(&gossip, id('A'));
        let first: Vec<_> = first.iter().map(short).collect();
        assert_eq!(first, ["^A", "^B", "L A", "converged true"]);
        assert_eq!(publisher.publish(&gossip, id('A')), []);

        let told = Arc::clone(publisher.told());
        assert_eq!(told.leader, Some(node(1)));
        gossip.remove(id('A'), &[id('B')]);
        let later = publisher.publish(&gossip, id('A'));
        assert_eq!(later.iter().map(short).collect::<Vec<_>>(), ["!B Up"]);
        assert_eq!(told.events_to(publisher.told()), later);
    }
}
