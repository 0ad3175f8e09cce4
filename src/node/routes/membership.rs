//! Routing around the membership machine, and from the guarded Replicator to it: pure functions
//! that the driver and the simulator share.

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::port as data;

use crate::cluster::events::ClusterEvent;
use crate::cluster::gossip::ClusterId;
use crate::cluster::lease::LeaseMessage;
use crate::cluster::lease::guard::{GuardInput, GuardOutput};
use crate::cluster::member::Address;
use crate::cluster::membership::port::{
    MembershipInput, MembershipOutput, Memory, OperatorNotice, StopReason,
};
use crate::cluster::wire::ClusterMessage;

/// Destination of an output of the membership machine.
#[derive(Debug)]
pub enum MembershipDestination {
    /// The membership machine of a peer, on the control lane.
    Peer {
        /// Id of the receiving node.
        to: NodeId,
        /// The message to send.
        message: ClusterMessage,
    },
    /// The lease grantor of a voter: this node's own, or one that the control lane leads to.
    Lease {
        /// Incarnation of the receiving voter; configurations name voters by it.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
    /// The guarded Replicator of this node.
    Guard(GuardInput),
    /// The transport of this node.
    Transport(TransportCommand),
    /// The disk: the state to keep for the next start. It answers with
    /// [`MembershipInput::Persisted`].
    Disk(Memory),
    /// The node: its other parts, its log and the program.
    Node(MembershipEvent),
}

/// Orders for the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportCommand {
    /// Dial this address once.
    Dial(Address),
    /// Keep a link to a node up.
    Keep {
        /// The node to connect with.
        node: NodeId,
        /// Address at which the peer is dialled.
        address: Address,
    },
    /// End of [`Keep`](Self::Keep): stop dialling this node. An open link stays, and the node may
    /// still connect.
    Release(NodeId),
    /// This incarnation was removed: close the link to it, and refuse it from now on.
    Forget(NodeId),
    /// Announce to peers that this node belongs to this cluster.
    Belongs(ClusterId),
}

/// Events that membership reports to its node.
#[derive(Clone, Debug, PartialEq)]
pub enum MembershipEvent {
    /// An event for subscribers.
    Cluster(ClusterEvent),
    /// A notice for operators.
    Notice(OperatorNotice),
    /// The hosting lease lasts until this time of the node's clock: entities may begin to handle
    /// messages.
    LeaseHeld(Instant),
    /// The hosting lease has expired: entities pause, and continue if it is granted again.
    LeaseLapsed,
    /// Membership has found the hosting lease expired for too long: entities must stop.
    LeaseLost,
    /// Acquire or release the lease of the downing strategy `lease-majority`.
    DowningLease {
        /// Whether to acquire the lease; otherwise release it.
        acquire: bool,
    },
    /// The node must stop.
    Stop(StopReason),
}

/// Destination of an output of the membership machine: exactly one, and no output is dropped. By
/// the outputs `Found`, `Propose` (as `ProposeAfter`) and `Force` the Replicator creates the first
/// configuration, proposes the next one, or installs one without a quorum by an operator's order.
/// The known members, and the facts for the guard (`GuardDown`, `GuardNotDown`,
/// `GuardProvenDead`), go to the guarded Replicator as well. The caller must check whether the
/// receiver of a lease message is this node.
#[must_use]
pub fn route(output: MembershipOutput) -> MembershipDestination {
    match output {
        MembershipOutput::Send { to, message } => MembershipDestination::Peer { to, message },
        MembershipOutput::SendLease { to, message } => MembershipDestination::Lease { to, message },
        MembershipOutput::Dial(address) => {
            MembershipDestination::Transport(TransportCommand::Dial(address))
        }
        MembershipOutput::Keep { node, address } => {
            MembershipDestination::Transport(TransportCommand::Keep { node, address })
        }
        MembershipOutput::Release(node) => {
            MembershipDestination::Transport(TransportCommand::Release(node))
        }
        MembershipOutput::Forget(node) => {
            MembershipDestination::Transport(TransportCommand::Forget(node))
        }
        MembershipOutput::Belongs(cluster) => {
            MembershipDestination::Transport(TransportCommand::Belongs(cluster))
        }
        MembershipOutput::Found(epoch) => {
            MembershipDestination::Guard(GuardInput::Data(data::ReplicatorInput::Found(epoch)))
        }
        MembershipOutput::Propose { base, change } => {
            MembershipDestination::Guard(GuardInput::Data(data::ReplicatorInput::ProposeAfter {
                base,
                change,
            }))
        }
        MembershipOutput::Force { replaced, kept } => {
            MembershipDestination::Guard(GuardInput::Data(data::ReplicatorInput::Force {
                replaced,
                kept,
            }))
        }
        MembershipOutput::Members(peers) => {
            MembershipDestination::Guard(GuardInput::Data(data::ReplicatorInput::Members(peers)))
        }
        MembershipOutput::GuardDown(id) => MembershipDestination::Guard(GuardInput::Down(id)),
        MembershipOutput::GuardNotDown(id) => MembershipDestination::Guard(GuardInput::NotDown(id)),
        MembershipOutput::GuardProvenDead(id) => {
            MembershipDestination::Guard(GuardInput::ProvenDead(id))
        }
        MembershipOutput::Persist(memory) => MembershipDestination::Disk(memory),
        MembershipOutput::LeaseHeld { until } => {
            MembershipDestination::Node(MembershipEvent::LeaseHeld(until))
        }
        MembershipOutput::LeaseLapsed => MembershipDestination::Node(MembershipEvent::LeaseLapsed),
        MembershipOutput::LeaseLost => MembershipDestination::Node(MembershipEvent::LeaseLost),
        MembershipOutput::Event(event) => {
            MembershipDestination::Node(MembershipEvent::Cluster(event))
        }
        MembershipOutput::Notice(notice) => {
            MembershipDestination::Node(MembershipEvent::Notice(notice))
        }
        MembershipOutput::DowningLease { acquire } => {
            MembershipDestination::Node(MembershipEvent::DowningLease { acquire })
        }
        MembershipOutput::Stop(why) => MembershipDestination::Node(MembershipEvent::Stop(why)),
    }
}

