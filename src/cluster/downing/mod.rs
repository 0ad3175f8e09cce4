//! Downing, or the resolution of split brains: who proposes to remove whom, and who goes, when
//! members stay unreachable.
//!
//! A strategy is a pure function from a [`View`] to a [`Decision`], a file each. [`resolve`] says
//! what comes of it, the [`Resolver`] when. Removal takes effect by a configuration
//! (spec/safety.md §6): what is decided here is a proposal. Knows no gossip, no socket, no lease.
//! Spec: spec/membership.md, *Downing*; spec/reference/pekko-cluster.md §2.8–2.10.

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
pub use self::resolver::{LeaseAnswer, Order, Resolver, Timing};
pub use self::role_leader_roles::RoleLeaderRoles;
use self::side::Side;
pub use self::static_quorum::StaticQuorum;
pub use self::view::{Electorate, Record, View};

/// What a strategy decides from a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Waits.
    Nothing,
    /// This side stays: downs everybody who is unreachable.
    DownUnreachable,
    /// The other side stays: downs everybody on this one.
    DownReachable,
    /// Downs everybody.
    DownAll,
    /// Downs the indirectly connected, and whom the strategy downs once these are set aside.
    DownIndirectlyConnected,
    /// Asks for the lease `after` this long, then downs the unreachable; refused: the reachable.
    AcquireLeaseAndDownUnreachable {
        /// Zero but for a minority.
        after: Duration,
    },
    /// Asks for the lease, then downs the indirectly connected and the rest as decided; refused:
    /// those and everybody else on this side.
    AcquireLeaseAndDownIndirectlyConnected,
    /// Downs those of the unreachable that the strategy names.
    DownTargets,
    /// This node stops.
    ShutDownSelf,
    /// This node leaves the cluster and goes on without it.
    LeaveCluster,
}

impl Decision {
    /// Whether it downs the indirectly connected.
    const fn is_of_indirect(self) -> bool {
        matches!(self, Self::DownIndirectlyConnected | Self::AcquireLeaseAndDownIndirectlyConnected)
    }

    /// Whether whoever decides it is among those that go.
    const fn ends_this_side(self) -> bool {
        matches!(
            self,
            Self::DownReachable | Self::DownAll | Self::ShutDownSelf | Self::LeaveCluster
        )
    }
}

/// A strategy with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// A side of a fixed size stays.
    StaticQuorum(StaticQuorum),
    /// The larger side stays.
    KeepMajority(KeepMajority),
    /// The side with the oldest stays.
    KeepOldest(KeepOldest),
    /// Nobody stays.
    DownAll,
    /// The side with the lease stays.
    LeaseMajority(LeaseMajority),
    /// The oldest downs the unreachable.
    Oldest(Oldest),
    /// The leader downs them while enough remain.
    QuorumLeader(QuorumLeader),
    /// The leader of the majority downs them.
    MajorityLeader(MajorityLeader),
    /// The leader downs those with a role.
    LeaderRoles(LeaderRoles),
    /// The leader of a role downs those with a role.
    RoleLeaderRoles(RoleLeaderRoles),
    /// The leader downs them. Unsafe.
    AutoDown(AutoDown),
    /// Nobody is downed.
    Manual,
}

/// Whose word removes members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A quorum of the configuration: at most one side goes on, whatever the strategy says.
    Configuration,
    /// The survivors of the strategy's verdict (`trust-downing`): two sides may.
    Survivors,
}

/// What comes of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// What was decided.
    pub decision: Decision,
    /// What the strategy had decided, where the quorum overruled it or takes others.
    pub overruled: Option<Decision>,
    /// Who is to be downed, this node perhaps among them; ≤ members.
    pub down: BTreeSet<NodeId>,
    /// Whether this node acts for its side. Otherwise it only watches, or goes itself.
    pub responsible: bool,
    /// How many of its side are to act before this node may in their place, where any may: a
    /// configuration decides, and who leads may have no link to a quorum.
    pub turn: Option<usize>,
}

impl Resolution {
    /// Whether records contradict each other, and these were chosen from among those they concern.
    #[must_use]
    pub fn sets_aside(&self) -> bool {
        self.overruled.is_some_and(Decision::is_of_indirect)
    }
}

