//! Timers of entities: the handle, the number pending in an instance, and the count of those lost
//! to an active-entity limit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::entity::Entity;
use super::ids::{EntityId, ShardId};
use super::runtime::Runtime;
use super::tracked::TaskControl;

/// Least time in nanoseconds between two log lines about lost timers of one entity type.
const LOG_EVERY: u64 = 60_000_000_000;

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
/// ends; dropping this handle does not cancel it.
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
    /// Shows whether the message was cancelled, by [`cancel`](Timer::cancel) or with its instance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("cancelled", &self.control.is_stopped()).finish()
    }
}

/// Counts timers that an active-entity limit stopped before they sent their message.
#[derive(Debug, Default)]
pub(super) struct LostTimers {
    count: AtomicU64,
    logged: AtomicU64, // time of the last log line in nanoseconds; 0: never
}

impl LostTimers {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl<E: Entity> Runtime<E> {
    /// Counts and logs the pending timers of an instance that stops because of the active-entity
    /// limit. Logs at most once a minute per type, and then only this entity and the total. No
    /// effect for a `count` of 0.
    pub(super) fn lose_timers(&self, count: usize, shard: ShardId, entity: &EntityId) {
        if count == 0 {
            return;
        }
        let LostTimers { count: all, logged } = &self.lost_timers;
        let total = all.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        let (now, last) = (self.world.now().as_nanos().max(1), logged.load(Ordering::Relaxed));
        if last != 0 && now.saturating_sub(last) < LOG_EVERY {
            return;
        }
        logged.store(now, Ordering::Relaxed);
        let entity_type = &self.entity_type;
        tracing::warn!(
            %entity_type, %entity, %shard, count, total,
            "sharding.lost_timers: the active-entity limit stopped an entity whose timers were \
             pending; they will not fire: raise passivation.active-entity-limit, or keep the due \
             time outside the entity"
        );
    }
}
