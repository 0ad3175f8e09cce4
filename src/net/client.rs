//! Clients: processes that call a running node over the network without joining the cluster.
//!
//! A client connects like a node, with the same encryption and private network, and proves a
//! secret. But it negotiates a protocol of its own ([`CLIENT_PROTOCOL`]) and its proofs carry
//! labels of their own, so that none of its messages can open a lane. The node keeps only the
//! client's stream: a client has no incarnation and no lanes, and membership does not know it.
//! After the handshake both ends hold a [`ClientStream`], a plain duplex stream.
//!
//! | client | node |
//! |---|---|
//! | [`connect`] calls | [`Net::clients`](super::handle::Net::clients) yields admitted streams |
//! | ends when the stream is dropped | ends with its connection, or with the node |
//!
//! [`CLIENT_PROTOCOL`]: super::CLIENT_PROTOCOL

mod stream;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use libp2p::core::upgrade::NegotiationError;
use libp2p::swarm::{ConnectionId, DialError, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

pub use self::stream::ClientStream;
pub(super) use self::stream::{HeldResource, StreamEndGuard};
use super::address::{self, ResolveError};
use super::admission::{self, AdmissionState, NetConfigError};
use super::config::{NetConfig, SecretError};
use super::handshake::{self, HandshakeError};
use super::handshake_failure::HandshakeFailure;
use super::identity::{Identity, IdentityError};
use super::noise;
use super::secrets::Secrets;
use super::swarm::{self, LaneBehaviour, OpenFailed};
use super::wire::LaneRefusal;

/// How long the connection may take to close after the stream was dropped. Then its socket is
/// closed without the go-away of the peer.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Timeout of the TCP probe that finds out whether a process listens at all. It is a further
/// connection, which only follows a failure and is closed without a byte.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// Calls the node at `address` as a client, with an ephemeral identity.
///
/// Cluster name, secret, private network, allow-list and limits are taken from `config`; the client
/// does not listen and stores nothing in the data directory. Must be called in a tokio runtime,
/// which must keep running while the stream is used. `within` includes the lookup of a name, whose
/// addresses are tried in order until one admits the client; each has an equal share of the
/// remaining time. Warnings about files of secrets are not returned.
///
/// # Errors
/// [`ConnectError`], whose text names the cause and the remedy; for a name, that of its last
/// address. First come, without a connection: `Identity`, `Secret`, `Config`, `Unresolved`. The
/// node has received only the messages of the opening handshake. After a timeout the call takes up
/// to one second longer, to find out whether a process listens.
pub async fn connect(
    config: &NetConfig,
    address: &Multiaddr,
    within: Duration,
) -> Result<ClientStream, ConnectError> {
    connect_as(&Identity::load(None)?, config, address, within).await
}

/// Like [`connect`], with an identity that is on the node's allow-list. It must not be the identity
/// of a node, because a peer that is known as a node is not admitted as a client
/// ([`LaneRefusal::Twin`]). Proves the first of the clients' secrets if there is one, otherwise of
/// the cluster's; no other one is tried.
///
/// # Errors
/// [`ConnectError`], as for [`connect`].
pub async fn connect_as(
    identity: &Identity,
    config: &NetConfig,
    address: &Multiaddr,
    within: Duration,
) -> Result<ClientStream, ConnectError> {
    let mut config = NetConfig { listen: Vec::new(), ..config.clone() };
    config.read_secret()?;
    admission::check(&config)?;
    config.secret = config.secret.map(Secrets::of_client);
    let begun = Instant::now();
    match tokio::time::timeout(within, address::resolve(address)).await {
        Ok(resolved) => call_any(identity, &config, &resolved?, begun, within).await,
        Err(_) => Err(no_answer(address, within).await),
    }
}

/// Calls these addresses in order until one admits the client; `within` counts from `begun`. Each
/// has an equal share of the time that is left, so that a silent one leaves time for the others.
/// Any error leads to the next address, also a refusal. Fails as the last one; if that was silent,
/// as [`no_answer`] with an equal share of `within`, after a probe. Panics without an address.
async fn call_any(
    identity: &Identity,
    config: &NetConfig,
    addresses: &[Multiaddr],
    begun: Instant,
    within: Duration,
) -> Result<ClientStream, ConnectError> {
    let count = |addresses: &[Multiaddr]| u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let (mut untried, mut last) = (addresses, None);
    while let Some((address, rest)) = untried.split_first() {
        let share = within.saturating_sub(begun.elapsed()) / count(untried);
        last = match tokio::time::timeout(share, call(identity, config, address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => Some(Ok(error)),
            Err(_) => Some(Err(address)), // it was silent
        };
        untried = rest;
    }
    match last.expect("a name without addresses does not resolve") {
        Ok(error) => Err(error),
        Err(silent) => Err(no_answer(silent, within / count(addresses)).await),
    }
}

/// Classifies a timeout: [`ConnectError::Silent`] if a TCP probe connects within one second, or
/// `within` if that is shorter; otherwise [`ConnectError::NoAnswer`], also if the probe is refused,
/// and for a name, which is not probed. The kernel completes connections also for a process that is
/// stopped.
async fn no_answer(address: &Multiaddr, within: Duration) -> ConnectError {
    let address = address.clone();
    let connects = async { TcpStream::connect(address::socket_address(&address)?).await.ok() };
    let probe = tokio::time::timeout(PROBE_WITHIN.min(within), connects).await;
    match probe {
        Ok(Some(_)) => ConnectError::Silent { address, within },
        _ => ConnectError::NoAnswer { address, within },
    }
}

/// Calls the node at one address, which is not a name: dials, opens a substream, and proves the
/// secret. On success a task keeps the connection until the stream is dropped; on failure, and if
/// the future is dropped, it is closed. Each of the three steps is limited to
/// `limits.handshake_within` by the swarm or the handshake.
async fn call(
    identity: &Identity,
    config: &NetConfig,
    address: &Multiaddr,
) -> Result<ClientStream, ConnectError> {
    let mut swarm = swarm::of_client(config, identity.keypair())?;
    let (node, connection) = dial(&mut swarm, address).await?;
    let (reply, line) = oneshot::channel();
    swarm.behaviour_mut().call(connection, reply);
    let us = AdmissionState::new(config, identity, &[]);
    let within = config.limits.handshake_within;
    let admission = async {
        let mut line = line.await.unwrap_or(Err(OpenFailed::Closed))?;
        handshake::call(&mut line, &us, node, within).await?;
        Ok(line)
    };
    let line = while_driving(&mut swarm, admission)
        .await
        .map_err(|why: NotAdmitted| why.at(address, us.peer, within))?;
    let (in_use, dropped) = oneshot::channel();
    let held = HeldResource::Connection { _in_use: in_use };
    let (stream, ends) = ClientStream::new(line, node, config.limits.control_undrained_max, held);
    tokio::spawn(keep(swarm, connection, dropped, ends));
    Ok(stream)
}

/// Dials one address and waits until the encrypted connection is established, without a limit of
/// its own. Any peer is taken that the client's allow-list allows, unless the address ends with a
/// peer id. Fails as [`not_connected`].
async fn dial(
    swarm: &mut Swarm<LaneBehaviour>,
    address: &Multiaddr,
) -> Result<(PeerId, ConnectionId), ConnectError> {
    let error = match swarm.dial(swarm::dial(None, address.clone())) {
        Err(error) => error,
        Ok(()) => loop {
            match swarm.select_next_some().await {
                SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                    return Ok((peer_id, connection_id));
                }
                SwarmEvent::OutgoingConnectionError { error, .. } => break error,
                _ => {}
            }
        },
    };
    Err(not_connected(address.clone(), error).await)
}

/// Classifies a failed dial. Another peer, this client's own identity and a peer outside of its
/// allow-list are told by the error alone. Any other error is followed by a TCP probe of at most
/// one second: a refused probe means `NobodyListens`, a silent one `NoAnswer`; if it connects, the
/// result is `Silent` after a timeout of the handshake, `Closed` if the node closed the connection,
/// and otherwise `Handshake`.
async fn not_connected(address: Multiaddr, error: DialError) -> ConnectError {
    match error {
        DialError::WrongPeerId { obtained, .. } => {
            return ConnectError::AnotherPeer { address, found: obtained };
        }
        DialError::LocalPeerId { .. } => return ConnectError::OwnIdentity { address },
        DialError::Denied { .. } => return ConnectError::NotInOwnList { address },
        _ => {}
    }
    let failure = HandshakeFailure::of_dial(&error);
    // The transport's error does not tell whether a process listens there, so probe with a new
    // connection.
    let listens = async { TcpStream::connect(address::socket_address(&address)?).await.err() };
    match (failure, tokio::time::timeout(PROBE_WITHIN, listens).await) {
        (_, Ok(Some(source))) => ConnectError::NobodyListens { address, source },
        (HandshakeFailure::TimedOut(within), Ok(None)) => ConnectError::Silent { address, within },
        (HandshakeFailure::Closed, Ok(None)) => {
            ConnectError::Closed { address, source: Box::new(error) }
        }
        (_, Ok(None)) => ConnectError::Handshake { address, source: Box::new(error) },
        (_, Err(_)) => ConnectError::NoAnswer { address, within: PROBE_WITHIN },
    }
}

/// Drives the swarm until `work` completes. Ignores all events of the swarm: `work` must fail
/// itself when the connection closes. Sets no time limit.
async fn while_driving<T>(swarm: &mut Swarm<LaneBehaviour>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = swarm.select_next_some() => {} // the work fails when the connection closes
        }
    }
}

