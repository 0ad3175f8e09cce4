//! The [`Line`]s to all peers, in one piece: after every batch somebody asks which is due first.

use smallvec::SmallVec;

use super::line::Line;
use crate::clock::Instant;
use crate::id::ReplicaId;

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    all: Vec<(ReplicaId, Line)>, // ≤ peers, in their order
}

impl Lines {
    fn place(&self, peer: ReplicaId) -> Result<usize, usize> {
        self.all.binary_search_by_key(&peer, |(of, _)| *of)
    }

    pub(super) fn get_mut(&mut self, peer: ReplicaId) -> Option<&mut Line> {
        let at = self.place(peer).ok()?;
        Some(&mut self.all[at].1)
    }

    /// The line to a peer, a new one if nothing was ever sent there.
    pub(super) fn to(&mut self, peer: ReplicaId) -> &mut Line {
        let at = self.place(peer).unwrap_or_else(|at| {
            self.all.insert(at, (peer, Line::default()));
            at
        });
        &mut self.all[at].1
    }

    pub(super) fn remove(&mut self, peer: ReplicaId) {
        if let Ok(at) = self.place(peer) {
            self.all.remove(at);
        }
    }

    /// When something is lost or somebody is to be asked.
    pub(super) fn due(&self) -> Option<Instant> {
        self.all.iter().filter_map(|(_, line)| line.due()).min()
    }

    /// Peers whose lines are due.
    pub(super) fn late(&self, now: Instant) -> SmallVec<[ReplicaId; 8]> {
        let late = |line: &Line| line.due().is_some_and(|at| at <= now);
        self.all.iter().filter(|(_, line)| late(line)).map(|(peer, _)| *peer).collect()
    }
}
