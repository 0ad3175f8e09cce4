//! Who hears whom: a pure function from each part's word to whose word it becomes.
//!
//! The driver and the simulator both call it, so that what is simulated is what runs. Knows no
//! task, no socket and no clock.

pub mod membership;

use std::sync::Arc;

use ostraca_ddata::durable::{Record, StoreError};
use ostraca_ddata::encoded::DecodeError;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Change, Consenting, Epoch, EpochId, Outcome, Remaining};
use ostraca_ddata::replicator::port::{self, Alarm, Input, Output, Peer};
use ostraca_ddata::replicator::request::{Notice, Reply, RequestError, RequestId, SubscriptionId};
use ostraca_ddata::replicator::wire::Message;

use crate::net::{Class, Inbound, NodeId};

/// Where an order of the Replicator goes.
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
    /// The lease machine is asked; the answer is [`Fact::Consent`]. Without an answer no
    /// configuration is decided.
    AskConsent {
        /// Names the question.
        query: u64,
        /// Members that are to go.
        removed: Vec<ReplicaId>,
        /// What the answer is for.
        why: Consenting,
    },
    /// This incarnation was removed: it acknowledges nothing any more. Stop the node.
    Excluded(EpochId),
    /// Begin no further message until a configuration with this node is installed.
    StopServing,
    /// For an operator; logged already.
    Alarm(Alarm),
    /// The Replicator panicked, which is a bug: it is over, since its dots must not be used
    /// twice. Stop the node.
    Failed(String),
}

/// What others tell the Replicator.
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
    /// The lease machine's answer.
    Consent {
        /// As asked.
        query: u64,
        /// Leases that still run.
        remaining: Vec<Remaining>,
    },
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

/// Where an order of the Replicator goes.
///
/// # Panics
/// On an order that this release does not know, which only our own mistake can bring about.
#[must_use]
pub fn route(output: Output) -> Dest {
    match output {
        Output::Send { to, class, message } => Dest::Peer { to, class: lane(class), message },
        Output::Reply { id, reply } => Dest::Caller { id, reply },
        Output::Notify { subscription, notice } => Dest::Subscriber { subscription, notice },
        Output::Persist { id, records } => Dest::Disk { id, records },
        Output::AskConsent { query, removed, why } => {
            Dest::Node(Event::AskConsent { query, removed, why })
        }
        Output::Installed(epoch) => Dest::Node(Event::Installed(epoch)),
        Output::Synced(epoch) => Dest::Node(Event::Synced(epoch)),
        Output::Outcome(outcome) => Dest::Node(Event::Outcome(outcome)),
        Output::Excluded(epoch) => Dest::Node(Event::Excluded(epoch)),
        Output::StopServing => Dest::Node(Event::StopServing),
        Output::Alarm(alarm) => Dest::Node(Event::Alarm(alarm)),
        other => unreachable!("the wiring knows every order of the Replicator, but {other:?}"),
    }
}

/// What a fact is to the Replicator.
#[must_use]
pub fn tell(fact: Fact) -> Input {
    match fact {
        Fact::LinkUp(node) => Input::LinkUp(node.incarnation),
        Fact::Members(peers) => Input::Members(peers),
        Fact::Found(epoch) => Input::Found(epoch),
        Fact::Propose(change) => Input::Propose(change),
        Fact::Consent { query, remaining } => Input::Consent { query, remaining },
        Fact::Loaded(records) => Input::Loaded(records),
        Fact::Persisted { id, result } => Input::Persisted { id, result },
    }
}

