//! Former states: those that the present one contains, by digest, and the last few that this node
//! held, to say only what is new since. Knows nothing of who is told when.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cluster::gossip::Gossip;
use crate::cluster::gossip::delta::{BASES_MAX, GossipDelta};

/// Digests that are remembered, at most; who names an older one is answered in full.
const KNOWN_MAX: usize = 256;

/// The present state, and those before it that a delta may be based on.
const HELD_MAX: usize = BASES_MAX + 1;

/// What is remembered of former states.
#[derive(Debug)]
pub(super) struct Former {
    known: VecDeque<u64>,               // ≤ KNOWN_MAX, oldest first
    held: VecDeque<(u64, Arc<Gossip>)>, // ≤ HELD_MAX, oldest first; the last is the present one
}

impl Former {
    pub(super) fn new(state: Arc<Gossip>) -> Self {
        let digest = state.digest();
        Self { known: VecDeque::from([digest]), held: VecDeque::from([(digest, state)]) }
    }

    /// The present state contains the one with this digest.
    pub(super) fn contains(&mut self, digest: u64) {
        if !self.known.contains(&digest) {
            if self.known.len() == KNOWN_MAX {
                self.known.pop_front();
            }
            self.known.push_back(digest);
        }
    }

    pub(super) fn knows(&self, digest: u64) -> bool {
        let held = self.held.iter().any(|(held, _)| *held == digest);
        held || self.known.contains(&digest)
    }

    /// The present state is another one.
    pub(super) fn is_now(&mut self, digest: u64, state: Arc<Gossip>) {
        self.contains(digest);
        if self.held.back().is_some_and(|(held, _)| *held == digest) {
            return;
        }
        if self.held.len() == HELD_MAX {
            self.held.pop_front();
        }
        self.held.push_back((digest, state));
    }

    /// All have the present state: what came before it is nobody's base any more.
    pub(super) fn all_have(&mut self, digest: u64) {
        if self.held.back().is_some_and(|(held, _)| *held == digest) {
            self.held.drain(..self.held.len() - 1);
        }
    }

    /// What is new since the oldest of the former states; `None`: the whole is better.
    pub(super) fn news(&self, state: &Gossip) -> Option<GossipDelta> {
        let former = self.held.iter().take(self.held.len().saturating_sub(1));
        let (_, oldest) = self.held.front().filter(|_| self.held.len() > 1)?;
        state.delta(oldest, former.map(|(digest, _)| *digest).collect())
    }

    /// What is new since the state with this digest.
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
    fn what_comes_again_and_again_forgets_nothing_else() {
        let mut former = Former::new(Arc::new(state()));
        for digest in 1..=KNOWN_MAX as u64 - 3 {
            former.contains(digest);
        }
        for _ in 0..KNOWN_MAX {
            former.contains(1_001);
            former.contains(1_002);
        }
        assert!((1..KNOWN_MAX as u64 - 3).all(|digest| former.knows(digest)));
        for digest in 2_001..2_001 + KNOWN_MAX as u64 {
            former.contains(digest);
        }
        assert!(!former.knows(1), "there is a bound");
        let present = state().digest();
        assert!(former.knows(present), "who has the same has nothing new");
    }
}
