//! How many connections and substreams there may be, who may have them, and what was refused.
//!
//! Counted here and not by libp2p's own limiter, which refuses the *new* connection of a peer that
//! restarted and keeps the dead one. Pure: no I/O, no clock. (spec/reference/libp2p.md §3.5)

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

use super::handler::PeerSlots;
use crate::net::config::Limits;

/// The limit that was reached, or the list that a peer is not on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Exceeded {
    /// Not in `allowed-peers`.
    #[error("the peer is not in allowed-peers: add it there if it belongs to the cluster")]
    NotAllowed,
    /// Too many handshakes under way.
    #[error(
        "too many inbound handshakes are under way: who connects and says nothing? If all are \
         nodes, raise limits.handshakes"
    )]
    Handshakes,
    /// Too many connections in all.
    #[error("there are as many connections as limits.connections allows: raise it")]
    Connections,
    /// Too many connections with one peer.
    #[error(
        "a peer has more than limits.connections-per-peer connections, its oldest is closed: do \
         two processes run with one identity.key?"
    )]
    ConnectionsPerPeer,
    /// Too many inbound substreams of one peer.
    #[error("a peer opens more lanes than limits.lanes-per-peer: it is of another make, or broken")]
    Lanes,
    /// Too many clients that have not said who they are.
    #[error(
        "more clients than limits.handshakes have connected and not said hello: who connects and \
         says nothing?"
    )]
    Clients,
}

impl Exceeded {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "allowed-peers",
            Self::Handshakes => "handshakes",
            Self::Connections => "connections",
            Self::ConnectionsPerPeer => "connections-per-peer",
            Self::Lanes => "lanes-per-peer",
            Self::Clients => "clients",
        }
    }
}

/// What was refused so far, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Connections of peers that are not in the list.
    pub not_allowed: u64,
    /// Connections that came while too many handshakes were under way.
    pub handshakes: u64,
    /// Connections beyond the limit in all.
    pub connections: u64,
    /// Connections beyond a peer's limit: the oldest was closed, or the new one refused.
    pub connections_per_peer: u64,
    /// Substreams beyond a peer's limit.
    pub lanes: u64,
    /// Clients that came while too many others had not said hello.
    pub clients: u64,
}

/// All connections of this node.
#[derive(Debug)]
pub(super) struct Connections {
    limits: Limits,
    allowed: BTreeSet<PeerId>,                         // empty: everybody
    beginning: BTreeMap<ConnectionId, Option<IpAddr>>, // ≤ limits.handshakes
    open: BTreeMap<ConnectionId, Open>,                // ≤ limits.connections
    peers: BTreeMap<PeerId, Peer>,                     // ≤ limits.connections
    calls: Slots, // of clients, not answered yet: ≤ limits.handshakes
    calls_by_host: BTreeMap<IpAddr, Slots>, // ≤ limits.handshakes, and those that have just gone
    admitted: u64, // connections, ever
    refusals: Refusals,
}

#[derive(Debug)]
struct Open {
    peer: PeerId,
    host: Option<IpAddr>, // of who dialled
    rank: u64,
    closing: bool,
}

#[derive(Debug)]
struct Peer {
    connections: BTreeSet<ConnectionId>, // those being closed, too; ids grow with time
    slots: Arc<PeerSlots>,
}

impl Connections {
    pub(super) fn new(limits: &Limits, allowed: &[PeerId]) -> Self {
        Self {
            limits: limits.clone(),
            allowed: allowed.iter().copied().collect(),
            beginning: BTreeMap::new(),
            open: BTreeMap::new(),
            peers: BTreeMap::new(),
            calls: Slots::new(limits.handshakes),
            calls_by_host: BTreeMap::new(),
            admitted: 0,
            refusals: Refusals::default(),
        }
    }

    pub(super) const fn handshake_within(&self) -> Duration {
        self.limits.handshake_within
    }

    pub(super) const fn refusals(&self) -> Refusals {
        self.refusals
    }

    pub(super) fn handshakes(&self) -> usize {
        self.beginning.len()
    }

    /// An inbound handshake begins. One host gets half of the places at most, so that it cannot
    /// shut out the others by itself.
    pub(super) fn begin(&mut self, id: ConnectionId, host: Option<IpAddr>) -> Result<(), Exceeded> {
        let of_host = self.beginning.values().filter(|&&other| other == host).count();
        let share = self.share();
        if self.beginning.len() >= self.limits.handshakes || of_host >= share {
            return Err(self.count(Exceeded::Handshakes));
        }
        self.beginning.insert(id, host);
        Ok(())
    }

    /// How many of the places in the door one host may have.
    const fn share(&self) -> usize {
        self.limits.handshakes.div_ceil(2)
    }

    /// An inbound handshake is over, well or badly; says from where it came.
    pub(super) fn end(&mut self, id: ConnectionId) -> Option<IpAddr> {
        self.beginning.remove(&id).flatten()
    }

