//! Slow handlers: handlers that have run for `slow-handler-after`. They are logged and counted, and
//! their shards are reported to the region, so that rebalancing leaves these shards where they are.
//! A shard that must leave nevertheless drops its slow handlers once nothing else keeps it. With a
//! `slow-handler-after` of 0 there are none.
//!
//! A handler is noted when it first awaits; a handler that ends at its first poll costs nothing
//! here. While any handler awaits, a task periodically checks all busy entities. A handler that
//! blocks its thread never awaits: the node's stall monitor finds and logs it, and then the task
//! reports its shard, too. Nothing can drop such a handler.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::task::AtomicWaker;
use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::LogThrottle;

use super::entity::Entity;
use super::ids::{EntityId, ShardId};
use super::polls::{self, LongPoll};
use super::region::RegionInput;
use super::runtime::Runtime;
use super::shard::{DeliveryContext, Shard, ShardEntities};
use super::shard_stage::ShardStage;
use crate::wakers::yield_now;

// Bounds of the pause between two checks, which is a quarter of `slow-handler-after`.
const LOOK_MIN: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Number of rows that are checked under one hold of the shard's lock.
const ROWS_AT_A_TIME: usize = 1_000;

/// Duration of a poll from which it counts as blocking its thread.
const BLOCKS_FROM: Duration = Duration::from_millis(500);

/// The waker of an entity's activation whose task has waited for its handler, so that the handler
/// can be aborted, and the time of the handler's first await. The entity's shard keeps both.
#[derive(Default)]
pub(super) struct Handling {
    pub(super) waker: AtomicWaker,
    since: AtomicU64,  // in nanoseconds; 0: no handler awaits
    log_at: AtomicU64, // time of the next log record, in nanoseconds; 0: not logged yet
}

impl Handling {
    /// Notes that a handler awaits. Only its first await reads the clock; later ones have no effect
    /// until [`end`](Self::end).
    pub(super) fn begin(&self, now: impl FnOnce() -> Instant) {
        if self.since.load(Ordering::Relaxed) == 0 {
            self.log_at.store(0, Ordering::Relaxed);
            // `watch_handlers` needs the order of this store and its own load of `watches`.
            self.since.store(now().as_nanos().max(1), Ordering::SeqCst);
        }
    }

    /// Notes that the handler has ended, so it no longer counts as awaiting. No effect if it never
    /// awaited. The waker stays.
    pub(super) fn end(&self) {
        self.since.store(0, Ordering::Release);
    }

    /// The time of the handler's first await; `None` if no handler awaits.
    pub(super) fn since(&self) -> Option<Instant> {
        let since = self.since.load(Ordering::SeqCst);
        (since > 0).then(|| Instant::from_nanos(since))
    }

    /// Returns whether this is the handler's first log record; `None` if none is due, because the
    /// handler is younger than `after` or was logged before. The next one is due at twice the
    /// present age. The caller must log it, and count the first one.
    fn due(&self, now: Instant, age: Duration, after: Duration) -> Option<bool> {
        let log_at = self.log_at.load(Ordering::Relaxed);
        if age < after || now.as_nanos() < log_at {
            return None;
        }
        self.log_at.store((now + age).as_nanos(), Ordering::Relaxed);
        Some(log_at == 0)
    }
}

/// The slow handlers of one entity type: their number so far, whether a task checks for them, and
/// the last report to the region.
#[derive(Debug, Default)]
pub(super) struct SlowHandlers {
    count: AtomicU64,
    watches: AtomicBool, // the task runs; stays set if it ended with the node
    reported: Mutex<Reported>,
}

/// The last report to the region, and the throttle of the log record about it.
#[derive(Debug, Default)]
struct Reported {
    shards: BTreeSet<ShardId>, // ≤ number-of-shards
    throttle: LogThrottle,
}

/// A handler that has run for `slow-handler-after`, with its age.
type SlowHandler = (EntityId, Duration);

impl SlowHandlers {
    /// Number of awaiting handlers that a check has found to be slow; each counts once. Handlers
    /// that only block their threads do not count.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A handler by the row of its entity, and since when it awaits or blocks its thread.
pub(super) type RunningRow = (u32, Instant);

/// A handler, on the asking node, because of which a message was not handled in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningHandler {
    /// Entity of the handler. It has the type that was asked.
    pub entity: EntityId,
    /// Rust type of the message that it handles.
    pub message_type: &'static str,
    /// Time since its first await, or since it blocks its thread.
    pub running_for: Duration,
}

