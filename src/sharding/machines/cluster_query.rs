//! Cluster queries about the shards of a type: the number of entities per shard, the remembered
//! decisions, or whether an entity runs. Its requests and answers call it a *survey*. It ends when
//! all asked nodes have answered or its time is over
//! (docs/protocol/sharding.md#queries-and-stops).
//!
//! A slow node does not spoil the result: the nodes that did not answer are listed in it. Messages
//! may be lost with their lanes, so silent nodes are asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::encoded::list;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use crate::sharding::explanation::{DecisionReport, DecisionReports, TOLD_MAX, Topic};
use crate::sharding::ids::{EntityId, EntityType, RegionId, SHARDS_MAX, ShardId};
use crate::sharding::wire::in_messages;

/// Time until nodes that have not answered completely are asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Questions of surveys and their answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ClusterQueryMessage {
    /// Asks for the number of entities in the shards of a region.
    #[serde(rename = "a")]
    Ask {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
    },
    /// Answer to [`Ask`](Self::Ask): entities per shard that the region hosts or drains. A long
    /// answer is divided into several messages.
    #[serde(rename = "t")]
    Told {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
        /// Shards with their numbers of entities.
        #[serde(rename = "s", deserialize_with = "list")]
        shards: Vec<(ShardId, u64)>, // ≤ SHARDS_MAX
        /// Number of shards in all messages of the answer together; 0: this message is the whole
        /// answer.
        #[serde(rename = "o", default, skip_serializing_if = "is_zero")]
        of: u64,
    },
    /// Asks for the remembered decisions about a topic.
    #[serde(rename = "w")]
    Why {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
        /// Selects the decisions to report.
        #[serde(rename = "t")]
        topic: Topic,
    },
    /// Answer to [`Why`](Self::Why) with the remembered decisions.
    #[serde(rename = "b")]
    Because {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
        /// Decisions remembered by the coordinator and the region of the answering node.
        #[serde(rename = "a", deserialize_with = "list")]
        accounts: Vec<DecisionReport>, // ≤ 2 × TOLD_MAX
    },
    /// Asks whether an entity runs at a region.
    #[serde(rename = "e")]
    Exists {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
        /// The id of the entity.
        #[serde(rename = "i")]
        entity: EntityId,
    },
    /// Answer to [`Exists`](Self::Exists) by the region.
    #[serde(rename = "l")]
    Lives {
        /// Number of the survey.
        #[serde(rename = "n")]
        number: u64,
        /// Whether it runs; `None`: its shard is not hosted here.
        #[serde(rename = "l")]
        lives: Option<bool>,
    },
}

/// Maximum bytes of a shard number and its count in an answer.
const COUNT_BYTES: usize = 15;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Shards to count for one message of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// The shards of this message.
    pub shards: Vec<ShardId>, // ≤ number-of-shards
    /// Number of shards in all messages of the answer together; 0: this message is the whole
    /// answer.
    pub of: u64,
}

impl Counting {
    /// Divides shards into messages of at most `bytes_max` bytes, but at least one shard each, by
    /// an estimate of [`COUNT_BYTES`] for each shard. An empty list gives one empty message. `of`
    /// is 0 if there is only one.
    pub(crate) fn in_messages(shards: Vec<ShardId>, bytes_max: usize) -> Vec<Self> {
        let all = shards.len() as u64;
        let mut messages = in_messages(shards, bytes_max, |_| COUNT_BYTES);
        if messages.is_empty() {
            messages.push(Vec::new());
        }
        let of = if messages.len() == 1 { 0 } else { all };
        messages.into_iter().map(|shards| Self { shards, of }).collect()
    }
}

/// A question to the cluster about a type.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterQuery {
    /// Number of entities per shard, asked of all regions.
    Count,
    /// Decisions about a topic, asked of all hosts of the type, the coordinator's node, and this
    /// node if it has started the type.
    Why(Topic),
    /// Whether an entity runs, asked of the region of its shard.
    Exists {
        /// The id of the entity.
        entity: EntityId,
        /// The region of its shard.
        at: RegionId,
    },
}

impl ClusterQuery {
    /// Makes the message that asks this question.
    pub(super) fn request(&self, number: u64) -> ClusterQueryMessage {
        match self {
            Self::Count => ClusterQueryMessage::Ask { number },
            Self::Why(topic) => ClusterQueryMessage::Why { number, topic: *topic },
            Self::Exists { entity, .. } => {
                ClusterQueryMessage::Exists { number, entity: entity.clone() }
            }
        }
    }
}

