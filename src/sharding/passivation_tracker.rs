//! Passivation on one node (docs/protocol/sharding.md#passivation): which bookkeeping a type needs,
//! the periodic check for idle entities, and their stop. The strategies are in `passivation`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::active_entities::{ActiveEntities, StopCandidate};
use super::config::ShardingConfig;
use super::entity::Entity;
use super::entity_table::{EntitySlot, NONE};
use super::id_hash::hash;
use super::passivation::settings::{LimitScope, PassivationStrategy};
use super::passivation::{self, settings};
use super::runtime::Runtime;
use super::shard::{DeliveryContext, Shard, ShardEffects, ShardEntities};
use super::shard_stage::ShardStage;
use crate::wakers::yield_now;

/// Shortest time between two checks.
const SWEEP_MIN: Duration = Duration::from_millis(10);

/// Rows of the entity table that are checked under one hold of the shard's lock.
const ROWS_AT_A_TIME: usize = 1_000;

/// Bookkeeping of passivation for a region.
pub(super) enum PassivationTracker {
    /// No automatic passivation: the strategy `none`, `remember-entities`, or the strategy `idle`
    /// with a timeout of 0. A strategy with a limit has a tracker even with a timeout of 0.
    Nobody,
    /// No bookkeeping; a check of all rows finds the entities that were idle for the timeout. A
    /// check takes a few nanoseconds per row, once in a while; bookkeeping would be updated at each
    /// burst of messages.
    Rows,
    /// One tracker for all shards together.
    Region(Arc<ActiveEntities>),
    /// One tracker per shard, made with these settings.
    Shards(Box<settings::PassivationConfig>),
}

impl PassivationTracker {
    pub(super) fn new(settings: &ShardingConfig) -> Self {
        match settings.automatic_passivation() {
            None => Self::Nobody,
            Some(settings) => match (settings.strategy, settings.scope) {
                (PassivationStrategy::None, _) => Self::Nobody,
                (PassivationStrategy::Idle, _) if settings.idle_timeout.is_zero() => Self::Nobody,
                (PassivationStrategy::Idle, _) => Self::Rows,
                (_, LimitScope::Shard) => Self::Shards(Box::new(settings.clone())),
                (_, LimitScope::Region) => Self::Region(Arc::new(ActiveEntities::new(settings))),
            },
        }
    }

    /// Makes the bookkeeping of a new shard. With [`Shards`](Self::Shards) it is a tracker of its
    /// own that has the configured limit of the region, undivided, until
    /// [`Runtime::share_limit`]. With [`Region`](Self::Region) it is the shared tracker.
    pub(super) fn of_shard(&self) -> ShardPassivationTracker {
        match self {
            Self::Nobody => ShardPassivationTracker::Nobody,
            Self::Rows => ShardPassivationTracker::Rows,
            Self::Region(actives) => ShardPassivationTracker::Kept(Arc::clone(actives)),
            Self::Shards(settings) => {
                ShardPassivationTracker::Kept(Arc::new(ActiveEntities::new(settings)))
            }
        }
    }
}

/// Bookkeeping of passivation for a shard.
pub(super) enum ShardPassivationTracker {
    /// Entities are not passivated automatically.
    Nobody,
    /// The rows record since when their entities are idle; the periodic check reads them.
    Rows,
    /// This shard's own tracker, or the one of the region.
    Kept(Arc<ActiveEntities>),
}

impl ShardPassivationTracker {
    /// Returns the tracker in which an entity has this slot; `None` without trackers, or if the
    /// entity has no slot.
    fn of(&self, slot: u32) -> Option<&ActiveEntities> {
        match self {
            Self::Kept(actives) if slot != NONE => Some(actives),
            _ => None,
        }
    }
}

impl<E: Entity> Runtime<E> {
    /// Stops the chosen entities that are still idle and whose shards are open; the others are left
    /// out without a report. The caller must hold no shard's lock: this takes the lock of each
    /// entity's shard, one after the other, and carries out the effects after each.
    pub(super) fn passivate(self: &Arc<Self>, leavers: Vec<StopCandidate>) {
        for leaver in leavers {
            let Some(shard) = self.shard(leaver.shard) else { continue };
            self.if_open(shard, |shard_entities, after| shard_entities.passivate(leaver, after));
        }
    }

    /// Changes the entities of a shard under its lock if it lives here and does not drain, and
    /// carries out the effects after the lock is released. Otherwise returns `None`, without a call
    /// of `act`.
    fn if_open<T>(
        self: &Arc<Self>,
        shard: &Arc<Shard<E>>,
        act: impl FnOnce(&mut ShardEntities<E>, &mut ShardEffects<E>) -> T,
    ) -> Option<T> {
        let mut after = ShardEffects::default();
        let done = {
            let mut inside = shard.lock();
            (shard.phase.get() == ShardStage::Open)
                .then(|| act(&mut inside.shard_entities, &mut after))
        };
        self.carry_out(shard, after);
        done
    }

