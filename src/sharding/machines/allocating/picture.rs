//! What a strategy of the program's own is shown, kept from one question to the next: a question
//! costs what has changed since the last one. (A strategy that is asked about each of S shards, and
//! is shown all homes each time, would cost S times S on the control thread.)

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Age, age, seen, stays};
use crate::cluster::events::ClusterState;
use crate::sharding::allocation::{Allocations, Moving};
use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{RegionId, ShardId};

/// With so few shards a picture is compared with one that is made anew, where code is debugged.
const COMPARED: usize = 64;

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    seen: Arc<Allocations>,
    of: Arc<ClusterState>,
    places: BTreeMap<ShardId, Place>, // ≤ number-of-shards
}

/// Where a shard stands in the list of which candidate.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: RegionId,
    age: Age,
}

impl Picture {
    pub(super) fn new(coordinator: &Coordinator, state: &Arc<ClusterState>) -> Self {
        let seen = seen(coordinator, state);
        let place = |(shard, at)| (shard, Place { at, age: age(coordinator, shard) });
        let places = seen.homes().map(place).collect();
        Self { seen: Arc::new(seen), of: Arc::clone(state), places }
    }

    /// Whether membership is still what it was.
    pub(super) fn is_of(&self, state: &Arc<ClusterState>) -> bool {
        Arc::ptr_eq(&self.of, state)
    }

    /// The same, where nothing but these has changed. Copied only if somebody still looks at it.
    pub(super) fn with(mut self, changed: &BTreeSet<ShardId>, coordinator: &Coordinator) -> Self {
        let seen = Arc::make_mut(&mut self.seen);
        // All first: the others stand in the order of what is known of them here.
        for shard in changed {
            seen.moving.remove(shard);
            seen.with_slow_handlers.remove(shard);
            if let Some(Place { at, age }) = self.places.get(shard).copied() {
                let shards = seen.regions.get_mut(&at).map(|candidate| &mut candidate.shards);
                let shards = shards.expect("a place is one among the candidates");
                let found = shards.binary_search_by_key(&age, |id| self.places[id].age);
                shards.remove(found.expect("it stands where its age says"));
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
                self.places.insert(shard, Place { at, age });
            }
        }
        debug_assert!(
            self.places.len() > COMPARED || *self.seen == super::seen(coordinator, &self.of),
            "a picture shows what there is"
        );
        self
    }

    pub(super) fn show(&self) -> Arc<Allocations> {
        Arc::clone(&self.seen)
    }
}
