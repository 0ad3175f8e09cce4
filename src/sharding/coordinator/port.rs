//! Inputs and outputs of the coordinator machine.

use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use crate::sharding::agreed_settings::AgreedSettings;
use crate::sharding::decision_history::{DecisionStep, SlowDecisions};
use crate::sharding::ids::{RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::store::{StoreAnswer, StoreRequest};
use crate::sharding::wire::{ShardingMessage, ToCoordinator};

/// Input of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorInput {
    /// A deadline may have passed.
    Tick,
    /// The singleton starts here. The coordinator takes a term above `above`, because no term may
    /// be taken twice.
    Start {
        /// The highest term number that this process has used or heard of for the type.
        above: u64,
    },
    /// The singleton is handed over, or its node stops.
    Stop,
    /// A message of a region.
    Message {
        /// Sending incarnation, as authenticated by the transport.
        from: ReplicaId,
        /// Content of the message.
        message: ToCoordinator,
    },
    /// The result of a request to the Replicator.
    Answered {
        /// The request's number, see [`CoordinatorOutput::Ask`].
        id: u64,
        /// Result of the request.
        answer: StoreAnswer,
    },
    /// A configuration is installed on this node.
    Installed(Installed),
    /// The strategy's choice. Shards that it leaves out are asked for again. Ignored unless it
    /// answers the last question.
    Allocated {
        /// The question's number, see [`CoordinatorOutput::Allocate`].
        question: u64,
        /// A home for each chosen shard.
        homes: Vec<Chosen>, // ≤ shards
    },
    /// The strategy, or an operator, wants to move a shard. Refused, with no other effect than a
    /// count, if the target is unfit or another decision for the shard is pending.
    Move {
        /// The shard to move.
        shard: ShardId,
        /// Its next home; `None`: no home until a message needs it.
        to: Option<RegionId>,
        /// The reason, as remembered with the decision.
        why: Arc<str>,
    },
    /// The whole cluster prepares for shutdown: no new moves, and regions may leave at once. Cannot
    /// be taken back.
    Prepare,
}

/// A home that the strategy has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The shard that gets the home.
    pub shard: ShardId,
    /// The region that becomes its home.
    pub to: RegionId,
    /// Reason given by the strategy.
    pub why: Arc<str>,
}

/// Output of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorOutput {
    /// Send a message to a node.
    Send {
        /// Receiver, possibly this node.
        to: ReplicaId,
        /// The message to send.
        message: ShardingMessage,
    },
    /// Send a request to the Replicator, see [`HomesKey`](crate::sharding::store::HomesKey).
    Ask {
        /// Number of the request, repeated by its answer.
        id: u64,
        /// Request to carry out.
        ask: StoreRequest,
    },
    /// Ask the strategy for homes. It sees [`Coordinator::allocation`](super::Coordinator), which
    /// includes decisions under way.
    Allocate {
        /// Number of the question, repeated by its answer.
        question: u64,
        /// Shards that need a home, with the region that asked first; `None` for shards whose home
        /// is lost or leaves.
        shards: Vec<(ShardId, Option<RegionId>)>, // ≤ shards
    },
    /// The stored settings of the type differ from this node's. The coordinator has stepped down,
    /// and a new one on this node would step down too.
    Differs(AgreedSettings),
    /// A decision made progress; reported as an event.
    Step(Box<DecisionStep>),
    /// A decision takes unusually long; reported as a warning.
    Slow(SlowDecisions),
    /// The term is taken, everything is read and rewritten: this coordinator decides from now on.
    Acting(Term),
    /// The coordinator was refused and sends nothing any longer. The singleton's instance here must
    /// be stopped; a new one must start above this term.
    SteppedDown {
        /// The highest term that it has heard of.
        highest: Term,
        /// Reason, for the log and for operators.
        why: Arc<str>,
    },
}
