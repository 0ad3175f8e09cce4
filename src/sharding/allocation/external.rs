//! Shards where somebody says: an API pins them to addresses.

use std::collections::BTreeMap;

use super::{Allocations, Move, Why};
use crate::cluster::member::Address;
use crate::sharding::ids::{RegionId, ShardId};

/// Where shards should be. An address may be that of a node that is not there yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct External {
    /// The address of each pinned shard; `None`: nobody could read it.
    pub pinned: Option<BTreeMap<ShardId, Address>>, // ≤ number-of-shards
    /// Moves that are unfinished at a time, per source and per target; 0: all at once.
    pub max_moves_in_flight: usize,
}

impl External {
    fn pin(&self, shard: ShardId) -> Option<&Address> {
        self.pinned.as_ref()?.get(&shard)
    }

    /// The region for a shard without a home; `None` if none may host now.
    #[must_use]
    pub fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: &Allocations,
    ) -> Option<(RegionId, Why)> {
        let pin = self.pin(shard);
        if let Some(region) = pin.and_then(|address| at(address, seen)) {
            return Some((region, Why::Pinned));
        }
        let able =
            |asker: &RegionId| seen.regions.get(asker).is_some_and(super::Candidate::may_host);
        let (home, why) = match asker.filter(able) {
            Some(asker) => (asker, Why::Asked),
            None => seen.fewest()?, // a proxy asked, one that leaves, or nobody
        };
        Some((home, pin.map_or(why, |pinned| Why::Absent { pinned: pinned.clone() })))
    }

    /// Shards that are not where they are pinned to, as many as may move now.
    #[must_use]
    pub fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let by_address = by_address(seen);
        let (mut given, mut taken) = in_flight(seen);
        let limit =
            if self.max_moves_in_flight == 0 { usize::MAX } else { self.max_moves_in_flight };
        let movable =
            seen.homes().filter(|(shard, from)| seen.may_move(*shard) && seen.may_give(*from));
        let misplaced = movable.filter_map(|(shard, from)| {
            let to = *by_address.get(self.pin(shard)?)?;
            (to != from).then_some(Move { shard, from, to, why: Why::Pinned })
        });
        let has_room = |wanted: &Move| {
            let given = given.entry(wanted.from).or_insert(0);
            let taken = taken.entry(wanted.to).or_insert(0);
            let has_room = *given < limit && *taken < limit;
            (*given, *taken) = (*given + usize::from(has_room), *taken + usize::from(has_room));
            has_room
        };
        misplaced.filter(has_room).collect()
    }

    /// Addresses where no region may host, with how many shards are pinned to each.
    #[must_use]
    pub fn absent(&self, seen: &Allocations) -> BTreeMap<Address, usize> {
        let by_address = by_address(seen);
        let mut absent = BTreeMap::new();
        for address in self.pinned.iter().flat_map(BTreeMap::values) {
            if !by_address.contains_key(address) {
                *absent.entry(address.clone()).or_insert(0) += 1;
            }
        }
        absent
    }
}

/// The newest region at an address, if it may host.
fn at(address: &Address, seen: &Allocations) -> Option<RegionId> {
    by_address(seen).get(address).copied()
}

fn by_address(seen: &Allocations) -> BTreeMap<&Address, RegionId> {
    let able = seen.regions.iter().filter(|(_, candidate)| candidate.may_host());
    able.map(|(&region, candidate)| (&candidate.address, region)).collect()
}

type Counts = BTreeMap<RegionId, usize>;

/// Unfinished moves by source and by target.
fn in_flight(seen: &Allocations) -> (Counts, Counts) {
    let (mut given, mut taken) = (Counts::new(), Counts::new());
    for moving in seen.moving.values() {
        if let Some(from) = moving.from {
            *given.entry(from).or_insert(0) += 1;
            *taken.entry(moving.to).or_insert(0) += 1;
        }
    }
    (given, taken)
}
