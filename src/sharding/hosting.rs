//! The seam between what hosts an entity type on a node and the node itself: each sees of the
//! other only what stands here. A simulated node implements [`World`] as a real one does.

use std::time::Duration;

use futures::future::BoxFuture;
use ostraca_ddata::clock::Instant;

use super::burst::Burst;
use super::ids::{EntityId, RegionId, ShardId};
use super::polls::LongPoll;
use super::region::{RegionInput, RegionOutput};

/// What hosts one entity type on one node: its gates, its shards, its entities.
///
/// Called from many threads at once. Never blocks on a handler.
pub trait Hosting: Send + Sync + 'static {
    /// Carries out an order of the region's machine. What only the node can do (`Send`,
    /// `Registered`, `Left`) does not come here.
    fn perform(&self, order: RegionOutput);

    /// The hosting lease has lapsed for long: instances are dropped, handlers at their next await.
    /// What waits for them goes on waiting, until there is a lease again.
    fn lapsed(&self);

    /// A frame came down the user lane of a node.
    ///
    /// # Errors
    /// [`BadFrame`] if it is none: count it and go on.
    fn arrived(&self, from: RegionId, frame: &[u8]) -> Result<(), BadFrame>;

    /// The lane to a region has room again, or is new.
    fn room(&self, to: RegionId);

    /// A region is out of the installed configuration; its lane has ended.
    fn removed(&self, region: RegionId);

    /// The lane to a region has been cut for long while its node stays a member.
    fn cut(&self, region: RegionId);

    /// Some time has passed: asks again for echoes that are still out. They, or what asked for
    /// them, may be lost with a lane.
    fn remind(&self);

    /// Shards in which entities live, and how many; with those that only have messages waiting.
    fn entities(&self) -> Vec<(ShardId, u64)>;

    /// Whether an entity lives here: it runs, or messages or a carried state wait for it. `None`:
    /// its shard does not live here.
    fn lives(&self, entity: &EntityId) -> Option<bool>;

    /// The handler of a poll, if it is one of these entities: the entity, and the type of its
    /// messages. A hosting whose polls nobody watches has none.
    fn polled(&self, _poll: &LongPoll) -> Option<(Option<EntityId>, &'static str)> {
        None
    }

    /// The shard of an entity.
    fn shard(&self, entity: &EntityId) -> ShardId;

    /// Where a shard lives, by the newest acknowledged decision that this node has heard of.
    fn home(&self, shard: ShardId) -> Option<RegionId>;

    /// What shows that nodes do not agree yet where shards live; `None`: nothing moves here any
    /// more.
    fn unrest(&self) -> Option<Unrest>;
}

/// Messages that are not where their entity is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unrest {
    /// Messages of other nodes that were sent back to them, and barriers of theirs that were
    /// echoed, since the start: grows as long as somebody does not know of a move.
    pub sent_back: u64,
    /// Messages of this node that wait for a lane, and others' that are held here until it is known
    /// where they go. Those that wait for a home to be known are not counted.
    pub waiting: usize,
}

/// Why a frame of a user lane is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no frame between regions: {0}")]
pub struct BadFrame(pub &'static str);

/// What a node gives to each entity type that it hosts.
pub trait World: Send + Sync + 'static {
    /// Appends a frame to the user lane to a region, within the lane's limit.
    ///
    /// # Errors
    /// [`NoRoom`]; [`Hosting::room`] says when to try again.
    fn send(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom>;

    /// Appends a frame beyond what `send` may: barriers, bounces, echoes, replies.
    ///
    /// # Errors
    /// [`NoRoom`], and then nobody tries it again: [`NoRoom::Full`] if the lane keeps several times
    /// as much as it may, for its other end takes nothing.
    fn answer(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom>;

    /// Tells the region's machine a fact. Never blocks; after the node's stop nobody listens.
    fn tell(&self, fact: RegionInput);

    /// Whether a message may begin now: asks the hosting lease, by the clock.
    fn serves(&self) -> bool;

    /// The monotonic clock.
    fn now(&self) -> Instant;

    /// Runs a task to its end.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs an entity's burst to its end; mostly it is over at its first poll. Polls it again when it
    /// has been woken, or oftener; drops it if there is nobody to poll it any more.
    fn run(&self, burst: Burst);

    /// Ends after `pause`.
    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()>;
}

/// Why a frame is not on its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The lane keeps as much as it may.
    Full,
    /// The frame is longer than the lane ever takes.
    TooLong,
    /// No lane leads there: the region is out of the configuration, or not known yet.
    NoLane,
}