/// Drives the connection until the stream is dropped (`dropped` completes), then closes it, for at
/// most [`CLOSE_WITHIN`]. Returns at once if the connection closes first; `ends` is then dropped,
/// which ends the stream.
async fn keep(
    mut swarm: Swarm<LaneBehaviour>,
    connection: ConnectionId,
    mut dropped: oneshot::Receiver<()>,
    ends: StreamEndGuard,
) {
    let is_over = |event: &SwarmEvent<_>| matches!(event, SwarmEvent::ConnectionClosed { .. });
    loop {
        tokio::select! {
            event = swarm.select_next_some() => if is_over(&event) { return },
            _ = &mut dropped => break,
        }
    }
    drop(ends);
    swarm.behaviour_mut().close(connection);
    let closed = async { while !is_over(&swarm.select_next_some().await) {} };
    let _ = tokio::time::timeout(CLOSE_WITHIN, closed).await; // on timeout the socket just closes
}

/// Why no stream was opened although the connection was established.
#[derive(Debug, thiserror::Error)]
enum NotAdmitted {
    #[error(transparent)]
    Open(#[from] OpenFailed),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl NotAdmitted {
    /// Makes the error of the call. A substream that was not opened, or broke without a verdict,
    /// becomes [`ConnectError::Cut`]; one for which the node does not know the protocol
    /// `Unsupported`, a timeout `Silent`, a verdict of the node `Refused`, one of this client
    /// `Unacceptable`, and any other failed handshake `Malformed`. `us` is the client's peer id,
    /// `within` the timeout of the handshake.
    fn at(self, address: &Multiaddr, us: PeerId, within: Duration) -> ConnectError {
        let address = address.clone();
        match self {
            Self::Open(OpenFailed::Unsupported) => ConnectError::Unsupported { address },
            Self::Handshake(HandshakeError::Io(source)) if is_unknown_protocol(&source) => {
                ConnectError::Unsupported { address }
            }
            Self::Open(OpenFailed::TimedOut) | Self::Handshake(HandshakeError::TimedOut { .. }) => {
                ConnectError::Silent { address, within }
            }
            Self::Open(_) | Self::Handshake(HandshakeError::Io(_)) => {
                ConnectError::Cut { address, us }
            }
            Self::Handshake(HandshakeError::Refused(refusal)) => {
                ConnectError::Refused { address, refusal }
            }
            Self::Handshake(HandshakeError::Unacceptable(refusal)) => {
                ConnectError::Unacceptable { address, refusal }
            }
            Self::Handshake(source) => ConnectError::Malformed { address, source },
        }
    }
}

/// Whether the node has rejected the client protocol. Its name is sent together with the first
/// message, so that the rejection arrives as an error of the first read.
fn is_unknown_protocol(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(NegotiationError::Failed))
}

