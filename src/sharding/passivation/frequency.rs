//! Least frequently used, with optional dynamic aging.
//!
//! Entities are kept in buckets by count, so that a use and an eviction take the same time for any
//! number of entities (Shah, Mitra, Matani, *An O(1) algorithm for implementing the LFU cache
//! eviction scheme*, 2010, with an ordered map for the buckets). Aging: Arlitt, Cherkasova, Dilley,
//! Friedrich, Jin, *Evaluating Content Management Techniques for Web Proxy Caches* (2000).

use std::collections::BTreeMap;

use super::Slot;
use super::chains::{Chain, Chains};

/// Whether old counts lose weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aging {
    Off,
    /// A newcomer starts above the count of the entity that was [evicted](Frequency::age_by) last.
    Dynamic,
}

/// Active entities, ordered by their number of uses.
#[derive(Clone, Debug)]
pub(super) struct Frequency {
    aging: Aging,
    age: u64,                      // added to the first count of a newcomer; 0 without aging
    buckets: BTreeMap<u64, Chain>, // by count; ≤ one per entity, none is empty
    spare: Vec<Chain>,             // lists without a bucket; ≤ the most buckets there ever were
    lists: u32,                    // lists ever made
    members: Chains,               // each list from the least to the most recent use
    counts: Vec<u64>,              // by slot; stays after a removal, until the slot returns
}

impl Frequency {
    pub(super) const fn new(aging: Aging) -> Self {
        Self {
            aging,
            age: 0,
            buckets: BTreeMap::new(),
            spare: Vec::new(),
            lists: 0,
            members: Chains::empty(),
            counts: Vec::new(),
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.members.contains(slot)
    }

    /// Removes an entity, and its bucket if that is empty then; false if it was not there. The age
    /// stays.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        let Some(list) = self.members.chain_of(slot) else { return false };
        self.members.remove(slot);
        if self.members.len_of(list) == 0 {
            self.buckets.remove(&self.counts[slot.index()]);
            self.spare.push(list);
        }
        true
    }

    /// Adds an entity that is not there, with a count of 1 above the age, whatever its count was
    /// before it was removed. Panics if it is there.
    pub(super) fn insert(&mut self, slot: Slot) {
        self.put(slot, 1 + self.age);
    }

    /// Records a use: raises the count by 1 and makes the entity the latest with that count. Does
    /// nothing if the entity is not there.
    pub(super) fn touch(&mut self, slot: Slot) {
        if self.remove(slot) {
            self.put(slot, self.counts[slot.index()].saturating_add(1));
        }
    }

    /// Returns the entity with the smallest count; among equals the least recently used one.
    pub(super) fn victim(&self) -> Option<Slot> {
        let (_, &list) = self.buckets.first_key_value()?;
        self.members.front(list)
    }

    /// Sets the age to the count of `slot`, which is about to stop, so that the counts of the
    /// others lose weight against newcomers. Does not remove the slot. Does nothing without aging.
    pub(super) fn age_by(&mut self, slot: Slot) {
        if self.aging == Aging::Dynamic {
            self.age = self.counts[slot.index()];
        }
    }

    /// Puts a slot that is in no bucket at the end of the bucket of `count`, which is created if
    /// necessary, with a spare list if there is one. Stores the count of the slot. Panics if the
    /// slot is in a bucket.
    fn put(&mut self, slot: Slot, count: u64) {
        let (spare, lists) = (&mut self.spare, &mut self.lists);
        let list = *self.buckets.entry(count).or_insert_with(|| {
            spare.pop().unwrap_or_else(|| {
                *lists += 1;
                Chain::new(*lists - 1)
            })
        });
        self.members.push_back(list, slot);
        if self.counts.len() <= slot.index() {
            self.counts.resize(slot.index() + 1, 0);
        }
        self.counts[slot.index()] = count;
    }
}
