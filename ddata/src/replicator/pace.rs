//! How fast peers answer: the p95 of recent round trips, which sets every resend.
//!
//! A round trip longer than all before is waited for before the 95th percentile knows it. Where
//! answers do not tell which sending they answer, what was asked twice is not measured, and the
//! longer patience stays until something is answered at the first asking (Karn and Partridge,
//! 1987; RFC 6298, 5.5).

use std::time::Duration;

const SAMPLES: usize = 64;

/// Before anything was measured, and never less than the second.
const FIRST: Duration = Duration::from_millis(50);
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(2);

/// Round trips of the last 64 answers.
#[derive(Clone, Debug)]
pub(super) struct RoundTrips {
    samples: Vec<u64>, // ns; ≤ SAMPLES
    next: usize,
    sorted: Vec<u64>, // the same, so that whoever asks how long to wait does not sort
    base: Duration,   // how long the first answer is waited for: asked for far more often
    backed_off: u32,  // times the patience is doubled until the next sample
}

impl Default for RoundTrips {
    fn default() -> Self {
        let (samples, sorted) = (Vec::new(), Vec::new());
        Self { samples, next: 0, sorted, base: 2 * FIRST, backed_off: 0 }
    }
}

impl RoundTrips {
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
            // Only what lies between the two moves.
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

    fn p95(&self) -> Duration {
        let at = (self.sorted.len() * 95).div_ceil(100).saturating_sub(1);
        self.sorted.get(at).map_or(FIRST, |nanos| Duration::from_nanos(*nanos))
    }

    /// A question went out for the `tries`-th time again.
    pub(super) fn asked_again(&mut self, tries: u32) {
        self.backed_off = self.backed_off.max(tries);
    }

    /// How long to wait for an answer before the question goes out again: twice the p95 (or the
    /// latest round trip, if that was longer), doubled with every try.
    pub(super) fn patience(&self, tries: u32) -> Duration {
        match tries.max(self.backed_off).min(10) {
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
    fn a_round_trip_longer_than_all_before_is_waited_for_at_once() {
        let mut trips = RoundTrips::default();
        (0..64).for_each(|_| trips.note(Duration::from_millis(10)));
        trips.note(Duration::from_millis(500));
        assert_eq!(trips.patience(0), Duration::from_secs(1));
        trips.note(Duration::from_millis(10));
        assert_eq!(trips.patience(0), Duration::from_millis(20));
    }

    #[test]
    fn patience_once_gained_stays_until_something_is_answered() {
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
    fn only_the_last_64_round_trips_count_in_whatever_order_they_came() {
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
