//! [`LogThrottle`]: throttle for log events.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

const EVERY: Duration = Duration::from_secs(60);

/// Permits a log event at most once a minute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogThrottle {
    last: Option<Instant>,
}

impl LogThrottle {
    /// Whether to log now: true if a minute has passed since it was last true.
    pub(crate) fn now(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now - last >= EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_permits_one_event_a_minute() {
        let mut throttle = LogThrottle::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let said: Vec<u64> = (0..150).filter(|second| throttle.now(at(*second))).collect();
        assert_eq!(said, [0, 60, 120]);
    }
}
