//! Limits of the messages that a region's gates buffer and hold, in number and bytes; one shard may
//! use at most a quarter of either (docs/protocol/message-order.md#limits).
//!
//! [`Budget`] counts buffered messages, [`HeldBudget`] held ones, also per sending lane. A gate
//! asks only for messages that have to wait, so one lock for all gates of a region does not limit
//! throughput.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::sharding::ids::RegionId;

/// Messages that may be held of each shard whatever the region holds of others, so that a few
/// shards that start late do not take the room of all the rest. The region's limit may be exceeded
/// by this much per shard.
pub const HELD_FLOOR: Waits = Waits { messages: 100, bytes: 64 << 10 };

/// Most messages and bytes that may return to a sender from one lane, with the largest settings and
/// the smallest messages.
const BROUGHT_BACK: BufferLimits = BufferLimits { messages: 1 << 20, bytes: 64 << 20 };

/// Limits of the messages that a region's gates keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    /// Most messages of all shards; at least 1, which is not checked: 0 refuses every message.
    pub messages: usize,
    /// Most bytes of these messages.
    pub bytes: usize,
}

impl BufferLimits {
    /// Returns how much one sender may send here as moved, over all shards, if its own buffer has
    /// the limit `self`: its buffer, as much again that came back from an overtaken home, and twice
    /// that for nodes with other settings. So four times `self`, of which 2²⁰ messages and 64 MiB
    /// count at least. No other limit applies to moved messages, and only the sender marks them, so
    /// this bounds what one peer can occupy
    /// (docs/protocol/message-order.md#moved-messages-are-exempt).
    #[must_use]
    pub fn of_moved(self) -> Self {
        let of = |own: usize, back: usize| own.max(back).saturating_mul(4);
        let messages = of(self.messages, BROUGHT_BACK.messages);
        Self { messages, bytes: of(self.bytes, BROUGHT_BACK.bytes) }
    }

    /// Returns the sum of both limits.
    const fn and(self, other: Self) -> Self {
        let messages = self.messages.saturating_add(other.messages);
        Self { messages, bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Checks whether a message fits beside the `own` ones of its lane, first in number, then in
    /// bytes. One larger than the byte limit fits if the lane has no other. Reserves nothing; an
    /// error names a limit of the region, although it is that of a lane.
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

/// Number and bytes of the messages that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Waits {
    /// Number of waiting messages.
    pub messages: usize,
    /// Total bytes of these messages.
    pub bytes: usize,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The number of messages of this shard.
    ShardMessages,
    /// The bytes of this shard.
    ShardBytes,
    /// The number of messages of the region.
    RegionMessages,
    /// The bytes of the region.
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

/// Error: a limit of the buffer is reached. The message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{buffered} {why} wait for a home, at most {limit} are allowed; not sent: wait for room, or \
     raise cluster.sharding.buffer-size or buffer-bytes-max"
)]
pub struct Full {
    /// Messages or bytes that wait already.
    pub buffered: usize,
    /// Most messages or bytes that may wait.
    pub limit: usize,
    /// Unit and scope of the limit.
    pub why: Reached,
}

/// The messages that are kept, counted against their limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budget {
    limits: BufferLimits,
    floor: Waits, // for each shard
    waits: Waits, // ≤ limits, plus one floor per shard, plus messages that were only counted
}

impl Budget {
    /// Makes a budget without any messages.
    #[must_use]
    pub const fn new(limits: BufferLimits) -> Self {
        const NOTHING: Waits = Waits { messages: 0, bytes: 0 };
        Self { limits, floor: NOTHING, waits: NOTHING }
    }

    /// Exempts this much of each shard from the region's limits; the shard's own limits still
    /// apply.
    #[must_use]
    pub const fn with_floor(mut self, floor: Waits) -> Self {
        self.floor = floor;
        self
    }

    /// Reserves room for one more message in a gate where `own` wait.
    ///
    /// First checks the shard's limits, a quarter of the region's but at least one message, then
    /// those of the region, each first in number, then in bytes. Those of the region do not apply
    /// while the shard is below its floor with this message, in number and in bytes. A message
    /// larger than a byte limit fits if nothing else counts against that limit; otherwise it could
    /// never be sent. Messages that were only [counted](Self::count) use up the region's room, too.
    ///
    /// # Errors
    /// [`Full`] names the first limit that is reached; nothing was reserved.
    pub fn reserve(&mut self, bytes: usize, own: Waits) -> Result<(), Full> {
        let BufferLimits { messages: messages_max, bytes: bytes_max } = self.limits;
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
        // The first two checks are the shard's own limits, which always apply.
        let asked = if below_floor { &checks[..2] } else { &checks[..] };
        if let Some(&(_, buffered, limit, why)) = asked.iter().find(|(full, ..)| *full) {
            return Err(Full { buffered, limit, why });
        }
        self.count(bytes);
        Ok(())
    }

