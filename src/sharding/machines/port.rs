//! Inputs and outputs of a node's sharding machines.

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

/// Message between the machines of one type on two nodes. The lane's header carries the type and
/// the variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// Between the coordinator and the regions.
    Sharding(ShardingMessage),
    /// About the place of the coordinator.
    Singleton(SingletonMessage),
    /// A survey or its answer.
    Survey(SurveyMessage),
}

/// Whether a type hosts shards on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// The region hosts shards.
    Shards,
    /// A proxy: the region only routes.
    Nothing,
}

/// Input of the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A deadline may have passed.
    Tick,
    /// The program starts a type here. Starting it again changes nothing.
    Start {
        /// The type to start.
        entity_type: EntityType,
        /// Its settings, from [`Settings::of`].
        settings: Box<Settings>,
        /// Name of its extractor.
        extractor: Arc<str>,
        /// Name of the program's own allocation strategy, which replaces the configured one.
        strategy: Option<Arc<str>>,
        /// Whether it hosts shards here.
        hosts: Hosts,
    },
    /// The present state of membership.
    State(Arc<ClusterState>),
    /// A configuration is installed on this node.
    Installed(Arc<Epoch>),
    /// The hosting lease is held.
    LeaseHeld,
    /// The hosting lease has lapsed for long: no coordinator may run here. Regions keep their
    /// shards; the node itself tells the executor of the entities, which begins no message without
    /// a lease and stops its entities after such a lapse.
    LeaseLost,
    /// This node is out of the cluster, or its lease is released: nothing runs here ever again.
    /// Regions that have handed over everything continue to return late messages.
    Out,
    /// A message of the same type's machines on another node.
    Message {
        /// Sending incarnation, as authenticated by the transport.
        from: ReplicaId,
        /// The type that it concerns.
        entity_type: EntityType,
        /// Content of the message.
        word: Word,
    },
    /// The Replicator's answer to an [`Output::Ask`] or [`Output::AskPins`].
    Answered {
        /// Number of the request.
        id: u64,
        /// The Replicator's answer, or its error.
        reply: Result<Reply, RequestError>,
    },
    /// A key watched by [`AskPins::Watch`] has changed.
    Noticed {
        /// Number of the watch request.
        id: u64,
        /// The new value of the key.
        notice: Notice,
    },
    /// The result of an [`Output::Consult`].
    Advised {
        /// The type of the strategy.
        entity_type: EntityType,
        /// Number of the question.
        number: u64,
        /// The strategy's answer, or why it failed.
        advice: Result<Advice, Arc<str>>,
    },
    /// A fact from the executor of a type's entities, for its region.
    Fact {
        /// The type of the region.
        entity_type: EntityType,
        /// The input for the region.
        fact: RegionInput,
    },
    /// The program asks the cluster about a type. Answered by [`Output::Surveyed`].
    Survey {
        /// Number of the survey, chosen by the caller.
        id: u64,
        /// The type in question.
        entity_type: EntityType,
        /// Question about the type.
        question: Question,
        /// Maximum time to wait for answers.
        within: Duration,
    },
    /// This node will stop: no new shard may come here.
    Drain,
    /// New shards may come here again, unless this node is leaving.
    StopDraining,
    /// The coordinator of this type, if it is active here, checks the balance now.
    Rebalance(EntityType),
    /// This node stops: hand over everything. Answered by [`Output::Left`].
    Leave,
}

