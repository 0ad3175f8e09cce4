//! Handle of the running transport: lanes to send on, events from the transport, and commands to
//! it.

use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::id::ReplicaId;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::context::TokioContext;

use super::client::ClientStream;
use super::config::NetConfig;
use super::connection_manager::{
    ConnectionCommand, ConnectionManager, ConnectionManagerSetup, StartedConnectionManager,
};
use super::directory::Directory;
use super::identity::Identity;
use super::lane::inbound::InboundStats;
use super::lane::{Lane, LaneStats};
use super::secrets;
use super::swarm::{NetStartError, Refusals};
use super::wire::{LaneRefusal, NodeInfo};
use super::{NodeId, Receiver, TrafficClass};
use crate::runtime::OwnRuntime;

/// Event that the transport reports to the node.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NetEvent {
    /// A node was admitted, by it or by this node: from now on there are lanes to it. Reported
    /// again when the node is admitted after [`Closed`](Self::Closed); its lanes then continue.
    Up {
        /// Node that was admitted.
        node: NodeId,
        /// Facts that it announced.
        facts: NodeInfo,
    },
    /// A node answered at an address that [`Net::dial`] dialled. It is this node itself, or one
    /// that is up.
    Answered {
        /// The node that answered.
        node: NodeId,
        /// Address that was dialled.
        address: Multiaddr,
    },
    /// A peer has returned with another incarnation. Unacknowledged messages to the old one were
    /// counted ([`LaneBroken`](Self::LaneBroken)); from now on the old one is refused.
    NewIncarnation {
        /// Incarnation before the restart.
        old: NodeId,
        /// The incarnation that is alive.
        node: NodeId,
        /// Whether the peer holds the lock of its former incarnation on the same host, which proves
        /// that the old process is dead.
        is_proof: bool,
    },
    /// An incarnation was removed, because the node ordered it or because the table of peers was
    /// full and this peer was neither kept nor connected. It is refused from now on, and there are
    /// no lanes to it.
    Forgotten {
        /// Node that was removed.
        node: NodeId,
    },
    /// The last connection with a node has closed. This is evidence of a failure, not proof
    /// (docs/protocol/transport.md#a-closed-connection-is-evidence). Its lanes keep their messages.
    /// Not reported for a peer that was never admitted or is forgotten.
    Closed {
        /// The node of the connection.
        node: NodeId,
    },
    /// A dial failed. This is evidence of a failure, not proof. Failed dials of an additional
    /// connection for bulk are not reported.
    DialRefused {
        /// Peer that was expected at the address, if any.
        peer: Option<PeerId>,
        /// Address that was dialled.
        address: Multiaddr,
        /// Description of the error.
        reason: String,
    },
    /// A peer refused a lane of this node, which the link may try to open again. Lanes that this
    /// node does not open because it refuses the peer are only counted ([`NetStats::refused`]).
    Refused {
        /// Peer that refused it.
        peer: PeerId,
        /// Reason given by the peer.
        refusal: LaneRefusal,
    },
    /// Messages that a node has not acknowledged were abandoned; it may or may not have received
    /// them.
    LaneBroken {
        /// Receiver of the messages.
        node: NodeId,
        /// Class of the lane.
        class: TrafficClass,
        /// Number of abandoned messages, at least 1.
        messages: u64,
    },
}

/// State of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// Id of the peer.
    pub peer: PeerId,
    /// Known incarnation; `None` before the first admission.
    pub incarnation: Option<ReplicaId>,
    /// Whether the link is kept up, which means that the peer is dialled whenever it is down.
    pub kept: bool,
    /// Number of connections, those for bulk included.
    pub connections: usize,
    /// Whether one of the connections carries the control, data and user lanes.
    pub linked: bool,
    /// Lanes to the peer, if they were used: control, data, user, bulk.
    pub outbound: [Option<LaneStats>; 4],
    /// Traffic of the peer's lanes: control, data, user, bulk.
    pub inbound: [InboundStats; 4],
}

/// Statistics of the transport: its peers, queues and refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetStats {
    /// Known peers, ordered by peer id.
    pub peers: Vec<PeerStats>, // ≤ connection_manager::PEERS_MAX, or more if all are in use
    /// Connections and substreams that were refused because of a limit or the allow-list.
    pub exceeded: Refusals,
    /// Inbound connections with an unfinished handshake.
    pub handshakes: usize,
    /// Admitted clients, including those that the application has not yet taken from the channel.
    pub clients: usize,
    /// Eight hexadecimal digits of a hash of each cluster secret in use, beginning with the one
    /// that this node dials with. Nodes with the same files of secrets have the same values.
    pub secrets: Vec<String>,
    /// Number of lanes and clients that this node refused, for example because of another secret,
    /// another cluster, an old incarnation or a limit. Counts also its own lanes to peers whose
    /// greeting or welcome it did not accept, but no handshakes that failed otherwise.
    pub refused: u64,
    /// Number of lanes of peers to this node that were closed because the peer violated the
    /// protocol. Invalid acknowledgements on lanes of this node do not count.
    pub violations: u64,
    /// Number of messages that were abandoned unacknowledged ([`NetEvent::LaneBroken`]).
    pub given_up: u64,
}

