//! The retransmission state ([`Retransmitter`]) of all peers, in one sorted list, because the
//! earliest deadline over all peers is asked for after every batch.

use smallvec::SmallVec;

use super::retransmitter::Retransmitter;
use crate::clock::Instant;
use crate::id::ReplicaId;

/// The retransmission state of all peers.
#[derive(Clone, Debug, Default)]
pub(super) struct Retransmitters {
    all: Vec<(ReplicaId, Retransmitter)>, // ≤ peers, in their order
}

impl Retransmitters {
    /// The index of a peer in the list; the error is the index at which to insert it.
    fn place(&self, peer: ReplicaId) -> Result<usize, usize> {
        self.all.binary_search_by_key(&peer, |(of, _)| *of)
    }

    /// The state of a peer; `None` if no push was sent to it yet, or none since it was removed. A
    /// peer that has acknowledged everything keeps its state.
    pub(super) fn get_mut(&mut self, peer: ReplicaId) -> Option<&mut Retransmitter> {
        let at = self.place(peer).ok()?;
        Some(&mut self.all[at].1)
    }

    /// The state of a peer. A new one is created for a peer to which nothing was sent yet.
    pub(super) fn to(&mut self, peer: ReplicaId) -> &mut Retransmitter {
        let at = self.place(peer).unwrap_or_else(|at| {
            self.all.insert(at, (peer, Retransmitter::default()));
            at
        });
        &mut self.all[at].1
    }

    /// Drops the state of a peer, its round trips included. Does nothing if there is none.
    pub(super) fn remove(&mut self, peer: ReplicaId) {
        if let Ok(at) = self.place(peer) {
            self.all.remove(at);
        }
    }

    /// The earliest deadline of all peers; `None` if no push is open to any of them.
    pub(super) fn due(&self) -> Option<Instant> {
        self.all.iter().filter_map(|(_, retransmitter)| retransmitter.due()).min()
    }

    /// The peers whose deadline has been reached, in the order of their ids.
    pub(super) fn late(&self, now: Instant) -> SmallVec<[ReplicaId; 8]> {
        let late = |retransmitter: &Retransmitter| retransmitter.due().is_some_and(|at| at <= now);
        self.all
            .iter()
            .filter(|(_, retransmitter)| late(retransmitter))
            .map(|(peer, _)| *peer)
            .collect()
    }
}
