//! Swarm: connections within limits, and the substreams on them.
//!
//! [`LaneBehaviour`] is this node's only libp2p behaviour. It admits connections within the limits,
//! opens substreams on the connection that the caller names, and reports those that peers open. The
//! connection manager decides when to dial, which connection carries lanes, and what a lane sends.

mod acceptor;
mod handler;
mod limits;
mod unfinished_handshakes;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::Instant;

use libp2p::core::transport::PortUse;
use libp2p::core::transport::{ListenerId, TransportError};
use libp2p::core::upgrade::Version;
use libp2p::core::{Endpoint, Transport};
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{
    CloseConnection, ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, NotifyHandler,
    Swarm, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::oneshot;

pub(super) use acceptor::{HandshakeEnd, Observed, find_cause};
pub use handler::{CountedSubstream, Handler, OpenFailed};
pub use limits::{Exceeded, Refusals};
pub(super) use limits::{LimitSlot, LimitSlots};
pub(super) use unfinished_handshakes::AddressGroup;

use super::admission::{self, NetConfigError};
use super::config::NetConfig;
use super::secrets::Keyring;
use super::warning_throttle::{WarningSource, WarningThrottle};
use super::{TrafficClass, address, noise, transport};
use acceptor::{Acceptor, SharedTable, TimeLimits};
use handler::{FromHandler, OpenRequest, Protocol};
use limits::Connections;
use unfinished_handshakes::{BusiestGroup, UnfinishedHandshakes};

/// Creates a swarm that listens on the addresses in `config.listen`. Its secrets are those of
/// `config` for as long as it lives, also if their files change.
///
/// # Errors
/// [`NetStartError`]; no socket listens then.
pub fn swarm(config: &NetConfig, keypair: &Keypair) -> Result<Swarm<LaneBehaviour>, NetStartError> {
    Ok(listening(config, &Keyring::new(config.secret.clone()), keypair)?.0)
}

/// Like [`swarm`], with the secrets of `keyring` instead of those of `config`, and returns the
/// listeners in the order of `config.listen`.
///
/// Fails in the order of these steps: checks the settings, checks that no other process listens on
/// one of the addresses ([`check_free`]), makes the key, listens on one address after the other. An
/// address that libp2p's TCP does not support is [`NetStartError::Listen`] of kind `Unsupported`.
pub(super) fn listening(
    config: &NetConfig,
    keyring: &Keyring,
    keypair: &Keypair,
) -> Result<(Swarm<LaneBehaviour>, Vec<ListenerId>), NetStartError> {
    admission::check(config)?;
    admission::check_secret_is_read(config)?;
    for address in &config.listen {
        check_free(address)?;
    }
    let mut swarm = build_swarm(config, keyring, keypair, Protocol::ALL)?;
    let mut listeners = Vec::new(); // ≤ config.listen
    for address in &config.listen {
        let listen = |source| NetStartError::Listen { address: address.clone(), source };
        let listener = swarm.listen_on(address.clone()).map_err(|error| match error {
            TransportError::Other(source) => listen(source),
            TransportError::MultiaddrNotSupported(_) => {
                listen(io::Error::new(io::ErrorKind::Unsupported, "not /ip4|ip6/…/tcp/…"))
            }
        })?;
        listeners.push(listener);
    }
    Ok((swarm, listeners))
}

/// Creates a swarm that only dials, and accepts no substreams: the negotiation of one that a peer
/// opens fails. The settings must have been checked.
/// The secrets of `config` stay in use, also if their files change.
pub(super) fn of_client(
    config: &NetConfig,
    keypair: &Keypair,
) -> Result<Swarm<LaneBehaviour>, noise::NoiseError> {
    build_swarm(config, &Keyring::new(config.secret.clone()), keypair, &[])
}

/// Builds a swarm that does not listen yet. `takes` are the protocols whose substreams peers may
/// open. Checks nothing. A connection without substreams is closed after `limits.idle_timeout`.
fn build_swarm(
    config: &NetConfig,
    keyring: &Keyring,
    keypair: &Keypair,
    takes: &'static [Protocol],
) -> Result<Swarm<LaneBehaviour>, noise::NoiseError> {
    let limits = &config.limits;
    let unfinished = SharedTable::new(UnfinishedHandshakes::new(limits.handshakes).into());
    let transport = transport::transport(config, keyring, keypair)?;
    let times = TimeLimits {
        first_message: limits.first_message_within,
        handshake: limits.handshake_within,
    };
    let acceptor = Acceptor::new(transport, unfinished.clone(), times);
    let settings = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(limits.idle_timeout)
        .with_max_negotiating_inbound_streams(limits.lanes_per_peer)
        .with_substream_upgrade_protocol_override(Version::V1Lazy);
    let us = keypair.public().to_peer_id();
    Ok(Swarm::new(acceptor.boxed(), LaneBehaviour::new(config, takes, unfinished), us, settings))
}

/// Fails if the address cannot be listened on: [`NetStartError::PortTaken`] if another process
/// does, [`NetStartError::Listen`] otherwise. Addresses with port 0 or without an IP address and
/// TCP port are not checked. Keeps no socket, so another process can still take the port later.
fn check_free(address: &Multiaddr) -> Result<(), NetStartError> {
    let Some(socket) = address::socket_address(address).filter(|socket| socket.port() != 0) else {
        return Ok(());
    };
    transport::check_free(socket).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => NetStartError::PortTaken { address: address.clone() },
        _ => NetStartError::Listen { address: address.clone(), source },
    })
}

