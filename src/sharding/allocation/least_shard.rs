//! Least-shard strategy: even numbers of shards with the fewest moves, balanced continuously
//! instead of in rounds. Each rebalance computes a quota for every region and proposes moves from
//! regions above their quota to targets below it, as far as the limit of moves in flight allows.

use std::collections::{BTreeMap, BTreeSet};

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::{AllocationReason, Allocations, Candidate, Move};
use crate::cluster::member::Status;
use crate::sharding::ids::{RegionId, ShardId};

/// `[cluster.sharding.least-shard]`: each of R regions ends with ⌊S/R⌋ or ⌈S/R⌉ of S shards.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeastShard {
    /// Maximum number of moves in flight, per source and per target; at least 1. A leaving node is
    /// not limited, and first allocations do not count. The same number limits moves to pinned
    /// addresses (`external`).
    pub max_moves_in_flight: usize,
}

impl Default for LeastShard {
    fn default() -> Self {
        Self { max_moves_in_flight: 16 }
    }
}

/// The role of a region in the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BalanceRole {
    /// The region may give and take shards.
    Target,
    /// The region may only give shards, because it runs an older program than a target.
    Source,
    /// The region leaves and gives all its shards.
    Leaves,
    /// The region is unreachable or its node joins (also `WeaklyUp`): it keeps its shards, because
    /// it may be unable to release them. They count in no quota.
    Frozen,
}

/// The moves planned so far, and the sizes of the regions after them.
struct BalancePlan<'a> {
    seen: &'a Allocations,
    targets: BTreeSet<RegionId>,
    quotas: BTreeMap<RegionId, usize>, // of targets, and of sources that may have to give
    sizes: BTreeMap<RegionId, usize>,  // of all regions
    given: BTreeMap<RegionId, usize>,  // moves in flight and planned, by source
    taken: BTreeMap<RegionId, usize>,  // and by target
    moves: Vec<Move>,
}

impl LeastShard {
    /// Proposes moves: first of all shards of leaving regions, then of those above the quotas of
    /// targets, then of sources, each in the order of region ids. None if there is no target. Does
    /// not wait until the cluster is calm. A limit of 0 counts as 1.
    pub(super) fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let targets = seen.targets();
        if targets.is_empty() {
            return Vec::new();
        }
        let role = |region: &RegionId| role(*region, &seen.regions[region], &targets);
        let of =
            |wanted: BalanceRole| seen.regions.keys().copied().filter(move |r| role(r) == wanted);
        let (leaving, sources): (Vec<_>, Vec<_>) = (
            of(BalanceRole::Leaves).collect(),
            of(BalanceRole::Target).chain(of(BalanceRole::Source)).collect(),
        );
        let mut plan = BalancePlan::new(seen, targets.clone(), &leaving);
        for region in leaving {
            plan.empty(region);
        }
        for region in sources {
            plan.level(region, self.max_moves_in_flight.max(1));
        }
        plan.moves
    }
}

/// The role of a region. A leaving region [leaves](BalanceRole::Leaves) also if it is unreachable.
fn role(region: RegionId, candidate: &Candidate, targets: &BTreeSet<RegionId>) -> BalanceRole {
    if candidate.is_leaving() {
        BalanceRole::Leaves
    } else if targets.contains(&region) {
        BalanceRole::Target
    } else if candidate.reachable && candidate.status == Status::Up {
        BalanceRole::Source
    } else {
        BalanceRole::Frozen
    }
}

impl<'a> BalancePlan<'a> {
    /// Starts a plan without moves. First allocations in flight count in the size of their target,
    /// but as no move. There must be a target.
    fn new(seen: &'a Allocations, targets: BTreeSet<RegionId>, leaving: &[RegionId]) -> Self {
        let sizes: BTreeMap<RegionId, usize> =
            seen.regions.iter().map(|(&region, of)| (region, of.shards.len())).collect();
        let (given, taken) = seen.moves_by_region();
        let mut plan =
            Self { seen, targets, quotas: BTreeMap::new(), sizes, given, taken, moves: Vec::new() };
        plan.quotas = plan.compute_quotas(leaving);
        plan
    }

