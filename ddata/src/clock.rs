//! Time as an input of a [`Machine`](crate::machine::Machine), and the hybrid logical clock that
//! stamps register writes.
//!
//! Only the driver and the simulator read clocks. Deadlines use [`Instant`], which never goes
//! backwards. [`WallTime`] only orders concurrent writes.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time of this host's monotonic clock, in nanoseconds since an arbitrary start.
///
/// Instants of different hosts must not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Creates the point `nanos` nanoseconds after the clock's start.
    #[inline]
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's start.
    #[inline]
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates: a deadline beyond `u64::MAX` nanoseconds (584 years) is the highest instant, which
/// never passes.
impl Add<Duration> for Instant {
    type Output = Self;

    #[inline]
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Zero if the subtracted instant is the later one.
impl Sub<Instant> for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Milliseconds since the Unix epoch on this host's wall clock, which may be wrong and may jump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

impl WallTime {
    /// Creates the time `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }
}

/// The readings of both clocks, taken once per input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time, for deadlines and intervals.
    pub mono: Instant,
    /// Wall-clock time, for stamps only.
    pub wall: WallTime,
}

/// The time of a hybrid logical clock: 48 bits of wall-clock milliseconds, 16 bits of counter.
///
/// The order extends the causal order, whatever the clocks show. A millisecond has room for 65,536
/// stamps; beyond that the clock borrows from the next one.
///
/// Source: Kulkarni et al., *Logical Physical Clocks* (2014).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct HybridTimestamp(u64);

impl HybridTimestamp {
    /// The highest possible stamp.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates the stamp with this raw value.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the first stamp of a millisecond of wall time. A time that does not fit in 48 bits
    /// counts as the last one that does.
    #[must_use]
    pub const fn at(wall: WallTime) -> Self {
        let millis = wall.as_millis();
        Self(if millis >= 1 << 48 { u64::MAX << 16 } else { millis << 16 })
    }

    /// Returns the raw value: `wall ms << 16 | counter`.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// Returns the wall-clock part of the stamp.
    #[must_use]
    pub const fn wall(self) -> WallTime {
        WallTime::from_millis(self.0 >> 16)
    }

    /// Returns the next stamp; for the highest one, itself.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Writes the milliseconds and the counter, for example `1000ms+3`.
impl fmt::Display for HybridTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms+{}", self.0 >> 16, self.0 & 0xffff)
    }
}

/// A node's hybrid logical clock.
#[derive(Clone, Debug)]
pub struct HybridClock {
    last: HybridTimestamp, // the highest stamp issued or adopted
    max_skew: Duration,
}

/// A remote stamp is too far ahead, so the clock did not adopt it
/// (docs/protocol/replication.md#stamps-never-go-back).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImpossibleClock {
    /// Distance of the stamp from this node's wall clock.
    pub ahead: Duration,
}

impl HybridClock {
    /// Creates a clock that adopts remote stamps at most `max_skew` ahead of the local wall clock.
    /// It knows no earlier stamp: if the wall clock went back over a restart, the first stamps are
    /// below those issued before. A register write therefore also goes above the stamp that the
    /// register has.
    #[must_use]
    pub const fn new(max_skew: Duration) -> Self {
        Self { last: HybridTimestamp(0), max_skew }
    }

    /// Returns the next stamp of this node: `max(wall, last + 1)`. It is above all earlier ones,
    /// also if the wall clock went back; only [`HybridTimestamp::MAX`] repeats.
    pub fn tick(&mut self, wall: WallTime) -> HybridTimestamp {
        self.last = HybridTimestamp::at(wall).max(self.last.next());
        self.last
    }

    /// Adopts a remote stamp, so that later stamps of this node are above it. Returns how far it is
    /// ahead of `wall` (not of the clock's last stamp) in whole milliseconds, zero if it is not
    /// ahead. A stamp below the clock's last one changes nothing, but its distance is returned.
    ///
    /// # Errors
    /// [`ImpossibleClock`] if the stamp is more than `max_skew` ahead of `wall`, even if the
    /// clock's last stamp is above it; the clock is unchanged. The caller should still merge the
    /// value, count the event, and report the node whose clock is wrong.
    pub fn observe(
        &mut self,
        wall: WallTime,
        remote: HybridTimestamp,
    ) -> Result<Duration, ImpossibleClock> {
        let ahead =
            Duration::from_millis(remote.wall().as_millis().saturating_sub(wall.as_millis()));
        if ahead > self.max_skew {
            return Err(ImpossibleClock { ahead });
        }
        self.last = self.last.max(remote);
        Ok(ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW: Duration = Duration::from_secs(60);

    #[test]
    fn deadlines_saturate() {
        let last = Instant::from_nanos(u64::MAX);
        assert_eq!(Instant::from_nanos(1) + Duration::MAX, last);
        assert_eq!(last + Duration::from_nanos(1), last);
        assert_eq!(Instant::from_nanos(1) - last, Duration::ZERO);
    }

    #[test]
    fn stamps_rise_when_the_wall_clock_goes_back() {
        let mut clock = HybridClock::new(SKEW);
        let first = clock.tick(WallTime::from_millis(1_000));
        let second = clock.tick(WallTime::from_millis(10));
        assert!(second > first);
        assert_eq!(second.wall(), WallTime::from_millis(1_000));
    }

    #[test]
    fn an_impossible_clock_is_not_adopted() {
        let mut clock = HybridClock::new(SKEW);
        let far = HybridTimestamp::at(WallTime::from_millis(61_001));
        let refused = clock.observe(WallTime::from_millis(1_000), far);
        assert_eq!(refused, Err(ImpossibleClock { ahead: Duration::from_millis(60_001) }));
        assert_eq!(clock.tick(WallTime::from_millis(1_000)).wall(), WallTime::from_millis(1_000));
    }
}
