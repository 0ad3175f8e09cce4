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
    /// It is a former life: its word was under way while the peer restarted.
    Late,
}

/// What a peer says about itself, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) facts: &'a Facts,
    /// The [rank](crate::net::swarm::Lines::rank) of the connection.
    pub(super) rank: u64,
}

/// Substreams of a lane that ended on a connection which lives on, without one message more.
#[derive(Clone, Copy, Debug, Default)]
struct Strikes {
    /// Where the last one was opened, and what was accepted then.
    last: Option<(ConnectionId, u64)>,
    count: u32,
}

/// See the module's page.
pub(super) struct Peer {
    pub(super) link: Link,
    /// Of the life that is known.
    facts: Option<Facts>,
    /// The rank of the connection on which that life was first heard of.
    met_on: u64,
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
    strikes: [Strikes; 4],
}

impl Peer {
    pub(super) fn new(me: PeerId, peer: PeerId, limits: &Limits) -> Self {
        Self {
            link: Link::new(me, peer, limits, rand::random()),
            facts: None,
            met_on: 0,
            is_stale: false,
            is_away: false,
            answered: Vec::new(),
            outbound: [const { None }; 4],
            inbound: std::array::from_fn(|_| InboundLane::new()),
            readers: BTreeMap::new(),
            strikes: [Strikes::default(); 4],
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
    ///
    /// Incarnations have no order, connections have: a life that speaks on an older connection
    /// than the one that is known spoke before that one began.
    pub(super) fn meet(&mut self, Word { facts, rank }: Word<'_>) -> Reborn {
        let is_other = self.incarnation().is_some_and(|known| known != facts.incarnation);
        if is_other && rank <= self.met_on {
            return Reborn::Late;
        }
        self.is_stale = false;
        let old = self.facts.replace(facts.clone());
        if let Some(old) = &old
            && old.incarnation == facts.incarnation
        {
            return Reborn::Same;
        }
        self.met_on = rank;
        let Some(old) = old else { return Reborn::First };
        self.strikes = [Strikes::default(); 4];
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

    /// A lane is open, on a connection and from a message on; how often in a row that was so on
    /// this very connection, and not a message further.
    pub(super) fn strike(&mut self, class: Class, connection: ConnectionId, accepted: u64) -> u32 {
        let strikes = &mut self.strikes[class as usize];
        let again = strikes.last.replace((connection, accepted)) == Some((connection, accepted));
        strikes.count = if again { strikes.count + 1 } else { 0 };
        strikes.count
    }

    /// Another lane follows: it has broken nothing yet.
    pub(super) fn forgive(&mut self, class: Class) {
        self.strikes[class as usize] = Strikes::default();
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
