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
use ostraca_ddata::durable::{Record, StoreError};
use ostraca_ddata::encoded::DecodeError;
use ostraca_ddata::id::{self, PeerKey, ReplicaId};
use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochId, Outcome};
use ostraca_ddata::replicator::port::{self, Alarm, Input, LoadError, Output, Peer};
use ostraca_ddata::replicator::request::{Notice, Reply, RequestError, RequestId, SubscriptionId};
use ostraca_ddata::replicator::wire::Message;

use crate::cluster::gossip::wire::{self as gossip, GossipDecodeError};
use crate::cluster::lease::LeaseMessage;
use crate::cluster::lease::guard::{GuardInput, GuardOutput};
use crate::cluster::wire::ClusterMessage;
use crate::net::{Class, ED25519, Inbound, NodeId};

/// A part of a node that exchanges messages with the same part of other nodes. The header of each
/// message on the control lane names the part; a name costs two bytes after its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
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
    Survey,
}

impl Part {
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
            Self::Survey => &[sharding::SURVEY],
        }
    }

    /// The part to which a header belongs; `None` if this release does not know it.
    #[must_use]
    pub fn of(header: &[Arc<str>]) -> Option<Self> {
        match header {
            [] => Some(Self::Replicator),
            [name] if **name == *"m" => Some(Self::Membership),
            [name] if **name == *"l" => Some(Self::Lease),
            [name, _] if **name == *sharding::SHARDING => Some(Self::Sharding),
            [name, _] if **name == *sharding::SINGLETON => Some(Self::Singleton),
            [name, _] if **name == *sharding::SURVEY => Some(Self::Survey),
            _ => None,
        }
    }
}

/// Destination of an output of the guarded Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Dest {
    /// The Replicator of a peer.
    Peer {
        /// Incarnation of the receiving node.
        to: ReplicaId,
        /// Class of the lane.
        class: Class,
        /// The message to send.
        message: Message,
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
        reply: Result<Reply, RequestError>,
    },
    /// A subscriber of this node.
    Subscriber {
        /// Id of the subscription.
        subscription: SubscriptionId,
        /// Change of a subscribed key.
        notice: Notice,
    },
    /// The disk, which answers with [`Fact::Persisted`].
    Disk {
        /// Id of the order, repeated in the answer.
        id: u64,
        /// Records to write to the store.
        records: Vec<Record>,
    },
    /// The node: its other parts, and its log.
    Node(Event),
}

/// Events that the Replicator reports to its node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A configuration was installed.
    Installed(Arc<Epoch>),
    /// This replica has synchronized with the configuration and counts in its quorums from now on.
    Synced(EpochId),
    /// Outcome of a proposal.
    Outcome(Outcome),
    /// This incarnation was removed and acknowledges nothing any longer. The node must stop.
    Excluded(EpochId),
    /// Entities must begin no further message until a configuration with this node is installed.
    StopServing,
    /// This configuration may become the next one.
    Pending(Arc<Epoch>),
    /// A warning for operators, already logged.
    Alarm(Alarm),
    /// The durable records of an earlier incarnation cannot be read. Nothing is served, and the
    /// node must stop.
    LoadFailed(LoadError),
    /// The Replicator panicked, which is a bug. It is not restarted, because it might use dots
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
    Propose(Change),
    /// The records that the disk held at the start, reported before any other fact of the disk.
    Loaded(Vec<Record>),
    /// Result of a write to the disk.
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
/// If the output is not known here, which is a bug of this crate.
#[must_use]
pub fn route(output: GuardOutput) -> Dest {
    let output = match output {
        GuardOutput::Lease { to, message } => return Dest::Holder { to, message },
        GuardOutput::Data(output) => output,
    };
    match output {
        Output::Send { to, class, message } => Dest::Peer { to, class: lane(class), message },
        Output::Reply { id, reply } => Dest::Caller { id, reply },
        Output::Notify { subscription, notice } => Dest::Subscriber { subscription, notice },
        Output::Persist { id, records } => Dest::Disk { id, records },
        Output::Installed(epoch) => Dest::Node(Event::Installed(epoch)),
        Output::Synced(epoch) => Dest::Node(Event::Synced(epoch)),
        Output::Outcome(outcome) => Dest::Node(Event::Outcome(outcome)),
        Output::Excluded(epoch) => Dest::Node(Event::Excluded(epoch)),
        Output::StopServing => Dest::Node(Event::StopServing),
        Output::Pending(epoch) => Dest::Node(Event::Pending(epoch)),
        Output::LoadFailed(error) => Dest::Node(Event::LoadFailed(error)),
        Output::Alarm(alarm) => Dest::Node(Event::Alarm(alarm)),
        other => unreachable!("an output of the Replicator without a route: {other:?}"),
    }
}

/// Converts a fact to an input of the guarded Replicator.
#[must_use]
pub fn tell(fact: Fact) -> GuardInput {
    GuardInput::Data(match fact {
        Fact::LinkUp(node) => Input::LinkUp(node.incarnation),
        Fact::Members(peers) => Input::Members(peers),
        Fact::Found(epoch) => Input::Found(epoch),
        Fact::Propose(change) => Input::Propose(change),
        Fact::Loaded(records) => Input::Loaded(records),
        Fact::Persisted { id, result } => Input::Persisted { id, result },
    })
}

