//! Routing between the parts of a node: pure functions from outputs to destinations and from
//! messages to inputs.
//!
//! The driver and the simulator both call them, so that the simulation tests the routing of a real
//! node. They use no task, no socket and no clock. This file routes for the guarded Replicator,
//! [`membership`] and [`sharding`] for the other machines.

pub mod membership;
pub mod sharding;

use std::sync::Arc;

use libp2p::PeerId;
use ostraca_ddata::durable::{DurableRecord, StoreError};
use ostraca_ddata::encoded::DecodeError;
use ostraca_ddata::id::{self, PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, MembershipChange, ProposalOutcome};
use ostraca_ddata::replicator::port::{
    self, Peer, ReplicatorAlarm, ReplicatorInput, ReplicatorOutput, StateLoadError,
};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, RequestError, RequestId, SubscriptionId, SubscriptionNotice,
};
use ostraca_ddata::replicator::wire::ReplicatorMessage;

use crate::cluster::gossip::wire::{self as gossip, GossipDecodeError};
use crate::cluster::lease::LeaseMessage;
use crate::cluster::lease::guard::{GuardInput, GuardOutput};
use crate::cluster::wire::ClusterMessage;
use crate::net::{ED25519, Inbound, NodeId, TrafficClass};

/// A part of a node that exchanges messages with the same part of other nodes. The header of each
/// message on the control lane names the part; a name costs two bytes after its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subsystem {
    /// Replicated data, and configurations.
    Replicator,
    /// Gossip, heartbeats of the failure detector, joining, founding.
    Membership,
    /// Heartbeats and grants of the hosting lease.
    Lease,
    /// Coordinators and regions of entity types. The second name in the header is the type's.
    Sharding,
    /// Location of coordinators. The second name in the header is the type's.
    Singleton,
    /// Cluster queries about a type. The second name in the header is the type's.
    ClusterQuery,
}

impl Subsystem {
    /// The header of the part's messages, or its first name. The Replicator's header is empty, as
    /// on the lanes that only the Replicator uses.
    #[must_use]
    pub const fn header(self) -> &'static [&'static str] {
        match self {
            Self::Replicator => &[],
            Self::Membership => &["m"],
            Self::Lease => &["l"],
            Self::Sharding => &[sharding::SHARDING],
            Self::Singleton => &[sharding::SINGLETON],
            Self::ClusterQuery => &[sharding::CLUSTER_QUERY],
        }
    }

    /// The part to which a header belongs; `None` if this release does not know its first name, or
    /// the number of names is not that of the part: none for the Replicator, two for the parts of
    /// entity types, else one.
    #[must_use]
    pub fn of(header: &[Arc<str>]) -> Option<Self> {
        match header {
            [] => Some(Self::Replicator),
            [name] if **name == *"m" => Some(Self::Membership),
            [name] if **name == *"l" => Some(Self::Lease),
            [name, _] if **name == *sharding::SHARDING => Some(Self::Sharding),
            [name, _] if **name == *sharding::SINGLETON => Some(Self::Singleton),
            [name, _] if **name == *sharding::CLUSTER_QUERY => Some(Self::ClusterQuery),
            _ => None,
        }
    }
}

/// Destination of an output of the guarded Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicatorDestination {
    /// The Replicator of a peer.
    Peer {
        /// Incarnation of the receiving node.
        to: ReplicaId,
        /// Class of the lane.
        class: TrafficClass,
        /// The message to send.
        message: ReplicatorMessage,
    },
    /// A holder of a lease, which may be this node.
    Holder {
        /// Incarnation of the receiving node.
        to: ReplicaId,
        /// The message to send.
        message: LeaseMessage,
    },
    /// The caller of a request.
    Caller {
        /// Id of the request.
        id: RequestId,
        /// Result of the request.
        reply: Result<ReplicatorReply, RequestError>,
    },
    /// A subscriber of this node.
    Subscriber {
        /// Id of the subscription.
        subscription: SubscriptionId,
        /// Change of a subscribed key.
        notice: SubscriptionNotice,
    },
    /// The disk, which answers with [`Fact::Persisted`].
    Disk {
        /// Id of the order, repeated in the answer.
        id: u64,
        /// Records to write to the store.
        records: Vec<DurableRecord>,
    },
    /// The node: its other parts, and its log.
    Node(ReplicatorEvent),
}

