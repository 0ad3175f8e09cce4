//! Even numbers of shards with the fewest moves, all the time instead of in rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::{Allocations, Candidate, Move, Why};
use crate::cluster::member::Status;
use crate::sharding::ids::{RegionId, ShardId};

/// `[cluster.sharding.least-shard]`: sizes end within ⌊S/R⌋ and ⌈S/R⌉.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeastShard {
    /// Moves that are unfinished at a time, per source and per target; at least 1. Half of that
    /// while entities stand still for longer than `stall-max`. A node that leaves is not held
    /// back. Moves to where shards are pinned (`external`) are bounded by the same number.
    pub max_moves_in_flight: usize,
    /// How long the slowest hundredth of moved entities may stand still.
    #[serde(with = "humantime_serde")]
    pub stall_max: Duration,
}

impl Default for LeastShard {
    fn default() -> Self {
        Self { max_moves_in_flight: 16, stall_max: Duration::from_millis(250) }
    }
}

/// What a region is for the balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Gives and takes.
    Target,
    /// Gives only: an older program.
    Source,
    /// Gives everything.
    Leaves,
    /// Stays as it is: nobody knows whether it could give.
    Frozen,
}

/// What is planned, over what is seen.
struct Plan<'a> {
    seen: &'a Allocations,
    targets: BTreeSet<RegionId>,
    quotas: BTreeMap<RegionId, usize>, // of those that give or take
    sizes: BTreeMap<RegionId, usize>,
    given: BTreeMap<RegionId, usize>, // moves in flight by source
    taken: BTreeMap<RegionId, usize>, // and by target
    moves: Vec<Move>,
}

impl LeastShard {
    pub(super) fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        let targets = seen.targets();
        if targets.is_empty() {
            return Vec::new();
        }
        let part = |region: &RegionId| part(*region, &seen.regions[region], &targets);
        let of = |wanted: Part| seen.regions.keys().copied().filter(move |r| part(r) == wanted);
        let (leaving, sources): (Vec<_>, Vec<_>) =
            (of(Part::Leaves).collect(), of(Part::Target).chain(of(Part::Source)).collect());
        let mut plan = Plan::new(seen, targets.clone(), &leaving);
        for region in leaving {
            plan.empty(region);
        }
        for region in sources {
            plan.level(region, self.window(seen));
        }
        plan.moves
    }

    fn window(&self, seen: &Allocations) -> usize {
        let slow = seen.stall_p99.is_some_and(|stall| stall > self.stall_max);
        (if slow { self.max_moves_in_flight / 2 } else { self.max_moves_in_flight }).max(1)
    }
}

fn part(region: RegionId, candidate: &Candidate, targets: &BTreeSet<RegionId>) -> Part {
    if candidate.is_leaving() {
        Part::Leaves
    } else if targets.contains(&region) {
        Part::Target
    } else if candidate.reachable && candidate.status == Status::Up {
        Part::Source
    } else {
        Part::Frozen
    }
}

impl<'a> Plan<'a> {
    fn new(seen: &'a Allocations, targets: BTreeSet<RegionId>, leaving: &[RegionId]) -> Self {
        let sizes: BTreeMap<RegionId, usize> =
            seen.regions.iter().map(|(&region, of)| (region, of.shards.len())).collect();
        let (mut given, mut taken) = (BTreeMap::new(), BTreeMap::new());
        for moving in seen.moving.values() {
            *taken.entry(moving.to).or_insert(0) += 1;
            if let Some(from) = moving.from {
                *given.entry(from).or_insert(0) += 1;
            }
        }
        let mut plan =
            Self { seen, targets, quotas: BTreeMap::new(), sizes, given, taken, moves: Vec::new() };
        plan.quotas = plan.fair_parts(leaving);
        plan
    }

    /// How many shards each region should have that gives or takes.
    fn fair_parts(&self, leaving: &[RegionId]) -> BTreeMap<RegionId, usize> {
        let part = |region: &RegionId| part(*region, &self.seen.regions[region], &self.targets);
        let mut pool: Vec<RegionId> = (self.sizes.keys().copied())
            .filter(|region| matches!(part(region), Part::Target | Part::Source))
            .collect();
        let size = |region: &RegionId| self.sizes[region];
        let mut total: usize = pool.iter().chain(leaving).map(size).sum();
        // Who only gives and has too few already keeps them; the others share the rest.
        while let Some(at) = pool
            .iter()
            .position(|region| !self.targets.contains(region) && size(region) < total / pool.len())
        {
            total -= size(&pool.swap_remove(at));
        }
        // The larger ones get what is left over: so the fewest shards move.
        pool.sort_by_key(|region| {
            (std::cmp::Reverse(size(region)), !self.targets.contains(region), *region)
        });
        let (each, over) = (total / pool.len(), total % pool.len());
        let quota = |(at, region)| (region, each + usize::from(at < over));
        pool.into_iter().enumerate().map(quota).collect()
    }

    /// Everything goes, to where most are missing.
    fn empty(&mut self, from: RegionId) {
        for shard in self.movable(from) {
            let to = self.most_missing(usize::MAX).or_else(|| {
                self.targets.iter().copied().min_by_key(|region| (self.sizes[region], *region))
            });
            let Some(to) = to else { return };
            self.take(shard, from, to, Why::Drain);
        }
    }

    /// What is over the quota goes, the oldest first.
    fn level(&mut self, from: RegionId, window: usize) {
        let Some(&quota) = self.quotas.get(&from) else { return };
        for shard in self.movable(from) {
            let in_flight = self.given.get(&from).copied().unwrap_or(0);
            if self.sizes[&from] <= quota || in_flight >= window {
                return;
            }
            let Some(to) = self.most_missing(window) else { return };
            let why = Why::Balance { source: self.sizes[&from], target: self.sizes[&to] };
            self.take(shard, from, to, why);
        }
    }

    fn movable(&self, region: RegionId) -> Vec<ShardId> {
        let shards = self.seen.regions[&region].shards.iter().copied();
        shards.filter(|shard| self.seen.may_move(*shard)).collect()
    }

    fn most_missing(&self, window: usize) -> Option<RegionId> {
        let missing = |region: &RegionId| {
            let quota = self.quotas.get(region).copied().unwrap_or(0);
            quota.saturating_sub(self.sizes[region])
        };
        let room = |region: &&RegionId| self.taken.get(*region).copied().unwrap_or(0) < window;
        let wanting = self.targets.iter().filter(|region| missing(region) > 0).filter(room);
        wanting.copied().max_by_key(|region| (missing(region), std::cmp::Reverse(*region)))
    }

    fn take(&mut self, shard: ShardId, from: RegionId, to: RegionId, why: Why) {
        *self.sizes.entry(from).or_insert(0) -= 1;
        *self.sizes.entry(to).or_insert(0) += 1;
        *self.given.entry(from).or_insert(0) += 1;
        *self.taken.entry(to).or_insert(0) += 1;
        self.moves.push(Move { shard, from, to, why });
    }
}
