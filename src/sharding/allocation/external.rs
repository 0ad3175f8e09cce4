//! Strategy `external`: shards live at the addresses that the program has pinned them to
//! ([`pins`](super::pins)). Shards that are not pinned live where they are asked for.

use std::collections::BTreeMap;

use super::{AllocationReason, Allocations, Move};
use crate::cluster::member::Address;
use crate::sharding::ids::{RegionId, ShardId};

/// The pins and the limit of moves. A pin may name an address where no node runs yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct External {
    /// The address of each pinned shard; `None` until the pins were read. A coordinator uses the
    /// strategy only after it has tried to read them; if that fails, with the pins known before, or
    /// as if no shard were pinned.
    pub pinned: Option<BTreeMap<ShardId, Address>>, // ≤ number-of-shards
    /// Maximum number of moves in flight, per source and per target; 0: no limit.
    pub max_moves_in_flight: usize,
}

impl External {
    /// The address that the shard is pinned to; `None` also if the pins were not read.
    fn pin(&self, shard: ShardId) -> Option<&Address> {
        self.pinned.as_ref()?.get(&shard)
    }

    /// Proposes a region for a shard without a home: the one that it is pinned to, else the one
    /// that asked, else the target with the fewest shards. The pinned and the asking region count
    /// only if they may host; their version does not matter. `None` if no region may host now. A
    /// shard that is pinned elsewhere gets the reason [`Absent`](AllocationReason::Absent).
    #[must_use]
    pub fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: &Allocations,
    ) -> Option<(RegionId, AllocationReason)> {
        let pin = self.pin(shard);
        if let Some(region) = pin.and_then(|address| at(address, seen)) {
            return Some((region, AllocationReason::Pinned));
        }
        let able =
            |asker: &RegionId| seen.regions.get(asker).is_some_and(super::Candidate::may_host);
        let (home, why) = match asker.filter(able) {
            Some(asker) => (asker, AllocationReason::Asked),
            None => seen.fewest()?, // a proxy or a leaving region asked, or no region did
        };
        Some((home, pin.map_or(why, |pinned| AllocationReason::Absent { pinned: pinned.clone() })))
    }

    /// Proposes moves of shards that are not where they are pinned to, within the limit. Leaves out
    /// shards pinned to an address where no region may host, shards that [may not
    /// move](Allocations::may_move), and those of regions that [may not
    /// give](Allocations::may_give). The limit counts moves in flight, without first allocations,
    /// and applies to leaving sources, too. For other shards of a leaving region the coordinator
    /// calls [`allocate`](Self::allocate).
    #[must_use]
    pub fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let by_address = by_address(seen);
        let (mut given, mut taken) = seen.moves_by_region();
        let limit =
            if self.max_moves_in_flight == 0 { usize::MAX } else { self.max_moves_in_flight };
        let movable =
            seen.homes().filter(|(shard, from)| seen.may_move(*shard) && seen.may_give(*from));
        let misplaced = movable.filter_map(|(shard, from)| {
            let to = *by_address.get(self.pin(shard)?)?;
            (to != from).then_some(Move { shard, from, to, why: AllocationReason::Pinned })
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

    /// Pinned addresses where no region may host, each with the number of shards pinned to it.
    /// Empty until the pins were read.
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

/// The region at an address that may host. Of several incarnations it is always the same one, the
/// highest id, so that no shard moves to and fro between them; ids are random, not ordered by time.
fn at(address: &Address, seen: &Allocations) -> Option<RegionId> {
    by_address(seen).get(address).copied()
}

/// The regions that may host, by address; of several at one address the highest id.
// `collect` keeps the last region of an address, and `seen.regions` is ordered by id.
fn by_address(seen: &Allocations) -> BTreeMap<&Address, RegionId> {
    let able = seen.regions.iter().filter(|(_, candidate)| candidate.may_host());
    able.map(|(&region, candidate)| (&candidate.address, region)).collect()
}
