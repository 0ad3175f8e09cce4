//! [`LeaseDeadline`]: the hosting lease of this node.
//!
//! Clock check before every message (docs/protocol/leases.md#clock-check-before-every-message): an
//! entity compares the lease with the clock before every message and every poll. Membership writes
//! the time of expiry as one atomic number. No timer sets a flag, because a timer may fire after
//! the lease has expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::clock::Clock;

/// The hosting lease: until when entities of this node may begin to handle messages. Cheap to
/// clone; all clones refer to the same lease.
#[derive(Clone, Debug)]
pub struct LeaseDeadline {
    until: Arc<AtomicU64>, // nanoseconds of `clock`
    clock: Clock,
}

impl LeaseDeadline {
    /// Creates a lease that has not been granted, which is like an expired one.
    pub(super) fn none(clock: Clock) -> Self {
        Self { until: Arc::default(), clock }
    }

    /// Whether an entity may begin to handle a message now: false from the time of expiry on. Reads
    /// the clock.
    #[must_use]
    #[inline]
    pub fn serves(&self) -> bool {
        self.clock.mono().as_nanos() < self.until.load(Ordering::Acquire)
    }

    /// Time until the lease expires unless it is renewed; zero if it has expired.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Instant::from_nanos(self.until.load(Ordering::Acquire)) - self.clock.mono()
    }

    /// Sets the time of expiry, in place of an earlier one; it may be sooner, or have passed.
    pub(super) fn hold(&self, until: Instant) {
        self.until.store(until.as_nanos(), Ordering::Release);
    }

    /// Lets the lease expire at once. A later [`hold`](Self::hold) grants it again.
    pub(super) fn end(&self) {
        self.hold(Instant::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_serves_only_until_it_expires_or_ends() {
        let clock = Clock::start();
        let lease = LeaseDeadline::none(clock);
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
