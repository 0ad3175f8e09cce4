//! The last decisions, with who wanted them and how long each phase took, so that "why is it
//! there?" has an answer (spec/sharding.md §13).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use serde::{Deserialize, Serialize};

use super::ids::{Generation, RegionId, ShardId};

/// Decisions that are remembered where nothing else is set.
pub const REMEMBERED_MAX: usize = 4_096;

/// One decision about one shard, as a coordinator or a region saw it. All durations are counted
/// from `at`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remembered {
    /// When it was made or, at a region, heard of: by the wall clock of who remembers, in
    /// milliseconds since 1970.
    #[serde(with = "millis")]
    pub at: WallTime,
    /// The same by its monotonic clock; means nothing elsewhere.
    #[serde(skip)]
    pub begun: Instant,
    /// Which shard.
    pub shard: ShardId,
    /// Which decision.
    pub generation: Generation,
    /// Where it lived.
    #[serde(default)]
    pub from: Option<RegionId>,
    /// Where it is to live.
    #[serde(default)]
    pub to: Option<RegionId>,
    /// Why, in the words of who chose.
    pub why: Arc<str>,
    /// Until its write began, which waits for the one before; at the coordinator only.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub queued: Option<Duration>,
    /// Until a quorum held it; at the coordinator only.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub written: Option<Duration>,
    /// Until the last entity had ended; at the region that it leaves only.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub drained: Option<Duration>,
    /// Until it was carried out: the home hosts or, where there is to be none, nobody does.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub settled: Option<Duration>,
    /// Who had to end first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<RegionId>, // ≤ regions
}

impl Remembered {
    /// A decision of which nothing else is known yet.
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

    /// Whether it is carried out, or drained where that is all there is to do.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.settled.is_some() || self.drained.is_some()
    }

    /// Whether a region has a part in it.
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

/// A step of a decision, as it happens: for events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What happened.
    pub what: What,
    /// Of which decision, with what is known of it by now.
    pub of: Remembered,
}

/// The steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// The coordinator has decided; the write begins.
    Decided,
    /// A quorum holds it: it is spoken of.
    Written,
    /// It is carried out, as the coordinator knows.
    Settled,
    /// A region was told to host the shard.
    Told,
    /// It has started there.
    Started,
    /// It ran there already, and goes on.
    Adopted,
    /// A region was told to release what it hosts.
    Draining,
    /// Nothing of it runs there any more.
    Drained,
}

/// Decisions that take more than three times as long as nearly all do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Of which shards; said once of each decision.
    pub shards: Vec<ShardId>, // ≤ number-of-shards
    /// For how long the oldest of them has waited.
    pub waited: Duration,
    /// After how long a decision counts as slow.
    pub limit: Duration,
    /// Who has not said what is waited for, as far as is known here.
    pub awaited: Vec<RegionId>, // ≤ regions
}

/// The ring of them.
#[derive(Clone, Debug)]
pub struct Ring {
    limit: usize,
    entries: VecDeque<Remembered>, // ≤ limit
}

impl Default for Ring {
    fn default() -> Self {
        Self::new(REMEMBERED_MAX)
    }
}

impl Ring {
    /// A ring of `limit` decisions; at least one.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), entries: VecDeque::new() }
    }

    /// Remembers a decision, and forgets the oldest when it is full.
    pub fn push(&mut self, entry: Remembered) {
        while self.entries.len() >= self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Where a decision stands. They come nearly always in their order.
    fn find(&self, shard: ShardId, generation: Generation) -> Option<usize> {
        let key = |entry: &Remembered| (entry.generation, entry.shard);
        let wanted = (generation, shard);
        let by_order = self.entries.binary_search_by_key(&wanted, key).ok();
        let is_forgotten = self.entries.len() == self.limit
            && self.entries.front().is_some_and(|oldest| wanted < key(oldest));
        let by_looking = || self.entries.iter().rposition(|entry| key(entry) == wanted);
        by_order.or_else(|| (!is_forgotten).then(by_looking)?)
    }

    /// What is remembered of a decision.
    #[must_use]
    pub fn get(&self, shard: ShardId, generation: Generation) -> Option<&Remembered> {
        self.entries.get(self.find(shard, generation)?)
    }

    /// Notes what became of a decision, if it is still remembered; what is known of it then.
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

    /// Notes something at all decisions about a shard that are like this; the newest of them.
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

    /// All of them, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Remembered> {
        self.entries.iter()
    }

    /// What is remembered of a shard, newest first.
    pub fn of_shard(&self, shard: ShardId) -> impl Iterator<Item = &Remembered> {
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
        let mut ring = Ring::default();
        (0..=REMEMBERED_MAX as u64).for_each(|seq| ring.push(entry((seq % 2) as u32, seq)));
        assert_eq!(ring.iter().count(), REMEMBERED_MAX);
        assert_eq!(ring.iter().next().map(|entry| entry.generation.seq), Some(1));
        let newest = ring.of_shard(ShardId::new(0)).next().map(|entry| entry.generation.seq);
        assert_eq!(newest, Some(REMEMBERED_MAX as u64));
    }

    #[test]
    fn steps_are_recorded_at_their_decision_in_any_order() {
        for order in [[1, 2, 3], [3, 1, 2], [2, 3, 1]] {
            let mut ring = Ring::new(3);
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
        let heard: Remembered = rmp_serde::from_slice(&bytes).expect("as it was said");
        assert_eq!(heard, Remembered { begun: Instant::default(), ..said });
    }
}
