//! Downing, the resolution of split brains: decides which unreachable members should be removed,
//! which node proposes that, and which nodes stop.
//!
//! A strategy is a pure function from a [`View`] to a [`DowningDecision`]; each has its own file.
//! [`resolve`] derives the actions from a decision, and the [`DowningResolver`] determines the
//! time. A decision is only a proposal: a removal takes effect by a configuration
//! (docs/protocol/membership.md#removal-only-by-a-configuration). The strategies follow those of
//! Akka and Pekko.

mod auto_down;
mod down_all;
mod indirect;
mod keep_majority;
mod keep_oldest;
mod leader_roles;
mod lease_majority;
mod majority_leader;
mod manual;
mod oldest;
mod quorum_leader;
mod resolver;
mod role_leader_roles;
mod side;
mod static_quorum;
#[cfg(test)]
mod tests;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::id::NodeId;

pub use self::auto_down::AutoDown;
use self::indirect::Indirect;
pub use self::keep_majority::{KeepMajority, TieBreak};
pub use self::keep_oldest::KeepOldest;
pub use self::leader_roles::LeaderRoles;
pub use self::lease_majority::LeaseMajority;
pub use self::majority_leader::MajorityLeader;
pub use self::oldest::Oldest;
pub use self::quorum_leader::QuorumLeader;
pub use self::resolver::{DowningResolver, LeaseAnswer, ResolverOrder, Timing};
pub use self::role_leader_roles::RoleLeaderRoles;
use self::side::PartitionSide;
pub use self::static_quorum::StaticQuorum;
pub use self::view::{UnreachableRecord, View, VoterSet};

/// The decision of a strategy about a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DowningDecision {
    /// The strategy takes no action.
    Nothing,
    /// This side survives: the unreachable members are downed.
    DownUnreachable,
    /// The other side survives: the members of this side are downed.
    DownReachable,
    /// All members are downed.
    DownAll,
    /// The indirectly connected members are downed, and those that the strategy downs once the
    /// records of these are set aside.
    DownIndirectlyConnected,
    /// The lease is requested after the delay `after`. If it is granted, the unreachable members
    /// are downed, otherwise the reachable and the indirectly connected ones. Only the responsible
    /// node requests it; the resolver handles a refusal.
    AcquireLeaseAndDownUnreachable {
        /// Delay of the request; zero unless this side is a minority.
        after: Duration,
    },
    /// The lease is requested. If it is granted, the indirectly connected members are downed, and
    /// those that the strategy downs; otherwise the indirectly connected members and this side.
    AcquireLeaseAndDownIndirectlyConnected,
    /// The unreachable members that the strategy selects are downed.
    DownTargets,
    /// This node stops its process.
    ShutDownSelf,
    /// This node leaves the cluster but its process continues.
    LeaveCluster,
}

impl DowningDecision {
    /// Whether the decision is one of the two about indirectly connected members.
    const fn is_of_indirect(self) -> bool {
        matches!(self, Self::DownIndirectlyConnected | Self::AcquireLeaseAndDownIndirectlyConnected)
    }

    /// Whether the decision stops this side or this node. `false` for decisions about indirectly
    /// connected members, of which this node may be one.
    const fn ends_this_side(self) -> bool {
        matches!(
            self,
            Self::DownReachable | Self::DownAll | Self::ShutDownSelf | Self::LeaveCluster
        )
    }
}

/// A downing strategy with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DowningStrategy {
    /// The side with at least `quorum-size` members survives.
    StaticQuorum(StaticQuorum),
    /// The side with more members survives.
    KeepMajority(KeepMajority),
    /// The side with the oldest member survives.
    KeepOldest(KeepOldest),
    /// Every side is downed; no side survives.
    DownAll,
    /// The side that acquires the lease survives.
    LeaseMajority(LeaseMajority),
    /// The oldest member downs the unreachable members.
    Oldest(Oldest),
    /// The leader downs the unreachable members while enough members remain.
    QuorumLeader(QuorumLeader),
    /// The leader of the majority downs the unreachable members.
    MajorityLeader(MajorityLeader),
    /// The leader downs the unreachable members with certain roles.
    LeaderRoles(LeaderRoles),
    /// The leader of a role downs the unreachable members with certain roles.
    RoleLeaderRoles(RoleLeaderRoles),
    /// The leader downs the unreachable members. Unsafe.
    AutoDown(AutoDown),
    /// No member is downed automatically.
    Manual,
}