/// Events that the Replicator reports to its node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReplicatorEvent {
    /// A configuration was installed.
    Installed(Arc<Epoch>),
    /// This replica has synchronized with the configuration and counts in its quorums from now on.
    Synced(EpochId),
    /// Outcome of a proposal.
    Outcome(ProposalOutcome),
    /// This incarnation was removed and acknowledges nothing any longer. The node must stop.
    Excluded(EpochId),
    /// Entities must begin no further message until a configuration with this node is installed.
    StopServing,
    /// This configuration may become the next one.
    Pending(Arc<Epoch>),
    /// A warning for operators, already logged.
    Alarm(ReplicatorAlarm),
    /// The durable records of an earlier incarnation cannot be read. Nothing is served, and the
    /// node must stop.
    LoadFailed(StateLoadError),
    /// The Replicator panicked, which is a bug. Its task reports this itself; no output leads to
    /// it. The Replicator is not restarted, because it might use dots
    /// twice (docs/protocol/replication.md#a-replicator-never-restarts-within-an-incarnation). The
    /// node must stop.
    Failed(String),
}

/// Facts that other parts report to the guarded Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The link to this node is new; messages on an earlier one may be lost.
    LinkUp(NodeId),
    /// The nodes that membership knows now.
    Members(Vec<Peer>),
    /// The first configuration of the cluster.
    Found(Arc<Epoch>),
    /// Membership or an operator proposes this change of the configuration.
    Propose(MembershipChange),
    /// The records that the disk held at the start, reported before any other fact of the disk.
    Loaded(Vec<DurableRecord>),
    /// Result of a write to the disk, reported once for each order, also of a failed write.
    Persisted {
        /// Id of the order.
        id: u64,
        /// Result of the store.
        result: Result<(), StoreError>,
    },
}

/// Destination of an output of the guarded Replicator.
///
/// # Panics
/// If the output has no route, which is a bug of this crate. `AskConsent` has none: the guard
/// answers it and does not pass it on.
#[must_use]
pub fn route(output: GuardOutput) -> ReplicatorDestination {
    let output = match output {
        GuardOutput::Lease { to, message } => return ReplicatorDestination::Holder { to, message },
        GuardOutput::Data(output) => output,
    };
    match output {
        ReplicatorOutput::Send { to, class, message } => {
            ReplicatorDestination::Peer { to, class: lane(class), message }
        }
        ReplicatorOutput::Reply { id, reply } => ReplicatorDestination::Caller { id, reply },
        ReplicatorOutput::Notify { subscription, notice } => {
            ReplicatorDestination::Subscriber { subscription, notice }
        }
        ReplicatorOutput::Persist { id, records } => ReplicatorDestination::Disk { id, records },
        ReplicatorOutput::Installed(epoch) => {
            ReplicatorDestination::Node(ReplicatorEvent::Installed(epoch))
        }
        ReplicatorOutput::Synced(epoch) => {
            ReplicatorDestination::Node(ReplicatorEvent::Synced(epoch))
        }
        ReplicatorOutput::Outcome(outcome) => {
            ReplicatorDestination::Node(ReplicatorEvent::Outcome(outcome))
        }
        ReplicatorOutput::Excluded(epoch) => {
            ReplicatorDestination::Node(ReplicatorEvent::Excluded(epoch))
        }
        ReplicatorOutput::StopServing => ReplicatorDestination::Node(ReplicatorEvent::StopServing),
        ReplicatorOutput::Pending(epoch) => {
            ReplicatorDestination::Node(ReplicatorEvent::Pending(epoch))
        }
        ReplicatorOutput::LoadFailed(error) => {
            ReplicatorDestination::Node(ReplicatorEvent::LoadFailed(error))
        }
        ReplicatorOutput::Alarm(alarm) => {
            ReplicatorDestination::Node(ReplicatorEvent::Alarm(alarm))
        }
        other => unreachable!("an output of the Replicator without a route: {other:?}"),
    }
}

/// Converts a fact to an input of the guarded Replicator. Of a node, only its incarnation is kept.
#[must_use]
pub fn tell(fact: Fact) -> GuardInput {
    GuardInput::Data(match fact {
        Fact::LinkUp(node) => ReplicatorInput::LinkUp(node.incarnation),
        Fact::Members(peers) => ReplicatorInput::Members(peers),
        Fact::Found(epoch) => ReplicatorInput::Found(epoch),
        Fact::Propose(change) => ReplicatorInput::Propose(change),
        Fact::Loaded(records) => ReplicatorInput::Loaded(records),
        Fact::Persisted { id, result } => ReplicatorInput::Persisted { id, result },
    })
}

