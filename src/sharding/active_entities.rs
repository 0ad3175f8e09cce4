//! The active entities of a region or shard, and the choice of those that must stop because of a
//! limit (docs/protocol/sharding.md#passivation). Used only with strategies that have a limit; with
//! plain idle passivation the entity table records since when each entity is idle.
//!
//! Lock order: a shard, then this. The entities chosen here are stopped later, each under its own
//! shard's lock and only if it is still idle then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_ddata::clock::Instant;

use super::ids::ShardId;
use super::passivation::settings;
use super::passivation::{Access, PassivationPolicy, Slot, Use};
use super::timers::Timers;

/// An entity that must stop, if it is still this one and idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StopCandidate {
    pub(super) shard: ShardId,
    pub(super) row: u32,
    pub(super) slot: u32,
}

struct Active {
    shard: ShardId,
    row: u32,
    busy: bool,
    /// Timers of its instance, set while the entity is not busy.
    timers: Option<Arc<Timers>>,
}

/// Active entities under one limit, behind a lock.
pub(super) struct ActiveEntities {
    inside: Mutex<TrackerState>,
}

struct TrackerState {
    passivation: PassivationPolicy,
    slots: Vec<Option<Active>>, // ≤ entities that are active at the same time
    free: Vec<u32>,
    stop: Vec<Slot>, // empty between calls
}

impl ActiveEntities {
    pub(super) fn new(settings: &settings::PassivationConfig) -> Self {
        let inside = TrackerState {
            passivation: PassivationPolicy::new(settings),
            slots: Vec::new(),
            free: Vec::new(),
            stop: Vec::new(),
        };
        Self { inside: Mutex::new(inside) }
    }

    fn lock(&self) -> MutexGuard<'_, TrackerState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entity that got its first message and returns its slot.
    pub(super) fn enter(&self, shard: ShardId, row: u32) -> u32 {
        let mut inside = self.lock();
        let active = Some(Active { shard, row, busy: true, timers: None });
        match inside.free.pop() {
            Some(slot) => {
                inside.slots[slot as usize] = active;
                slot
            }
            None => {
                inside.slots.push(active);
                u32::try_from(inside.slots.len() - 1).expect("fewer than 2^32 active entities")
            }
        }
    }

    /// Removes an entity that stopped, for whatever reason.
    pub(super) fn leave(&self, slot: u32) {
        let mut inside = self.lock();
        inside.slots[slot as usize] = None;
        inside.passivation.stopped(Slot::new(slot));
        inside.free.push(slot);
    }

    /// Marks an entity as busy.
    pub(super) fn set_busy(&self, slot: u32) {
        self.lock().set_busy(slot, true, None);
    }

    /// Marks an entity as idle, and appends it to `leavers` if the limit was exceeded while it was
    /// busy. An entity with pending timers does not stop for being idle.
    pub(super) fn rest(
        &self,
        slot: u32,
        timers: Option<&Arc<Timers>>,
        leavers: &mut Vec<StopCandidate>,
    ) {
        let mut inside = self.lock();
        inside.set_busy(slot, false, timers.map(Arc::clone));
        inside.ask(leavers, |passivation, _, stop| passivation.rested(Slot::new(slot), stop));
    }

    /// Records a message for an entity, which is busy from now on, and appends the entities that
    /// must stop for it.
    pub(super) fn touch(
        &self,
        now: Instant,
        slot: u32,
        hash: u64,
        leavers: &mut Vec<StopCandidate>,
    ) {
        let access = Access { now, slot: Slot::new(slot), hash };
        let mut inside = self.lock();
        inside.set_busy(slot, true, None);
        inside.ask(leavers, |passivation, busy, stop| passivation.touched(access, busy, stop));
    }

    /// Appends the entities that must stop because of the time.
    pub(super) fn tick(&self, now: Instant, leavers: &mut Vec<StopCandidate>) {
        self.lock().tick(now, leavers);
    }

    /// Sets the limit, and appends the entities that must stop because of it.
    pub(super) fn set_limit(&self, limit: usize, leavers: &mut Vec<StopCandidate>) {
        self.lock()
            .ask(leavers, |passivation, busy, stop| passivation.set_limit(limit, busy, stop));
    }
}

impl TrackerState {
    fn set_busy(&mut self, slot: u32, busy: bool, timers: Option<Arc<Timers>>) {
        if let Some(active) = &mut self.slots[slot as usize] {
            (active.busy, active.timers) = (busy, timers);
        }
    }

    fn tick(&mut self, now: Instant, leavers: &mut Vec<StopCandidate>) {
        let Self { passivation, slots, stop, .. } = self;
        let uses = |slot: Slot| match slots.get(slot.get() as usize).and_then(Option::as_ref) {
            Some(active) if active.busy => Use::Busy,
            Some(Active { timers: Some(timers), .. }) if timers.pending() > 0 => Use::Timed,
            _ => Use::Idle,
        };
        passivation.tick(now, &mut { uses }, stop);
        self.name(leavers);
    }

    fn ask(
        &mut self,
        leavers: &mut Vec<StopCandidate>,
        act: impl FnOnce(&mut PassivationPolicy, &mut dyn FnMut(Slot) -> bool, &mut Vec<Slot>),
    ) {
        let Self { passivation, slots, stop, .. } = self;
        let active = |slot: Slot| slots.get(slot.get() as usize).and_then(Option::as_ref);
        act(passivation, &mut |slot| active(slot).is_some_and(|active| active.busy), stop);
        self.name(leavers);
    }

    /// Appends the entities in `stop` to `leavers`.
    fn name(&mut self, leavers: &mut Vec<StopCandidate>) {
        let Self { slots, stop, .. } = self;
        leavers.extend(stop.drain(..).filter_map(|slot| {
            let Active { shard, row, .. } = slots.get(slot.get() as usize)?.as_ref()?;
            Some(StopCandidate { shard: *shard, row: *row, slot: slot.get() })
        }));
    }
}
