//! Static membership for tests and examples: the given nodes form the only configuration.

use std::collections::BTreeSet;
use std::sync::Arc;

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::replicator::port::Peer;

use super::Node;
use super::routes::Fact;

/// Why no static cluster was formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StaticMembershipError {
    /// An address does not end in a peer id. Peers before it in the list are already dialled.
    #[error("{address} has no peer id: end it in /p2p/<peer id>, as in `Node::addresses`")]
    Unnamed {
        /// The address without a peer id.
        address: Multiaddr,
    },
    /// The node stopped before all peers were connected.
    #[error("the node has stopped")]
    Stopped,
}

impl Node {
    /// Waits until all `peers` are connected, and installs a configuration of them and this node.
    /// All of them must do the same; the order does not matter. This node's own addresses and
    /// repeated peers are ignored; without others it forms a cluster of one. Returns when the
    /// configuration is queued, before it is installed. For tests and examples.
    ///
    /// # Errors
    /// [`StaticMembershipError`]. If no node answers at an address, this waits without a limit. The
    /// links are kept up after an error, too.
    ///
    /// # Panics
    /// If there are more nodes than a configuration may have.
    #[doc(hidden)]
    pub async fn found_static(&self, peers: &[Multiaddr]) -> Result<(), StaticMembershipError> {
        let mut wanted = BTreeSet::new();
        for address in peers {
            let peer = peer_of(address)
                .ok_or_else(|| StaticMembershipError::Unnamed { address: address.clone() })?;
            if peer != self.id().peer {
                self.net.keep(peer, vec![address.clone()]);
                wanted.insert(peer);
            }
        }
        let mut ups = self.up.clone();
        let all = ups.wait_for(|up| wanted.iter().all(|peer| up.contains_key(peer)));
        let up = all.await.map_err(|_| StaticMembershipError::Stopped)?.clone();
        let others = wanted.iter().map(|peer| up[peer].incarnation);
        let mut members: Vec<ReplicaId> = others.chain([self.id().incarnation]).collect();
        members.sort_unstable();
        let known = |id: &ReplicaId| Peer { id: *id, stopping: false, reachable: true };
        self.facts.tell(Fact::Members(members.iter().map(known).collect()));
        self.facts.tell(Fact::Found(Arc::new(founding(members))));
        Ok(())
    }
}

/// The founding configuration, equal on all nodes with equal members, which must be sorted and
/// distinct. It therefore does not depend on a clock, so that its fencing tokens are not higher
/// than those of an earlier static cluster. Panics if there are more members than it may have,
/// none, or one twice.
fn founding(members: Vec<ReplicaId>) -> Epoch {
    let digest_seed = members.iter().fold(0, |seed, member| seed ^ member.get());
    let settings = EpochSettings { digest_seed, ..EpochSettings::default() };
    let id = EpochId { generation: 1, number: 1 };
    Epoch::founding(id, members, settings).expect("distinct, and fewer than a configuration holds")
}

/// The peer id at the end of an address; `None` if the address is empty or ends in anything else.
fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}