    /// Counts a message that these limits do not refuse, also beyond them; it reduces the room of
    /// those that they do refuse.
    pub const fn count(&mut self, bytes: usize) {
        self.waits.messages += 1;
        self.waits.bytes = self.waits.bytes.saturating_add(bytes);
    }

    /// Releases the room of one message. Panics if none was reserved or counted.
    pub const fn release(&mut self, bytes: usize) {
        self.release_all(Waits { messages: 1, bytes });
    }

    /// Releases the room of several messages together. Panics if more messages are released than
    /// were reserved or counted; too many bytes leave 0.
    pub const fn release_all(&mut self, what: Waits) {
        assert!(self.waits.messages >= what.messages, "released more messages than were reserved");
        self.waits.messages -= what.messages;
        self.waits.bytes = self.waits.bytes.saturating_sub(what.bytes);
    }

    /// Returns the messages that are kept.
    #[must_use]
    pub const fn waits(&self) -> Waits {
        self.waits
    }
}

/// The messages that a region's gates hold for shards that will start here, in total and per lane.
///
/// The sender itself marks the messages that no limit may refuse (moved messages). Of each sender
/// as many are held as an honest sender can have, whatever is held of others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBudget {
    all: Budget,
    limits: BufferLimits,
    moved: BufferLimits,           // of one lane
    of: BTreeMap<RegionId, Waits>, // all held messages of each lane, not only moved ones
    movers: BTreeSet<RegionId>,    // senders that moved anything here, until `ended`; ≤ members
}

impl HeldBudget {
    /// Makes a budget without any messages. Beyond `limits`, each sender may have `moved`
    /// [moved](BufferLimits::of_moved) messages held. Each shard has the floor [`HELD_FLOOR`].
    #[must_use]
    pub const fn new(limits: BufferLimits, moved: BufferLimits) -> Self {
        let all = Budget::new(limits).with_floor(HELD_FLOOR);
        Self { all, limits, moved, of: BTreeMap::new(), movers: BTreeSet::new() }
    }

    /// Reserves room for a message that came directly on the lane of `from`, for a shard that holds
    /// `own`; see [`Budget::reserve`]. The message counts for its lane too, where only moved
    /// messages are refused.
    ///
    /// # Errors
    /// [`Full`] if a limit is reached; nothing was reserved.
    pub fn reserve(&mut self, from: RegionId, bytes: usize, own: Waits) -> Result<(), Full> {
        self.all.reserve(bytes, own)?;
        self.count(from, bytes);
        Ok(())
    }

    /// Reserves room for a moved message: one that had waited for a home elsewhere, or came back.
    /// Only its lane limits it, over all shards: everything held of the lane may reach the common
    /// limits and those of moved messages together. The message also counts against the common
    /// limits, which do not refuse it.
    ///
    /// # Errors
    /// [`Full`] if more is held of this lane than an honest sender can have; nothing was reserved.
    pub fn reserve_moved(&mut self, from: RegionId, bytes: usize) -> Result<(), Full> {
        let own = self.of.get(&from).copied().unwrap_or_default();
        self.moved.and(self.limits).check(bytes, own)?;
        self.all.count(bytes);
        self.count(from, bytes);
        Ok(())
    }

    /// Counts a held message for its lane.
    fn count(&mut self, from: RegionId, bytes: usize) {
        let of = self.of.entry(from).or_default();
        of.messages += 1;
        of.bytes = of.bytes.saturating_add(bytes);
    }

    /// Releases the room of messages of a lane, moved or not, in total and for the lane. Panics if
    /// more messages are released than were reserved for either.
    pub fn release(&mut self, from: RegionId, what: Waits) {
        self.all.release_all(what);
        let of = self.of.entry(from).or_default();
        assert!(of.messages >= what.messages, "released more messages than were reserved");
        of.messages -= what.messages;
        of.bytes = of.bytes.saturating_sub(what.bytes);
        if of.messages == 0 {
            self.of.remove(&from);
        }
    }

