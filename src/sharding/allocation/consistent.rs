//! Consistent hashing of the region's address and the shard number. Few shards move when nodes join
//! or leave, and shards of the same number share their node across entity types.
//!
//! The algorithm is highest random weight (Thaler, Ravishankar, *Using name-based mappings to
//! increase hit rates*, 1998) rather than a ring: it needs no virtual nodes and spreads evenly.
//! Only targets take part, so a shard may have another owner while its owner is unreachable or runs
//! an older program.

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{AllocationReason, Allocations, Move};
use crate::sharding::ids::{RegionId, ShardId};

/// `[cluster.sharding.consistent-hashing]`: settings of the strategy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ConsistentHashing {
    /// Maximum number of moves in flight, of all regions together. 0: no limit.
    pub rebalance_limit: usize,
}

impl ConsistentHashing {
    /// The target that owns `key`, for a strategy of the program that groups shards by another key;
    /// `None` if there is no target. Of two targets with one address, the higher region id owns all
    /// keys of that address.
    #[must_use]
    pub fn owner(key: u64, seen: &Allocations) -> Option<RegionId> {
        let weight = |region: &RegionId| {
            let address = seen.regions[region].address.as_str();
            (xxh3_64_with_seed(address.as_bytes(), key), *region)
        };
        seen.targets().into_iter().max_by_key(weight)
    }

    /// The owner of the shard, by its number, whichever region asked for it; `None` if there is no
    /// target.
    pub(super) fn allocate(
        shard: ShardId,
        seen: &Allocations,
    ) -> Option<(RegionId, AllocationReason)> {
        Some((Self::owner(shard.get().into(), seen)?, AllocationReason::Ring))
    }

    /// Proposes moves of shards to their owners, by region id of the source and up to the limit.
    /// Moves in flight use it up, first allocations do not. None unless
    /// [calm](Allocations::is_calm). Leaving regions are sources, too.
    pub(super) fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let limit = match self.rebalance_limit {
            0 => usize::MAX,
            limit => limit.saturating_sub(seen.moves_in_flight()),
        };
        if !seen.is_calm() {
            return Vec::new();
        }
        let movable = seen.homes().filter(|(shard, _)| seen.may_move(*shard));
        let misplaced = movable.filter_map(|(shard, from)| {
            let (to, why) = Self::allocate(shard, seen)?;
            (to != from).then_some(Move { shard, from, to, why })
        });
        misplaced.take(limit).collect()
    }
}
