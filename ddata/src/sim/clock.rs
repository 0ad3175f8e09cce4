//! Simulated time, and the two clocks of each node.
//!
//! The simulator schedules in [`SimTime`]. A process never sees it. It is given the monotonic clock
//! of its node, which starts anywhere and may run fast or slow, and the wall clock, which has a
//! skew and jumps. Deadlines are given in the node's own time and translated here.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use super::stream::nanos;
use crate::clock::{Instant, Now, WallTime};

/// A point of simulated time, in nanoseconds since the start of the run.
///
/// Its text is the exact number of seconds: `1.5s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(u64);

impl SimTime {
    /// A time that never comes: the result of sums that overflow. No tick is scheduled for it.
    pub const NEVER: Self = Self(u64::MAX);

    /// The time `nanos` nanoseconds after the start.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the duration since the start.
    #[must_use]
    pub const fn elapsed(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

/// The sum saturates at [`SimTime::NEVER`].
impl Add<Duration> for SimTime {
    type Output = Self;

    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

/// The time between; zero if the right side is later.
impl Sub for SimTime {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Writes the exact number of seconds, without trailing zeros or an empty fraction.
impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, rest) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if rest == 0 {
            return write!(f, "{seconds}s");
        }
        let digits = format!("{rest:09}");
        write!(f, "{seconds}.{}s", digits.trim_end_matches('0'))
    }
}

/// A text that does not parse as a time such as `1.5s`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid time {text:?}: expected seconds with at most nine decimals, such as 1.5s")]
pub struct NoTime {
    text: String,
}

/// Parses what `Display` writes, also with trailing zeros. The unit `s` is required. There must be
/// digits before the point and, if there is a point, one to nine behind it; a sign is refused.
impl FromStr for SimTime {
    type Err = NoTime;

    fn from_str(text: &str) -> Result<Self, NoTime> {
        parse_nanos(text).map(Self).ok_or_else(|| NoTime { text: text.to_owned() })
    }
}

/// The nanoseconds of a text such as `1.5s`; `None` if it has another form or exceeds a `u64`.
fn parse_nanos(text: &str) -> Option<u64> {
    let number = text.strip_suffix('s')?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(decimals) || decimals.len() > 9 {
        return None;
    }
    let seconds: u64 = whole.parse().ok()?;
    let rest: u64 = format!("{decimals:0<9}").parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(rest)
}

/// The rate of an exact clock, as a fixed-point number with 32 binary places.
const EVEN: u64 = 1 << 32;

/// The monotonic clock and the wall clock of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeClock {
    since: SimTime, // of the last change of the rate or restart of the monotonic clock
    local: u64,     // monotonic nanoseconds at `since`
    rate: u64,      // monotonic per simulated nanosecond, 32 binary places
    wall: i64,      // wall time in milliseconds at the start of the run, jumps added
}

impl NodeClock {
    /// Creates clocks with an exact rate. The monotonic one reads `local` at `since`; the wall
    /// clock read `wall` milliseconds at the start of the run.
    pub(super) fn new(since: SimTime, local: Instant, wall: i64) -> Self {
        Self { since, local: local.as_nanos(), rate: EVEN, wall }
    }

    /// The readings of both clocks at a time. Before `since` the monotonic clock reads as at
    /// `since`. The wall clock follows simulated time exactly, whatever the rate; it reads 0 before
    /// the Unix epoch.
    #[inline]
    pub(super) fn read(&self, at: SimTime) -> Now {
        let wall = self.wall.saturating_add_unsigned(at.0 / 1_000_000);
        Now {
            mono: Instant::from_nanos(self.local.saturating_add(self.passed(at))),
            wall: WallTime::from_millis(u64::try_from(wall).unwrap_or(0)),
        }
    }

    /// The first simulated time at which the monotonic clock reads `deadline` or more, if the rate
    /// stays. A deadline in the past may give a time in the past, but none before `since`. A
    /// deadline too far ahead gives [`SimTime::NEVER`].
    #[inline]
    pub(super) fn when(&self, deadline: Instant) -> SimTime {
        let ahead = deadline.as_nanos().saturating_sub(self.local);
        let span = if self.rate == EVEN {
            ahead
        } else {
            let exact = (u128::from(ahead) << 32).div_ceil(u128::from(self.rate));
            u64::try_from(exact).unwrap_or(u64::MAX)
        };
        SimTime(self.since.0.saturating_add(span))
    }

