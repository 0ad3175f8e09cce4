//! Passivation on one node (docs/protocol/sharding.md#passivation): which bookkeeping a type needs,
//! the periodic check for idle entities, and their stop. The strategies are in `passivation`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::actives::{Leaver, PassivationTracker};
use super::config::Sharding;
use super::entity::Entity;
use super::id_hash::hash;
use super::passivation::settings::{Scope, Strategy};
use super::passivation::{self, settings};
use super::run::yield_now;
use super::runtime::Runtime;
use super::shard::{After, Floor, Shard, Visit};
use super::tenancy::Stage;
use super::tenants::{NONE, Tenant};

/// Shortest time between two checks.
const SWEEP_MIN: Duration = Duration::from_millis(10);

/// Rows of the entity table that are checked under one hold of the shard's lock.
const ROWS_AT_A_TIME: usize = 1_000;

/// Bookkeeping of passivation for a region.
pub(super) enum Books {
    Nobody,
    /// None; a check of all rows finds the entities that were idle for the timeout. A check takes a
    /// few nanoseconds per row, once in a while; bookkeeping would be updated at each burst of
    /// messages.
    Rows,
    /// One tracker for all shards together.
    Region(Arc<PassivationTracker>),
    /// One tracker per shard.
    Shards(Box<settings::Passivation>),
}

impl Books {
    pub(super) fn new(settings: &Sharding) -> Self {
        match settings.automatic_passivation() {
            None => Self::Nobody,
            Some(settings) => match (settings.strategy, settings.scope) {
                (Strategy::None, _) => Self::Nobody,
                (Strategy::Idle, _) if settings.idle_timeout.is_zero() => Self::Nobody,
                (Strategy::Idle, _) => Self::Rows,
                (_, Scope::Shard) => Self::Shards(Box::new(settings.clone())),
                (_, Scope::Region) => Self::Region(Arc::new(PassivationTracker::new(settings))),
            },
        }
    }

    pub(super) fn of_shard(&self) -> ShardBooks {
        match self {
            Self::Nobody => ShardBooks::Nobody,
            Self::Rows => ShardBooks::Rows,
            Self::Region(actives) => ShardBooks::Kept(Arc::clone(actives)),
            Self::Shards(settings) => ShardBooks::Kept(Arc::new(PassivationTracker::new(settings))),
        }
    }
}

/// Bookkeeping of passivation for a shard.
pub(super) enum ShardBooks {
    Nobody,
    /// The rows record since when their entities are idle; the periodic check reads them.
    Rows,
    Kept(Arc<PassivationTracker>),
}

impl ShardBooks {
    /// Returns the tracker in which an entity has this slot.
    fn of(&self, slot: u32) -> Option<&PassivationTracker> {
        match self {
            Self::Kept(actives) if slot != NONE => Some(actives),
            _ => None,
        }
    }
}

impl<E: Entity> Runtime<E> {
    pub(super) fn passivate(self: &Arc<Self>, leavers: Vec<Leaver>) {
        for leaver in leavers {
            let Some(shard) = self.shard(leaver.shard) else { continue };
            self.if_open(shard, |floor, after| floor.passivate(leaver, after));
        }
    }

    /// Changes the entities of a shard if it lives here and does not drain, and carries out the
    /// effects.
    fn if_open<T>(
        self: &Arc<Self>,
        shard: &Arc<Shard<E>>,
        act: impl FnOnce(&mut Floor<E>, &mut After<E>) -> T,
    ) -> Option<T> {
        let mut after = After::default();
        let done = {
            let mut inside = shard.lock();
            (shard.phase.get() == Stage::Open).then(|| act(&mut inside.floor, &mut after))
        };
        self.carry_out(shard, after);
        done
    }

