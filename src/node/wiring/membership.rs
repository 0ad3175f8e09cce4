//! Who hears whom around the membership machine and the guarded Replicator: pure functions, the
//! same under the driver and in the simulator.

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

/// Where an order of the membership machine goes.
#[derive(Debug)]
pub enum Dest {
    /// To a peer's membership machine, on its control lane.
    Peer {
        /// The receiver.
        to: NodeId,
        /// The message.
        message: ClusterMessage,
    },
    /// To a node's guard, on its control lane; to this node's own if it is that one.
    Lease {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: LeaseMessage,
    },
    /// To this node's guard.
    Guard(GuardInput),
    /// To the transport.
    Transport(Links),
    /// To the disk, which answers with [`Input::Persisted`].
    Disk(Memory),
    /// To what runs on this node, and to whoever runs it.
    Node(Event),
}

/// What the transport is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// Dial once.
    Dial(Address),
    /// Keep a link up.
    Keep {
        /// With whom.
        node: NodeId,
        /// Where it is dialled.
        address: Address,
    },
    /// Dial no more.
    Release(NodeId),
    /// Close, and refuse from now on.
    Forget(NodeId),
    /// Tell others which cluster this node belongs to.
    Belongs(ClusterId),
}

/// What membership tells its node.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// For subscribers.
    Cluster(ClusterEvent),
    /// For an operator.
    Notice(Notice),
    /// Messages may begin before this time of the node's own clock.
    LeaseHeld(Instant),
    /// Begin nothing: what runs is paused.
    LeaseLapsed,
    /// Stop what runs.
    LeaseLost,
    /// The lease of `lease-majority` is to be acquired, or given back.
    DowningLease {
        /// Acquire, or release.
        acquire: bool,
    },
    /// The node must stop.
    Stop(StopReason),
}

/// Where an order of the membership machine goes.
///
/// # Panics
/// On an order that this release does not know, which only our own mistake can bring about.
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

/// What the guard's word is to the membership machine; `None`: nothing, it is for others.
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

/// Who is to hear a message about leases: beats and releases are for the guard, what it grants is
/// for the membership machine.
#[derive(Debug)]
pub enum Lease {
    /// The guard.
    Guard(GuardInput),
    /// The membership machine.
    Membership(Input),
}

/// Who is to hear what `from` says about leases.
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
    fn proposals_go_to_the_guard_and_reasons_to_stop_to_the_node() {
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
    fn beats_are_for_the_guard_and_grants_for_membership() {
        let beat = Beat { epoch: EpochId::default(), number: 1 };
        let asks = lease(PEER, LeaseMessage::Beat(beat));
        assert!(matches!(asks, Lease::Guard(GuardInput::Lease { from: PEER, .. })), "{asks:?}");
        let grants = lease(PEER, LeaseMessage::Granted(beat));
        assert!(matches!(grants, Lease::Membership(Input::Granted { .. })), "{grants:?}");
    }

    #[test]
    fn membership_hears_of_configurations_and_of_nothing_else_of_the_replicator() {
        let told = news(&GuardOutput::Data(data::Output::StopServing));
        assert!(matches!(told, Some(Input::StopServing)), "{told:?}");
        let persist = data::Output::Persist { id: 1, records: vec![] };
        assert!(news(&GuardOutput::Data(persist)).is_none());
    }
}
