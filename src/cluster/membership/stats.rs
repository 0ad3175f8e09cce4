//! What a membership machine counts.

use crate::cluster::gossip::exchange::GossipRefused;

/// Plain numbers since the start, compared in tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages sent.
    pub sent: u64,
    /// Messages that no correct peer sends to a node in this stage of its life; dropped.
    pub nonsense: u64,
    /// Gossip that waited too long in the inbox; dropped.
    pub late: u64,
    /// Gossip from nobody who may gossip here; dropped.
    pub strangers: u64,
    /// Gossip of other clusters; dropped.
    pub foreign: u64,
    /// States sent.
    pub states_sent: u64,
    /// Changes of states sent instead.
    pub deltas_sent: u64,
    /// States, or changes of them, merged that brought something.
    pub states_merged: u64,
    /// Joins let in by this node.
    pub let_in: u64,
    /// Joins refused by this node.
    pub join_refused: u64,
    /// Changes of the configuration proposed.
    pub proposed: u64,
    /// Ballots begun to found a cluster.
    pub founding_ballots: u64,
    /// Ballots refused because their numbers jump ahead of all that this node has heard.
    pub ballot_jumps: u64,
    /// Times that a seed's address turned out to be this node's own.
    pub own_dialled: u64,
    /// Nodes that this one found unreachable.
    pub accusations: u64,
    /// Verdicts of the downing strategy.
    pub downings: u64,
    /// Configurations that were forced at this node. Each gave the guarantees up for a while.
    pub forced: u64,
}

impl Stats {
    pub(super) fn refused(&mut self, why: &GossipRefused) {
        match why {
            GossipRefused::ForeignCluster { .. } => self.foreign += 1,
            _ => self.strangers += 1,
        }
    }
}
