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
        if self.known.back() != Some(&digest) {
            if self.known.len() == KNOWN_MAX {
                self.known.pop_front();
            }
            self.known.push_back(digest);
        }
    }

    pub(super) fn knows(&self, digest: u64) -> bool {
        self.known.contains(&digest)
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
