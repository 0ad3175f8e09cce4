//! [`LossCounter`]: counts what was lost, and permits a log line about it once a minute.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::LogThrottle;

/// Number of losses so far, and the throttle of their log event.
#[derive(Debug, Default)]
pub(super) struct LossCounter {
    count: AtomicU64,
    throttle: LogThrottle,
}

impl LossCounter {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds to the number, and returns the total.
    pub(super) fn add(&self, count: usize) -> u64 {
        self.count.fetch_add(count as u64, Ordering::Relaxed) + count as u64
    }

    /// Adds to the number. Returns the total if the caller must log now, which is at most once a
    /// minute; the total has the losses between two lines. Does nothing if `count` is 0, and reads
    /// the clock only otherwise.
    pub(super) fn add_and_log(&self, count: usize, now: impl FnOnce() -> Instant) -> Option<u64> {
        if count == 0 {
            return None;
        }
        let total = self.add(count);
        self.throttle.permit(now()).then_some(total)
    }
}