/// Decodes a received message to an input of the Replicator. The sender is the one that the
/// transport authenticated.
///
/// # Errors
/// [`DecodeError`] if the bytes are no message of a Replicator. The caller counts and drops it.
pub fn hear(message: &Inbound<'_>) -> Result<GuardInput, DecodeError> {
    let from = message.from.incarnation;
    Ok(GuardInput::Data(Input::Message { from, message: Message::decode(message.body)? }))
}

/// A decoded message of a part other than the Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
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
    Sharding(crate::sharding::machines::Input),
}

/// Why a message of a part other than the Replicator is dropped.
#[derive(Debug, thiserror::Error)]
pub enum Unheard {
    /// The header names a part that this release does not know.
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
    Sharding(#[from] sharding::Unheard),
}

/// Decodes a message on the control lane that has a header.
///
/// # Errors
/// [`Unheard`]. The caller counts and drops the message.
pub fn hear_control(message: &Inbound<'_>) -> Result<Heard, Unheard> {
    let from = message.from.incarnation;
    match Part::of(message.fields) {
        Some(Part::Membership) => {
            let from = to_cluster(message.from).ok_or(Unheard::Sender)?;
            Ok(Heard::Cluster { from, message: gossip::decode(message.body)? })
        }
        Some(Part::Lease) => Ok(Heard::Lease { from, message: gossip::decode(message.body)? }),
        Some(Part::Sharding | Part::Singleton | Part::Survey) => {
            let header = (&*message.fields[0], &*message.fields[1]);
            Ok(Heard::Sharding(sharding::hear(from, header, message.body)?))
        }
        Some(Part::Replicator) | None => Err(Unheard::Part),
    }
}

/// Encodes a message of membership or of the lease.
#[must_use]
pub fn say<T: serde::Serialize>(message: &T) -> Vec<u8> {
    gossip::encode(message)
}

/// Class of the lane for a class of the Replicator's messages.
#[must_use]
pub const fn lane(class: port::Class) -> Class {
    match class {
        port::Class::Control => Class::Control,
        port::Class::Data => Class::Data,
        port::Class::Bulk => Class::Bulk,
    }
}

/// Converts a node id of the transport to one of membership; `None` if its peer id holds no ed25519
/// key. The transport admits no such peer.
#[must_use]
pub fn to_cluster(node: NodeId) -> Option<id::NodeId> {
    Some(id::NodeId { peer: to_key(node.peer)?, incarnation: node.incarnation })
}

/// The ed25519 key in a peer id, if it holds one.
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
    use crate::cluster::lease::Beat;

    const PEER: ReplicaId = ReplicaId::new(7);

