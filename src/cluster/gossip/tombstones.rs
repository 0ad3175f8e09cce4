//! Time at which tombstones may be dropped: depends on how long *this* node has held them
//! (docs/protocol/membership.md#tombstone-horizon).
//!
//! Clocks of different machines are never compared. A node that becomes leader late counts from the
//! time at which it learned of a removal itself. These times are not gossiped.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

use super::Gossip;

/// Time since which this node has held each tombstone.
#[derive(Clone, Debug, Default)]
pub struct Tombstones {
    held: BTreeMap<ReplicaId, Instant>, // one per tombstone of the state; ≤ TOMBSTONES_MAX
}

impl Tombstones {
    /// A tracker without tombstones.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the tombstones of the state: a new one counts from this call, and one that the state
    /// no longer contains is dropped here. Returns the highest stamp such that all tombstones up to
    /// it have been held for at least `age`; a younger tombstone with an equal or lower stamp
    /// blocks older ones. `None` if no stamp is due. Changes nothing in `gossip`: the caller passes
    /// the stamp to [`Gossip::forget_up_to`] if this node leads and has convergence. Every node
    /// must call it regularly, because a tombstone ages only from the first call that sees it.
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
