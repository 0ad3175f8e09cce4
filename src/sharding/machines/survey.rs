//! What nodes are asked about the shards of a type: how many entities live where, what they
//! remember of decisions, and whether an entity lives. Collected until all have answered or the
//! time is over (spec/sharding.md §13).
//!
//! A slow node never empties the answer: who has not answered is named. Words may be lost with
//! their lanes, so whoever has not answered is asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::encoded::list;
use ostraca_ddata::id::ReplicaId;
use serde::{Deserialize, Serialize};

use crate::sharding::explain::{Account, Recalled, TOLD_MAX, Topic};
use crate::sharding::ids::{EntityId, EntityType, RegionId, SHARDS_MAX, ShardId};
use crate::sharding::wire::in_messages;

/// Before those who have not answered are asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Between who wants to know and those who do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SurveyMessage {
    /// How many entities live in your shards?
    #[serde(rename = "a")]
    Ask {
        /// Names the question.
        #[serde(rename = "n")]
        number: u64,
    },
    /// So many, of each shard that lives here or is being drained; in several messages, if they are too
    /// many for one.
    #[serde(rename = "t")]
    Told {
        /// As asked.
        #[serde(rename = "n")]
        number: u64,
        /// Shards with their entities.
        #[serde(rename = "s", deserialize_with = "list")]
        shards: Vec<(ShardId, u64)>, // ≤ SHARDS_MAX
        /// How many shards stand in all messages of the answer together; 0: this one is all of it.
        #[serde(rename = "o", default, skip_serializing_if = "is_zero")]
        of: u64,
    },
    /// What do you remember of this?
    #[serde(rename = "w")]
    Why {
        /// Names the question.
        #[serde(rename = "n")]
        number: u64,
        /// Of what.
        #[serde(rename = "t")]
        topic: Topic,
    },
    /// This.
    #[serde(rename = "b")]
    Because {
        /// As asked.
        #[serde(rename = "n")]
        number: u64,
        /// What the coordinator and the region there remember.
        #[serde(rename = "a", deserialize_with = "list")]
        accounts: Vec<Account>, // ≤ 2 × TOLD_MAX
    },
    /// Does this entity live at your region?
    #[serde(rename = "e")]
    Exists {
        /// Names the question.
        #[serde(rename = "n")]
        number: u64,
        /// Which.
        #[serde(rename = "i")]
        entity: EntityId,
    },
    /// It does or does not.
    #[serde(rename = "l")]
    Lives {
        /// As asked.
        #[serde(rename = "n")]
        number: u64,
        /// `None`: its shard does not live here.
        #[serde(rename = "l")]
        lives: Option<bool>,
    },
}

/// What a shard's number and its count take in an answer, at most; bytes.
const COUNT_BYTES: usize = 15;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Shards whose entities one message counts, of all that are to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counting {
    /// Which.
    pub shards: Vec<ShardId>, // ≤ number-of-shards
    /// How many all messages of the answer have; 0: this one is all of it.
    pub of: u64,
}

impl Counting {
    /// These, in messages of at most so many bytes; one if there are none.
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

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// How many entities live in which shard, of all regions.
    Count,
    /// What is remembered of decisions, by all who host the type.
    Why(Topic),
    /// Whether an entity lives, of the region where its shard should.
    Exists {
        /// Which.
        entity: EntityId,
        /// Where.
        at: RegionId,
    },
}

impl Question {
    pub(super) fn word(&self, number: u64) -> SurveyMessage {
        match self {
            Self::Count => SurveyMessage::Ask { number },
            Self::Why(topic) => SurveyMessage::Why { number, topic: *topic },
            Self::Exists { entity, .. } => SurveyMessage::Exists { number, entity: entity.clone() },
        }
    }
}

/// What was found out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// After [`Question::Count`].
    Counted(ClusterShardingStats),
    /// After [`Question::Why`].
    Recalled(Recalled),
    /// After [`Question::Exists`]. `None`: nobody has answered in time, or the shard does not live
    /// there.
    Lives(Option<bool>),
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
    pub(super) question: Question,
    until: Instant,
    ask_at: Instant,
    counted: BTreeMap<RegionId, BTreeMap<ShardId, u64>>, // ≤ members × SHARDS_MAX; some in part
    accounts: Vec<Account>,                              // ≤ 2 × TOLD_MAX of each member
    lives: Option<bool>,
    unanswered: BTreeSet<RegionId>, // ≤ members
}

impl Survey {
    pub(super) fn new(
        now: Instant,
        entity_type: EntityType,
        question: Question,
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

    /// Whom to ask now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<RegionId> {
        if self.ask_at > now {
            return Vec::new();
        }
        self.ask_at = now + AGAIN;
        self.unanswered.iter().copied().collect()
    }

    /// Takes an answer, or part of one, if it is one to this question and the first of that node.
    pub(super) fn told(&mut self, from: ReplicaId, answer: SurveyMessage) {
        let region = RegionId::new(from);
        if !self.unanswered.contains(&region) {
            return;
        }
        match (&self.question, answer) {
            (Question::Count, SurveyMessage::Told { shards, of, .. }) => {
                let counted = self.counted.entry(region).or_default();
                counted.extend(shards.into_iter().filter(|(shard, _)| shard.get() < SHARDS_MAX));
                if (counted.len() as u64) < of {
                    return; // some of its messages are under way, or lost: then it is asked again
                }
            }
            (Question::Why(topic), SurveyMessage::Because { accounts, .. }) => {
                let own =
                    |account: &Account| account.by == from && topic.covers(&account.remembered);
                let own = accounts.into_iter().filter(own).take(2 * TOLD_MAX);
                self.accounts.extend(own);
            }
            (Question::Exists { .. }, SurveyMessage::Lives { lives, .. }) => self.lives = lives,
            _ => return, // no answer to this
        }
        self.unanswered.remove(&region);
    }

    /// Whether there is nothing more to wait for.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.unanswered.is_empty() || self.until <= now
    }

    pub(super) fn end(self) -> Found {
        let Self { question, mut counted, accounts, lives, unanswered, .. } = self;
        match question {
            Question::Count => {
                counted.retain(|region, _| !unanswered.contains(region));
                Found::Counted(ClusterShardingStats { regions: counted, unanswered })
            }
            Question::Why(_) => Found::Recalled(Recalled { accounts, unanswered }),
            Question::Exists { .. } => Found::Lives(lives),
        }
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.until.min(self.ask_at)
    }
}