/// Decodes a received message to an input of the Replicator. The sender is the one that the
/// transport authenticated. Does not check the header: the caller has found that the message is for
/// the Replicator.
///
/// # Errors
/// [`DecodeError`] if the bytes are no message of a Replicator. The caller counts and drops it.
pub fn decode(message: &Inbound<'_>) -> Result<GuardInput, DecodeError> {
    let from = message.from.incarnation;
    Ok(GuardInput::Data(ReplicatorInput::Message {
        from,
        message: ReplicatorMessage::decode(message.body)?,
    }))
}

/// A decoded message of a part other than the Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedMessage {
    /// A message for membership.
    Cluster {
        /// The sender that the transport authenticated.
        from: id::NodeId,
        /// The message after decoding.
        message: ClusterMessage,
    },
    /// A message about leases; [`membership::lease`] finds its receiver.
    Lease {
        /// The sender that the transport authenticated.
        from: ReplicaId,
        /// The message after decoding.
        message: LeaseMessage,
    },
    /// A message for the sharding machines.
    Sharding(crate::sharding::machines::ShardingInput),
}

/// Why a message of a part other than the Replicator is dropped.
#[derive(Debug, thiserror::Error)]
pub enum MessageDropReason {
    /// The header names a part that this release does not know, has a wrong number of names for its
    /// part, or is empty.
    #[error("its header names no part of this release")]
    Part,
    /// The body cannot be decoded.
    #[error(transparent)]
    Message(#[from] GossipDecodeError),
    /// The sender has no ed25519 key, by which membership identifies nodes.
    #[error("its sender's peer id holds no ed25519 key")]
    Sender,
    /// The body is no message of the sharding machines.
    #[error(transparent)]
    Sharding(#[from] sharding::ShardingDropReason),
}

/// Decodes a message on the control lane that has a header. The messages without one are the
/// Replicator's, which [`decode`] decodes; here they fail with [`MessageDropReason::Part`].
///
/// # Errors
/// [`MessageDropReason`]: the header is checked first, then the sender, then the body. The caller
/// counts and drops the message. Only a message for membership needs a sender with an ed25519 key.
pub fn hear_control(message: &Inbound<'_>) -> Result<ReceivedMessage, MessageDropReason> {
    let from = message.from.incarnation;
    match Subsystem::of(message.fields) {
        Some(Subsystem::Membership) => {
            let from = to_cluster(message.from).ok_or(MessageDropReason::Sender)?;
            Ok(ReceivedMessage::Cluster { from, message: gossip::decode(message.body)? })
        }
        Some(Subsystem::Lease) => {
            Ok(ReceivedMessage::Lease { from, message: gossip::decode(message.body)? })
        }
        Some(Subsystem::Sharding | Subsystem::Singleton | Subsystem::ClusterQuery) => {
            let header = (&*message.fields[0], &*message.fields[1]);
            Ok(ReceivedMessage::Sharding(sharding::decode(from, header, message.body)?))
        }
        Some(Subsystem::Replicator) | None => Err(MessageDropReason::Part),
    }
}

/// Encodes a message of membership or of the lease.
#[must_use]
pub fn encode<T: serde::Serialize>(message: &T) -> Vec<u8> {
    gossip::encode(message)
}

/// Class of the lane for a class of the Replicator's messages.
#[must_use]
pub const fn lane(class: port::LaneClass) -> TrafficClass {
    match class {
        port::LaneClass::Control => TrafficClass::Control,
        port::LaneClass::Data => TrafficClass::Data,
        port::LaneClass::Bulk => TrafficClass::Bulk,
    }
}

/// Converts a node id of the transport to one of membership; `None` if its peer id holds no ed25519
/// key. The transport admits no such peer.
#[must_use]
pub fn to_cluster(node: NodeId) -> Option<id::NodeId> {
    Some(id::NodeId { peer: to_key(node.peer)?, incarnation: node.incarnation })
}

/// The ed25519 key in a peer id; `None` if the id holds a key of another kind or only its hash.
#[must_use]
pub fn to_key(peer: PeerId) -> Option<PeerKey> {
    let bytes = peer.to_bytes();
    let key = bytes.strip_prefix(&ED25519)?.try_into().ok()?;
    Some(PeerKey::new(key))
}

/// Converts a node id of membership to one of the transport.
#[must_use]
pub fn to_net(node: id::NodeId) -> NodeId {
    let bytes = [&ED25519[..], node.peer.as_bytes()].concat();
    let peer = PeerId::from_bytes(&bytes).expect("a well-formed multihash");
    NodeId { peer, incarnation: node.incarnation }
}

#[cfg(test)]
mod tests {
    use libp2p::identity::Keypair;
    use ostraca_ddata::replicator::epoch::EpochSettings;
    use ostraca_ddata::replicator::wire::Body;

    use super::*;
    use crate::cluster::lease::Heartbeat;

    const PEER: ReplicaId = ReplicaId::new(7);

    fn message() -> ReplicatorMessage {
        ReplicatorMessage {
            epoch: None,
            body: Body::NotPromised { request: 3, current: Default::default() },
        }
    }

    fn epoch() -> Arc<Epoch> {
        let id = EpochId { generation: 1, number: 1 };
        Arc::new(Epoch::founding(id, vec![PEER], EpochSettings::default()).expect("a valid one"))
    }

    fn node() -> NodeId {
        let peer = Keypair::ed25519_from_bytes([9; 32]).expect("a seed").public().to_peer_id();
        NodeId { peer, incarnation: PEER }
    }

    fn header(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn beat() -> Heartbeat {
        Heartbeat { epoch: epoch().id(), number: 9 }
    }

    fn routed(output: ReplicatorOutput) -> ReplicatorDestination {
        route(GuardOutput::Data(output))
    }

    #[test]
    fn each_message_class_maps_to_its_lane() {
        for (class, lane) in [
            (port::LaneClass::Control, TrafficClass::Control),
            (port::LaneClass::Data, TrafficClass::Data),
            (port::LaneClass::Bulk, TrafficClass::Bulk),
        ] {
            let order = ReplicatorOutput::Send { to: PEER, class, message: message() };
            assert_eq!(
                routed(order),
                ReplicatorDestination::Peer { to: PEER, class: lane, message: message() }
            );
        }
    }

    #[test]
    fn replies_changes_and_records_reach_their_destinations() {
        let (id, reply) = (RequestId(5), Err(RequestError::NotJoined));
        let order = ReplicatorOutput::Reply { id, reply: reply.clone() };
        assert_eq!(routed(order), ReplicatorDestination::Caller { id, reply });
        let (subscription, notice) =
            (SubscriptionId(6), SubscriptionNotice::Deleted { key: "k".into() });
        let order = ReplicatorOutput::Notify { subscription, notice: notice.clone() };
        assert_eq!(routed(order), ReplicatorDestination::Subscriber { subscription, notice });
        let order = ReplicatorOutput::Persist { id: 8, records: vec![] };
        assert_eq!(routed(order), ReplicatorDestination::Disk { id: 8, records: vec![] });
    }

    #[test]
    fn grant_is_routed_to_its_holder() {
        let message = LeaseMessage::Granted(beat());
        let order = GuardOutput::Lease { to: PEER, message };
        assert_eq!(route(order), ReplicatorDestination::Holder { to: PEER, message });
    }

    #[test]
    fn configuration_changes_and_alarms_are_events_of_the_node() {
        let id = epoch().id();
        let alarm = ReplicatorAlarm::Store(StoreError("full".into()));
        let unread = StateLoadError { failed: 3, what: String::new(), why: String::new() };
        for (order, event) in [
            (ReplicatorOutput::Installed(epoch()), ReplicatorEvent::Installed(epoch())),
            (ReplicatorOutput::Synced(id), ReplicatorEvent::Synced(id)),
            (ReplicatorOutput::Excluded(id), ReplicatorEvent::Excluded(id)),
            (ReplicatorOutput::StopServing, ReplicatorEvent::StopServing),
            (ReplicatorOutput::Pending(epoch()), ReplicatorEvent::Pending(epoch())),
            (ReplicatorOutput::Alarm(alarm.clone()), ReplicatorEvent::Alarm(alarm)),
            (ReplicatorOutput::LoadFailed(unread.clone()), ReplicatorEvent::LoadFailed(unread)),
        ] {
            assert_eq!(routed(order), ReplicatorDestination::Node(event));
        }
    }

    #[test]
    fn links_and_senders_are_identified_by_incarnation() {
        let told = tell(Fact::LinkUp(node()));
        assert!(matches!(told, GuardInput::Data(ReplicatorInput::LinkUp(PEER))));
        let body = message().encode();
        let inbound = Inbound { from: node(), class: TrafficClass::Data, fields: &[], body: &body };
        match decode(&inbound) {
            Ok(GuardInput::Data(ReplicatorInput::Message { from: PEER, message: heard })) => {
                assert_eq!(heard, message());
            }
            other => panic!("{other:?}"),
        }
        assert!(decode(&Inbound { body: b"\xc1nonsense", ..inbound }).is_err());
    }

    #[test]
    fn facts_become_inputs_with_the_same_content() {
        let data = |fact| match tell(fact) {
            GuardInput::Data(input) => input,
            other => panic!("{other:?}"),
        };
        let loaded = data(Fact::Loaded(vec![]));
        assert!(matches!(loaded, ReplicatorInput::Loaded(records) if records.is_empty()));
        let persisted = data(Fact::Persisted { id: 4, result: Ok(()) });
        assert!(matches!(persisted, ReplicatorInput::Persisted { id: 4, result: Ok(()) }));
        assert!(
            matches!(data(Fact::Found(epoch())), ReplicatorInput::Found(found) if found == epoch())
        );
        assert!(matches!(data(Fact::Members(vec![])), ReplicatorInput::Members(_)));
        let change = MembershipChange { join: vec![PEER], ..MembershipChange::default() };
        assert!(
            matches!(data(Fact::Propose(change.clone())), ReplicatorInput::Propose(c) if c == change)
        );
    }

    /// Sending part, header, encoded message and the expected bytes.
    fn control_messages() -> [(Subsystem, &'static [&'static str], Vec<u8>, &'static str); 4] {
        let beat = beat();
        [
            (Subsystem::Membership, &["m"], encode(&ClusterMessage::Heartbeat(5)), "81a16805"),
            (
                Subsystem::Lease,
                &["l"],
                encode(&LeaseMessage::Beat(beat)),
                "81a16282a16582a16701a16e01a16e09",
            ),
            (
                Subsystem::Lease,
                &["l"],
                encode(&LeaseMessage::Granted(beat)),
                "81a16782a16582a16701a16e01a16e09",
            ),
            (
                Subsystem::Lease,
                &["l"],
                encode(&LeaseMessage::Release { number: 9 }),
                "81a17281a16e09",
            ),
        ]
    }

    #[test]
    fn control_messages_match_golden_headers_and_bytes() {
        let mut bodies = Vec::new();
        for (part, names, bytes, golden) in control_messages() {
            assert_eq!((part.header(), Subsystem::of(&header(names))), (names, Some(part)));
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            bodies.push((names, bytes));
        }
        assert_eq!(
            (Subsystem::Replicator.header(), Subsystem::of(&[])),
            (&[][..], Some(Subsystem::Replicator))
        );
        let heard = bodies.iter().map(|(names, body)| {
            let fields = header(names);
            let inbound =
                Inbound { from: node(), class: TrafficClass::Control, fields: &fields, body };
            hear_control(&inbound).expect("an encoded message decodes")
        });
        let from = to_cluster(node()).expect("an ed25519 key");
        let expected = [
            ReceivedMessage::Cluster { from, message: ClusterMessage::Heartbeat(5) },
            ReceivedMessage::Lease { from: PEER, message: LeaseMessage::Beat(beat()) },
            ReceivedMessage::Lease { from: PEER, message: LeaseMessage::Granted(beat()) },
            ReceivedMessage::Lease { from: PEER, message: LeaseMessage::Release { number: 9 } },
        ];
        assert_eq!(heard.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn unknown_headers_and_malformed_bodies_are_rejected() {
        let why = |names: &[&str], body: &[u8], from| {
            let fields = header(names);
            let heard = hear_control(&Inbound {
                from,
                class: TrafficClass::Control,
                fields: &fields,
                body,
            });
            heard.expect_err("the message is rejected")
        };
        let beat = encode(&LeaseMessage::Release { number: 9 });
        for names in [&["x"][..], &["m", "l"], &["l", "l"], &[""], &["s"], &["o"], &["s", "t", "t"]]
        {
            assert!(matches!(why(names, &beat, node()), MessageDropReason::Part), "{names:?}");
        }
        for (name, body) in [("l", &b"\xc1"[..]), ("m", &beat), ("m", b"\x81\xa1\x5a\x01")] {
            assert!(
                matches!(why(&[name], body, node()), MessageDropReason::Message(_)),
                "{name} {body:?}"
            );
        }
        let other = PeerId::from_bytes(&[0, 1, 9]).expect("valid");
        let stranger = NodeId { peer: other, ..node() };
        let heartbeat = encode(&ClusterMessage::Heartbeat(5));
        assert!(matches!(why(&["m"], &heartbeat, stranger), MessageDropReason::Sender));
    }

    #[test]
    fn node_ids_convert_between_transport_and_membership() {
        let named = to_cluster(node()).expect("an ed25519 key");
        assert_eq!(to_net(named), node());
        assert_eq!(named.incarnation, PEER);
    }
}
