//! The clocks of a living process, as machines want them: [`Now`], read once per input.
//!
//! The only place of the package that reads them. The monotonic half counts from the moment that
//! the clock was made; it is the one by which tokio's timers run, so that a deadline of a machine
//! and a timer of the driver mean the same moment.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostraca_ddata::clock::{Instant, Now, WallTime};
use tokio::time::Instant as Moment;

/// Both clocks of this process.
///
/// # Example
/// ```
/// let clock = ostraca::node::clock::Clock::start();
/// let (first, second) = (clock.now(), clock.now());
/// assert!(second.mono >= first.mono);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Moment,
}

impl Clock {
    /// A clock whose monotonic half begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Moment::now() }
    }

    /// Reads both. A wall clock before 1970 counts as 1970.
    #[must_use]
    pub fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono: Instant::from_nanos(nanos(self.start.elapsed())),
            wall: WallTime::from_millis(u64::try_from(wall.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// The moment at which a timer for this deadline fires. One too far off to be said is set to
    /// thirty years from the start.
    #[must_use]
    pub fn moment(&self, deadline: Instant) -> Moment {
        const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
        let after = Duration::from_nanos(deadline.as_nanos()).min(FAR);
        self.start + after
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_and_its_timer_mean_the_same_moment() {
        let clock = Clock::start();
        let before = Moment::now();
        let at = clock.moment(clock.now().mono);
        assert!(at >= before && at <= Moment::now());
        assert_eq!(
            clock.moment(Instant::from_nanos(1_000)),
            clock.start + Duration::from_micros(1)
        );
    }

    #[test]
    fn the_farthest_deadline_is_a_moment_too() {
        let clock = Clock::start();
        assert!(clock.moment(Instant::from_nanos(u64::MAX)) > clock.start);
    }
}