impl Strategy {
    /// What the strategy makes of the view, before anybody asks who may act.
    #[must_use]
    pub fn decide(&self, view: &View) -> Decision {
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

    /// Whom `decision` downs in this view, in its own strategy's eyes.
    #[must_use]
    pub fn down(&self, view: &View, decision: Decision) -> BTreeSet<NodeId> {
        let side = |reachable: bool| {
            view.downable().filter(move |node| view.is_reachable(*node) == reachable)
        };
        match decision {
            Decision::Nothing => BTreeSet::new(),
            Decision::DownUnreachable | Decision::AcquireLeaseAndDownUnreachable { .. } => {
                side(false).collect()
            }
            Decision::DownReachable => side(true).collect(),
            Decision::DownAll => view.downable().collect(),
            Decision::DownIndirectlyConnected
            | Decision::AcquireLeaseAndDownIndirectlyConnected => {
                self.down_indirectly_connected(view)
            }
            Decision::DownTargets => {
                side(false).filter(|node| self.is_target(view, *node)).collect()
            }
            Decision::ShutDownSelf | Decision::LeaveCluster => [view.own].into(),
        }
    }

    /// Whom a side downs that was refused the lease: itself, whatever is indirectly connected
    /// included.
    #[must_use]
    pub fn down_without_lease(&self, view: &View) -> BTreeSet<NodeId> {
        let indirect = Indirect::of(view);
        let goes = |node: &NodeId| view.is_reachable(*node) || indirect.contains(*node);
        view.downable().filter(goes).collect()
    }

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
                // Setting them aside does not help: there is no telling who is where.
                _ => down.extend(view.downable()),
            },
        }
        down
    }

    fn is_target(&self, view: &View, node: NodeId) -> bool {
        let roles = match self {
            Self::LeaderRoles(strategy) => &strategy.target_roles,
            Self::RoleLeaderRoles(strategy) => &strategy.target_roles,
            Self::AutoDown(strategy) => {
                return view.unreachable.get(&node).is_some_and(|&for_| for_ >= strategy.after);
            }
            _ => return false,
        };
        view.member(node).is_some_and(|member| !member.roles.is_disjoint(roles))
    }

    /// Whether a side that holds a quorum may still end itself: the strategy says so on purpose.
    const fn ends_quorums(&self) -> bool {
        matches!(self, Self::DownAll | Self::StaticQuorum(_))
    }

    /// Whether it compares the sides of a split, as Akka's resolver does: the first five.
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

    /// See [`Resolution::turn`].
    fn turn(&self, trust: Trust, view: &View, decision: Decision) -> Option<usize> {
        let may = trust == Trust::Configuration
            && self.weighs_sides()
            && decision == Decision::DownUnreachable;
        view.turn().filter(|_| may)
    }

    /// Whether this node is the one that acts on `decision`.
    fn is_responsible(&self, view: &View, decision: Decision) -> bool {
        match self {
            Self::Oldest(_)
            | Self::QuorumLeader(_)
            | Self::MajorityLeader(_)
            | Self::LeaderRoles(_)
            | Self::RoleLeaderRoles(_)
            | Self::AutoDown(_)
            | Self::Manual => decision != Decision::Nothing,
            _ => view.leads(None),
        }
    }
}

/// Decides, lets the quorum overrule, and says who goes.
///
/// Under [`Trust::Configuration`] a side that holds a quorum never ends itself, except under
/// `down-all` and `static-quorum` (spec/safety.md §6): nobody else can install a configuration.
/// Where the strategy would have it go, it stays and proposes to remove whom it does not reach. So
/// it does where the strategy would remove all who are indirectly connected: fewer have to go, and
/// who has ended itself is not taken back (the module `side`). Whom the others can do without waits
/// until they remove it, or hear it again. So does who would end itself on a side that holds no
/// quorum, but would hold one of the configuration that is being decided: once that is accepted, the
/// other side cannot go on without this one.
#[must_use]
pub fn resolve(strategy: &Strategy, trust: Trust, view: &View) -> Resolution {
    use Decision as D;
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
    let may_not_end = match Side::of(view) {
        Side::Quorum(side) if verdict == D::DownIndirectlyConnected || verdict.ends_this_side() => {
            return instead(D::DownUnreachable, &side);
        }
        Side::Quorum(side) if verdict.is_of_indirect() => return instead(verdict, &side),
        Side::Quorum(_) => return stands(),
        Side::Spare if verdict.is_of_indirect() => return waits(),
        Side::Spare => true,
        Side::Minority => view.may_hold_quorum(),
    };
    let resolution = stands();
    let ends = verdict.ends_this_side() || resolution.down.contains(&view.own);
    if may_not_end && ends { waits() } else { resolution }
}

/// Who stays, in one strategy's eyes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    Reachable,
    Unreachable,
    Nobody,
}

impl Stays {
    const fn from_reachable(reachable: Option<bool>) -> Self {
        match reachable {
            Some(true) => Self::Reachable,
            Some(false) => Self::Unreachable,
            None => Self::Nobody,
        }
    }

    /// A side stays only if it would also stay in the worst case: the other one may have seen a
    /// member come or go that this one has not. In doubt nobody does.
    fn unless_doubtful(self, worst: impl FnOnce() -> Self) -> Decision {
        match self {
            Self::Reachable if worst() == Self::Reachable => Decision::DownUnreachable,
            Self::Unreachable => Decision::DownReachable,
            Self::Reachable | Self::Nobody => Decision::DownAll,
        }
    }
}
