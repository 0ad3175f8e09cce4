//! The surroundings of a node's sharding machines: what they are told and what they order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::Epoch;
use ostraca_ddata::replicator::request::{Notice, Reply, RequestError};
use ostraca_ddata::types::Term;

use super::survey::{Counting, Found, Question, SurveyMessage};
use crate::cluster::events::ClusterState;
use crate::cluster::member::Address;
use crate::cluster::singleton::SingletonMessage;
use crate::sharding::agreed::Agreed;
use crate::sharding::allocation::pins::AskPins;
use crate::sharding::allocation::{Advice, Asked};
use crate::sharding::config::{MajorityPlus, Sharding as Settings};
use crate::sharding::ids::{EntityId, EntityType, RegionId};
use crate::sharding::region::{RegionInput, RegionOutput, Unregistered};
use crate::sharding::remembered::{Slow, Step};
use crate::sharding::store::Ask;
use crate::sharding::wire::ShardingMessage;

/// What the machines of one type say to those of another node. The header names the type, and
/// which of them it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// Between coordinator and regions.
    Sharding(ShardingMessage),
    /// About where the coordinator runs.
    Singleton(SingletonMessage),
    /// Questions of those who want to know how things are.
    Survey(SurveyMessage),
}

/// What a type does on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// It hosts shards.
    Shards,
    /// It only routes.
    Nothing,
}

/// A fact for the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A deadline may have passed.
    Tick,
    /// The program starts a type here. A second time changes nothing.
    Start {
        /// Which.
        entity_type: EntityType,
        /// As [`Settings::of`] gives them.
        settings: Box<Settings>,
        /// Its extractor's name.
        extractor: Arc<str>,
        /// The name of an allocation strategy of the program's own, in place of the one that is
        /// set.
        strategy: Option<Arc<str>>,
        /// Whether it may host.
        hosts: Hosts,
    },
    /// How membership stands now.
    State(Arc<ClusterState>),
    /// A configuration is installed on this node.
    Installed(Arc<Epoch>),
    /// The hosting lease is held.
    LeaseHeld,
    /// The hosting lease lapsed for long: no coordinator runs here. What hosts entities hears it
    /// from the node, not from here: without a lease it begins nothing, and after such a lapse it
    /// stops its entities. Regions keep their shards.
    LeaseLost,
    /// This node is out of the cluster, or its lease is released: nothing runs here ever again.
    /// Regions that have handed over everything go on sending back what comes to them.
    Out,
    /// A peer's machine says.
    Message {
        /// Which incarnation, as the transport knows it.
        from: ReplicaId,
        /// Of which type.
        entity_type: EntityType,
        /// What it says.
        word: Word,
    },
    /// What became of an [`Output::Ask`].
    Answered {
        /// As asked.
        id: u64,
        /// What the Replicator said.
        reply: Result<Reply, RequestError>,
    },
    /// What was asked to be told of by [`AskPins::Watch`].
    Noticed {
        /// As asked.
        id: u64,
        /// What the key holds now.
        notice: Notice,
    },
    /// What became of an [`Output::Consult`].
    Advised {
        /// Of which type.
        entity_type: EntityType,
        /// As asked.
        number: u64,
        /// What the strategy said, or why it said nothing.
        advice: Result<Advice, Arc<str>>,
    },
    /// What runs the entities of a type tells its region.
    Fact {
        /// Which type.
        entity_type: EntityType,
        /// The fact.
        fact: RegionInput,
    },
    /// Somebody wants to know something. Answered by [`Output::Surveyed`].
    Survey {
        /// Names the question.
        id: u64,
        /// Of which type.
        entity_type: EntityType,
        /// What.
        question: Question,
        /// How long to wait for regions.
        within: Duration,
    },
    /// This node is about to stop: no shard is to come here any more.
    Drain,
    /// Shards may come here again, unless this node stops.
    StopDraining,
    /// The coordinator of this type, if it acts here, looks at the balance now.
    Rebalance(EntityType),
    /// This node stops: hand over everything. Answered by [`Output::Left`].
    Leave,
}

