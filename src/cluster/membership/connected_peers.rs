//! The connected nodes and the addresses at which they are dialled. It does not depend on the
//! status of members.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::{NodeId, PeerKey};

use crate::cluster::member::Address;

/// Maximum number of connected nodes. Further ones are ignored; the transport's own limit is lower.
const LINKS_MAX: usize = 20_000;

/// Maximum number of addresses per node: twice the number that a node may announce (16), so that
/// there is room for those at which this node dialled it.
const ADDRESSES_MAX: usize = 32;

/// The nodes that are connected now, and the peers that ever were. The caller never adds a node
/// with this node's own peer key.
#[derive(Debug, Default)]
pub(super) struct ConnectedPeers {
    up: BTreeMap<NodeId, BTreeSet<Address>>, // ≤ LINKS_MAX
    proved: BTreeSet<PeerKey>,               // ever connected, never dropped; ≤ LINKS_MAX
}

impl ConnectedPeers {
    /// Records that a node is connected. Of a node that is connected already it keeps the known
    /// addresses and adds these; the last ones beyond `ADDRESSES_MAX` are ignored. A further node
    /// beyond `LINKS_MAX` is ignored altogether: it does not count as connected, nor its peer as
    /// proved. Once `LINKS_MAX` peers were connected, a further peer is recorded as connected only.
    pub(super) fn up(&mut self, node: NodeId, addresses: Vec<Address>) {
        if self.up.len() >= LINKS_MAX && !self.up.contains_key(&node) {
            return;
        }
        if self.proved.len() < LINKS_MAX {
            self.proved.insert(node.peer);
        }
        let known = self.up.entry(node).or_default();
        for address in addresses {
            if known.len() < ADDRESSES_MAX {
                known.insert(address);
            }
        }
    }

    /// Forgets a node with its addresses; its peer stays proved. Other incarnations of the peer
    /// stay.
    pub(super) fn closed(&mut self, node: NodeId) {
        self.up.remove(&node);
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.up.contains_key(&node)
    }

    /// Whether the peer has ever proved to this incarnation, by the cluster secret, that it belongs
    /// to the cluster: some incarnation of it was connected.
    pub(super) fn has_proved(&self, peer: PeerKey) -> bool {
        self.proved.contains(&peer)
    }

    /// Addresses at which a connected node is dialled: those that it announced, and that at which
    /// this node reached it. `None` if the node is not connected; may be empty otherwise.
    pub(super) fn addresses(&self, node: NodeId) -> Option<&BTreeSet<Address>> {
        self.up.get(&node)
    }

    /// Connected nodes with at least one of these addresses, in the order of node ids, each once
    /// with the first such address in the order of addresses. Several nodes may have one address; a
    /// second wanted address of one node is left out.
    pub(super) fn at(&self, wanted: &BTreeSet<Address>) -> Vec<(NodeId, Address)> {
        let first = |addresses: &BTreeSet<Address>| addresses.intersection(wanted).next().cloned();
        let found = self.up.iter().filter_map(|(node, at)| Some((*node, first(at)?)));
        found.collect()
    }

    /// Those of `wanted` that a connected node accepted by `counts` has. Unlike in
    /// [`at`](Self::at), one node counts for all its addresses.
    pub(super) fn reached<'a>(
        &'a self,
        wanted: &'a BTreeSet<Address>,
        counts: impl Fn(NodeId) -> bool,
    ) -> BTreeSet<&'a Address> {
        let counted = self.up.iter().filter(|(node, _)| counts(**node));
        counted.flat_map(|(_, addresses)| wanted.intersection(addresses)).collect()
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    #[test]
    fn dialled_address_is_kept_beside_all_announced_ones() {
        let address = |port: u16| Address::new(format!("/ip4/10.0.0.1/tcp/{port}")).expect("short");
        let node = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
        let mut peers = ConnectedPeers::default();
        peers.up(node, (1..=16).map(address).collect());
        let dialled = address(17);
        peers.up(node, vec![dialled.clone()]);
        assert_eq!(peers.at(&BTreeSet::from([dialled.clone()])), [(node, dialled)]);
    }

    #[test]
    fn all_addresses_of_a_node_are_reached() {
        let address = |port: u16| Address::new(format!("/ip4/10.0.0.1/tcp/{port}")).expect("short");
        let node = NodeId { peer: PeerKey::new([1; 32]), incarnation: ReplicaId::new(1) };
        let mut peers = ConnectedPeers::default();
        peers.up(node, (1..=2).map(address).collect());
        let wanted: BTreeSet<Address> = (1..=3).map(address).collect();
        let reached: Vec<Address> = peers.reached(&wanted, |_| true).into_iter().cloned().collect();
        assert_eq!(reached, [1, 2].map(address));
        assert!(peers.reached(&wanted, |other| other != node).is_empty());
        assert_eq!(peers.at(&wanted), [(node, address(1))], "it is one node");
    }
}