    /// Makes the monotonic clock run `ppm` millionths fast (slow, if negative) from `at` on. The
    /// new rate replaces the old one, and is at most 90 % off (a larger `ppm` counts as 900,000).
    /// The reading at `at` does not change. Ticks that are scheduled do not move; the caller
    /// schedules them anew.
    pub(super) fn drift(&mut self, at: SimTime, ppm: i32) {
        self.local = self.local.saturating_add(self.passed(at));
        self.since = at;
        let even = i64::try_from(EVEN).unwrap_or(i64::MAX);
        let rate = even + even * i64::from(ppm.clamp(-900_000, 900_000)) / 1_000_000;
        self.rate = u64::try_from(rate).unwrap_or(EVEN);
    }

    /// Moves the wall clock by `millis`, in addition to earlier jumps. Ticks are not affected.
    pub(super) fn jump(&mut self, millis: i64) {
        self.wall = self.wall.saturating_add(millis);
    }

    /// Restarts the monotonic clock at `local`, as after a reboot. Its rate and the wall clock
    /// stay.
    pub(super) fn reboot(&mut self, at: SimTime, local: Instant) {
        self.since = at;
        self.local = local.as_nanos();
    }

    /// The monotonic nanoseconds from `since` to `at`; 0 if `at` is earlier.
    #[inline]
    fn passed(&self, at: SimTime) -> u64 {
        let real = at.0.saturating_sub(self.since.0);
        if self.rate == EVEN {
            return real;
        }
        u64::try_from((u128::from(real) * u128::from(self.rate)) >> 32).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: SimTime = SimTime::from_nanos(0);

    #[test]
    fn the_text_of_a_time_is_exact() {
        for (nanos, text) in [(0, "0s"), (1_500_000_000, "1.5s"), (7, "0.000000007s")] {
            assert_eq!(SimTime(nanos).to_string(), text);
            assert_eq!(text.parse(), Ok(SimTime(nanos)));
        }
        for wrong in ["", "s", "1", "1.s", ".5s", "-1s", "1.0000000001s", "99999999999999s"] {
            assert!(wrong.parse::<SimTime>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn drift_moves_only_monotonic_and_jump_only_wall_time() {
        let mut clock = NodeClock::new(START, Instant::from_nanos(5_000), 1_000_000);
        clock.drift(START, 10_000);
        let later = START + Duration::from_secs(100);
        let before = clock.read(later);
        assert!(before.mono.as_nanos().abs_diff(101_000_005_000) < 100_000, "{before:?}");
        assert_eq!(before.wall, WallTime::from_millis(1_100_000));
        clock.jump(-3_600_000);
        assert_eq!(clock.read(later), Now { wall: WallTime::from_millis(0), ..before });
    }

    proptest! {
        /// A tick comes exactly when the node's own clock reaches the deadline.
        #[test]
        fn deadline_is_the_first_moment_at_which_the_clock_reads_it(
            ppm in -10_000_i32..=10_000, from in 0_u64..1 << 45, ahead in 0_u64..1 << 45,
        ) {
            let mut clock = NodeClock::new(START, Instant::from_nanos(99), 0);
            clock.drift(SimTime(from), ppm);
            let deadline = clock.read(SimTime(from)).mono + Duration::from_nanos(ahead);
            let at = clock.when(deadline);
            prop_assert!(clock.read(at).mono >= deadline);
            prop_assert!(at.0 == from || clock.read(SimTime(at.0 - 1)).mono < deadline);
        }

        /// A change of the rate never turns the monotonic clock back.
        #[test]
        fn the_monotonic_clock_only_rises(
            changes in proptest::collection::vec((0_u64..1 << 30, -10_000_i32..=10_000), 1..20),
        ) {
            let mut clock = NodeClock::new(START, Instant::from_nanos(0), 0);
            let (mut at, mut last) = (0, Instant::from_nanos(0));
            for (span, ppm) in changes {
                at += span;
                clock.drift(SimTime(at), ppm);
                let shown = clock.read(SimTime(at)).mono;
                prop_assert!(shown >= last);
                last = shown;
            }
        }
    }
}
