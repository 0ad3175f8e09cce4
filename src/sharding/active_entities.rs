//! The active entities under one limit, and the choice of those that must stop because of it
//! (docs/protocol/sharding.md#passivation). One [`ActiveEntities`] belongs to all shards of a
//! region or to one shard, by the setting of the limit's scope. Used only with strategies that have
//! a limit; with plain idle passivation the entity table records since when each entity is idle.
//!
//! Lock order: a shard, then this. The entities chosen here are stopped later, each under its own
//! shard's lock and only if it is still idle then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostraca_ddata::clock::Instant;

use super::ids::ShardId;
use super::passivation::settings;
use super::passivation::{Access, PassivationPolicy, Slot, Use};
use super::timers::Timers;

/// An entity that must stop, if it is idle and still has this slot. By then another entity may have
/// the row, or both: then that one stops if it is idle, which is too early but harmless. If only
/// the row has another entity, nothing stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StopCandidate {
    pub(super) shard: ShardId,
    pub(super) row: u32,  // in the entity table of the shard
    pub(super) slot: u32, // in `ActiveState::slots`
}

struct Active {
    shard: ShardId,
    row: u32,
    busy: bool, // has messages, handles one, or stops
    /// Timers of its instance; `None` if it never had one, and while the entity is busy: a busy
    /// entity does not stop, whatever its timers.
    timers: Option<Arc<Timers>>,
}

/// Active entities under one limit, behind a lock. A chosen entity keeps its slot until
/// [`leave`](Self::leave), although the policy has forgotten it. Methods ignore a free slot, except
/// `leave`, and panic for a slot that `enter` never returned.
pub(super) struct ActiveEntities {
    inside: Mutex<ActiveState>,
}

struct ActiveState {
    passivation: PassivationPolicy,
    slots: Vec<Option<Active>>, // ≤ entities that are active at the same time; `None`: free
    free: Vec<u32>,
    stop: Vec<Slot>, // chosen by the call that runs; empty between calls
}

impl ActiveEntities {
    /// Starts without entities. The limit of the settings is clamped as by
    /// [`PassivationPolicy::new`].
    pub(super) fn new(settings: &settings::PassivationConfig) -> Self {
        let inside = ActiveState {
            passivation: PassivationPolicy::new(settings),
            slots: Vec::new(),
            free: Vec::new(),
            stop: Vec::new(),
        };
        Self { inside: Mutex::new(inside) }
    }

    /// Ignores poison: no code of the user runs under the lock, and a wrong count only stops an
    /// entity too early or too late.
    fn lock(&self) -> MutexGuard<'_, ActiveState> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entity that got its first message, as busy, and returns its slot, which may be one
    /// that another entity has left. Call [`touch`](Self::touch) next, which reports the message to
    /// the policy.
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

    /// Removes an entity that stopped, for whatever reason, also if it was not chosen. The caller
    /// gives its slot up, and must call this only once for it, which is not checked: another entity
    /// may get the slot.
    pub(super) fn leave(&self, slot: u32) {
        let mut inside = self.lock();
        inside.slots[slot as usize] = None;
        inside.passivation.stopped(Slot::new(slot));
        inside.free.push(slot);
    }

    /// Marks an entity as busy without a message: it was chosen to stop, and its stop begins. The
    /// policy is not told, so this does not count as an access.
    pub(super) fn set_busy(&self, slot: u32) {
        self.lock().set_busy(slot, true, None);
    }

    /// Marks an entity as idle, and appends it to `candidates` if it was chosen to stop while it
    /// was busy, whatever its timers. Its idle time counts from its last message.
    /// [`tick`](Self::tick) leaves it alone while one of its `timers` is pending.
    pub(super) fn rest(
        &self,
        slot: u32,
        timers: Option<&Arc<Timers>>,
        candidates: &mut Vec<StopCandidate>,
    ) {
        let mut inside = self.lock();
        inside.set_busy(slot, false, timers.map(Arc::clone));
        inside.choose(candidates, |passivation, _, stop| passivation.rested(Slot::new(slot), stop));
    }

