//! Allocation strategies: they propose a region for a shard without a home, and moves that balance
//! the shards (docs/protocol/sharding.md#allocation).
//!
//! A strategy sees planned homes (docs/protocol/sharding.md#strategies-see-planned-homes): the
//! [`Allocations`] as they *will* be once all pending decisions have taken effect. Otherwise many
//! questions at once would all choose the same region. Strategies only propose; the coordinator
//! checks each proposal, writes the decision, and asks again if a proposal is invalid. The
//! strategies of this module are pure functions; a [`ShardAllocationStrategy`] of the program may
//! be slow.
//!
//! A region *may host* if its node is Up, reachable and not leaving. A *target* is a region that
//! may host and runs the newest program version among those.

mod consistent;
mod custom_strategy;
mod external;
mod least_shard;
pub mod pins;
mod rounds;
mod version;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::cluster::member::{Address, Status};

pub use consistent::ConsistentHashing;
pub use custom_strategy::{
    ShardAllocationStrategy, StrategyAnswer, StrategyError, StrategyFuture, StrategyRequest,
};
pub use external::External;
pub use least_shard::LeastShard;
pub use rounds::LeastShardRounds;
pub use version::AppVersion;

use super::ids::{RegionId, ShardId};

/// A registered region, as a strategy sees it. Not every one may [host](Self::may_host).
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Membership status of the region's node.
    pub status: Status,
    /// Whether membership considers the node reachable.
    pub reachable: bool,
    /// Whether the node was asked to leave or to drain. Known before `status` changes to Leaving.
    pub draining: bool,
    /// Version of the program on the node.
    pub version: AppVersion,
    /// Address of the node.
    pub address: Address,
    /// Shards that have or will have their home here, those decided first at the front. Shards
    /// whose first decision is not written yet come last.
    pub shards: Vec<ShardId>, // ≤ number-of-shards over all candidates
}

impl Candidate {
    /// Whether the node leaves, drains, or is Down: its region must give up its shards.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.draining
            || matches!(
                self.status,
                Status::Leaving | Status::Exiting | Status::Down | Status::Removed
            )
    }

    /// Whether the region may get shards: its node is Up, reachable and not leaving.
    #[must_use]
    pub const fn may_host(&self) -> bool {
        self.reachable && !self.is_leaving() && matches!(self.status, Status::Up)
    }
}

/// Input of a strategy: the regions, and the homes of all shards.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocations {
    /// Registered regions, without proxies.
    pub regions: BTreeMap<RegionId, Candidate>, // ≤ members
    /// Moves and first allocations in flight. Such a shard counts as one of its target.
    pub moving: BTreeMap<ShardId, Moving>, // ≤ number-of-shards
    /// Shards in which a handler has run for `slow-handler-after`, without those of nodes that
    /// leave. They stay where they are until the handler has ended: a move would keep the other
    /// entities of the shard waiting for it.
    pub with_slow_handlers: BTreeSet<ShardId>, // ≤ number-of-shards
    /// Whether a member without a registered region is unreachable or joining; registered ones are
    /// in `regions`. Rounds wait until that is over.
    pub others_unsettled: bool,
}

type MoveCounts = BTreeMap<RegionId, usize>;

/// A move in flight, or the first allocation of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// The region that must release the shard first; `None` if the shard had no home.
    pub from: Option<RegionId>,
    /// The region that will host the shard.
    pub to: RegionId,
}

/// A proposed move of a shard to another home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The shard that should move.
    pub shard: ShardId,
    /// The shard's present or planned home.
    pub from: RegionId,
    /// The proposed new home.
    pub to: RegionId,
    /// Reason, for the record of decisions.
    pub why: AllocationReason,
}

/// Reason of a strategy's proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocationReason {
    /// The target had the fewest shards.
    Fewest {
        /// Number of shards of the target before.
        shards: usize,
    },
    /// The source had more shards than its quota: its even part of all shards.
    Balance {
        /// Number of shards of the source before ("here" in the text).
        source: usize,
        /// Number of shards of the target before ("there" in the text).
        target: usize,
    },
    /// The node of the source leaves.
    Drain,
    /// Consistent hashing assigns the shard to the target.
    Ring,
    /// The shard is pinned to the target's address.
    Pinned,
    /// The shard is not pinned, and the target asked for it.
    Asked,
    /// The shard is pinned to an address where no region may host, so another region hosts it.
    Absent {
        /// The address that the shard is pinned to.
        pinned: Address,
    },
    /// A strategy of the program, with its name.
    Custom(Arc<str>),
}

