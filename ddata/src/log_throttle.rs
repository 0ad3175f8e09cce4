//! Throttles of log events and alarms: at most one a minute, of all or about each source.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;

/// Shortest time between two permitted events.
pub const PAUSE: Duration = Duration::from_secs(60);

/// Longest time for which a [`GrowingThrottle`] refuses events.
pub const PAUSE_MAX: Duration = Duration::from_secs(3_600);

/// Maximum number of sources of a group with a minute of their own, see [`SourceThrottle`].
pub const SOURCES_MAX: usize = 64;

/// Permits an event at most once a minute. Threads share it without a lock.
#[derive(Debug, Default)]
pub struct LogThrottle {
    last: AtomicU64, // time of the last permitted event, in nanoseconds, plus 1; 0: none
}

impl LogThrottle {
    /// Creates a throttle that permits the next event.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: AtomicU64::new(0) }
    }

    /// Whether to log now: true at first, and then if a minute has passed since it was last true.
    /// The caller must log then, because the minute begins anew. A refused event does not prolong
    /// the minute. Of several threads that ask at once, one gets true.
    #[inline]
    pub fn permit(&self, now: Instant) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last > 0 && now - Instant::from_nanos(last - 1) < PAUSE {
            return false;
        }
        let next = now.as_nanos().saturating_add(1);
        self.last.compare_exchange(last, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The copy has the time of the last event, and is then independent.
impl Clone for LogThrottle {
    fn clone(&self) -> Self {
        Self { last: AtomicU64::new(self.last.load(Ordering::Relaxed)) }
    }
}

/// Permits an event at most once a minute about each source, so that a faulty or hostile peer
/// cannot hide an event about another one.
///
/// Each source belongs to a group. [`SOURCES_MAX`] sources of a group have a minute of their own;
/// the further ones share one event a minute. Strangers can use as many names as they like, so they
/// have a group of their own: they neither fill the log nor hide an event about a known source.
#[derive(Debug)]
pub struct SourceThrottle<G, S> {
    groups: BTreeMap<G, SourceGroup<S>>, // ≤ groups, which must not be chosen by a peer
}

#[derive(Debug)]
struct SourceGroup<S> {
    sources: BTreeMap<S, Instant>, // ≤ SOURCES_MAX
    further: LogThrottle,
}

impl<G, S> Default for SourceThrottle<G, S> {
    fn default() -> Self {
        Self { groups: BTreeMap::new() }
    }
}

impl<G: Ord, S: Ord> SourceThrottle<G, S> {
    /// Whether to log an event about this source now: true if none was permitted about it within
    /// the last minute. While [`SOURCES_MAX`] sources of the group had one, true once a minute for
    /// all others together. The caller must log then.
    pub fn permit(&mut self, now: Instant, group: G, source: S) -> bool {
        let fresh = || SourceGroup { sources: BTreeMap::new(), further: LogThrottle::new() };
        let SourceGroup { sources, further } = self.groups.entry(group).or_insert_with(fresh);
        let is_recent = |last: &Instant| now - *last < PAUSE;
        if sources.get(&source).is_some_and(is_recent) {
            return false;
        }
        sources.retain(|_, last| is_recent(last));
        if sources.len() < SOURCES_MAX {
            sources.insert(source, now);
            return true;
        }
        further.permit(now)
    }

    /// Whether an event about this source was permitted within the last minute, not counting those
    /// that sources beyond [`SOURCES_MAX`] share.
    pub fn is_recent(&self, now: Instant, group: &G, source: &S) -> bool {
        let last = self.groups.get(group).and_then(|group| group.sources.get(source));
        last.is_some_and(|last| now - *last < PAUSE)
    }
}

/// Permits an event about a cause that lasts, after pauses that double from [`PAUSE`] to
/// [`PAUSE_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct GrowingThrottle {
    last: Instant, // of the last permitted event
    count: u32,    // permitted events about this cause
}

impl GrowingThrottle {
    /// Creates the throttle with the first event about a cause, which is permitted.
    #[must_use]
    pub const fn with_first(now: Instant) -> Self {
        Self { last: now, count: 1 }
    }

    /// Whether the pause after the last permitted event continues.
    #[must_use]
    pub fn is_pausing(&self, now: Instant) -> bool {
        let doublings = self.count.saturating_sub(1).min(16); // the maximum is reached after 6
        now - self.last < (PAUSE * (1 << doublings)).min(PAUSE_MAX)
    }

    /// Whether to log now. The caller must log then, because the next pause begins.
    pub fn permit(&mut self, now: Instant) -> bool {
        let is_due = !self.is_pausing(now);
        if is_due {
            *self = Self { last: now, count: self.count.saturating_add(1) };
        }
        is_due
    }

    /// The cause is a new one: its first event is permitted [`PAUSE`] after the last event, and the
    /// pauses grow anew.
    pub const fn restart(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn one_event_a_minute_about_each_source_of_each_group() {
        let throttle = LogThrottle::default();
        let permitted: Vec<u64> = (0..150).filter(|second| throttle.permit(at(*second))).collect();
        assert_eq!(permitted, [0, 60, 120]);

        let mut throttle = SourceThrottle::default();
        let mut permit = |second, group, source| throttle.permit(at(second), group, source);
        assert!(permit(1, "known", 1) && !permit(60, "known", 1));
        assert!(permit(60, "known", 2), "another source");
        assert!(permit(60, "strangers", 1), "another group");
        assert!(permit(61, "known", 1), "a minute later");
        assert!(throttle.is_recent(at(120), &"known", &1));
        assert!(!throttle.is_recent(at(121), &"known", &1));
    }

    #[test]
    fn strangers_neither_fill_the_log_nor_hide_others() {
        let mut throttle = SourceThrottle::default();
        let permitted = (0..10_000).filter(|name| throttle.permit(at(1), "strangers", *name));
        assert_eq!(permitted.count(), SOURCES_MAX + 1, "further strangers share one event");
        assert!(throttle.permit(at(2), "known", 1), "another group");
        assert!(!throttle.permit(at(60), "strangers", 20_000));
        assert!(throttle.permit(at(61), "strangers", 20_000), "a minute later");
        assert!(throttle.groups.values().all(|group| group.sources.len() <= SOURCES_MAX));
    }
}
