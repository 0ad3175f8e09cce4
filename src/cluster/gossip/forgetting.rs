//! When removals may be forgotten: by how long *this* node has held their tombstones.
//!
//! Clocks of several machines are never compared. A node that becomes leader late counts from when
//! it heard of a removal itself. Not gossiped. Spec: spec/membership.md, *State*
//! (`prune-gossip-tombstones-after`).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

use super::Gossip;

/// Since when this node has held each tombstone.
#[derive(Clone, Debug, Default)]
pub struct Forgetting {
    held: BTreeMap<ReplicaId, Instant>, // ≤ TOMBSTONES_MAX: as many as the state has
}

impl Forgetting {
    /// A book without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of the state's tombstones. Answers up to which stamp all of them have been held
    /// for `age`, if there is any to forget: [`Gossip::forget_up_to`] that, if this node leads
    /// and has convergence.
    pub fn due(&mut self, now: Instant, gossip: &Gossip, age: Duration) -> Option<u64> {
        let tombstones: BTreeMap<_, _> = gossip.tombstones().collect();
        self.held.retain(|id, _| tombstones.contains_key(id));
        for &id in tombstones.keys() {
            self.held.entry(id).or_insert(now);
        }
        let mut by_stamp: Vec<_> = tombstones.into_iter().map(|(id, stamp)| (stamp, id)).collect();
        by_stamp.sort_unstable();
        let old = |&(_, id): &(u64, ReplicaId)| now.saturating_since(self.held[&id]) >= age;
        let young = by_stamp.iter().find(|entry| !old(entry)).map(|&(stamp, _)| stamp);
        let due = by_stamp.into_iter().map(|(stamp, _)| stamp);
        due.take_while(|&stamp| young.is_none_or(|young| stamp < young)).last()
    }
}