    /// Judges a connection whose peer is known, before any protocol is negotiated.
    ///
    /// A peer's connection beyond its limit is admitted, since the old ones may be those of its
    /// last life; [`crowded_out`](Self::crowded_out) then names the one to close. Only a peer that
    /// has as many again in closing is refused.
    pub(super) fn admit(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        host: Option<IpAddr>,
    ) -> Result<Arc<PeerSlots>, Exceeded> {
        if !self.allowed.is_empty() && !self.allowed.contains(&peer) {
            return Err(self.count(Exceeded::NotAllowed));
        }
        if self.open.len() >= self.limits.connections {
            return Err(self.count(Exceeded::Connections));
        }
        let lanes = self.limits.lanes_per_peer;
        let known = self.peers.get(&peer).map_or(0, |known| known.connections.len());
        if known >= self.limits.connections_per_peer.saturating_mul(2) {
            return Err(self.count(Exceeded::ConnectionsPerPeer));
        }
        self.admitted += 1;
        self.open.insert(id, Open { peer, host, rank: self.admitted, closing: false });
        let known = self.peers.entry(peer).or_insert_with(|| Peer {
            connections: BTreeSet::new(),
            slots: Arc::new(PeerSlots { inbound: Slots::new(lanes), outbound: Slots::new(lanes) }),
        });
        known.connections.insert(id);
        Ok(Arc::clone(&known.slots))
    }

    /// The peer's oldest connection, if it has more than it may.
    pub(super) fn crowded_out(&mut self, peer: PeerId) -> Option<ConnectionId> {
        let mut live = self
            .peers
            .get(&peer)?
            .connections
            .iter()
            .copied()
            .filter(|id| self.open.get(id).is_some_and(|open| !open.closing));
        let oldest = live.next()?;
        if live.count() < self.limits.connections_per_peer {
            return None;
        }
        self.count(Exceeded::ConnectionsPerPeer);
        Some(oldest)
    }

    /// Marks a connection as being closed by us; its peer, unless that was so already.
    pub(super) fn close(&mut self, id: ConnectionId) -> Option<PeerId> {
        let open = self.open.get_mut(&id).filter(|open| !open.closing)?;
        open.closing = true;
        Some(open.peer)
    }

    /// A connection is gone.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        let Some(Open { peer, .. }) = self.open.remove(&id) else { return };
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.connections.remove(&id);
        if known.connections.is_empty() {
            self.peers.remove(&peer);
        }
    }

    /// A client calls on that connection; the place is its until it is let in, or not. One host
    /// gets half of the places at most.
    pub(super) fn call(&mut self, id: ConnectionId) -> Result<Place, Exceeded> {
        self.calls_by_host.retain(|_, calls| calls.taken() > 0);
        let share = self.share();
        let of_host = match self.open.get(&id).and_then(|open| open.host) {
            Some(host) => {
                let calls = self.calls_by_host.entry(host).or_insert_with(|| Slots::new(share));
                Some(calls.take().ok_or_else(|| self.count(Exceeded::Clients))?)
            }
            None => None, // we dialled: no stranger
        };
        let of_all = self.calls.take().ok_or_else(|| self.count(Exceeded::Clients))?;
        Ok(Place { _of_host: of_host, _of_all: of_all })
    }

    /// The peer of a connection that lanes may be opened on.
    pub(super) fn peer_of(&self, id: ConnectionId) -> Option<PeerId> {
        self.open.get(&id).filter(|open| !open.closing).map(|open| open.peer)
    }

    /// Which connection it was, counted in the order of their establishment.
    pub(super) fn rank(&self, id: ConnectionId) -> Option<u64> {
        self.open.get(&id).map(|open| open.rank)
    }

    pub(super) const fn count(&mut self, exceeded: Exceeded) -> Exceeded {
        match exceeded {
            Exceeded::NotAllowed => self.refusals.not_allowed += 1,
            Exceeded::Handshakes => self.refusals.handshakes += 1,
            Exceeded::Connections => self.refusals.connections += 1,
            Exceeded::ConnectionsPerPeer => self.refusals.connections_per_peer += 1,
            Exceeded::Lanes => self.refusals.lanes += 1,
            Exceeded::Clients => self.refusals.clients += 1,
        }
        exceeded
    }
}

/// A number of places, given out one by one. A clone gives out the same ones.
#[derive(Clone, Debug)]
pub(in crate::net) struct Slots {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// A place, free again when this is dropped.
#[derive(Debug)]
pub(in crate::net) struct Slot(Arc<AtomicUsize>);

/// The places that a client's call takes.
#[derive(Debug)]
pub(in crate::net) struct Place {
    _of_host: Option<Slot>,
    _of_all: Slot,
}

impl Slots {
    pub(in crate::net) fn new(max: usize) -> Self {
        Self { taken: Arc::new(AtomicUsize::new(0)), max }
    }