/// Handle of a running transport. Clones share it; the transport ends when the last clone is
/// dropped, without sending queued messages or reporting their loss.
///
/// Methods that give an order return at once, and the connection manager carries out the orders one
/// after the other. Orders after the call of [`stop`](Self::stop) or
/// [`stop_within`](Self::stop_within) have no effect.
#[derive(Clone, Debug)]
pub struct Net {
    me: NodeId,
    addresses: Arc<[Multiaddr]>,
    listening: Arc<[Multiaddr]>,
    directory: Arc<Directory>,
    clients_max: usize,
    commands: mpsc::UnboundedSender<ConnectionCommand>, // only the node fills it
    _runtime: OwnRuntime, // runs the connection manager and connections
}

/// Runtimes on which the tasks of lanes run.
#[derive(Clone, Debug)]
pub struct Runtimes {
    /// For user lanes, whose messages may run handlers, which may block.
    pub user: Handle,
    /// For data and bulk lanes, whose messages may be merged at once.
    pub data: Handle,
}

impl Runtimes {
    /// Uses the caller's runtime for user, data and bulk lanes. Control lanes have the transport's
    /// own runtime in any case.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn current() -> Self {
        Self { user: Handle::current(), data: Handle::current() }
    }
}

/// Number of threads for connections and control lanes: one per eight processors, rounded up, from
/// one to eight; one if the number of processors is unknown. Few suffice, because most messages are
/// encrypted on the sender's thread.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get().div_ceil(8)).min(8)
}

impl Net {
    /// Starts the transport: listens, and delivers received messages to `receiver`. Connections and
    /// control lanes have threads of their own; the other lanes run on the caller's runtime.
    ///
    /// Must be called within a tokio runtime, otherwise it panics. If the secrets come from files,
    /// changed files are adopted while the transport runs. The returned channel of events is
    /// unbounded; if its receiver is dropped, the transport goes on and drops them. Accepts no
    /// clients until [`clients`](Self::clients) is called, and dials no address by itself.
    ///
    /// # Errors
    /// [`NetStartError`]: an address cannot be listened on, listening would not be safe, or no
    /// thread could be started.
    pub async fn start(
        config: &NetConfig,
        identity: &Identity,
        receiver: Arc<dyn Receiver>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<NetEvent>), NetStartError> {
        Self::start_on(config, identity, receiver, Runtimes::current()).await
    }

    /// Like [`start`](Self::start), with the user, data and bulk lanes on the given runtimes.
    ///
    /// # Errors
    /// [`NetStartError`], as for [`start`](Self::start).
    pub async fn start_on(
        config: &NetConfig,
        identity: &Identity,
        receiver: Arc<dyn Receiver>,
        runtimes: Runtimes,
    ) -> Result<(Self, mpsc::UnboundedReceiver<NetEvent>), NetStartError> {
        let me = identity.node_id();
        let (commands, orders) = mpsc::unbounded_channel();
        let (events, facts) = mpsc::unbounded_channel();
        let runtime = OwnRuntime::start("ostraca-net", threads()).map_err(NetStartError::Thread)?;
        let setup = ConnectionManagerSetup {
            config,
            identity,
            receiver,
            commands: orders,
            events,
            runtimes,
        };
        // Sockets belong to the runtime on which they are created.
        let starting = TokioContext::new(ConnectionManager::start(setup), runtime.handle().clone());
        let StartedConnectionManager { manager, directory, listening, advertised } =
            starting.await?;
        if let Some(secrets) = config.secret.clone() {
            let orders = commands.downgrade();
            let follow =
                secrets::follow(secrets, secrets::READ_EVERY, orders, ConnectionCommand::Secrets);
            runtime.handle().spawn(follow);
        }
        runtime.handle().spawn(manager.run());
        let named = |address: Multiaddr| address.with_p2p(me.peer).unwrap_or_else(|other| other);
        let (addresses, listening) =
            (advertised.into_iter().map(named).collect(), listening.into());
        let clients_max = config.limits.clients;
        let _runtime = runtime;
        Ok((Self { me, addresses, listening, directory, clients_max, commands, _runtime }, facts))
    }

    /// Peer id and incarnation of this node.
    #[must_use]
    pub const fn me(&self) -> NodeId {
        self.me
    }

    /// Addresses at which others dial this node, each with its peer id: those of the setting
    /// `advertise`, otherwise derived from the listen addresses at the start. They never change.
    #[must_use]
    pub fn addresses(&self) -> &[Multiaddr] {
        &self.addresses
    }

    /// Addresses on which the transport listens, with the actual ports.
    #[must_use]
    pub fn listening(&self) -> &[Multiaddr] {
        &self.listening
    }

