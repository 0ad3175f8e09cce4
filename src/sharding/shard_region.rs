//! The handle of one entity type on one node: its entities by id, and what is known about them
//! here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::asks::Asks;
use super::bug::Canary;
use super::config::Sharding;
use super::dead_letters::Lost;
use super::entity::{Entity, Supervision};
use super::entity_ref::{Asked, EntityRef, TellError};
use super::extractor::Extractor;
use super::hosting::{BadFrame, Hosting, Unrest, World};
use super::id_hash::hash;
use super::ids::{EntityId, EntityType, RegionId, ShardId};
use super::polls::LongPoll;
use super::region::RegionOutput;
use super::runtime::{Parcel, Runtime, WaitingPlace};

/// What an entity type needs on a node.
pub struct Setup<E: Entity> {
    /// Its name, equal on all nodes.
    pub entity_type: EntityType,
    /// This node's region.
    pub me: RegionId,
    /// Its settings: of [`Sharding::of`].
    pub settings: Sharding,
    /// Most bytes of a message with its id, as the node's lanes allow.
    pub message_bytes_max: usize,
    /// What happens to an entity that panics.
    pub supervision: Supervision,
    /// From ids to shards, and from messages to ids.
    pub extractor: Arc<dyn Extractor<E::Message>>,
    /// Makes a new instance.
    pub factory: Box<dyn Fn(&EntityId) -> E + Send + Sync>,
    /// The node's table of asks: one for all its types.
    pub asks: Arc<Asks>,
    /// [`Canary::none`] but in the suites.
    pub canary: Canary,
}

impl<E: Entity> fmt::Debug for Setup<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, me) = (&self.entity_type, &self.me);
        f.debug_struct("Setup").field("entity_type", name).field("me", me).finish_non_exhaustive()
    }
}

/// One entity type, seen from one node. Cheap to clone.
///
/// The node drives it as a [`Hosting`].
pub struct ShardRegion<E: Entity> {
    runtime: Arc<Runtime<E>>,
}

impl<E: Entity> ShardRegion<E> {
    /// Hosts a type, or routes to it, by what the region's machine orders. References that come in
    /// messages do not find it before it is [published](Self::publish).
    #[must_use]
    pub fn new(setup: Setup<E>, world: Arc<dyn World>) -> Self {
        Self { runtime: Runtime::new(setup, world) }
    }

    /// References to its entities that come in messages lead here from now on. To be called once
    /// the machines know the type: what they are told of one that they do not know is lost.
    pub fn publish(&self) {
        self.runtime.publish();
    }

    pub(super) const fn of(runtime: Arc<Runtime<E>>) -> Self {
        Self { runtime }
    }

    /// What the node drives.
    #[must_use]
    pub fn hosting(&self) -> Arc<dyn Hosting> {
        Arc::new(self.clone())
    }

    /// The entity with this id. An id that none can have is refused by the first call.
    #[must_use]
    pub fn entity(&self, id: &str) -> EntityRef<E> {
        EntityRef::new(&self.runtime, id)
    }

    /// Starts an entity, and waits until it lives: [`EntityRef::start`].
    pub fn start_entity(&self, id: &str) -> Asked<E, ()> {
        self.entity(id).start()
    }

    /// Sends a message to the entity that the type's extractor finds in it.
    ///
    /// # Errors
    /// [`TellError::NoEntity`] if it finds none; else as [`EntityRef::tell`].
    pub fn tell(&self, message: E::Message) -> Result<(), TellError> {
        let id = self.runtime.extractor.entity_id(&message).ok_or(TellError::NoEntity)?;
        let id = EntityId::new(&id)?;
        let to = (&id, hash(id.as_bytes()), self.runtime.shard_of(&id));
        self.runtime
            .offer(to, (Parcel::Typed(message), WaitingPlace::Buffer), None)
            .map_err(|(why, _)| why)
    }