    /// The quota of each target and source: an even part of their shards and those of `leaving`
    /// regions. The sum of all quotas is the number of these shards, so the largest regions (of
    /// equal ones targets first, then the lower id) get one more than the others. A source below
    /// the even part, rounded down, gets no quota, and its shards are not divided. Panics without a
    /// target.
    fn compute_quotas(&self, leaving: &[RegionId]) -> BTreeMap<RegionId, usize> {
        let role = |region: &RegionId| role(*region, &self.seen.regions[region], &self.targets);
        let mut pool: Vec<RegionId> = (self.sizes.keys().copied())
            .filter(|region| matches!(role(region), BalanceRole::Target | BalanceRole::Source))
            .collect();
        let size = |region: &RegionId| self.sizes[region];
        let mut total: usize = pool.iter().chain(leaving).map(size).sum();
        // A source below the average keeps its shards; the other regions share the rest.
        while let Some(at) = pool
            .iter()
            .position(|region| !self.targets.contains(region) && size(region) < total / pool.len())
        {
            total -= size(&pool.swap_remove(at));
        }
        // The larger regions get the remainder, so that the fewest shards move.
        pool.sort_by_key(|region| {
            (std::cmp::Reverse(size(region)), !self.targets.contains(region), *region)
        });
        let (each, over) = (total / pool.len(), total % pool.len());
        let quota = |(at, region)| (region, each + usize::from(at < over));
        pool.into_iter().enumerate().map(quota).collect()
    }

    /// Plans moves of all movable shards of a leaving region, each to the target furthest below its
    /// quota, or if none is below, to the smallest target, of equal ones the lowest id. No limit of
    /// moves in flight holds back these moves, but they count for those that are planned later.
    fn empty(&mut self, from: RegionId) {
        for shard in self.movable(from) {
            let to = self.most_missing(usize::MAX).or_else(|| {
                self.targets.iter().copied().min_by_key(|region| (self.sizes[region], *region))
            });
            let Some(to) = to else { return };
            self.take(shard, from, to, AllocationReason::Drain);
        }
    }

    /// Plans moves of the shards above the quota of a region, the earliest decided ones first,
    /// until `window` moves of the region are in flight or no target has room ([`most_missing`]).
    /// Does nothing for a region without quota.
    ///
    /// [`most_missing`]: Self::most_missing
    fn level(&mut self, from: RegionId, window: usize) {
        let Some(&quota) = self.quotas.get(&from) else { return };
        for shard in self.movable(from) {
            let in_flight = self.given.get(&from).copied().unwrap_or(0);
            if self.sizes[&from] <= quota || in_flight >= window {
                return;
            }
            let Some(to) = self.most_missing(window) else { return };
            let why =
                AllocationReason::Balance { source: self.sizes[&from], target: self.sizes[&to] };
            self.take(shard, from, to, why);
        }
    }

    /// The shards of a region that may move, the earliest decided one first.
    fn movable(&self, region: RegionId) -> Vec<ShardId> {
        let shards = self.seen.regions[&region].shards.iter().copied();
        shards.filter(|shard| self.seen.may_move(*shard)).collect()
    }

    /// The target that is furthest below its quota, of equal ones the lowest id. Leaves out targets
    /// with `window` or more moves to them; `None` if no other target is below its quota.
    fn most_missing(&self, window: usize) -> Option<RegionId> {
        let missing = |region: &RegionId| {
            let quota = self.quotas.get(region).copied().unwrap_or(0);
            quota.saturating_sub(self.sizes[region])
        };
        let room = |region: &&RegionId| self.taken.get(*region).copied().unwrap_or(0) < window;
        let wanting = self.targets.iter().filter(|region| missing(region) > 0).filter(room);
        wanting.copied().max_by_key(|region| (missing(region), std::cmp::Reverse(*region)))
    }

    /// Adds a move to the plan, and counts it in sizes and moves in flight.
    fn take(&mut self, shard: ShardId, from: RegionId, to: RegionId, why: AllocationReason) {
        *self.sizes.entry(from).or_insert(0) -= 1;
        *self.sizes.entry(to).or_insert(0) += 1;
        *self.given.entry(from).or_insert(0) += 1;
        *self.taken.entry(to).or_insert(0) += 1;
        self.moves.push(Move { shard, from, to, why });
    }
}
