//! Who hears whom: a pure function from each part's word to whose word it becomes.
//!
//! The driver and the simulator both call it, so that what is simulated is what runs. Knows no
//! task, no socket and no clock.

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

/// A part of a node that talks to its like. Each message on the control lane says in its header
/// whose it is; a name there costs two bytes after its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Replicated data, and configurations.
    Replicator,
    /// Gossip, heartbeats of the failure detector, joining, founding.
    Membership,
    /// Heartbeats and grants of the hosting lease.
    Lease,
    /// Coordinators and regions of entity types; the type's name is the header's second one.
    Sharding,
    /// Where coordinators run; as well.
    Singleton,
    /// How many entities live where; as well.
    Survey,
}

impl Part {
    /// The header of its messages, or the begin of it. The Replicator's is empty, as on the lanes
    /// that are its alone.
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

    /// Whose message has this header; `None`: of a part that a later release has.
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

/// Where an order of the guarded Replicator goes.
#[derive(Clone, Debug, PartialEq)]
pub enum Dest {
    /// To a peer's Replicator.
    Peer {
        /// The receiver.
        to: ReplicaId,
        /// On which lane.
        class: Class,
        /// What it is told.
        message: Message,
    },
    /// To a holder of a lease, which may be this node.
    Holder {
        /// The receiver.
        to: ReplicaId,
        /// What it is told.
        message: LeaseMessage,
    },
    /// To whoever asked.
    Caller {
        /// What was asked.
        id: RequestId,
        /// The answer.
        reply: Result<Reply, RequestError>,
    },
    /// To a subscriber.
    Subscriber {
        /// Which.
        subscription: SubscriptionId,
        /// The news.
        notice: Notice,
    },
    /// To the disk, which answers with [`Fact::Persisted`].
    Disk {
        /// To be named in the answer.
        id: u64,
        /// What to write.
        records: Vec<Record>,
    },
    /// To the node: other parts, or whoever runs it.
    Node(Event),
}

/// What the Replicator tells its node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A configuration is installed.
    Installed(Arc<Epoch>),
    /// This replica is synced for it and counts from now on.
    Synced(EpochId),
    /// What became of a proposal.
    Outcome(Outcome),
    /// This incarnation was removed: it acknowledges nothing any more. Stop the node.
    Excluded(EpochId),
    /// Begin no further message until a configuration with this node is installed.
    StopServing,
    /// This configuration may be the next one.
    Pending(Arc<Epoch>),
    /// For an operator; logged already.
    Alarm(Alarm),
    /// What a former life left on disk can't be read: nothing is served. Stop the node.
    LoadFailed(LoadError),
    /// The Replicator panicked, which is a bug: it is over, since its dots must not be used
    /// twice. Stop the node.
    Failed(String),
}

/// What others tell the guarded Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The link to this node is new: what was under way may be lost.
    LinkUp(NodeId),
    /// The nodes that membership knows now.
    Members(Vec<Peer>),
    /// The first configuration of the cluster.
    Found(Arc<Epoch>),
    /// Membership, or an operator, wants this change of the configuration.
    Propose(Change),
    /// The disk's first word: what it held at the start.
    Loaded(Vec<Record>),
    /// The disk's answer.
    Persisted {
        /// As ordered.
        id: u64,
        /// What the store said.
        result: Result<(), StoreError>,
    },
}

/// Where an order of the guarded Replicator goes.
///
/// # Panics
/// On an order that this release does not know, which only our own mistake can bring about.
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
        other => unreachable!("the wiring knows every order of the Replicator, but {other:?}"),
    }
}

/// What a fact is to the guarded Replicator.
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

/// What a message that arrived is to the Replicator. The sender is whom the transport knows, not
/// whom the message claims.
///
/// # Errors
/// [`DecodeError`] if it is no message between Replicators: count it and go on.
pub fn hear(message: &Inbound<'_>) -> Result<GuardInput, DecodeError> {
    let from = message.from.incarnation;
    Ok(GuardInput::Data(Input::Message { from, message: Message::decode(message.body)? }))
}

