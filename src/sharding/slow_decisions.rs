//! Detects decisions that take unusually long: more than three times as long as 99 of 100 similar
//! ones.
//!
//! The detector has no timer. The coordinator and each region own a detector, and call
//! [`SlowDecisionDetector::take_slow`] when other events occur. That happens at least every two
//! seconds while a decision is open, because the messages about it are sent again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::decision_history::SlowDecisions;
use super::ids::ShardId;

/// Durations that are remembered of each kind.
const SAMPLES_MAX: usize = 1_024;

/// Fewer samples do not determine the 99th percentile.
const SAMPLES_MIN: usize = 100;

/// The percentile is computed again after this many new samples.
const RECOMPUTE_AFTER: usize = 32;

/// Shorter durations are never slow, however fast others were: a message may have to be repeated.
const AT_LEAST: Duration = Duration::from_secs(1);

/// Limit of a kind while too few samples of it are known: twice the default time for the drain of a
/// shard.
const UNKNOWN: Duration = Duration::from_secs(30);

/// Least time between two checks, because many decisions may be open.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Kind of a decision; the kinds have different durations. A predecessor is a region that may still
/// host the shard by an earlier decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum DecisionKind {
    /// The home starts the shard at once: there is no predecessor.
    Start,
    /// The home starts the shard after a predecessor has released it.
    Move,
}

/// Durations of the last decisions of one kind, and their 99th percentile.
#[derive(Clone, Debug, Default)]
struct Durations {
    last: VecDeque<Duration>, // ≤ SAMPLES_MAX
    new: usize,               // samples since `p99` was computed
    p99: Option<Duration>,    // `None` until there are SAMPLES_MIN
}

impl Durations {
    /// Adds a sample in place of the oldest beyond [`SAMPLES_MAX`]. Computes the percentile at the
    /// first [`SAMPLES_MIN`] samples, then after each [`RECOMPUTE_AFTER`]; in between it stays.
    fn add(&mut self, took: Duration) {
        if self.last.len() == SAMPLES_MAX {
            self.last.pop_front();
        }
        self.last.push_back(took);
        self.new += 1;
        if self.last.len() >= SAMPLES_MIN && (self.p99.is_none() || self.new >= RECOMPUTE_AFTER) {
            let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
            let at = (sorted.len() * 99).div_ceil(100) - 1;
            self.p99 = Some(*sorted.select_nth_unstable(at).1);
            self.new = 0;
        }
    }

    /// Returns the longest duration that is not slow: three times the percentile, at least
    /// [`AT_LEAST`]; [`UNKNOWN`] without a percentile.
    fn limit(&self) -> Duration {
        self.p99.map_or(UNKNOWN, |p99| p99.saturating_mul(3).max(AT_LEAST))
    }
}

/// Durations of past decisions and the open ones; see the module documentation.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowDecisionDetector {
    starts: Durations,
    moves: Durations,
    open: BTreeMap<ShardId, (Instant, DecisionKind)>, // ≤ shards
    unreported: BTreeSet<(Instant, ShardId)>, // open and not yet reported as slow, oldest first
    look_at: Instant,                         // no check before this time
}

impl SlowDecisionDetector {
    fn durations(&mut self, kind: DecisionKind) -> &mut Durations {
        match kind {
            DecisionKind::Start => &mut self.starts,
            DecisionKind::Move => &mut self.moves,
        }
    }

    fn limit(&self, kind: DecisionKind) -> Duration {
        match kind {
            DecisionKind::Start => self.starts.limit(),
            DecisionKind::Move => self.moves.limit(),
        }
    }

    /// Records the start of a decision about a shard, and [forgets](Self::forget) the one that was
    /// open there, even if it is the same: its time begins anew.
    pub(super) fn begin(&mut self, now: Instant, shard: ShardId, kind: DecisionKind) {
        self.forget(shard);
        self.open.insert(shard, (now, kind));
        self.unreported.insert((now, shard));
    }

    /// Records that the open decision of a shard was carried out: its duration becomes a sample of
    /// its kind, also if it was reported as slow. No effect if none is open.
    pub(super) fn end(&mut self, now: Instant, shard: ShardId) {
        if let Some((begun, kind)) = self.open.get(&shard).copied() {
            self.forget(shard);
            self.durations(kind).add(now - begun);
        }
    }

