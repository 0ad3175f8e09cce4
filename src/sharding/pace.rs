//! What takes unusually long: more than three times as long as 99 of 100 like it took
//! (spec/sharding.md §13).
//!
//! Knows no deadline: who has it looks when something happens anyway, and what is open is spoken of
//! again every two seconds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::ids::ShardId;
use super::remembered::Slow;

/// Durations that are remembered of each kind.
const SAMPLES_MAX: usize = 1_024;

/// Fewer say nothing of one in a hundred.
const SAMPLES_MIN: usize = 100;

/// The percentile is found anew after so many new durations.
const ANEW: usize = 32;

/// What takes less is not slow, however fast others were: a word may have to be said again.
const AT_LEAST: Duration = Duration::from_secs(1);

/// What is slow while it is not known how long such things take: twice as long as a shard may be
/// drained.
const UNKNOWN: Duration = Duration::from_secs(30);

/// Between two looks, at least: many may be open.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Things of two kinds last differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// Nobody has to end first.
    Start,
    /// Somebody has.
    Move,
}

#[derive(Clone, Debug, Default)]
struct Took {
    last: VecDeque<Duration>, // ≤ SAMPLES_MAX
    new: usize,
    p99: Option<Duration>,
}

impl Took {
    fn add(&mut self, took: Duration) {
        if self.last.len() == SAMPLES_MAX {
            self.last.pop_front();
        }
        self.last.push_back(took);
        self.new += 1;
        if self.last.len() >= SAMPLES_MIN && (self.p99.is_none() || self.new >= ANEW) {
            let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
            let at = (sorted.len() * 99).div_ceil(100) - 1;
            self.p99 = Some(*sorted.select_nth_unstable(at).1);
            self.new = 0;
        }
    }

    fn limit(&self) -> Duration {
        self.p99.map_or(UNKNOWN, |p99| p99.saturating_mul(3).max(AT_LEAST))
    }
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    starts: Took,
    moves: Took,
    open: BTreeMap<ShardId, (Instant, Kind)>, // ≤ shards
    order: BTreeSet<(Instant, ShardId)>,      // of those that were not called slow; ≤ open
    look_at: Instant,
}

impl Pace {
    fn took(&mut self, kind: Kind) -> &mut Took {
        match kind {
            Kind::Start => &mut self.starts,
            Kind::Move => &mut self.moves,
        }
    }

    fn limit(&self, kind: Kind) -> Duration {
        match kind {
            Kind::Start => self.starts.limit(),
            Kind::Move => self.moves.limit(),
        }
    }

    /// Something begins at a shard; whatever was open there is forgotten.
    pub(super) fn begin(&mut self, now: Instant, shard: ShardId, kind: Kind) {
        self.forget(shard);
        self.open.insert(shard, (now, kind));
        self.order.insert((now, shard));
    }

    /// It is done.
    pub(super) fn end(&mut self, now: Instant, shard: ShardId) {
        if let Some((begun, kind)) = self.open.get(&shard).copied() {
            self.forget(shard);
            self.took(kind).add(now - begun);
        }
    }

    /// It came to nothing.
    pub(super) fn forget(&mut self, shard: ShardId) {
        if let Some((begun, _)) = self.open.remove(&shard) {
            self.order.remove(&(begun, shard));
        }
    }

    /// All that is open came to nothing.
    pub(super) fn forget_all(&mut self) {
        self.open.clear();
        self.order.clear();
    }

    /// What is slow now and was not before, the oldest first. Whom it waits for others know.
    pub(super) fn take_slow(&mut self, now: Instant) -> Option<Slow> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_AGAIN;
        let least = self.starts.limit().min(self.moves.limit());
        let (mut slow, mut shortest) = (Vec::new(), Duration::MAX);
        for (begun, shard) in &self.order {
            let waited = now - *begun;
            if waited <= least {
                break; // all that follow are younger
            }
            let Some((_, kind)) = self.open.get(shard) else { continue };
            let limit = self.limit(*kind);
            if waited > limit {
                slow.push((*begun, *shard));
                shortest = shortest.min(limit);
            }
        }
        let waited = now - slow.first()?.0;
        for spoken_of in &slow {
            self.order.remove(spoken_of);
        }
        let shards = slow.into_iter().map(|(_, shard)| shard).collect();
        Some(Slow { shards, waited, limit: shortest, awaited: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId::new(7);

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn slow(waited: u64, limit: u64) -> Option<Slow> {
        let (waited, limit) = (Duration::from_millis(waited), Duration::from_millis(limit));
        Some(Slow { shards: vec![SHARD], waited, limit, awaited: Vec::new() })
    }

    #[test]
    fn three_times_the_usual_time_is_reported_slow_once() {
        let mut pace = Pace::default();
        for number in 0..100 {
            let shard = ShardId::new(number);
            pace.begin(ms(0), shard, Kind::Move);
            pace.end(ms(if number == 99 { 90_000 } else { 500 }), shard);
        }
        pace.begin(ms(0), SHARD, Kind::Move);
        assert_eq!(pace.take_slow(ms(1_500)), None);
        assert_eq!(pace.take_slow(ms(1_501)), None, "not looked at again so soon");
        assert_eq!(pace.take_slow(ms(1_700)), slow(1_700, 1_500));
        assert_eq!(pace.take_slow(ms(9_999)), None, "once");
        pace.end(ms(9_999), SHARD);
        pace.begin(ms(10_000), SHARD, Kind::Move);
        assert_eq!(pace.take_slow(ms(11_501)), slow(1_501, 1_500), "another decision");
    }

    #[test]
    fn few_samples_use_thirty_seconds_and_finished_is_never_slow() {
        let mut pace = Pace::default();
        pace.begin(ms(0), SHARD, Kind::Start);
        assert_eq!(pace.take_slow(ms(30_000)), None);
        assert_eq!(pace.take_slow(ms(30_200)), slow(30_200, 30_000));
        pace.begin(ms(0), SHARD, Kind::Start);
        pace.forget(SHARD);
        assert_eq!(pace.take_slow(ms(99_000)), None);
    }

    #[test]
    fn fast_starts_make_no_move_slow_and_no_start_within_a_second() {
        let mut pace = Pace::default();
        for _ in 0..2 * SAMPLES_MAX {
            pace.begin(ms(0), SHARD, Kind::Start);
            pace.end(ms(1), SHARD);
        }
        pace.begin(ms(0), SHARD, Kind::Start);
        pace.begin(ms(0), ShardId::new(8), Kind::Move);
        assert_eq!(pace.take_slow(ms(1_000)), None);
        assert_eq!(pace.take_slow(ms(5_000)), slow(5_000, 1_000));
    }
}
