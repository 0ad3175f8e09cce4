//! The handle of one entity type on one node: references to its entities, and its counters here.
//!
//! The program gets a [`ShardRegion`] when it starts a type. The node drives the same object
//! through the [`RegionHandle`] trait: it passes frames, decisions of the region's machine and lane
//! events.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::config::ShardingConfig;
use super::dead_letters::DeadLetterReason;
use super::entity::{Entity, Supervision};
use super::entity_ref::{AskFuture, EntityRef, TellError};
use super::extractor::Extractor;
use super::fault_injection::ShardingFaultInjection;
use super::id_hash::hash;
use super::ids::{EntityId, EntityType, RegionId, ShardId};
use super::pending_asks::PendingAsks;
use super::polls::LongPoll;
use super::region::RegionOutput;
use super::region_handle::{BadFrame, RegionEnvironment, RegionHandle, UndeliveredCounts};
use super::runtime::{OutgoingMessage, Runtime, WaitingPlace};
use crate::cluster::lease::Departure;

/// Parameters of an entity type on one node.
pub struct RegionSetup<E: Entity> {
    /// Name of the type, equal on all nodes.
    pub entity_type: EntityType,
    /// Region (incarnation) of this node.
    pub me: RegionId,
    /// Settings of the type, as returned by [`ShardingConfig::of`].
    pub settings: ShardingConfig,
    /// Most bytes of a message with its id, as the node's lanes allow.
    pub message_bytes_max: usize,
    /// Reaction to a panic of an entity.
    pub supervision: Supervision,
    /// Maps ids to shards, and messages to ids.
    pub extractor: Arc<dyn Extractor<E::Message>>,
    /// Makes a new instance for an id.
    pub factory: Box<dyn Fn(&EntityId) -> E + Send + Sync>,
    /// The node's table of pending asks, shared by all its types.
    pub asks: Arc<PendingAsks>,
    /// Injected faults; [`ShardingFaultInjection::none`] outside test suites.
    pub fault_injection: ShardingFaultInjection,
}

impl<E: Entity> fmt::Debug for RegionSetup<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, me) = (&self.entity_type, &self.me);
        f.debug_struct("RegionSetup")
            .field("entity_type", name)
            .field("me", me)
            .finish_non_exhaustive()
    }
}

/// One entity type as seen from one node. Cheap to clone.
///
/// The node drives it as a [`RegionHandle`].
pub struct ShardRegion<E: Entity> {
    runtime: Arc<Runtime<E>>,
}

impl<E: Entity> ShardRegion<E> {
    /// Hosts a type, or only routes to it, as the region's machine decides. References in received
    /// messages find it only after it is [published](Self::publish).
    #[must_use]
    pub fn new(setup: RegionSetup<E>, world: Arc<dyn RegionEnvironment>) -> Self {
        Self { runtime: Runtime::new(setup, world) }
    }

    /// Lets references in received messages lead here from now on. Call it once the machines know
    /// the type, because they drop requests about an unknown type.
    pub fn publish(&self) {
        self.runtime.publish();
    }

    pub(super) const fn of(runtime: Arc<Runtime<E>>) -> Self {
        Self { runtime }
    }

    /// Returns the interface through which the node drives this region.
    #[must_use]
    pub fn hosting(&self) -> Arc<dyn RegionHandle> {
        Arc::new(self.clone())
    }

    /// Returns a reference to an entity, which need not exist. An invalid id is refused by each
    /// call of the reference.
    #[must_use]
    pub fn entity(&self, id: &str) -> EntityRef<E> {
        EntityRef::new(&self.runtime, id)
    }

    /// Starts an entity and waits until it is alive: [`EntityRef::start`].
    pub fn start_entity(&self, id: &str) -> AskFuture<E, ()> {
        self.entity(id).start()
    }

    /// Sends a message to the entity that the type's extractor finds in it.
    ///
    /// # Errors
    /// [`TellError::NoEntity`] if the extractor finds none, [`TellError::InvalidId`] if it finds an
    /// id that is empty or too long; otherwise as [`EntityRef::tell`]. A panic of the extractor
    /// passes through.
    pub fn tell(&self, message: E::Message) -> Result<(), TellError> {
        let id = self.runtime.extractor.entity_id(&message).ok_or(TellError::NoEntity)?;
        let id = EntityId::new(&id)?;
        let to = (&id, hash(id.as_bytes()), self.runtime.shard_of(&id));
        self.runtime
            .offer(to, (OutgoingMessage::Typed(message), WaitingPlace::Buffer), None)
            .map_err(|(why, _)| why)
    }

    /// Sets the number of entities that may be active on this node; 0 counts as 1, and a number
    /// above the greatest setting as that. Idle entities beyond it stop now, busy ones once they
    /// are idle. Has an effect with passivation strategies that have a limit. If the limit is per
    /// shard, the shards that live here get equal shares of it, rounded down, at least 1.
    pub fn set_active_entity_limit(&self, limit: usize) {
        self.runtime.set_limit(limit);
    }

    /// Returns the name of the type.
    #[must_use]
    pub fn entity_type(&self) -> &EntityType {
        &self.runtime.entity_type
    }

