//! What a region's gates may buffer together, in messages and in bytes, and what they may hold; one
//! shard at most a quarter of either (spec/sharding.md §8).
//!
//! Asked only for messages that have to wait: one lock for all gates of a region is no burden.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::sharding::ids::RegionId;

/// What may be held of each shard whatever its region holds of others: a few shards that start late
/// take no room from all the rest. Beyond the region's limit by at most so much per shard.
pub const HELD_FLOOR: Waits = Waits { messages: 100, bytes: 64 << 10 };

/// What a lane of the largest settings and the smallest messages may bring back to its sender.
const BROUGHT_BACK: Limits = Limits { messages: 1 << 20, bytes: 64 << 20 };

/// Limits of what a region's gates keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages of all shards; at least 1.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Limits {
    /// Where so much is buffered at each sender, most of what one of them sends on, of all shards,
    /// after it had waited for a home or came back: what it buffers, as much that came back from a
    /// home that was overtaken, and twice that, for settings that differ. No other limit refuses it,
    /// and nobody but its sender says what is so.
    #[must_use]
    pub fn of_moved(self) -> Self {
        let of = |own: usize, back: usize| own.max(back).saturating_mul(4);
        let messages = of(self.messages, BROUGHT_BACK.messages);
        Self { messages, bytes: of(self.bytes, BROUGHT_BACK.bytes) }
    }

    const fn and(self, other: Self) -> Self {
        let messages = self.messages.saturating_add(other.messages);
        Self { messages, bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// A message that is larger than the limit fits where nothing else is.
    const fn check(self, bytes: usize, own: Waits) -> Result<(), Full> {
        let Self { messages, bytes: bytes_max } = self;
        if own.messages >= messages {
            let (buffered, limit, why) = (own.messages, messages, Reached::RegionMessages);
            return Err(Full { buffered, limit, why });
        }
        if own.messages > 0 && own.bytes.saturating_add(bytes) > bytes_max {
            let (buffered, limit, why) = (own.bytes, bytes_max, Reached::RegionBytes);
            return Err(Full { buffered, limit, why });
        }
        Ok(())
    }
}

/// Messages that wait, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Waits {
    /// How many.
    pub messages: usize,
    /// How large together.
    pub bytes: usize,
}

/// Which limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Messages of this shard.
    ShardMessages,
    /// Bytes of this shard.
    ShardBytes,
    /// Messages of the region.
    RegionMessages,
    /// Bytes of the region.
    RegionBytes,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ShardMessages => "messages for this shard",
            Self::ShardBytes => "bytes for this shard",
            Self::RegionMessages => "messages of this region",
            Self::RegionBytes => "bytes of this region",
        })
    }
}

/// A buffer's limit is reached; the message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{buffered} {why} wait for a home, at most {limit} may; not sent: wait for room, or raise \
     cluster.sharding.buffer-size or buffer-bytes-max"
)]
pub struct Full {
    /// What waits already.
    pub buffered: usize,
    /// How much may.
    pub limit: usize,
    /// Of what.
    pub why: Reached,
}

/// What is kept, against its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: Limits,
    floor: Waits, // of each shard
    waits: Waits, // ≤ limits, a floor per shard, and what was only counted
}

impl Budget {
    /// Nothing is kept.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        const NOTHING: Waits = Waits { messages: 0, bytes: 0 };
        Self { limits, floor: NOTHING, waits: NOTHING }
    }

    /// With so much for each shard that the region's limits do not concern; the shard's own do.
    #[must_use]
    pub const fn with_floor(mut self, floor: Waits) -> Self {
        self.floor = floor;
        self
    }

    /// Room for one more message in a gate where `own` wait.
    ///
    /// A message larger than a limit in bytes fits if nothing else counts against that limit:
    /// else it could never be sent.
    ///
    /// # Errors
    /// [`Full`] names the limit that is reached; nothing was reserved.
    pub fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full> {
        let Limits { messages: messages_max, bytes: bytes_max } = self.limits;
        let too_large =
            |wait: Waits, limit| wait.messages > 0 && wait.bytes.saturating_add(bytes) > limit;
        let (all, share) = (self.waits, (messages_max / 4).max(1));
        let below_floor = own.messages < self.floor.messages
            && own.bytes.saturating_add(bytes) <= self.floor.bytes;
        let checks = [
            (own.messages >= share, own.messages, share, Reached::ShardMessages),
            (too_large(own, bytes_max / 4), own.bytes, bytes_max / 4, Reached::ShardBytes),
            (all.messages >= messages_max, all.messages, messages_max, Reached::RegionMessages),
            (too_large(all, bytes_max), all.bytes, bytes_max, Reached::RegionBytes),
        ];
        let asked = if below_floor { &checks[..2] } else { &checks[..] }; // the shard's own come first
        if let Some(&(_, buffered, limit, why)) = asked.iter().find(|(full, ..)| *full) {
            return Err(Full { buffered, limit, why });
        }
        self.count(bytes);
        Ok(())
    }

    /// A message that may be kept whatever these limits say: it counts against those that may not.
    pub const fn count(&mut self, bytes: usize) {
        self.waits.messages += 1;
        self.waits.bytes = self.waits.bytes.saturating_add(bytes);
    }

    /// A message that had reserved its room has left.
    pub const fn release(&mut self, bytes: usize) {
        self.release_all(Waits { messages: 1, bytes });
    }

    /// Messages that had reserved their room have left together.
    pub const fn release_all(&mut self, what: Waits) {
        assert!(self.waits.messages >= what.messages, "messages leave that never came");
        self.waits.messages -= what.messages;
        self.waits.bytes = self.waits.bytes.saturating_sub(what.bytes);
    }

    /// What is kept.
    #[must_use]
    pub const fn waits(&self) -> Waits {
        self.waits
    }
}