    /// Sets how many entities may be active on this node, at least 1: for strategies of
    /// passivation that have a limit.
    pub fn set_active_entity_limit(&self, limit: usize) {
        self.runtime.set_limit(limit);
    }

    /// The type's name.
    #[must_use]
    pub fn entity_type(&self) -> &EntityType {
        &self.runtime.entity_type
    }

    /// Entities that live on this node, with those that only have messages waiting, or a state
    /// that a move has brought.
    #[must_use]
    pub fn entities(&self) -> usize {
        self.runtime.entities().map(|(_, entities)| entities).sum()
    }

    /// Where a shard lives, by the newest acknowledged decision that this node has heard of;
    /// [`EntityRef::shard`] names that of an entity. `None`: it has no home yet, or the home is lost, or this node has not registered.
    #[must_use]
    pub fn shard_home(&self, shard: ShardId) -> Option<RegionId> {
        self.runtime.home(shard)
    }

    /// Messages of this node that wait for a lane.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.runtime.at_gates().0
    }

    /// Messages from lanes, this node's own among them, that wait for a shard to start here.
    #[must_use]
    pub fn held(&self) -> usize {
        self.runtime.at_gates().1
    }

    /// Callers of [`EntityRef::tell_wait`] that wait for room.
    #[must_use]
    pub fn callers(&self) -> usize {
        self.runtime.callers()
    }

    /// Messages that nobody handled, by reason, since the start.
    pub fn dead_letters(&self) -> impl Iterator<Item = (Lost, u64)> + '_ {
        self.runtime.dead_letters().all()
    }

    /// States that entities [handed over](Entity::hand_over) and none will take, since the start.
    /// They may have been taken where a later move overtook the one that carried them.
    #[must_use]
    pub fn lost_states(&self) -> u64 {
        self.runtime.lost_states.count()
    }

    /// Timers ([`Context::after`](super::context::Context::after)) that an active-entity limit has
    /// stopped before they sent their message, since the start.
    #[must_use]
    pub fn lost_timers(&self) -> u64 {
        self.runtime.lost_timers.count()
    }

    /// Handlers that ran for `slow-handler-after` or longer, since the start; each counts once.
    #[must_use]
    pub fn slow_handlers(&self) -> u64 {
        self.runtime.slow_handlers.count()
    }

    /// Panics of handlers and factories, since the start.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.runtime.failures.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "canaries")]
impl<E: Entity> ShardRegion<E> {
    /// Other limits of what each sender may move here.
    pub fn limit_moved(&self, limits: super::gate::Limits) {
        self.runtime.held().limit_moved(limits);
    }

    /// Asks that are waited for without a timer of their own.
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

impl<E: Entity> Hosting for ShardRegion<E> {
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

    fn removed(&self, region: RegionId) {
        self.runtime.removed(region);
    }

    fn cut(&self, region: RegionId) {
        self.runtime.cut(region);
    }

    fn unrest(&self) -> Option<Unrest> {
        self.runtime.unrest()
    }

    fn remind(&self) {
        self.runtime.remind();
    }

    fn entities(&self) -> Vec<(ShardId, u64)> {
        self.runtime.entities().map(|(shard, entities)| (shard, entities as u64)).collect()
    }

    fn lives(&self, entity: &EntityId) -> Option<bool> {
        self.runtime.lives(entity)
    }

    fn polled(&self, poll: &LongPoll) -> Option<(Option<EntityId>, &'static str)> {
        let is_own = poll.entities == self.runtime.polls;
        let message = std::any::type_name::<E::Message>();
        is_own.then(|| (self.runtime.entity_at(poll.shard, poll.row), message))
    }

    fn shard(&self, entity: &EntityId) -> ShardId {
        self.runtime.extractor.shard(entity)
    }

    fn home(&self, shard: ShardId) -> Option<RegionId> {
        self.runtime.home(shard)
    }
}
