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
use crate::cluster::membership::port::{Input, Memory, Notice, Output, StopReason};
use crate::cluster::wire::ClusterMessage;

/// Destination of an output of the membership machine.
#[derive(Debug)]
pub enum Dest {
    /// The membership machine of a peer, on the control lane.
    Peer {
        /// Id of the receiving node.
        to: NodeId,
        /// The message to send.
        message: ClusterMessage,
    },
    /// The lease grantor of a node (on the control lane), which may be this node's own.
    Lease {
        /// Incarnation of the receiving node.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
    /// The guarded Replicator of this node.
    Guard(GuardInput),
    /// The transport of this node.
    Transport(Links),
    /// The disk, which answers with [`Input::Persisted`].
    Disk(Memory),
    /// The node: its other parts, its log and the program.
    Node(Event),
}

/// Orders for the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Dial this address once.
    Dial(Address),
    /// Keep a link to a node up.
    Keep {
        /// The node to connect with.
        node: NodeId,
        /// Address at which the peer is dialled.
        address: Address,
    },
    /// Stop dialling this node.
    Release(NodeId),
    /// Close the link to this node, and refuse the node from now on.
    Forget(NodeId),
    /// Announce to peers that this node belongs to this cluster.
    Belongs(ClusterId),
}

/// Events that membership reports to its node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An event for subscribers.
    Cluster(ClusterEvent),
    /// A notice for operators.
    Notice(Notice),
    /// The hosting lease lasts until this time of the node's clock: entities may begin messages.
    LeaseHeld(Instant),
    /// The hosting lease has expired: entities pause.
    LeaseLapsed,
    /// The hosting lease has been expired for long: entities must stop.
    LeaseLost,
    /// Acquire or release the lease of the downing strategy `lease-majority`.
    DowningLease {
        /// Whether to acquire the lease; otherwise release it.
        acquire: bool,
    },
    /// The node must stop.
    Stop(StopReason),
}

/// Destination of an output of the membership machine.
#[must_use]
pub fn route(output: Output) -> Dest {
    match output {
        Output::Send { to, message } => Dest::Peer { to, message },
        Output::SendLease { to, message } => Dest::Lease { to, message },
        Output::Dial(address) => Dest::Transport(Links::Dial(address)),
        Output::Keep { node, address } => Dest::Transport(Links::Keep { node, address }),
        Output::Release(node) => Dest::Transport(Links::Release(node)),
        Output::Forget(node) => Dest::Transport(Links::Forget(node)),
        Output::Belongs(cluster) => Dest::Transport(Links::Belongs(cluster)),
        Output::Found(epoch) => Dest::Guard(GuardInput::Data(data::Input::Found(epoch))),
        Output::Propose { base, change } => {
            Dest::Guard(GuardInput::Data(data::Input::ProposeAfter { base, change }))
        }
        Output::Force { replaced, kept } => {
            Dest::Guard(GuardInput::Data(data::Input::Force { replaced, kept }))
        }
        Output::Members(peers) => Dest::Guard(GuardInput::Data(data::Input::Members(peers))),
        Output::GuardDown(id) => Dest::Guard(GuardInput::Down(id)),
        Output::GuardNotDown(id) => Dest::Guard(GuardInput::NotDown(id)),
        Output::GuardProvenDead(id) => Dest::Guard(GuardInput::ProvenDead(id)),
        Output::Persist(memory) => Dest::Disk(memory),
        Output::LeaseHeld { until } => Dest::Node(Event::LeaseHeld(until)),
        Output::LeaseLapsed => Dest::Node(Event::LeaseLapsed),
        Output::LeaseLost => Dest::Node(Event::LeaseLost),
        Output::Event(event) => Dest::Node(Event::Cluster(event)),
        Output::Notice(notice) => Dest::Node(Event::Notice(notice)),
        Output::DowningLease { acquire } => Dest::Node(Event::DowningLease { acquire }),
        Output::Stop(why) => Dest::Node(Event::Stop(why)),
    }
}

/// Converts an output of the guarded Replicator to an input of the membership machine; `None` if it
/// does not concern membership.
#[must_use]
pub fn news(output: &GuardOutput) -> Option<Input> {
    let GuardOutput::Data(output) = output else { return None };
    Some(match output {
        data::Output::Installed(epoch) => Input::Installed(epoch.clone()),
        data::Output::Synced(id) => Input::Synced(*id),
        data::Output::Outcome(outcome) => Input::Outcome(outcome.clone()),
        data::Output::Excluded(id) => Input::Excluded(*id),
        data::Output::StopServing => Input::StopServing,
        data::Output::Pending(epoch) => Input::Pending(epoch.clone()),
        _ => return None,
    })
}

/// Receiver of a message about leases: the guard, as grantor, takes heartbeats and releases; the
/// membership machine, as holder, takes grants.
#[derive(Debug)]
pub enum Lease {
    /// Input for the guarded Replicator.
    Guard(GuardInput),
    /// Input for the membership machine.
    Membership(Input),
}

/// Finds the receiver of a message about leases from `from`.
#[must_use]
pub const fn lease(from: ReplicaId, message: LeaseMessage) -> Lease {
    match message {
        LeaseMessage::Granted(beat) => Lease::Membership(Input::Granted { from, beat }),
        LeaseMessage::Beat(_) | LeaseMessage::Release { .. } => {
            Lease::Guard(GuardInput::Lease { from, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::replicator::epoch::{Change, EpochId};

    use super::*;
    use crate::cluster::lease::Beat;

    const PEER: ReplicaId = ReplicaId::new(7);

    #[test]
    fn proposals_reach_the_guard_and_stop_reasons_the_node() {
        let change = Change { join: vec![PEER], ..Change::default() };
        let base = EpochId { generation: 1, number: 2 };
        let proposed = route(Output::Propose { base, change: change.clone() });
        let is_it = matches!(&proposed,
            Dest::Guard(GuardInput::Data(data::Input::ProposeAfter { base: after, change: told }))
                if *told == change && *after == base);
        assert!(is_it, "{proposed:?}");
        let stop = route(Output::Stop(StopReason::Left));
        assert!(matches!(stop, Dest::Node(Event::Stop(StopReason::Left))), "{stop:?}");
    }

    #[test]
    fn heartbeats_reach_the_guard_and_grants_membership() {
        let beat = Beat { epoch: EpochId::default(), number: 1 };
        let asks = lease(PEER, LeaseMessage::Beat(beat));
        assert!(matches!(asks, Lease::Guard(GuardInput::Lease { from: PEER, .. })), "{asks:?}");
        let grants = lease(PEER, LeaseMessage::Granted(beat));
        assert!(matches!(grants, Lease::Membership(Input::Granted { .. })), "{grants:?}");
    }

    #[test]
    fn membership_gets_only_configuration_outputs_of_the_replicator() {
        let told = news(&GuardOutput::Data(data::Output::StopServing));
        assert!(matches!(told, Some(Input::StopServing)), "{told:?}");
        let persist = data::Output::Persist { id: 1, records: vec![] };
        assert!(news(&GuardOutput::Data(persist)).is_none());
    }
}