/// Options to dial one address from a fresh port, even if the peer is connected or is being
/// dialled. If a peer is given, the dial fails at any other peer; otherwise every peer at the
/// address is accepted. Dials nothing yet.
#[must_use]
pub fn dial(peer: Option<PeerId>, address: Multiaddr) -> DialOpts {
    match peer {
        Some(peer) => DialOpts::peer_id(peer)
            .condition(PeerCondition::Always)
            .addresses(vec![address])
            .allocate_new_port()
            .build(),
        None => DialOpts::unknown_peer_id().address(address).allocate_new_port().build(),
    }
}

/// libp2p behaviour that admits connections within limits and opens substreams on them. `open`,
/// `call` and `close` only queue what the swarm must do, and wake nothing: the caller must poll the
/// swarm afterwards.
#[derive(Debug)]
pub struct LaneBehaviour {
    connections: Connections,
    unfinished: SharedTable,
    warning_throttle: WarningThrottle,
    takes: &'static [Protocol], // protocols whose substreams peers may open
    queue: VecDeque<ToSwarm<BehaviourEvent, OpenRequest>>, // drained at every poll of the swarm
}

/// Event of the behaviour.
#[derive(Debug)]
#[non_exhaustive]
pub enum BehaviourEvent {
    /// A peer has opened a substream for a lane.
    Inbound {
        /// Peer that opened it.
        peer: PeerId,
        /// Connection of the substream.
        connection: ConnectionId,
        /// Class of the lane.
        class: TrafficClass,
        /// The substream, before the handshake.
        stream: CountedSubstream,
    },
    /// A client has opened a substream.
    Client(ClientSubstream),
    /// This side has begun to close a connection, on [`LaneBehaviour::close`] or because of a
    /// limit. The tasks of its lanes must be aborted now, because the swarm's own event may wait
    /// for the peer. Comes once per connection, and not if the peer closes it.
    Closing {
        /// Peer of the connection.
        peer: PeerId,
        /// Connection that is closing.
        connection: ConnectionId,
    },
}

/// A substream that a client has opened, before the handshake.
#[derive(Debug)]
pub struct ClientSubstream {
    pub(super) peer: PeerId,
    pub(super) connection: ConnectionId,
    pub(super) stream: CountedSubstream,
    /// Slot for the one unanswered call of the connection. Until it is dropped, further calls are
    /// refused.
    pub(super) place: LimitSlot,
}

impl LaneBehaviour {
    fn new(config: &NetConfig, takes: &'static [Protocol], unfinished: SharedTable) -> Self {
        Self {
            connections: Connections::new(&config.limits, &config.allowed_peers),
            unfinished,
            warning_throttle: WarningThrottle::default(),
            takes,
            queue: VecDeque::new(),
        }
    }

    /// Opens a substream for a lane on that connection, and sends the result to `reply`:
    /// [`OpenFailed::Closed`] within this call if the connection is closed, closing or unknown, any
    /// other result later. The peer's limit of substreams is checked only when the swarm is polled
    /// ([`OpenFailed::TooMany`]). `reply` is dropped without an answer if the connection closes
    /// meanwhile; if its receiver was dropped, the substream is reset.
    pub fn open(
        &mut self,
        connection: ConnectionId,
        class: TrafficClass,
        reply: oneshot::Sender<Result<CountedSubstream, OpenFailed>>,
    ) {
        self.open_as(Protocol::Lane(class), connection, reply);
    }

    /// Opens a substream for a client, like [`open`](Self::open).
    pub fn call(
        &mut self,
        connection: ConnectionId,
        reply: oneshot::Sender<Result<CountedSubstream, OpenFailed>>,
    ) {
        self.open_as(Protocol::Client, connection, reply);
    }