    /// Records a message for an entity, which is busy from now on, and appends the idle entities
    /// that must stop for it; a busy one that is chosen follows when it rests. If the entity was
    /// chosen to stop while it was busy, that choice lapses. `hash` is the hash of the entity's id.
    pub(super) fn touch(
        &self,
        now: Instant,
        slot: u32,
        hash: u64,
        candidates: &mut Vec<StopCandidate>,
    ) {
        let access = Access { now, slot: Slot::new(slot), hash };
        let mut inside = self.lock();
        inside.set_busy(slot, true, None);
        inside
            .choose(candidates, |passivation, busy, stop| passivation.touched(access, busy, stop));
    }

    /// Appends the entities that must stop because of the time: at every call those that were
    /// chosen while busy and no longer are, then, if a check is due, those idle for too long. For
    /// that check, an entity that is busy or has a pending timer counts as used now instead; the
    /// limit stops one with a timer as well.
    pub(super) fn tick(&self, now: Instant, candidates: &mut Vec<StopCandidate>) {
        self.lock().tick(now, candidates);
    }

    /// Sets the limit, clamped to 1 to `ACTIVE_ENTITIES_MAX`, and appends the entities that must
    /// stop because of it. Busy ones over the limit follow as soon as they rest, also if the limit
    /// was raised meanwhile.
    pub(super) fn set_limit(&self, limit: usize, candidates: &mut Vec<StopCandidate>) {
        self.lock()
            .choose(candidates, |passivation, busy, stop| passivation.set_limit(limit, busy, stop));
    }
}

impl ActiveState {
    /// Sets whether the entity with this slot is busy, and its timers. Ignores a free slot.
    fn set_busy(&mut self, slot: u32, busy: bool, timers: Option<Arc<Timers>>) {
        if let Some(active) = &mut self.slots[slot as usize] {
            (active.busy, active.timers) = (busy, timers);
        }
    }

    /// Implements [`ActiveEntities::tick`]. A free slot counts as idle.
    fn tick(&mut self, now: Instant, candidates: &mut Vec<StopCandidate>) {
        let Self { passivation, slots, stop, .. } = self;
        let mut use_of = |slot: Slot| match slots.get(slot.get() as usize).and_then(Option::as_ref)
        {
            Some(active) if active.busy => Use::Busy,
            Some(Active { timers: Some(timers), .. }) if timers.pending() > 0 => Use::Timed,
            _ => Use::Idle,
        };
        passivation.tick(now, &mut use_of, stop);
        self.append_chosen(candidates);
    }

    /// Runs `choice` of the policy, and appends the entities that it chose to `candidates`.
    /// `choice` can ask whether a slot is busy; a free one is not.
    fn choose(
        &mut self,
        candidates: &mut Vec<StopCandidate>,
        choice: impl FnOnce(&mut PassivationPolicy, &mut dyn FnMut(Slot) -> bool, &mut Vec<Slot>),
    ) {
        let Self { passivation, slots, stop, .. } = self;
        let active = |slot: Slot| slots.get(slot.get() as usize).and_then(Option::as_ref);
        choice(passivation, &mut |slot| active(slot).is_some_and(|active| active.busy), stop);
        self.append_chosen(candidates);
    }

    /// Empties `stop`, and appends its entities to `candidates`, except those of free slots. Their
    /// slots stay occupied until [`ActiveEntities::leave`].
    fn append_chosen(&mut self, candidates: &mut Vec<StopCandidate>) {
        let Self { slots, stop, .. } = self;
        candidates.extend(stop.drain(..).filter_map(|slot| {
            let Active { shard, row, .. } = slots.get(slot.get() as usize)?.as_ref()?;
            Some(StopCandidate { shard: *shard, row: *row, slot: slot.get() })
        }));
    }
}
