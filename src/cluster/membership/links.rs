//! Whom the transport has admitted, and where they are dialled. Knows no member's status.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::{NodeId, PeerKey};

use crate::cluster::member::Address;

/// Nodes that are connected, at most; more are not talked to, which the transport's own bound
/// makes impossible.
const LINKS_MAX: usize = 20_000;

/// Addresses that are remembered of one node, at most.
const ADDRESSES_MAX: usize = 16;

/// The connected nodes.
#[derive(Debug, Default)]
pub(super) struct Links {
    up: BTreeMap<NodeId, BTreeSet<Address>>, // ≤ LINKS_MAX
    proved: BTreeSet<PeerKey>,               // were ever up; ≤ LINKS_MAX
}

impl Links {
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

    pub(super) fn closed(&mut self, node: NodeId) {
        self.up.remove(&node);
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.up.contains_key(&node)
    }

    /// Whether it has shown to this life that it is of the cluster, by its secret, however long ago.
    pub(super) fn has_proved(&self, peer: PeerKey) -> bool {
        self.proved.contains(&peer)
    }

    /// Where a connected node is dialled.
    pub(super) fn addresses(&self, node: NodeId) -> Option<&BTreeSet<Address>> {
        self.up.get(&node)
    }

    /// Who answers at one of these addresses, and at which: the first of them.
    pub(super) fn at(&self, wanted: &BTreeSet<Address>) -> Vec<(NodeId, Address)> {
        let first = |addresses: &BTreeSet<Address>| addresses.intersection(wanted).next().cloned();
        let found = self.up.iter().filter_map(|(node, at)| Some((*node, first(at)?)));
        found.collect()
    }
}
