//! Input of downing strategies: one node's view of the cluster, and functions that count members in
//! it.
//!
//! Depends on neither a strategy nor a clock. The sets of counted statuses are those of Pekko's
//! resolver.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::NodeId;
use ostraca_ddata::replicator::quorum::is_quorum;

use crate::cluster::member::{Member, Status};

/// A negative entry of the reachability table: `observer` cannot reach `subject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnreachableRecord {
    /// The member that reports it.
    pub observer: NodeId,
    /// The member that it cannot reach.
    pub subject: NodeId,
}

/// The voters of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterSet {
    /// All voters of the configuration.
    pub voters: Vec<NodeId>, // ≤ the voter limit of the configuration
    /// A half of the voters that contains this voter is a quorum
    /// (docs/protocol/configurations.md#quorum-by-the-tie-rule).
    pub tiebreaker: NodeId,
}

/// One node's view of the cluster at one moment. Every set is bounded by the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The node that owns the view.
    pub own: NodeId,
    /// All members in gossip, including this node; each once.
    pub members: Vec<Member>,
    /// Members that any observer except Down ones reports as unreachable, and for how long they
    /// have been. Never this node. The resolver sets the durations: see
    /// [`DowningResolver::observe`](super::DowningResolver::observe).
    pub unreachable: BTreeMap<NodeId, Duration>,
    /// Records between members, none of Down observers. Unlike `unreachable` it may contain this
    /// node as a subject.
    pub records: BTreeSet<UnreachableRecord>,
    /// Members that have seen the present gossip state.
    pub seen: BTreeSet<NodeId>,
    /// Members with which this node is connected at the moment.
    pub connected: BTreeSet<NodeId>,
    /// The voters of the installed configuration; `None` before the first one.
    pub electorate: Option<VoterSet>,
    /// The voters of the configuration that may be the next one, if a proposal is in progress.
    pub pending: Option<VoterSet>,
}

/// The counted members of the two sides of a split, each in address order.
#[derive(Debug)]
pub(super) struct Sides<'a> {
    pub(super) reachable: Vec<&'a Member>,
    pub(super) unreachable: Vec<&'a Member>,
}

/// Up and Leaving: the members that strategies count.
pub(super) const MEMBERS: &[Status] = &[Status::Up, Status::Leaving];
/// Lower bound for a side: Leaving members may already be gone in the view of the other side.
pub(super) const SURE: &[Status] = &[Status::Up];
/// Upper bound for a side: Joining members may already be Up in the view of the other side.
pub(super) const POSSIBLE: &[Status] =
    &[Status::Joining, Status::WeaklyUp, Status::Up, Status::Leaving];

impl Sides<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.reachable.is_empty() && self.unreachable.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.reachable.len() + self.unreachable.len()
    }
}

impl View {
    /// The member with this node id.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether no observer reports it as unreachable. A node always considers itself reachable.
    #[must_use]
    pub fn is_reachable(&self, node: NodeId) -> bool {
        node == self.own || !self.unreachable.contains_key(&node)
    }

    /// The first reachable member with `role`, in address order, that is Up or Leaving. If there is
    /// none, the order continues with WeaklyUp, Joining, Exiting and Down members. A Leaving member
    /// that never was Up counts as WeaklyUp. Among Exiting members, voters come first: a member
    /// without a vote may have been removed already or was never in a configuration, so it could
    /// not have another member removed. `None` if no reachable member has the role.
    #[must_use]
    pub fn leader(&self, role: Option<&str>) -> Option<NodeId> {
        let here = self.members.iter().filter(|m| m.has_role(role) && self.is_reachable(m.node));
        here.min_by(|a, b| self.by_right(a, b)).map(|member| member.node)
    }

    /// The order of leadership, of which [`leader`](Self::leader) names the classes: the leader
    /// comes first. Within a class members are ordered by address, then by node id. Before the
    /// first configuration every member counts as a voter.
    fn by_right(&self, one: &Member, other: &Member) -> Ordering {
        let votes = |node: NodeId| {
            self.electorate.as_ref().is_none_or(|electorate| electorate.voters.contains(&node))
        };
        let class = |member: &Member| match member.status {
            Status::Leaving if member.up_number.is_none() => 1,
            Status::Up | Status::Leaving => 0,
            Status::WeaklyUp => 1,
            Status::Joining => 2,
            Status::Exiting if votes(member.node) => 3,
            Status::Exiting => 4,
            Status::Down | Status::Removed => 5,
        };
        class(one).cmp(&class(other)).then_with(|| one.by_address(other))
    }

