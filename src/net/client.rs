//! Clients: who asks a running node over the network, and never becomes one.
//!
//! A client connects like a node, through the same cipher and the same private network, and proves
//! the secret like one, but calls by a protocol of its own ([`CLIENT_PROTOCOL`]) and proves with a
//! label of its own: no word of it opens a lane. The node keeps nothing of it but its stream: it
//! has no incarnation, gets no lanes, and membership never hears of it. Both ends then hold a
//! [`ClientStream`], a plain duplex stream. (spec/transport.md, "Admission"; issue 7, 2.)
//!
//! | here | there |
//! |---|---|
//! | [`connect`] calls | [`Net::clients`](super::handle::Net::clients) hands out who was let in |
//! | ends when the stream is dropped | ends with its connection, or with the node |
//!
//! [`CLIENT_PROTOCOL`]: super::CLIENT_PROTOCOL

mod stream;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use libp2p::core::upgrade::NegotiationError;
use libp2p::swarm::{ConnectionId, DialError, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

pub use self::stream::ClientStream;
pub(super) use self::stream::{Ends, Held};
use super::address::{self, ResolveError};
use super::admission::{self, ConfigError, Standing};
use super::config::{Config, SecretError};
use super::handshake::{self, HandshakeError};
use super::handshake_failure::HandshakeFailure;
use super::identity::{Identity, IdentityError};
use super::noise;
use super::secrets::Secrets;
use super::swarm::{self, Lines, OpenFailed};
use super::wire::Refusal;

/// How long the node may take to hear the goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// How long it may take to find out whether anybody listens at all.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// Calls the node at `address` as a client with an identity of its own that nothing keeps.
///
/// Of `config`, cluster name, secret, private network, allow-list and limits count; it listens
/// nowhere and keeps nothing in the data directory. Must be called in a tokio runtime, which must
/// run while the stream is used. Of a name's addresses the first that lets it in counts.
///
/// # Errors
/// [`ConnectError`], whose sentences say what is wrong and what to do. Nothing was said to the
/// node then but who calls.
pub async fn connect(
    config: &Config,
    address: &Multiaddr,
    within: Duration,
) -> Result<ClientStream, ConnectError> {
    connect_as(&Identity::load(None)?, config, address, within).await
}

/// Calls as [`connect`] does, with an identity that is on the node's allow-list. It must not be
/// that of a node: what is known as a node is no client.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_as(
    identity: &Identity,
    config: &Config,
    address: &Multiaddr,
    within: Duration,
) -> Result<ClientStream, ConnectError> {
    let mut config = Config { listen: Vec::new(), ..config.clone() };
    config.read_secret()?;
    admission::check(&config)?;
    config.secret = config.secret.map(Secrets::of_client);
    let calling = async {
        let mut last = None;
        for at in address::resolve(address).await? {
            match call(identity, &config, &at).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a name without addresses does not resolve"))
    };
    match tokio::time::timeout(within, calling).await {
        Ok(called) => called,
        Err(_) => Err(no_answer(address, within).await),
    }
}

/// Nothing has answered in time. Whether a process listens there is found out by a probe: a kernel
/// takes connections also for a process that is stopped.
async fn no_answer(address: &Multiaddr, within: Duration) -> ConnectError {
    let address = address.clone();
    let connects = async { TcpStream::connect(address::socket_address(&address)?).await.ok() };
    let probe = tokio::time::timeout(PROBE_WITHIN.min(within), connects).await;
    match probe {
        Ok(Some(_)) => ConnectError::Silent { address, within },
        _ => ConnectError::NoAnswer { address, within },
    }
}

async fn call(
    identity: &Identity,
    config: &Config,
    address: &Multiaddr,
) -> Result<ClientStream, ConnectError> {
    let mut swarm = swarm::of_client(config, identity.keypair())?;
    let (node, connection) = dial(&mut swarm, address).await?;
    let (reply, line) = oneshot::channel();
    swarm.behaviour_mut().call(connection, reply);
    let us = Standing::new(config, identity, &[]);
    let within = config.limits.handshake_within;
    let admission = async {
        let mut line = line.await.unwrap_or(Err(OpenFailed::Closed))?;
        handshake::call(&mut line, &us, node, within).await?;
        Ok(line)
    };
    let line = while_driving(&mut swarm, admission)
        .await
        .map_err(|why: NotLetIn| why.at(address, us.peer, within))?;
    let (in_use, dropped) = oneshot::channel();
    let held = Held::Connection { _in_use: in_use };
    let (stream, ends) = ClientStream::new(line, node, config.limits.control_undrained_max, held);
    tokio::spawn(keep(swarm, connection, dropped, ends));
    Ok(stream)
}

async fn dial(
    swarm: &mut Swarm<Lines>,
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

/// What a failed dial means.
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
    // Only a new connection tells whether anybody listens: the error of the transport does not.
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

async fn while_driving<T>(swarm: &mut Swarm<Lines>, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = swarm.select_next_some() => {} // a connection that ends ends the work, too
        }
    }
}

