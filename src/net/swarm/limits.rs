//! Limits of connections and substreams, and counters of what they refused.
//!
//! The oldest connection goes (docs/protocol/transport.md#the-oldest-connection-goes): libp2p's own
//! limiter is not used, because it refuses the *new* connection of a peer that restarted and keeps
//! the dead one. Without I/O and clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libp2p::PeerId;
use libp2p::swarm::ConnectionId;

use super::handler::PeerSlots;
use super::unfinished_handshakes::{AddressGroup, BusiestGroup};
use crate::net::config::NetLimits;

/// Exceeded limit, or missing entry in the allow-list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Exceeded {
    /// The peer is not in `allowed-peers`.
    #[error("the peer is not in allowed-peers: add it there if it belongs to the cluster")]
    NotAllowed,
    /// Too many unfinished inbound handshakes: one was evicted, or the new one refused.
    #[error(
        "connection limit reached: more than limits.handshakes inbound handshakes are unfinished, \
         the least advanced one of the address with the most is closed. If these are nodes, raise \
         the limit; otherwise block that address"
    )]
    Handshakes,
    /// Too many connections in total.
    #[error("connection limit reached: limits.connections are open, raise it")]
    Connections,
    /// Too many inbound connections without an admitted peer: one was closed, or the new one
    /// refused.
    #[error(
        "connection limit reached: more than limits.unadmitted inbound connections have opened \
         neither a lane nor a client's stream, the oldest one of the address with the most is \
         closed. If these are nodes, raise the limit; otherwise block that address"
    )]
    Unadmitted,
    /// Too many connections with one peer: the oldest was closed, or the new one refused.
    #[error(
        "a peer has more than limits.connections-per-peer connections, its oldest is closed: do \
         two processes run with one identity.key?"
    )]
    ConnectionsPerPeer,
    /// Too many inbound substreams of one peer.
    #[error(
        "a peer opened more lanes than limits.lanes-per-peer: it is another program, or faulty"
    )]
    Lanes,
    /// A client called again before its first call on the connection was answered.
    #[error("a client called again before its first call on this connection was answered")]
    ClientCalls,
}

impl Exceeded {
    /// Name of the setting, as the kind under which the warning is throttled. `ClientCalls` has no
    /// setting.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::NotAllowed => "allowed-peers",
            Self::Handshakes => "handshakes",
            Self::Connections => "connections",
            Self::Unadmitted => "unadmitted",
            Self::ConnectionsPerPeer => "connections-per-peer",
            Self::Lanes => "lanes-per-peer",
            Self::ClientCalls => "clients",
        }
    }
}

/// Number of refusals since the start, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Connections of peers that are not on the allow-list.
    pub not_allowed: u64,
    /// Inbound handshakes that were evicted or refused because too many were unfinished.
    pub handshakes: u64,
    /// Connections beyond the total limit.
    pub connections: u64,
    /// Inbound connections without an admitted peer that were closed or refused because there were
    /// too many.
    pub unadmitted: u64,
    /// Connections beyond a peer's limit: the oldest was closed, or the new one refused.
    pub connections_per_peer: u64,
    /// Substreams beyond a peer's limit.
    pub lanes: u64,
    /// Calls of a client before its first one on that connection was answered, or after the
    /// connection was closed.
    pub clients: u64,
}

/// Table of this node's connections.
#[derive(Debug)]
pub(super) struct Connections {
    limits: NetLimits,
    allowed: BTreeSet<PeerId>,                    // empty: all peers
    open: BTreeMap<ConnectionId, OpenConnection>, // ≤ limits.connections
    peers: BTreeMap<PeerId, PeerConnections>,     // ≤ limits.connections
    established: u64,                             // connections since the start
    refusals: Refusals,
}