    /// Number of reachable members that precede this node in the order of leadership, regardless of
    /// roles; 0 if it leads. `None` if this node is Joining or Down, or no member of the view.
    pub(super) fn turn(&self) -> Option<usize> {
        let own = self.member(self.own).filter(|own| may_act(own.status))?;
        let here = self.members.iter().filter(|member| self.is_reachable(member.node));
        Some(here.filter(|member| self.by_right(member, own) == Ordering::Less).count())
    }

    /// Whether this node leads (the members with `role`) and may act for its side: a Joining or
    /// Down node must not. An Exiting node leads only if just Exiting and Down members are
    /// reachable beside it.
    #[must_use]
    pub fn leads(&self, role: Option<&str>) -> bool {
        let taken_up = self.member(self.own).is_some_and(|own| may_act(own.status));
        taken_up && self.leader(role) == Some(self.own)
    }

    /// Whether the voters of this side form a quorum of the configuration that may be the next one.
    /// If that configuration is or will be decided, no other side can continue without them
    /// (docs/protocol/configurations.md#both-quorums-while-a-change-is-open). A voter that has seen
    /// the present state counts even if a bad link to it was reported. It may have failed since;
    /// this only delays the end of this side while a configuration is pending.
    #[must_use]
    pub fn may_hold_quorum(&self) -> bool {
        let is_here = |voter: NodeId| self.is_reachable(voter) || self.seen.contains(&voter);
        self.pending.as_ref().is_some_and(|pending| self.is_quorum_of(pending, is_here))
    }

    /// Whether the accepted voters form a quorum. Voters that are Down or not in the view count as
    /// not accepted, but still belong to the voters of which a majority is needed.
    pub(super) fn is_quorum_of(
        &self,
        electorate: &VoterSet,
        counts: impl Fn(NodeId) -> bool,
    ) -> bool {
        let voters: Vec<_> = electorate.voters.iter().map(|voter| voter.incarnation).collect();
        let answering = |voter: &&NodeId| {
            counts(**voter)
                && self.member(**voter).is_some_and(|member| member.status < Status::Down)
        };
        let here = electorate.voters.iter().filter(answering).map(|voter| voter.incarnation);
        is_quorum(
            &voters,
            electorate.tiebreaker.incarnation,
            &here.collect(),
            FaultInjection::none(),
        )
    }

    /// Members that may be downed, this node and members that are not yet Up included. Exiting
    /// members leave by themselves, and Down ones are downed already.
    pub(super) fn downable(&self) -> impl Iterator<Item = NodeId> + '_ {
        let able = self.members.iter().filter(|member| member.status < Status::Exiting);
        able.map(|member| member.node)
    }

    /// Members with `role`: reachable ones with one of the statuses `here`, and unreachable ones
    /// with one of `there`.
    pub(super) fn sides(&self, role: Option<&str>, [here, there]: [&[Status]; 2]) -> Sides<'_> {
        let mut of_role: Vec<&Member> =
            self.members.iter().filter(|member| member.has_role(role)).collect();
        of_role.sort_by(|a, b| a.by_address(b));
        let (mut reachable, mut unreachable): (Vec<_>, Vec<_>) =
            of_role.into_iter().partition(|member| self.is_reachable(member.node));
        reachable.retain(|member| here.contains(&member.status));
        unreachable.retain(|member| there.contains(&member.status));
        Sides { reachable, unreachable }
    }
}

/// Whether a member with this status may act for its side.
const fn may_act(status: Status) -> bool {
    matches!(status, Status::WeaklyUp | Status::Up | Status::Leaving | Status::Exiting)
}

/// Whether the counted member with the lowest address is reachable; `None` if no member is counted.
pub(super) fn lowest_is_reachable(sides: &Sides<'_>) -> Option<bool> {
    let (here, there) = (sides.reachable.first(), sides.unreachable.first());
    match (here, there) {
        (None, None) => None,
        (Some(_), None) => Some(true),
        (None, Some(_)) => Some(false),
        (Some(here), Some(there)) => Some(here.by_address(there).is_lt()),
    }
}
