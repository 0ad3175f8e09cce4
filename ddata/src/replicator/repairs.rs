//! Repairs in flight: at most one per peer and key.
//!
//! Rule "One repair in flight per peer and key"
//! (docs/protocol/replication.md#one-repair-in-flight-per-peer-and-key). A repair brings a peer up
//! to date with one key. While it is in flight, the peer refuses other pushes of that key for the
//! same reason. Answering each with a repair would send the same content again, and for a large key
//! each repair is a scan or the full state. Those pushes are resent after the patience instead,
//! when the repair has usually arrived. A repair counts as lost after a time that grows with its
//! length and with every try; then another one may be sent.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pace::RoundTrips;
use crate::clock::Instant;
use crate::id::ReplicaId;
use crate::key::KeyName;

/// Maximum number of repairs remembered. Beyond, a repair that was not remembered is sent again for
/// every refusal.
const REMEMBERED_MAX: usize = 4_096;

/// Assumed minimum rate at which a repair is sent, assembled and merged, in bytes per second.
const BYTES_A_SECOND: u64 = 8 << 20;

/// A repair that a peer has not acknowledged. It is *in flight* before `until` and counts as *lost*
/// from then on, but stays remembered, with its tries.
#[derive(Clone, Copy, Debug)]
struct SentRepair {
    push: u64,      // the open push whose acknowledgement will cover it
    until: Instant, // then it counts as lost
    tries: u32,     // repairs of this key sent to this peer before it, of which none arrived
}

/// The repairs that were sent in answer to a refused push, in flight or lost. Those of comparisons
/// and read repairs are not recorded. An entry ends when the repair arrives, the peer is removed, a
/// configuration is installed, or it is lost and the list is full.
#[derive(Clone, Debug, Default)]
pub(super) struct Repairs {
    under_way: BTreeMap<(ReplicaId, KeyName), SentRepair>, // ≤ REMEMBERED_MAX
}

impl Repairs {
    /// Whether a repair of this key is in flight to this peer. One that counts as lost is not in
    /// flight, although it is still remembered.
    pub(super) fn is_under_way(&self, now: Instant, peer: ReplicaId, key: &KeyName) -> bool {
        !self.is_empty()
            && self.under_way.get(&(peer, key.clone())).is_some_and(|sent| now < sent.until)
    }

    /// Records that a repair of this many bytes was sent to a peer as part of a push. It replaces
    /// an earlier repair of the same key to the same peer, also one in flight, and gets a longer
    /// patience as a further try. `trips` are those over all peers.
    ///
    /// If [`REMEMBERED_MAX`] repairs are remembered, lost ones are forgotten first. If that frees
    /// no place, only a repair that replaces another one is recorded.
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
        self.under_way.insert(of, SentRepair { push, until, tries });
    }

    /// Whether no repair is remembered, neither in flight nor lost.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Records that a peer holds the content that a push carried for a key. If the latest repair of
    /// that key was part of this push, it has arrived and is forgotten; otherwise nothing changes.
    pub(super) fn arrived(&mut self, peer: ReplicaId, push: u64, key: &KeyName) {
        let of = (peer, key.clone());
        if self.under_way.get(&of).is_some_and(|sent| sent.push == push) {
            self.under_way.remove(&of);
        }
    }

    /// Forgets the repairs that count as lost, with the number of their tries, if the list is full.
    fn tidy(&mut self, now: Instant) {
        if self.under_way.len() >= REMEMBERED_MAX {
            self.under_way.retain(|_, sent| now < sent.until);
        }
    }

    /// Forgets all repairs to a removed peer.
    pub(super) fn forget(&mut self, peer: ReplicaId) {
        self.under_way.retain(|(of, _), _| *of != peer);
    }

    pub(super) fn clear(&mut self) {
        self.under_way.clear();
    }
}
