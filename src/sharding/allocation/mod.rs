//! Which region a shard goes to, and which shards move (spec/sharding.md §11).
//!
//! A strategy sees what *will* be once all decisions that are under way have taken effect, so that
//! a thousand questions at once spread evenly. It decides nothing: the coordinator takes what it
//! says, checks it, and asks again where it makes no sense. The strategies of this room are pure
//! functions of what they see; one of the program's own may be slow.

mod consistent;
mod external;
mod least_shard;
mod own;
pub mod pins;
mod rounds;
mod version;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::member::{Address, Status};

pub use consistent::ConsistentHashing;
pub use external::External;
pub use least_shard::LeastShard;
pub use own::{Advice, Answer, Asked, ShardAllocationStrategy, StrategyError};
pub use rounds::LeastShardRounds;
pub use version::AppVersion;

use super::ids::{RegionId, ShardId};

/// A region that can host, as a strategy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Where its node stands.
    pub status: Status,
    /// Whether its node is believed to be reachable.
    pub reachable: bool,
    /// Whether its node's leaving was asked for: known before the status says so.
    pub draining: bool,
    /// Its node's program.
    pub version: AppVersion,
    /// Its node's address.
    pub address: Address,
    /// The shards that have or will have their home here, the one decided first first.
    pub shards: Vec<ShardId>, // ≤ number-of-shards over all candidates
}

impl Candidate {
    /// Whether it goes.
    #[must_use]
    pub const fn is_leaving(&self) -> bool {
        self.draining
            || matches!(
                self.status,
                Status::Leaving | Status::Exiting | Status::Down | Status::Removed
            )
    }

    /// Whether it may host at all: Up, reachable, not leaving.
    #[must_use]
    pub const fn may_host(&self) -> bool {
        self.reachable && !self.is_leaving() && matches!(self.status, Status::Up)
    }
}

/// What a shard costs, in units of its strategy's own choice; reported with the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Messages per second.
    pub messages: f32,
    /// Share of one core, in handlers.
    pub busy: f32,
}

/// All that a strategy may know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocations {
    /// Regions that are registered, without proxies.
    pub regions: BTreeMap<RegionId, Candidate>, // ≤ members
    /// Shards on their way, from and to where. They count at their destination.
    pub moving: BTreeMap<ShardId, Moving>, // ≤ number-of-shards
    /// Shards in which a handler has run for `slow-handler-after`, without those of nodes that leave.
    /// They stay where they are until the handler has ended: a move would keep the other entities
    /// of the shard waiting for it.
    pub with_slow_handlers: BTreeSet<ShardId>, // ≤ number-of-shards
    /// Whether a member without a region here is unreachable or joining: rounds wait for that.
    pub others_unsettled: bool,
    /// What shards cost, as far as it was reported.
    pub load: BTreeMap<ShardId, Load>, // ≤ number-of-shards
    /// How long the slowest hundredth of moved entities stood still lately; `None` before the
    /// first move.
    pub stall_p99: Option<Duration>,
}

/// A shard on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    /// Where it has to stop first; `None` for one that had no home.
    pub from: Option<RegionId>,
    /// Where it is going to be.
    pub to: RegionId,
}

/// A shard that should have another home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub shard: ShardId,
    /// Where it is.
    pub from: RegionId,
    /// Where it should be.
    pub to: RegionId,
    /// For the record of decisions.
    pub why: Why,
}

/// Why a strategy decided as it did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The target had so many shards, fewer than all others.
    Fewest {
        /// How many.
        shards: usize,
    },
    /// The source had more than its part.
    Balance {
        /// Shards that the source had.
        source: usize,
        /// Shards that the target had.
        target: usize,
    },
    /// The source is leaving.
    Drain,
    /// The ring says so.
    Ring,
    /// It was pinned there.
    Pinned,
    /// It is pinned nowhere, and was asked for here.
    Asked,
    /// It is pinned to an address where no region may host, so it went elsewhere for now.
    Absent {
        /// Where it is pinned to.
        pinned: Address,
    },
    /// In a strategy's own words.
    Custom(Arc<str>),
}

impl fmt::Display for Why {
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

/// A strategy of this room.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Strategy {
    /// Even numbers with the fewest moves, all the time.
    LeastShard(LeastShard),
    /// Even numbers in rounds, as Pekko does it.
    Rounds(LeastShardRounds),
    /// By a ring of addresses.
    ConsistentHashing(ConsistentHashing),
    /// Where somebody says.
    External(External),
}

