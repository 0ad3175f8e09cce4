//! Local health: a node that misses most answers, or whose own timer runs late, is probably itself
//! at fault. It waits longer before it accuses others.
//!
//! Source: the local health multiplier of Dadgar et al., *Lifeguard: SWIM-ing with Situational
//! Awareness* (2017). Here it extends the acceptable pause instead of the timeout of a probe.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

/// Maximum doubt, as in Lifeguard.
const DOUBT_MAX: u32 = 8;

/// Confidence of a node in its own observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalHealth {
    doubt: u32, // ≤ DOUBT_MAX
}

impl LocalHealth {
    /// Level of doubt: 0 is healthy, 8 is the maximum.
    #[must_use]
    pub const fn doubt(self) -> u32 {
        self.doubt
    }

    /// Increases the doubt: the timer ran late, or more than half of the answers of a round were
    /// missing.
    pub fn worse(&mut self) {
        self.doubt = (self.doubt + 1).min(DOUBT_MAX);
    }

    /// Decreases the doubt: at least half of the answers of a round arrived.
    pub fn better(&mut self) {
        self.doubt = self.doubt.saturating_sub(1);
    }

    /// Evaluates a round of heartbeats: the number of expected and of missing answers. If exactly
    /// half are missing, the doubt decreases. Rounds with fewer than two expected answers are
    /// ignored, because one peer is no evidence about this node.
    pub fn judge(&mut self, asked: usize, missed: usize) {
        match asked {
            0 | 1 => {}
            _ if 2 * missed > asked => self.worse(),
            _ => self.better(),
        }
    }

    /// The tolerated pause: `usual` without doubt, twice `usual` with maximum doubt. (A change of
    /// the threshold of phi has little effect: from 3 to 12 it delays detection by 0.3 s.)
    #[must_use]
    pub fn pause(self, usual: Duration) -> Duration {
        usual.saturating_add(usual.saturating_mul(self.doubt) / DOUBT_MAX)
    }
}

/// Detects that this node itself was stopped: by a signal, by its host, or during suspend.
#[derive(Clone, Copy, Debug)]
pub struct OwnTimer {
    interval: Duration,
    due: Instant,
    /// Latest time at which [`gap`](Self::gap) was called.
    ran: Instant,
}

impl OwnTimer {
    /// A timer that is due one `interval` after `now`.
    #[must_use]
    pub fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, due: now + interval, ran: now }
    }

    /// Must be called before every input. If the timer is late by more than two intervals, returns
    /// the time since the previous call, which may be shorter than that; the timer is then due at
    /// `now` and no longer late. Otherwise `None`, however long no call was made. Notes `now` as
    /// the time of this call in both cases, unless an earlier call had a later one.
    pub fn gap(&mut self, now: Instant) -> Option<Duration> {
        let gap = now - self.ran;
        self.ran = self.ran.max(now);
        if now - self.due <= self.interval.saturating_mul(2) {
            return None;
        }
        self.due = now;
        Some(gap)
    }

    /// Whether the timer is due. If so, it is set to one interval after `now`, so a second call
    /// returns `false`: missed intervals are not made up for.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.interval;
        }
        is_due
    }

    /// The next time at which the timer is due.
    #[must_use]
    pub const fn due(&self) -> Instant {
        self.due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn doubt_grows_if_most_answers_are_missing() {
        let table = [(5, 3, 1), (5, 2, 0), (4, 2, 0), (4, 3, 1), (2, 2, 1), (2, 1, 0)];
        for (asked, missed, doubt) in table {
            let mut health = LocalHealth::default();
            health.judge(asked, missed);
            assert_eq!(health.doubt(), doubt, "{missed} of {asked} missed");
        }
    }

    #[test]
    fn rounds_with_one_peer_do_not_change_doubt() {
        let mut health = LocalHealth { doubt: 3 };
        health.judge(1, 1);
        health.judge(1, 0);
        health.judge(0, 0);
        assert_eq!(health.doubt(), 3);
    }

    #[test]
    fn doubt_extends_the_pause_to_at_most_twice() {
        let mut health = LocalHealth::default();
        assert_eq!(health.pause(3 * SECOND), 3 * SECOND);
        (0..4).for_each(|_| health.worse());
        assert_eq!(health.pause(3 * SECOND), Duration::from_millis(4_500));
        (0..40).for_each(|_| health.worse());
        assert_eq!(health.pause(3 * SECOND), 6 * SECOND);
        (0..9).for_each(|_| health.better());
        assert_eq!(health, LocalHealth::default());
    }

    #[test]
    fn timer_late_by_over_two_intervals_was_stopped() {
        let mut timer = OwnTimer::new(at(0), SECOND);
        assert_eq!(timer.gap(at(900)), None);
        assert_eq!(timer.gap(at(3_000)), None, "due at 1 s, late by two intervals");
        assert!(timer.is_due(at(3_000)));
        assert_eq!(timer.due(), at(4_000));
        assert_eq!(timer.gap(at(6_001)), Some(Duration::from_millis(3_001)));
        assert_eq!(timer.gap(at(6_001)), None, "reported once");
        assert!(timer.is_due(at(6_001)));
    }
}