    /// Returns the number of entities on this node, including those without an instance that have
    /// waiting messages or a state brought by a move. Locks one shard after the other.
    #[must_use]
    pub fn entities(&self) -> usize {
        self.runtime.entities().map(|(_, entities)| entities).sum()
    }

    /// Returns the home of a shard by the newest acknowledged decision known here. Use
    /// [`EntityRef::shard`] for the shard of an entity. `None`: the shard has no home yet, its home
    /// was lost, or this node has not registered. Also `None` for a number that the type does not
    /// have.
    #[must_use]
    pub fn shard_home(&self, shard: ShardId) -> Option<RegionId> {
        self.runtime.home(shard)
    }

    /// Returns the number of messages of this node that wait for a home, a lane or an echo.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.runtime.at_gates().0
    }

    /// Returns the number of messages from lanes, also from this node, that wait for a shard to
    /// start here or for a decision.
    #[must_use]
    pub fn held(&self) -> usize {
        self.runtime.at_gates().1
    }

    /// Returns the number of [`EntityRef::tell_wait`] calls that wait for room. A call that was
    /// woken does not count until it waits again.
    #[must_use]
    pub fn callers(&self) -> usize {
        self.runtime.callers()
    }

    /// Returns the number of messages that were not handled since the start, by reason, also where
    /// it is 0.
    pub fn dead_letters(&self) -> impl Iterator<Item = (DeadLetterReason, u64)> + '_ {
        self.runtime.dead_letters().all()
    }

    /// Returns the number of [exported](Entity::export_state) states that were lost since the
    /// start. A state may be counted although it was imported, if a later move overtook the one
    /// that carried it.
    #[must_use]
    pub fn lost_states(&self) -> u64 {
        self.runtime.lost_states.count()
    }

    /// Returns the number of timers ([`Context::after`](super::context::Context::after)) that an
    /// active-entity limit stopped before they fired, since the start.
    #[must_use]
    pub fn lost_timers(&self) -> u64 {
        self.runtime.lost_timers.count()
    }

    /// Returns the number of handlers that a check has found to run for `slow-handler-after` or
    /// longer, since the start. Each is counted once. Handlers that block their thread do not
    /// await, and are not counted.
    #[must_use]
    pub fn slow_handlers(&self) -> u64 {
        self.runtime.slow_handlers.count()
    }

    /// Returns the number of failures of the program's code since the start: panics of handlers,
    /// factories, stop messages, tasks, state exports and `Drop`, and failed imports of state.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.runtime.failures.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "canaries")]
impl<E: Entity> ShardRegion<E> {
    /// Sets other limits for the moved messages that are held per sender.
    pub fn limit_moved(&self, limits: super::gate::BufferLimits) {
        self.runtime.held().limit_moved(limits);
    }

    /// Returns the number of pending asks without a timer of their own.
    #[must_use]
    pub fn swept_asks(&self) -> usize {
        self.runtime.timeouts.len()
    }
}

impl<E: Entity> Clone for ShardRegion<E> {
    fn clone(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime) }
    }
}

impl<E: Entity> fmt::Debug for ShardRegion<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShardRegion").field(&self.runtime.entity_type).finish()
    }
}

impl<E: Entity> RegionHandle for ShardRegion<E> {
    fn perform(&self, order: RegionOutput) {
        self.runtime.perform(order);
    }

    fn lapsed(&self) {
        self.runtime.let_go();
    }

    fn arrived(&self, from: RegionId, frame: &[u8]) -> Result<(), BadFrame> {
        self.runtime.arrived(from, frame)
    }

    fn room(&self, to: RegionId) {
        self.runtime.room(to);
    }

    fn removed(&self, region: RegionId, how: Departure) {
        self.runtime.removed(region, how);
    }

    fn cut(&self, region: RegionId) {
        self.runtime.cut(region);
    }

    fn unrest(&self) -> Option<UndeliveredCounts> {
        self.runtime.unrest()
    }

    /// Repeats barriers without an echo, asks again about mailboxes that were reported full, and
    /// gives up held messages of removed senders.
    fn remind(&self) {
        self.runtime.remind();
    }

    fn entities(&self) -> Vec<(ShardId, u64)> {
        self.runtime.entities().map(|(shard, entities)| (shard, entities as u64)).collect()
    }

    fn lives(&self, entity: &EntityId) -> Option<bool> {
        self.runtime.lives(entity)
    }

    /// Names the entity of a poll of this runtime, and starts the check for slow handlers. Neither
    /// happens for a poll of another runtime.
    fn polled(&self, poll: &LongPoll) -> Option<(Option<EntityId>, &'static str)> {
        let is_own = poll.entities == self.runtime.polls;
        let message = std::any::type_name::<E::Message>();
        if is_own {
            self.runtime.watch_handlers();
        }
        is_own.then(|| (self.runtime.entity_at(poll.shard, poll.row), message))
    }

    fn shard(&self, entity: &EntityId) -> ShardId {
        self.runtime.extractor.shard(entity)
    }

    fn home(&self, shard: ShardId) -> Option<RegionId> {
        self.runtime.home(shard)
    }
}