    /// Starts the periodic check for idle entities, unless it was started before or no entity stops
    /// for being idle. The check ends with the runtime, for good. It comes first after one pause of
    /// `idle-interval`, or half of `idle-timeout`, but at least [`SWEEP_MIN`]; each pause begins
    /// when the check before has ended.
    pub(super) fn sweep(self: &Arc<Self>) {
        let Some(settings) = self.settings.automatic_passivation() else { return };
        let off = matches!(self.passivation_tracker, PassivationTracker::Nobody)
            || settings.idle_timeout.is_zero();
        if off || self.sweeps.swap(true, Ordering::AcqRel) {
            return;
        }
        let pause = settings.idle_interval.unwrap_or(settings.idle_timeout / 2).max(SWEEP_MIN);
        let (runtime, world) = (Arc::downgrade(self), Arc::clone(&self.world));
        self.world.spawn(Box::pin(async move {
            loop {
                world.sleep(pause).await;
                let Some(runtime) = runtime.upgrade().filter(|runtime| !runtime.is_over()) else {
                    return;
                };
                runtime.tick().await;
            }
        }));
    }

    /// Checks once for idle entities, and stops them. A tracker also returns the entities that it
    /// chose while they were busy and that no longer are. With [`PassivationTracker::Shards`] each
    /// shard is locked while its tracker is asked; entities stop after the last lock is released.
    async fn tick(self: &Arc<Self>) {
        let (now, mut leavers) = (self.world.now(), Vec::new());
        match &self.passivation_tracker {
            PassivationTracker::Nobody => {}
            PassivationTracker::Rows => {
                for shard in self.known() {
                    self.stop_idle(shard).await;
                }
            }
            PassivationTracker::Region(actives) => actives.tick(now, &mut leavers),
            PassivationTracker::Shards(_) => self.known().for_each(|shard| {
                if let ShardPassivationTracker::Kept(actives) =
                    &shard.lock().shard_entities.passivation_tracker
                {
                    actives.tick(now, &mut leavers);
                }
            }),
        }
        self.passivate(leavers);
    }

    /// Stops the entities of a shard that were idle for the timeout, apart from those with a
    /// pending timer. Only for [`PassivationTracker::Rows`]. The shard's lock is held for one part
    /// of [`ROWS_AT_A_TIME`] rows, and other tasks get a turn after each part, because messages
    /// wait meanwhile. Ends early once the shard is no longer open.
    async fn stop_idle(self: &Arc<Self>, shard: &Arc<Shard<E>>) {
        for first in (0..).step_by(ROWS_AT_A_TIME) {
            let (rows, now) = (first..first + ROWS_AT_A_TIME, self.world.now());
            let timeout = self.settings.passivation.idle_timeout;
            let for_long = |entity_slot: &EntitySlot<E>| {
                let timed =
                    entity_slot.instance.as_ref().is_some_and(|instance| instance.has_timers());
                !timed && now - entity_slot.idle_since >= timeout
            };
            let more = self.if_open(shard, |shard_entities, after| {
                shard_entities.stop_idle(rows, for_long, after)
            });
            if more != Some(true) {
                return;
            }
            yield_now().await;
        }
    }

    /// Sets the limit of active entities for all shards together, and stops the idle ones over it;
    /// busy ones over it stop when they rest. Any number is stored as it is; the trackers clamp it
    /// to 1 and [`ACTIVE_ENTITIES_MAX`](settings::ACTIVE_ENTITIES_MAX). Without a strategy that has
    /// a limit, only stores the number.
    pub(super) fn set_limit(self: &Arc<Self>, limit: usize) {
        self.limit.store(limit, Ordering::Release);
        if let PassivationTracker::Region(actives) = &self.passivation_tracker {
            let mut leavers = Vec::new();
            actives.set_limit(limit, &mut leavers);
            self.passivate(leavers);
        }
        self.share_limit();
    }

    /// Divides the limit among the open shards, if each shard has its own tracker, and stops the
    /// idle entities over it; otherwise does nothing. Each share is rounded down, and at least 1.
    /// Called when a shard starts or has drained, and when the limit changes. The caller must hold
    /// no shard's lock.
    pub(super) fn share_limit(self: &Arc<Self>) {
        if !matches!(self.passivation_tracker, PassivationTracker::Shards(_)) {
            return;
        }
        let (limit, mut leavers) = (self.limit.load(Ordering::Acquire), Vec::new());
        let live = |shard: &&Arc<Shard<E>>| shard.phase.get() == ShardStage::Open;
        let share = passivation::PassivationPolicy::share(limit, self.known().filter(live).count());
        for shard in self.known().filter(live) {
            if let ShardPassivationTracker::Kept(actives) =
                &shard.lock().shard_entities.passivation_tracker
            {
                actives.set_limit(share, &mut leavers);
            }
        }
        self.passivate(leavers);
    }
}

