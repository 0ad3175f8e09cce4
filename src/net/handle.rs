//! The transport as the node sees it: lanes to write to, events to hear, orders to give.

use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::ReplicaId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::context::TokioContext;

use super::client::ClientStream;
use super::config::Config;
use super::directory::Directory;
use super::hub::{Command, Hub, Setup, Started};
use super::identity::Identity;
use super::lane::inbound::InboundStats;
use super::lane::{Lane, LaneStats};
use super::secrets;
use super::swarm::{Refusals, StartError};
use super::wire::{Facts, Refusal};
use super::{Class, NodeId, Receiver};
use crate::runtime::OwnRuntime;

/// What the transport tells the node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A node was admitted, here or there: from now on there are lanes to it. Told again when it
    /// is admitted anew after [`Closed`](Self::Closed); its lanes then go on where they were.
    Up {
        /// Who.
        node: NodeId,
        /// What it tells about itself.
        facts: Facts,
    },
    /// Who answers at an address that [`Net::dial`] dialled: this node itself, or one that is up.
    Answered {
        /// Who.
        node: NodeId,
        /// As dialled.
        address: Multiaddr,
    },
    /// A peer has come back as another incarnation. What the old one had not acknowledged was
    /// counted; it is refused from now on.
    NewIncarnation {
        /// The life that was known.
        old: NodeId,
        /// The one that is alive.
        node: NodeId,
        /// Whether it holds the lock of its former life on the same host: the old one is dead.
        is_proof: bool,
    },
    /// An incarnation is known no more: the node has ordered that, or nobody kept it and others
    /// needed its place. It is refused from now on, and there are no lanes to it.
    Forgotten {
        /// Who.
        node: NodeId,
    },
    /// The last connection with a node is gone. Evidence, no proof of death.
    Closed {
        /// Who.
        node: NodeId,
    },
    /// A dial failed. Evidence, no proof of death.
    DialRefused {
        /// Who was expected there, if anybody.
        peer: Option<PeerId>,
        /// Where.
        address: Multiaddr,
        /// Why.
        reason: String,
    },
    /// A peer does not want a lane of ours.
    Refused {
        /// Who.
        peer: PeerId,
        /// Why.
        refusal: Refusal,
    },
    /// Messages that a node has not acknowledged were given up: it may have got them or not.
    LaneBroken {
        /// To whom.
        node: NodeId,
        /// On which lane.
        class: Class,
        /// How many.
        messages: u64,
    },
}

/// A peer, as the transport sees it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// Who.
    pub peer: PeerId,
    /// The life that is known; none before it was admitted.
    pub incarnation: Option<ReplicaId>,
    /// Whether it is dialled whenever the link is down.
    pub kept: bool,
    /// Connections, those for bulk included.
    pub connections: usize,
    /// Whether one of them carries lanes.
    pub linked: bool,
    /// The lanes to it that somebody has used: control, data, user, bulk.
    pub outbound: [Option<LaneStats>; 4],
    /// What came on its lanes: control, data, user, bulk.
    pub inbound: [InboundStats; 4],
}

/// The transport at one moment: who is known, how much waits, and what was refused so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Everybody who is known, by peer id.
    pub peers: Vec<PeerStats>, // ≤ the peers that are remembered
    /// Connections and substreams that were refused because of a limit, or of the allow-list.
    pub exceeded: Refusals,
    /// Inbound connections whose handshake is under way.
    pub handshakes: usize,
    /// Clients that are let in, those included that nobody has taken up yet.
    pub clients: usize,
    /// Eight hexadecimal digits of a hash of each secret of the cluster in use, that which this node
    /// dials with first. Nodes with the same files of secrets have the same.
    pub secrets: Vec<String>,
    /// Lanes that this node did not open, or not let be opened, and clients that it did not let in:
    /// another secret, another cluster, a life that is over, no room.
    pub refused: u64,
    /// Lanes of peers that were cut off because they broke the protocol.
    pub violations: u64,
    /// Messages that were given up unacknowledged ([`Event::LaneBroken`]).
    pub given_up: u64,
}

/// A running transport. Clones speak to the same one; it ends with the last of them.
#[derive(Clone, Debug)]
pub struct Net {
    me: NodeId,
    addresses: Arc<[Multiaddr]>,
    listening: Arc<[Multiaddr]>,
    directory: Arc<Directory>,
    clients_max: usize,
    commands: mpsc::UnboundedSender<Command>, // orders of the node, not of peers
    _runtime: OwnRuntime,                     // of the hub and its connections
}

/// Where the tasks of lanes run.
#[derive(Clone, Debug)]
pub struct Runtimes {
    /// Lanes of entities: their messages may run handlers, which may block.
    pub user: Handle,
    /// Lanes of the Replicator: their messages may be merged on the spot.
    pub data: Handle,
}

impl Runtimes {
    /// All of them on the runtime of the caller.
    #[must_use]
    pub fn current() -> Self {
        Self { user: Handle::current(), data: Handle::current() }
    }
}

/// Threads for connections and control lanes: one, on a large host one for every eight processors.
/// What a sender writes is mostly enciphered on its own thread.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(8)).min(8)
}

