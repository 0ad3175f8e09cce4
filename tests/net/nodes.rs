//! Test harness: swarms, each driven by a task, and lanes opened by hand. Every wait has a
//! deadline.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use libp2p::swarm::{ConnectionId, DialError, ListenError, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm};
use ostraca::net::admission::AdmissionState;
use ostraca::net::config::{NetConfig, NetLimits, Secret};
use ostraca::net::handshake::{self, HandshakeError, LaneParameters, OpenedLane};
use ostraca::net::identity::{Identity, incarnation};
use ostraca::net::secrets::Secrets;
use ostraca::net::swarm::{
    BehaviourEvent, CountedSubstream, LaneBehaviour, OpenFailed, Refusals, dial, swarm,
};
use ostraca::net::wire::{IncarnationNonce, NodeInfo};
use ostraca::net::{NodeId, TrafficClass};
use tokio::sync::{mpsc, oneshot};

use crate::waits::{SOON, soon};

pub(crate) fn secret(byte: u8) -> Secrets {
    one_secret(byte).into()
}

pub(crate) fn one_secret(byte: u8) -> Secret {
    Secret::new([byte; 32]).expect("32 bytes")
}

pub(crate) fn config() -> NetConfig {
    NetConfig { secret: Some(secret(1)), transport: crate::transport(), ..NetConfig::default() }
}

/// Sets the facts to another incarnation of the peer, a different one for each number. Returns it.
pub(crate) fn live(facts: &mut NodeInfo, peer: &PeerId, number: u8) -> NodeId {
    let nonce = IncarnationNonce([number; 16]);
    facts.incarnation_nonce = Some(nonce);
    facts.incarnation = incarnation(peer, &nonce);
    NodeId { peer: *peer, incarnation: facts.incarnation }
}

/// An empty directory for this test alone.
pub(crate) fn fresh_dir(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&dir); // of an earlier run, if any
    dir
}

/// An observation of a node.
#[derive(Debug)]
pub(crate) enum Seen {
    Established(PeerId, ConnectionId),
    Closed(ConnectionId),
    Closing(ConnectionId),
    DialFailed(DialError),
    InboundFailed(ListenError),
    /// A lane was requested: the opener, or the reason of the refusal.
    Asked(Result<NodeId, HandshakeError>),
    /// An open lane, which the test must hold.
    Lane(CountedSubstream),
}

enum Do {
    Dial(Option<PeerId>, Multiaddr),
    Open(ConnectionId, TrafficClass, oneshot::Sender<Result<CountedSubstream, OpenFailed>>),
    Call(ConnectionId, oneshot::Sender<Result<CountedSubstream, OpenFailed>>),
    Close(ConnectionId),
    Count(oneshot::Sender<(Refusals, usize)>),
}

/// A node that welcomes every peer that admission accepts.
pub(crate) struct Node {
    pub(crate) config: NetConfig,
    pub(crate) standing: AdmissionState,
    pub(crate) address: Multiaddr,
    orders: mpsc::UnboundedSender<Do>,
    seen: mpsc::UnboundedReceiver<Seen>,
    task: tokio::task::JoinHandle<()>,
}

impl Node {
    pub(crate) async fn start(config: NetConfig) -> Self {
        Self::start_as(config, |_| {}).await
    }

    /// Starts a node with an admission state that differs from its settings.
    pub(crate) async fn start_as(
        config: NetConfig,
        change: impl FnOnce(&mut AdmissionState),
    ) -> Self {
        let identity = Identity::load(None).expect("an identity");
        let mut standing = AdmissionState::new(&config, &identity, &[]);
        change(&mut standing);
        let mut swarm = swarm(&config, identity.keypair()).expect("a free port");
        let address = match config.listen.is_empty() {
            true => Multiaddr::empty(),
            false => soon(listening(&mut swarm)).await,
        };
        let (orders, taken) = mpsc::unbounded_channel();
        let (tell, seen) = mpsc::unbounded_channel();
        let serving = Arc::new(standing.clone());
        let task = tokio::spawn(drive(swarm, serving, config.limits.clone(), taken, tell));
        Self { config, standing, address, orders, seen, task }
    }

