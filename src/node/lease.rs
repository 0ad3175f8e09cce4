//! The hosting lease as it is read before every message and every poll: one number that membership
//! writes, compared with the clock (spec/safety.md §4). No timer sets a flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::clock::Clock;

/// Until when this node may begin messages. Cheap to clone; every clone is the same lease.
#[derive(Clone, Debug)]
pub struct Lease {
    until: Arc<AtomicU64>, // nanoseconds of `clock`
    clock: Clock,
}

impl Lease {
    /// One that was never held.
    pub(super) fn none(clock: Clock) -> Self {
        Self { until: Arc::default(), clock }
    }

    /// Whether a message may begin now. Reads the clock.
    #[must_use]
    #[inline]
    pub fn serves(&self) -> bool {
        self.clock.mono().as_nanos() < self.until.load(Ordering::Acquire)
    }

    /// How long it still runs, if nothing is heard any more; zero if it is over.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Instant::from_nanos(self.until.load(Ordering::Acquire)) - self.clock.mono()
    }

    pub(super) fn hold(&self, until: Instant) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.hold(Instant::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_serves_while_it_is_held_and_not_a_moment_longer() {
        let clock = Clock::start();
        let lease = Lease::none(clock);
        assert!(!lease.serves());
        lease.hold(clock.mono() + Duration::from_secs(3_600));
        assert!(lease.clone().serves() && lease.remaining() > Duration::from_secs(3_000));
        lease.hold(clock.mono());
        assert!(!lease.serves() && lease.remaining().is_zero());
        lease.hold(clock.mono() + Duration::from_secs(3_600));
        lease.end();
        assert!(!lease.serves());
    }
}