impl Strategy {
    /// The region for a shard without a home, asked for by `asker`; `None` if none may host now.
    /// Nobody asks for a shard whose home is lost or leaves.
    #[must_use]
    pub fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: &Allocations,
    ) -> Option<(RegionId, Why)> {
        match self {
            Self::LeastShard(_) | Self::Rounds(_) => seen.fewest(),
            Self::ConsistentHashing(_) => ConsistentHashing::allocate(shard, seen),
            Self::External(external) => external.allocate(shard, asker, seen),
        }
    }

    /// Shards that should move now, at most one move for each, none that is moving already.
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
    /// Whether shards may be taken from a region: what is merely unreachable keeps them
    /// (spec/sharding.md §6).
    #[must_use]
    pub fn may_give(&self, region: RegionId) -> bool {
        let is_there = |it: &Candidate| it.reachable && it.status == Status::Up;
        self.regions.get(&region).is_some_and(|it| it.is_leaving() || is_there(it))
    }

    /// Whether a strategy may move a shard: it is not on its way, and no handler of it is slow.
    #[must_use]
    pub fn may_move(&self, shard: ShardId) -> bool {
        !self.moving.contains_key(&shard) && !self.with_slow_handlers.contains(&shard)
    }

    /// The moves of a strategy's answer that make sense: of shards that may move and can be taken
    /// from where they are, to regions that may host and are others than where they are.
    #[must_use]
    pub fn sensible(&self, answer: &BTreeMap<ShardId, RegionId>, why: &Arc<str>) -> Vec<Move> {
        let moves = self.homes().filter_map(|(shard, from)| {
            let to = *answer.get(&shard)?;
            let takes = self.regions.get(&to).is_some_and(Candidate::may_host);
            let may_leave = self.may_move(shard) && self.may_give(from);
            (to != from && takes && may_leave).then(|| Move {
                shard,
                from,
                to,
                why: Why::Custom(Arc::clone(why)),
            })
        });
        moves.collect()
    }

    /// All shards with the region where each is or will be.
    pub fn homes(&self) -> impl Iterator<Item = (ShardId, RegionId)> + '_ {
        self.regions
            .iter()
            .flat_map(|(&region, candidate)| candidate.shards.iter().map(move |&s| (s, region)))
    }

    /// Regions that new shards may go to: of those that may host, the ones with the newest
    /// program.
    #[must_use]
    pub fn targets(&self) -> BTreeSet<RegionId> {
        let able = || self.regions.iter().filter(|(_, candidate)| candidate.may_host());
        let newest = able().map(|(_, candidate)| &candidate.version).max();
        able().filter(|(_, of)| Some(&of.version) == newest).map(|(&region, _)| region).collect()
    }

    /// The order of suitability: not leaving, newest program, fewest shards, region id. Total,
    /// unlike Pekko's.
    #[must_use]
    pub fn by_suitability(&self) -> Vec<RegionId> {
        let mut regions: Vec<RegionId> = self.regions.keys().copied().collect();
        regions.sort_by(|a, b| suitability((a, &self.regions[a]), (b, &self.regions[b])));
        regions
    }

    /// The target with the fewest shards.
    #[must_use]
    pub fn fewest(&self) -> Option<(RegionId, Why)> {
        let targets = self.targets();
        let (&region, of) = (self.regions.iter())
            .filter(|(region, _)| targets.contains(region))
            .min_by(|a, b| suitability(*a, *b))?;
        Some((region, Why::Fewest { shards: of.shards.len() }))
    }

    /// Whether nothing stands in the way of a round, by Pekko's rules: one version everywhere,
    /// nobody unreachable, nobody joining.
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

fn suitability((a_id, a): (&RegionId, &Candidate), (b_id, b): (&RegionId, &Candidate)) -> Ordering {
    (a.is_leaving().cmp(&b.is_leaving()))
        .then_with(|| Reverse(&a.version).cmp(&Reverse(&b.version)))
        .then_with(|| a.shards.len().cmp(&b.shards.len()))
        .then_with(|| a_id.cmp(b_id))
}

#[cfg(test)]
mod tests;