/// Why a client could not connect to a node. The node has learned at most the client's peer id and
/// the messages of its handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The settings forbid it.
    #[error(transparent)]
    Config(#[from] NetConfigError),
    /// The secret could not be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The identity could not be loaded.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The key for connections could not be made: the identity cannot sign, or there is no
    /// randomness.
    #[error(transparent)]
    Key(#[from] noise::NoiseError),
    /// The address could not be resolved.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// No process listens at the address.
    #[error(
        "nobody listens at {address}: is the node running, and is that what its log says after \
         `node.listening`?"
    )]
    NobodyListens {
        /// Address that was dialled.
        address: Multiaddr,
        /// Error of the TCP connection.
        source: io::Error,
    },
    /// Nothing answered in time, neither to the call nor to a TCP probe.
    #[error(
        "no answer from {address} within {within:?}: is it the address of a node of Ostraca, does \
         a firewall drop what is sent there, and do both sides have net.private-network alike?"
    )]
    NoAnswer {
        /// Address that was dialled.
        address: Multiaddr,
        /// How long the client waited, for this address or for the probe.
        within: Duration,
    },
    /// A process accepts connections there but sends nothing.
    #[error(
        "no answer from {address} within {within:?}: a process listens there, but it may be \
         stopped (SIGSTOP, a debugger) or overloaded, have another net.private-network, or be no \
         node of Ostraca"
    )]
    Silent {
        /// Address that was dialled.
        address: Multiaddr,
        /// How long the client waited.
        within: Duration,
    },
    /// The node closed the connection during the encrypted handshake.
    #[error(
        "the node at {address} closed the connection in the encrypted handshake: give this client \
         the cluster-secret-file of that node and set net.private-network as there; or it is at a \
         limit of connections. Its log tells which"
    )]
    Closed {
        /// Address that was dialled.
        address: Multiaddr,
        /// Error of the dial.
        source: Box<DialError>,
    },
    /// A process answers, but the encrypted handshake fails.
    #[error(
        "a process listens at {address}, but the encrypted handshake fails: give this client the \
         cluster-secret-file of that node, or its client-secret-file, set net.private-network as \
         there, and check that it is a node of Ostraca"
    )]
    Handshake {
        /// Address that was dialled.
        address: Multiaddr,
        /// Error of the dial.
        source: Box<DialError>,
    },
    /// The address names another peer than the one that answers.
    #[error("another peer answers at {address}, {found}: remove or correct the /p2p/ part")]
    AnotherPeer {
        /// Address that was dialled.
        address: Multiaddr,
        /// Peer id of the answering peer.
        found: PeerId,
    },
    /// The client uses the same key as the node, so that the connection leads to itself.
    #[error("the client has the identity of the node at {address}: give it another, or none")]
    OwnIdentity {
        /// Address that was dialled.
        address: Multiaddr,
    },
    /// The node is not on the client's own allow-list.
    #[error(
        "the node at {address} is not in this client's net.allowed-peers: add it, or drop them"
    )]
    NotInOwnList {
        /// Address that was dialled.
        address: Multiaddr,
    },
    /// The node closed the connection or the substream before its verdict.
    #[error(
        "the node at {address} closed the connection before it sent anything: if it has \
         net.allowed-peers, call with an identity and add its peer id there (this one is {us}); \
         otherwise it is at a limit of connections. Its log tells which"
    )]
    Cut {
        /// Address that was dialled.
        address: Multiaddr,
        /// Peer id of this client.
        us: PeerId,
    },
    /// The node does not support the client protocol.
    #[error(
        "the node at {address} does not speak {protocol}: upgrade it to a release that takes \
         clients",
        protocol = super::CLIENT_PROTOCOL
    )]
    Unsupported {
        /// Address that was dialled.
        address: Multiaddr,
    },
    /// The node refused the client.
    #[error("the node at {address} refuses this client: {refusal}")]
    Refused {
        /// Address that was dialled.
        address: Multiaddr,
        /// Reason given by the node.
        refusal: LaneRefusal,
    },
    /// The client does not accept the node, for example because it belongs to another cluster.
    #[error("this client does not accept the node at {address}: {refusal}")]
    Unacceptable {
        /// Address that was dialled.
        address: Multiaddr,
        /// Reason of the client.
        refusal: LaneRefusal,
    },
    /// The answer is not a message of this protocol.
    #[error("the answer from {address} is not that of a node: is it another release?")]
    Malformed {
        /// Address that was dialled.
        address: Multiaddr,
        /// Error of the handshake.
        source: HandshakeError,
    },
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn silent_address_leaves_time_for_the_next() {
        let (identity, config) = (Identity::load(None).expect("an identity"), NetConfig::default());
        let config = NetConfig { listen: Vec::new(), ..config };
        let at = |listener: &TcpListener| -> Multiaddr {
            let port = listener.local_addr().expect("bound").port();
            format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address")
        };
        // These listeners accept connections and never send anything. Both stay, because another
        // test could listen at a port that was freed.
        let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let addresses = silent.each_ref().map(at);
        let within = Duration::from_millis(200);
        let called = call_any(&identity, &config, &addresses, Instant::now(), within).await;
        match called.expect_err("no node is there") {
            ConnectError::NoAnswer { address, .. } | ConnectError::Silent { address, .. } => {
                assert_eq!(address, addresses[1]);
            }
            other => panic!("{other}"),
        }
    }
}
