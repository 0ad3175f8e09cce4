//! What an entity sees of where it lives, while it handles a message.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::entity::Entity;
use super::entity_ref::EntityRef;
use super::fencing::FencingToken;
use super::ids::{EntityId, EntityType, Generation, RegionId, ShardId};
use super::instance::Extras;
use super::runtime::Runtime;
use super::shard::Shard;
use super::shard_region::ShardRegion;
use super::tenancy::Stage;
use super::timers::Timer;

/// The surroundings of an entity. Given to [`Entity::handle`] for one message.
pub struct Context<'a, E: Entity> {
    runtime: &'a Arc<Runtime<E>>,
    shard: &'a Shard<E>,
    id: &'a EntityId,
    token: FencingToken,
    passivates: &'a mut bool,
    extras: &'a mut Option<Box<Extras<E>>>,
}

impl<'a, E: Entity> Context<'a, E> {
    pub(super) const fn new(
        runtime: &'a Arc<Runtime<E>>,
        shard: &'a Shard<E>,
        id: &'a EntityId,
        token: FencingToken,
        passivates: &'a mut bool,
        extras: &'a mut Option<Box<Extras<E>>>,
    ) -> Self {
        Self { runtime, shard, id, token, passivates, extras }
    }

    /// The entity's id.
    #[must_use]
    pub const fn id(&self) -> &EntityId {
        self.id
    }

    /// Its type.
    #[must_use]
    pub fn entity_type(&self) -> &EntityType {
        &self.runtime.entity_type
    }

    /// Its shard.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        self.shard.id
    }

    /// The node that it lives on now.
    #[must_use]
    pub fn node(&self) -> RegionId {
        self.runtime.me
    }

    /// The decision by which its shard lives here. It orders what happens within one cluster: a
    /// cluster that is founded anew may count from a lower one. What leaves the cluster takes the [`fencing_token`](Self::fencing_token).
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.token.generation()
    }

    /// For systems outside of the cluster, to store with each effect and to compare: they must
    /// refuse what comes with a lower one than they have seen of this entity. It never goes back for
    /// an id, and may go up while an instance lives; see [`FencingToken`].
    #[must_use]
    pub const fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Whether its shard is about to leave this node: the sooner the handler ends, the shorter
    /// the pause for everybody in the shard. At most `handoff-timeout` is left.
    #[must_use]
    pub fn moving(&self) -> bool {
        self.shard.phase.get() != Stage::Open
    }

    /// This instance ends after this message, and its [stop message](Entity::stop_message) if its
    /// type has one. Messages that wait, or come meanwhile, are handled by a new instance, in
    /// order, which begins after the tasks and timers of this one are dropped.
    pub const fn passivate(&mut self) {
        *self.passivates = true;
    }

    /// Another entity of this type, or this one.
    #[must_use]
    pub fn entity(&self, id: &str) -> EntityRef<E> {
        self.region().entity(id)
    }

    /// This entity: what it tells itself is handled after what waits already.
    #[must_use]
    pub fn myself(&self) -> EntityRef<E> {
        self.entity(self.id.as_str())
    }

    /// Sends this entity a message after `pause`: it comes like any other, after those that wait.
    ///
    /// While the timer is pending, the instance does not stop for being idle, however short
    /// `idle-timeout` is. The timer ends with its instance: by [`passivate`](Self::passivate), by
    /// supervision, by a move or a stop of the shard, and by an active-entity limit, which stops
    /// also entities whose timers are pending; those are counted
    /// ([`lost_timers`](ShardRegion::lost_timers)) and logged. A due time that must outlive the
    /// instance belongs into its state.
    pub fn after(&mut self, pause: Duration, message: E::Message) -> Timer {
        let (myself, world) = (self.myself(), &self.runtime.world);
        Extras::of(self.extras).after(world, myself, pause, message)
    }

    /// Sends this entity what `message` makes, each time that it has had nothing to do for
    /// `pause`, as long as this instance lives. Meanwhile the instance does not stop for being idle,
    /// even if `idle-timeout` is shorter than `pause`: it ends as a pending timer's does
    /// ([`after`](Self::after)).
    pub fn set_receive_timeout(
        &mut self,
        pause: Duration,
        message: impl Fn() -> E::Message + Send + Sync + 'static,
    ) {
        Extras::of(self.extras).set_receive_timeout(pause, Arc::new(message));
    }

    /// Ends [`set_receive_timeout`](Self::set_receive_timeout).
    pub fn cancel_receive_timeout(&mut self) {
        Extras::of(self.extras).cancel_receive_timeout();
    }

    /// Runs something beside the handlers, as long as this instance lives: then it is dropped at
    /// its next await. Like a handler it runs only while the node has the hosting lease, and the
    /// shard moves only when it has ended. It has no access to the instance; what it finds out it
    /// tells [`myself`](Self::myself). A panic in it is counted, and concerns nobody else.
    ///
    /// A task does not keep an idle instance alive: after `idle-timeout` without a message the
    /// instance stops and its tasks are dropped. If it must go on for longer, a timer
    /// ([`after`](Self::after)) keeps the instance. However an instance ends, the entity's next one
    /// begins after the futures of its tasks are dropped, so what they hold is free.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { runtime, shard, id, extras, .. } = self;
        let shard = runtime.shard(shard.id).expect("it lives there");
        Extras::of(extras).tracked.spawn((runtime, shard), id, task);
    }

    /// All entities of this type.
    #[must_use]
    pub fn region(&self) -> ShardRegion<E> {
        ShardRegion::of(Arc::clone(self.runtime))
    }
}

impl<E: Entity> fmt::Debug for Context<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entity_type, id) = (&self.runtime.entity_type, self.id);
        f.debug_struct("Context").field("entity_type", entity_type).field("id", id).finish()
    }
}