/// What a region's gates hold for shards that are to start here, together and of each lane.
///
/// Who sends says itself of which messages no limit may lose any: so much as a sender can honestly
/// have of them is held of each, whatever is held of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBudget {
    all: Budget,
    limits: Limits,
    moved: Limits,                 // of one lane
    of: BTreeMap<RegionId, Waits>, // ≤ lanes of which something is held
    movers: BTreeSet<RegionId>,    // ≤ members
}

impl HeldBudget {
    /// Nothing is held. Beside what `limits` allow so much may be [moved](Limits::of_moved) by each
    /// sender.
    #[must_use]
    pub const fn new(limits: Limits, moved: Limits) -> Self {
        let all = Budget::new(limits).with_floor(HELD_FLOOR);
        Self { all, limits, moved, of: BTreeMap::new(), movers: BTreeSet::new() }
    }

    /// Room for a message that came directly, see [`Budget::reserve`].
    ///
    /// # Errors
    /// [`Full`]; nothing was reserved.
    pub fn reserve(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        self.all.reserve(bytes, own)?;
        self.count(from, bytes);
        Ok(())
    }

    /// Room for a message that had waited for a home elsewhere, or came back.
    ///
    /// # Errors
    /// [`Full`]: more is held of this lane than an honest sender has.
    pub fn reserve_moved(&mut self, from: RegionId, bytes: usize) -> Result<(), Full> {
        let own = self.of.get(&from).copied().unwrap_or_default();
        self.moved.and(self.limits).check(bytes, own)?;
        self.all.count(bytes);
        self.count(from, bytes);
        Ok(())
    }

    fn count(&mut self, from: RegionId, bytes: usize) {
        let of = self.of.entry(from).or_default();
        of.messages += 1;
        of.bytes = of.bytes.saturating_add(bytes);
    }

    /// Messages of a lane that had reserved their room are held no longer.
    pub fn release(&mut self, from: RegionId, what: Waits) {
        self.all.release_all(what);
        let of = self.of.entry(from).or_default();
        assert!(of.messages >= what.messages, "messages leave that never came");
        of.messages -= what.messages;
        of.bytes = of.bytes.saturating_sub(what.bytes);
        if of.messages == 0 {
            self.of.remove(&from);
        }
    }

    /// A sender has moved a message here: what all who have together may have of one entity.
    pub fn moved_by(&mut self, from: RegionId) -> Limits {
        self.movers.insert(from);
        let Limits { messages, bytes } = self.moved;
        let all = |limit: usize| limit.saturating_mul(self.movers.len());
        Limits { messages: all(messages), bytes: all(bytes) }
    }

    /// A sender is out: it moves nothing any more.
    pub fn ended(&mut self, from: RegionId) {
        self.movers.remove(&from);
    }

    /// Other limits of what is moved.
    pub const fn limit_moved(&mut self, limits: Limits) {
        self.moved = limits;
    }

