//! The interface between an entity type's runtime and its node. The node calls [`RegionHandle`],
//! and the runtime calls [`RegionEnvironment`]. A simulated node implements [`RegionEnvironment`]
//! as a real one does.

use std::time::Duration;

use futures::future::BoxFuture;
use ostraca_ddata::clock::Instant;

use super::activation::Activation;
use super::ids::{EntityId, RegionId, ShardId};
use super::polls::LongPoll;
use super::region::{RegionInput, RegionOutput};
use crate::cluster::lease::Departure;

/// The runtime of one entity type on one node: its gates, shards and entities.
///
/// Called from many threads at once. Never blocks on a handler.
pub trait RegionHandle: Send + Sync + 'static {
    /// Carries out an order of the region's machine, without waiting for handlers that it ends.
    ///
    /// Orders that only the node can carry out (`Send`, `Registered`, `Unregistered`, `Left`,
    /// `Stopped`, `Step`, `Slow`) are not passed here, and have no effect. `Adopt` and `Drain` have
    /// none either, because the `Standing` that follows contains them.
    fn perform(&self, order: RegionOutput);

    /// Called when the hosting lease has lapsed for long: instances are dropped, handlers at their
    /// next await; the messages of these handlers are lost. No stop message is handled and no state
    /// is exported. Messages that have not begun wait until there is a lease again. Shards that
    /// drain are not affected.
    fn lapsed(&self);

    /// Takes in a frame from the user lane of a node. Not an error: a message that is lost here,
    /// which this runtime counts, and an answer that no ask awaits, which counts as late.
    ///
    /// # Errors
    /// [`BadFrame`] if it does not decode, or names a shard that the type does not have: the caller
    /// counts it and goes on.
    fn arrived(&self, from: RegionId, frame: &[u8]) -> Result<(), BadFrame>;

    /// Called when the lane to a region has room again, or is new: waiting messages are sent, and
    /// all callers that wait for room, on any lane or mailbox, try again. May be called without
    /// need.
    fn room(&self, to: RegionId);

    /// Called when a region left the installed configuration and its lane has ended.
    /// [`Departure::Stopped`]: it had left in order, so its shards had been handed over and no ask
    /// fails. [`Departure::Unheard`]: asks whose message it has fail.
    fn removed(&self, region: RegionId, how: Departure);

    /// Called when the lane to a region has been cut for long while its node is still a member, or
    /// when the transport gave up its messages. Has an effect only on shards that have moved
    /// elsewhere meanwhile and still wait for the echo of that lane.
    fn cut(&self, region: RegionId);

    /// Called every 2 s. Repeats barriers without an echo, because they or their echoes may be lost
    /// with a lane, asks again about mailboxes that were reported full, and gives up old held
    /// messages of removed senders.
    fn remind(&self);

    /// Returns the shards with entities, and their number. Entities that only have waiting messages
    /// or a dormant state count. Shards without entities are left out. Locks one shard after the
    /// other, so the numbers are not of one moment.
    fn entities(&self) -> Vec<(ShardId, u64)>;

    /// Returns whether an entity lives here: it has an instance, waiting messages or a dormant
    /// state. `None`: its shard neither lives nor drains here.
    fn lives(&self, entity: &EntityId) -> Option<bool>;

    /// Returns the entity and its message type if the handler of this poll belongs to this runtime;
    /// no entity if it is no longer in the table. Also lets the runtime watch for slow handlers,
    /// because this one blocks its thread. The default is for runtimes whose polls are not
    /// monitored.
    fn polled(&self, _poll: &LongPoll) -> Option<(Option<EntityId>, &'static str)> {
        None
    }

    /// Returns the shard of an entity.
    fn shard(&self, entity: &EntityId) -> ShardId;

    /// Returns the home of a shard by the newest acknowledged decision known to this node. `None`:
    /// the shard has none, or its home was removed, or no decision is known here.
    fn home(&self, shard: ShardId) -> Option<RegionId>;

    /// Returns signs that nodes do not yet agree on the homes of shards: they agree once nothing
    /// waits and the count of sent-back messages no longer rises. `None`: this runtime has stopped
    /// for good.
    fn unrest(&self) -> Option<UndeliveredCounts>;
}

/// Numbers of messages that are not at their entity's home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UndeliveredCounts {
    /// Messages of other nodes that were bounced, and barriers that were acknowledged, since the
    /// start, also if the lane did not take the frame. Rises as long as a node does not know of a
    /// move.
    pub sent_back: u64,
    /// Messages of this node that wait for a lane or an echo, and messages from lanes, the own lane
    /// included, that are held for a decision or a start. Messages without a known home do not
    /// count.
    pub waiting: usize,
}

/// Reason why a frame of a user lane is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed frame between regions: {0}")]
pub struct BadFrame(pub &'static str);

/// Services of a node for each entity type on it.
pub trait RegionEnvironment: Send + Sync + 'static {
    /// Appends a frame to the user lane to a region, within the lane's limit and while a connection
    /// carries the lane (docs/protocol/message-order.md#a-lane-without-a-connection-has-no-room).
    ///
    /// # Errors
    /// [`NoRoom`]; except for [`NoRoom::TooLong`], [`RegionHandle::room`] is called when there is
    /// room, or a new lane.
    fn send(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom>;

    /// Appends a barrier, bounce, echo, answer, refusal or notice, beyond the limit of `send`
    /// (docs/protocol/message-order.md#replies-and-bounces-pass-the-limit).
    ///
    /// # Errors
    /// [`NoRoom`]; the caller does not try again. [`NoRoom::Full`] if the lane keeps several times
    /// its limit because the other end takes nothing.
    fn answer(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom>;

    /// Returns the name of a region's node for the log. The default implementation knows the
    /// incarnation only.
    fn name_of(&self, region: RegionId) -> String {
        region.to_string()
    }

    /// Passes a fact to the region's machine. Never blocks; has no effect after the node's stop.
    fn tell(&self, fact: RegionInput);

    /// Returns whether a message may begin now: compares the hosting lease with the clock. Asked
    /// before each message and each poll.
    fn serves(&self) -> bool;

    /// Returns the time of the monotonic clock.
    fn now(&self) -> Instant;

    /// Spawns a task that runs to its end, or is dropped if the executor is shut down.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs an activation of an entity to its end; most complete at their first poll. Polls it
    /// again at least each time that it is woken, and drops it if no worker is left to poll it.
    fn run(&self, activation: Activation);

    /// Returns a future that completes after `pause`.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}

/// Reason why a frame was not put on its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The lane keeps as much as its limit allows, or no connection carries it.
    Full,
    /// The frame is longer than the lane allows.
    TooLong,
    /// There is no lane: the region is out of the configuration, or not known yet.
    NoLane,
}
