//! How fast peers answer: the p95 of recent round trips, which sets every resend.

use std::time::Duration;

const SAMPLES: usize = 64;

/// Before anything was measured, and never less than the second.
const FIRST: Duration = Duration::from_millis(50);
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(2);

/// Round trips of the last 64 answers.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    samples: Vec<Duration>, // ≤ SAMPLES
    next: usize,
    sorted: Vec<Duration>, // the same, so that whoever asks how long to wait does not sort
}

impl RoundTrips {
    pub(super) fn note(&mut self, took: Duration) {
        if self.samples.len() < SAMPLES {
            self.samples.push(took);
        } else {
            let oldest = std::mem::replace(&mut self.samples[self.next], took);
            let at = self.sorted.partition_point(|sample| *sample < oldest);
            self.sorted.remove(at);
        }
        let at = self.sorted.partition_point(|sample| *sample < took);
        self.sorted.insert(at, took);
        self.next = (self.next + 1) % SAMPLES;
    }

    fn p95(&self) -> Duration {
        let at = (self.sorted.len() * 95).div_ceil(100).saturating_sub(1);
        self.sorted.get(at).copied().unwrap_or(FIRST)
    }

    /// How long to wait for an answer before the question goes out again: twice the p95, doubled
    /// with every try.
    pub(super) fn patience(&self, tries: u32) -> Duration {
        let base = (2 * self.p95()).clamp(LEAST, MOST);
        base.saturating_mul(1 << tries.min(10)).min(MOST)
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
        assert_eq!(trips.patience(0), Duration::from_millis(2 * 97)); // 37..=100 are kept
        assert_eq!(trips.patience(1), Duration::from_millis(4 * 97));
        assert_eq!(trips.patience(30), MOST);
    }
}
