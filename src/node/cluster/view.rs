//! [`ClusterView`]: snapshot of the cluster for operators, as one node sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::id::NodeId;

use crate::cluster::events::ClusterState;
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Member, Status};
use crate::cluster::membership::Membership;

/// Snapshot of the cluster as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The node whose view this is.
    pub me: NodeId,
    /// Id of the cluster; `None` before the node has joined one.
    pub id: Option<ClusterId>,
    /// All members, ordered by address.
    pub members: Vec<Arc<Member>>,
    /// The present leader, if there is one.
    pub leader: Option<NodeId>,
    /// Unreachable members, each with the members that do not reach it.
    pub unreachable: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Whether all members have seen this state.
    pub converged: bool,
    /// Whether joins, promotions, rebalance and hand-over are frozen before a full shutdown.
    pub preparing_for_shutdown: bool,
    /// For a node outside of a cluster: what it waits for and what to do, in one or two sentences.
    pub waits_for: Option<String>,
}

impl ClusterView {
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

    /// Number of members with status Up.
    #[must_use]
    pub fn up(&self) -> usize {
        self.members.iter().filter(|member| member.status == Status::Up).count()
    }
}

pub(super) fn in_order(state: &ClusterState) -> Vec<Arc<Member>> {
    let mut members: Vec<Arc<Member>> = state.members.values().cloned().collect();
    members.sort_by(|one, other| one.by_address(other));
    members
}

fn unreachable(gossip: &Gossip) -> BTreeMap<NodeId, BTreeSet<NodeId>> {
    let node = |id| gossip.member(id).map(|member| member.node);
    let accused = gossip.unreachable().into_iter().filter_map(node);
    let by = |subject: NodeId| {
        let accusers = gossip.reachability().accusers_of(subject.incarnation);
        (subject, accusers.filter_map(node).collect())
    };
    accused.map(by).collect()
}