/// Converts an output of the guarded Replicator to an input of the membership machine. Those about
/// configurations have the same name on both sides: `Installed`, `Synced`, `Outcome`, `Excluded`,
/// `StopServing` and `Pending`. All others give `None`: grants of the lease, outputs about data,
/// alarms, and `LoadFailed`, on which the node's event pump begins the shutdown. The output itself
/// still takes its route.
#[must_use]
pub fn news(output: &GuardOutput) -> Option<MembershipInput> {
    let GuardOutput::Data(output) = output else { return None };
    Some(match output {
        data::ReplicatorOutput::Installed(epoch) => MembershipInput::Installed(epoch.clone()),
        data::ReplicatorOutput::Synced(id) => MembershipInput::Synced(*id),
        data::ReplicatorOutput::Outcome(outcome) => MembershipInput::Outcome(outcome.clone()),
        data::ReplicatorOutput::Excluded(id) => MembershipInput::Excluded(*id),
        data::ReplicatorOutput::StopServing => MembershipInput::StopServing,
        data::ReplicatorOutput::Pending(epoch) => MembershipInput::Pending(epoch.clone()),
        _ => return None,
    })
}

/// Receiver of a message about leases: the guard, as grantor, takes heartbeats and releases; the
/// membership machine, as holder, takes grants.
#[derive(Debug)]
pub enum RoutedLeaseMessage {
    /// Input for the guarded Replicator.
    Guard(GuardInput),
    /// Input for the membership machine.
    Membership(MembershipInput),
}

/// Finds the receiver, on this node, of a message about leases from `from`, by the kind of message
/// alone. Also used for messages that this node sends to itself, with its own id as `from`.
#[must_use]
pub const fn lease(from: ReplicaId, message: LeaseMessage) -> RoutedLeaseMessage {
    match message {
        LeaseMessage::Granted(beat) => {
            RoutedLeaseMessage::Membership(MembershipInput::Granted { from, beat })
        }
        LeaseMessage::Beat(_) | LeaseMessage::Release { .. } => {
            RoutedLeaseMessage::Guard(GuardInput::Lease { from, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{EpochId, MembershipChange};

    use super::*;
    use crate::cluster::lease::Heartbeat;

    const PEER: ReplicaId = ReplicaId::new(7);

    #[test]
    fn proposals_reach_the_guard_and_stop_reasons_the_node() {
        let change = MembershipChange { join: vec![PEER], ..MembershipChange::default() };
        let base = EpochId { generation: 1, number: 2 };
        let proposed = route(MembershipOutput::Propose { base, change: change.clone() });
        let is_it = matches!(&proposed,
            MembershipDestination::Guard(GuardInput::Data(data::ReplicatorInput::ProposeAfter { base: after, change: told }))
                if *told == change && *after == base);
        assert!(is_it, "{proposed:?}");
        let stop = route(MembershipOutput::Stop(StopReason::Left));
        assert!(
            matches!(stop, MembershipDestination::Node(MembershipEvent::Stop(StopReason::Left))),
            "{stop:?}"
        );
    }

    #[test]
    fn heartbeats_reach_the_guard_and_grants_membership() {
        let beat = Heartbeat { epoch: EpochId::default(), number: 1 };
        let asks = lease(PEER, LeaseMessage::Beat(beat));
        assert!(
            matches!(asks, RoutedLeaseMessage::Guard(GuardInput::Lease { from: PEER, .. })),
            "{asks:?}"
        );
        let grants = lease(PEER, LeaseMessage::Granted(beat));
        assert!(
            matches!(grants, RoutedLeaseMessage::Membership(MembershipInput::Granted { .. })),
            "{grants:?}"
        );
    }

    #[test]
    fn membership_gets_only_configuration_outputs_of_the_replicator() {
        let told = news(&GuardOutput::Data(data::ReplicatorOutput::StopServing));
        assert!(matches!(told, Some(MembershipInput::StopServing)), "{told:?}");
        let persist = data::ReplicatorOutput::Persist { id: 1, records: vec![] };
        assert!(news(&GuardOutput::Data(persist)).is_none());
    }
}
