//! The phi accrual failure detector for one peer: the suspicion grows with its silence, relative to
//! the intervals between its earlier answers.
//!
//! Contains only a history of intervals. Source: Hayashibara et al., *The φ Accrual Failure
//! Detector* (2004). The logistic approximation of the normal distribution and the two initial
//! samples are those of Akka.

use std::collections::VecDeque;
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use crate::cluster::config::FailureDetector;

/// Longer intervals are recorded as this long, so that the sums cannot overflow.
const INTERVAL_MAX: Duration = Duration::from_secs(3_600);

/// Phi: `-log10` of the probability that an answer arrives even later.
///
/// `elapsed` is the time since the last answer; intervals between answers have the given `mean` and
/// standard `deviation`. The value is 0 at first, 0.3 at the mean, and 1 means that a suspicion is
/// wrong once in ten times. It increases with `elapsed` and becomes infinite when the probability
/// is too small for an `f64`. It is never NaN: a `deviation` of zero counts as a nanosecond.
/// # Example
/// ```
/// use std::time::Duration;
/// use ostraca::cluster::failure_detector::phi;
/// let [mean, deviation] = [1_000, 100].map(Duration::from_millis);
/// assert!((phi(Duration::from_millis(1_400), mean, deviation) - 4.7).abs() < 0.1);
/// ```
#[must_use]
pub fn phi(elapsed: Duration, mean: Duration, deviation: Duration) -> f64 {
    let deviation = deviation.max(Duration::from_nanos(1)); // 0/0 would be NaN
    of_deviations((elapsed.as_secs_f64() - mean.as_secs_f64()) / deviation.as_secs_f64())
}

/// Phi of a silence that exceeds the mean by `y` standard deviations.
fn of_deviations(y: f64) -> f64 {
    let e = (-y * (1.5976 + 0.070_566 * y * y)).exp();
    if y > 0.0 { -(e / (1.0 + e)).log10() } else { -(1.0 - 1.0 / (1.0 + e)).log10() }
}

/// The smallest `y` whose phi reaches `threshold`, to the last bit; found by bisection from -40 to
/// 40. Negative for a threshold below 0.3, which the configuration permits.
fn deviations_of(threshold: f64) -> f64 {
    let (mut below, mut reached) = (-40.0, 40.0);
    for _ in 0..100 {
        let middle = f64::midpoint(below, reached);
        if of_deviations(middle) >= threshold { reached = middle } else { below = middle }
    }
    reached
}

/// The phi accrual detector of one peer.
#[derive(Clone, Debug)]
pub struct PhiAccrual {
    intervals: VecDeque<u64>, // nanoseconds; ≤ max_sample_size
    sum: u128,
    squares: u128,
    /// Time of the last recorded answer. Excused gaps move it forward, perhaps beyond the present
    /// time. `None` before the first answer.
    last: Option<Instant>,
    max_sample_size: usize,
    min_std_deviation: Duration,
    threshold: f64,
    /// Standard deviations beyond the mean at which phi reaches the threshold.
    reached: f64,
}

impl PhiAccrual {
    /// A detector without answers. Its history starts with two intervals: `heartbeat-interval`
    /// minus and plus a quarter. A full history drops them like any other interval.
    #[must_use]
    pub fn new(config: &FailureDetector) -> Self {
        let mut fresh = Self {
            intervals: VecDeque::new(),
            sum: 0,
            squares: 0,
            last: None,
            max_sample_size: config.max_sample_size,
            min_std_deviation: config.min_std_deviation,
            threshold: config.threshold,
            reached: deviations_of(config.threshold),
        };
        let quarter = config.heartbeat_interval / 4;
        fresh.learn(config.heartbeat_interval - quarter);
        fresh.learn(config.heartbeat_interval.saturating_add(quarter));
        fresh
    }

    /// Records an answer at `now`. The interval that it ends is added to the history unless the
    /// peer is unavailable at `now` with this `pause`: such a silence must not become usual. The
    /// first answer ends no interval. A `now` before the last answer, possible after
    /// [`excuse`](Self::excuse), ends an interval of zero.
    ///
    /// The monitor also calls it without an answer, when the silence of a member that never
    /// answered begins to count.
    pub fn heartbeat(&mut self, now: Instant, pause: Duration) {
        if let Some(last) = self.last
            && self.is_available(now, pause)
        {
            self.learn(now - last);
        }
        self.last = Some(now);
    }

    /// Phi at `now`, with `pause` added to the mean; 0 before the first answer. A `now` before the
    /// last answer counts as no silence.
    #[must_use]
    pub fn phi(&self, now: Instant, pause: Duration) -> f64 {
        let silent = self.last.map(|last| now - last);
        silent
            .map_or(0.0, |silent| phi(silent, self.mean().saturating_add(pause), self.deviation()))
    }