    pub(in crate::net) fn take(&self) -> Option<Slot> {
        let room = |taken| (taken < self.max).then(|| taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.is_ok().then(|| Slot(Arc::clone(&self.taken)))
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }

    pub(in crate::net) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(limits: &Limits) -> Connections {
        Connections::new(limits, &[])
    }

    fn id(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    fn host(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn one_host_gets_half_of_the_handshakes_and_all_hosts_together_get_all() {
        let mut all = connections(&Limits { handshakes: 4, ..Limits::default() });
        assert_eq!(all.begin(id(1), host(1)), Ok(()));
        assert_eq!(all.begin(id(2), host(1)), Ok(()));
        assert_eq!(all.begin(id(3), host(1)), Err(Exceeded::Handshakes));
        assert_eq!(all.begin(id(4), host(2)), Ok(()));
        assert_eq!(all.begin(id(5), host(3)), Ok(()));
        assert_eq!(all.begin(id(6), host(4)), Err(Exceeded::Handshakes));
        all.end(id(1));
        assert_eq!(all.begin(id(7), host(1)), Ok(()));
        assert_eq!((all.handshakes(), all.refusals().handshakes), (4, 2));
    }

    #[test]
    fn one_host_gets_half_of_the_calls_that_wait_for_an_answer() {
        let mut all = connections(&Limits { handshakes: 4, ..Limits::default() });
        for number in 1..=6 {
            let from = host(u8::try_from(number).expect("few").div_ceil(3)); // two hosts
            all.admit(id(number), PeerId::random(), from).expect("within the limit");
        }
        let first = [1, 2].map(|number| all.call(id(number)).expect("half of them"));
        assert_eq!(all.call(id(3)).err(), Some(Exceeded::Clients));
        assert_eq!(all.call(id(1)).err(), Some(Exceeded::Clients), "whichever connection");
        let others = [4, 5].map(|number| all.call(id(number)).expect("the other half"));
        assert_eq!(all.call(id(6)).err(), Some(Exceeded::Clients));
        drop(first);
        let again = all.call(id(3)).expect("two were answered");
        assert_eq!((all.refusals().clients, all.calls_by_host.len()), (3, 2));
        drop((others, again));
        assert!(all.call(id(4)).is_ok() && all.calls_by_host.len() == 1);
    }

    #[test]
    fn a_peer_that_restarted_gets_in_and_its_oldest_connection_goes() {
        let mut all = connections(&Limits { connections_per_peer: 2, ..Limits::default() });
        let peer = PeerId::random();
        for number in 1..=2 {
            all.admit(id(number), peer, None).expect("within the limit");
            assert_eq!(all.crowded_out(peer), None);
        }
        all.admit(id(3), peer, None).expect("may be a new life of the peer");
        assert_eq!(all.crowded_out(peer), Some(id(1)));
        assert_eq!(all.close(id(1)), Some(peer));
        assert_eq!(all.close(id(1)), None, "once");
        assert_eq!(all.peer_of(id(1)), None, "no lane is opened on what is being closed");
        assert_eq!(all.crowded_out(peer), None);
        all.closed(id(1));
        assert_eq!(all.refusals().connections_per_peer, 1);
    }

    #[test]
    fn a_peer_that_never_takes_the_goodbye_cannot_pile_up_closing_connections() {
        let mut all = connections(&Limits { connections_per_peer: 2, ..Limits::default() });
        let peer = PeerId::random();
        let admitted = (1..=100).filter(|&number| {
            let admitted = all.admit(id(number), peer, None).is_ok();
            if let Some(oldest) = all.crowded_out(peer) {
                assert_eq!(all.close(oldest), Some(peer));
            }
            admitted
        });
        assert_eq!(admitted.count(), 4);
        all.closed(id(1));
        assert!(all.admit(id(101), peer, None).is_ok());
    }

    #[test]
    fn connections_in_all_are_bounded_and_nothing_of_a_gone_peer_is_kept() {
        let mut all = connections(&Limits { connections: 2, ..Limits::default() });
        let peers = [PeerId::random(), PeerId::random(), PeerId::random()];
        assert!(all.admit(id(1), peers[0], None).is_ok());
        assert!(all.admit(id(2), peers[1], None).is_ok());
        assert_eq!(all.admit(id(3), peers[2], None).err(), Some(Exceeded::Connections));
        all.closed(id(1));
        all.closed(id(2));
        assert!(all.open.is_empty() && all.peers.is_empty());
    }

    #[test]
    fn a_list_admits_only_those_on_it() {
        let (friend, stranger) = (PeerId::random(), PeerId::random());
        let mut all = Connections::new(&Limits::default(), &[friend]);
        assert!(all.admit(id(1), friend, None).is_ok());
        assert_eq!(all.admit(id(2), stranger, None).err(), Some(Exceeded::NotAllowed));
        assert_eq!(all.refusals().not_allowed, 1);
    }

    #[test]
    fn a_place_is_free_again_when_its_line_is_dropped() {
        let slots = Slots::new(1);
        let taken = slots.take().expect("the first");
        assert!(slots.take().is_none());
        drop(taken);
        assert!(slots.take().is_some());
    }
}
