//! Inputs and outputs of the region's machine: facts that the node reports to it, and orders that
//! the node carries out. The gate is the lock and state per shard that each message passes at its
//! sender and at its host (docs/protocol/message-order.md); it is outside the machine.
//!
//! A region ends in one of two ways. After [`RegionInput::Leave`] it hands over all shards and
//! reports [`RegionOutput::Left`]. [`RegionInput::Over`] makes it order
//! [`RegionOutput::StopAll`] at once, without a handover; from then on it ignores all inputs except
//! the payload of a drain that ended before, which it discards.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use ostraca_ddata::id::ReplicaId;

use super::registration::Unregistered;
use super::shard::HostingPhase;
use crate::sharding::decision_history::{DecisionStep, SlowDecisions};
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::installed::Installed;
use crate::sharding::wire::{ShardRoute, ShardingMessage, ToRegion};

/// A fact that the node reports to the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionInput {
    /// A batch of inputs has ended, or a deadline may have passed. Only now the region does the
    /// work that is due and sends its messages; after any other input its next deadline is at once.
    Tick,
    /// A message of a coordinator or of another region.
    Message {
        /// The sending incarnation, as the transport has certified it.
        from: ReplicaId,
        /// The message without its framing.
        message: ToRegion,
    },
    /// A configuration is installed on this node. Ignored unless it is newer than the last one.
    Installed(Installed),
    /// The node of the coordinator, as far as the singleton's proxy knows. If it differs from the
    /// coordinator that the region knows, the region is no longer registered and registers anew;
    /// with `None` it cannot. Otherwise it has no effect.
    CoordinatorAt(Option<ReplicaId>),
    /// The gate needs a home for the shard: a message has no route, or the known home was removed.
    /// The region asks the coordinator, once it is registered, until it learns of any home, even by
    /// an old decision. The gate ignores such a route, and then reports the shard again. A
    /// repetition has no effect.
    Wanted(ShardId),
    /// The last entity of a draining shard has stopped. If the shard does not drain, the report is
    /// ignored with its payload, which is not counted as lost; after [`Over`](Self::Over) it is.
    Drained {
        /// The shard that has drained.
        shard: ShardId,
        /// Exported states of entities, and encoded messages that were accepted and not begun, in
        /// order; `None` if there are none.
        payload: Option<Bytes>,
    },
    /// The program wants these shards to stop, wherever they live. The region asks the coordinator
    /// until they have stopped or `within` has expired. A second request for a shard replaces the
    /// first one and keeps the later of both ends. Numbers of no shard are left out.
    Stop {
        /// The shards that must stop.
        shards: Vec<ShardId>, // ≤ shards
        /// Time after which the region no longer asks. With 0 it never asks, and outputs
        /// [`RegionOutput::Stopped`] at once.
        within: Duration,
    },
    /// All shards that live here and in which a handler has run for `slow-handler-after`. The
    /// region tells the coordinator, up to
    /// [`SLOW_SHARDS_MAX`](crate::sharding::wire::SLOW_SHARDS_MAX) of them, and at most as many as
    /// fill half of a message of the greatest length, so that planned moves leave them out.
    SlowHandlers(BTreeSet<ShardId>),
    /// This node will stop: the region must hand over all shards. Repetitions have no effect.
    Leave,
    /// Whether a leaving region could hand over payloads that it keeps because their shards have no
    /// next home yet. The region assumes that it could not before the first such input. A leaving
    /// region also sends `Leaving` again.
    Heirs {
        /// At least one other node hosts the type and stays.
        any: bool,
    },
    /// This node was removed from the configuration, or has released its lease: nothing runs here
    /// ever again. A repetition has no effect.
    Over,
    /// Like [`Over`](Self::Over), for a region that has [left](RegionOutput::Left), which is not
    /// checked here. It hosts nothing, but may still keep payloads that no next home has fetched;
    /// these are discarded. The region continues to handle inputs, and to tell the senders of late
    /// messages where its shards went.
    Forsaken,
}

