//! Strategies of passivation: they choose the entities that stop so that others have room
//! (docs/protocol/sharding.md#passivation).
//!
//! The strategies see entities as numbered [`Slot`]s and messages as accesses; they know no ids,
//! mailboxes or clock. The caller reports which entities are busy, and stops the chosen ones.

mod chains;
mod composite;
mod frequency;
mod hill_climber;
mod idle;
mod recency;
mod replacement;
pub mod settings;
mod sketch;

use std::fmt;

use ostraca_ddata::clock::Instant;

use chains::{Chain, Chains};
use composite::{CompositePolicy, CountRetention};
use idle::Idle;
use replacement::Replacement;
use settings::{ACTIVE_ENTITIES_MAX, LimitScope, PassivationStrategy};

const LEAVING: Chain = Chain::new(0);

/// Number of an active entity in its region's table. Numbers are dense because the policies keep
/// arrays by slot. A slot is reused after its entity has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Makes the slot with this number, which is not far above [`settings::ACTIVE_ENTITIES_MAX`] at
    /// most.
    ///
    /// # Panics
    /// If the number is `u32::MAX`.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        assert!(number < u32::MAX, "u32::MAX is reserved for no slot");
        Self(number)
    }

    /// Returns the number of the slot.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// State of an active entity, as it matters for its stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It neither handles a message nor has messages waiting.
    Idle,
    /// The same, but one of its timers is pending: a limit may stop it, idleness does not.
    Timed,
    /// It handles a message, or has messages waiting.
    Busy,
}

/// A message for an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Time of the message.
    pub now: Instant,
    /// Slot of the entity.
    pub slot: Slot,
    /// Hash of the entity's id, which stays the same when the entity returns in another slot.
    pub hash: u64,
}

/// The policy that enforces the limit.
#[derive(Clone, Debug)]
enum Limited {
    /// There is no limit, and no entity is counted.
    No,
    By(Replacement),
    ByTwo(Box<CompositePolicy>),
}

/// The active entities of a region or of a shard, and the choice of those that must stop.
///
/// A chosen entity leaves the order of the limit at once and no longer counts. If it is busy, it is
/// *marked*: it stops as soon as it has [rested](Self::rested), and not at all if a message comes
/// for it first: then it counts again, and another entity may have to stop. So only busy entities
/// can exceed the limit. A marked entity remains among those whose idle time is measured.
///
/// The caller must stop each entity that a method appends to `stop`: the policy has forgotten it.
/// It need not report that stop by [`stopped`](Self::stopped).
///
/// An access takes the same time for any number of entities (with `least-frequently-used`,
/// logarithmic in the number of different counts).
#[derive(Clone, Debug)]
pub struct PassivationPolicy {
    limited: Limited,
    limit: usize,
    idle: Option<Idle>,
    leaving: Chains,  // the marked ones; ≤ busy entities
    going: Vec<Slot>, // empty between calls
}

impl PassivationPolicy {
    /// Makes a policy without entities, with the limit of the settings, clamped to 1 to
    /// [`ACTIVE_ENTITIES_MAX`]. Idle entities are not chosen with the strategy `none` or an idle
    /// timeout of 0. With [`LimitScope::Shard`] a change of the limit resets the frequency counts
    /// of `composite`. Other settings are taken as they are.
    #[must_use]
    pub fn new(settings: &settings::PassivationConfig) -> Self {
        let limit = settings.active_entity_limit.clamp(1, ACTIVE_ENTITIES_MAX);
        let counts = match settings.scope {
            LimitScope::Region => CountRetention::Kept,
            LimitScope::Shard => CountRetention::Dropped,
        };
        let limited = match (settings.policy(), settings.strategy) {
            (Some(policy), _) => Limited::By(Replacement::new(&policy, limit)),
            (None, PassivationStrategy::Composite) => {
                Limited::ByTwo(Box::new(CompositePolicy::new(&settings.composite, limit, counts)))
            }
            (None, _) => Limited::No,
        };
        let off = settings.strategy == PassivationStrategy::None || settings.idle_timeout.is_zero();
        let interval = settings.idle_interval.unwrap_or(settings.idle_timeout / 2);
        let idle = (!off).then(|| Idle::new(settings.idle_timeout, interval));
        Self { limited, limit, idle, leaving: Chains::empty(), going: Vec::new() }
    }

    /// Returns the part of a region's limit for each of its active shards with
    /// [`LimitScope::Shard`], rounded down; at least 1. No active shards count as one.
    #[must_use]
    pub fn share(limit: usize, active_shards: usize) -> usize {
        (limit / active_shards.max(1)).max(1)
    }

    /// Records a message before its entity handles it, adds an unknown entity, and appends the
    /// entities that must stop for it to `stop`. An earlier mark of the message's entity is
    /// removed. With `composite` that entity may itself be chosen.
    ///
    /// `busy` tells whether an entity handles a message or has messages waiting, and is called only
    /// for chosen entities; a busy one is marked instead of appended. Without a limit no entity is
    /// chosen, and only the time is recorded.
    pub fn touched(
        &mut self,
        access: Access,
        busy: &mut dyn FnMut(Slot) -> bool,
        stop: &mut Vec<Slot>,
    ) {
        self.leaving.remove(access.slot);
        if let Some(idle) = &mut self.idle {
            idle.touch(access.now, access.slot);
        }
        let going = &mut self.going;
        match &mut self.limited {
            Limited::No => return,
            Limited::By(replacement) => replacement.access(access.slot, going),
            Limited::ByTwo(composite) => composite.access(access.slot, access.hash, going),
        }
        self.let_go(busy, stop);
    }

