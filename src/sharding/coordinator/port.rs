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
    /// be taken twice. Ignored unless it is off.
    Start {
        /// The highest term number that this process has used or heard of for the type.
        above: u64,
    },
    /// The singleton is handed over, or its node stops: the coordinator is off, unless it has
    /// stepped down. Nothing is sent.
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
    /// A configuration is installed on this node. Ignored unless it is newer. In every phase; a
    /// forced one makes a coordinator that runs step down.
    Installed(Installed),
    /// The strategy's choice. Shards that it leaves out are asked for again. Ignored unless it
    /// answers the last question, which is forgotten after its timeout.
    Allocated {
        /// The question's number, see [`CoordinatorOutput::Allocate`].
        question: u64,
        /// A home for each chosen shard.
        homes: Vec<Chosen>, // ≤ shards
    },
    /// The strategy, or an operator, wants to move a shard. Refused, with no other effect than a
    /// count, if the coordinator is not active, the cluster prepares for shutdown, the target is
    /// unfit, the shard is there already or does not exist, or another decision for the shard waits
    /// or is being written. A decision that is acknowledged and not settled is no obstacle.
    Move {
        /// The shard to move.
        shard: ShardId,
        /// Its next home; `None`: no home until a message needs it.
        to: Option<RegionId>,
        /// The reason, as remembered with the decision.
        why: Arc<str>,
    },
    /// The whole cluster prepares for shutdown: no new moves, and regions may leave at once. Shards
    /// without a home, or with a lost one, still get one. Cannot be taken back, also not by `Stop`
    /// and `Start`.
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
        /// Shards that need a home, with the region that asked first; `None` if no region asked:
        /// the home is lost or leaves, or all shards are allocated in advance.
        shards: Vec<(ShardId, Option<RegionId>)>, // ≤ shards
    },
    /// The stored settings of the type, here, differ from this node's. Follows `SteppedDown`. A new
    /// coordinator on this node would step down too.
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