/// Output of the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send a message on the control lane, in order.
    Send {
        /// The receiver, never this node.
        to: ReplicaId,
        /// The type that it concerns.
        entity_type: EntityType,
        /// The message to send.
        word: Word,
    },
    /// Ask the Replicator; see [`HomesKey`](crate::sharding::store::HomesKey).
    Ask {
        /// Number of the request, repeated by [`Input::Answered`].
        id: u64,
        /// The type whose homes are read or written.
        entity_type: EntityType,
        /// Consistency level of the write.
        level: MajorityPlus,
        /// Request to carry out.
        ask: Ask,
    },
    /// Ask the Replicator about pins; see [`PinsKey`](crate::sharding::allocation::pins::PinsKey).
    /// [`Input::Answered`] follows, or for [`AskPins::Watch`] any number of [`Input::Noticed`].
    AskPins {
        /// Number of the request, repeated by its answer.
        id: u64,
        /// The type whose pins are concerned.
        entity_type: EntityType,
        /// Request to carry out.
        ask: AskPins,
    },
    /// Ask the program's own allocation strategy. [`Input::Advised`] brings the answer; without one
    /// the question times out. A new question replaces an earlier one of its kind.
    Consult {
        /// The type of the strategy.
        entity_type: EntityType,
        /// Number of the question, repeated by its answer.
        number: u64,
        /// Question for the strategy.
        asked: Asked,
    },
    /// The program's own allocation strategy gives no usable answer. Reported at most once a
    /// minute.
    StrategyFailed {
        /// The type of the strategy.
        entity_type: EntityType,
        /// Reason, for the log.
        why: Arc<str>,
    },
    /// Shards are pinned to addresses without a region; meanwhile they are hosted elsewhere.
    PinsAbsent {
        /// The type of the shards.
        entity_type: EntityType,
        /// The addresses, each with its number of pinned shards.
        addresses: BTreeMap<Address, usize>, // ≤ number-of-shards
    },
    /// An output of a region for the executor of its entities; see
    /// [`Hosting::perform`](crate::sharding::hosting::Hosting::perform).
    Order {
        /// The type of the region.
        entity_type: EntityType,
        /// Output of the region.
        order: RegionOutput,
    },
    /// Count the entities of these shards, which are hosted here. Send one [`SurveyMessage::Told`]
    /// per element of `messages` to the asking node, possibly this one.
    Count {
        /// Node that began the survey.
        to: ReplicaId,
        /// The type of the shards.
        entity_type: EntityType,
        /// Number of the survey.
        number: u64,
        /// The shards, divided into messages of the answer.
        messages: Vec<Counting>,
    },
    /// Check whether an entity runs here. Send the result as [`SurveyMessage::Lives`] to the asking
    /// node, possibly this one.
    Exists {
        /// Node that began the survey.
        to: ReplicaId,
        /// The type of the entity.
        entity_type: EntityType,
        /// Number of the survey.
        number: u64,
        /// The id of the entity.
        entity: EntityId,
    },
    /// The result of an [`Input::Survey`].
    Surveyed {
        /// Number of the survey.
        id: u64,
        /// Answers collected until the end.
        found: Found,
    },
    /// Stop requests of the program for this type have ended: the shards stopped, or the time is
    /// over.
    Stopped(EntityType),
    /// A decision made progress; reported as an event.
    Step {
        /// The type of the shard.
        entity_type: EntityType,
        /// The decision and its progress.
        step: Box<Step>,
    },
    /// Decisions take unusually long; reported as a warning.
    Slow {
        /// The type of the shards.
        entity_type: EntityType,
        /// The slow shards and the awaited regions.
        slow: Slow,
    },
    /// No coordinator has known the region of this type for long, and messages wait for homes.
    Unregistered {
        /// The type of the region.
        entity_type: EntityType,
        /// The duration, and the expected coordinator.
        complaint: Unregistered,
    },
    /// The coordinator knows the region of this type: it is ready to serve.
    Registered(EntityType),
    /// These regions are out of the configuration in effect; the executor of entities must know,
    /// for all types.
    Removed(Vec<RegionId>),
    /// For membership: the types that this node hosts, and whether it drains.
    Host {
        /// Names of the hosted entity types.
        entity_types: BTreeSet<String>,
        /// Whether new shards must not come here.
        draining: bool,
    },
    /// The answer to [`Input::Leave`]: nothing is hosted here any longer.
    Left,
    /// This node's settings of a type differ. Either the coordinator refuses to register this node,
    /// or the stored settings forbid this node to coordinate the type. Reported at most once a
    /// minute.
    Differs {
        /// The type of the settings.
        entity_type: EntityType,
        /// The settings of this node.
        here: Agreed,
        /// The refusing coordinator; `None`: the stored settings differ.
        coordinator: Option<ReplicaId>,
        /// The settings of that coordinator, or the stored ones.
        there: Agreed,
    },
    /// The coordinator of a type is active here.
    Acting {
        /// The type that it coordinates.
        entity_type: EntityType,
        /// Term of the coordinator.
        term: Term,
    },
    /// The coordinator of a type was refused. Another one replaces it if the singleton still runs
    /// here.
    SteppedDown {
        /// The type that it coordinated.
        entity_type: EntityType,
        /// Reason, for the log.
        why: Arc<str>,
    },
}
