//! Inputs and outputs of a node's sharding machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::Epoch;
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, SubscriptionNotice};
use ostraca_ddata::types::Term;

use super::cluster_query::{ClusterQuery, ClusterQueryMessage, ClusterQueryResult, Counting};
use crate::cluster::events::ClusterState;
use crate::cluster::lease::Departure;
use crate::cluster::member::Address;
use crate::cluster::singleton::SingletonMessage;
use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::allocation::pins::PinsRequest;
use crate::sharding::allocation::{StrategyAnswer, StrategyRequest};
use crate::sharding::config::{MajorityPlus, ShardingConfig as Settings};
use crate::sharding::decision_history::{DecisionStep, SlowDecisions};
use crate::sharding::ids::{EntityId, EntityType, RegionId};
use crate::sharding::region::{RegionInput, RegionOutput, Unregistered};
use crate::sharding::store::StoreRequest;
use crate::sharding::wire::ShardingMessage;

/// Message between the machines of one type on two nodes. The lane's header carries the type and
/// the variant. *Survey* in these types means cluster query.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MachineMessage {
    /// Between the coordinator and the regions.
    Sharding(ShardingMessage),
    /// About the place of the coordinator.
    Singleton(SingletonMessage),
    /// A survey or its answer.
    ClusterQuery(ClusterQueryMessage),
}

/// Whether a type hosts shards on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hosts {
    /// The region hosts shards.
    Shards,
    /// A proxy: the region only routes. This node does not announce the type.
    Nothing,
}

/// Input of the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardingInput {
    /// A deadline may have passed.
    Tick,
    /// The program starts a type here. Starting it again changes nothing, whatever the settings,
    /// but announces the hosted types again. Refused and counted if too many types are started.
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
    /// The present state of membership. The same `Arc` again changes nothing.
    State(Arc<ClusterState>),
    /// A configuration is installed on this node. Ignored unless newer than the last one. It takes
    /// effect once the members that it removed certainly run nothing any longer.
    Installed(Arc<Epoch>),
    /// The hosting lease is held. Ignored once this node is out.
    LeaseHeld,
    /// The hosting lease has lapsed for long: no coordinator may run here. Regions keep their
    /// shards; the node itself tells the executor of the entities, which begins no message without
    /// a lease and stops its entities after such a lapse.
    LeaseLost,
    /// This node is out of the cluster, or its lease is released: nothing runs here ever again.
    /// Regions that have handed over everything continue to return late messages.
    Out,
    /// A message of the same type's machines on another node, or this node's answer to its own
    /// survey ([`ShardingOutput::Count`], [`ShardingOutput::Exists`]).
    Message {
        /// Sending incarnation, as authenticated by the transport.
        from: ReplicaId,
        /// The type that it concerns.
        entity_type: EntityType,
        /// Content of the message.
        word: MachineMessage,
    },
    /// The Replicator's answer to an [`ShardingOutput::Ask`] or [`ShardingOutput::AskPins`].
    /// Ignored if a later request of the same kind and type has replaced that one.
    Answered {
        /// Number of the request.
        id: u64,
        /// The Replicator's answer, or its error.
        reply: Result<ReplicatorReply, RequestError>,
    },
    /// A key watched by [`PinsRequest::Watch`] has changed.
    Noticed {
        /// Number of the watch request.
        id: u64,
        /// The new value of the key.
        notice: SubscriptionNotice,
    },
    /// The result of an [`ShardingOutput::Consult`]. Ignored if that question has timed out, or the
    /// coordinator that asked is no longer active.
    Advised {
        /// The type of the strategy.
        entity_type: EntityType,
        /// Number of the question.
        number: u64,
        /// The strategy's answer, or why it failed.
        advice: Result<StrategyAnswer, Arc<str>>,
    },
    /// A fact from the executor of a type's entities, for its region; dropped if the type is not
    /// started here.
    Fact {
        /// The type of the region.
        entity_type: EntityType,
        /// The input for the region.
        fact: RegionInput,
    },
    /// The program asks the cluster about a type. Answered by [`ShardingOutput::Answered`].
    Query {
        /// Number of the survey, chosen by the caller, different from those of all open ones.
        id: u64,
        /// The type in question.
        entity_type: EntityType,
        /// Question about the type.
        question: ClusterQuery,
        /// Maximum time to wait for answers.
        within: Duration,
    },
    /// No new shard may come here, until [`StopDraining`](Self::StopDraining).
    Drain,
    /// New shards may come here again, unless this node will stop or is leaving.
    StopDraining,
    /// This node will stop: no new shard may come here, for good.
    PrepareToLeave,
    /// The coordinator of this type, if it is active here, checks the balance at the next `Tick`,
    /// which is due at once.
    Rebalance(EntityType),
    /// This node stops: hand over everything, or stop in place while the whole cluster shuts down.
    /// Answered by [`ShardingOutput::Left`], once for ever. Does not drain; send `Drain` before.
    Leave,
}

