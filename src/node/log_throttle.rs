//! Throttles for log events: [`LogThrottle`] for an event of this node, [`PeerThrottle`] for one
//! that names a peer.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::id::ReplicaId;

/// Shortest time between two permitted events.
const EVERY: Duration = Duration::from_secs(60);

/// Maximum number of peers with a time of their own. Within a minute the further ones share one
/// event.
const PEERS_MAX: usize = 64;

/// Permits a log event at most once a minute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogThrottle {
    last: Option<Instant>,
}

impl LogThrottle {
    /// Whether to log now: true at first, and then if a minute has passed since it was last true.
    /// The caller must log then, because the minute begins anew.
    pub(crate) fn now(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now - last >= EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// Permits a log event at most once a minute about each peer, so that a faulty or hostile peer
/// cannot hide an event about another one.
#[derive(Debug, Default)]
pub(crate) struct PeerThrottle {
    peers: BTreeMap<ReplicaId, Instant>, // ≤ PEERS_MAX
    further: LogThrottle,
}

impl PeerThrottle {
    /// Whether to log an event about this peer now: true if there was none about it within the last
    /// minute. While [`PEERS_MAX`] peers had one within the last minute, true once a minute for all
    /// others together. The caller must log then.
    pub(crate) fn now(&mut self, now: Instant, peer: ReplicaId) -> bool {
        let is_recent = |last: &Instant| now - *last < EVERY;
        if self.peers.get(&peer).is_some_and(is_recent) {
            return false;
        }
        self.peers.retain(|_, last| is_recent(last));
        if self.peers.len() < PEERS_MAX {
            self.peers.insert(peer, now);
            return true;
        }
        self.further.now(now)
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

    #[test]
    fn event_about_one_peer_hides_none_about_another() {
        let mut throttle = PeerThrottle::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut due = |second, peer| throttle.now(at(second), ReplicaId::new(peer));
        assert!(due(1, 1) && due(1, 2));
        assert!(!due(60, 1) && !due(60, 2), "within a minute");
        assert!(due(61, 1) && due(61, 2), "a minute later");
        let logged = (100..10_000).filter(|peer| due(62, *peer)).count();
        assert_eq!(logged, PEERS_MAX - 2 + 1, "further peers share one event");
        assert_eq!(throttle.peers.len(), PEERS_MAX);
    }
}