    /// Opens a substream of that protocol, as [`open`](Self::open) describes.
    fn open_as(
        &mut self,
        protocol: Protocol,
        connection: ConnectionId,
        reply: oneshot::Sender<Result<CountedSubstream, OpenFailed>>,
    ) {
        let Some(peer_id) = self.connections.peer_of(connection) else {
            let _ = reply.send(Err(OpenFailed::Closed)); // an error: the caller has gone
            return;
        };
        self.queue.push_back(ToSwarm::NotifyHandler {
            peer_id,
            handler: NotifyHandler::One(connection),
            event: OpenRequest { protocol, reply },
        });
    }

    /// Closes that connection; does nothing if it is closed, closing or unknown. From now on it is
    /// not [open](Self::is_open), but counts within the limits until libp2p has closed it.
    /// [`BehaviourEvent::Closing`] follows when the swarm is polled, the swarm's own event only
    /// when the peer has accepted the go-away.
    pub fn close(&mut self, connection: ConnectionId) {
        if let Some(peer) = self.connections.close(connection) {
            self.queue.push_back(ToSwarm::CloseConnection {
                peer_id: peer,
                connection: CloseConnection::One(connection),
            });
            self.queue
                .push_back(ToSwarm::GenerateEvent(BehaviourEvent::Closing { peer, connection }));
        }
    }

    /// Whether lanes may use that connection: it is neither closed, closing nor unknown.
    #[must_use]
    pub fn is_open(&self, connection: ConnectionId) -> bool {
        self.connections.peer_of(connection).is_some()
    }

    /// Rank of that connection in the order in which handshakes finished. Connections with an
    /// earlier incarnation of a peer have lower ranks than those with a later one. `None` if it is
    /// closed; a closing one still has a rank.
    #[must_use]
    pub fn rank(&self, connection: ConnectionId) -> Option<u64> {
        self.connections.rank(connection)
    }

    /// Marks the peer of that connection as admitted, because a client was admitted on it. The mark
    /// is valid for all connections of the peer, until the last one is closed. Does nothing if the
    /// connection is closed; a closing one counts.
    pub fn client_admitted(&mut self, connection: ConnectionId) {
        self.connections.admitted(connection);
    }

    /// Marks the peer of that connection as admitted, like
    /// [`client_admitted`](Self::client_admitted), because a node was admitted on it. Also
    /// [adds](Self::add_known_address) the address from which the peer connected; none if this node
    /// dialled, because every dial adds its own.
    pub fn node_admitted(&mut self, connection: ConnectionId) {
        self.connections.admitted(connection);
        if let Some(address) = self.connections.host(connection) {
            self.add_known_address(address);
        }
    }

    /// Adds the address of a member or a seed, for which slots for unfinished handshakes are
    /// reserved; for IPv6 its /64 network. Beyond the maximum number of such addresses, the one
    /// that was added longest ago is removed; adding a present one again renews it.
    pub fn add_known_address(&mut self, address: IpAddr) {
        self.unfinished.lock().add_known(address);
    }

    /// Refusals since the start, by reason; also connections closed because of a limit, and evicted
    /// handshakes.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        let handshakes = self.unfinished.lock().evicted();
        Refusals { handshakes, ..self.connections.refusals() }
    }

    /// Number of inbound connections with an unfinished handshake, at most `limits.handshakes`.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.unfinished.lock().count()
    }

    /// Admits a connection whose handshake has finished, or refuses it, counts and logs the reason
    /// and lets libp2p close it. Refuses, in this order, a peer outside `allowed-peers`, any
    /// connection beyond the total limit, and only beyond twice the limit an inbound one of a peer
    /// that is not admitted and one of the same peer: [`close_excess`](Self::close_excess) closes
    /// older ones before. `host` is the address of the dialler, `None` if this node dialled.
    fn established(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        host: Option<IpAddr>,
    ) -> Result<Handler, ConnectionDenied> {
        match self.connections.admit(id, peer, host) {
            Ok(slots) => Ok(Handler::new(slots, self.connections.handshake_within(), self.takes)),
            Err(exceeded) => {
                self.complain(Some(peer), exceeded, host.map(BusiestGroup::one));
                Err(ConnectionDenied::new(exceeded))
            }
        }
    }

    /// Logs an exceeded limit at WARN, throttled by peer and limit; all peers that are not named
    /// (`None`) share one source. Invented peer ids cannot silence warnings about an admitted peer.
    /// Does not count: [`Connections`] does. `from` names the address and its number of
    /// connections.
    fn complain(&mut self, peer: Option<PeerId>, exceeded: Exceeded, from: Option<BusiestGroup>) {
        let source = match peer {
            Some(peer) if self.connections.is_admitted(peer) => WarningSource::Known(peer),
            peer => peer.into(),
        };
        if self.warning_throttle.due(Instant::now(), source, exceeded.name()) {
            let peer = peer.map(tracing::field::display);
            let address = from.and_then(|from| from.address).map(tracing::field::display);
            let connections = from.map(|from| from.places);
            tracing::warn!(peer, address, connections, %exceeded, "net.limit_exceeded");
        }
    }

    /// Closes the connections that exceed the limits after one more was established: at most the
    /// oldest one of that peer, then at most one inbound connection of a peer that is not admitted:
    /// the oldest of the address with the most of them, which may be another peer's or the new one.
    /// Each is counted and logged.
    fn close_excess(&mut self, peer: PeerId, address: Option<IpAddr>) {
        if let Some(oldest) = self.connections.crowded_out(peer) {
            let from = address.map(BusiestGroup::one);
            self.complain(Some(peer), Exceeded::ConnectionsPerPeer, from);
            self.close(oldest);
        }
        if let Some((excess, busiest)) = self.connections.unadmitted_excess() {
            self.complain(None, Exceeded::Unadmitted, Some(busiest));
            self.close(excess);
        }
    }
}