/// Output of the machines.
#[derive(Clone, Debug, PartialEq)]
pub enum ShardingOutput {
    /// Send a message on the control lane, in order.
    Send {
        /// The receiver, never this node.
        to: ReplicaId,
        /// The type that it concerns.
        entity_type: EntityType,
        /// The message to send.
        word: MachineMessage,
    },
    /// Ask the Replicator; see [`HomesKey`](crate::sharding::store::HomesKey).
    Ask {
        /// Number of the request, repeated by [`ShardingInput::Answered`].
        id: u64,
        /// The type whose homes are read or written.
        entity_type: EntityType,
        /// Consistency level of the write.
        level: MajorityPlus,
        /// Request to carry out.
        ask: StoreRequest,
    },
    /// Ask the Replicator about pins; see [`PinsKey`](crate::sharding::allocation::pins::PinsKey).
    /// [`ShardingInput::Answered`] follows, or for [`PinsRequest::Watch`] any number of
    /// [`ShardingInput::Noticed`].
    AskPins {
        /// Number of the request, repeated by its answer.
        id: u64,
        /// The type whose pins are concerned.
        entity_type: EntityType,
        /// Request to carry out.
        ask: PinsRequest,
    },
    /// Ask the program's own allocation strategy. [`ShardingInput::Advised`] brings the answer;
    /// without one the question times out. A new question (about a home, or about moves) replaces
    /// an earlier one of its kind, which has timed out or whose coordinator is no longer active.
    Consult {
        /// The type of the strategy.
        entity_type: EntityType,
        /// Number of the question, repeated by its answer.
        number: u64,
        /// Question for the strategy.
        asked: StrategyRequest,
    },
    /// The program's own allocation strategy gives no usable answer. Reported at most once a
    /// minute for each type, whatever the failure.
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
    /// [`RegionHandle::perform`](crate::sharding::region_handle::RegionHandle::perform).
    Order {
        /// The type of the region.
        entity_type: EntityType,
        /// Output of the region.
        order: RegionOutput,
    },
    /// Count the entities of these shards, which are hosted or drain here. Send one
    /// [`ClusterQueryMessage::Told`] per element of `messages` to the asking node, possibly this
    /// one; to this node as a [`ShardingInput::Message`]. Repeated while answers are missing.
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
    /// Check whether an entity runs here. Send the result as [`ClusterQueryMessage::Lives`] to the
    /// asking node, possibly this one; to this node as a [`ShardingInput::Message`]. Repeated while
    /// the answer is missing.
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
    /// The result of an [`ShardingInput::Query`]. Output once for each.
    Answered {
        /// Number of the survey.
        id: u64,
        /// Answers collected until the end.
        found: ClusterQueryResult,
    },
    /// Stop requests of the program for this type have ended: the shards stopped, or the time is
    /// over.
    Stopped(EntityType),
    /// A decision made progress; reported as an event.
    Step {
        /// The type of the shard.
        entity_type: EntityType,
        /// The decision and its progress.
        step: Box<DecisionStep>,
    },
    /// Decisions take unusually long; reported as a warning.
    Slow {
        /// The type of the shards.
        entity_type: EntityType,
        /// The slow shards and the awaited regions.
        slow: SlowDecisions,
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
    /// These regions left the configuration in effect, possibly this node's own; the executor of
    /// entities must know, for all types. Never empty. Output after the orders that follow from it.
    Removed(Vec<(RegionId, Departure)>),
    /// For membership: the types that this node hosts, and whether it drains. May repeat the last
    /// one. A leaving node does not count as draining by itself.
    Host {
        /// Names of the hosted entity types.
        entity_types: BTreeSet<String>,
        /// Whether new shards must not come here.
        draining: bool,
    },
    /// The answer to [`ShardingInput::Leave`]: nothing is hosted here any longer, or the regions
    /// were told to stop. Output once for ever.
    Left,
    /// This node's settings of a type differ. Either the coordinator refuses to register this node,
    /// or the stored settings forbid this node to coordinate the type. Reported at most once a
    /// minute for each type, whatever the difference.
    Differs {
        /// The type of the settings.
        entity_type: EntityType,
        /// The settings of this node.
        here: AgreedSettings,
        /// The refusing coordinator; `None`: the stored settings differ.
        coordinator: Option<ReplicaId>,
        /// The settings of that coordinator, or the stored ones.
        there: AgreedSettings,
    },
    /// The coordinator of a type is active here.
    Acting {
        /// The type that it coordinates.
        entity_type: EntityType,
        /// Term of the coordinator.
        term: Term,
    },
    /// The coordinator of a type has stepped down. If the singleton still runs here, another one
    /// replaces it after a pause.
    SteppedDown {
        /// The type that it coordinated.
        entity_type: EntityType,
        /// Reason, for the log.
        why: Arc<str>,
    },
}
