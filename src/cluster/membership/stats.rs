//! Counters of the membership machine.

use crate::cluster::gossip::exchange::GossipRefused;

/// Counters since the start of the process; none is ever reset, also not by a new search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MembershipStats {
    /// Number of messages sent to other nodes, without those about leases and those to this node
    /// itself. A message to a node that is not connected counts.
    pub sent: u64,
    /// Dropped messages that a correct peer does not send to a node in this stage, and reports of a
    /// quarantine by peers that are not believed.
    pub nonsense: u64,
    /// Dropped gossip that waited longer than `gossip-time-to-live` in the inbox.
    pub late: u64,
    /// Dropped gossip of senders that are no member here, are Down, or were removed; also if the
    /// sender was adopted because of it. Also gossip of members that was refused because of a
    /// counter jump or too many members. Gossip that reports this node as removed is not counted.
    pub strangers: u64,
    /// Dropped gossip of other clusters.
    pub foreign: u64,
    /// Number of whole gossip states sent, one per receiver, without those in a `Welcome`.
    pub states_sent: u64,
    /// Number of gossip deltas sent, one per receiver.
    pub deltas_sent: u64,
    /// Received states and deltas that changed this node's state; a changed seen set alone does not
    /// count.
    pub states_merged: u64,
    /// Nodes let in by this node, by a join or by an adoption. A repeated join does not count.
    pub let_in: u64,
    /// Joins refused by this node, also those that the other node should repeat.
    pub join_refused: u64,
    /// Proposed changes of the configuration, whether or not they were decided.
    pub proposed: u64,
    /// Number of founding ballots started by this node.
    pub founding_ballots: u64,
    /// Messages about founding ballots whose numbers exceed all known ones by too much.
    pub ballot_jumps: u64,
    /// Connections with this node's own peer key: mostly its own address under another name, also
    /// another incarnation of this node.
    pub own_dialled: u64,
    /// Members reported as unreachable by this node's failure detector; each report counts.
    pub accusations: u64,
    /// Decisions of the downing strategy, including repeated ones.
    pub downings: u64,
    /// Accepted orders to force a configuration at this node, or to resume its cluster as the sole
    /// member, repeated orders included. Each forced configuration suspended the guarantees for a
    /// while.
    pub forced: u64,
}

impl MembershipStats {
    /// Counts refused gossip: as `foreign` if it is of another cluster, else as `strangers`. The
    /// caller does not pass [`GossipRefused::Removed`], which stops the node.
    pub(super) fn refused(&mut self, why: &GossipRefused) {
        match why {
            GossipRefused::ForeignCluster { .. } => self.foreign += 1,
            _ => self.strangers += 1,
        }
    }
}
