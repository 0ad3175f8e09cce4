//! Self-doubt: a node that misses most answers, or whose own timer runs late, is probably the one
//! that is ill, and waits longer before it accuses.
//!
//! Source: Dadgar et al., *Lifeguard: SWIM-ing with Situational Awareness* (2017), the local health
//! multiplier; ours stretches the acceptable pause instead of a probe's timeout.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

/// Doubt at its greatest, as in Lifeguard.
const DOUBT_MAX: u32 = 8;

/// How much a node trusts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalHealth {
    doubt: u32, // ≤ DOUBT_MAX
}

impl LocalHealth {
    /// 0: sound; 8: it doubts everything that it sees.
    #[must_use]
    pub const fn doubt(self) -> u32 {
        self.doubt
    }

    /// Its timer ran late, or a round brought answers from at most half of those asked.
    pub fn worse(&mut self) {
        self.doubt = (self.doubt + 1).min(DOUBT_MAX);
    }

    /// A round brought answers from most.
    pub fn better(&mut self) {
        self.doubt = self.doubt.saturating_sub(1);
    }

    /// Judges a round of heartbeats: of how many the answer was awaited, and from how many it did
    /// not come. One peer alone says nothing about this node.
    pub fn judge(&mut self, asked: usize, missed: usize) {
        match asked {
            0 | 1 => {}
            _ if 2 * missed > asked => self.worse(),
            _ => self.better(),
        }
    }

    /// The pause to put up with: from `usual` in health to twice that in full doubt. (The
    /// threshold of phi would be the wrong screw: 3 to 12 move detection by 0.3 s.)
    #[must_use]
    pub fn pause(self, usual: Duration) -> Duration {
        usual + usual * self.doubt / DOUBT_MAX
    }
}

/// Notices that this node itself was stopped: by a signal, by the host, in suspend.
#[derive(Clone, Copy, Debug)]
pub struct OwnTimer {
    interval: Duration,
    due: Instant,
    ran: Instant,
}

impl OwnTimer {
    /// A timer that is due one `interval` after `now`.
    #[must_use]
    pub fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, due: now + interval, ran: now }
    }

    /// To be asked whenever anything runs. If the timer is late by more than two intervals: how
    /// long nothing ran. The timer is due at once then, and late no more.
    pub fn gap(&mut self, now: Instant) -> Option<Duration> {
        let gap = now - self.ran;
        self.ran = self.ran.max(now);
        if now - self.due <= 2 * self.interval {
            return None;
        }
        self.due = now;
        Some(gap)
    }

    /// Whether it is due; if so, it is set anew.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.interval;
        }
        is_due
    }

    /// When it is due next.
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
    fn most_answers_missing_is_doubt_and_half_of_them_is_not() {
        let table = [(5, 3, 1), (5, 2, 0), (4, 2, 0), (4, 3, 1), (2, 2, 1), (2, 1, 0)];
        for (asked, missed, doubt) in table {
            let mut health = LocalHealth::default();
            health.judge(asked, missed);
            assert_eq!(health.doubt(), doubt, "{missed} of {asked} missed");
        }
    }

    #[test]
    fn one_peer_says_nothing_about_oneself() {
        let mut health = LocalHealth { doubt: 3 };
        health.judge(1, 1);
        health.judge(1, 0);
        health.judge(0, 0);
        assert_eq!(health.doubt(), 3);
    }

    #[test]
    fn doubt_stretches_the_pause_to_twice_its_length_and_no_further() {
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
    fn a_timer_late_by_two_intervals_was_busy_and_by_more_was_stopped() {
        let mut timer = OwnTimer::new(at(0), SECOND);
        assert_eq!(timer.gap(at(900)), None);
        assert_eq!(timer.gap(at(3_000)), None, "due at 1 s, late by two intervals");
        assert!(timer.is_due(at(3_000)));
        assert_eq!(timer.due(), at(4_000));
        assert_eq!(timer.gap(at(6_001)), Some(Duration::from_millis(3_001)));
        assert_eq!(timer.gap(at(6_001)), None, "said once");
        assert!(timer.is_due(at(6_001)));
    }
}
