//! What a decision is made from: one node's picture of the cluster, and how to count in it.
//!
//! Knows no strategy and no clock. Spec: spec/membership.md, *Downing*; the working sets are those
//! of spec/reference/pekko-cluster.md §2.8.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::bug::Canary;
use ostraca_ddata::id::NodeId;
use ostraca_ddata::replicator::quorum::is_quorum;

use crate::cluster::member::{Member, Status};

/// A negative row of the reachability table: `observer` says that it cannot reach `subject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Who says so.
    pub observer: NodeId,
    /// Whom it cannot reach.
    pub subject: NodeId,
}

/// The voters of the installed configuration (spec/safety.md §1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Electorate {
    /// Who votes.
    pub voters: Vec<NodeId>, // ≤ the voter limit of the configuration
    /// Which half of them is a quorum: the one with this voter.
    pub tiebreaker: NodeId,
}

/// One node's picture of the cluster at one moment. Every set is bounded by the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Whose picture it is.
    pub own: NodeId,
    /// Everybody in gossip, this node included; each once.
    pub members: Vec<Member>,
    /// Who is unreachable, whoever says so, and for how long already. Never this node.
    pub unreachable: BTreeMap<NodeId, Duration>,
    /// Who says so of whom. Only rows between members count.
    pub records: BTreeSet<Record>,
    /// Who has seen the present state of gossip.
    pub seen: BTreeSet<NodeId>,
    /// Whom this node is connected with at the moment.
    pub connected: BTreeSet<NodeId>,
    /// The installed configuration; `None` before the first one.
    pub electorate: Option<Electorate>,
    /// The configuration that may be the next one, if a proposal is under way.
    pub pending: Option<Electorate>,
}

/// The two sides of a split, as far as they are counted; both in the order of addresses.
#[derive(Debug)]
pub(super) struct Sides<'a> {
    pub(super) reachable: Vec<&'a Member>,
    pub(super) unreachable: Vec<&'a Member>,
}

/// Up and Leaving: the members that strategies count.
pub(super) const MEMBERS: &[Status] = &[Status::Up, Status::Leaving];
/// As few as there might be: who is Leaving may be gone already over there.
pub(super) const SURE: &[Status] = &[Status::Up];
/// As many as there might be: who is Joining may be Up already over there.
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
    /// The member that `node` is.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// Whether nobody calls it unreachable. A node never doubts itself here.
    #[must_use]
    pub fn is_reachable(&self, node: NodeId) -> bool {
        node == self.own || !self.unreachable.contains_key(&node)
    }

    /// First in the order of addresses among reachable members with `role` that are Up or Leaving;
    /// only if there is none: the first of those that are WeaklyUp, Joining, Exiting or Down, in
    /// this order. Who left before it was taken up counts as WeaklyUp, and of those that are Exiting
    /// one with a vote goes first: who has none may be out already, or was never taken up. Neither
    /// could have anybody removed.
    #[must_use]
    pub fn leader(&self, role: Option<&str>) -> Option<NodeId> {
        let here = self.members.iter().filter(|m| m.has_role(role) && self.is_reachable(m.node));
        here.min_by(|a, b| self.by_right(a, b)).map(|member| member.node)
    }

    /// Who is nearer to leading comes first.
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

    /// How many would lead before this node, if it could lead at all.
    pub(super) fn turn(&self) -> Option<usize> {
        let own = self.member(self.own).filter(|own| may_act(own.status))?;
        let here = self.members.iter().filter(|member| self.is_reachable(member.node));
        Some(here.filter(|member| self.by_right(member, own) == Ordering::Less).count())
    }

    /// Whether this node leads (the members with `role`) and has been taken up itself: only then
    /// may it act for its side. Who is Exiting leads where nobody else is left.
    #[must_use]
    pub fn leads(&self, role: Option<&str>) -> bool {
        let taken_up = self.member(self.own).is_some_and(|own| may_act(own.status));
        taken_up && self.leader(role) == Some(self.own)
    }

    /// Whether the voters of this side form a quorum of the configuration that may be the next one: if
    /// it is decided, or is yet to be, nobody can go on without them (spec/safety.md §1). Who has seen
    /// the present state is counted, also behind a bad link, whichever end of that has told of it.
    /// It may have died since: this only ever puts an end off, for as long as a configuration is
    /// pending.
    #[must_use]
    pub fn may_hold_quorum(&self) -> bool {
        let is_here = |voter: NodeId| self.is_reachable(voter) || self.seen.contains(&voter);
        self.pending.as_ref().is_some_and(|pending| self.is_quorum_of(pending, is_here))
    }

    /// Whether these voters form a quorum. Who is Down does not help.
    pub(super) fn is_quorum_of(
        &self,
        electorate: &Electorate,
        counts: impl Fn(NodeId) -> bool,
    ) -> bool {
        let voters: Vec<_> = electorate.voters.iter().map(|voter| voter.incarnation).collect();
        let answering = |voter: &&NodeId| {
            counts(**voter)
                && self.member(**voter).is_some_and(|member| member.status < Status::Down)
        };
        let here = electorate.voters.iter().filter(answering).map(|voter| voter.incarnation);
        is_quorum(&voters, electorate.tiebreaker.incarnation, &here.collect(), Canary::none())
    }

    /// Who could be downed at all: Exiting ones go by themselves.
    pub(super) fn downable(&self) -> impl Iterator<Item = NodeId> + '_ {
        let able = self.members.iter().filter(|member| member.status < Status::Exiting);
        able.map(|member| member.node)
    }

    /// Those of `role` whose status is one of the given, each side by its own list.
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

/// Whether a member of such a status may act for its side.
const fn may_act(status: Status) -> bool {
    matches!(status, Status::WeaklyUp | Status::Up | Status::Leaving | Status::Exiting)
}

/// Which side holds the first of all that are counted, in the order of addresses.
pub(super) fn lowest_is_reachable(sides: &Sides<'_>) -> Option<bool> {
    let (here, there) = (sides.reachable.first(), sides.unreachable.first());
    match (here, there) {
        (None, None) => None,
        (Some(_), None) => Some(true),
        (None, Some(_)) => Some(false),
        (Some(here), Some(there)) => Some(here.by_address(there).is_lt()),
    }
}