/// What a message that arrived is to the Replicator. The sender is whom the transport knows, not
/// whom the message claims.
///
/// # Errors
/// [`DecodeError`] if it is no message between Replicators: count it and go on.
pub fn hear(message: &Inbound<'_>) -> Result<Input, DecodeError> {
    let from = message.from.incarnation;
    Ok(Input::Message { from, message: Message::decode(message.body)? })
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

#[cfg(test)]
mod tests {
    use libp2p::PeerId;
    use ostraca_ddata::replicator::epoch::EpochSettings;
    use ostraca_ddata::replicator::wire::Body;

    use super::*;

    const PEER: ReplicaId = ReplicaId::new(7);

    fn message() -> Message {
        Message { epoch: None, body: Body::NotPromised { request: 3, current: Default::default() } }
    }

    fn epoch() -> Arc<Epoch> {
        let id = EpochId { generation: 1, number: 1 };
        Arc::new(Epoch::founding(id, vec![PEER], EpochSettings::default()).expect("a valid one"))
    }

    #[test]
    fn each_class_of_messages_has_its_lane() {
        for (class, lane) in [
            (port::Class::Control, Class::Control),
            (port::Class::Data, Class::Data),
            (port::Class::Bulk, Class::Bulk),
        ] {
            let order = Output::Send { to: PEER, class, message: message() };
            assert_eq!(route(order), Dest::Peer { to: PEER, class: lane, message: message() });
        }
    }

    #[test]
    fn answers_go_to_callers_news_to_subscribers_and_records_to_the_disk() {
        let (id, reply) = (RequestId(5), Err(RequestError::NotJoined));
        let order = Output::Reply { id, reply: reply.clone() };
        assert_eq!(route(order), Dest::Caller { id, reply });
        let (subscription, notice) = (SubscriptionId(6), Notice::Deleted { key: "k".into() });
        let order = Output::Notify { subscription, notice: notice.clone() };
        assert_eq!(route(order), Dest::Subscriber { subscription, notice });
        let order = Output::Persist { id: 8, records: vec![] };
        assert_eq!(route(order), Dest::Disk { id: 8, records: vec![] });
    }

    #[test]
    fn everything_about_configurations_and_every_alarm_goes_to_the_node() {
        let id = epoch().id();
        let alarm = Alarm::Store(StoreError("full".into()));
        let (query, removed, why) = (2, vec![PEER], Consenting::Seal);
        let orders = [
            (Output::Installed(epoch()), Event::Installed(epoch())),
            (Output::Synced(id), Event::Synced(id)),
            (Output::Excluded(id), Event::Excluded(id)),
            (Output::StopServing, Event::StopServing),
            (Output::Alarm(alarm.clone()), Event::Alarm(alarm)),
            (
                Output::AskConsent { query, removed: removed.clone(), why },
                Event::AskConsent { query, removed, why },
            ),
        ];
        for (order, event) in orders {
            assert_eq!(route(order), Dest::Node(event));
        }
    }

    #[test]
    fn a_link_is_known_by_its_incarnation_and_so_is_a_sender() {
        let node =
            NodeId { peer: PeerId::from_bytes(&[0, 1, 9]).expect("valid"), incarnation: PEER };
        assert!(matches!(tell(Fact::LinkUp(node)), Input::LinkUp(PEER)));
        let body = message().encode();
        let inbound = Inbound { from: node, class: Class::Data, fields: &[], body: &body };
        match hear(&inbound) {
            Ok(Input::Message { from: PEER, message: heard }) => assert_eq!(heard, message()),
            other => panic!("{other:?}"),
        }
        assert!(hear(&Inbound { body: b"\xc1nonsense", ..inbound }).is_err());
    }

    #[test]
    fn facts_keep_what_they_say() {
        let loaded = tell(Fact::Loaded(vec![]));
        assert!(matches!(loaded, Input::Loaded(records) if records.is_empty()));
        let persisted = tell(Fact::Persisted { id: 4, result: Ok(()) });
        assert!(matches!(persisted, Input::Persisted { id: 4, result: Ok(()) }));
        let consent = tell(Fact::Consent { query: 9, remaining: vec![] });
        assert!(matches!(consent, Input::Consent { query: 9, .. }));
        assert!(matches!(tell(Fact::Found(epoch())), Input::Found(found) if found == epoch()));
        assert!(matches!(tell(Fact::Members(vec![])), Input::Members(_)));
        let change = Change { join: vec![PEER], ..Change::default() };
        assert!(matches!(tell(Fact::Propose(change.clone())), Input::Propose(c) if c == change));
    }
}
