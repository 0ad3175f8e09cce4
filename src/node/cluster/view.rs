//! [`ClusterView`]: snapshot of the cluster for operators, as one node sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::id::NodeId;

use crate::cluster::events::ClusterState;
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Member, Status};
use crate::cluster::membership::Membership;

/// Snapshot of the cluster as one node sees it. For a node that is in no cluster, or that was told
/// to stop, it is empty except for [`me`](Self::me) and perhaps [`waits_for`](Self::waits_for).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The node whose view this is.
    pub me: NodeId,
    /// Id of the cluster; `None` before the node has joined one and after it was told to stop.
    pub id: Option<ClusterId>,
    /// All members of any status, ordered by address.
    pub members: Vec<Arc<Member>>,
    /// The present leader, if there is one.
    pub leader: Option<NodeId>,
    /// Unreachable members, each with the members that do not reach it. A member is unreachable if
    /// an observer that is not Down reports so; Down observers are listed only beside such a one.
    pub unreachable: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Whether all members, apart from Exiting and Down ones, are reachable and have seen this
    /// state, as far as this node knows.
    pub converged: bool,
    /// Whether joins, promotions, rebalance and hand-over are frozen before a full shutdown.
    pub preparing_for_shutdown: bool,
    /// For a node that searches for a cluster, and for an orphaned one (it was admitted, is in no
    /// configuration, and no member that it knows is alive): the nodes that it waits for and advice
    /// for the operator, in a few sentences. Otherwise `None`.
    pub waits_for: Option<String>,
}

impl ClusterView {
    /// Reads the view from the membership machine of node `me`. Members, leader, convergence and
    /// preparation for shutdown are those last published to subscribers, and empty or `false` if
    /// nothing was; the cluster's id and the unreachable members are those of the present gossip.
    pub(crate) fn of(me: NodeId, membership: &Membership) -> Self {
        let state = membership.state().cloned().unwrap_or_default();
        Self {
            me,
            id: membership.gossip().map(Gossip::cluster),
            members: in_order(&state),
            leader: state.leader,
            unreachable: membership.gossip().map(unreachable).unwrap_or_default(),
            converged: state.converged,
            preparing_for_shutdown: state.preparing_for_shutdown,
            waits_for: membership.waits_for().map(|notice| notice.to_string()),
        }
    }

    /// Number of members with status Up, unreachable ones included.
    #[must_use]
    pub fn up(&self) -> usize {
        self.members.iter().filter(|member| member.status == Status::Up).count()
    }
}

/// Returns all members, ordered by address, and by node id where addresses are equal.
pub(super) fn in_order(state: &ClusterState) -> Vec<Arc<Member>> {
    let mut members: Vec<Arc<Member>> = state.members.values().cloned().collect();
    members.sort_by(|one, other| one.by_address(other));
    members
}

/// Returns the unreachable members, each with all members that have recorded a verdict about it,
/// those that are Down included. Leaves out incarnations that are no members, on both sides.
fn unreachable(gossip: &Gossip) -> BTreeMap<NodeId, BTreeSet<NodeId>> {
    let node = |id| gossip.member(id).map(|member| member.node);
    let accused = gossip.unreachable().into_iter().filter_map(node);
    let by = |subject: NodeId| {
        let accusers = gossip.reachability().accusers_of(subject.incarnation);
        (subject, accusers.filter_map(node).collect())
    };
    accused.map(by).collect()
}