/// A connection from its admission until libp2p has closed it.
#[derive(Debug)]
struct OpenConnection {
    peer: PeerId,
    host: Option<IpAddr>, // of an inbound connection's dialler; `None` if dialled or without IP
    rank: u64,            // order in which handshakes finished, from 1
    calls: LimitSlots,    // unanswered calls of a client: ≤ 1
    closing: bool,        // no lane is opened on it; it still counts in `open` and `peers`
}

/// State of a peer that has a connection, removed with the last one.
#[derive(Debug)]
struct PeerConnections {
    connections: BTreeSet<ConnectionId>, // including closing ones
    slots: Arc<PeerSlots>,
    /// Whether a lane or a client's stream was opened on one of them.
    is_admitted: bool,
}

impl Connections {
    pub(super) fn new(limits: &NetLimits, allowed: &[PeerId]) -> Self {
        Self {
            limits: limits.clone(),
            allowed: allowed.iter().copied().collect(),
            open: BTreeMap::new(),
            peers: BTreeMap::new(),
            established: 0,
            refusals: Refusals::default(),
        }
    }

    pub(super) const fn handshake_within(&self) -> Duration {
        self.limits.handshake_within
    }

    /// The refusals counted here. `handshakes` stays 0: the table of unfinished handshakes counts.
    pub(super) const fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// Enters a connection whose peer is authenticated, before any protocol is negotiated, or
    /// refuses it and counts that. Returns the slots that all connections of the peer share.
    ///
    /// Refuses, in this order, closing connections included: a peer outside of the allow-list; any
    /// connection at the total limit; an inbound one of a peer that is not admitted, at *twice*
    /// `unadmitted`; one at *twice* the peer's limit. From the single to the double limit it
    /// enters, because older ones may belong to the peer's former incarnation. The caller must then
    /// close what [`crowded_out`](Self::crowded_out) and `unadmitted_excess` return.
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
        let is_unadmitted = host.is_some() && !self.is_admitted(peer);
        if is_unadmitted && self.unadmitted().count() >= self.limits.unadmitted.saturating_mul(2) {
            return Err(self.count(Exceeded::Unadmitted)); // as many again are closing
        }
        let lanes = self.limits.lanes_per_peer;
        let known = self.peers.get(&peer).map_or(0, |known| known.connections.len());
        if known >= self.limits.connections_per_peer.saturating_mul(2) {
            return Err(self.count(Exceeded::ConnectionsPerPeer));
        }
        self.established += 1;
        let (rank, calls) = (self.established, LimitSlots::new(1));
        self.open.insert(id, OpenConnection { peer, host, rank, calls, closing: false });
        let known = self.peers.entry(peer).or_insert_with(|| PeerConnections {
            connections: BTreeSet::new(),
            slots: Arc::new(PeerSlots {
                inbound: LimitSlots::new(lanes),
                outbound: LimitSlots::new(lanes),
            }),
            is_admitted: false,
        });
        known.connections.insert(id);
        Ok(Arc::clone(&known.slots))
    }

    /// Returns the id of the peer's oldest connection, that is, the one with the lowest rank, not
    /// with the lowest id, if the peer exceeds its limit; counts one refusal per call. Closing
    /// connections are left out. Marks nothing: the caller must [`close`](Self::close) the returned
    /// one. `None` if the peer is within its limit or unknown.
    pub(super) fn crowded_out(&mut self, peer: PeerId) -> Option<ConnectionId> {
        let live = self.peers.get(&peer)?.connections.iter().filter_map(|id| {
            let open = self.open.get(id).filter(|open| !open.closing)?;
            Some((open.rank, *id))
        });
        if live.clone().count() <= self.limits.connections_per_peer {
            return None;
        }
        // The swarm gives out ids when a dial begins, so the lowest id may be that of a slow dial
        // that has reached the restarted peer.
        let (_, oldest) = live.min()?;
        self.count(Exceeded::ConnectionsPerPeer);
        Some(oldest)
    }

    /// Marks the peer as admitted: a lane or a client's stream was opened on this connection. The
    /// mark is valid for all connections of the peer, until the last one is closed. A closing
    /// connection counts. Does nothing if the connection is unknown.
    pub(super) fn admitted(&mut self, id: ConnectionId) {
        let peer = self.open.get(&id).and_then(|open| self.peers.get_mut(&open.peer));
        if let Some(peer) = peer {
            peer.is_admitted = true;
        }
    }

    /// Whether a lane or a client's stream was opened on a connection of the peer, since the peer
    /// last had no connection.
    pub(super) fn is_admitted(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.is_admitted)
    }

    /// Inbound connections of peers that were not admitted, in the order of their ids, including
    /// closing ones.
    fn unadmitted(&self) -> impl Iterator<Item = (ConnectionId, &OpenConnection)> {
        let all = self.open.iter().map(|(id, open)| (*id, open));
        all.filter(|(_, open)| open.host.is_some() && !self.is_admitted(open.peer))
    }

    /// Returns the inbound connection to close if there are more than `limits.unadmitted` of peers
    /// that are not admitted: the one with the lowest rank in the address group with the most of
    /// them (in all such groups, if several have the most), and the number of that group's. It may
    /// be the newest connection. Counts one refusal per call. Closing connections are left out.
    /// Marks nothing: the caller must [`close`](Self::close) the returned one. `None` within the
    /// limit. Without a secret any peer can finish a handshake
    /// (docs/protocol/transport.md#unadmitted-connections-are-bounded).
    pub(super) fn unadmitted_excess(&mut self) -> Option<(ConnectionId, BusiestGroup)> {
        let group = |open: &OpenConnection| open.host.map(AddressGroup::of);
        let mut places = BTreeMap::<_, usize>::new(); // ≤ twice limits.unadmitted
        let live = || self.unadmitted().filter(|(_, open)| !open.closing);
        live().for_each(|(_, open)| *places.entry(group(open)).or_default() += 1);
        if places.values().sum::<usize>() <= self.limits.unadmitted {
            return None;
        }
        let most = places.values().copied().max()?;
        let of_busiest = live().filter(|(_, open)| places[&group(open)] == most);
        let (id, open) = of_busiest.min_by_key(|(_, open)| open.rank)?;
        let busiest = BusiestGroup { address: open.host, places: most };
        self.count(Exceeded::Unadmitted);
        Some((id, busiest))
    }

    /// Marks a connection as closing. Returns its peer, or `None` if it was marked before or is
    /// unknown. It counts towards the limits until [`closed`](Self::closed).
    pub(super) fn close(&mut self, id: ConnectionId) -> Option<PeerId> {
        let open = self.open.get_mut(&id).filter(|open| !open.closing)?;
        open.closing = true;
        Some(open.peer)
    }

    /// Removes a closed connection, whether or not it was marked as closing. With the last one of
    /// its peer, the peer is forgotten: when it connects again it is not admitted, and has new
    /// slots even if substreams still hold old ones. Does nothing if the connection is unknown.
    pub(super) fn closed(&mut self, id: ConnectionId) {
        let Some(OpenConnection { peer, .. }) = self.open.remove(&id) else { return };
        let Some(known) = self.peers.get_mut(&peer) else { return };
        known.connections.remove(&id);
        if known.connections.is_empty() {
            self.peers.remove(&peer);
        }
    }

    /// Takes the slot for a client's call on that connection, until the call is answered, that is,
    /// the slot is dropped. A connection may have one unanswered call, so that all of them are
    /// bounded by the number of connections. A further call is refused and counted, as is one on an
    /// unknown connection; one on a closing connection is not refused for that.
    pub(super) fn call(&mut self, id: ConnectionId) -> Result<LimitSlot, Exceeded> {
        let place = self.open.get(&id).and_then(|open| open.calls.take());
        place.ok_or_else(|| self.count(Exceeded::ClientCalls))
    }

    /// Peer of a connection on which lanes may be opened; `None` if it is closing or unknown.
    pub(super) fn peer_of(&self, id: ConnectionId) -> Option<PeerId> {
        self.open.get(&id).filter(|open| !open.closing).map(|open| open.peer)
    }

    /// Address of a connection's dialler; `None` if this node dialled, the address has no IP
    /// address, or the connection is unknown.
    pub(super) fn host(&self, id: ConnectionId) -> Option<IpAddr> {
        self.open.get(&id).and_then(|open| open.host)
    }

    /// Rank of a connection in the order of establishment, also of a closing one; `None` if it is
    /// unknown.
    pub(super) fn rank(&self, id: ConnectionId) -> Option<u64> {
        self.open.get(&id).map(|open| open.rank)
    }

    /// Counts a refusal, and returns its reason. Not called with
    /// [`Handshakes`](Exceeded::Handshakes), which their own table counts.
    pub(super) const fn count(&mut self, exceeded: Exceeded) -> Exceeded {
        match exceeded {
            Exceeded::NotAllowed => self.refusals.not_allowed += 1,
            Exceeded::Handshakes => self.refusals.handshakes += 1,
            Exceeded::Connections => self.refusals.connections += 1,
            Exceeded::Unadmitted => self.refusals.unadmitted += 1,
            Exceeded::ConnectionsPerPeer => self.refusals.connections_per_peer += 1,
            Exceeded::Lanes => self.refusals.lanes += 1,
            Exceeded::ClientCalls => self.refusals.clients += 1,
        }
        exceeded
    }
}