    /// What is held.
    #[must_use]
    pub const fn waits(&self) -> Waits {
        self.all.waits()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    const fn waits(messages: usize, bytes: usize) -> Waits {
        Waits { messages, bytes }
    }

    fn full(budget: &mut Budget, bytes: usize, own: Waits) -> Option<Reached> {
        budget.reserve(bytes, own).err().map(|full| full.why)
    }

    #[test]
    fn the_region_has_a_limit_in_messages_and_a_shard_a_quarter_of_it() {
        let mut budget = Budget::new(Limits { messages: 8, bytes: 1_000 });
        assert_eq!(full(&mut budget, 1, waits(1, 1)), None);
        assert_eq!(full(&mut budget, 1, waits(2, 2)), Some(Reached::ShardMessages));
        for _ in 1..8 {
            assert_eq!(full(&mut budget, 1, waits(0, 0)), None);
        }
        assert_eq!(full(&mut budget, 1, waits(0, 0)), Some(Reached::RegionMessages));
        budget.release(1);
        assert_eq!(full(&mut budget, 1, waits(0, 0)), None);
        assert_eq!(budget.waits(), waits(8, 8));
    }

    #[test]
    fn both_have_a_limit_in_bytes_which_a_single_message_may_exceed() {
        let mut budget = Budget::new(Limits { messages: 100, bytes: 20 });
        assert_eq!(full(&mut budget, 50, waits(0, 0)), None);
        assert_eq!(full(&mut budget, 1, waits(1, 50)), Some(Reached::ShardBytes));
        assert_eq!(full(&mut budget, 1, waits(0, 0)), Some(Reached::RegionBytes));
        budget.release(50);
        assert_eq!(full(&mut budget, 5, waits(0, 0)), None);
        assert_eq!(full(&mut budget, 1, waits(1, 5)), Some(Reached::ShardBytes));
        assert_eq!(full(&mut budget, 15, waits(0, 0)), None);
        assert_eq!(full(&mut budget, 1, waits(0, 0)), Some(Reached::RegionBytes));
    }

    #[test]
    fn a_shard_has_a_floor_that_the_others_cannot_take_and_that_is_within_its_own_limit() {
        let limits = Limits { messages: 16, bytes: 100 };
        let mut budget = Budget::new(limits).with_floor(waits(2, 10));
        (0..20).for_each(|_| budget.count(6));
        assert_eq!(budget.waits(), waits(20, 120), "counted, and not refused");
        assert_eq!(full(&mut budget, 11, waits(0, 0)), Some(Reached::RegionMessages));
        assert_eq!(full(&mut budget, 5, waits(0, 0)), None);
        assert_eq!(full(&mut budget, 5, waits(1, 5)), None);
        assert_eq!(full(&mut budget, 0, waits(2, 10)), Some(Reached::RegionMessages));
        let mut budget = Budget::new(limits).with_floor(waits(9, 90));
        assert_eq!(full(&mut budget, 1, waits(4, 4)), Some(Reached::ShardMessages));
        assert_eq!(full(&mut budget, 9, waits(1, 20)), Some(Reached::ShardBytes));
    }

    fn region(number: u64) -> RegionId {
        RegionId::new(ReplicaId::new(number))
    }

    /// One peer that claims that all it sends was moved takes no room from anybody else.
    #[test]
    fn what_no_other_limit_refuses_has_one_of_each_lane_and_of_all_shards_together() {
        let limits = Limits { messages: 2, bytes: 20 };
        let mut held = HeldBudget::new(limits, Limits { messages: 3, bytes: 300 });
        let why = |held: &mut HeldBudget, from, bytes| {
            held.reserve_moved(region(from), bytes).err().map(|full| full.why)
        };
        (0..4).for_each(|_| assert_eq!(why(&mut held, 1, 70), None));
        assert_eq!(why(&mut held, 1, 41), Some(Reached::RegionBytes));
        assert_eq!(why(&mut held, 1, 40), None);
        assert_eq!(why(&mut held, 1, 0), Some(Reached::RegionMessages));
        assert_eq!(why(&mut held, 2, 1_000), None, "another one; a single one may be longer");
        assert_eq!(why(&mut held, 2, 1), Some(Reached::RegionBytes));
        assert_eq!(held.waits(), waits(6, 1_320));
        held.release(region(1), waits(5, 320));
        assert_eq!((why(&mut held, 1, 320), held.of.len()), (None, 2));
        held.release(region(1), waits(1, 320));
        held.release(region(2), waits(1, 1_000));
        assert_eq!((held.waits(), held.of.len()), (Waits::default(), 0));
    }

    #[test]
    fn what_comes_directly_has_the_limits_of_all() {
        let limits = Limits { messages: 1_000, bytes: 1 << 20 };
        let mut held = HeldBudget::new(limits, limits);
        let full = held.reserve(region(1), 1, waits(250, 9)).expect_err("a quarter");
        assert_eq!((full.why, held.of.len()), (Reached::ShardMessages, 0));
        held.reserve(region(1), 9, waits(0, 0)).expect("there is room");
        assert_eq!(held.of[&region(1)], waits(1, 9));
    }

    #[test]
    fn a_sender_moves_a_few_times_what_it_buffers_and_each_that_does_adds_as_much() {
        let own = Limits { messages: 100_000, bytes: 256 << 20 };
        assert_eq!(own.of_moved(), Limits { messages: 4 << 20, bytes: 1 << 30 });
        let mut held = HeldBudget::new(own, Limits { messages: 3, bytes: 5 });
        assert_eq!(held.moved_by(region(1)), Limits { messages: 3, bytes: 5 });
        assert_eq!(held.moved_by(region(2)), Limits { messages: 6, bytes: 10 });
        held.ended(region(1));
        assert_eq!(held.moved_by(region(2)), Limits { messages: 3, bytes: 5 });
    }

    #[test]
    fn the_error_says_what_waits_and_what_to_do() {
        let full = Full { buffered: 7, limit: 8, why: Reached::ShardBytes };
        let text = "7 bytes for this shard wait for a home, at most 8 may; not sent: wait for \
                    room, or raise cluster.sharding.buffer-size or buffer-bytes-max";
        assert_eq!(full.to_string(), text);
    }
}