impl fmt::Display for AllocationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fewest { shards } => write!(f, "fewest shards: {shards}"),
            Self::Balance { source, target } => write!(f, "balance: {source} here, {target} there"),
            Self::Drain => f.write_str("its node leaves"),
            Self::Ring => f.write_str("consistent hashing"),
            Self::Pinned => f.write_str("pinned"),
            Self::Asked => f.write_str("pinned nowhere, so where it was asked for"),
            Self::Absent { pinned } => {
                write!(f, "pinned to {pinned}, where no region may host, so here until one may")
            }
            Self::Custom(why) => f.write_str(why),
        }
    }
}

/// A built-in strategy with its settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AllocationStrategy {
    /// Even numbers of shards with the fewest moves, balanced continuously.
    LeastShard(LeastShard),
    /// Even numbers of shards, balanced in rounds as Pekko does it.
    Rounds(LeastShardRounds),
    /// By a hash of the region's address and the shard.
    ConsistentHashing(ConsistentHashing),
    /// By pins that an operator or a program sets.
    External(External),
}

impl AllocationStrategy {
    /// Proposes a region for a shard without a home; `None` if no region may host now. `asker` is
    /// the region that asked for the shard; `None` if the coordinator needs a home because the last
    /// one was lost or leaves, or allocates all shards in advance. Only `external` considers it.
    /// [`External`] may propose a region that is no target.
    #[must_use]
    pub fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: &Allocations,
    ) -> Option<(RegionId, AllocationReason)> {
        match self {
            Self::LeastShard(_) | Self::Rounds(_) => seen.fewest(),
            Self::ConsistentHashing(_) => ConsistentHashing::allocate(shard, seen),
            Self::External(external) => external.allocate(shard, asker, seen),
        }
    }

    /// Proposes moves, at most one for each shard, and none for a shard that
    /// [may not move](Allocations::may_move). Rounds and consistent hashing propose none unless the
    /// cluster [is calm](Allocations::is_calm); the other two propose also then.
    #[must_use]
    pub fn rebalance(&self, seen: &Allocations) -> Vec<Move> {
        match self {
            Self::LeastShard(continuous) => continuous.rebalance(seen),
            Self::Rounds(rounds) => rounds.rebalance(seen),
            Self::ConsistentHashing(ring) => ring.rebalance(seen),
            Self::External(external) => external.rebalance(seen),
        }
    }
}

impl Allocations {
    /// Whether shards may be taken from a region. Unreachable regions keep their shards
    /// (docs/protocol/sharding.md#unreachable-regions-keep-their-shards): they may still host them.
    /// A leaving region gives in any case, because all its shards need other homes; a shard starts
    /// at the new home only once it is released, or the region is out of the configuration. `false`
    /// for an unknown region.
    #[must_use]
    pub fn may_give(&self, region: RegionId) -> bool {
        let is_there = |it: &Candidate| it.reachable && it.status == Status::Up;
        self.regions.get(&region).is_some_and(|it| it.is_leaving() || is_there(it))
    }

    /// Whether a strategy may move a shard: it does not move already, and no handler in it is slow.
    #[must_use]
    pub fn may_move(&self, shard: ShardId) -> bool {
        !self.moving.contains_key(&shard) && !self.with_slow_handlers.contains(&shard)
    }

    /// The valid moves of the answer of the program's strategy with this name: the shard may move,
    /// its region may give it, and the new home is another one of the [targets](Self::targets).
    /// Other entries are left out without a trace.
    #[must_use]
    pub fn valid_moves(
        &self,
        answer: &BTreeMap<ShardId, RegionId>,
        strategy: &Arc<str>,
    ) -> Vec<Move> {
        let targets = self.targets();
        let moves = self.homes().filter_map(|(shard, from)| {
            let to = *answer.get(&shard)?;
            let may_leave = self.may_move(shard) && self.may_give(from);
            (to != from && targets.contains(&to) && may_leave).then(|| Move {
                shard,
                from,
                to,
                why: AllocationReason::Custom(Arc::clone(strategy)),
            })
        });
        moves.collect()
    }

