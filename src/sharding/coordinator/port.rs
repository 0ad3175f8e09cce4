//! The coordinator's surroundings: what it is told and what it orders.

use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;

use crate::sharding::agreed::Agreed;
use crate::sharding::ids::{RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::remembered::{Slow, Step};
use crate::sharding::store::{Answer, Ask};
use crate::sharding::wire::{ShardingMessage, ToCoordinator};

/// A fact for the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorInput {
    /// A deadline may have passed.
    Tick,
    /// The singleton starts here. It takes a term above this one, which is the highest that this
    /// process has used or heard of for the type: a term is never taken twice.
    Start {
        /// The highest number known.
        above: u64,
    },
    /// The singleton is handed over, or its node stops.
    Stop,
    /// A region says.
    Message {
        /// Which incarnation, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: ToCoordinator,
    },
    /// What became of a question to the Replicator.
    Answered {
        /// As asked.
        id: u64,
        /// The answer.
        answer: Answer,
    },
    /// A configuration is installed on this node.
    Installed(Installed),
    /// The strategy's choice; shards that it leaves out are asked for again.
    Allocated {
        /// As asked.
        question: u64,
        /// Where each is to live.
        homes: Vec<Chosen>, // ≤ shards
    },
    /// The strategy, or an operator, wants a shard elsewhere. `None`: nowhere, until it is asked
    /// for.
    Move {
        /// Which.
        shard: ShardId,
        /// Where to.
        to: Option<RegionId>,
        /// Why.
        why: Arc<str>,
    },
    /// The whole cluster prepares to stop: no new moves.
    Prepare,
}

/// A home that the strategy has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Of which shard.
    pub shard: ShardId,
    /// Where it is to live.
    pub to: RegionId,
    /// Why, in the strategy's words.
    pub why: Arc<str>,
}

/// An order of the coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoordinatorOutput {
    /// Send to a node; it may be this one.
    Send {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: ShardingMessage,
    },
    /// Ask the Replicator, see [`HomesKey`](crate::sharding::store::HomesKey).
    Ask {
        /// Names the question.
        id: u64,
        /// What.
        ask: Ask,
    },
    /// Ask the strategy for homes. It sees [`Coordinator::allocation`](super::Coordinator), in
    /// which decisions under way count.
    Allocate {
        /// Names the question.
        question: u64,
        /// Which need one, and who asks: nobody for those whose home is lost or leaves.
        shards: Vec<(ShardId, Option<RegionId>)>, // ≤ shards
    },
    /// The cluster's data say this of the type, and this node something else: it has stepped down,
    /// and would again.
    Differs(Agreed),
    /// For an event.
    Step(Box<Step>),
    /// For a warning.
    Slow(Slow),
    /// The term is taken and everything read: this coordinator decides now.
    Acting(Term),
    /// It says nothing any more. Stop the singleton's instance here; should it start again, then
    /// above this term.
    SteppedDown {
        /// The highest term heard of.
        highest: Term,
        /// What happened.
        why: Arc<str>,
    },
}
