//! Handlers that do not end: named in the log and counted.
//!
//! A handler is noted when it first awaits; one that ends at its first poll costs nothing here. While
//! any handler awaits, a task looks at all busy entities now and then. A handler that blocks its
//! thread never awaits, and is not found here.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::task::AtomicWaker;
use ostraca_ddata::clock::Instant;

use super::entity::Entity;
use super::ids::EntityId;
use super::run::yield_now;
use super::runtime::Runtime;
use super::shard::Shard;

/// The handlers are looked at four times within `slow-handler-after`, within these bounds.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Rows that are looked at under one hold of their shard's lock.
const ROWS_AT_A_TIME: usize = 1_000;

/// An entity's activation, as its shard sees it: its waker, and since when its handler has awaited.
#[derive(Default)]
pub(super) struct Handling {
    pub(super) waker: AtomicWaker,
    since: AtomicU64,  // in nanoseconds; 0: no handler awaits
    log_at: AtomicU64, // the same; 0: it was not logged
}

impl Handling {
    /// A handler awaits. Only the first time in its life reads the clock.
    pub(super) fn begin(&self, now: impl FnOnce() -> Instant) {
        if self.since.load(Ordering::Relaxed) == 0 {
            self.log_at.store(0, Ordering::Relaxed);
            self.since.store(now().as_nanos().max(1), Ordering::SeqCst);
        }
    }

    pub(super) fn end(&self) {
        self.since.store(0, Ordering::Release);
    }

    /// Since when the handler has awaited.
    pub(super) fn since(&self) -> Option<Instant> {
        let since = self.since.load(Ordering::SeqCst);
        (since > 0).then(|| Instant::from_nanos(since))
    }

    /// Whether it is time to log that the handler has run for `age`, and for the first time.
    fn due(&self, now: Instant, age: Duration, after: Duration) -> Option<bool> {
        let log_at = self.log_at.load(Ordering::Relaxed);
        if age < after || now.as_nanos() < log_at {
            return None;
        }
        self.log_at.store((now + age).as_nanos(), Ordering::Relaxed); // when it is twice as old
        Some(log_at == 0)
    }
}

/// The counter of one entity type, and whether a task looks for slow handlers.
#[derive(Debug, Default)]
pub(super) struct SlowHandlers {
    count: AtomicU64,
    watches: AtomicBool,
}

impl SlowHandlers {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Handlers in some rows.
struct Found {
    awaiting: usize,
    due: Vec<(EntityId, Duration)>, // to be logged, with their age
}

impl<E: Entity> Runtime<E> {
    /// A handler awaits: begins to look for slow handlers, if no task does.
    pub(super) fn watch_handlers(self: &Arc<Self>) {
        let (after, watches) = (self.settings.slow_handler_after, &self.slow_handlers.watches);
        if after.is_zero() || watches.load(Ordering::SeqCst) || watches.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let pause = (after / 4).clamp(LOOK_MIN, LOOK_MAX);
        let (runtime, world) = (Arc::downgrade(self), Arc::clone(&self.world));
        self.world.spawn(Box::pin(async move {
            loop {
                world.sleep(pause).await;
                let Some(runtime) = runtime.upgrade().filter(|runtime| !runtime.is_over()) else {
                    return;
                };
                if runtime.find_slow_handlers().await > 0 {
                    continue;
                }
                // One that begins to await from here on begins a task of its own; one that did so
                // before and found this task is found here.
                let watches = &runtime.slow_handlers.watches;
                watches.store(false, Ordering::SeqCst);
                if runtime.find_slow_handlers().await == 0 || watches.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        }));
    }

    /// Logs and counts those that are due: how many handlers await.
    async fn find_slow_handlers(self: &Arc<Self>) -> usize {
        let mut await_now = 0;
        for shard in self.known() {
            for first in (0..).step_by(ROWS_AT_A_TIME) {
                let Some(found) = self.slow_in(shard, first..first + ROWS_AT_A_TIME) else { break };
                await_now += found.awaiting;
                for (entity, age) in found.due {
                    self.name_slow(shard, &entity, age);
                }
                yield_now().await;
            }
        }
        await_now
    }

    /// What is found in some rows of a shard. `None`: no handler runs in the shard, or there are no
    /// rows behind these.
    fn slow_in(&self, shard: &Shard<E>, rows: Range<usize>) -> Option<Found> {
        let (now, after) = (self.world.now(), self.settings.slow_handler_after);
        let (mut awaiting, mut due) = (0, Vec::new());
        let inside = shard.lock();
        if inside.floor.running == 0 {
            return None;
        }
        let tenants = &inside.floor.tenants;
        for row in tenants.those(rows, |tenant| tenant.busy.is_some())? {
            let tenant = tenants.get(row);
            let Some(handling) = tenant.busy.as_ref().and_then(|busy| busy.waker.as_ref()) else {
                continue;
            };
            let Some(since) = handling.since() else { continue };
            awaiting += 1;
            let age = now - since;
            if let Some(is_first) = handling.due(now, age, after) {
                self.slow_handlers.count.fetch_add(u64::from(is_first), Ordering::Relaxed);
                due.push((tenant.id.clone(), age));
            }
        }
        Some(Found { awaiting, due })
    }

    fn name_slow(&self, shard: &Shard<E>, entity: &EntityId, age: Duration) {
        let (entity_type, shard_id) = (&self.entity_type, shard.id);
        let message_type = std::any::type_name::<E::Message>();
        let awaits = shard.phase.asks().of(entity);
        tracing::warn!(
            %entity_type, %entity, shard = %shard_id, message_type, running_for = ?age, ?awaits,
            "sharding.slow_handler: a handler has not ended: its entity handles no other message, \
             and a move or stop of its shard waits for it, at most for handoff-timeout"
        );
    }
}
