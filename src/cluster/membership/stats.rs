//! Counters of the membership machine.

use crate::cluster::gossip::exchange::GossipRefused;

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipStats {
    /// Number of messages sent to other nodes, without those about leases.
    pub sent: u64,
    /// Dropped messages that a correct peer does not send to a node in this stage.
    pub nonsense: u64,
    /// Dropped gossip that waited too long in the inbox.
    pub late: u64,
    /// Dropped gossip of senders that must not gossip. Also gossip of members that was refused
    /// because of a counter jump or too many members.
    pub strangers: u64,
    /// Dropped gossip of other clusters.
    pub foreign: u64,
    /// Number of whole gossip states sent.
    pub states_sent: u64,
    /// Number of gossip deltas sent.
    pub deltas_sent: u64,
    /// Received states and deltas that changed this node's state.
    pub states_merged: u64,
    /// Nodes let in by this node, by a join or by an adoption.
    pub let_in: u64,
    /// Joins refused by this node.
    pub join_refused: u64,
    /// Proposed changes of the configuration.
    pub proposed: u64,
    /// Number of founding ballots started.
    pub founding_ballots: u64,
    /// Founding ballots refused because their numbers exceed all known ones by too much.
    pub ballot_jumps: u64,
    /// Connections with this node's own peer key: mostly its own address under another name.
    pub own_dialled: u64,
    /// Members reported as unreachable by this node.
    pub accusations: u64,
    /// Decisions of the downing strategy, including repeated ones.
    pub downings: u64,
    /// Accepted orders to force a configuration at this node, or to resume its cluster as the sole
    /// member in spite of doubts. Each forced configuration suspended the guarantees for a while.
    pub forced: u64,
}

impl MembershipStats {
    /// Counts refused gossip: as `foreign` if it is of another cluster, else as `strangers`.
    pub(super) fn refused(&mut self, why: &GossipRefused) {
        match why {
            GossipRefused::ForeignCluster { .. } => self.foreign += 1,
            _ => self.strangers += 1,
        }
    }
}
