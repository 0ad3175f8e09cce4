//! The environment of an entity while it handles a message: identity, timers, tasks and references.

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
use super::shard_stage::ShardStage;
use super::timers::Timer;

/// Access of an entity to its environment, passed to [`Entity::handle`] for one message.
///
/// The generation and the fencing token are those of the time when the entity took its waiting
/// messages, at most some hundred at a time. A decision that leaves the shard here meanwhile raises
/// them for the messages that are taken later.
pub struct Context<'a, E: Entity> {
    runtime: &'a Arc<Runtime<E>>,
    shard: &'a Shard<E>,
    id: &'a EntityId,
    token: FencingToken,
    passivates: &'a mut bool, // read after the handler has ended
    extras: &'a mut Option<Box<Extras<E>>>, // timers and tasks; made by the first use
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

    /// Returns the id of this entity.
    #[must_use]
    pub const fn id(&self) -> &EntityId {
        self.id
    }

    /// Returns the type of this entity.
    #[must_use]
    pub fn entity_type(&self) -> &EntityType {
        &self.runtime.entity_type
    }

    /// Returns the shard of this entity.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        self.shard.id
    }

    /// Returns the node on which this instance lives. A region is named by the incarnation of its
    /// node.
    #[must_use]
    pub fn node(&self) -> RegionId {
        self.runtime.me
    }

    /// Returns the generation of the decision by which the shard lives here. It orders events
    /// within one cluster; a cluster that is founded anew may count from a lower generation. For
    /// effects outside the cluster use the [`fencing_token`](Self::fencing_token).
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.token.generation()
    }

    /// Returns the fencing token for systems outside the cluster. They must store it with each
    /// effect and refuse an effect with a lower token than they have seen of this entity. The token
    /// of an id never goes back, and may rise while an instance lives; see [`FencingToken`].
    #[must_use]
    pub const fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns whether the shard is about to stop on this node, because it moves, was ordered to
    /// stop, or is aborted. The sooner the handler ends, the shorter the pause for all entities of
    /// the shard. At most `handoff-timeout` is left; a handler that has run for
    /// `slow-handler-after` is dropped as soon as only such ones keep the shard. May change while
    /// the handler runs.
    #[must_use]
    pub fn moving(&self) -> bool {
        self.shard.phase.get() != ShardStage::Open
    }

    /// Stops this instance after the current message. If the type has a [stop
    /// message](Entity::stop_message), the instance handles that one last, before any message that
    /// waits. Messages that wait or arrive meanwhile are handled in order by a new instance, which
    /// begins after the tasks and timers of this one are dropped. It exports no state. Cannot be
    /// taken back, and has no effect in the stop message.
    pub const fn passivate(&mut self) {
        *self.passivates = true;
    }

    /// Returns a reference to an entity of this type. It starts nothing. An invalid id is reported
    /// when the reference is used.
    #[must_use]
    pub fn entity(&self, id: &str) -> EntityRef<E> {
        self.region().entity(id)
    }

    /// Returns a reference to this entity. A message sent to it is handled after those that already
    /// wait.
    #[must_use]
    pub fn myself(&self) -> EntityRef<E> {
        self.entity(self.id.as_str())
    }

    /// Sends this entity a message after `pause`, which may be zero. The message is queued after
    /// those that wait then, and waits for room if the mailbox is full. Dropping the returned
    /// handle does not cancel the timer.
    ///
    /// While the timer is pending, the instance does not stop for being idle, however short
    /// `idle-timeout` is. The timer ends with its instance: by [`passivate`](Self::passivate), by
    /// supervision, by a move or a stop of the shard, and by an active-entity limit. The limit also
    /// stops entities whose timers are pending. Only the timers that the limit ends are counted
    /// ([`lost_timers`](ShardRegion::lost_timers)) and logged. A due time that must outlive the
    /// instance belongs in its state.
    pub fn after(&mut self, pause: Duration, message: E::Message) -> Timer {
        let (myself, world) = (self.myself(), &self.runtime.world);
        Extras::of(self.extras).after(world, myself, pause, message)
    }

    /// Sends this entity the result of `message` each time that it has been idle for `pause`, as
    /// long as this instance lives. The time runs from the moment when the last waiting message was
    /// handled, and the message ends that idle period, so it comes again after the next `pause`. A
    /// message that finds a full mailbox is dropped. Replaces the timeout that was set before.
    ///
    /// While the timeout is set, the instance never stops for being idle, even if `idle-timeout` is
    /// shorter than `pause`; it ends in the same cases as one with a pending timer
    /// ([`after`](Self::after)).
    pub fn set_receive_timeout(
        &mut self,
        pause: Duration,
        message: impl Fn() -> E::Message + Send + Sync + 'static,
    ) {
        Extras::of(self.extras).set_receive_timeout(pause, Arc::new(message));
    }

    /// Cancels the timeout of [`set_receive_timeout`](Self::set_receive_timeout), if one is set.
    pub fn cancel_receive_timeout(&mut self) {
        Extras::of(self.extras).cancel_receive_timeout();
    }

    /// Runs a future beside the handlers, also if the shard moves already. When this instance ends,
    /// for a move as well, the future is dropped at its next await; the shard moves only after it
    /// has completed or is dropped. Like a handler it is polled only while the node has the hosting
    /// lease. It has no access to the instance, but may send its results to
    /// [`myself`](Self::myself). A panic in it is counted and affects nothing else.
    ///
    /// A task does not keep an idle instance alive: after `idle-timeout` without a message the
    /// instance stops and its tasks are dropped. A pending timer ([`after`](Self::after)) keeps the
    /// instance. In every case the entity's next instance begins after the futures of the tasks are
    /// dropped, so that the resources that they hold are free.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { runtime, shard, id, extras, .. } = self;
        // The same shard, in the `Arc` that a task needs. A runtime never drops a shard.
        let shard = runtime.shard(shard.id).expect("the shard lives on this node");
        Extras::of(extras).tracked.spawn((runtime, shard), id, task);
    }

    /// Returns the region handle of this entity type on this node.
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
