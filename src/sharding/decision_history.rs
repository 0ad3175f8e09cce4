//! The last decisions with their reasons and the duration of each phase, for explanations of a
//! shard's home (docs/protocol/sharding.md#queries-and-stops). Coordinator and regions each keep a
//! [`DecisionHistory`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use serde::{Deserialize, Serialize};

use super::ids::{Generation, RegionId, ShardId};

/// Decisions that are remembered by default.
pub const REMEMBERED_MAX: usize = 4_096;

/// One decision about one shard as a coordinator or a region saw it. All durations are measured
/// from `at`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remembered {
    /// Time at which the decision was made or, at a region, received: wall clock of the coordinator
    /// or region, in milliseconds since 1970.
    #[serde(with = "millis")]
    pub at: WallTime,
    /// The same time by its monotonic clock; meaningless on other nodes.
    #[serde(skip)]
    pub begun: Instant,
    /// Shard of the decision.
    pub shard: ShardId,
    /// Generation of the decision.
    pub generation: Generation,
    /// Home before the decision.
    #[serde(default)]
    pub from: Option<RegionId>,
    /// Home by the decision.
    #[serde(default)]
    pub to: Option<RegionId>,
    /// Reason of the decision, as given by its cause.
    pub why: Arc<str>,
    /// Time until its write began, which waits for the write before; only at the coordinator.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub queued: Option<Duration>,
    /// Time until a quorum held it; only at the coordinator. Absent for decisions that a takeover
    /// or recount made again, although they were written.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub written: Option<Duration>,
    /// Time until the last entity had stopped; only at the region that the shard leaves.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub drained: Option<Duration>,
    /// Time until it was carried out: at the coordinator, until it knew that the home hosts, or
    /// that no region does if there is no home; at the home, until it hosted.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub settled: Option<Duration>,
    /// Predecessors of the decision, which had to end first; those that were out already included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<RegionId>, // ≤ regions
}

impl Remembered {
    /// Makes an entry for a new decision: `from`, `to`, `awaited` and all durations are empty.
    #[must_use]
    pub fn new(now: Now, shard: ShardId, generation: Generation, why: Arc<str>) -> Self {
        Self {
            at: now.wall,
            begun: now.mono,
            shard,
            generation,
            from: None,
            to: None,
            why,
            queued: None,
            written: None,
            drained: None,
            settled: None,
            awaited: Vec::new(),
        }
    }

    /// Returns whether it was carried out, or drained if that was this region's part. Stays `false`
    /// for a decision that a newer one has replaced before.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.settled.is_some() || self.drained.is_some()
    }

    /// Returns whether the decision concerns a region: as home before or by it, or as one that had
    /// to end first.
    #[must_use]
    pub fn concerns(&self, region: RegionId) -> bool {
        self.from == Some(region) || self.to == Some(region) || self.awaited.contains(&region)
    }
}

mod millis {
    use ostraca_ddata::clock::WallTime;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(at: &WallTime, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.as_millis())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<WallTime, D::Error> {
        u64::deserialize(from).map(WallTime::from_millis)
    }
}

/// A step of a decision, for events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionStep {
    /// Kind of the step.
    pub what: DecisionStepKind,
    /// The decision, with all that is known about it so far.
    pub of: Remembered,
}

/// Kinds of steps of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionStepKind {
    /// The coordinator decided, and the write begins. Also for a decision that it makes again after
    /// a forced configuration, which gets no `Written`.
    Decided,
    /// A quorum holds the decision, and the coordinator sends it.
    Written,
    /// The coordinator knows that the decision was carried out.
    Settled,
    /// A region received the order to host the shard.
    Told,
    /// The shard started on the region.
    Started,
    /// The shard was already running on the region and continues under the decision.
    Adopted,
    /// A region received the order to release the shard.
    Draining,
    /// The last entity of the shard has stopped on the region.
    Drained,
}

/// Decisions that take more than three times as long as nearly all others, and at least a second;
/// or a recount after a forced configuration that waits for nodes: then `shards` is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowDecisions {
    /// Their shards; each decision is reported once, a recount after 10 s and then each minute.
    pub shards: Vec<ShardId>, // ≤ number-of-shards
    /// Time for which the oldest of them has waited.
    pub waited: Duration,
    /// Time after which a decision counts as slow; the lowest one if it differs among them.
    pub limit: Duration,
    /// Regions that are waited for, as far as is known here.
    pub awaited: Vec<RegionId>, // ≤ regions
}

/// The last decisions, up to a limit.
#[derive(Clone, Debug)]
pub struct DecisionHistory {
    limit: usize,
    entries: VecDeque<Remembered>, // ≤ limit
}

impl Default for DecisionHistory {
    fn default() -> Self {
        Self::new(REMEMBERED_MAX)
    }
}