/// Result of a survey.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterQueryResult {
    /// Numbers of entities, for [`ClusterQuery::Count`].
    Counted(ClusterShardingStats),
    /// Remembered decisions, for [`ClusterQuery::Why`].
    Recalled(DecisionReports),
    /// Result of [`ClusterQuery::Exists`]. `None`: no answer came in time, or the shard is not
    /// hosted there.
    Lives(Option<bool>),
}

/// Number of entities per shard of a type, as reported by its regions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClusterShardingStats {
    /// For each region that answered, its shards with their numbers of entities. A shard that moves
    /// meanwhile may be missing, or may be listed at two regions.
    pub regions: BTreeMap<RegionId, BTreeMap<ShardId, u64>>, // ≤ members
    /// Regions that have not answered in time.
    pub unanswered: BTreeSet<RegionId>, // ≤ members
}

impl ClusterShardingStats {
    /// Number of entities in all regions that answered; `u64::MAX` if the reported numbers exceed
    /// it.
    #[must_use]
    pub fn entities(&self) -> u64 {
        let counts = self.regions.values().flat_map(BTreeMap::values);
        // saturating, because peers send the counts
        counts.fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Number of shards in all regions that answered; a shard that two regions report counts twice.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.regions.values().map(BTreeMap::len).sum()
    }
}

/// A survey in progress. The asked regions that have not answered completely are `unanswered`.
#[derive(Clone, Debug)]
pub(super) struct OpenClusterQuery {
    pub(super) entity_type: EntityType,
    pub(super) question: ClusterQuery,
    until: Instant,
    ask_at: Instant,
    counted: BTreeMap<RegionId, CountedShards>, // ≤ members
    accounts: Vec<DecisionReport>,              // ≤ 2 × TOLD_MAX of each member
    lives: Option<bool>,
    unanswered: BTreeSet<RegionId>, // ≤ members
}

/// The messages of one answer to [`ClusterQueryMessage::Ask`] that have arrived so far.
#[derive(Clone, Debug, Default)]
struct CountedShards {
    of: u64,
    shards: BTreeMap<ShardId, u64>, // ≤ SHARDS_MAX
}

impl CountedShards {
    /// Adds a message and returns whether the answer is complete. The messages of an answer arrive
    /// in the order of their shards. One that does not continue the others belongs to a repeated
    /// answer, which replaces them: the region may host other shards by now.
    fn add(&mut self, shards: Vec<(ShardId, u64)>, of: u64) -> bool {
        let last = self.shards.last_key_value().map(|(shard, _)| *shard);
        let continues = shards.first().map(|(shard, _)| *shard) > last;
        if of != self.of || !continues {
            *self = Self { of, shards: BTreeMap::new() };
        }
        self.shards.extend(shards.into_iter().filter(|(shard, _)| shard.get() < SHARDS_MAX));
        self.shards.len() as u64 >= of
    }
}

impl OpenClusterQuery {
    /// Begins a survey of the regions `of`, which ends after `within`. All of them are due to be
    /// asked now, also with a `within` of 0. Without any region it is over already. Sends nothing.
    pub(super) fn new(
        now: Instant,
        entity_type: EntityType,
        question: ClusterQuery,
        within: Duration,
        of: BTreeSet<RegionId>,
    ) -> Self {
        Self {
            entity_type,
            question,
            until: now + within,
            ask_at: now,
            counted: BTreeMap::new(),
            accounts: Vec::new(),
            lives: None,
            unanswered: of,
        }
    }

