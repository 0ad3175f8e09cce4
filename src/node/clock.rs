//! The monotonic and the wall clock of a process, read together as [`Now`] once per input.
//!
//! The package reads clocks only here. The monotonic clock counts from the creation of [`Clock`].
//!
//! Clock that runs during suspend (docs/protocol/leases.md#clock-that-runs-during-suspend): the
//! clock continues while the host is suspended (`CLOCK_BOOTTIME`); on a clock that stops in a
//! suspend a node would count its hosting lease as valid after the grantors' promises have expired.
//! Timers of the async runtime may stop in a suspend, so a deadline that passed meanwhile is
//! noticed somewhat late, but never early.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostraca_ddata::clock::{Instant, Now, WallTime};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant as Moment;

/// The monotonic clock. It continues while the host is suspended, on systems that have such a
/// clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const STEADY: ClockId = ClockId::Monotonic;

/// The monotonic and the wall clock of this process. Copies have the same origin.
///
/// # Example
/// ```
/// let clock = ostraca::node::clock::Clock::start();
/// let (first, second) = (clock.now(), clock.now());
/// assert!(second.mono >= first.mono);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Duration,
}

impl Clock {
    /// Creates a clock whose monotonic time begins at zero now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: steady() }
    }

    /// Reads both clocks. A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono: self.mono(),
            wall: WallTime::from_millis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Reads the monotonic clock, with which leases are compared. It counts from
    /// [`start`](Self::start) and never goes backwards.
    #[must_use]
    #[inline]
    pub fn mono(&self) -> Instant {
        let elapsed = steady().saturating_sub(self.start);
        Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time since the host was booted, equal for all clocks and processes of this host,
    /// independent of [`start`](Self::start).
    pub(super) fn since_boot() -> Duration {
        steady()
    }

    /// The runtime's instant for a timer with this deadline, never before it: now if it has passed,
    /// and at most 30 years from now, because later ones may not be representable.
    #[must_use]
    pub fn moment(&self, deadline: Instant) -> Moment {
        const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
        let left = (deadline - self.mono()).min(FAR);
        Moment::now() + left
    }
}

/// Reads the monotonic clock. It counts from the boot of the host, suspends included, if [`STEADY`]
/// is such a clock.
#[inline]
fn steady() -> Duration {
    let time = clock_gettime(STEADY);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_never_fires_before_its_deadline() {
        let clock = Clock::start();
        let (before, deadline) = (Moment::now(), clock.mono() + Duration::from_secs(7));
        let moment = clock.moment(deadline);
        assert!(moment >= before + Duration::from_secs(7), "{moment:?}");
        assert!(moment <= Moment::now() + Duration::from_secs(7), "{moment:?}");
        assert!(clock.moment(Instant::default()) <= Moment::now(), "the deadline has passed");
    }

    #[test]
    fn farthest_deadline_has_a_moment() {
        let clock = Clock::start();
        assert!(clock.moment(Instant::from_nanos(u64::MAX)) > Moment::now());
    }

    #[test]
    fn copies_count_from_the_same_moment() {
        let clock = Clock::start();
        let copy = clock;
        let (first, second, third) = (clock.mono(), copy.mono(), clock.mono());
        assert!(first <= second && second <= third);
    }
}
