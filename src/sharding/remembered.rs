//! The last decisions, with who wanted them and how long each phase took, so that "why is it
//! there?" has an answer (spec/sharding.md §13).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::Now;

use super::ids::{Generation, RegionId, ShardId};

/// Decisions that are remembered.
pub const REMEMBERED_MAX: usize = 4_096;

/// One decision about one shard, as a coordinator or a region saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// When it was made or, at a region, heard of.
    pub at: Now,
    /// Which shard.
    pub shard: ShardId,
    /// Which decision.
    pub generation: Generation,
    /// Where it lived.
    pub from: Option<RegionId>,
    /// Where it is to live.
    pub to: Option<RegionId>,
    /// Why, in the words of who chose.
    pub why: Arc<str>,
    /// Until a quorum held it; at the coordinator only.
    pub written: Option<Duration>,
    /// Until the home confirmed that it hosts.
    pub hosted: Option<Duration>,
    /// Who had to end first.
    pub awaited: Vec<RegionId>, // ≤ regions
}

/// The ring of them.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    entries: VecDeque<Remembered>, // ≤ REMEMBERED_MAX
}

impl Ring {
    /// Remembers a decision, and forgets the oldest when it is full.
    pub fn push(&mut self, entry: Remembered) {
        if self.entries.len() == REMEMBERED_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    /// Notes what became of a decision, if it is still remembered.
    pub fn note(
        &mut self,
        shard: ShardId,
        generation: Generation,
        change: impl FnOnce(&mut Remembered),
    ) {
        let mut newest = self.entries.iter_mut().rev();
        let found = newest.find(|entry| (entry.shard, entry.generation) == (shard, generation));
        if let Some(entry) = found {
            change(entry);
        }
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
        Remembered {
            at: Now::default(),
            shard: ShardId::new(shard),
            generation,
            from: None,
            to: None,
            why: "fewest shards".into(),
            written: None,
            hosted: None,
            awaited: Vec::new(),
        }
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
    fn what_becomes_of_a_decision_is_noted_at_that_decision() {
        let mut ring = Ring::default();
        [1, 2, 3].into_iter().for_each(|seq| ring.push(entry(7, seq)));
        let second = Generation { seq: 2, ..Generation::NEVER };
        let took = Some(Duration::from_millis(5));
        ring.note(ShardId::new(7), second, |entry| entry.hosted = took);
        ring.note(ShardId::new(8), second, |entry| entry.hosted = None);
        let hosted: Vec<_> = ring.iter().map(|entry| entry.hosted).collect();
        assert_eq!(hosted, [None, took, None]);
    }
}
