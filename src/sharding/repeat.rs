//! Schedule of repetitions: a message about a shard is repeated until it is answered, after a first
//! pause, then with doubled pauses up to a longest one
//! (docs/protocol/sharding.md#repeat-until-hosted: 200 ms, doubling to 2 s).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::ids::ShardId;

/// The pauses between repetitions. Not checked: a first pause above the longest is used once, and
/// with a first pause of 0 a message is due at every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// Pause before the first repetition.
    pub first: Duration,
    /// Longest pause between repetitions.
    pub longest: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { first: Duration::from_millis(200), longest: Duration::from_secs(2) }
    }
}

/// The shards with unanswered messages, and when to repeat them.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats {
    // Next repetition, and the pause before it; ≤ shards.
    open: BTreeMap<ShardId, (Instant, Duration)>,
    order: BTreeSet<(Instant, ShardId)>, // one entry for each of `open`
}

impl Repeats {
    /// Repeats a message about a shard that was sent just now, until [`end`](Self::end): first
    /// after the first pause. Begins anew if the shard has a repetition already.
    pub(super) fn begin(&mut self, now: Instant, shard: ShardId, pauses: Pauses) {
        self.at(now + pauses.first, shard, pauses.first);
    }

    /// The same for a message that has not been sent: it is due now, and its first repetition comes
    /// after the first pause, or the longest if that is shorter. Replaces a repetition of the
    /// shard.
    pub(super) fn begin_now(&mut self, now: Instant, shard: ShardId, pauses: Pauses) {
        self.at(now, shard, pauses.first / 2);
    }

    /// Sets the time of the next repetition and the pause before it, in place of former ones.
    fn at(&mut self, due: Instant, shard: ShardId, pause: Duration) {
        self.end(shard);
        self.open.insert(shard, (due, pause));
        self.order.insert((due, shard));
    }

    /// Ends the repetition, because the message was answered. No effect without one.
    pub(super) fn end(&mut self, shard: ShardId) {
        if let Some((due, _)) = self.open.remove(&shard) {
            self.order.remove(&(due, shard));
        }
    }

    /// Returns the shards whose messages are due at `now` or before, the longest due first, and
    /// schedules each again after twice its last pause, at most the longest one, from `now` on. So
    /// a late call returns a shard once. The caller must send the messages.
    pub(super) fn take_due(&mut self, now: Instant, pauses: Pauses) -> Vec<ShardId> {
        let due = self.order.iter().take_while(|(due, _)| *due <= now);
        let due: Vec<ShardId> = due.map(|(_, shard)| *shard).collect();
        for shard in &due {
            if let Some((_, pause)) = self.open.get(shard).copied() {
                let longer = pause.saturating_mul(2).min(pauses.longest);
                self.at(now + longer, *shard, longer);
            }
        }
        due
    }

    /// Returns the time of the next repetition; `None` without any.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Returns whether the message about a shard is being repeated.
    pub(super) fn contains(&self, shard: ShardId) -> bool {
        self.open.contains_key(&shard)
    }

    /// Ends the repetitions of all shards.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_entry_is_due_at_once_then_after_the_first_pause() {
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let (mut repeats, pauses, shard) = (Repeats::default(), Pauses::default(), ShardId::new(1));
        repeats.begin_now(ms(5), shard, pauses);
        assert_eq!(repeats.take_due(ms(5), pauses), [shard]);
        assert_eq!(repeats.take_due(ms(5), pauses), []);
        assert_eq!(repeats.next(), Some(ms(205)));
    }

    #[test]
    fn longest_possible_pause_does_not_overflow() {
        let (mut repeats, shard) = (Repeats::default(), ShardId::new(1));
        let pauses = Pauses { first: Duration::MAX, longest: Duration::MAX };
        let end = Instant::from_nanos(u64::MAX);
        repeats.begin(Instant::default(), shard, pauses);
        assert_eq!(repeats.take_due(end, pauses), [shard]);
        assert_eq!(repeats.next(), Some(end));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let (mut repeats, pauses, shard) = (Repeats::default(), Pauses::default(), ShardId::new(1));
        repeats.begin(ms(0), shard, pauses);
        let mut at = Vec::new();
        for _ in 0..6 {
            let due = repeats.next().unwrap();
            assert_eq!(repeats.take_due(due, pauses), [shard]);
            at.push(due.as_nanos() / 1_000_000);
        }
        assert_eq!(at, [200, 600, 1_400, 3_000, 5_000, 7_000]);
        repeats.end(shard);
        assert_eq!((repeats.next(), repeats.take_due(ms(99_999), pauses)), (None, vec![]));
    }
}