/// The authority that removes members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A quorum of the configuration: at most one side continues, independently of the strategy.
    Configuration,
    /// The survivors chosen by the strategy (`trust-downing`): two sides may continue.
    Survivors,
}

/// The actions that follow from a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The decision that applies.
    pub decision: DowningDecision,
    /// The decision of the strategy, if the quorum overruled it or another set of members is
    /// downed; then it may equal `decision`. Also set if this node waits.
    pub overruled: Option<DowningDecision>,
    /// Members to down, possibly including this node; ≤ members.
    pub down: BTreeSet<NodeId>,
    /// Whether this node acts for its side. Otherwise it only observes, or stops itself. May be
    /// `true` although `down` is empty.
    pub responsible: bool,
    /// Number of members on this side that act before this node may act in their place; `None` if
    /// it must not. Where a configuration decides, the leader may lack a link to a quorum.
    pub turn: Option<usize>,
}

impl Resolution {
    /// Whether the strategy found indirectly connected members and another decision replaces its
    /// own: `down` was selected from the members that the records concern, or is empty if this node
    /// waits. `false` if the decision of the strategy is final.
    #[must_use]
    pub fn overrules_indirect(&self) -> bool {
        self.overruled.is_some_and(DowningDecision::is_of_indirect)
    }
}

impl DowningStrategy {
    /// The decision of the strategy about the view, which must have an unreachable member that
    /// could be downed: without one, a strategy may still decide, even to stop this side.
    /// Strategies that compare sides decide the same on each node of a side; the others return
    /// `Nothing` on a node that must not act. Applies no quorum rule: see [`resolve`].
    #[must_use]
    pub fn decide(&self, view: &View) -> DowningDecision {
        match self {
            Self::StaticQuorum(strategy) => strategy.decide(view),
            Self::KeepMajority(strategy) => strategy.decide(view),
            Self::KeepOldest(strategy) => strategy.decide(view),
            Self::DownAll => down_all::decide(view),
            Self::LeaseMajority(strategy) => strategy.decide(view),
            Self::Oldest(strategy) => strategy.decide(view),
            Self::QuorumLeader(strategy) => strategy.decide(view),
            Self::MajorityLeader(strategy) => strategy.decide(view),
            Self::LeaderRoles(strategy) => strategy.decide(view),
            Self::RoleLeaderRoles(strategy) => strategy.decide(view),
            Self::AutoDown(strategy) => strategy.decide(view),
            Self::Manual => manual::decide(view),
        }
    }

    /// Members that `decision` downs in this view; a decision about the lease counts as granted.
    /// Exiting and Down members are never among them, except for this node if it stops itself
    /// (`ShutDownSelf`, `LeaveCluster`: then it is the only one). `Nothing` downs none.
    #[must_use]
    pub fn down(&self, view: &View, decision: DowningDecision) -> BTreeSet<NodeId> {
        let side = |reachable: bool| {
            view.downable().filter(move |node| view.is_reachable(*node) == reachable)
        };
        match decision {
            DowningDecision::Nothing => BTreeSet::new(),
            DowningDecision::DownUnreachable
            | DowningDecision::AcquireLeaseAndDownUnreachable { .. } => side(false).collect(),
            DowningDecision::DownReachable => side(true).collect(),
            DowningDecision::DownAll => view.downable().collect(),
            DowningDecision::DownIndirectlyConnected
            | DowningDecision::AcquireLeaseAndDownIndirectlyConnected => {
                self.down_indirectly_connected(view)
            }
            DowningDecision::DownTargets => {
                side(false).filter(|node| self.is_target(view, *node)).collect()
            }
            DowningDecision::ShutDownSelf | DowningDecision::LeaveCluster => [view.own].into(),
        }
    }

