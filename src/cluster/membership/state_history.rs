//! History of the gossip state: digests of states that the present one contains, and the last few
//! states of this node, from which deltas are computed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cluster::gossip::Gossip;
use crate::cluster::gossip::delta::{BASES_MAX, GossipDelta};

/// Maximum number of digests. A peer that names an older one gets the whole state.
const KNOWN_MAX: usize = 256;

/// Maximum number of kept states: the present one, and the possible bases of a delta.
const HELD_MAX: usize = BASES_MAX + 1;

/// The history of the gossip state. *Known* digests tell which received states need no merge;
/// *kept* states are the bases of deltas. The two lists are bounded separately.
#[derive(Debug)]
pub(super) struct StateHistory {
    known: VecDeque<u64>,               // ≤ KNOWN_MAX, oldest first
    held: VecDeque<(u64, Arc<Gossip>)>, // ≤ HELD_MAX, oldest first; the last is the present one
}

impl StateHistory {
    /// A history that knows and keeps only the present state.
    pub(super) fn new(state: Arc<Gossip>) -> Self {
        let digest = state.digest();
        Self { known: VecDeque::from([digest]), held: VecDeque::from([(digest, state)]) }
    }

    /// Records that the present state contains the one with this digest; returns nothing. A known
    /// digest keeps its place in the order. Otherwise the digest that was first recorded is
    /// forgotten if there are [`KNOWN_MAX`], even if its state is still kept.
    pub(super) fn contains(&mut self, digest: u64) {
        if !self.known.contains(&digest) {
            if self.known.len() == KNOWN_MAX {
                self.known.pop_front();
            }
            self.known.push_back(digest);
        }
    }

    /// Whether the present state is known to contain the state with this digest, or is that state:
    /// the digest is a known one, or that of a kept state. `false` also for a contained state whose
    /// digest was forgotten, and for a new state before its `push`.
    pub(super) fn knows(&self, digest: u64) -> bool {
        let held = self.held.iter().any(|(held, _)| *held == digest);
        held || self.known.contains(&digest)
    }

    /// Keeps a new present state, and records its digest as `contains` does. The oldest kept state
    /// is dropped beyond [`HELD_MAX`]. If the last kept state has this digest, only the digest is
    /// recorded, and that state is not replaced. An earlier one with this digest is kept twice.
    /// `digest` must be that of `state`, which is not checked.
    pub(super) fn push(&mut self, digest: u64, state: Arc<Gossip>) {
        self.contains(digest);
        if self.held.back().is_some_and(|(held, _)| *held == digest) {
            return;
        }
        if self.held.len() == HELD_MAX {
            self.held.pop_front();
        }
        self.held.push_back((digest, state));
    }

    /// All members have the present state: drops earlier states, which are no longer needed as
    /// bases; their digests remain known. Does nothing if the last kept state has another digest.
    pub(super) fn all_have(&mut self, digest: u64) {
        if self.held.back().is_some_and(|(held, _)| *held == digest) {
            self.held.drain(..self.held.len() - 1);
        }
    }

    /// The delta since the oldest kept state, for peers that have any of the kept earlier states,
    /// which it lists as bases. `None` if the whole state should be sent: no earlier state is kept,
    /// or [`Gossip::delta`] gives none; no later base is tried then. The last kept state must be
    /// `state`, which is not checked.
    pub(super) fn news(&self, state: &Gossip) -> Option<GossipDelta> {
        let former = self.held.iter().take(self.held.len().saturating_sub(1));
        let (_, oldest) = self.held.front().filter(|_| self.held.len() > 1)?;
        state.delta(oldest, former.map(|(digest, _)| *digest).collect())
    }

    /// The delta since the state with this digest, its only base. `None` if that state is not kept,
    /// even if its digest is known, or if [`Gossip::delta`] gives none. A delta without changes for
    /// the digest of the present state.
    pub(super) fn news_since(&self, state: &Gossip, digest: u64) -> Option<GossipDelta> {
        let (_, base) = self.held.iter().find(|(held, _)| *held == digest)?;
        state.delta(base, vec![digest])
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

    use super::*;
    use crate::cluster::gossip::ClusterId;
    use crate::cluster::member::{Address, Member};

    fn state() -> Gossip {
        let node = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
        let founder = Member::joining(node, Address::new("/dns4/a/tcp/1").expect("short"), 1);
        Gossip::found(ClusterId(7), founder).expect("within bounds")
    }

    #[test]
    fn repeated_digests_do_not_displace_others() {
        let mut history = StateHistory::new(Arc::new(state()));
        for digest in 1..=KNOWN_MAX as u64 - 3 {
            history.contains(digest);
        }
        for _ in 0..KNOWN_MAX {
            history.contains(1_001);
            history.contains(1_002);
        }
        assert!((1..KNOWN_MAX as u64 - 3).all(|digest| history.knows(digest)));
        for digest in 2_001..2_001 + KNOWN_MAX as u64 {
            history.contains(digest);
        }
        assert!(!history.knows(1), "the number of digests is bounded");
        let present = state().digest();
        assert!(history.knows(present), "the present state is always known");
    }
}