impl fmt::Display for RunningHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity, message_type, running_for } = self;
        write!(f, "the handler of {entity}, which has run for {running_for:?} on a {message_type}")
    }
}

/// The awaiting handlers in a range of rows.
struct AwaitingHandlers {
    awaiting: usize,                  // all of them, slow or not
    due: Vec<SlowHandler>,            // to be logged
    oldest_slow: Option<SlowHandler>, // `None` unless the shard is Open
}

impl<E: Entity> ShardEntities<E> {
    /// Returns the handler of the entity in this row, if it awaits or is among the `blocking` ones,
    /// with the earlier of both times. `None` also if the row is free.
    pub(super) fn handler_of(&self, row: u32, blocking: &[RunningRow]) -> Option<RunningRow> {
        let busy = self.entity_table.try_get(row)?.busy.as_ref()?;
        let awaits = busy.handling.as_ref().and_then(|handling| handling.since());
        let blocks = blocking.iter().filter(|(at, _)| *at == row).map(|(_, since)| *since);
        let since = awaits.into_iter().chain(blocks).min()?;
        Some((row, since))
    }

    /// Returns the handler that has run for the longest time: the oldest `blocking` one, or the
    /// oldest one that awaited at the last check and still does, slow or not. It only explains a
    /// timeout, so the rows are not searched for another one that awaits.
    pub(super) fn oldest_handler(&self, blocking: &[RunningRow]) -> Option<RunningRow> {
        let still = |known: &RunningRow| self.handler_of(known.0, &[]) == Some(*known);
        let awaits = self.oldest.filter(still);
        awaits.into_iter().chain(blocking.iter().copied()).min_by_key(|(_, since)| *since)
    }

    /// Names the handler in a row, for an error; `None` if the row is free. That the entity runs is
    /// not checked: the caller must have found the handler under the same lock.
    pub(super) fn describe(
        &self,
        (row, since): RunningRow,
        now: Instant,
    ) -> Option<Box<RunningHandler>> {
        let entity = self.entity_table.try_get(row)?.id.clone();
        let (message_type, running_for) = (std::any::type_name::<E::Message>(), now - since);
        Some(Box::new(RunningHandler { entity, message_type, running_for }))
    }

    /// Aborts the handlers of a draining shard once all that still run were found slow by the last
    /// check, and still are by the clock at this moment. The shard's other entities have stopped,
    /// and only these handlers delay their start at the next home. The stage becomes `Aborted`; one
    /// log line names one handler. Does nothing if nothing runs, while anything else runs, spawned
    /// tasks and handlers that have not awaited included, and in any other stage.
    ///
    /// Drain is bounded (docs/protocol/sharding.md#drain-is-bounded): the region still releases the
    /// shard only after its last handler has ended, because an abort drops the handler. The handler
    /// ends earlier than at `handoff-timeout`.
    pub(super) fn abort_slow(
        &mut self,
        DeliveryContext { shard, runtime }: &DeliveryContext<'_, E>,
    ) {
        if self.running == 0 || self.running > self.slow.len() || !shard.phase.is_draining() {
            return;
        }
        let (now, after) = (runtime.world.now(), runtime.settings.slow_handler_after);
        let entity_table = &self.entity_table;
        self.slow.retain(|row| {
            let busy = entity_table.try_get(*row).and_then(|entity_slot| entity_slot.busy.as_ref());
            let handling = busy.filter(|busy| busy.runs).and_then(|busy| busy.handling.as_ref());
            let since = handling.and_then(|handling| handling.since());
            since.is_some_and(|since| now - since >= after)
        });
        if self.running > self.slow.len() {
            return;
        }
        if let Some(row) = self.slow.first() {
            let (entity_type, shard) = (&runtime.entity_type, shard.id);
            let (entity, handlers) = (&entity_table.get(*row).id, self.running);
            tracing::info!(
                %entity_type, %shard, %entity, handlers,
                "sharding.slow_handlers_dropped: they had run for slow-handler-after, and nothing \
                 else keeps the shard, which leaves this node; the line names one of them"
            );
        }
        shard.phase.set(ShardStage::Aborted);
        self.wake(); // an activation that wakes in this stage drops its handler
    }
}