    pub(crate) const fn peer(&self) -> PeerId {
        self.standing.peer
    }

    fn order(&self, order: Do) {
        assert!(self.orders.send(order).is_ok(), "the node's task is over");
    }

    pub(crate) fn dial(&self, other: &Node) {
        self.order(Do::Dial(Some(other.peer()), other.address.clone()));
    }

    pub(crate) fn close(&self, connection: ConnectionId) {
        self.order(Do::Close(connection));
    }

    /// The refusals so far, and the number of unfinished handshakes.
    pub(crate) async fn count(&self) -> (Refusals, usize) {
        let (reply, answer) = oneshot::channel();
        self.order(Do::Count(reply));
        soon(answer).await.expect("the node's task answers")
    }

    /// Waits for an observation that `pick` accepts; skips all others.
    pub(crate) async fn next<T>(
        &mut self,
        what: &str,
        mut pick: impl FnMut(Seen) -> Option<T>,
    ) -> T {
        let found = async {
            loop {
                let seen = self.seen.recv().await.expect("the node's task runs");
                if let Some(found) = pick(seen) {
                    return found;
                }
            }
        };
        let found = tokio::time::timeout(SOON, found).await;
        found.unwrap_or_else(|_| panic!("never: {what}"))
    }

    /// Dials and waits until the connection is established on this side.
    pub(crate) async fn connect(&mut self, other: &Node) -> ConnectionId {
        self.dial(other);
        let peer = other.peer();
        self.next("a connection", |seen| match seen {
            Seen::Established(with, id) if with == peer => Some(id),
            Seen::DialFailed(error) => panic!("the dial failed: {error}"),
            _ => None,
        })
        .await
    }

    pub(crate) async fn connect_at(&mut self, peer: PeerId, address: Multiaddr) -> ConnectionId {
        self.order(Do::Dial(Some(peer), address));
        self.next("a connection", |seen| match seen {
            Seen::Established(with, id) if with == peer => Some(id),
            Seen::DialFailed(error) => panic!("the dial failed: {error}"),
            _ => None,
        })
        .await
    }

    pub(crate) async fn line(
        &self,
        id: ConnectionId,
        class: TrafficClass,
    ) -> Result<CountedSubstream, OpenFailed> {
        let (reply, answer) = oneshot::channel();
        self.order(Do::Open(id, class, reply));
        soon(answer).await.unwrap_or(Err(OpenFailed::Closed))
    }

    /// Opens a substream like a client's.
    pub(crate) async fn call(&self, id: ConnectionId) -> Result<CountedSubstream, OpenFailed> {
        let (reply, answer) = oneshot::channel();
        self.order(Do::Call(id, reply));
        soon(answer).await.unwrap_or(Err(OpenFailed::Closed))
    }

    /// Opens a lane on a connection to `peer`.
    pub(crate) async fn open(
        &self,
        id: ConnectionId,
        peer: PeerId,
        change: impl FnOnce(&mut LaneParameters),
    ) -> Result<(OpenedLane, CountedSubstream), HandshakeError> {
        let mut wanted = LaneParameters {
            peer,
            to: None,
            class: TrafficClass::User,
            generation: 1,
            first_unacknowledged: 1,
        };
        change(&mut wanted);
        let mut line = self.line(id, wanted.class).await.expect("a substream");
        let within = self.config.limits.handshake_within;
        let opened = handshake::open(&mut line, &self.standing, wanted, within).await?;
        Ok((opened, line))
    }

    /// Result of the next lane that a peer requests.
    pub(crate) async fn asked(&mut self) -> Result<NodeId, HandshakeError> {
        self.next("a peer requests a lane", |seen| match seen {
            Seen::Asked(asked) => Some(asked),
            _ => None,
        })
        .await
    }