impl NetworkBehaviour for LaneBehaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = BehaviourEvent;

    /// Refuses nothing. Logs the eviction or refusal by the acceptor for this connection, if there
    /// was one; the acceptor has counted it.
    fn handle_pending_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        let report = self.unfinished.lock().take_report(); // by the acceptor, about this connection
        if report.is_some() {
            self.complain(None, Exceeded::Handshakes, report);
        }
        Ok(())
    }

    /// Admits or refuses the connection (`established`). One whose remote address has no IP address
    /// counts as outbound.
    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<Handler, ConnectionDenied> {
        self.established(id, peer, address::host(remote))
    }

    /// Admits or refuses the connection (`established`), as one that this node dialled.
    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<Handler, ConnectionDenied> {
        self.established(id, peer, None)
    }

    /// Closes connections beyond the limits once one is established (`close_excess`), and forgets a
    /// closed one; with a peer's last one also that the peer is admitted. Other events are ignored.
    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(new) => {
                let from = address::host(new.endpoint.get_remote_address());
                self.close_excess(new.peer_id, from);
            }
            FromSwarm::ConnectionClosed(closed) => self.connections.closed(closed.connection_id),
            _ => {}
        }
    }

    /// Queues an event for each substream that a peer has opened, also on a closing connection. A
    /// client's substream is reset instead, counted and logged, if an earlier one on the connection
    /// is unanswered; the warning does not name the peer. A substream beyond the peer's limit,
    /// which the handler has reset, is counted and logged. The connection stays open in all cases.
    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: FromHandler,
    ) {
        match event {
            FromHandler::Inbound { protocol: Protocol::Lane(class), stream } => {
                let event = BehaviourEvent::Inbound { peer, connection, class, stream };
                self.queue.push_back(ToSwarm::GenerateEvent(event));
            }
            FromHandler::Inbound { protocol: Protocol::Client, stream } => {
                match self.connections.call(connection) {
                    Ok(place) => {
                        let calling = ClientSubstream { peer, connection, stream, place };
                        self.queue
                            .push_back(ToSwarm::GenerateEvent(BehaviourEvent::Client(calling)));
                    }
                    Err(exceeded) => {
                        let from = self.connections.host(connection).map(BusiestGroup::one);
                        self.complain(None, exceeded, from); // dropping the stream resets it
                    }
                }
            }
            FromHandler::TooMany => {
                self.connections.count(Exceeded::Lanes);
                let from = self.connections.host(connection).map(BusiestGroup::one);
                self.complain(Some(peer), Exceeded::Lanes, from);
            }
        }
    }

    /// Returns the oldest queued output, one per call. Pending registers no waker: libp2p polls the
    /// behaviour whenever it polls the swarm.
    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<BehaviourEvent, OpenRequest>> {
        self.queue.pop_front().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Why the transport did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetStartError {
    /// The settings forbid it.
    #[error(transparent)]
    Config(#[from] NetConfigError),
    /// Another process listens on the port.
    #[error(
        "another process listens on {address} already: stop it (`ss -ltnp` names it), or set \
         another listen address"
    )]
    PortTaken {
        /// Listen address from the settings.
        address: Multiaddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: is it an address of this host, and the port above 1023?")]
    Listen {
        /// Listen address from the settings.
        address: Multiaddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// No thread for connections could be started.
    #[error("no thread for connections could be started: raise the limit of this user or cgroup")]
    Thread(#[source] io::Error),
    /// The key for connections could not be made: the identity cannot sign, or there is no
    /// randomness.
    #[error(transparent)]
    Key(#[from] noise::NoiseError),
}
