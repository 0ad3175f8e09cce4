//! Even numbers of shards in rounds: both algorithms of Pekko's least-shard strategy with its
//! conditions for a round, for comparison and for clusters that prefer rounds.
//!
//! As in Pekko, a shard counts at its source until its move has ended, and first allocations delay
//! no round. Shards are ordered by number; Pekko orders them by the text of their ids.

use std::collections::{BTreeMap, BTreeSet};

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::{AllocationReason, Allocations, Move};
use crate::sharding::ids::{RegionId, ShardId};

/// `[cluster.sharding.least-shard-rounds]`: a round every `rebalance-interval`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, DocumentedFields)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LeastShardRounds {
    /// Above 0: Pekko's newer algorithm, with at most this many moves in a round. 0: its older
    /// algorithm, which uses `rebalance-threshold` and `max-simultaneous-rebalance`.
    pub rebalance_absolute_limit: usize,
    /// Newer algorithm: moves at most this fraction of all shards in a round, but at least one
    /// shard; above 0 and at most 1.
    pub rebalance_relative_limit: f64,
    /// Older algorithm: tolerates this difference between the largest and the smallest region, and
    /// moves at most this many shards in a round; at least 1.
    pub rebalance_threshold: usize,
    /// Older algorithm: maximum number of moves in flight; at least 1.
    pub max_simultaneous_rebalance: usize,
}

impl Default for LeastShardRounds {
    fn default() -> Self {
        Self {
            rebalance_absolute_limit: 0,
            rebalance_relative_limit: 0.1,
            rebalance_threshold: 1,
            max_simultaneous_rebalance: 3,
        }
    }
}

/// Shards by registered region. Moving shards count at their source, or at their target if the
/// source is not registered, and first allocations at their target.
type ShardsBefore = BTreeMap<RegionId, Vec<ShardId>>;

impl LeastShardRounds {
    /// Proposes the moves of one round; none unless [calm](Allocations::is_calm). May propose fewer
    /// than [`chosen`](Self::chosen), see [`with_targets`].
    pub(super) fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        with_targets(self.chosen(seen), seen)
    }

    /// Chooses the shards that move in this round; none unless [calm](Allocations::is_calm).
    pub(super) fn chosen(&self, seen: &Allocations) -> Vec<ShardId> {
        if !seen.is_calm() {
            return Vec::new();
        }
        let before = before(seen);
        match self.rebalance_absolute_limit {
            0 => self.by_threshold(seen, &before),
            absolute => self.by_limits(absolute, seen, &before),
        }
    }

    /// Chooses by the older algorithm: the lowest movable shard numbers of the region with the most
    /// shards at rest. As many as its difference to the most suitable region exceeds
    /// `rebalance-threshold`, but at most that threshold, and at most
    /// `max-simultaneous-rebalance` less the moves in flight.
    fn by_threshold(&self, seen: &Allocations, before: &ShardsBefore) -> Vec<ShardId> {
        let room = self.max_simultaneous_rebalance.saturating_sub(seen.moves_in_flight());
        let least = order(seen, before).first().map_or(0, |region| before[region].len());
        let most = before
            .values()
            .map(|shards| at_rest(shards, seen))
            .reduce(|most, shards| if shards.len() > most.len() { shards } else { most });
        let mut most = most.unwrap_or_default();
        let difference = most.len().saturating_sub(least);
        let over = difference.saturating_sub(self.rebalance_threshold);
        most.retain(|shard| seen.may_move(*shard));
        most.sort_unstable();
        most.truncate(over.min(self.rebalance_threshold).min(room));
        most
    }

    /// Chooses by the newer algorithm, at most `absolute` shards and the relative limit, but at
    /// least one. None while any move is in flight.
    ///
    /// First the movable shards by which regions exceed the even part, rounded up. If there are
    /// none, one shard of each region that has this even part, as many as other regions lack to one
    /// less than it. In both cases the most suitable regions and the earliest decided shards come
    /// first.
    fn by_limits(
        &self,
        absolute: usize,
        seen: &Allocations,
        before: &ShardsBefore,
    ) -> Vec<ShardId> {
        if seen.moves_in_flight() > 0 {
            return Vec::new();
        }
        let total: usize = before.values().map(Vec::len).sum();
        let optimal = total.div_ceil(before.len());
        let limit = ((self.rebalance_relative_limit * total as f64) as usize).min(absolute).max(1);
        let order = order(seen, before);
        let movable = |region: &RegionId| {
            before[region].iter().copied().filter(|shard| seen.may_move(*shard))
        };
        let oldest = |region: &RegionId, count: usize| movable(region).take(count);
        let over = |region: &RegionId| before[region].len().saturating_sub(optimal);
        let surplus: Vec<ShardId> =
            order.iter().flat_map(|region| oldest(region, over(region))).take(limit).collect();
        if !surplus.is_empty() {
            return surplus;
        }
        let below = optimal.saturating_sub(1);
        let gap: usize = before.values().map(|shards| below.saturating_sub(shards.len())).sum();
        let full = order.iter().filter(|region| before[region].len() >= optimal);
        full.flat_map(|region| oldest(region, 1)).take(gap.min(limit)).collect()
    }
}

/// The shards of each region before the moves in flight: those at rest in the order of their
/// decisions, then those that leave it and those that are allocated to it first. A shard whose
/// source is not registered counts at its target.
fn before(seen: &Allocations) -> ShardsBefore {
    let mut before: ShardsBefore =
        seen.regions.iter().map(|(&region, of)| (region, at_rest(&of.shards, seen))).collect();
    for (&shard, moving) in &seen.moving {
        let source = moving.from.filter(|from| before.contains_key(from));
        if let Some(shards) = before.get_mut(&source.unwrap_or(moving.to)) {
            shards.push(shard);
        }
    }
    before
}

/// The shards without a move or first allocation in flight, in the same order.
fn at_rest(shards: &[ShardId], seen: &Allocations) -> Vec<ShardId> {
    shards.iter().copied().filter(|shard| !seen.moving.contains_key(shard)).collect()
}

/// All regions by suitability, with the numbers of shards before the moves in flight. Their
/// versions must be equal.
fn order(seen: &Allocations, before: &ShardsBefore) -> Vec<RegionId> {
    let mut order = seen.by_suitability();
    // A round begins only if all versions are equal, so the version needs no comparison.
    order.sort_by_key(|region| (seen.regions[region].is_leaving(), before[region].len(), *region));
    order
}

/// Moves each shard to the target with the fewest shards after the moves before it; planned homes
/// count, of equal targets the lowest id wins. A shard stays if its home is that target or has no
/// more shards than it; all stay without a target. Panics if a shard has no registered home.
fn with_targets(shards: Vec<ShardId>, seen: &Allocations) -> Vec<Move> {
    let homes: BTreeMap<ShardId, RegionId> = seen.homes().collect();
    let targets: BTreeSet<RegionId> = seen.targets();
    let mut sizes: BTreeMap<RegionId, usize> =
        seen.regions.iter().map(|(&region, of)| (region, of.shards.len())).collect();
    let mut moves = Vec::with_capacity(shards.len());
    for shard in shards {
        let from = homes[&shard];
        let source = sizes[&from];
        let Some(&to) = targets.iter().min_by_key(|region| (sizes[region], **region)) else {
            break;
        };
        let target = sizes[&to];
        if to == from || target >= source {
            continue;
        }
        sizes.insert(from, source - 1);
        sizes.insert(to, target + 1);
        moves.push(Move { shard, from, to, why: AllocationReason::Balance { source, target } });
    }
    moves
}