impl Net {
    /// Listens, and lets `receiver` take what arrives. Connections and control lanes have threads of
    /// their own; the other lanes run where the caller does.
    ///
    /// # Errors
    /// [`StartError`] says which address can't be listened on, or why that would not be safe.
    pub async fn start(
        config: &Config,
        identity: &Identity,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Event>), StartError> {
        Self::start_on(config, identity, receiver, Runtimes::current()).await
    }

    /// As [`start`](Self::start), with lanes on these runtimes.
    ///
    /// # Errors
    /// [`StartError`], as there.
    pub async fn start_on(
        config: &Config,
        identity: &Identity,
        receiver: Arc<dyn Receiver>,
        runtimes: Runtimes,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Event>), StartError> {
        let me = identity.node_id();
        let (commands, orders) = mpsc::unbounded_channel();
        let (events, facts) = mpsc::unbounded_channel();
        let runtime = OwnRuntime::start("ostraca-net", threads()).map_err(StartError::Thread)?;
        let setup = Setup { config, identity, receiver, commands: orders, events, runtimes };
        // Its sockets belong to the runtime that they are made on.
        let starting = TokioContext::new(Hub::start(setup), runtime.handle().clone());
        let Started { hub, directory, listening, advertised } = starting.await?;
        if let Some(secrets) = config.secret.clone() {
            let orders = commands.downgrade();
            let follow = secrets::follow(secrets, secrets::READ_EVERY, orders, Command::Secrets);
            runtime.handle().spawn(follow);
        }
        runtime.handle().spawn(hub.run());
        let named = |address: Multiaddr| address.with_p2p(me.peer).unwrap_or_else(|other| other);
        let (addresses, listening) =
            (advertised.into_iter().map(named).collect(), listening.into());
        let clients_max = config.limits.clients;
        let _runtime = runtime;
        Ok((Self { me, addresses, listening, directory, clients_max, commands, _runtime }, facts))
    }

    /// Who this is.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Where others dial this node; its peer id is part of each.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// Where it listens, with the ports that it was given.
    #[must_use]
    pub fn listening(&self) -> &[Multiaddr] {
        &self.listening
    }

    /// The lane to an incarnation; `None` if it was never admitted, or is forgotten.
    #[must_use]
    pub fn lane(&self, to: ReplicaId, class: Class) -> Option<Lane> {
        self.directory.lane(to, class)
    }

    /// Dials an address of whoever answers there, once. `Event::Answered` or `Event::DialRefused`
    /// says what became of it, unless whoever answers is not admitted. One dial of an address is
    /// under way at a time.
    pub fn dial(&self, address: Multiaddr) {
        self.order(Command::Dial(address));
    }

    /// Keeps the link to a peer up from now on: dials these addresses whenever it is down, or, if
    /// there are none, those that were known before.
    pub fn keep(&self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.order(Command::Keep(peer, addresses));
    }

    /// Dials a peer no more.
    pub fn release(&self, peer: PeerId) {
        self.order(Command::Release(peer));
    }

    /// Tells others, from now on, which of the clusters of its name this node belongs to.
    pub fn belongs_to(&self, cluster_id: u64) {
        self.order(Command::BelongsTo(cluster_id));
    }

    /// An incarnation is out of the cluster: its lanes are closed, and it is refused. A link that
    /// was not [released](Self::release) before is kept for the life that comes after it.
    pub fn forget(&self, node: NodeId) {
        self.order(Command::Forget(node));
    }

    /// Takes clients from now on: whoever is let in comes out here, at most `limits.clients` at a
    /// time. Until this is called, and after the receiver is dropped, clients are refused. Called
    /// again, it takes over: the receiver before gets no more.
    #[must_use]
    pub fn clients(&self) -> mpsc::Receiver<ClientStream> {
        let (taker, clients) = mpsc::channel(self.clients_max.max(1));
        self.order(Command::Clients(taker));
        clients
    }

    /// Everybody who is known, by peer id; empty after the stop.
    pub async fn peers(&self) -> Vec<PeerStats> {
        self.stats().await.peers
    }

    /// The transport at this moment; all zero after the stop.
    pub async fn stats(&self) -> Stats {
        let (reply, stats) = oneshot::channel();
        self.order(Command::Inspect(reply));
        stats.await.unwrap_or_default()
    }

    /// Sends what is queued, as far as peers take it within `link_down_max`, and stops. A link that
    /// breaks meanwhile is dialled once more, if it is kept; peers that dial are refused.
    pub async fn stop(&self) {
        self.stop_within(Duration::MAX).await;
    }

    /// As [`stop`](Self::stop), for at most so long. What is not acknowledged by then is counted
    /// and told ([`Event::LaneBroken`]), as it is at the end of `link_down_max`.
    pub async fn stop_within(&self, within: Duration) {
        let (done, stopped) = oneshot::channel();
        self.order(Command::Stop(within, done));
        let _ = stopped.await; // an error: it has stopped already
    }

    fn order(&self, command: Command) {
        let _ = self.commands.send(command); // the hub has stopped: nothing is to be done any more
    }
}
