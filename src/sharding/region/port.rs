//! The region's surroundings: what it is told and what it orders.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::id::ReplicaId;

use super::registration::Unregistered;
use super::shard::Run;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::remembered::{Slow, Step};
use crate::sharding::wire::{ShardRoute, ShardingMessage, ToRegion};

/// A fact for the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionInput {
    /// A deadline may have passed.
    Tick,
    /// A coordinator or another region says.
    Message {
        /// Which incarnation, as the transport knows it.
        from: ReplicaId,
        /// What it says.
        message: ToRegion,
    },
    /// A configuration is installed on this node.
    Installed(Installed),
    /// Where the coordinator runs, as far as the singleton's proxy knows.
    CoordinatorAt(Option<ReplicaId>),
    /// A message came for a shard without a route, or its home is out.
    Wanted(ShardId),
    /// The last entity of a draining shard has ended; what was accepted and not begun, in order.
    Drained {
        /// Which.
        shard: ShardId,
        /// Encoded messages and the roster; `None`: there are none.
        payload: Option<Bytes>,
    },
    /// The program wants these shards to stop, wherever they live; asked for until it is done or
    /// `within` is over.
    Stop {
        /// Which.
        shards: Vec<ShardId>, // ≤ shards
        /// For how long it is asked for.
        within: Duration,
    },
    /// All shards that live here and in which a handler has run for `slow-handler-after`. The region
    /// tells the coordinator, up to
    /// [`SLOW_SHARDS_MAX`](crate::sharding::wire::SLOW_SHARDS_MAX), so that planned moves leave them
    /// out.
    SlowHandlers(BTreeSet<ShardId>),
    /// This node is to stop: hand over everything.
    Leave,
    /// Whether other nodes host the type and stay: who leaves can hand over what is kept here of
    /// shards that live nowhere.
    Heirs {
        /// At least one.
        any: bool,
    },
    /// This node is out of the configuration, or its lease is over for good.
    Over,
    /// The same, after everything was handed over: what is kept without a next home is nobody's.
    /// The region goes on telling where its shards went.
    Forsaken,
}

/// An order of the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOutput {
    /// Send to a node; it may be this one.
    Send {
        /// The receiver.
        to: ReplicaId,
        /// The message.
        message: ShardingMessage,
    },
    /// Host the shard: what was carried here goes ahead of everything.
    Start {
        /// Which.
        shard: ShardId,
        /// By which decision.
        generation: Generation,
        /// What the last home had accepted and not begun.
        payload: Option<Bytes>,
    },
    /// Go on with what runs, under this generation.
    Adopt {
        /// Which.
        shard: ShardId,
        /// By which decision.
        generation: Generation,
    },
    /// Begin no further message, let running handlers finish, stop the entities, and say
    /// [`RegionInput::Drained`].
    Drain {
        /// Which.
        shard: ShardId,
        /// The next home, if there is one.
        to: Option<RegionId>,
    },
    /// `handoff-timeout` is over: abort the entities that still run.
    Abort(ShardId),
    /// Judge again what is held for the shard (spec/safety.md §5).
    Standing(Standing),
    /// An acknowledged decision for the gate to learn; it stamps messages.
    Route(ShardRoute),
    /// Count these messages as lost.
    Discard {
        /// Whether another region may have taken them.
        reach: Reach,
        /// Of which shard.
        shard: ShardId,
        /// Who carried them.
        from: RegionId,
        /// As it was sealed.
        payload: Bytes,
    },
    /// The generation of the cluster that fencing tokens have from now on. It only rises, and comes
    /// before the starts that follow from the same input.
    ClusterGeneration(u64),
    /// Whether a coordinator knows this region from now on: without one nothing is said again that
    /// was lost.
    Coordinated(bool),
    /// Stop everything at once and for good.
    StopAll,
    /// Nobody hosts one of the shards any more that [`RegionInput::Stop`] named, or it is asked for
    /// no longer: see [`Region::stopping`](super::Region::stopping).
    Stopped,
    /// For an event.
    Step(Box<Step>),
    /// For a warning.
    Slow(Slow),
    /// The coordinator knows this region, and its gate knows all homes.
    Registered,
    /// No coordinator has known it for long, and messages wait for homes; for a warning.
    Unregistered(Unregistered),
    /// Everything is handed over after [`RegionInput::Leave`].
    Left,
}

/// What a host's gate must know of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Which.
    pub shard: ShardId,
    /// The highest decision heard of.
    pub max_gen: Generation,
    /// Its home: bounces name it.
    pub home: Option<RegionId>,
    /// A start or an adoption at `max_gen` waits.
    pub pending: bool,
    /// Whether it lives here.
    pub run: Run,
}

/// How far a payload went that is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It was sent to no region: none of its messages has begun.
    Unsent,
    /// It may have been sent to another region, which may have handled its messages.
    Sent,
}