    /// Records that an entity is no longer busy. Appends it to `stop` if it is marked, and forgets
    /// it; otherwise a burst would leave idle entities beyond the limit until further messages
    /// come. Does nothing for another entity: its idle time counts from its last message.
    pub fn rested(&mut self, slot: Slot, stop: &mut Vec<Slot>) {
        if self.leaving.remove(slot) {
            if let Some(idle) = &mut self.idle {
                idle.remove(slot);
            }
            stop.push(slot);
        }
    }

    /// Removes an entity that stopped for another reason, with its mark, so that its slot can be
    /// reused. Does nothing if it is unknown. Frequency counts by hash stay.
    pub fn stopped(&mut self, slot: Slot) {
        self.leaving.remove(slot);
        if let Some(idle) = &mut self.idle {
            idle.remove(slot);
        }
        let _was_counted = match &mut self.limited {
            Limited::No => false,
            Limited::By(replacement) => replacement.remove(slot),
            Limited::ByTwo(composite) => composite.remove(slot),
        };
    }

    /// Sets the limit, clamped to 1 to [`ACTIVE_ENTITIES_MAX`], and appends the entities over it to
    /// `stop`; busy ones are marked instead. A higher limit does not remove marks. A strategy
    /// without a limit only stores the number.
    pub fn set_limit(
        &mut self,
        limit: usize,
        busy: &mut dyn FnMut(Slot) -> bool,
        stop: &mut Vec<Slot>,
    ) {
        self.limit = limit.clamp(1, ACTIVE_ENTITIES_MAX);
        match &mut self.limited {
            Limited::No => return,
            Limited::By(replacement) => {
                replacement.aim(self.limit);
                replacement.shrink(&mut self.going);
            }
            Limited::ByTwo(composite) => composite.set_limit(self.limit, &mut self.going),
        }
        self.let_go(busy, stop);
    }

    /// Appends to `stop` first, at every call, the marked entities that are no longer busy, also
    /// those with a pending timer; then, if a check is due, the entities that were idle for too
    /// long, counted or not. An entity that `uses` reports as [`Use::Timed`] or [`Use::Busy`] is
    /// not idle: its idle time starts again, without counting as a use for the limit. Call it at
    /// [`next_deadline`](Self::next_deadline); a call before that is harmless.
    pub fn tick(&mut self, now: Instant, uses: &mut dyn FnMut(Slot) -> Use, stop: &mut Vec<Slot>) {
        self.look_again(uses, stop);
        let Some(idle) = &mut self.idle else { return };
        idle.look(now, &mut self.going);
        for slot in std::mem::take(&mut self.going) {
            if uses(slot) != Use::Idle {
                // An entity in use counts as if a message came now.
                if let Some(idle) = &mut self.idle {
                    idle.touch(now, slot);
                }
            } else {
                self.stopped(slot);
                stop.push(slot);
            }
        }
    }

    /// Returns the time of the next check for idle entities; `None` without entities, or if idle
    /// entities are not chosen. Marked entities have no time of their own.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.idle.as_ref().and_then(Idle::next_deadline)
    }

    /// Returns the number of entities that count, at most the limit. 0 without a limit.
    #[cfg(test)]
    fn counted(&self) -> usize {
        match &self.limited {
            Limited::No => 0,
            Limited::By(replacement) => replacement.len(),
            Limited::ByTwo(composite) => composite.len(),
        }
    }

    /// Empties `going`, the entities that a policy has just chosen and forgotten: appends them to
    /// `stop`, but marks the busy ones, to stop when they have rested.
    fn let_go(&mut self, busy: &mut dyn FnMut(Slot) -> bool, stop: &mut Vec<Slot>) {
        for slot in self.going.drain(..) {
            if busy(slot) {
                self.leaving.push_back(LEAVING, slot);
            } else {
                if let Some(idle) = &mut self.idle {
                    idle.remove(slot);
                }
                stop.push(slot);
            }
        }
    }

    /// Appends the marked entities that are no longer busy to `stop`, in case nobody reported that
    /// they rested, and forgets their idle time. The others stay marked, in the same order.
    fn look_again(&mut self, uses: &mut dyn FnMut(Slot) -> Use, stop: &mut Vec<Slot>) {
        for _ in 0..self.leaving.len() {
            let Some(slot) = self.leaving.front(LEAVING) else { return };
            self.leaving.remove(slot);
            if uses(slot) == Use::Busy {
                self.leaving.push_back(LEAVING, slot);
            } else {
                if let Some(idle) = &mut self.idle {
                    idle.remove(slot);
                }
                stop.push(slot);
            }
        }
    }
}

/// Returns `share` × `limit`, rounded down; a multiplier is a `share` above 1. A small amount is
/// added first because 0.7 × 10 is less than 7 in binary floating point. The result is not bounded
/// by `limit`; a negative `share` gives 0.
fn portion(share: f64, limit: usize) -> usize {
    (share * limit as f64 + 1e-9) as usize
}

#[cfg(test)]
mod tests;
