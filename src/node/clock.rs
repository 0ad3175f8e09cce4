//! The clocks of a living process, as machines want them: [`Now`], read once per input.
//!
//! The only place of the package that reads them. The monotonic half counts from the moment that
//! the clock was made and runs on while the host is suspended (`CLOCK_BOOTTIME`), since a lease
//! that is counted by a clock that stands still outlives its promises (spec/safety.md §4). Timers
//! of the runtime may stand still meanwhile: a deadline that passed in a suspend is noticed a
//! little later, never too early.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostraca_ddata::clock::{Instant, Now, WallTime};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant as Moment;

/// Runs on in suspend, where the system has such a clock.
#[cfg(any(target_os = "linux", target_os = "android"))]
const STEADY: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const STEADY: ClockId = ClockId::Monotonic;

/// Both clocks of this process. A copy counts from the same moment.
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
    /// A clock whose monotonic half begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: steady() }
    }

    /// Reads both. A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono: self.mono(),
            wall: WallTime::from_millis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Reads the monotonic half: what a lease is compared with.
    #[must_use]
    #[inline]
    pub fn mono(&self) -> Instant {
        let elapsed = steady().saturating_sub(self.start);
        Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time since the host was started: the same for all clocks of this host.
    pub(super) fn since_boot() -> Duration {
        steady()
    }

    /// The moment at which a timer for this deadline fires. One too far off to be said is set to
    /// thirty years from now.
    #[must_use]
    pub fn moment(&self, deadline: Instant) -> Moment {
        const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
        let left = (deadline - self.mono()).min(FAR);
        Moment::now() + left
    }
}

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
    fn a_timer_fires_at_its_deadline_or_a_little_later() {
        let clock = Clock::start();
        let (before, deadline) = (Moment::now(), clock.mono() + Duration::from_secs(7));
        let moment = clock.moment(deadline);
        assert!(moment >= before + Duration::from_secs(7), "{moment:?}");
        assert!(moment <= Moment::now() + Duration::from_secs(7), "{moment:?}");
        assert!(clock.moment(Instant::default()) <= Moment::now(), "it is past");
    }

    #[test]
    fn the_farthest_deadline_is_a_moment_too() {
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
