//! The pace of resends: round-trip times and the *patience*, how long an answer is waited for
//! before a resend. Each peer has [`RoundTrips`] of its own for pushes; everything else uses one
//! over all peers.
//!
//! The patience is twice the 95th percentile of the last 64 round trips, or twice the latest one if
//! that was longer, so that it follows a slower peer at once. Some answers do not tell which
//! sending they answer. Then the caller notes only answers to first sendings, and the doubled
//! patience is kept until one of them arrives (Karn and Partridge, 1987; RFC 6298, 5.5).

use std::time::Duration;

/// Number of round trips that are kept.
const SAMPLES: usize = 64;

/// The round trip assumed before anything was measured.
const FIRST: Duration = Duration::from_millis(50);

/// The lower bound of the patience once anything was measured.
const LEAST: Duration = Duration::from_millis(5);

/// The upper bound of the patience.
const MOST: Duration = Duration::from_secs(2);

/// After so many doublings even the lower bound is above the upper one.
const DOUBLINGS_MAX: u32 = 10;

/// The round trips of the last 64 answers, of one peer or of all.
#[derive(Clone, Debug)]
pub(super) struct RoundTrips {
    samples: Vec<u64>, // ns; ≤ SAMPLES
    next: usize,
    sorted: Vec<u64>, // the same samples in order, so that p95 needs no sort
    base: Duration,   // the patience of a first sending; read far more often than it changes
    backed_off: u32,  // number of doublings of the patience until the next sample
}

impl Default for RoundTrips {
    fn default() -> Self {
        let (samples, sorted) = (Vec::new(), Vec::new());
        Self { samples, next: 0, sorted, base: 2 * FIRST, backed_off: 0 }
    }
}

impl RoundTrips {
    /// Adds a round trip of a sending that the answer identifies. It replaces the oldest of the
    /// last 64 and ends all doublings. The new patience stays between [`LEAST`] and [`MOST`]; the
    /// samples are not limited.
    pub(super) fn note(&mut self, took: Duration) {
        self.backed_off = 0;
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let place = |sorted: &[u64], nanos| sorted.partition_point(|sample| *sample < nanos);
        if self.samples.len() < SAMPLES {
            self.samples.push(nanos);
            self.sorted.insert(place(&self.sorted, nanos), nanos);
        } else {
            let oldest = std::mem::replace(&mut self.samples[self.next], nanos);
            let (from, to) = (place(&self.sorted, oldest), place(&self.sorted, nanos));
            // Only the samples between the two places move.
            if from < to {
                self.sorted.copy_within(from + 1..to, from);
                self.sorted[to - 1] = nanos;
            } else {
                self.sorted.copy_within(to..from, to + 1);
                self.sorted[to] = nanos;
            }
        }
        self.next = (self.next + 1) % SAMPLES;
        self.base = (2 * self.p95().max(took)).clamp(LEAST, MOST);
    }

    /// The 95th percentile of the samples; [`FIRST`] without samples.
    fn p95(&self) -> Duration {
        let at = (self.sorted.len() * 95).div_ceil(100).saturating_sub(1);
        self.sorted.get(at).map_or(FIRST, |nanos| Duration::from_nanos(*nanos))
    }

    /// Records that a question was sent for the `tries`-th time after the first. Returns the
    /// patience for its answer. First sendings then wait as long, too, until the next measured
    /// round trip; a lower `tries` does not shorten that.
    pub(super) fn asked_again(&mut self, tries: u32) -> Duration {
        self.backed_off = self.backed_off.max(tries);
        self.patience(tries)
    }

    /// How long to wait for an answer before the question is sent again: twice the p95 (or the
    /// latest round trip, if that was longer), doubled with every try, at most [`MOST`]. At least
    /// as many doublings apply as [`asked_again`](Self::asked_again) has recorded. 100 ms before
    /// anything was measured.
    pub(super) fn patience(&self, tries: u32) -> Duration {
        match tries.max(self.backed_off).min(DOUBLINGS_MAX) {
            0 => self.base,
            doublings => self.base.saturating_mul(1 << doublings).min(MOST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_twice_the_p95_and_doubles() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.patience(0), Duration::from_millis(100));
        for n in 1..=100 {
            trips.note(Duration::from_millis(n));
        }
        trips.note(Duration::from_millis(1));
        assert_eq!(trips.patience(0), Duration::from_millis(2 * 97)); // 38..=100 and 1 are kept
        assert_eq!(trips.patience(1), Duration::from_millis(4 * 97));
        assert_eq!(trips.patience(30), MOST);
    }

    #[test]
    fn longest_round_trip_raises_the_patience_at_once() {
        let mut trips = RoundTrips::default();
        (0..64).for_each(|_| trips.note(Duration::from_millis(10)));
        trips.note(Duration::from_millis(500));
        assert_eq!(trips.patience(0), Duration::from_secs(1));
        trips.note(Duration::from_millis(10));
        assert_eq!(trips.patience(0), Duration::from_millis(20));
    }

    #[test]
    fn doubled_patience_stays_until_an_answer_is_measured() {
        let mut trips = RoundTrips::default();
        trips.note(Duration::from_millis(10));
        trips.asked_again(1);
        trips.asked_again(2);
        trips.asked_again(1);
        assert_eq!(trips.patience(0), Duration::from_millis(80));
        assert_eq!(trips.patience(3), Duration::from_millis(160));
        trips.note(Duration::from_millis(10));
        assert_eq!(trips.patience(0), Duration::from_millis(20));
    }

    #[test]
    fn only_the_last_64_round_trips_count_in_any_order() {
        let (mut trips, mut all) = (RoundTrips::default(), Vec::new());
        for n in 0_u64..1_000 {
            let took = Duration::from_millis(n * 7_919 % 50); // with ties, up and down
            trips.note(took);
            all.push(took);
            let mut last = all[all.len().saturating_sub(SAMPLES)..].to_vec();
            last.sort();
            let p95 = last[(last.len() * 95).div_ceil(100) - 1];
            assert_eq!(trips.patience(0), (2 * p95.max(took)).clamp(LEAST, MOST), "after {n}");
        }
    }
}