    /// Records that a sender moved a message here, until [`ended`](Self::ended). Returns how much
    /// all senders that did so may together have in the mailbox of one entity: the limits of moved
    /// messages times the number of these senders. Reserves nothing.
    pub fn moved_by(&mut self, from: RegionId) -> BufferLimits {
        self.movers.insert(from);
        let BufferLimits { messages, bytes } = self.moved;
        let all = |limit: usize| limit.saturating_mul(self.movers.len());
        BufferLimits { messages: all(messages), bytes: all(bytes) }
    }

    /// Forgets a sender that left the configuration, so that the result of
    /// [`moved_by`](Self::moved_by) shrinks. Its held messages stay counted until they are
    /// released.
    pub fn ended(&mut self, from: RegionId) {
        self.movers.remove(&from);
    }

    /// Sets the limits of moved messages of each lane, also for [`moved_by`](Self::moved_by).
    /// Messages that are held already stay.
    pub const fn limit_moved(&mut self, limits: BufferLimits) {
        self.moved = limits;
    }

    /// Returns the messages that are held.
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
    fn message_limit_of_region_and_quarter_for_one_shard() {
        let mut budget = Budget::new(BufferLimits { messages: 8, bytes: 1_000 });
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
    fn byte_limits_apply_unless_a_message_is_alone() {
        let mut budget = Budget::new(BufferLimits { messages: 100, bytes: 20 });
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
    fn shard_floor_is_reserved_within_its_own_limit() {
        let limits = BufferLimits { messages: 16, bytes: 100 };
        let mut budget = Budget::new(limits).with_floor(waits(2, 10));
        (0..20).for_each(|_| budget.count(6));
        assert_eq!(budget.waits(), waits(20, 120), "counted but not refused");
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

    /// A peer that marks all its messages as moved takes no room from other peers.
    #[test]
    fn moved_messages_are_limited_per_lane_over_all_shards() {
        let limits = BufferLimits { messages: 2, bytes: 20 };
        let mut held = HeldBudget::new(limits, BufferLimits { messages: 3, bytes: 300 });
        let why = |held: &mut HeldBudget, from, bytes| {
            held.reserve_moved(region(from), bytes).err().map(|full| full.why)
        };
        (0..4).for_each(|_| assert_eq!(why(&mut held, 1, 70), None));
        assert_eq!(why(&mut held, 1, 41), Some(Reached::RegionBytes));
        assert_eq!(why(&mut held, 1, 40), None);
        assert_eq!(why(&mut held, 1, 0), Some(Reached::RegionMessages));
        assert_eq!(
            why(&mut held, 2, 1_000),
            None,
            "another lane; a single message may exceed the limit"
        );
        assert_eq!(why(&mut held, 2, 1), Some(Reached::RegionBytes));
        assert_eq!(held.waits(), waits(6, 1_320));
        held.release(region(1), waits(5, 320));
        assert_eq!((why(&mut held, 1, 320), held.of.len()), (None, 2));
        held.release(region(1), waits(1, 320));
        held.release(region(2), waits(1, 1_000));
        assert_eq!((held.waits(), held.of.len()), (Waits::default(), 0));
    }

    #[test]
    fn direct_messages_have_the_common_limits() {
        let limits = BufferLimits { messages: 1_000, bytes: 1 << 20 };
        let mut held = HeldBudget::new(limits, limits);
        let full = held.reserve(region(1), 1, waits(250, 9)).expect_err("a quarter");
        assert_eq!((full.why, held.of.len()), (Reached::ShardMessages, 0));
        held.reserve(region(1), 9, waits(0, 0)).expect("there is room");
        assert_eq!(held.of[&region(1)], waits(1, 9));
    }

    #[test]
    fn moved_limit_is_a_multiple_of_the_buffer_per_sender() {
        let own = BufferLimits { messages: 100_000, bytes: 256 << 20 };
        assert_eq!(own.of_moved(), BufferLimits { messages: 4 << 20, bytes: 1 << 30 });
        let mut held = HeldBudget::new(own, BufferLimits { messages: 3, bytes: 5 });
        assert_eq!(held.moved_by(region(1)), BufferLimits { messages: 3, bytes: 5 });
        assert_eq!(held.moved_by(region(2)), BufferLimits { messages: 6, bytes: 10 });
        held.ended(region(1));
        assert_eq!(held.moved_by(region(2)), BufferLimits { messages: 3, bytes: 5 });
    }

    #[test]
    fn buffer_full_error_names_limit_and_remedy() {
        let full = Full { buffered: 7, limit: 8, why: Reached::ShardBytes };
        let text = "7 bytes for this shard wait for a home, at most 8 are allowed; not sent: wait \
                    for room, or raise cluster.sharding.buffer-size or buffer-bytes-max";
        assert_eq!(full.to_string(), text);
    }
}