    /// Starts the periodic check for idle entities, unless it runs.
    pub(super) fn sweep(self: &Arc<Self>) {
        let Some(settings) = self.settings.automatic_passivation() else { return };
        let off = matches!(self.books, Books::Nobody) || settings.idle_timeout.is_zero();
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

    async fn tick(self: &Arc<Self>) {
        let (now, mut leavers) = (self.world.now(), Vec::new());
        match &self.books {
            Books::Nobody => {}
            Books::Rows => {
                for shard in self.known() {
                    self.stop_idle(shard).await;
                }
            }
            Books::Region(actives) => actives.tick(now, &mut leavers),
            Books::Shards(_) => self.known().for_each(|shard| {
                if let ShardBooks::Kept(actives) = &shard.lock().floor.books {
                    actives.tick(now, &mut leavers);
                }
            }),
        }
        self.passivate(leavers);
    }

    /// Stops the idle entities of a shard. The rows are checked in parts, with a turn for other
    /// tasks after each, because messages wait meanwhile.
    async fn stop_idle(self: &Arc<Self>, shard: &Arc<Shard<E>>) {
        for first in (0..).step_by(ROWS_AT_A_TIME) {
            let (rows, now) = (first..first + ROWS_AT_A_TIME, self.world.now());
            let timeout = self.settings.passivation.idle_timeout;
            let for_long = |tenant: &Tenant<E>| {
                let timed = tenant.state.as_ref().is_some_and(|instance| instance.has_timers());
                !timed && now - tenant.rests_since >= timeout
            };
            let more = self.if_open(shard, |floor, after| floor.stop_idle(rows, for_long, after));
            if more != Some(true) {
                return;
            }
            yield_now().await;
        }
    }

    /// Sets the limit of active entities for all shards together.
    pub(super) fn set_limit(self: &Arc<Self>, limit: usize) {
        self.limit.store(limit, Ordering::Release);
        if let Books::Region(actives) = &self.books {
            let mut leavers = Vec::new();
            actives.set_limit(limit, &mut leavers);
            self.passivate(leavers);
        }
        self.share_limit();
    }

    /// Divides the limit among the shards that live here, if each has its own tracker.
    pub(super) fn share_limit(self: &Arc<Self>) {
        if !matches!(self.books, Books::Shards(_)) {
            return;
        }
        let (limit, mut leavers) = (self.limit.load(Ordering::Acquire), Vec::new());
        let live = |shard: &&Arc<Shard<E>>| shard.phase.get() == Stage::Open;
        let share = passivation::Passivation::share(limit, self.known().filter(live).count());
        for shard in self.known().filter(live) {
            if let ShardBooks::Kept(actives) = &shard.lock().floor.books {
                actives.set_limit(share, &mut leavers);
            }
        }
        self.passivate(leavers);
    }
}

impl<E: Entity> Floor<E> {
    /// Reports a message to the tracker.
    pub(super) fn visit(
        &mut self,
        row: u32,
        hash: u64,
        Visit { shard, runtime }: Visit<'_, E>,
        after: &mut After<E>,
    ) {
        let ShardBooks::Kept(actives) = &self.books else { return };
        let tenant = self.tenants.get_mut(row);
        if tenant.slot == NONE {
            tenant.slot = actives.enter(shard.id, row);
        }
        actives.touch(runtime.world.now(), tenant.slot, hash, &mut after.leavers);
    }

    /// Records that an entity became idle.
    pub(super) fn rest(&mut self, row: u32, runtime: &Runtime<E>, after: &mut After<E>) {
        let tenant = self.tenants.get_mut(row);
        if let ShardBooks::Rows = self.books {
            tenant.rests_since = runtime.world.now();
        } else if let Some(actives) = self.books.of(tenant.slot) {
            let timers = tenant.state.as_ref().and_then(|instance| instance.timers());
            actives.rest(tenant.slot, timers, &mut after.leavers);
        }
    }

    /// Removes an entity with this slot from the tracker.
    pub(super) fn leave_books(&self, slot: u32) {
        if let Some(actives) = self.books.of(slot) {
            actives.leave(slot);
        }
    }

    /// Stops an entity that the tracker chose, if it is still this one and idle.
    pub(super) fn passivate(&mut self, leaver: Leaver, after: &mut After<E>) {
        let Leaver { row, slot, .. } = leaver;
        let is_it = |tenant: &Tenant<E>| tenant.slot == slot && tenant.busy.is_none();
        if self.tenants.try_get(row).is_some_and(is_it) {
            self.stop(row, after);
        }
    }

    /// Stops the entities in `rows` that are idle and match `for_long`. Returns false if no rows
    /// follow.
    fn stop_idle(
        &mut self,
        rows: Range<usize>,
        for_long: impl Fn(&Tenant<E>) -> bool,
        after: &mut After<E>,
    ) -> bool {
        let leaves = |tenant: &Tenant<E>| tenant.busy.is_none() && for_long(tenant);
        let Some(leave) = self.tenants.those(rows, leaves) else { return false };
        leave.into_iter().for_each(|row| self.stop(row, after));
        true
    }

    /// Stops an idle entity: its value is dropped, after its stop message if the type has one.
    fn stop(&mut self, row: u32, after: &mut After<E>) {
        let tenant = self.tenants.get(row);
        let slot = tenant.slot;
        if tenant.state.is_none() {
            return self.forget(row, slot);
        }
        // In a task of its own, so that no other instance begins before this one is dropped.
        self.tenants.busy(row).leaves = true;
        if let Some(actives) = self.books.of(slot) {
            actives.set_busy(slot);
        }
        self.start(row, after);
    }

    /// Drops a dormant state as its idle entity would be; its instance had its stop message before.
    fn forget(&mut self, row: u32, slot: u32) {
        if self.tenants.wake(row).is_none() {
            return;
        }
        let _no_value = self.tenants.remove(row, hash);
        self.leave_books(slot);
    }

    /// Removes all entities from the tracker, because their shard leaves.
    pub(super) fn close_books(&mut self) {
        for tenant in self.tenants.all() {
            let slot = std::mem::replace(&mut tenant.slot, NONE);
            if let Some(actives) = self.books.of(slot) {
                actives.leave(slot);
            }
        }
    }
}