/// A limited number of slots, from 0. Clones share them. A slot may outlive the last clone.
#[derive(Clone, Debug)]
pub(in crate::net) struct LimitSlots {
    taken: Arc<AtomicUsize>,
    max: usize,
}

/// A slot, released on drop.
#[derive(Debug)]
pub(in crate::net) struct LimitSlot(Arc<AtomicUsize>);

impl LimitSlots {
    pub(in crate::net) fn new(max: usize) -> Self {
        Self { taken: Arc::new(AtomicUsize::new(0)), max }
    }

    /// Takes a slot; `None` if all are taken.
    pub(in crate::net) fn take(&self) -> Option<LimitSlot> {
        let room = |taken| (taken < self.max).then(|| taken + 1);
        let taken = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.is_ok().then(|| LimitSlot(Arc::clone(&self.taken)))
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }

    pub(in crate::net) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for LimitSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(limits: &NetLimits) -> Connections {
        Connections::new(limits, &[])
    }

    fn id(number: usize) -> ConnectionId {
        ConnectionId::new_unchecked(number)
    }

    fn host(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn one_call_of_a_connection_waits_for_its_answer() {
        let mut all = connections(&NetLimits::default());
        for number in 1..=2 {
            all.admit(id(number), PeerId::random(), host(1)).expect("within the limit");
        }
        let first = all.call(id(1)).expect("the first");
        assert_eq!(all.call(id(1)).err(), Some(Exceeded::ClientCalls));
        assert!(all.call(id(2)).is_ok(), "another connection");
        drop(first);
        assert!(all.call(id(1)).is_ok(), "the first was answered");
        assert_eq!(all.refusals().clients, 1);
    }

    /// Admits a connection of a new peer like the swarm does, and removes the excess at once.
    fn establish(all: &mut Connections, number: usize, host: Option<IpAddr>) -> PeerId {
        let peer = PeerId::random();
        all.admit(id(number), peer, host).expect("within the limit");
        if let Some((excess, _)) = all.unadmitted_excess() {
            all.close(excess);
            all.closed(excess);
        }
        peer
    }

    #[test]
    fn unadmitted_connections_of_the_busiest_address_are_closed() {
        let mut all = connections(&NetLimits { unadmitted: 4, ..NetLimits::default() });
        establish(&mut all, 1, host(1));
        (2..100).for_each(|number| _ = establish(&mut all, number, host(2)));
        let open: Vec<_> = all.open.keys().copied().collect();
        assert_eq!(open, [1, 97, 98, 99].map(id), "the oldest of host 2 were closed");
        assert_eq!(all.refusals().unadmitted, 95);
    }

    #[test]
    fn admitted_and_dialled_connections_are_never_unadmitted() {
        let mut all = connections(&NetLimits { unadmitted: 2, ..NetLimits::default() });
        for number in 1..=10 {
            establish(&mut all, number, host(1));
            all.admitted(id(number));
        }
        (11..=20).for_each(|number| _ = establish(&mut all, number, None));
        (21..=30).for_each(|number| _ = establish(&mut all, number, host(1)));
        assert_eq!(all.open.len(), 22);
        assert!((1..=20).all(|number| all.peer_of(id(number)).is_some()));
    }

    #[test]
    fn unadmitted_connections_that_never_finish_closing_are_bounded() {
        let mut all = connections(&NetLimits { unadmitted: 2, ..NetLimits::default() });
        let admitted = (1..=20).filter(|&number| {
            let admitted = all.admit(id(number), PeerId::random(), host(1)).is_ok();
            if let Some((excess, _)) = all.unadmitted_excess() {
                all.close(excess);
            }
            admitted
        });
        assert_eq!(admitted.count(), 4);
    }

    #[test]
    fn restarted_peer_replaces_its_oldest_connection() {
        let mut all = connections(&NetLimits { connections_per_peer: 2, ..NetLimits::default() });
        let peer = PeerId::random();
        for number in 1..=2 {
            all.admit(id(number), peer, None).expect("within the limit");
            assert_eq!(all.crowded_out(peer), None);
        }
        all.admit(id(3), peer, None).expect("may be a new incarnation of the peer");
        assert_eq!(all.crowded_out(peer), Some(id(1)));
        assert_eq!(all.close(id(1)), Some(peer));
        assert_eq!(all.close(id(1)), None, "once");
        assert_eq!(all.peer_of(id(1)), None, "no lane is opened on what is being closed");
        assert_eq!(all.crowded_out(peer), None);
        all.closed(id(1));
        assert_eq!(all.refusals().connections_per_peer, 1);
    }

    #[test]
    fn slow_dial_is_newer_than_connections_before_its_end() {
        let mut all = connections(&NetLimits { connections_per_peer: 2, ..NetLimits::default() });
        let peer = PeerId::random();
        for number in [3, 2, 1] {
            assert_eq!(all.crowded_out(peer), None);
            all.admit(id(number), peer, None).expect("within the limit");
        }
        assert_eq!(all.crowded_out(peer), Some(id(3)), "its handshake has ended first");
    }

    #[test]
    fn closing_connections_of_a_peer_are_bounded() {
        let mut all = connections(&NetLimits { connections_per_peer: 2, ..NetLimits::default() });
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
    fn total_connections_are_bounded_and_state_is_freed() {
        let mut all = connections(&NetLimits { connections: 2, ..NetLimits::default() });
        let peers = [PeerId::random(), PeerId::random(), PeerId::random()];
        assert!(all.admit(id(1), peers[0], None).is_ok());
        assert!(all.admit(id(2), peers[1], None).is_ok());
        assert_eq!(all.admit(id(3), peers[2], None).err(), Some(Exceeded::Connections));
        all.closed(id(1));
        all.closed(id(2));
        assert!(all.open.is_empty() && all.peers.is_empty());
    }

    #[test]
    fn allow_list_admits_only_its_peers() {
        let (friend, stranger) = (PeerId::random(), PeerId::random());
        let mut all = Connections::new(&NetLimits::default(), &[friend]);
        assert!(all.admit(id(1), friend, None).is_ok());
        assert_eq!(all.admit(id(2), stranger, None).err(), Some(Exceeded::NotAllowed));
        assert_eq!(all.refusals().not_allowed, 1);
    }

    #[test]
    fn dropped_slot_is_free_again() {
        let slots = LimitSlots::new(1);
        let taken = slots.take().expect("the first");
        assert!(slots.take().is_none());
        drop(taken);
        assert!(slots.take().is_some());
    }
}