    /// Whether phi is below the threshold.
    #[must_use]
    pub fn is_available(&self, now: Instant, pause: Duration) -> bool {
        self.phi(now, pause) < self.threshold
    }

    /// Time at which the threshold is reached without another answer, at most about a microsecond
    /// late; may be in the past. `None` before the first answer. With a threshold below 0.3, which
    /// is reached before the mean, it is late: the mean plus `pause` after the last answer.
    #[must_use]
    pub fn unavailable_at(&self, pause: Duration) -> Option<Instant> {
        let beyond = (self.deviation().as_secs_f64() * self.reached).max(0.0);
        let beyond = Duration::try_from_secs_f64(beyond).unwrap_or(Duration::MAX);
        // One microsecond more, so that rounding never makes the deadline too early.
        let silence = self.mean() + Duration::from_micros(1);
        let silence = silence.saturating_add(pause).saturating_add(beyond);
        self.last.map(|last| last + silence)
    }

    /// Whether [`heartbeat`](Self::heartbeat) was called.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.last.is_some()
    }

    /// Excludes `gap` from the current interval, because this node was stopped: moves the time of
    /// the last answer forward by `gap`, perhaps beyond now. The history stays. Does nothing before
    /// the first answer.
    pub fn excuse(&mut self, gap: Duration) {
        self.last = self.last.map(|last| last + gap);
    }

    /// Mean of the recorded intervals.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.sum / self.intervals.len() as u128;
        Duration::from_nanos(u64::try_from(nanos).expect("a mean of u64 is one"))
    }

    /// Standard deviation of the recorded intervals, at least `min-std-deviation`. The sums are
    /// whole nanoseconds, so that no rounding error accumulates.
    #[must_use]
    pub fn deviation(&self) -> Duration {
        let count = self.intervals.len() as u128;
        let variance = (count * self.squares - self.sum * self.sum) as f64 / (count * count) as f64;
        Duration::from_secs_f64(variance.sqrt() / 1e9).max(self.min_std_deviation)
    }

    /// Adds an interval to the history, in place of the oldest one if it is full. Intervals above
    /// [`INTERVAL_MAX`] are shortened to it.
    fn learn(&mut self, interval: Duration) {
        let nanos = interval.min(INTERVAL_MAX).as_nanos();
        if self.intervals.len() >= self.max_sample_size
            && let Some(oldest) = self.intervals.pop_front()
        {
            self.sum -= u128::from(oldest);
            self.squares -= u128::from(oldest) * u128::from(oldest);
        }
        self.intervals.push_back(u64::try_from(nanos).expect("an hour fits"));
        self.sum += nanos;
        self.squares += nanos * nanos;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn config() -> FailureDetector {
        FailureDetector::default()
    }

    /// A detector with answers at these times in milliseconds.
    fn fed(config: &FailureDetector, pause: Duration, times: &[u64]) -> PhiAccrual {
        let mut phi = PhiAccrual::new(config);
        times.iter().for_each(|millis| phi.heartbeat(at(*millis), pause));
        phi
    }

    #[test]
    fn phi_matches_upstream_for_mean_1000_and_deviation_100() {
        let table = [(500, 0.1), (1000, 0.3), (1200, 1.6), (1400, 4.7), (1600, 10.8), (1700, 15.3)];
        for (elapsed, expected) in table {
            let phi = phi(ms(elapsed), SECOND, ms(100));
            assert!((phi - expected).abs() <= 0.1, "{elapsed} ms: {phi}, not {expected}");
        }
    }

    #[test]
    fn phi_after_one_answer_matches_upstream() {
        let phi = fed(&config(), Duration::ZERO, &[0]);
        for (elapsed, expected, tolerance) in [(1_000, 0.3, 0.2), (2_000, 4.5, 0.3)] {
            let phi = phi.phi(at(elapsed), Duration::ZERO);
            assert!((phi - expected).abs() <= tolerance, "{elapsed} ms: {phi}, not {expected}");
        }
        assert!(phi.phi(at(3_000), Duration::ZERO) > 15.0);
    }

    #[test]
    fn phi_is_zero_before_the_first_answer() {
        let phi = PhiAccrual::new(&config());
        assert!(phi.is_available(at(1_000_000), Duration::ZERO));
        assert_eq!(phi.phi(at(1_000_000), Duration::ZERO).to_bits(), 0.0_f64.to_bits());
        assert_eq!(phi.unavailable_at(Duration::ZERO), None);
    }

    #[test]
    fn initial_deviation_is_a_quarter_of_the_interval() {
        let phi = fed(&config(), Duration::ZERO, &[0]);
        assert_eq!((phi.mean(), phi.deviation()), (SECOND, ms(250)));
    }

    /// Values solved from the formula of the phi detector: the silence after which a peer is
    /// unavailable.
    #[test]
    fn unavailable_at_matches_reference_values() {
        let table = [
            (8.0, 100, 4.52),
            (8.0, 250, 5.31),
            (8.0, 500, 6.6),
            (12.0, 100, 4.63),
            (3.0, 100, 4.31),
        ];
        for (threshold, deviation, expected) in table {
            let config = FailureDetector {
                threshold,
                min_std_deviation: ms(deviation),
                ..FailureDetector::default()
            };
            let mut regular = PhiAccrual::new(&config);
            (0..=2_000).for_each(|beat| regular.heartbeat(at(beat * 1_000), ms(3_000)));
            let silence = regular.unavailable_at(ms(3_000)).unwrap() - at(2_000_000);
            let off = (silence.as_secs_f64() - expected).abs();
            assert!(off < 0.02, "φ {threshold}, σ {deviation}: {silence:?}, not {expected} s");
        }
    }

    #[test]
    fn deadline_is_the_first_unavailable_time() {
        for times in [&[0_u64][..], &[0, 900, 2_100, 3_000], &[0, 10, 5_000]] {
            for pause in [Duration::ZERO, ms(3_000)] {
                let phi = fed(&config(), pause, times);
                let due = phi.unavailable_at(pause).unwrap();
                assert!(!phi.is_available(due, pause));
                let before = Instant::from_nanos(due.as_nanos() - 1_000_000);
                assert!(phi.is_available(before, pause));
            }
        }
    }

    #[test]
    fn gap_up_to_the_pause_is_tolerated() {
        let times: Vec<u64> = (0..=1_000).map(|beat| beat * 1_000).collect();
        let phi = fed(&config(), ms(3_000), &times);
        assert!(phi.is_available(at(1_000_000 + 1_000 + 3_000), ms(3_000)));
        assert!(!phi.is_available(at(1_000_000 + 1_000 + 3_000 + 600), ms(3_000)));
    }

    #[test]
    fn answer_restores_availability_and_gap_is_not_recorded() {
        let mut phi = fed(&config(), Duration::ZERO, &[0, 1_000, 2_000]);
        let usual = (phi.mean(), phi.deviation());
        assert!(!phi.is_available(at(9_000), Duration::ZERO));
        phi.heartbeat(at(9_000), Duration::ZERO);
        assert!(phi.is_available(at(9_100), Duration::ZERO));
        assert_eq!((phi.mean(), phi.deviation()), usual);
    }

    #[test]
    fn samples_beyond_the_history_leave_no_trace() {
        let config = FailureDetector { max_sample_size: 4, ..FailureDetector::default() };
        let pause = ms(10_000);
        let wild = fed(&config, pause, &[0, 5_000, 5_001, 9_000, 10_000, 11_000, 12_000, 13_000]);
        let calm = fed(&config, pause, &[9_000, 10_000, 11_000, 12_000, 13_000]);
        assert_eq!((wild.mean(), wild.deviation()), (calm.mean(), calm.deviation()));
        assert_eq!((wild.sum, wild.squares), (calm.sum, calm.squares));
        assert_eq!(wild.intervals.len(), 4);
    }

    #[test]
    fn phi_grows_with_silence_and_is_never_nan() {
        let mut last = 0.0;
        for elapsed in (0..20_000).chain([100_000, 10_000_000, u64::from(u32::MAX)]) {
            let phi = phi(ms(elapsed), ms(1_200), ms(117));
            assert!(phi >= last, "{elapsed}: {phi} after {last}");
            last = phi;
        }
        assert!(last.is_infinite());
    }

    #[test]
    fn phi_without_deviation_is_a_number() {
        let phi_at = |millis| phi(ms(millis), SECOND, Duration::ZERO);
        assert!(phi_at(999).abs() < 0.1);
        assert!((phi_at(1_000) - 0.3).abs() < 0.1);
        assert!(phi_at(1_001).is_infinite());
    }

    #[test]
    fn excused_gap_is_not_counted() {
        let mut phi = fed(&config(), ms(3_000), &[0, 1_000]);
        phi.excuse(ms(30_000));
        assert!(phi.is_available(at(31_500), ms(3_000)));
        assert!(!phi.is_available(at(31_000 + 8_000), ms(3_000)));
    }

    #[test]
    fn huge_intervals_do_not_overflow_the_sums() {
        let mut phi = PhiAccrual::new(&FailureDetector { max_sample_size: 100_000, ..config() });
        phi.heartbeat(at(0), Duration::MAX / 2);
        (1..=100_001).for_each(|_| phi.learn(Duration::MAX));
        assert_eq!((phi.mean(), phi.deviation()), (INTERVAL_MAX, ms(100)));
    }
}
