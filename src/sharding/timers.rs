//! Timers of entities: the handle, the number pending in an instance, and the loss of those whose
//! entity an active-entity limit stops.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::entity::Entity;
use super::ids::{EntityId, ShardId};
use super::runtime::Runtime;
use super::tracked::TaskControl;

/// Number of timers of one instance that have not sent their message yet; a set receive timeout
/// counts as one. While it is above 0, the instance does not stop for being idle.
#[derive(Debug, Default)]
pub(super) struct Timers(AtomicUsize);

impl Timers {
    pub(super) fn pending(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Counts one more timer, until the returned value is dropped.
    pub(super) fn add(self: &Arc<Self>) -> PendingTimer {
        self.0.fetch_add(1, Ordering::AcqRel);
        PendingTimer(Arc::clone(self))
    }
}

/// A timer that has not sent its message yet. Dropping it uncounts the timer.
#[derive(Debug)]
pub(super) struct PendingTimer(Arc<Timers>);

impl Drop for PendingTimer {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A message that an entity sends itself later. It is cancelled when the instance that began it
/// ends; dropping this handle does not cancel it. Clones control the same message.
#[derive(Clone)]
pub struct Timer {
    control: Arc<TaskControl>,
}

impl Timer {
    pub(super) const fn new(control: Arc<TaskControl>) -> Self {
        Self { control }
    }

    /// Cancels the message. If it was sent before, it is still handled. Calls after the first one,
    /// and after the end of the instance, have no effect.
    pub fn cancel(&self) {
        self.control.stop();
    }
}

impl fmt::Debug for Timer {
    /// Shows whether the message was cancelled, by [`cancel`](Timer::cancel) or with its instance,
    /// also if it had been sent before.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("cancelled", &self.control.is_stopped()).finish()
    }
}

impl<E: Entity> Runtime<E> {
    /// Counts and logs the pending timers of an instance that stops because of the active-entity
    /// limit. Logs at most once a minute per type, and then only this entity with its `count`, and
    /// the total so far. No effect for a `count` of 0. Does not stop the timers.
    pub(super) fn lose_timers(&self, count: usize, shard: ShardId, entity: &EntityId) {
        let total = self.lost_timers.add_and_log(count, || self.world.now());
        let Some(total) = total else { return };
        let entity_type = &self.entity_type;
        tracing::warn!(
            %entity_type, %entity, %shard, count, total,
            "sharding.lost_timers: the active-entity limit stopped an entity whose timers were \
             pending; they will not fire: raise passivation.active-entity-limit, or keep the due \
             time outside the entity"
        );
    }
}