impl<E: Entity> ShardEntities<E> {
    /// Reports a message, or a state that arrived in a move, to the tracker, if there is one. An
    /// entity without a slot gets one. Entities that must stop for it are added to `after.leavers`.
    /// For the tracker the entity is busy until [`rest`](Self::rest), so the caller must call that
    /// if no task runs for it.
    pub(super) fn track_delivery(
        &mut self,
        row: u32,
        hash: u64,
        DeliveryContext { shard, runtime }: DeliveryContext<'_, E>,
        after: &mut ShardEffects<E>,
    ) {
        let ShardPassivationTracker::Kept(actives) = &self.passivation_tracker else { return };
        let entity_slot = self.entity_table.get_mut(row);
        if entity_slot.tracker_slot == NONE {
            entity_slot.tracker_slot = actives.enter(shard.id, row);
        }
        actives.touch(runtime.world.now(), entity_slot.tracker_slot, hash, &mut after.leavers);
    }

    /// Records that an entity became idle: the time for [`ShardPassivationTracker::Rows`], or a
    /// report to the tracker, with the entity's timers. If the tracker had chosen the entity while
    /// it was busy, it is added to `after.leavers`. Nothing is recorded without bookkeeping, or in
    /// a tracker if the entity has no slot (its shard drains).
    pub(super) fn rest(&mut self, row: u32, runtime: &Runtime<E>, after: &mut ShardEffects<E>) {
        let entity_slot = self.entity_table.get_mut(row);
        if let ShardPassivationTracker::Rows = self.passivation_tracker {
            entity_slot.idle_since = runtime.world.now();
        } else if let Some(actives) = self.passivation_tracker.of(entity_slot.tracker_slot) {
            let timers = entity_slot.instance.as_ref().and_then(|instance| instance.timers());
            actives.rest(entity_slot.tracker_slot, timers, &mut after.leavers);
        }
    }

    /// Removes an entity with this slot from the tracker. Does nothing if the slot is `NONE`, or
    /// without a tracker. The caller drops the slot, which another entity may get.
    pub(super) fn untrack(&self, slot: u32) {
        if let Some(actives) = self.passivation_tracker.of(slot) {
            actives.leave(slot);
        }
    }

    /// Stops an entity that the tracker chose, if its row still has the slot and it is idle.
    /// Otherwise does nothing: the entity has got a message since, or has ended. It also stops if
    /// it has handled a message since and is idle again; see [`StopCandidate`].
    pub(super) fn passivate(&mut self, leaver: StopCandidate, after: &mut ShardEffects<E>) {
        let StopCandidate { row, slot, .. } = leaver;
        let is_it = |entity_slot: &EntitySlot<E>| {
            entity_slot.tracker_slot == slot && entity_slot.busy.is_none()
        };
        if self.entity_table.try_get(row).is_some_and(is_it) {
            self.stop(row, after);
        }
    }

    /// Stops the entities in `rows` that are idle and match `for_long`. Returns false, and stops
    /// none, if `rows` begins behind the last row; true otherwise, even if none stops.
    fn stop_idle(
        &mut self,
        rows: Range<usize>,
        for_long: impl Fn(&EntitySlot<E>) -> bool,
        after: &mut ShardEffects<E>,
    ) -> bool {
        let leaves =
            |entity_slot: &EntitySlot<E>| entity_slot.busy.is_none() && for_long(entity_slot);
        let Some(leave) = self.entity_table.matching(rows, leaves) else { return false };
        leave.into_iter().for_each(|row| self.stop(row, after));
        true
    }

    /// Stops an idle entity: its value is dropped, after its stop message if the type has one. That
    /// happens in a task that starts here, and not at all if a message comes first. The entity is
    /// busy from now on, for the tracker without an access. Without an instance the row is removed
    /// here, with its dormant state ([`forget`](Self::forget)).
    fn stop(&mut self, row: u32, after: &mut ShardEffects<E>) {
        let entity_slot = self.entity_table.get(row);
        let slot = entity_slot.tracker_slot;
        if entity_slot.instance.is_none() {
            return self.forget(row, slot);
        }
        // In a task of its own, so that no other instance begins before this one is dropped.
        self.entity_table.busy(row).stops_if_idle = true;
        if let Some(actives) = self.passivation_tracker.of(slot) {
            actives.set_busy(slot);
        }
        self.start(row, after);
    }

    /// Drops a dormant state as its idle entity would be, and removes its row and slot; the
    /// instance had its stop message before. The state is not counted as lost. Without a dormant
    /// state it does nothing, and the row stays.
    fn forget(&mut self, row: u32, slot: u32) {
        if self.entity_table.take_state(row).is_none() {
            return;
        }
        let _no_value = self.entity_table.remove(row, hash);
        self.untrack(slot);
    }

    /// Removes all entities of this shard from the tracker, because the shard drains or ends. Their
    /// rows stay, without slots.
    pub(super) fn untrack_all(&mut self) {
        for entity_slot in self.entity_table.all() {
            let slot = std::mem::replace(&mut entity_slot.tracker_slot, NONE);
            if let Some(actives) = self.passivation_tracker.of(slot) {
                actives.leave(slot);
            }
        }
    }
}
