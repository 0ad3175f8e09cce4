//! Shards where somebody says: an API pins them to addresses.

use std::collections::BTreeMap;

use super::{Allocations, Move, Why};
use crate::cluster::member::Address;
use crate::sharding::ids::{RegionId, ShardId};

/// Where shards should be. An address may be that of a node that is not there yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct External {
    /// The address of each pinned shard; `None` until it was read from a majority.
    pub pinned: Option<BTreeMap<ShardId, Address>>, // ≤ number-of-shards
}

impl External {
    fn wanted(&self, shard: ShardId, seen: &Allocations) -> Option<RegionId> {
        let address = self.pinned.as_ref()?.get(&shard)?;
        let able = seen.regions.iter().filter(|(_, candidate)| candidate.may_host());
        able.filter(|(_, candidate)| candidate.address == *address).map(|(&region, _)| region).max()
    }

    pub(super) fn allocate(
        &self,
        shard: ShardId,
        asker: RegionId,
        seen: &Allocations,
    ) -> Option<(RegionId, Why)> {
        if let Some(region) = self.wanted(shard, seen) {
            return Some((region, Why::Pinned));
        }
        match seen.regions.get(&asker) {
            Some(candidate) if candidate.may_host() => Some((asker, Why::Asked)),
            _ => seen.fewest(), // a proxy asked, or one that leaves
        }
    }

    pub(super) fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let at_rest = seen.homes().filter(|(shard, _)| !seen.moving.contains_key(shard));
        let misplaced = at_rest.filter_map(|(shard, from)| {
            let to = self.wanted(shard, seen)?;
            (to != from).then_some(Move { shard, from, to, why: Why::Pinned })
        });
        misplaced.collect()
    }
}