/// An order of the region to its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOutput {
    /// Send a message to a node, which may be this one.
    Send {
        /// The node that receives the message.
        to: ReplicaId,
        /// The message in the type's framing.
        message: ShardingMessage,
    },
    /// Host the shard, which is idle here. The payload's states and messages precede all other
    /// messages.
    Start {
        /// The shard that starts.
        shard: ShardId,
        /// The generation of the decision that names this region.
        generation: Generation,
        /// The payload of the last home's [`RegionInput::Drained`], which may be this region:
        /// states and messages not begun. `None` if there are none.
        payload: Option<Bytes>,
    },
    /// Keep the running entities of the shard, under this generation: a newer decision names the
    /// region that hosts the shard already.
    Adopt {
        /// The shard that continues.
        shard: ShardId,
        /// The generation of the decision that names this region.
        generation: Generation,
    },
    /// Begin no further message, let running handlers finish, stop the entities, and report
    /// [`RegionInput::Drained`].
    Drain {
        /// The shard that must be drained.
        shard: ShardId,
        /// The next home, if there is one.
        to: Option<RegionId>,
    },
    /// `handoff-timeout` has expired: abort the entities that still run. The report
    /// [`RegionInput::Drained`] is awaited all the same.
    Abort(ShardId),
    /// The gate's view of the shard has changed. The gate judges held messages again
    /// (docs/protocol/message-order.md#held-messages-are-judged-again).
    Standing(ShardHostState),
    /// An acknowledged decision. The gate routes messages by it and stamps them with its
    /// generation.
    Route(ShardRoute),
    /// Count the messages of this payload as lost; its states are lost as well.
    Discard {
        /// Whether another region may have taken them.
        reach: Reach,
        /// The shard that the messages were for.
        shard: ShardId,
        /// The region whose tenure left the payload: this one, or a region that released the shard
        /// to this one.
        from: RegionId,
        /// The payload as the drain sealed it.
        payload: Bytes,
    },
    /// Cluster generation of all fencing tokens from now on. It only rises, and precedes the starts
    /// that follow from the same input.
    ClusterGeneration(u64),
    /// Whether this region is registered with a coordinator from now on, sent when that changes;
    /// not sent after [`StopAll`](Self::StopAll), which leaves no message held.
    /// Only a coordinator that knows the region repeats decisions whose messages were lost, so the
    /// time that held messages may wait for a decision counts from then.
    Coordinated(bool),
    /// Stop all shards at once and for good.
    StopAll,
    /// Shards that [`RegionInput::Stop`] named have stopped, or their requests have expired. It
    /// does not tell which: [`Region::stopping`](super::Region::stopping) lists the shards with
    /// requests that remain.
    Stopped,
    /// A step of a decision, which the node reports as an event.
    Step(Box<DecisionStep>),
    /// A start or drain that takes too long, which the node logs as a warning.
    Slow(SlowDecisions),
    /// A coordinator has registered this region, which was not registered before, and the gate
    /// knows all homes that the acknowledgement lists. Acknowledged audits are not reported. Output
    /// again after a change of the coordinator, a `Here` or a refusal has ended the registration.
    Registered,
    /// No coordinator has registered this region for 10 s while messages wait for homes; repeated
    /// once a minute. The node logs a warning. Not output by a region that has left.
    Unregistered(Unregistered),
    /// After [`RegionInput::Leave`] the region runs nothing, keeps no payload that another region
    /// could take, and has the coordinator's permission, or no longer waits for it. Sent once.
    Left,
}

/// The state of a shard that the host's gate must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardHostState {
    /// The shard that this describes.
    pub shard: ShardId,
    /// The highest generation received in a coordinator's `Host` or `Release`.
    pub max_gen: Generation,
    /// The home by that decision. A bounced message carries it to the sender.
    pub home: Option<RegionId>,
    /// Whether a start or an adoption at `max_gen` waits: for predecessors, regions that may still
    /// host the shard by earlier decisions, or for the end of the shard's own drain here.
    pub pending: bool,
    /// Whether the shard is hosted here, drains, or is idle.
    pub run: HostingPhase,
}

/// Whether a discarded payload may have left this region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It was sent to no region: none of its messages has begun.
    Unsent,
    /// It may have been sent to another region, which may have handled its messages.
    Sent,
}