    /// Members that a side downs when it is refused the lease: its own members and the indirectly
    /// connected ones. Exiting and Down members are left out.
    #[must_use]
    pub fn down_without_lease(&self, view: &View) -> BTreeSet<NodeId> {
        let indirect = Indirect::of(view);
        let goes = |node: &NodeId| view.is_reachable(*node) || indirect.contains(*node);
        view.downable().filter(goes).collect()
    }

    /// The indirectly connected members, and those that the strategy downs once the records among
    /// the former are set aside; only the former if no other member is unreachable. If records
    /// still contradict each other, those of unreachable observers that are accused as well are set
    /// aside too; if there are none, or it does not help, all members are downed.
    fn down_indirectly_connected(&self, view: &View) -> BTreeSet<NodeId> {
        let indirect = Indirect::of(view);
        let mut down: BTreeSet<NodeId> =
            view.downable().filter(|node| indirect.contains(*node)).collect();
        let Some(rest) = indirect.rest(view) else { return down };
        match self.decide(&rest) {
            decision if !decision.is_of_indirect() => down.extend(self.down(&rest, decision)),
            _ => match indirect.without_the_silent(&rest).map(|view| (self.decide(&view), view)) {
                Some((decision, view)) if !decision.is_of_indirect() => {
                    down.extend(self.down(&view, decision));
                }
                // Without these records the strategy still cannot tell the sides apart.
                _ => down.extend(view.downable()),
            },
        }
        down
    }

    /// Whether `DownTargets` includes this unreachable member: it has a target role or, under
    /// `auto-down`, it was unreachable for long enough. `false` for all other strategies.
    fn is_target(&self, view: &View, node: NodeId) -> bool {
        let roles = match self {
            Self::LeaderRoles(strategy) => &strategy.target_roles,
            Self::RoleLeaderRoles(strategy) => &strategy.target_roles,
            Self::AutoDown(strategy) => {
                return view.unreachable.get(&node).is_some_and(|&for_| for_ >= strategy.after);
            }
            _ => return false,
        };
        view.member(node).is_some_and(|member| roles.iter().any(|role| member.roles.contains(role)))
    }

    /// Whether the strategy may deliberately stop a side that holds a quorum.
    const fn ends_quorums(&self) -> bool {
        matches!(self, Self::DownAll | Self::StaticQuorum(_))
    }

    /// Whether the strategy compares the sides of a split, as Akka's resolver does.
    const fn weighs_sides(&self) -> bool {
        matches!(
            self,
            Self::StaticQuorum(_)
                | Self::KeepMajority(_)
                | Self::KeepOldest(_)
                | Self::DownAll
                | Self::LeaseMajority(_)
        )
    }

    /// Computes the value of [`Resolution::turn`]: `None` unless a configuration removes members,
    /// the strategy compares sides, and the unreachable members are downed.
    fn turn(&self, trust: Trust, view: &View, decision: DowningDecision) -> Option<usize> {
        let may = trust == Trust::Configuration
            && self.weighs_sides()
            && decision == DowningDecision::DownUnreachable;
        view.turn().filter(|_| may)
    }

    /// Whether this node acts on `decision`. For strategies that compare sides: whether it leads,
    /// whatever the decision, `Nothing` too. The others have decided that themselves, so every
    /// decision but `Nothing` counts.
    fn is_responsible(&self, view: &View, decision: DowningDecision) -> bool {
        match self {
            Self::Oldest(_)
            | Self::QuorumLeader(_)
            | Self::MajorityLeader(_)
            | Self::LeaderRoles(_)
            | Self::RoleLeaderRoles(_)
            | Self::AutoDown(_)
            | Self::Manual => decision != DowningDecision::Nothing,
            _ => view.leads(None),
        }
    }
}