impl<E: Entity> Runtime<E> {
    /// Starts the task that checks for slow handlers, unless one runs or `slow-handler-after` is 0.
    /// Called when a handler awaits or blocks its thread. The first check comes after one pause, a
    /// quarter of that time within the bounds. The task ends once no handler awaits or blocks, and
    /// with the runtime. Once the node has stopped, it ends at its next check, for good.
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
                // A handler that begins to await after this store starts a new task. A handler that
                // awaited before and saw that this task runs is found by the check below.
                let watches = &runtime.slow_handlers.watches;
                watches.store(false, Ordering::SeqCst);
                if runtime.find_slow_handlers().await == 0 || watches.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        }));
    }

    /// Checks all shards, with a turn for other tasks after each range of rows: logs the awaiting
    /// slow handlers that are due, counts each at its first log line, and reports the open shards
    /// of slow and blocking handlers to the region. Returns the number of handlers that await or
    /// block their threads, slow or not; one that does both counts twice.
    async fn find_slow_handlers(self: &Arc<Self>) -> usize {
        let (mut running, mut slow) = self.blocking_handlers();
        // The oldest slow handler of each shard that is Open replaces the blocking one. Other
        // shards are not reported: they drain or are empty, so that no planned move concerns them.
        for shard in self.known() {
            let blocking = slow.remove(&shard.id);
            let mut oldest = blocking.filter(|_| shard.phase.get() == ShardStage::Open);
            for first in (0..).step_by(ROWS_AT_A_TIME) {
                let Some(found) = self.slow_in(shard, first..first + ROWS_AT_A_TIME) else { break };
                running += found.awaiting;
                for (entity, age) in found.due {
                    self.name_slow(shard, &entity, age);
                }
                oldest = oldest.into_iter().chain(found.oldest_slow).max_by_key(|(_, age)| *age);
                yield_now().await;
            }
            slow.extend(oldest.map(|oldest| (shard.id, oldest)));
        }
        self.report_slow(&slow);
        running
    }

    /// Returns the polls of this type that have taken [`BLOCKS_FROM`] or longer, as of the stall
    /// monitor's last check. None without a monitor.
    fn blocking_polls(&self) -> Vec<LongPoll> {
        let mut all = polls::awake_for(BLOCKS_FROM);
        all.retain(|poll| poll.entities == self.polls);
        all
    }

    /// Returns the handlers of a shard that block their threads, as of the stall monitor's last
    /// check.
    pub(super) fn blocking_in(&self, shard: ShardId) -> Vec<RunningRow> {
        let now = self.world.now().as_nanos();
        let since = |took: Duration| {
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            Instant::from_nanos(now.saturating_sub(took))
        };
        let own = self.blocking_polls().into_iter().filter(|poll| poll.shard == shard);
        own.map(|poll| (poll.row, since(poll.took))).collect()
    }

    /// Returns the number of handlers that block their threads, for [`BLOCKS_FROM`] or longer, and
    /// by shard, in whatever stage, the one that has blocked its thread for the longest time, if
    /// that is `slow-handler-after` or longer. Locks the shards of the latter, one after the other.
    fn blocking_handlers(&self) -> (usize, BTreeMap<ShardId, SlowHandler>) {
        let all = self.blocking_polls();
        let slow = all.iter().filter(|poll| poll.took >= self.settings.slow_handler_after);
        let named = slow.filter_map(|LongPoll { shard, row, took, .. }| {
            Some((*shard, (self.entity_at(*shard, *row)?, *took)))
        });
        (all.len(), oldest_by_shard(named))
    }

    /// Reports the Open shards with slow handlers to the region if they differ from the last
    /// report, also when none is left. Of the new ones the one with the oldest handler is also
    /// logged, at most once a minute.
    fn report_slow(&self, slow: &BTreeMap<ShardId, SlowHandler>) {
        let now = self.world.now();
        let reported = &self.slow_handlers.reported;
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        if slow.keys().eq(&reported.shards) {
            return;
        }
        let new = slow.iter().filter(|(shard, _)| !reported.shards.contains(*shard));
        let oldest = new.max_by_key(|(_, (_, age))| *age);
        if let Some((shard, (entity, age))) = oldest.filter(|_| reported.throttle.permit(now)) {
            let (entity_type, shards) = (&self.entity_type, slow.len());
            let message_type = std::any::type_name::<E::Message>();
            tracing::info!(
                %entity_type, %shard, %entity, message_type, running_for = ?age, shards,
                "sharding.left_out: rebalancing leaves this shard on this node until the handler \
                 has ended; `shards` shards of the type are left out so"
            );
        }
        reported.shards = slow.keys().copied().collect();
        self.world.tell(RegionInput::SlowHandlers(reported.shards.clone()));
    }

    /// Checks a range of rows of a shard: collects its awaiting handlers, counts those that are
    /// slow for the first time, and [aborts](ShardEntities::abort_slow) those of a draining shard.
    /// A range from 0 on begins a new check, which forgets the slow handlers and the oldest one of
    /// the last check. Takes the shard's lock.
    ///
    /// `None` if nothing runs in the shard, and then nothing is forgotten, or if the shard has no
    /// row at or after the begin of the range.
    fn slow_in(&self, shard: &Shard<E>, rows: Range<usize>) -> Option<AwaitingHandlers> {
        let (now, after) = (self.world.now(), self.settings.slow_handler_after);
        let (mut awaiting, mut due, mut oldest_slow) = (0, Vec::new(), None::<SlowHandler>);
        let mut inside = shard.lock();
        let shard_entities = &mut inside.shard_entities;
        if shard_entities.running == 0 {
            return None;
        }
        if rows.start == 0 {
            shard_entities.slow.clear();
            shard_entities.oldest = None;
        }
        let stays = shard.phase.get() == ShardStage::Open;
        let entity_table = &shard_entities.entity_table;
        for row in entity_table.matching(rows, |entity_slot| entity_slot.busy.is_some())? {
            let entity_slot = entity_table.get(row);
            let Some(handling) = entity_slot.busy.as_ref().and_then(|busy| busy.handling.as_ref())
            else {
                continue;
            };
            let Some(since) = handling.since() else { continue };
            awaiting += 1;
            if shard_entities.oldest.is_none_or(|(_, earliest)| since < earliest) {
                shard_entities.oldest = Some((row, since));
            }
            let age = now - since;
            if let Some(is_first) = handling.due(now, age, after) {
                self.slow_handlers.count.fetch_add(u64::from(is_first), Ordering::Relaxed);
                due.push((entity_slot.id.clone(), age));
            }
            if age >= after {
                shard_entities.slow.insert(row);
            }
            let is_older = oldest_slow.as_ref().is_none_or(|(_, known)| age > *known);
            if stays && age >= after && is_older {
                oldest_slow = Some((entity_slot.id.clone(), age));
            }
        }
        shard_entities.abort_slow(&DeliveryContext { shard, runtime: self });
        Some(AwaitingHandlers { awaiting, due, oldest_slow })
    }

    /// Logs a slow handler as a warning, with the entities whose answers it awaits.
    fn name_slow(&self, shard: &Shard<E>, entity: &EntityId, age: Duration) {
        let (entity_type, shard_id) = (&self.entity_type, shard.id);
        let message_type = std::any::type_name::<E::Message>();
        let awaits = shard.phase.asks().of(entity); // entities that the handler has asked
        tracing::warn!(
            %entity_type, %entity, shard = %shard_id, message_type, running_for = ?age, ?awaits,
            "sharding.slow_handler: a handler has not ended: its entity handles no other message, \
             and if its shard has to leave this node, it is dropped as soon as the shard's other \
             entities have stopped"
        );
    }
}

/// Returns the handler of each shard that has run for the longest time.
fn oldest_by_shard(
    slow: impl IntoIterator<Item = (ShardId, SlowHandler)>,
) -> BTreeMap<ShardId, SlowHandler> {
    let mut oldest = BTreeMap::<ShardId, SlowHandler>::new();
    for (shard, (entity, age)) in slow {
        if oldest.get(&shard).is_none_or(|(_, known)| age > *known) {
            oldest.insert(shard, (entity, age));
        }
    }
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_blocking_handler_of_each_shard_is_reported() {
        let handler = |shard, entity: &str, seconds| {
            let entity = EntityId::new(entity).expect("short");
            (ShardId::new(shard), (entity, Duration::from_secs(seconds)))
        };
        let (older, newer, other) = (handler(1, "a", 60), handler(1, "b", 40), handler(2, "c", 50));
        let expected = BTreeMap::from([older.clone(), other.clone()]);
        for slow in [[&older, &newer, &other], [&newer, &other, &older]] {
            assert_eq!(oldest_by_shard(slow.map(Clone::clone)), expected);
        }
    }
}
