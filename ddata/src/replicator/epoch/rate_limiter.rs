//! Rate limit of unrequested messages: one per peer and interval. Without it two nodes with
//! different configurations would answer each other's every message.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::id::ReplicaId;

/// Most peers remembered. Above it a new peer is sent nothing until an interval has passed.
const PEERS_MAX: usize = 1_024;

/// The peers that were sent a message, and when. A peer whose interval has passed may stay listed.
#[derive(Clone, Debug)]
pub(super) struct PeerRateLimiter {
    every: Duration,
    last: BTreeMap<ReplicaId, Instant>, // ≤ PEERS_MAX
}

impl PeerRateLimiter {
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, last: BTreeMap::new() }
    }

    /// Whether `peer` may be sent a message now. If so, its interval starts; a refusal does not
    /// start it anew. With [`PEERS_MAX`] peers listed, those whose interval has passed are dropped;
    /// if none has, a peer that is not listed is refused.
    pub(super) fn may(&mut self, now: Instant, peer: ReplicaId) -> bool {
        if self.last.get(&peer).is_some_and(|&last| now < last + self.every) {
            return false;
        }
        if self.last.len() >= PEERS_MAX {
            self.last.retain(|_, last| now < *last + self.every);
        }
        if self.last.len() >= PEERS_MAX && !self.last.contains_key(&peer) {
            return false;
        }
        self.last.insert(peer, now);
        true
    }

    /// Ends all intervals, because there is something new to send.
    pub(super) fn reset(&mut self) {
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_sent_one_message_per_interval_and_peers_bounded() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut pace = PeerRateLimiter::new(Duration::from_millis(200));
        assert!(pace.may(at(0), ReplicaId::new(1)));
        assert!(!pace.may(at(199), ReplicaId::new(1)));
        assert!(pace.may(at(200), ReplicaId::new(1)));
        for peer in 0..5_000 {
            pace.may(at(201), ReplicaId::new(peer));
        }
        assert_eq!(pace.last.len(), PEERS_MAX);
        assert!(!pace.may(at(201), ReplicaId::new(9_999)));
        assert!(pace.may(at(401), ReplicaId::new(9_999)));
    }
}