    /// Returns the lane to an incarnation, and has it opened when it is first used, also while the
    /// node is not connected: messages are buffered then. `None` if the incarnation was never
    /// admitted or was removed, if it is this node's own, and once the transport stops.
    #[must_use]
    pub fn lane(&self, to: ReplicaId, class: TrafficClass) -> Option<Lane> {
        self.directory.lane(to, class)
    }

    /// Name of a node in logs: `890bb1ab/00000000c0ffee01`, also of this node itself. The
    /// incarnation alone if the transport does not know the node, because it was never admitted or
    /// has been removed.
    #[must_use]
    pub fn name_of(&self, incarnation: ReplicaId) -> String {
        let own = (incarnation == self.me.incarnation).then_some(self.me.peer);
        match own.or_else(|| self.directory.peer_of(incarnation)) {
            Some(peer) => NodeId { peer, incarnation }.to_string(),
            None => incarnation.to_string(),
        }
    }

    /// Dials an address once, whatever peer answers. The outcome is reported by
    /// [`NetEvent::Answered`] or [`NetEvent::DialRefused`], except when the answering peer is not
    /// admitted. Does nothing if the address is already being dialled by this method, or if a peer
    /// has answered there and its incarnation is not known yet. A connected peer may be dialled
    /// again, which makes a further connection.
    pub fn dial(&self, address: Multiaddr) {
        self.order(ConnectionCommand::Dial(address));
    }

    /// Keeps the link to a peer up from now on: whenever it is down, dials these addresses, or
    /// those known before if there are none. Also opens the control lane to the peer. Addresses
    /// replace those of an earlier call, but an empty list replaces none. Addresses at which the
    /// peer was found by [`dial`](Self::dial) are tried as well.
    pub fn keep(&self, peer: PeerId, addresses: Vec<Multiaddr>) {
        self.order(ConnectionCommand::Keep(peer, addresses));
    }

    /// Stops dialling a peer. Its connections and lanes stay as long as they live: lanes that wait
    /// for a connection are given up after `link_down_max`. Does nothing if the peer is unknown.
    pub fn release(&self, peer: PeerId) {
        self.order(ConnectionCommand::Release(peer));
    }

    /// Sets the id of the cluster that this node belongs to, which peers are told in handshakes
    /// from now on. Connected peers learn it only when a lane is opened again. A further call
    /// replaces the id.
    pub fn belongs_to(&self, cluster_id: u64) {
        self.order(ConnectionCommand::BelongsTo(cluster_id));
    }

    /// Removes an incarnation from the transport: its lanes are abandoned, and it is refused from
    /// now on, also if it was never met. Its unacknowledged messages are reported as
    /// [`NetEvent::LaneBroken`]. If it is the known incarnation of its peer, the connections of the
    /// peer are closed and [`NetEvent::Forgotten`] is reported, so only once. Unless the peer was
    /// [released](Self::release) before, the link is kept for its next incarnation.
    pub fn forget(&self, node: NodeId) {
        self.order(ConnectionCommand::Forget(node));
    }

    /// Accepts clients from now on and returns the channel on which they arrive, at most
    /// `limits.clients` at a time. Clients are refused until this is called, and after the receiver
    /// is dropped. A further call replaces the channel: the previous receiver gets no further
    /// clients.
    #[must_use]
    pub fn clients(&self) -> mpsc::Receiver<ClientStream> {
        let (taker, clients) = mpsc::channel(self.clients_max.max(1));
        self.order(ConnectionCommand::Clients(taker));
        clients
    }

    /// Known peers, ordered by peer id; empty after the stop, for the end of which it waits.
    pub async fn peers(&self) -> Vec<PeerStats> {
        self.stats().await.peers
    }

    /// Current statistics; all zero after the stop, for the end of which it waits.
    pub async fn stats(&self) -> NetStats {
        let (reply, stats) = oneshot::channel();
        self.order(ConnectionCommand::Inspect(reply));
        stats.await.unwrap_or_default()
    }

    /// Sends the queued messages, as far as peers acknowledge them within `link_down_max`, and
    /// stops. If a kept link breaks meanwhile, it is dialled again; peers that open lanes are
    /// refused. Returns when the sockets are closed; at once if the transport has stopped before.
    /// Threads of the transport may end later, with the last handle.
    pub async fn stop(&self) {
        self.stop_within(Duration::MAX).await;
    }

    /// Like [`stop`](Self::stop), but within this time, if that is less than `link_down_max`; zero
    /// waits for no acknowledgement. Messages that are unacknowledged at the end are reported
    /// ([`NetEvent::LaneBroken`]). A call during another stop waits for that one to end, however
    /// long its own time is. Dropping the future does not cancel the stop.
    pub async fn stop_within(&self, within: Duration) {
        let (done, stopped) = oneshot::channel();
        self.order(ConnectionCommand::Stop(within, done));
        let _ = stopped.await; // an error: it has already stopped
    }

    fn order(&self, command: ConnectionCommand) {
        let _ = self.commands.send(command); // an error: the connection manager has stopped
    }
}
