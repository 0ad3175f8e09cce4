//! A replacement policy with its limit: it chooses the entity that stops when one more becomes
//! active.

use super::Slot;
use super::frequency::{Aging, Frequency};
use super::recency::{EvictFirst, Recency};
use super::settings::Policy;

#[derive(Clone, Debug)]
enum EvictionOrder {
    Recency(Recency),
    Frequency(Frequency),
}

/// Active entities in the order in which they would be stopped.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    order: EvictionOrder, // ≤ limit entities between calls, except after `insert` or `aim`
    limit: usize,
}

impl Replacement {
    /// Makes a policy without entities. A `limit` of 0 is allowed.
    pub(super) fn new(policy: &Policy, limit: usize) -> Self {
        let order = match policy {
            Policy::LeastRecentlyUsed => {
                EvictionOrder::Recency(Recency::new(EvictFirst::LeastRecent, vec![]))
            }
            Policy::Segmented(segmented) => EvictionOrder::Recency(Recency::new(
                EvictFirst::LeastRecent,
                segmented.proportions.clone(),
            )),
            Policy::MostRecentlyUsed => {
                EvictionOrder::Recency(Recency::new(EvictFirst::MostRecent, vec![]))
            }
            Policy::LeastFrequentlyUsed(frequency) => {
                let aging = if frequency.dynamic_aging { Aging::Dynamic } else { Aging::Off };
                EvictionOrder::Frequency(Frequency::new(aging))
            }
        };
        let mut replacement = Self { order, limit };
        replacement.aim(limit);
        replacement
    }

    pub(super) const fn len(&self) -> usize {
        match &self.order {
            EvictionOrder::Recency(recency) => recency.len(),
            EvictionOrder::Frequency(frequency) => frequency.len(),
        }
    }

    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    pub(super) const fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        match &self.order {
            EvictionOrder::Recency(recency) => recency.contains(slot),
            EvictionOrder::Frequency(frequency) => frequency.contains(slot),
        }
    }

    /// Removes an entity that stopped for another reason than the limit; false if it was not there.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        match &mut self.order {
            EvictionOrder::Recency(recency) => recency.remove(slot),
            EvictionOrder::Frequency(frequency) => frequency.remove(slot),
        }
    }

    /// Adds an entity, also beyond the limit. Panics if it is there already.
    pub(super) fn insert(&mut self, slot: Slot) {
        match &mut self.order {
            EvictionOrder::Recency(recency) => recency.insert(slot),
            EvictionOrder::Frequency(frequency) => frequency.insert(slot),
        }
    }

    /// Records a use of an entity that was added. Does nothing for another one.
    pub(super) fn touch(&mut self, slot: Slot) {
        match &mut self.order {
            EvictionOrder::Recency(recency) => recency.touch(slot),
            EvictionOrder::Frequency(frequency) => frequency.touch(slot),
        }
    }

    /// Records a use: adds the entity if necessary, and removes the entities that must stop for it
    /// and appends them to `out`. The newcomer itself always stays, even with a limit of 0. The use
    /// of an entity that is there stops none, even over the limit.
    pub(super) fn access(&mut self, slot: Slot, out: &mut Vec<Slot>) {
        if self.contains(slot) {
            return self.touch(slot);
        }
        match &self.order {
            EvictionOrder::Recency(_) => {
                self.insert(slot);
                self.shrink_to(self.limit, Some(slot), out);
            }
            // Before the newcomer is added, whose count is the lowest.
            EvictionOrder::Frequency(_) => {
                self.shrink_to(self.limit.saturating_sub(1), None, out);
                self.insert(slot);
            }
        }
    }

    /// Returns the entity to stop next, whether the limit is reached or not; `None` without any.
    pub(super) fn victim(&self) -> Option<Slot> {
        self.victim_but(None)
    }

    /// Removes `slot`, which was the victim. Unlike [`remove`](Self::remove) it ages the counts of
    /// the others, if the policy has aging.
    pub(super) fn evict(&mut self, slot: Slot) {
        if let EvictionOrder::Frequency(frequency) = &mut self.order {
            frequency.age_by(slot);
        }
        self.remove(slot);
    }

    /// Sets the limit without removing any entity; with several levels, some may sink.
    pub(super) fn aim(&mut self, limit: usize) {
        self.limit = limit;
        if let EvictionOrder::Recency(recency) = &mut self.order {
            recency.set_limit(limit);
        }
    }

    /// Removes the entities over the limit and appends them to `out`, the first victim first.
    pub(super) fn shrink(&mut self, out: &mut Vec<Slot>) {
        self.shrink_to(self.limit, None, out);
    }

    /// Evicts victims other than `except` until at most `limit` entities are left, or only
    /// `except`. Ages counts like [`evict`](Self::evict).
    fn shrink_to(&mut self, limit: usize, except: Option<Slot>, out: &mut Vec<Slot>) {
        while self.len() > limit {
            let Some(victim) = self.victim_but(except) else { return };
            self.evict(victim);
            out.push(victim);
        }
    }

    /// Returns the entity to stop next. An order by frequency ignores `except`: it makes room
    /// before it adds the newcomer.
    fn victim_but(&self, except: Option<Slot>) -> Option<Slot> {
        match &self.order {
            EvictionOrder::Recency(recency) => recency.victim(except),
            EvictionOrder::Frequency(frequency) => frequency.victim(),
        }
    }

    /// Returns the entities of a level, the least recent first; none for an order by frequency.
    #[cfg(test)]
    pub(super) fn level(&self, level: usize) -> Vec<u32> {
        match &self.order {
            EvictionOrder::Recency(recency) => recency.level(level),
            EvictionOrder::Frequency(_) => Vec::new(),
        }
    }
}