/// Decides about the view, applies the quorum rule, and determines the members to down.
///
/// Side with a quorum stays (docs/protocol/membership.md#side-with-a-quorum-stays): under
/// [`Trust::Configuration`] a side that holds a quorum never stops, except under `down-all` and
/// `static-quorum`, because no other side can install a configuration. Where the strategy would
/// stop it, it proposes to remove the members that it does not reach. It does the same where the
/// strategy would remove all indirectly connected members: fewer removals suffice, and a node that
/// stopped cannot be restored (module `side`).
///
/// Two kinds of nodes wait instead of stopping: a node without which the other members hold a
/// quorum and are connected with it, until they remove it or reach it again (it also leaves
/// decisions about indirectly connected members to them); and a node on a side without a quorum
/// that would hold a quorum of the configuration being decided, because the other side cannot
/// continue without it once that configuration is accepted. Such a resolution has the decision
/// `Nothing`, downs no member, and is not responsible.
///
/// In all other cases, and always under [`Trust::Survivors`], the strategy's decision is final. So
/// a side without a quorum may decide to down the other one: its proposals are never accepted.
#[must_use]
pub fn resolve(strategy: &DowningStrategy, trust: Trust, view: &View) -> Resolution {
    use DowningDecision as D;
    let verdict = strategy.decide(view);
    let stands = || Resolution {
        decision: verdict,
        overruled: None,
        down: strategy.down(view, verdict),
        responsible: strategy.is_responsible(view, verdict),
        turn: strategy.turn(trust, view, verdict),
    };
    let waits = || Resolution {
        decision: D::Nothing,
        overruled: Some(verdict),
        down: BTreeSet::new(),
        responsible: false,
        turn: None,
    };
    let instead = |decision, view: &View| Resolution {
        decision,
        overruled: Some(verdict),
        down: strategy.down(view, D::DownUnreachable),
        responsible: strategy.is_responsible(view, decision),
        turn: strategy.turn(trust, view, decision),
    };
    if trust == Trust::Survivors || strategy.ends_quorums() {
        return stands();
    }
    let may_not_end = match PartitionSide::of(view) {
        PartitionSide::Quorum(side)
            if verdict == D::DownIndirectlyConnected || verdict.ends_this_side() =>
        {
            return instead(D::DownUnreachable, &side);
        }
        PartitionSide::Quorum(side) if verdict.is_of_indirect() => return instead(verdict, &side),
        PartitionSide::Quorum(_) => return stands(),
        PartitionSide::Spare if verdict.is_of_indirect() => return waits(),
        PartitionSide::Spare => true,
        PartitionSide::Minority => view.may_hold_quorum(),
    };
    let resolution = stands();
    let ends = verdict.ends_this_side() || resolution.down.contains(&view.own);
    if may_not_end && ends { waits() } else { resolution }
}

/// The side that survives according to one strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SurvivingSide {
    /// The members that this node reaches, itself included.
    Reachable,
    /// The members that this node cannot reach.
    Unreachable,
    Nobody,
}

impl SurvivingSide {
    /// This side for `true`, the other one for `false`; a tie that no member decides is `Nobody`.
    const fn from_reachable(reachable: Option<bool>) -> Self {
        match reachable {
            Some(true) => Self::Reachable,
            Some(false) => Self::Unreachable,
            None => Self::Nobody,
        }
    }

    /// Worst-case check (docs/protocol/membership.md#worst-case-check): this side survives only if
    /// it would also survive in the worst case, because the other side may have seen a join or a
    /// leave that this side has not. Otherwise all members are downed, and so they are for
    /// `Nobody`. If the other side survives, the worst case is not computed.
    fn unless_doubtful(self, worst: impl FnOnce() -> Self) -> DowningDecision {
        match self {
            Self::Reachable if worst() == Self::Reachable => DowningDecision::DownUnreachable,
            Self::Unreachable => DowningDecision::DownReachable,
            Self::Reachable | Self::Nobody => DowningDecision::DownAll,
        }
    }
}
