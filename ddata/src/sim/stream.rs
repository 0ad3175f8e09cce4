//! Random numbers: one pseudo-random stream per concern, all split from the seed of the run.
//!
//! An additional draw in one concern must not change the others, and a seed must give the same run
//! for years. So the algorithms are fixed here instead of using a library's default generator:
//! xoshiro256++ 1.0 (Blackman and Vigna, 2018), seeded by SplitMix64; ranges by the high half of a
//! 64 × 64 product. Only integers and exactly rounded float operations are used, so that all
//! platforms draw the same numbers.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A deterministic stream of numbers for one concern of one run. A clone repeats its numbers.
///
/// Every draw takes one number of 64 bits from the stream, also from an empty range or one with a
/// single value. Exceptions: [`span`](Self::span) takes two, [`shuffle`](Self::shuffle) one for
/// each item but the first, and a certain [`chance`](Self::chance) none.
#[derive(Clone, Debug)]
pub struct RandomStream {
    state: [u64; 4],
}

impl RandomStream {
    /// Returns the stream of `concern` in the run with this seed, always from its beginning.
    /// `index` distinguishes several streams of one concern, for example one per node.
    #[must_use]
    pub fn split(seed: u64, concern: &str, index: u64) -> Self {
        let mut mix = xxh3_64_with_seed(concern.as_bytes(), seed) ^ splitmix(&mut { index });
        Self { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    /// Returns the stream of one decision about `what` at this nanosecond of the run. `family` is a
    /// number drawn once per concern. The same arguments give the same stream, so several decisions
    /// about one subject at one instant need different values of `what`.
    ///
    /// Two runs that differ early and agree later then make the same later decisions. A failing
    /// schedule can only be shrunk because of that.
    #[inline]
    #[must_use]
    pub fn decision(family: u64, nanos: u64, what: u64) -> Self {
        let mut mix = family ^ splitmix(&mut { nanos }) ^ splitmix(&mut { !what }).rotate_left(32);
        Self { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    /// Draws 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        result
    }

    /// Draws a number below `bound`; 0 if `bound` is 0. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.bits()) * u128::from(bound)) >> 64).unwrap_or(0)
    }

    /// Draws an index below `len`; 0 if `len` is 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// Draws a number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "the low end of a range ({low}) is above its high end ({high})");
        match (high - low).checked_add(1) {
            Some(bound) => low + self.below(bound),
            None => self.bits(),
        }
    }

    /// Returns `true` with this probability. Probabilities ≤ 0 and ≥ 1 draw nothing, nor does NaN,
    /// which gives `false`.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && (probability >= 1.0 || self.fraction() < probability)
    }

    /// Draws a number in `[0, 1)`.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        unit(self.bits() >> 11)
    }

    /// Draws an exponentially distributed number with this mean (within 0.5 %), rounded down, at
    /// most 45 means; saturates at `u64::MAX`. It may be 0, and is 0 for a mean of 0.
    #[inline]
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let bits = self.bits() | 1;
        let zeros = bits.leading_zeros();
        let mantissa = unit((bits << zeros << 1) >> 11);
        // log2(1 + m) within 0.008. A library logarithm may differ between platforms.
        let log = mantissa + 0.346_6 * mantissa * (1.0 - mantissa);
        let halvings = f64::from(zeros + 1) - log;
        scale(mean, halvings.max(0.0) * std::f64::consts::LN_2)
    }

    /// Draws a duration from `low` to `high`, both included. Every doubling of `low` up to `high`
    /// is equally likely, so that short durations occur as often as long ones. Draws of the last
    /// doubling above `high` become `high`: with a `high` just above `low`, nearly all of them.
    ///
    /// Zero counts as 1 ns, for both bounds. If `high` is below `low`, the result is `high`.
    pub fn span(&mut self, low: Duration, high: Duration) -> Duration {
        let (low, high) = (nanos(low).max(1), nanos(high).max(1));
        let doublings = (high / low).max(1).ilog2();
        let floor = low << self.below(u64::from(doublings) + 1);
        Duration::from_nanos(self.between(floor, floor.saturating_mul(2)).min(high))
    }

    /// Draws one of `choices`.
    ///
    /// # Panics
    /// If `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        assert!(!choices.is_empty(), "cannot pick from an empty list");
        &choices[self.index(choices.len())]
    }

    /// Puts `items` into a random order (Fisher-Yates), each order equally likely. Fewer than two
    /// items draw nothing.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// The duration in whole nanoseconds; `u64::MAX` above 584 years.
#[inline]
pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the next output of SplitMix64 and advances its state.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Converts a number of 53 bits to a fraction in `[0, 1)`.
#[inline]
fn unit(bits: u64) -> f64 {
    bits as f64 / (1_u64 << 53) as f64
}

/// Multiplies and rounds down; saturates at 0 and `u64::MAX`. A product of NaN is 0.
#[inline]
fn scale(mean: u64, factor: f64) -> u64 {
    (mean as f64 * factor) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_matches_the_reference_outputs() {
        // First outputs of xoshiro256++ for the state 1, 2, 3, 4 (the authors' reference code).
        let mut stream = RandomStream { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..4).map(|_| stream.bits()).collect();
        assert_eq!(drawn, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn seed_draws_the_recorded_numbers() {
        let mut stream = RandomStream::split(7, "network", 0);
        let drawn = (stream.bits(), stream.below(1_000), stream.exponential(1_000_000));
        assert_eq!(drawn, (7_058_228_463_435_693_160, 384, 927_201));
    }

    #[test]
    fn concerns_and_indices_draw_apart() {
        let first = |concern, index| RandomStream::split(7, concern, index).bits();
        assert_ne!(first("network", 0), first("faults", 0));
        assert_ne!(first("node", 0), first("node", 1));
    }

    #[test]
    fn decisions_differ_by_family_time_and_subject() {
        let mut drawn = std::collections::BTreeSet::new();
        for (family, nanos, what) in (0..1_000).map(|n| (n % 10, n / 10 % 10, n / 100)) {
            drawn.insert(RandomStream::decision(family, nanos, what).bits());
        }
        assert_eq!(drawn.len(), 1_000);
        let hits = (0..100_000).filter(|n| RandomStream::decision(1, *n, 1).chance(0.2)).count();
        assert!((19_000..21_000).contains(&hits), "{hits}");
    }

    #[test]
    fn chances_and_means_are_as_requested() {
        let mut stream = RandomStream::split(1, "test", 0);
        let hits = (0..100_000).filter(|_| stream.chance(0.2)).count();
        assert!((19_000..21_000).contains(&hits), "{hits}");
        let sum: u64 = (0..100_000).map(|_| stream.exponential(1_000)).sum();
        assert!((97_000_000..103_000_000).contains(&sum), "{sum}");
        assert!(!stream.chance(0.0));
        assert!(stream.chance(1.0));
    }

    #[test]
    fn spans_stay_in_their_range_and_reach_both_ends() {
        let mut stream = RandomStream::split(1, "test", 0);
        let (low, high) = (Duration::from_millis(1), Duration::from_secs(120));
        let drawn: Vec<Duration> = (0..10_000).map(|_| stream.span(low, high)).collect();
        assert!(drawn.iter().all(|span| (low..=high).contains(span)));
        assert!(drawn.iter().any(|span| *span < low * 3));
        assert!(drawn.iter().any(|span| *span > high / 3));
    }
}