/// A message of another part than the Replicator.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    /// For membership.
    Cluster {
        /// The sender, as the transport knows it.
        from: id::NodeId,
        /// What it says.
        message: ClusterMessage,
    },
    /// About leases; [`membership::lease`] says for whom.
    Lease {
        /// The sender, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: LeaseMessage,
    },
    /// For the sharding machines.
    Sharding(crate::sharding::machines::Input),
}

/// Why a message of another part than the Replicator is dropped.
#[derive(Debug, thiserror::Error)]
pub enum Unheard {
    /// Of a part that this release does not have.
    #[error("its header names no part of this release")]
    Part,
    /// It does not decode.
    #[error(transparent)]
    Message(#[from] GossipDecodeError),
    /// Membership knows nodes by their ed25519 keys.
    #[error("its sender's peer id holds no ed25519 key")]
    Sender,
    /// It is for the sharding machines, and none of theirs.
    #[error(transparent)]
    Sharding(#[from] sharding::Unheard),
}

/// What a message with a header is, and to whom.
///
/// # Errors
/// [`Unheard`]: count it and go on.
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

/// The bytes of a message of membership or of the lease.
#[must_use]
pub fn say<T: serde::Serialize>(message: &T) -> Vec<u8> {
    gossip::encode(message)
}

/// The lane on which a class of the Replicator's messages travels.
#[must_use]
pub const fn lane(class: port::Class) -> Class {
    match class {
        port::Class::Control => Class::Control,
        port::Class::Data => Class::Data,
        port::Class::Bulk => Class::Bulk,
    }
}

/// A node as membership names it; `None` if its peer id holds no ed25519 key, which the transport
/// admits nobody with.
#[must_use]
pub fn to_cluster(node: NodeId) -> Option<id::NodeId> {
    Some(id::NodeId { peer: to_key(node.peer)?, incarnation: node.incarnation })
}

/// A peer's key; `None` as for [`to_cluster`].
#[must_use]
pub fn to_key(peer: PeerId) -> Option<PeerKey> {
    let bytes = peer.to_bytes();
    let key = bytes.strip_prefix(&ED25519)?.try_into().ok()?;
    Some(PeerKey::new(key))
}

/// A node as the transport names it.
#[must_use]
pub fn to_net(node: id::NodeId) -> NodeId {
    let bytes = [&ED25519[..], node.peer.as_bytes()].concat();
    let peer = PeerId::from_bytes(&bytes).expect("a multihash of the length that it says");
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
    fn each_class_of_messages_has_its_lane() {
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
    fn answers_go_to_callers_news_to_subscribers_and_records_to_the_disk() {
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
    fn a_grant_goes_to_its_holder() {
        let message = LeaseMessage::Granted(beat());
        let order = GuardOutput::Lease { to: PEER, message };
        assert_eq!(route(order), Dest::Holder { to: PEER, message });
    }

    #[test]
    fn everything_about_configurations_and_every_alarm_goes_to_the_node() {
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
    fn a_link_is_known_by_its_incarnation_and_so_is_a_sender() {
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
    fn facts_keep_what_they_say() {
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

    /// Who says it, its header, its bytes.
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
    fn every_part_has_its_header_and_its_bytes_on_the_control_lane() {
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
            hear_control(&inbound).expect("as it was said")
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
    fn what_names_no_part_or_does_not_decode_is_not_heard() {
        let why = |names: &[&str], body: &[u8], from| {
            let fields = header(names);
            let heard =
                hear_control(&Inbound { from, class: Class::Control, fields: &fields, body });
            heard.expect_err("it is dropped")
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
    fn a_node_has_one_name_here_and_there() {
        let named = to_cluster(node()).expect("an ed25519 key");
        assert_eq!(to_net(named), node());
        assert_eq!(named.incarnation, PEER);
    }
}