    /// Stops the node and waits until its sockets are closed.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await; // an error: it was cancelled
    }
}

/// Asserts that a node still serves: a new peer connects, opens a lane and is welcomed.
pub(crate) async fn serves(node: &Node) {
    let listen = NetConfig::default().listen;
    let mut friend = Node::start(NetConfig { listen, ..node.config.clone() }).await;
    let id = friend.connect(node).await;
    let (opened, _line) = friend.open(id, node.peer(), |_| {}).await.expect("it serves friends");
    assert_eq!(opened.node.incarnation, node.standing.facts.incarnation);
}

async fn listening(swarm: &mut Swarm<LaneBehaviour>) -> Multiaddr {
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            return address;
        }
    }
}

async fn drive(
    mut swarm: Swarm<LaneBehaviour>,
    standing: Arc<AdmissionState>,
    limits: NetLimits,
    mut orders: mpsc::UnboundedReceiver<Do>,
    tell: mpsc::UnboundedSender<Seen>,
) {
    loop {
        let seen = tokio::select! {
            order = orders.recv() => {
                let Some(order) = order else { return };
                obey(&mut swarm, order)
            }
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(BehaviourEvent::Inbound { peer, class, stream, .. }) => {
                    let asked = welcome(stream, Arc::clone(&standing), peer, class, limits.clone());
                    let tell = tell.clone();
                    tokio::spawn(async move {
                        for seen in asked.await {
                            let _ = tell.send(seen); // an error: the test has ended
                        }
                    });
                    None
                }
                SwarmEvent::Behaviour(BehaviourEvent::Closing { connection, .. }) => {
                    Some(Seen::Closing(connection))
                }
                SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                    Some(Seen::Established(peer_id, connection_id))
                }
                SwarmEvent::ConnectionClosed { connection_id, .. } => {
                    Some(Seen::Closed(connection_id))
                }
                SwarmEvent::OutgoingConnectionError { error, .. } => Some(Seen::DialFailed(error)),
                SwarmEvent::IncomingConnectionError { error, .. } => {
                    Some(Seen::InboundFailed(error))
                }
                _ => None,
            },
        };
        if let Some(seen) = seen {
            let _ = tell.send(seen); // an error: the test has ended
        }
    }
}

fn obey(swarm: &mut Swarm<LaneBehaviour>, order: Do) -> Option<Seen> {
    match order {
        Do::Dial(peer, address) => {
            return swarm.dial(dial(peer, address)).err().map(Seen::DialFailed);
        }
        Do::Open(id, class, reply) => swarm.behaviour_mut().open(id, class, reply),
        Do::Call(id, reply) => swarm.behaviour_mut().call(id, reply),
        Do::Close(id) => swarm.behaviour_mut().close(id),
        Do::Count(reply) => {
            let lines = swarm.behaviour();
            let _ = reply.send((lines.refusals(), lines.handshakes())); // or the test has ended
        }
    }
    None
}

async fn welcome(
    mut line: CountedSubstream,
    standing: Arc<AdmissionState>,
    peer: PeerId,
    class: TrafficClass,
    limits: NetLimits,
) -> Vec<Seen> {
    let within = limits.handshake_within;
    let asked = match handshake::accept(&mut line, &standing, peer, class, within).await {
        Ok(asked) => asked,
        Err(error) => return vec![Seen::Asked(Err(error))],
    };
    let node = asked.node;
    match asked.welcome(&mut line, &standing, 0, within).await {
        Ok(()) => vec![Seen::Asked(Ok(node)), Seen::Lane(line)],
        Err(error) => vec![Seen::Asked(Err(error))],
    }
}

pub(crate) fn only<T: Ord>(one: T) -> Arc<BTreeSet<T>> {
    Arc::new(BTreeSet::from([one]))
}
