//! What the hub keeps of one peer.

use std::collections::BTreeMap;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::ReplicaId;
use tokio::task::{AbortHandle, JoinHandle};

use crate::net::Class;
use crate::net::config::Limits;
use crate::net::lane::inbound::InboundLane;
use crate::net::link::Link;
use crate::net::wire::{ADDRESSES_MAX, Facts};

/// What a peer's facts say about its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reborn {
    /// It was not known.
    First,
    /// It is the one that was known.
    Same,
    /// It has restarted.
    Anew {
        /// The life that was known.
        old: ReplicaId,
        /// Whether it holds the lock of its former life, on the same host: that one is dead.
        is_proof: bool,
    },
}

/// See the module's page.
pub(super) struct Peer {
    pub(super) link: Link,
    /// Of the life that is known.
    facts: Option<Facts>,
    /// It says that this life is over: the next lane is opened to whoever is there.
    is_stale: bool,
    /// Its last connection has closed since it was admitted.
    is_away: bool,
    /// Addresses that were dialled of whoever answers there, and it did.
    answered: Vec<Multiaddr>, // ≤ ADDRESSES_MAX; it tells no more either
    /// The task of each lane to it.
    pub(super) outbound: [Option<JoinHandle<()>>; 4],
    inbound: [InboundLane; 4],
    /// The readers on each connection.
    readers: BTreeMap<ConnectionId, Vec<AbortHandle>>, // ≤ limits.lanes_per_peer, by the swarm
}

impl Peer {
    pub(super) fn new(me: PeerId, peer: PeerId, limits: &Limits) -> Self {
        Self {
            link: Link::new(me, peer, limits, rand::random()),
            facts: None,
            is_stale: false,
            is_away: false,
            answered: Vec::new(),
            outbound: [const { None }; 4],
            inbound: std::array::from_fn(|_| InboundLane::new()),
            readers: BTreeMap::new(),
        }
    }

    pub(super) fn incarnation(&self) -> Option<ReplicaId> {
        self.facts.as_ref().map(|facts| facts.incarnation)
    }

    /// Which life of it a lane is to be opened to; `None`: whichever answers.
    pub(super) fn meant(&self) -> Option<ReplicaId> {
        self.incarnation().filter(|_| !self.is_stale)
    }

    /// The life that is known is over, says the peer.
    pub(super) const fn contact_anew(&mut self) {
        self.is_stale = true;
    }

    /// It answered at this address.
    pub(super) fn answers(&mut self, address: Multiaddr) {
        if self.answered.len() < ADDRESSES_MAX && !self.answered.contains(&address) {
            self.answered.push(address);
        }
    }

    /// Whether it answered at this address, and has not said who it is.
    pub(super) fn awaits(&self, address: &Multiaddr) -> bool {
        self.answered.contains(address)
    }

    /// Where it answered, and which life of it, if that is known and there is anything new.
    pub(super) fn take_answered(&mut self) -> Option<(ReplicaId, Vec<Multiaddr>)> {
        let incarnation = self.meant().filter(|_| !self.is_away)?;
        (!self.answered.is_empty()).then(|| (incarnation, std::mem::take(&mut self.answered)))
    }

    /// Its last connection is gone. Returns the life that is known, if one was admitted.
    pub(super) fn away(&mut self) -> Option<ReplicaId> {
        self.answered.clear();
        self.is_away = true;
        self.incarnation()
    }

    /// Whether it was away until now.
    pub(super) const fn is_back(&mut self) -> bool {
        std::mem::replace(&mut self.is_away, false)
    }

    pub(super) fn inbound(&self, class: Class) -> InboundLane {
        self.inbound[class as usize].clone()
    }

    /// Takes in what the peer says about itself. A new life gets new lanes.
    pub(super) fn meet(&mut self, facts: &Facts) -> Reborn {
        self.is_stale = false;
        let Some(old) = self.facts.replace(facts.clone()) else { return Reborn::First };
        if old.incarnation == facts.incarnation {
            return Reborn::Same;
        }
        self.end();
        self.inbound = std::array::from_fn(|_| InboundLane::new());
        let locked = old.lock.is_some() && old.boot.is_some();
        let is_proof = locked && old.lock == facts.lock && old.boot == facts.boot;
        Reborn::Anew { old: old.incarnation, is_proof }
    }

    /// Notes a reader on a connection.
    pub(super) fn connection_used(&mut self, connection: ConnectionId, reader: AbortHandle) {
        let readers = self.readers.entry(connection).or_default();
        readers.retain(|reader| !reader.is_finished());
        readers.push(reader);
    }

    /// Whether a task still carries, or opens, a lane to it.
    pub(super) fn carries(&self) -> bool {
        self.outbound.iter().flatten().any(|task| !task.is_finished())
    }

    pub(super) fn connection_ended(&mut self, connection: ConnectionId) {
        for reader in self.readers.remove(&connection).unwrap_or_default() {
            reader.abort();
        }
    }

    /// Ends all of its tasks.
    pub(super) fn end(&mut self) {
        for task in self.outbound.iter_mut().filter_map(Option::take) {
            task.abort();
        }
        for reader in std::mem::take(&mut self.readers).into_values().flatten() {
            reader.abort();
        }
    }
}
