//! Who is to be dialled, and where: membership's addresses as the transport's, names resolved.
//!
//! Addresses of members and seeds name no peer: whoever answers there proves who it is. A name
//! that stands for several addresses is answered at each of them, as the address that membership
//! knows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::{NodeId, ReplicaId};
use tokio::runtime::Handle;

use super::super::wiring;
use super::machine::ControlInbox;
use crate::cluster::member::Address;
use crate::cluster::membership::port::Input;
use crate::net::address;
use crate::net::handle::Net;

/// Names that are being dialled, by what they stand for; beyond that the first of them is
/// forgotten, and its answer counts for the address itself.
const NAMES_MAX: usize = 4_096;

/// For how long a refusal explains that seeds do not answer: as long as it is warned of.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Orders of membership to the transport's links. A clone is the same.
#[derive(Clone)]
pub(crate) struct Dialling {
    net: Net,
    inbox: ControlInbox,
    runtime: Handle,
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    kept: BTreeMap<PeerId, ReplicaId>,   // ≤ members
    names: BTreeMap<Multiaddr, Address>, // ≤ NAMES_MAX
    refused_at: Option<Instant>,
}

impl Dialling {
    /// Resolves names on the runtime that it is made on.
    pub(crate) fn new(net: Net, inbox: ControlInbox) -> Self {
        Self { net, inbox, runtime: Handle::current(), table: Arc::default() }
    }

    /// Dials whoever answers at an address.
    pub(crate) fn dial(&self, address: Address) {
        match address.as_str().parse::<Multiaddr>() {
            Ok(at) if address::host(&at).is_some() => self.net.dial(at),
            Ok(name) => {
                let dialling = self.clone();
                self.runtime.spawn(async move { dialling.dial_name(name, address).await });
            }
            Err(_) => self.refused(address),
        }
    }

    async fn dial_name(self, name: Multiaddr, address: Address) {
        match address::resolve(&name).await {
            Ok(found) => {
                for at in found {
                    self.lock().remember(at.clone(), address.clone());
                    self.net.dial(at);
                }
            }
            Err(error) => {
                tracing::debug!(%address, %error, "node.unresolved");
                self.refused(address);
            }
        }
    }

    fn refused(&self, address: Address) {
        let _ = self.inbox.fact(Input::DialRefused { address, node: None }.into()); // it has ended
    }

    /// What membership knows a dialled address as.
    pub(crate) fn dialled_as(&self, at: &Multiaddr) -> Option<Address> {
        let named = self.lock().names.remove(at);
        named.or_else(|| bare(at))
    }

    /// A node does not let this one talk, and has told it why.
    pub(crate) fn was_refused(&self) {
        self.lock().refused_at = Some(Instant::now());
    }

    /// Whether that was so a moment ago.
    pub(crate) fn is_refused(&self) -> bool {
        self.lock().refused_at.is_some_and(|at| at.elapsed() < REFUSED_FOR)
    }

    /// Keeps the link to a member up.
    pub(crate) fn keep(&self, node: NodeId, address: &Address) {
        let node = wiring::to_net(node);
        self.lock().kept.insert(node.peer, node.incarnation);
        match address.as_str().parse::<Multiaddr>() {
            Ok(at) if address::host(&at).is_some() => self.net.keep(node.peer, vec![at]),
            Ok(name) => {
                self.net.keep(node.peer, Vec::new()); // where it is known already
                let dialling = self.clone();
                self.runtime.spawn(async move {
                    let Ok(found) = address::resolve(&name).await else { return };
                    let table = dialling.lock();
                    if table.kept.get(&node.peer) == Some(&node.incarnation) {
                        dialling.net.keep(node.peer, found);
                    }
                });
            }
            Err(_) => self.net.keep(node.peer, Vec::new()),
        }
    }

    /// Which life of a peer is kept.
    pub(crate) fn kept(&self, peer: PeerId) -> Option<crate::net::NodeId> {
        let incarnation = *self.lock().kept.get(&peer)?;
        Some(crate::net::NodeId { peer, incarnation })
    }

    /// Dials it no more.
    pub(crate) fn release(&self, node: NodeId) {
        let node = wiring::to_net(node);
        let mut table = self.lock();
        // A later life of the peer may be kept by now.
        if table.kept.get(&node.peer) == Some(&node.incarnation) {
            table.kept.remove(&node.peer);
            self.net.release(node.peer);
        }
    }

    /// It is out for good.
    pub(crate) fn forget(&self, node: NodeId) {
        self.release(node);
        self.net.forget(wiring::to_net(node));
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code under it
    }
}

impl Table {
    fn remember(&mut self, at: Multiaddr, address: Address) {
        if self.names.len() >= NAMES_MAX {
            self.names.pop_first();
        }
        self.names.insert(at, address);
    }
}

/// An address without the peer that it names at its end, as members have it; `None` if it is too
/// long.
pub(crate) fn bare(address: &Multiaddr) -> Option<Address> {
    let mut address = address.clone();
    if matches!(address.iter().last(), Some(Protocol::P2p(_))) {
        address.pop();
    }
    Address::new(address.to_string()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_member_names_no_peer() {
        let peer = PeerId::from_bytes(&[0, 1, 9]).expect("an identity hash");
        for text in ["/ip4/127.0.0.1/tcp/4001", "/dns4/a.example/tcp/4001"] {
            let address: Multiaddr = text.parse().expect("valid");
            let named = address.clone().with_p2p(peer).expect("it names none yet");
            for given in [address, named] {
                assert_eq!(bare(&given), Address::new(text).ok());
            }
        }
    }

    #[test]
    fn no_more_names_are_remembered_than_may_be() {
        let mut table = Table::default();
        let address = Address::new("/dns/a/tcp/1").expect("short");
        for port in 0..=u16::try_from(NAMES_MAX).expect("small") {
            let at: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("valid");
            table.remember(at, address.clone());
        }
        assert_eq!(table.names.len(), NAMES_MAX);
    }
}
