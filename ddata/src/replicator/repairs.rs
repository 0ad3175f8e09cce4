//! Repairs on their way: at most one for each peer and key.
//!
//! A repair brings a peer up to date with one key, whichever of its pushes found that something is
//! lacking. While it is on its way the other pushes of that key find the same, each again; their
//! repairs would say the same again, and of a large key each is a scan or the whole state. So they
//! are left to be sent again when the patience with the peer is over, by when the repair has
//! arrived. A repair that is lost is followed by another one after a time that grows with its
//! length and with every try.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pace::RoundTrips;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// Peers and keys whose repairs are remembered; beyond, repairs are sent as they are asked for.
const REMEMBERED_MAX: usize = 4_096;

/// How fast a repair is sent, put together and merged, at least, in bytes a second.
const BYTES_A_SECOND: u64 = 8 << 20;

/// A repair that a peer has not acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    push: u64,      // as a sending of which it left
    until: Instant, // then it is taken for lost
    tries: u32,
}

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Repairs {
    under_way: BTreeMap<(ReplicaId, KeyName), Sent>, // ≤ REMEMBERED_MAX
}

impl Repairs {
    /// Whether a repair of this key is on its way to this peer.
    pub(super) fn is_under_way(&self, now: Instant, peer: ReplicaId, key: &KeyName) -> bool {
        !self.is_empty()
            && self.under_way.get(&(peer, key.clone())).is_some_and(|sent| now < sent.until)
    }

    /// A repair of so many bytes leaves for a peer, as a sending of a push.
    pub(super) fn sent(
        &mut self,
        now: Instant,
        (peer, push): (ReplicaId, u64),
        (key, bytes): (&KeyName, usize),
        trips: &RoundTrips,
    ) {
        self.tidy(now);
        let of = (peer, key.clone());
        let tries = self.under_way.get(&of).map_or(0, |sent| sent.tries + 1);
        if self.under_way.len() >= REMEMBERED_MAX && !self.under_way.contains_key(&of) {
            return;
        }
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / BYTES_A_SECOND;
        let until = now + trips.patience(tries) + Duration::from_nanos(nanos);
        self.under_way.insert(of, Sent { push, until, tries });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A peer holds what a push brought of a key: if that was a repair, it has arrived.
    pub(super) fn arrived(&mut self, peer: ReplicaId, push: u64, key: &KeyName) {
        let of = (peer, key.clone());
        if self.under_way.get(&of).is_some_and(|sent| sent.push == push) {
            self.under_way.remove(&of);
        }
    }

    fn tidy(&mut self, now: Instant) {
        if self.under_way.len() >= REMEMBERED_MAX {
            self.under_way.retain(|_, sent| now < sent.until);
        }
    }

    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.under_way.retain(|(of, _), _| *of != peer);
    }

    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }
}
