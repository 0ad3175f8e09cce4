//! Order by last use: least recently used, in one level or several, and most recently used.
//!
//! The segmented form is that of Karedla, Love and Wherry, *Caching Strategies to Improve Disk
//! System Performance* (1994): a repeated use raises an entity by a level, an overfull level lowers
//! its oldest entity, and entities stop from the lowest level. One level is plain LRU.

use super::Slot;
use super::chains::{Chain, Chains};

/// The end of the order whose entity is stopped (evicted) first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictFirst {
    LeastRecent,
    /// Only with one level, because an entity that sinks becomes the most recent of its new level.
    MostRecent,
}

/// Active entities, ordered by their last use.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    evicts: EvictFirst,
    // Chain 0 is the lowest. Each is in the order in which entities came into it, by a use or by
    // sinking.
    levels: Chains,
    shares: Vec<f64>, // parts of the limit, by level; not empty, sum 1
    // By level; 0 until `set_limit`. Level 0 takes the rest of the total limit, which the caller
    // enforces by `victim`; its own limit is not applied.
    limits: Vec<usize>,
}

impl Recency {
    /// Makes an empty order with a level for each share, the lowest first. No shares: one level.
    pub(super) fn new(evicts: EvictFirst, shares: Vec<f64>) -> Self {
        let shares = if shares.is_empty() { vec![1.0] } else { shares };
        Self { evicts, levels: Chains::empty(), limits: vec![0; shares.len()], shares }
    }

    pub(super) const fn len(&self) -> usize {
        self.levels.len()
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.levels.contains(slot)
    }

    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        self.levels.remove(slot)
    }

    /// Sets the total limit, and lowers entities over the limits of upper levels. Removes none,
    /// even if there are more than `limit`. The share of an upper level may round down to 0: a
    /// raised entity then sinks again within [`touch`](Self::touch).
    pub(super) fn set_limit(&mut self, limit: usize) {
        for (own, share) in self.limits.iter_mut().zip(&self.shares) {
            *own = super::portion(*share, limit);
        }
        self.sink();
    }

    /// Adds an entity to the lowest level, as its most recent one, whatever the limit. Panics if it
    /// is in the order already.
    pub(super) fn insert(&mut self, slot: Slot) {
        self.levels.push_back(Chain::new(0), slot);
    }

    /// Records a use of an entity in the order: it rises by a level, becomes the most recent one
    /// there, and others may sink. At the top it stays. Does nothing if it is not in the order.
    pub(super) fn touch(&mut self, slot: Slot) {
        let top = self.shares.len() - 1;
        let Some(level) = self.levels.chain_of(slot) else { return };
        self.levels.remove(slot);
        self.levels.push_back(chain((level.index() + 1).min(top)), slot);
        self.sink();
    }

    /// Returns the entity to stop next, from the lowest level that has one other than `except`: the
    /// entity whose message exceeds the limit must not stop for itself. `None` if there is no other
    /// entity. Removes none.
    pub(super) fn victim(&self, except: Option<Slot>) -> Option<Slot> {
        let levels = &self.levels;
        (0..self.shares.len()).map(chain).find_map(|level| {
            let (first, second) = match self.evicts {
                EvictFirst::LeastRecent => {
                    let first = levels.front(level)?;
                    (first, levels.after(first))
                }
                EvictFirst::MostRecent => {
                    let first = levels.back(level)?;
                    (first, levels.before(first))
                }
            };
            if Some(first) == except { second } else { Some(first) }
        })
    }

    /// Lowers the least recent entities of each upper level over its limit by a level, from the top
    /// on, so that one entity may sink through several levels. A sunk entity is the most recent of
    /// its new level. The lowest level takes any number.
    fn sink(&mut self) {
        for level in (1..self.shares.len()).rev() {
            while self.levels.len_of(chain(level)) > self.limits[level] {
                let Some(oldest) = self.levels.front(chain(level)) else { break };
                self.levels.remove(oldest);
                self.levels.push_back(chain(level - 1), oldest);
            }
        }
    }

    /// Returns the entities of a level, the least recent first.
    #[cfg(test)]
    pub(super) fn level(&self, level: usize) -> Vec<u32> {
        let first = self.levels.front(chain(level));
        std::iter::successors(first, |&slot| self.levels.after(slot)).map(Slot::get).collect()
    }
}

fn chain(level: usize) -> Chain {
    Chain::new(u32::try_from(level).expect("levels are few"))
}
