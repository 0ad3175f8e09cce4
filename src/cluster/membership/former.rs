//! Former states: those that the present one contains, by digest, and those that others were told
//! of, to say only what is new since. Knows nothing of who is told when.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cluster::gossip::Gossip;
use crate::cluster::gossip::delta::{BASES_MAX, GossipDelta};

/// Digests that are remembered, at most; who names an older one is answered in full.
const KNOWN_MAX: usize = 256;

/// What is remembered of former states.
#[derive(Debug)]
pub(super) struct Former {
    known: VecDeque<u64>,               // ≤ KNOWN_MAX, oldest first
    told: VecDeque<(u64, Arc<Gossip>)>, // ≤ BASES_MAX, oldest first
}

impl Former {
    pub(super) fn new(state: Arc<Gossip>) -> Self {
        let digest = state.digest();
        Self { known: VecDeque::from([digest]), told: VecDeque::from([(digest, state)]) }
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

    /// Others are told of the present state.
    pub(super) fn tells(&mut self, digest: u64, state: &Arc<Gossip>) {
        if self.told.iter().any(|(told, _)| *told == digest) {
            return;
        }
        if self.told.len() == BASES_MAX {
            self.told.pop_front();
        }
        self.told.push_back((digest, Arc::clone(state)));
    }

    /// All have the present state: what came before it is nobody's base any more.
    pub(super) fn all_have(&mut self, digest: u64) {
        if self.told.back().is_some_and(|(told, _)| *told == digest) {
            self.told.drain(..self.told.len() - 1);
        }
    }

    /// What is new since the oldest state that others were told of; `None`: the whole is better.
    pub(super) fn news(&self, state: &Gossip) -> Option<GossipDelta> {
        let (_, oldest) = self.told.front()?;
        state.delta(oldest, self.told.iter().map(|(digest, _)| *digest).collect())
    }

    /// What is new since the state with this digest.
    pub(super) fn news_since(&self, state: &Gossip, digest: u64) -> Option<GossipDelta> {
        let (_, base) = self.told.iter().find(|(told, _)| *told == digest)?;
        state.delta(base, vec![digest])
    }
}
