//! The allocation snapshot that the program's strategy sees. It is kept from one question to the
//! next and updated with the shards that have changed, because the strategy is asked about one
//! shard at a time: building a snapshot of S shards for each of S questions would take quadratic
//! time on the control thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Age, age, seen, stays};
use crate::cluster::events::ClusterState;
use crate::sharding::allocation::{Allocations, Moving};
use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{RegionId, ShardId};

/// Up to this number of shards, debug builds compare an updated snapshot with a new one, and panic
/// if they differ.
const COMPARED: usize = 64;

/// A snapshot, with the position of each shard in it. Shards whose planned home is none of the
/// regions in it have no position.
#[derive(Clone, Debug)]
pub(super) struct AllocationSnapshot {
    seen: Arc<Allocations>,
    of: Arc<ClusterState>,
    places: BTreeMap<ShardId, SnapshotPlace>, // ≤ number-of-shards
}

/// A shard's candidate, and its sort key in the candidate's list.
#[derive(Clone, Copy, Debug)]
struct SnapshotPlace {
    at: RegionId,
    age: Age,
}

impl AllocationSnapshot {
    /// Builds a snapshot from scratch.
    pub(super) fn new(coordinator: &Coordinator, state: &Arc<ClusterState>) -> Self {
        let seen = seen(coordinator, state);
        let place = |(shard, at)| (shard, SnapshotPlace { at, age: age(coordinator, shard) });
        let places = seen.homes().map(place).collect();
        Self { seen: Arc::new(seen), of: Arc::clone(state), places }
    }

    /// Whether the snapshot was built from this very state of the membership; an equal one is
    /// another.
    pub(super) fn is_of(&self, state: &Arc<ClusterState>) -> bool {
        Arc::ptr_eq(&self.of, state)
    }

    /// Updates the snapshot for these shards: their place, their move and whether a slow handler
    /// keeps them. Shards that have no planned home in a listed region any longer are removed from
    /// the lists. Nothing else may have changed, in particular no region. The content is copied
    /// only if a strategy still holds the former snapshot. Panics if the lists and places disagree.
    pub(super) fn with(mut self, changed: &BTreeSet<ShardId>, coordinator: &Coordinator) -> Self {
        let seen = Arc::make_mut(&mut self.seen);
        // Remove all first: the lists are sorted by the keys noted here, and the binary search
        // needs these keys to be consistent.
        for shard in changed {
            seen.moving.remove(shard);
            seen.with_slow_handlers.remove(shard);
            if let Some(SnapshotPlace { at, age }) = self.places.get(shard).copied() {
                let shards = seen.regions.get_mut(&at).map(|candidate| &mut candidate.shards);
                let shards = shards.expect("every place refers to a candidate");
                let found = shards.binary_search_by_key(&age, |id| self.places[id].age);
                shards.remove(found.expect("each list is sorted by age"));
                self.places.remove(shard);
            }
        }
        for &shard in changed {
            if let Some((from, to)) = coordinator.moving_of(shard) {
                seen.moving.insert(shard, Moving { from, to });
            }
            if stays(coordinator, &seen.regions, shard) {
                seen.with_slow_handlers.insert(shard);
            }
            let home = coordinator.planned(shard);
            if let Some((at, candidate)) =
                home.and_then(|at| Some((at, seen.regions.get_mut(&at)?)))
            {
                let age = age(coordinator, shard);
                let shards = &mut candidate.shards;
                let before = shards.partition_point(|id| self.places[id].age < age);
                shards.insert(before, shard);
                self.places.insert(shard, SnapshotPlace { at, age });
            }
        }
        debug_assert!(
            self.places.len() > COMPARED || *self.seen == super::seen(coordinator, &self.of),
            "an updated snapshot equals a new one"
        );
        self
    }

    pub(super) fn show(&self) -> Arc<Allocations> {
        Arc::clone(&self.seen)
    }
}