    /// The nodes to ask now: all that have not answered completely, at the first call and then
    /// [`AGAIN`] after the last call that was due. Empty between these times. Regions that are gone
    /// are included.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<RegionId> {
        if self.ask_at > now {
            return Vec::new();
        }
        self.ask_at = now + AGAIN;
        self.unanswered.iter().copied().collect()
    }

    /// Takes an answer, or part of one. Ignores answers of regions that were not asked or have
    /// answered, and answers to another kind of question. The caller has matched the number.
    ///
    /// A count is complete once the parts of one answer name as many shards as it announces (`of`),
    /// see [`CountedShards::add`]; a part with 0 completes it at once. Shards from [`SHARDS_MAX`]
    /// on are left out and do not complete a count. Also left out are decisions that the sender
    /// reports of another node or that the topic does not cover, and those after the first `2 *
    /// TOLD_MAX`.
    pub(super) fn told(&mut self, from: ReplicaId, answer: ClusterQueryMessage) {
        let region = RegionId::new(from);
        if !self.unanswered.contains(&region) {
            return;
        }
        match (&self.question, answer) {
            (ClusterQuery::Count, ClusterQueryMessage::Told { shards, of, .. }) => {
                if !self.counted.entry(region).or_default().add(shards, of) {
                    return; // other messages are under way, or lost and asked for again
                }
            }
            (ClusterQuery::Why(topic), ClusterQueryMessage::Because { accounts, .. }) => {
                let own = |account: &DecisionReport| {
                    account.by == from && topic.covers(&account.remembered)
                };
                let own = accounts.into_iter().filter(own).take(2 * TOLD_MAX);
                self.accounts.extend(own);
            }
            (ClusterQuery::Exists { .. }, ClusterQueryMessage::Lives { lives, .. }) => {
                self.lives = lives;
            }
            _ => return, // an answer to another question
        }
        self.unanswered.remove(&region);
    }

    /// Whether the survey is complete, its time is over (also exactly at its end), or only regions
    /// that are gone have not answered.
    pub(super) fn is_over(&self, now: Instant, is_gone: impl Fn(&RegionId) -> bool) -> bool {
        self.until <= now || self.unanswered.iter().all(is_gone)
    }

    /// Makes the result from the answers so far. Counts that have come only in part are left out,
    /// and their region is among `unanswered`, as are regions that are gone. The result of `Exists`
    /// does not tell whether the region answered.
    pub(super) fn end(self) -> ClusterQueryResult {
        let Self { question, mut counted, accounts, lives, unanswered, .. } = self;
        match question {
            ClusterQuery::Count => {
                counted.retain(|region, _| !unanswered.contains(region));
                let regions = counted.into_iter().map(|(region, counted)| (region, counted.shards));
                let regions = regions.collect();
                ClusterQueryResult::Counted(ClusterShardingStats { regions, unanswered })
            }
            ClusterQuery::Why(_) => {
                ClusterQueryResult::Recalled(DecisionReports { accounts, unanswered })
            }
            ClusterQuery::Exists { .. } => ClusterQueryResult::Lives(lives),
        }
    }

    /// The time at which nodes are due to be asked again, or the end of the survey, if that is
    /// earlier.
    pub(super) fn next_deadline(&self) -> Instant {
        self.until.min(self.ask_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: ReplicaId = ReplicaId::new(2);

    /// Part of an answer with `of` shards: these ones, each with one entity.
    fn part(shards: std::ops::Range<u32>, of: u64) -> ClusterQueryMessage {
        let shards = shards.map(|shard| (ShardId::new(shard), 1)).collect();
        ClusterQueryMessage::Told { number: 1, shards, of }
    }

    /// The shards that are counted once these messages have arrived; `None`: not all of them.
    fn counted(messages: Vec<ClusterQueryMessage>) -> Option<Vec<u32>> {
        let entity_type = EntityType::new("counter").expect("a name");
        let (question, within) = (ClusterQuery::Count, Duration::from_secs(5));
        let asked = BTreeSet::from([RegionId::new(PEER)]);
        let now = Instant::default();
        let mut query = OpenClusterQuery::new(now, entity_type, question, within, asked);
        messages.into_iter().for_each(|message| query.told(PEER, message));
        let ClusterQueryResult::Counted(stats) = query.end() else { panic!("it counts") };
        let shards = stats.regions.get(&RegionId::new(PEER))?;
        Some(shards.keys().map(|shard| shard.get()).collect())
    }

    #[test]
    fn count_has_only_the_parts_of_one_answer() {
        let all = |shards: std::ops::Range<u32>| Some(shards.collect::<Vec<_>>());
        let first = || part(0..5, 10);
        assert_eq!(counted(vec![first()]), None);
        assert_eq!(counted(vec![first(), part(5..10, 10)]), all(0..10));
        // The second part is lost, and shards move before the region is asked again.
        assert_eq!(counted(vec![first(), part(1..6, 10), part(6..11, 10)]), all(1..11));
        assert_eq!(counted(vec![first(), part(5..8, 5)]), None);
        assert_eq!(counted(vec![first(), part(5..8, 5), part(8..10, 5)]), all(5..10));
        assert_eq!(counted(vec![first(), part(5..9, 0)]), all(5..9));
    }
}
