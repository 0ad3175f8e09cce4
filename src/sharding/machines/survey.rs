//! How many entities live in which shard of every region: asked of all nodes that host the type,
//! and collected until all have answered or the time is over (spec/sharding.md §13).
//!
//! A slow region never empties the answer: who has not answered is named. Words may be lost with
//! their lanes, so whoever has not answered is asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use crate::sharding::ids::{EntityType, RegionId, ShardId};

/// Before those who have not answered are asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Between who wants to know and those who host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SurveyMessage {
    /// How many entities live in your shards?
    #[serde(rename = "a")]
    Ask {
        /// Names the question.
        #[serde(rename = "n")]
        number: u64,
    },
    /// So many, of each shard that lives here or is being drained.
    #[serde(rename = "t")]
    Told {
        /// As asked.
        #[serde(rename = "n")]
        number: u64,
        /// Shards with their entities.
        #[serde(rename = "s")]
        shards: Vec<(ShardId, u64)>, // ≤ SHARDS_MAX
    },
}

/// Where the entities of a type live, as their regions say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterShardingStats {
    /// Of each region that has answered, its shards and how many entities live in each. A shard
    /// that moves while regions answer may be missing, or stand at two of them.
    pub regions: BTreeMap<RegionId, BTreeMap<ShardId, u64>>, // ≤ members
    /// Regions that have not answered in time.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl ClusterShardingStats {
    /// Entities of all regions that have answered.
    #[must_use]
    pub fn entities(&self) -> u64 {
        let counts = self.regions.values().flat_map(BTreeMap::values);
        counts.fold(0, |sum, count| sum.saturating_add(*count)) // whatever others say
    }

    /// Shards of all regions that have answered.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.regions.values().map(BTreeMap::len).sum()
    }
}

/// A question that is not answered by all yet.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) entity_type: EntityType,
    until: Instant,
    ask_at: Instant,
    stats: ClusterShardingStats,
}

impl Survey {
    pub(super) fn new(
        now: Instant,
        entity_type: EntityType,
        within: Duration,
        regions: BTreeSet<RegionId>,
    ) -> Self {
        let stats = ClusterShardingStats { regions: BTreeMap::new(), unanswered: regions };
        Self { entity_type, until: now + within, ask_at: now, stats }
    }

    /// Whom to ask now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<RegionId> {
        if self.ask_at > now {
            return Vec::new();
        }
        self.ask_at = now + AGAIN;
        self.stats.unanswered.iter().copied().collect()
    }

    pub(super) fn told(&mut self, from: ReplicaId, shards: Vec<(ShardId, u64)>) {
        let from = RegionId::new(from);
        if self.stats.unanswered.remove(&from) {
            self.stats.regions.insert(from, shards.into_iter().collect());
        }
    }

    /// Whether there is nothing more to wait for.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.stats.unanswered.is_empty() || self.until <= now
    }

    pub(super) fn end(self) -> ClusterShardingStats {
        self.stats
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.until.min(self.ask_at)
    }
}