    /// Number of moves in flight, by source and by target. First allocations do not count: the
    /// limits of moves do not delay them, so they must not use these limits up either.
    fn moves_by_region(&self) -> (MoveCounts, MoveCounts) {
        let (mut given, mut taken) = (MoveCounts::new(), MoveCounts::new());
        for moving in self.moving.values() {
            if let Some(from) = moving.from {
                *given.entry(from).or_insert(0) += 1;
                *taken.entry(moving.to).or_insert(0) += 1;
            }
        }
        (given, taken)
    }

    /// Number of moves in flight, without first allocations.
    fn moves_in_flight(&self) -> usize {
        self.moving.values().filter(|moving| moving.from.is_some()).count()
    }

    /// Iterates over all shards and the present or planned home of each, by region id, within a
    /// region in the order of [`Candidate::shards`]. Shards at proxies or at regions that are not
    /// registered are missing.
    pub fn homes(&self) -> impl Iterator<Item = (ShardId, RegionId)> + '_ {
        self.regions
            .iter()
            .flat_map(|(&region, candidate)| candidate.shards.iter().map(move |&s| (s, region)))
    }

    /// Regions that may get shards: those that may host and run the newest program version among
    /// these, so that a rolling update moves each shard to updated nodes only. Empty if no region
    /// may host.
    #[must_use]
    pub fn targets(&self) -> BTreeSet<RegionId> {
        let able = || self.regions.iter().filter(|(_, candidate)| candidate.may_host());
        let newest = able().map(|(_, candidate)| &candidate.version).max();
        able().filter(|(_, of)| Some(&of.version) == newest).map(|(&region, _)| region).collect()
    }

    /// All regions in order of suitability: not leaving, newest program, fewest shards, region id.
    /// The order is total, so that the result does not depend on the order of the input. Regions
    /// that may not host are included; [`targets`](Self::targets) leaves them out.
    #[must_use]
    pub fn by_suitability(&self) -> Vec<RegionId> {
        let mut regions: Vec<RegionId> = self.regions.keys().copied().collect();
        regions.sort_by(|a, b| suitability((a, &self.regions[a]), (b, &self.regions[b])));
        regions
    }

    /// The target with the fewest shards, of equal ones the lowest id; `None` if there is no
    /// target.
    #[must_use]
    pub fn fewest(&self) -> Option<(RegionId, AllocationReason)> {
        let targets = self.targets();
        let (&region, of) = (self.regions.iter())
            .filter(|(region, _)| targets.contains(region))
            .min_by(|a, b| suitability(*a, *b))?;
        Some((region, AllocationReason::Fewest { shards: of.shards.len() }))
    }

    /// Whether a round may begin, as in Pekko: all regions run the same version, and no member is
    /// unreachable or joining (also `WeaklyUp`). Otherwise the round's moves may soon have to be
    /// reversed. A leaving region counts by its version and reachability only; moves in flight do
    /// not matter. `false` without a registered region.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        let mut regions = self.regions.values();
        let Some(first) = regions.next() else { return false };
        !self.others_unsettled
            && std::iter::once(first).chain(regions).all(|candidate| {
                candidate.version == first.version
                    && candidate.reachable
                    && !matches!(candidate.status, Status::Joining | Status::WeaklyUp)
            })
    }
}

/// Orders regions as [`Allocations::by_suitability`]: the less one is the more suitable.
fn suitability((a_id, a): (&RegionId, &Candidate), (b_id, b): (&RegionId, &Candidate)) -> Ordering {
    (a.is_leaving().cmp(&b.is_leaving()))
        .then_with(|| Reverse(&a.version).cmp(&Reverse(&b.version)))
        .then_with(|| a.shards.len().cmp(&b.shards.len()))
        .then_with(|| a_id.cmp(b_id))
}

#[cfg(test)]
mod tests;