/// Keeps the connection until the stream is dropped, then says goodbye.
async fn keep(
    mut swarm: Swarm<Lines>,
    connection: ConnectionId,
    mut dropped: oneshot::Receiver<()>,
    ends: Ends,
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
    let _ = tokio::time::timeout(GOODBYE_WITHIN, closed).await; // it hears the socket close then
}

/// Why there is no stream although there is a connection.
#[derive(Debug, thiserror::Error)]
enum NotLetIn {
    #[error(transparent)]
    Open(#[from] OpenFailed),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl NotLetIn {
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

/// The protocol's name is sent with the first words, so that only their answer tells.
fn is_unknown_protocol(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    matches!(cause, Some(NegotiationError::Failed))
}

/// Why a node does not talk to this client. It has been told nothing but who called.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The settings forbid it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The secret can't be had.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No key for connections: the identity cannot sign, or there is no randomness.
    #[error(transparent)]
    Key(#[from] noise::Error),
    /// The address is none that can be dialled.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// Nobody is there.
    #[error(
        "nobody listens at {address}: is the node running, and is that what its log says after \
         `node.listening`?"
    )]
    NobodyListens {
        /// As dialled.
        address: Multiaddr,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody has answered.
    #[error(
        "no answer from {address} within {within:?}: is it the address of a node of Ostraca, does \
         a firewall drop what is sent there, and do both sides have net.private-network alike?"
    )]
    NoAnswer {
        /// As dialled.
        address: Multiaddr,
        /// How long it was waited.
        within: Duration,
    },
    /// A process listens there and says nothing.
    #[error(
        "no answer from {address} within {within:?}: a process listens there, but it may be \
         stopped (SIGSTOP, a debugger) or overloaded, have another net.private-network, or be no \
         node of Ostraca"
    )]
    Silent {
        /// As dialled.
        address: Multiaddr,
        /// How long it was waited.
        within: Duration,
    },
    /// The node closed the connection in the encrypted handshake.
    #[error(
        "the node at {address} closed the connection in the encrypted handshake: give this client \
         the cluster-secret-file of that node and set net.private-network as there; or it is at a \
         limit of connections. Its log says which"
    )]
    Closed {
        /// As dialled.
        address: Multiaddr,
        /// What failed.
        source: Box<DialError>,
    },
    /// Somebody is there, but the cipher fails.
    #[error(
        "somebody listens at {address}, but the encrypted handshake fails: give this client the \
         cluster-secret-file of that node, or its client-secret-file, set net.private-network as there, and check that it is \
         a node of Ostraca"
    )]
    Handshake {
        /// As dialled.
        address: Multiaddr,
        /// What failed.
        source: Box<DialError>,
    },
    /// The address names another peer.
    #[error("at {address} another peer answers, {found}: drop what follows /p2p/, or correct it")]
    AnotherPeer {
        /// As dialled.
        address: Multiaddr,
        /// Who answers.
        found: PeerId,
    },
    /// The client's key is the node's.
    #[error("the client has the identity of the node at {address}: give it another, or none")]
    OwnIdentity {
        /// As dialled.
        address: Multiaddr,
    },
    /// The client's own list is without the node.
    #[error(
        "the node at {address} is not in this client's net.allowed-peers: add it, or drop them"
    )]
    NotInOwnList {
        /// As dialled.
        address: Multiaddr,
    },
    /// The node closed the connection without a word.
    #[error(
        "the node at {address} closed the connection before it said a word: if it has \
         net.allowed-peers, call with an identity and add its peer id there (this one is {us}); \
         else it is at a limit of connections. Its log says which"
    )]
    Cut {
        /// As dialled.
        address: Multiaddr,
        /// Who this client is.
        us: PeerId,
    },
    /// The node knows no clients.
    #[error(
        "the node at {address} does not speak {protocol}: upgrade it to a release that takes \
         clients",
        protocol = super::CLIENT_PROTOCOL
    )]
    Unsupported {
        /// As dialled.
        address: Multiaddr,
    },
    /// The node says no.
    #[error("the node at {address} refuses this client: {refusal}")]
    Refused {
        /// As dialled.
        address: Multiaddr,
        /// Why.
        refusal: Refusal,
    },
    /// This client would say no in its place.
    #[error("the node at {address} is none for this client: {refusal}")]
    Unacceptable {
        /// As dialled.
        address: Multiaddr,
        /// Why.
        refusal: Refusal,
    },
    /// Its answer makes no sense.
    #[error("what answers at {address} does not speak as a node does: another release?")]
    Malformed {
        /// As dialled.
        address: Multiaddr,
        /// What is the matter.
        source: HandshakeError,
    },
}