/// An order of the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send on the control lane, in order.
    Send {
        /// The receiver, never this node.
        to: ReplicaId,
        /// Of which type.
        entity_type: EntityType,
        /// The message.
        word: Word,
    },
    /// Ask the Replicator; see [`HomesKey`](crate::sharding::store::HomesKey).
    Ask {
        /// Names the question.
        id: u64,
        /// Whose homes.
        entity_type: EntityType,
        /// How they are written.
        level: MajorityPlus,
        /// What.
        ask: Ask,
    },
    /// Ask the Replicator about pins; see [`PinsKey`](crate::sharding::allocation::pins::PinsKey).
    /// Answered by [`Input::Answered`] but for [`AskPins::Watch`], after which
    /// [`Input::Noticed`] may come.
    AskPins {
        /// Names the question.
        id: u64,
        /// Whose pins.
        entity_type: EntityType,
        /// What.
        ask: AskPins,
    },
    /// Ask the program's own allocation strategy, and answer by [`Input::Advised`], or never: the
    /// question is given up in time. An earlier one of its kind is waited for no longer.
    Consult {
        /// Of which type.
        entity_type: EntityType,
        /// Names the question.
        number: u64,
        /// What.
        asked: Asked,
    },
    /// The program's own allocation strategy gives no answer that helps. Said again once a minute.
    StrategyFailed {
        /// Of which type.
        entity_type: EntityType,
        /// What happened.
        why: Arc<str>,
    },
    /// Shards are pinned to addresses that have no region; they wait for it elsewhere.
    PinsAbsent {
        /// Of which type.
        entity_type: EntityType,
        /// The addresses, with how many shards are pinned to each.
        addresses: BTreeMap<Address, usize>, // ≤ number-of-shards
    },
    /// For what runs the entities of a type, see
    /// [`Hosting::perform`](crate::sharding::hosting::Hosting::perform).
    Order {
        /// Which type.
        entity_type: EntityType,
        /// The order.
        order: RegionOutput,
    },
    /// Count the entities of these shards, which live here, and say so to who asked by a
    /// [`SurveyMessage::Told`] each; it may be this node.
    Count {
        /// Who asked.
        to: ReplicaId,
        /// Of which type.
        entity_type: EntityType,
        /// Names the question.
        number: u64,
        /// Which shards, by messages of the answer.
        messages: Vec<Counting>,
    },
    /// Find out whether an entity lives here, and say so to who asked by
    /// [`SurveyMessage::Lives`]; it may be this node.
    Exists {
        /// Who asked.
        to: ReplicaId,
        /// Of which type.
        entity_type: EntityType,
        /// Names the question.
        number: u64,
        /// Which.
        entity: EntityId,
    },
    /// What became of an [`Input::Survey`].
    Surveyed {
        /// As asked.
        id: u64,
        /// What nodes have said.
        found: Found,
    },
    /// Shards of this type that the program wanted to stop have, or are asked for no longer.
    Stopped(EntityType),
    /// A step of a decision, for an event.
    Step {
        /// Of which type.
        entity_type: EntityType,
        /// Which.
        step: Box<Step>,
    },
    /// Decisions take long, for a warning.
    Slow {
        /// Of which type.
        entity_type: EntityType,
        /// Which.
        slow: Slow,
    },
    /// No coordinator has known the region of this type for long, and messages wait for homes.
    Unregistered {
        /// Of which type.
        entity_type: EntityType,
        /// For how long, and who should.
        complaint: Unregistered,
    },
    /// The coordinator knows the region of this type: it is ready to serve.
    Registered(EntityType),
    /// These are out of the installed configuration: for what runs entities, of all types.
    Removed(Vec<RegionId>),
    /// For membership: what this node hosts, and whether it drains.
    Host {
        /// Names of entity types.
        entity_types: BTreeSet<String>,
        /// No new shard is to come here.
        draining: bool,
    },
    /// After [`Input::Leave`]: nothing is left here.
    Left,
    /// The coordinator gives this node no shards of a type, since their nodes say otherwise of it;
    /// or this node coordinates it not, since the cluster's data say otherwise. Said again once a
    /// minute.
    Differs {
        /// Which type.
        entity_type: EntityType,
        /// What this node says.
        here: Agreed,
        /// The coordinator's node; `None`: the cluster's data.
        coordinator: Option<ReplicaId>,
        /// What that says.
        there: Agreed,
    },
    /// The coordinator of a type runs here and decides.
    Acting {
        /// Which type.
        entity_type: EntityType,
        /// Its term.
        term: Term,
    },
    /// The coordinator of a type was refused; another one takes its place if it is still to run
    /// here.
    SteppedDown {
        /// Which type.
        entity_type: EntityType,
        /// What happened.
        why: Arc<str>,
    },
}