    /// Forgets the open decision of a shard, which was not carried out: no sample. No effect if
    /// none is open.
    pub(super) fn forget(&mut self, shard: ShardId) {
        if let Some((begun, _)) = self.open.remove(&shard) {
            self.unreported.remove(&(begun, shard));
        }
    }

    /// Forgets all open decisions. Samples, and the time of the next check, stay.
    pub(super) fn forget_all(&mut self) {
        self.open.clear();
        self.unreported.clear();
    }

    /// Returns the shards whose decisions became slow since the last call, the oldest first, with
    /// the longest wait and the lowest limit among them. Slow is above the limit of the kind; at
    /// the limit is not. Each decision is returned once, and stays open. The caller adds the
    /// regions that they wait for: `awaited` is empty.
    ///
    /// `None` if there is none. Also `None`, without a check, within [`LOOK_AGAIN`] after the last
    /// check, whatever it found; a later call then returns the shards.
    pub(super) fn take_slow(&mut self, now: Instant) -> Option<SlowDecisions> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_AGAIN;
        let least = self.starts.limit().min(self.moves.limit());
        let (mut slow, mut lowest) = (Vec::new(), Duration::MAX);
        for (begun, shard) in &self.unreported {
            let waited = now - *begun;
            if waited <= least {
                break; // the following ones are younger
            }
            let Some((_, kind)) = self.open.get(shard) else { continue };
            let limit = self.limit(*kind);
            if waited > limit {
                slow.push((*begun, *shard));
                lowest = lowest.min(limit);
            }
        }
        let longest = now - slow.first()?.0;
        for reported in &slow {
            self.unreported.remove(reported);
        }
        let shards = slow.into_iter().map(|(_, shard)| shard).collect();
        Some(SlowDecisions { shards, waited: longest, limit: lowest, awaited: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId::new(7);

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn slow(waited: u64, limit: u64) -> Option<SlowDecisions> {
        let (waited, limit) = (Duration::from_millis(waited), Duration::from_millis(limit));
        Some(SlowDecisions { shards: vec![SHARD], waited, limit, awaited: Vec::new() })
    }

    #[test]
    fn three_times_the_usual_time_is_reported_slow_once() {
        let mut slow_decisions = SlowDecisionDetector::default();
        for number in 0..100 {
            let shard = ShardId::new(number);
            slow_decisions.begin(ms(0), shard, DecisionKind::Move);
            slow_decisions.end(ms(if number == 99 { 90_000 } else { 500 }), shard);
        }
        slow_decisions.begin(ms(0), SHARD, DecisionKind::Move);
        assert_eq!(slow_decisions.take_slow(ms(1_500)), None);
        assert_eq!(slow_decisions.take_slow(ms(1_501)), None, "checked too recently");
        assert_eq!(slow_decisions.take_slow(ms(1_700)), slow(1_700, 1_500));
        assert_eq!(slow_decisions.take_slow(ms(9_999)), None, "reported only once");
        slow_decisions.end(ms(9_999), SHARD);
        slow_decisions.begin(ms(10_000), SHARD, DecisionKind::Move);
        assert_eq!(slow_decisions.take_slow(ms(11_501)), slow(1_501, 1_500), "another decision");
    }

    #[test]
    fn few_samples_use_thirty_seconds_and_finished_is_never_slow() {
        let mut slow_decisions = SlowDecisionDetector::default();
        slow_decisions.begin(ms(0), SHARD, DecisionKind::Start);
        assert_eq!(slow_decisions.take_slow(ms(30_000)), None);
        assert_eq!(slow_decisions.take_slow(ms(30_200)), slow(30_200, 30_000));
        slow_decisions.begin(ms(0), SHARD, DecisionKind::Start);
        slow_decisions.forget(SHARD);
        assert_eq!(slow_decisions.take_slow(ms(99_000)), None);
    }

    #[test]
    fn fast_starts_do_not_make_moves_slow() {
        let mut slow_decisions = SlowDecisionDetector::default();
        for _ in 0..2 * SAMPLES_MAX {
            slow_decisions.begin(ms(0), SHARD, DecisionKind::Start);
            slow_decisions.end(ms(1), SHARD);
        }
        slow_decisions.begin(ms(0), SHARD, DecisionKind::Start);
        slow_decisions.begin(ms(0), ShardId::new(8), DecisionKind::Move);
        assert_eq!(slow_decisions.take_slow(ms(1_000)), None);
        assert_eq!(slow_decisions.take_slow(ms(5_000)), slow(5_000, 1_000));
    }
}