    fn message() -> Message {
        Message { epoch: None, body: Body::NotPromised { request: 3, current: Default::default() } }
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

    fn beat() -> Beat {
        Beat { epoch: epoch().id(), number: 9 }
    }

    fn routed(output: Output) -> Dest {
        route(GuardOutput::Data(output))
    }

    #[test]
    fn each_message_class_maps_to_its_lane() {
        for (class, lane) in [
            (port::Class::Control, Class::Control),
            (port::Class::Data, Class::Data),
            (port::Class::Bulk, Class::Bulk),
        ] {
            let order = Output::Send { to: PEER, class, message: message() };
            assert_eq!(routed(order), Dest::Peer { to: PEER, class: lane, message: message() });
        }
    }

    #[test]
    fn replies_changes_and_records_reach_their_destinations() {
        let (id, reply) = (RequestId(5), Err(RequestError::NotJoined));
        let order = Output::Reply { id, reply: reply.clone() };
        assert_eq!(routed(order), Dest::Caller { id, reply });
        let (subscription, notice) = (SubscriptionId(6), Notice::Deleted { key: "k".into() });
        let order = Output::Notify { subscription, notice: notice.clone() };
        assert_eq!(routed(order), Dest::Subscriber { subscription, notice });
        let order = Output::Persist { id: 8, records: vec![] };
        assert_eq!(routed(order), Dest::Disk { id: 8, records: vec![] });
    }

    #[test]
    fn grant_is_routed_to_its_holder() {
        let message = LeaseMessage::Granted(beat());
        let order = GuardOutput::Lease { to: PEER, message };
        assert_eq!(route(order), Dest::Holder { to: PEER, message });
    }

    #[test]
    fn configuration_changes_and_alarms_are_events_of_the_node() {
        let id = epoch().id();
        let alarm = Alarm::Store(StoreError("full".into()));
        let unread = LoadError { failed: 3, what: String::new(), why: String::new() };
        for (order, event) in [
            (Output::Installed(epoch()), Event::Installed(epoch())),
            (Output::Synced(id), Event::Synced(id)),
            (Output::Excluded(id), Event::Excluded(id)),
            (Output::StopServing, Event::StopServing),
            (Output::Pending(epoch()), Event::Pending(epoch())),
            (Output::Alarm(alarm.clone()), Event::Alarm(alarm)),
            (Output::LoadFailed(unread.clone()), Event::LoadFailed(unread)),
        ] {
            assert_eq!(routed(order), Dest::Node(event));
        }
    }

    #[test]
    fn links_and_senders_are_identified_by_incarnation() {
        let told = tell(Fact::LinkUp(node()));
        assert!(matches!(told, GuardInput::Data(Input::LinkUp(PEER))));
        let body = message().encode();
        let inbound = Inbound { from: node(), class: Class::Data, fields: &[], body: &body };
        match hear(&inbound) {
            Ok(GuardInput::Data(Input::Message { from: PEER, message: heard })) => {
                assert_eq!(heard, message());
            }
            other => panic!("{other:?}"),
        }
        assert!(hear(&Inbound { body: b"\xc1nonsense", ..inbound }).is_err());
    }

    #[test]
    fn facts_become_inputs_with_the_same_content() {
        let data = |fact| match tell(fact) {
            GuardInput::Data(input) => input,
            other => panic!("{other:?}"),
        };
        let loaded = data(Fact::Loaded(vec![]));
        assert!(matches!(loaded, Input::Loaded(records) if records.is_empty()));
        let persisted = data(Fact::Persisted { id: 4, result: Ok(()) });
        assert!(matches!(persisted, Input::Persisted { id: 4, result: Ok(()) }));
        assert!(matches!(data(Fact::Found(epoch())), Input::Found(found) if found == epoch()));
        assert!(matches!(data(Fact::Members(vec![])), Input::Members(_)));
        let change = Change { join: vec![PEER], ..Change::default() };
        assert!(matches!(data(Fact::Propose(change.clone())), Input::Propose(c) if c == change));
    }

    /// Sending part, header, encoded message and the expected bytes.
    fn control_messages() -> [(Part, &'static [&'static str], Vec<u8>, &'static str); 4] {
        let beat = beat();
        [
            (Part::Membership, &["m"], say(&ClusterMessage::Heartbeat(5)), "81a16805"),
            (
                Part::Lease,
                &["l"],
                say(&LeaseMessage::Beat(beat)),
                "81a16282a16582a16701a16e01a16e09",
            ),
            (
                Part::Lease,
                &["l"],
                say(&LeaseMessage::Granted(beat)),
                "81a16782a16582a16701a16e01a16e09",
            ),
            (Part::Lease, &["l"], say(&LeaseMessage::Release { number: 9 }), "81a17281a16e09"),
        ]
    }

    #[test]
    fn control_messages_match_golden_headers_and_bytes() {
        let mut bodies = Vec::new();
        for (part, names, bytes, golden) in control_messages() {
            assert_eq!((part.header(), Part::of(&header(names))), (names, Some(part)));
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden);
            bodies.push((names, bytes));
        }
        assert_eq!((Part::Replicator.header(), Part::of(&[])), (&[][..], Some(Part::Replicator)));
        let heard = bodies.iter().map(|(names, body)| {
            let fields = header(names);
            let inbound = Inbound { from: node(), class: Class::Control, fields: &fields, body };
            hear_control(&inbound).expect("an encoded message decodes")
        });
        let from = to_cluster(node()).expect("an ed25519 key");
        let expected = [
            Heard::Cluster { from, message: ClusterMessage::Heartbeat(5) },
            Heard::Lease { from: PEER, message: LeaseMessage::Beat(beat()) },
            Heard::Lease { from: PEER, message: LeaseMessage::Granted(beat()) },
            Heard::Lease { from: PEER, message: LeaseMessage::Release { number: 9 } },
        ];
        assert_eq!(heard.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn unknown_headers_and_malformed_bodies_are_rejected() {
        let why = |names: &[&str], body: &[u8], from| {
            let fields = header(names);
            let heard =
                hear_control(&Inbound { from, class: Class::Control, fields: &fields, body });
            heard.expect_err("the message is rejected")
        };
        let beat = say(&LeaseMessage::Release { number: 9 });
        for names in [&["x"][..], &["m", "l"], &["l", "l"], &[""], &["s"], &["o"], &["s", "t", "t"]]
        {
            assert!(matches!(why(names, &beat, node()), Unheard::Part), "{names:?}");
        }
        for (name, body) in [("l", &b"\xc1"[..]), ("m", &beat), ("m", b"\x81\xa1\x5a\x01")] {
            assert!(matches!(why(&[name], body, node()), Unheard::Message(_)), "{name} {body:?}");
        }
        let other = PeerId::from_bytes(&[0, 1, 9]).expect("valid");
        let stranger = NodeId { peer: other, ..node() };
        let heartbeat = say(&ClusterMessage::Heartbeat(5));
        assert!(matches!(why(&["m"], &heartbeat, stranger), Unheard::Sender));
    }

    #[test]
    fn node_ids_convert_between_transport_and_membership() {
        let named = to_cluster(node()).expect("an ed25519 key");
        assert_eq!(to_net(named), node());
        assert_eq!(named.incarnation, PEER);
    }
}