impl DecisionHistory {
    /// Makes an empty history of at most `limit` decisions; 0 counts as 1.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), entries: VecDeque::new() }
    }

    /// Adds a decision at the end, and removes the entry that was added first if the history is
    /// full. Does not look for an entry of the same decision, which then stays beside it.
    pub fn push(&mut self, entry: Remembered) {
        while self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Returns the index of a decision; `None` if it is not remembered. Entries are nearly always
    /// in order of generation and shard, so a binary search comes first, and a search of all
    /// entries from the end follows if it fails. That is left out in a full history for a decision
    /// older than the first entry, which counts as forgotten. Of several entries of one decision,
    /// any may be found.
    fn find(&self, shard: ShardId, generation: Generation) -> Option<usize> {
        let key = |entry: &Remembered| (entry.generation, entry.shard);
        let wanted = (generation, shard);
        let by_order = self.entries.binary_search_by_key(&wanted, key).ok();
        let is_forgotten = self.entries.len() == self.limit
            && self.entries.front().is_some_and(|oldest| wanted < key(oldest));
        let by_looking = || self.entries.iter().rposition(|entry| key(entry) == wanted);
        by_order.or_else(|| (!is_forgotten).then(by_looking)?)
    }

    /// Returns the entry of a decision; `None` if it is not remembered.
    #[must_use]
    pub fn get(&self, shard: ShardId, generation: Generation) -> Option<&Remembered> {
        self.entries.get(self.find(shard, generation)?)
    }

    /// Changes the entry of a decision, and returns it. `None` if it is not remembered; then
    /// `change` is not called.
    pub fn note(
        &mut self,
        shard: ShardId,
        generation: Generation,
        change: impl FnOnce(&mut Remembered),
    ) -> Option<&Remembered> {
        let at = self.find(shard, generation)?;
        let entry = self.entries.get_mut(at)?;
        change(entry);
        Some(entry)
    }

    /// Changes all decisions about a shard that `like` accepts, in the order in which they were
    /// added, and returns the last of them; `None` if none matches.
    pub fn note_each(
        &mut self,
        shard: ShardId,
        like: impl Fn(&Remembered) -> bool,
        change: impl Fn(&mut Remembered),
    ) -> Option<&Remembered> {
        let mut newest = None;
        for entry in self.entries.iter_mut().filter(|entry| entry.shard == shard && like(entry)) {
            change(entry);
            newest = Some(&*entry);
        }
        newest
    }

    /// Returns all entries, in the order in which they were added.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Remembered> {
        self.entries.iter()
    }

    /// Returns the entries about a shard, the one added last first.
    #[cfg(test)]
    pub(crate) fn of_shard(&self, shard: ShardId) -> impl Iterator<Item = &Remembered> {
        self.entries.iter().rev().filter(move |entry| entry.shard == shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(shard: u32, seq: u64) -> Remembered {
        let generation = Generation { seq, ..Generation::NEVER };
        Remembered::new(Now::default(), ShardId::new(shard), generation, "fewest shards".into())
    }

    #[test]
    fn the_oldest_is_forgotten_and_the_newest_comes_first() {
        let mut ring = DecisionHistory::default();
        (0..=REMEMBERED_MAX as u64).for_each(|seq| ring.push(entry((seq % 2) as u32, seq)));
        assert_eq!(ring.iter().count(), REMEMBERED_MAX);
        assert_eq!(ring.iter().next().map(|entry| entry.generation.seq), Some(1));
        let newest = ring.of_shard(ShardId::new(0)).next().map(|entry| entry.generation.seq);
        assert_eq!(newest, Some(REMEMBERED_MAX as u64));
    }

    #[test]
    fn steps_are_recorded_at_their_decision_in_any_order() {
        for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
            let mut ring = DecisionHistory::new(3);
            order.into_iter().for_each(|seq| ring.push(entry(7, seq)));
            let at = |seq| Generation { seq, ..Generation::NEVER };
            let took = Some(Duration::from_millis(5));
            let noted = ring.note(ShardId::new(7), at(2), |entry| entry.settled = took);
            assert_eq!(noted.map(|entry| entry.generation), Some(at(2)));
            assert_eq!(ring.note(ShardId::new(8), at(2), |entry| entry.settled = None), None);
            let settled: Vec<_> = ring.iter().filter(|entry| entry.settled == took).collect();
            assert_eq!((settled.len(), settled[0].generation), (1, at(2)), "{order:?}");
        }
    }

    #[test]
    fn remembered_decisions_travel_without_monotonic_times() {
        let now = Now { mono: Instant::from_nanos(7), wall: WallTime::from_millis(9) };
        let region = RegionId::new(ostraca_ddata::id::ReplicaId::new(5));
        let said = Remembered {
            from: Some(region),
            drained: Some(Duration::from_micros(1_500)),
            awaited: vec![region],
            ..Remembered::new(now, ShardId::new(3), Generation::NEVER, "test".into())
        };
        let bytes = rmp_serde::to_vec_named(&said).expect("plain data");
        let heard: Remembered = rmp_serde::from_slice(&bytes).expect("it decodes");
        assert_eq!(heard, Remembered { begun: Instant::default(), ..said });
    }
}
