//! The cluster at one moment, as one node sees it: what an operator wants to look at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ostraca_ddata::id::NodeId;

use crate::cluster::events::ClusterState;
use crate::cluster::gossip::{ClusterId, Gossip};
use crate::cluster::member::{Member, Status};
use crate::cluster::membership::Membership;

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// Who looks.
    pub me: NodeId,
    /// Which cluster; none before this node has joined one.
    pub id: Option<ClusterId>,
    /// Its members, in the order of their addresses.
    pub members: Vec<Arc<Member>>,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// Members that somebody does not reach, and who does not reach them.
    pub unreachable: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Whether all have seen this state.
    pub converged: bool,
    /// Whether joins, promotions, rebalance and hand-over are frozen ahead of a stop of all.
    pub preparing_for_shutdown: bool,
    /// What a node that takes part in no cluster waits for, and what to do, in a sentence or two.
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

    /// Members that are Up.
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
