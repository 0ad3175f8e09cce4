//! Complaints: a warning about a peer at most once a minute, however often it deserves one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libp2p::PeerId;

const EVERY: Duration = Duration::from_secs(60);
const KNOWN_MAX: usize = 256;

/// Remembers who was complained about. Counters count every case; the log need not.
#[derive(Debug, Default)]
pub struct Complaints {
    last: BTreeMap<(Option<PeerId>, &'static str), Instant>, // ≤ KNOWN_MAX; beyond: silence
}

impl Complaints {
    /// Whether to log `what` about `who` (none: a stranger without a name).
    pub fn due(&mut self, now: Instant, who: Option<PeerId>, what: &'static str) -> bool {
        if self.last.get(&(who, what)).is_some_and(|last| now.duration_since(*last) < EVERY) {
            return false;
        }
        if self.last.len() >= KNOWN_MAX {
            self.last.retain(|_, last| now.duration_since(*last) < EVERY);
        }
        if self.last.len() >= KNOWN_MAX {
            return false;
        }
        self.last.insert((who, what), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_complained_about_once_a_minute_for_each_thing() {
        let mut complaints = Complaints::default();
        let (start, peer) = (Instant::now(), Some(PeerId::random()));
        assert!(complaints.due(start, peer, "secret"));
        assert!(!complaints.due(start + EVERY / 2, peer, "secret"));
        assert!(complaints.due(start + EVERY / 2, peer, "cluster"));
        assert!(complaints.due(start + EVERY / 2, None, "secret"));
        assert!(complaints.due(start + EVERY, peer, "secret"));
    }

    #[test]
    fn a_crowd_of_strangers_fills_neither_memory_nor_log() {
        let mut complaints = Complaints::default();
        let start = Instant::now();
        let crowd = || Some(PeerId::random());
        let logged = (0..KNOWN_MAX * 2).filter(|_| complaints.due(start, crowd(), "secret"));
        assert_eq!(logged.count(), KNOWN_MAX);
        assert!(complaints.due(start + EVERY, crowd(), "secret"));
        assert_eq!(complaints.last.len(), 1);
    }
}
