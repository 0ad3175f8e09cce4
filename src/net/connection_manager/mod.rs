//! Connection manager: the central task of the transport. It connects swarm, links and tasks of
//! lanes. [`PeerLink`](link::PeerLink) decides which connection carries which lane,
//! [`admission`](super::admission) which peers are admitted. Messages do not pass through it: a
//! sender that appends to a lane wakes the lane's task directly.

mod clients;
mod handshake_log;
mod peer;
mod quarantine;
mod secrets;
mod shutdown;
mod stalled_peers;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use libp2p::core::transport::ListenerId;
use libp2p::swarm::{ConnectionId, DialError, Swarm, SwarmEvent};
use libp2p::{Multiaddr, PeerId};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use self::clients::Clients;
use self::peer::{Announcement, IncarnationChange, PeerState};
use self::tasks::{
    InboundError, InboundSubstream, OutboundEnd, OutboundOpening, Report, Tasks, WelcomedLane,
};
use super::admission::AdmissionState;
use super::advertised::{Listener, advertised};
use super::client::ClientStream;
use super::config::NetConfig;
use super::directory::{Directory, WantedLane};
use super::handle::{NetEvent, NetStats, PeerStats, Runtimes};
use super::identity::Identity;
use super::lane::Lane;
use super::link::{self, ConnectionPurpose, DialSide, End};
use super::secrets::{Keyring, Secrets};
use super::swarm::{self, LaneBehaviour, LimitSlots, NetStartError};
use super::warning_throttle::WarningThrottle;
use super::wire::{LaneRefusal, NodeInfo};
use super::{NodeId, Receiver, TrafficClass, address};

/// Number of times that a lane is reopened on one connection without progress before it is given up
/// (docs/protocol/transport.md#a-hopeless-lane-is-given-up).
const STALLED_MAX: u32 = 5;

/// Number of remembered peers beyond which idle ones are forgotten; exceeded if none is idle.
const PEERS_MAX: usize = 4_096;

/// Command of the node to the connection manager.
#[derive(Debug)]
pub(super) enum ConnectionCommand {
    /// Dial an address, for any peer. Ignored while it is dialled or its answer is not reported.
    Dial(Multiaddr),
    /// Keep the link to this peer up, also to an unknown one. An empty list keeps its addresses.
    Keep(PeerId, Vec<Multiaddr>),
    /// Stop dialling this peer. Its connections and lanes stay. Ignored for an unknown peer.
    Release(PeerId),
    /// This incarnation was removed from the cluster: refuse it from now on and drop its lanes.
    Forget(NodeId),
    /// Deliver clients to this channel from now on, in place of an earlier one.
    Clients(mpsc::Sender<ClientStream>),
    /// Tell peers this cluster id, in handshakes from now on.
    BelongsTo(u64),
    /// Dial and admit with these secrets from now on. Open connections and lanes stay.
    Secrets(Secrets),
    /// Reply with the statistics of this connection manager.
    Inspect(oneshot::Sender<NetStats>),
    /// Send what is queued, for at most that time, end all lanes, stop, then reply.
    Stop(Duration, oneshot::Sender<()>),
}

/// A dial in progress.
#[derive(Clone, Debug)]
struct PendingDial {
    peer: Option<PeerId>, // `None`: any peer that answers, by `ConnectionCommand::Dial`
    purpose: ConnectionPurpose,
    address: Multiaddr,
}

/// State of the connection manager. [`run`](Self::run) is its event loop.
pub(super) struct ConnectionManager {
    swarm: Swarm<LaneBehaviour>,
    me: NodeId,
    standing: watch::Sender<Arc<AdmissionState>>, // read by tasks when a handshake begins
    keyring: Keyring,
    tasks: Tasks,
    directory: Arc<Directory>,
    commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    wanted: mpsc::UnboundedReceiver<WantedLane>,
    reports: mpsc::UnboundedReceiver<Report>,
    events: mpsc::UnboundedSender<NetEvent>,
    peers: BTreeMap<PeerId, PeerState>, // ≤ admitted peers and those that the node keeps
    dials: BTreeMap<ConnectionId, PendingDial>, // ≤ 2 per kept peer, and addresses of `Dial`
    clients: Clients,
    quarantined: VecDeque<NodeId>, // refused by `standing`, oldest first; ≤ QUARANTINED_MAX
    warning_throttle: WarningThrottle,
    counted: ConnectionCounters,
    started: std::time::Instant,
    check_at: Instant, // when the next check of the control lanes is due
    stops: bool,       // `stop` has begun: only lanes with unacknowledged messages are opened
}

/// Counters that [`NetStats`] reports.
#[derive(Clone, Copy, Debug, Default)]
struct ConnectionCounters {
    refused: u64, // peers and clients that this node refused; other failed handshakes don't count
    violations: u64, // inbound lanes that violated the protocol
    given_up: u64, // messages
}

/// Parameters of a new connection manager.
pub(super) struct ConnectionManagerSetup<'a> {
    pub(super) config: &'a NetConfig,
    pub(super) identity: &'a Identity,
    pub(super) receiver: Arc<dyn Receiver>,
    pub(super) commands: mpsc::UnboundedReceiver<ConnectionCommand>,
    pub(super) events: mpsc::UnboundedSender<NetEvent>,
    pub(super) runtimes: Runtimes,
}

/// A connection manager that is ready to run, and what the handle needs of it.
pub(super) struct StartedConnectionManager {
    pub(super) manager: ConnectionManager,
    pub(super) directory: Arc<Directory>,
    pub(super) listening: Vec<Multiaddr>,
    pub(super) advertised: Vec<Multiaddr>,
}

impl ConnectionManager {
    /// Creates the manager, which listens but does not run; fails as [`swarm::listening`] first.
    pub(super) async fn start(
        setup: ConnectionManagerSetup<'_>,
    ) -> Result<StartedConnectionManager, NetStartError> {
        let ConnectionManagerSetup { config, identity, receiver, commands, events, runtimes } =
            setup;
        let keyring = Keyring::new(config.secret.clone());
        let (mut swarm, listeners) = swarm::listening(config, &keyring, identity.keypair())?;
        let listeners = listening(&mut swarm, &config.listen, &listeners).await?;
        let me = identity.node_id();
        let advertised_addresses = match config.advertise.is_empty() {
            true => advertised(&listeners),
            false => config.advertise.clone(),
        };
        let (standing, standings) =
            watch::channel(Arc::new(AdmissionState::new(config, identity, &advertised_addresses)));
        let (directory, wanted) = Directory::new(config.limits.clone());
        let (reporter, reports) = mpsc::unbounded_channel();
        let limits = Arc::new(config.limits.clone());
        let manager = Self {
            swarm,
            me,
            standing,
            keyring,
            tasks: Tasks { standing: standings, limits, receiver, reports: reporter, runtimes },
            directory: directory.clone(),
            commands,
            wanted,
            reports,
            events,
            peers: BTreeMap::new(),
            dials: BTreeMap::new(),
            clients: Clients::new(LimitSlots::new(config.limits.clients)),
            quarantined: VecDeque::new(),
            warning_throttle: WarningThrottle::default(),
            counted: ConnectionCounters::default(),
            started: std::time::Instant::now(),
            check_at: Instant::default(),
            stops: false,
        };
        let listening = listeners.into_iter().flat_map(|listener| listener.bound).collect();
        Ok(StartedConnectionManager {
            manager,
            directory,
            listening,
            advertised: advertised_addresses,
        })
    }

    /// Runs until `Stop`, or until all handles are dropped: then queued messages are not sent.
    pub(super) async fn run(mut self) {
        loop {
            let wait = self.deadline() - self.now().mono;
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(report) = self.reports.recv() => self.on_report(report),
                Some(wanted) = self.wanted.recv() => self.on_wanted(wanted),
                command = self.commands.recv() => match command {
                    Some(ConnectionCommand::Stop(within, done)) => {
                        return self.stop(within, done).await;
                    }
                    Some(command) => self.on_command(command),
                    None => return, // all handles were dropped
                },
                () = tokio::time::sleep(wait) => self.tick(),
            }
        }
    }

    fn now(&self) -> Now {
        let nanos = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Now { mono: Instant::from_nanos(nanos), wall: WallTime::default() }
    }

    fn deadline(&self) -> Instant {
        let links = self.peers.values().filter_map(|peer| peer.link.next_deadline());
        links.chain([self.check_at]).min().unwrap_or(self.check_at)
    }

    fn emit(&self, event: NetEvent) {
        let _ = self.events.send(event); // an error: the node has dropped the receiver
    }

    fn tick(&mut self) {
        self.tick_links();
        self.check_if_due();
    }

    fn tick_links(&mut self) {
        let now = self.now().mono;
        let due = |peer: &PeerState| peer.link.next_deadline().is_some_and(|at| at <= now);
        let due: Vec<PeerId> =
            self.peers.iter().filter(|(_, peer)| due(peer)).map(|(id, _)| *id).collect();
        for peer in due {
            self.feed_link(peer, link::LinkInput::Tick);
        }
    }

    /// Carries out a command of the node. [`run`](Self::run) handles `Stop`, which panics here.
    fn on_command(&mut self, command: ConnectionCommand) {
        match command {
            ConnectionCommand::Dial(address) if self.is_dialling(&address) => {}
            ConnectionCommand::Dial(address) => {
                self.dial(PendingDial { peer: None, purpose: ConnectionPurpose::Main, address });
            }
            ConnectionCommand::Keep(peer, addresses) => {
                if !addresses.is_empty() {
                    self.feed_link(peer, link::LinkInput::Addresses(addresses));
                }
                self.feed_link(peer, link::LinkInput::Keep);
            }
            ConnectionCommand::Release(peer) => {
                self.feed_known_link(peer, link::LinkInput::Release);
            }
            ConnectionCommand::Forget(node) => self.forget(node),
            ConnectionCommand::Clients(taker) => self.clients.deliver_to(taker),
            ConnectionCommand::BelongsTo(id) => self.standing.send_modify(|standing| {
                Arc::make_mut(standing).facts.cluster_id = Some(id);
            }),
            ConnectionCommand::Secrets(secrets) => self.adopt(secrets),
            ConnectionCommand::Inspect(reply) => {
                let _ = reply.send(self.inspect()); // an error: the caller has gone
            }
            ConnectionCommand::Stop(..) => unreachable!("`run` handles it"),
        }
    }

    /// Whether this address is dialled for any peer, or its answer is not yet reported.
    fn is_dialling(&self, address: &Multiaddr) -> bool {
        let under_way =
            |dialled: &PendingDial| dialled.peer.is_none() && dialled.address == *address;
        self.dials.values().any(under_way)
            || self.peers.values().any(|peer| peer.has_answered(address))
    }

    /// Collects the statistics; a peer's outbound lanes are those to its known incarnation.
    fn inspect(&self) -> NetStats {
        let lane = |peer: &PeerState, class| {
            Some(self.directory.used(peer.incarnation()?, class)?.stats())
        };
        let stats = |(id, peer): (&PeerId, &PeerState)| PeerStats {
            peer: *id,
            incarnation: peer.incarnation(),
            kept: peer.link.is_kept(),
            connections: peer.link.connections(),
            linked: peer.link.carrier().is_some(),
            outbound: TrafficClass::ALL.map(|class| lane(peer, class)),
            inbound: TrafficClass::ALL.map(|class| peer.inbound(class).stats()),
        };
        let ConnectionCounters { refused, violations, given_up } = self.counted;
        let lines = self.swarm.behaviour();
        NetStats {
            peers: self.peers.iter().map(stats).collect(),
            exceeded: lines.refusals(),
            handshakes: lines.handshakes(),
            clients: self.clients.count(),
            secrets: self.keyring.ids(),
            refused,
            violations,
            given_up,
        }
    }

    /// Has the link open a lane. Ignores one to an incarnation that is no longer the known one.
    fn on_wanted(&mut self, wanted: WantedLane) {
        if self.peers.get(&wanted.node.peer).and_then(PeerState::incarnation)
            == Some(wanted.node.incarnation)
        {
            self.feed_link(wanted.node.peer, link::LinkInput::Want(wanted.class));
        }
    }

    /// Quarantines an incarnation and drops its lanes, whatever is known of it. If it is the known
    /// one of its peer, also aborts the peer's tasks, removes peer, connections and dials, and last
    /// emits `Forgotten`. A link that is still kept starts anew with its given addresses: the node
    /// releases a peer before it forgets it, so the link is for a later incarnation.
    fn forget(&mut self, node: NodeId) {
        self.quarantine(node);
        self.drop_lanes(node);
        let Some(peer) = self.peers.get_mut(&node.peer) else { return };
        if peer.incarnation() != Some(node.incarnation) {
            return;
        }
        peer.end();
        let kept = peer.link.is_kept().then(|| peer.link.given());
        self.peers.remove(&node.peer);
        let _ = self.swarm.disconnect_peer_id(node.peer);
        self.dials.retain(|_, dialled| dialled.peer != Some(node.peer)); // aborted: no error counts
        if let Some(addresses) = kept {
            self.feed_link(node.peer, link::LinkInput::Addresses(addresses));
            self.feed_link(node.peer, link::LinkInput::Keep);
        }
        self.emit(NetEvent::Forgotten { node });
    }

    /// Ends the lanes to this incarnation and counts its unacknowledged messages.
    fn drop_lanes(&mut self, node: NodeId) {
        for (class, lane) in self.directory.remove(node) {
            self.broken(node, class, lane.break_off());
        }
    }

    /// Counts messages as given up and emits `LaneBroken`, if there are any. Logged at INFO, as it
    /// occurs whenever a node with messages in transit leaves or crashes.
    fn broken(&mut self, node: NodeId, class: TrafficClass, messages: u64) {
        if messages > 0 {
            self.counted.given_up += messages;
            tracing::info!(%node, ?class, messages, "net.lane_broken");
            self.emit(NetEvent::LaneBroken { node, class, messages });
        }
    }

    /// Returns a peer's state, created if unknown; at [`PEERS_MAX`] first drops an idle peer.
    fn peer(&mut self, id: PeerId) -> &mut PeerState {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&id) {
            self.drop_idle();
        }
        let (me, limits) = (self.me.peer, &self.tasks.limits);
        self.peers.entry(id).or_insert_with(|| PeerState::new(me, id, limits))
    }

    /// Forgets the first peer, by id, that is neither kept nor connected. Its lane numbers are
    /// lost, so its incarnation, if known, must be quarantined ([`forget`](Self::forget)).
    fn drop_idle(&mut self) {
        let idle = self.peers.iter().find(|(_, peer)| peer.link.is_idle());
        let Some((id, incarnation)) = idle.map(|(id, peer)| (*id, peer.incarnation())) else {
            return;
        };
        match incarnation {
            Some(incarnation) => self.forget(NodeId { peer: id, incarnation }),
            None => {
                self.peers.remove(&id);
            }
        }
    }

    /// Like `feed_link` for a known peer only: a late event must not re-create a forgotten one.
    fn feed_known_link(&mut self, id: PeerId, input: link::LinkInput) {
        if self.peers.contains_key(&id) {
            self.feed_link(id, input);
        }
    }

    /// Passes an input to a peer's link, created if unknown, and carries out the link's outputs.
    fn feed_link(&mut self, id: PeerId, input: link::LinkInput) {
        let now = self.now();
        let mut out = Outbox::new();
        self.peer(id).link.handle(now, input, &mut out);
        for output in out.drain() {
            match output {
                link::LinkOutput::Dial { purpose, address } => {
                    self.dial(PendingDial { peer: Some(id), purpose, address });
                }
                link::LinkOutput::Open { class, attempt, connection } => {
                    self.open(id, class, attempt, connection);
                }
                link::LinkOutput::GiveUp(class) => self.give_up(id, class),
            }
        }
    }

    /// Dials, and reserves slots for inbound handshakes of that host. May report a failure at once.
    fn dial(&mut self, dialled: PendingDial) {
        if let Some(host) = address::host(&dialled.address) {
            self.swarm.behaviour_mut().add_known_address(host);
        }
        let opts = swarm::dial(dialled.peer, dialled.address.clone());
        let connection = opts.connection_id();
        match self.swarm.dial(opts) {
            Ok(()) => {
                self.dials.insert(connection, dialled);
            }
            Err(error) => self.dial_failed(dialled, &error),
        }
    }

    /// Logs a failed dial, emits `DialRefused` unless it is for bulk, and tells the link if known.
    /// One for any peer that finds this node (or `NoAddresses`) emits `Answered` with `me` instead.
    fn dial_failed(&mut self, dialled: PendingDial, error: &DialError) {
        let PendingDial { peer, purpose, address } = dialled;
        tracing::debug!(%address, %error, "net.dial_failed");
        self.complain_of_dial(peer, &address, error);
        let own = matches!(error, DialError::LocalPeerId { .. } | DialError::NoAddresses);
        if peer.is_none() && own {
            return self.emit(NetEvent::Answered { node: self.me, address });
        }
        if purpose == ConnectionPurpose::Main {
            let reason = error.to_string();
            self.emit(NetEvent::DialRefused { peer, address, reason });
        }
        if let Some(peer) = peer {
            self.feed_known_link(peer, link::LinkInput::DialFailed(purpose));
        }
    }

    /// Spawns the task that opens and carries a lane, and aborts its previous task. A lane to an
    /// incarnation not known yet, or stale, is new and enters the directory only when it is
    /// welcomed. During the stop, opens only lanes with unacknowledged messages.
    fn open(&mut self, id: PeerId, class: TrafficClass, attempt: u64, connection: ConnectionId) {
        let to = self.peer(id).meant();
        if self.stops && !self.has_rest(to, class) {
            return; // the current task may still be sending the end frame
        }
        let known = to.and_then(|to| self.directory.lane_to_open(to, class));
        let is_new = known.is_none();
        let unknown = NodeId { peer: id, incarnation: ReplicaId::default() };
        let lane = known.unwrap_or_else(|| Lane::new(unknown, class, &self.tasks.limits));
        let (reply, stream) = oneshot::channel();
        self.swarm.behaviour_mut().open(connection, class, reply);
        let before = self.peer(id).outbound[class as usize].take();
        let opening =
            OutboundOpening { peer: id, class, attempt, connection, to, lane, is_new, stream };
        let task = self.tasks.open(opening, before);
        self.peer(id).outbound[class as usize] = Some(task);
    }

    /// Abandons a lane, if it exists, and counts its messages; the next one begins a new lane.
    fn give_up(&mut self, id: PeerId, class: TrafficClass) {
        let Some(incarnation) = self.peer(id).incarnation() else { return };
        self.peer(id).reset_stalled(class);
        if let Some(lane) = self.directory.renew(incarnation, class) {
            self.broken(NodeId { peer: id, incarnation }, class, lane.break_off());
        }
    }

    /// Handles an event of the swarm. Emits `Closed` for the last connection of an admitted peer.
    fn on_swarm(&mut self, event: SwarmEvent<swarm::BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(swarm::BehaviourEvent::Inbound {
                peer,
                connection,
                class,
                stream,
            }) => {
                self.tasks.accept(InboundSubstream { peer, connection, class, stream });
            }
            SwarmEvent::Behaviour(swarm::BehaviourEvent::Client(calling)) => {
                self.on_client_call(calling);
            }
            SwarmEvent::Behaviour(swarm::BehaviourEvent::Closing { peer, connection }) => {
                self.closed(peer, connection);
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, .. } => {
                self.established(peer_id, connection_id);
            }
            SwarmEvent::ConnectionClosed {
                peer_id, connection_id, num_established, cause, ..
            } => {
                let cause = cause.map(|cause| cause.to_string()).unwrap_or_default();
                let (node, peer) = (self.name(peer_id), tracing::field::display(peer_id));
                tracing::debug!(node, peer, %connection_id, cause, "net.connection_closed");
                self.closed(peer_id, connection_id);
                if num_established == 0
                    && let Some(incarnation) =
                        self.peers.get_mut(&peer_id).and_then(PeerState::mark_away)
                {
                    self.emit(NetEvent::Closed { node: NodeId { peer: peer_id, incarnation } });
                }
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(dialled) = self.dials.remove(&connection_id) {
                    self.dial_failed(dialled, &error);
                }
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, peer_id, .. } => {
                self.handshake_failed(peer_id, &send_back_addr, &error);
            }
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::error!(?addresses, ?reason, "net.listener_closed: restart this node");
            }
            _ => {}
        }
    }

    /// Adds a connection to its link, but with an unknown peer only if dialled for any peer;
    /// otherwise admission adds it. One dialled for any peer also gets a control lane, and its
    /// address is reported when the peer's incarnation is certain.
    fn established(&mut self, id: PeerId, connection: ConnectionId) {
        let dialled = self.dials.remove(&connection);
        let for_whoever = dialled.as_ref().is_some_and(|dialled| dialled.peer.is_none());
        if !for_whoever && !self.peers.contains_key(&id) {
            return; // not known, or forgotten meanwhile: added once it is admitted
        }
        let dialler = dialled.as_ref().map_or(DialSide::Peer, |d| DialSide::Us(d.purpose));
        if let Some(PendingDial { peer: None, address, .. }) = dialled {
            self.warning_throttle.dial_answered(&address);
            self.peer(id).add_answered(address.clone());
            self.feed_link(id, link::LinkInput::Found(address));
            self.feed_link(id, link::LinkInput::Want(TrafficClass::Control));
        }
        self.feed_link(id, link::LinkInput::Established { connection, dialler });
        self.answered(id);
    }

    /// Ends clients and readers of a closed or closing connection, and tells the link if known.
    fn closed(&mut self, id: PeerId, connection: ConnectionId) {
        self.clients.connection_ended(connection);
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.connection_ended(connection);
            self.feed_link(id, link::LinkInput::Closed(connection));
        }
    }

    fn close(&mut self, connection: ConnectionId) {
        self.swarm.behaviour_mut().close(connection);
    }

    /// Handles a report of a task. Aborts the reader of a hello whose connection has closed by now.
    fn on_report(&mut self, report: Report) {
        match report {
            Report::Hello { peer, connection, hello, reader, reply } => {
                if !self.swarm.behaviour().is_open(connection) {
                    reader.abort(); // closed meanwhile: no later event would abort it
                    return;
                }
                let admitted = self.admit_unless_stopping(peer, connection, &hello.facts);
                let lane = admitted.map(|()| {
                    self.register_inbound_lane(peer, connection, hello.class, reader);
                    self.peer(peer).inbound(hello.class)
                });
                let _ = reply.send(lane); // an error: the substream broke meanwhile
            }
            Report::Welcome(welcomed) => self.welcomed(welcomed),
            Report::Outbound { peer, class, attempt, ended } => {
                self.outbound_ended(peer, class, attempt, ended);
            }
            Report::Inbound { peer, class, why } => self.inbound_ended(peer, class, why),
            Report::ClientAdmitted { connection, ends } => self.client_admitted(connection, ends),
            Report::ClientFailed { peer, connection, why } => {
                self.client_failed(peer, connection, &why);
            }
        }
    }

    /// Judges a lane that a peer has accepted. Its task ends without a reply if, in this order, its
    /// attempt is replaced, the node is not admitted (only `Claimed` is counted), the directory
    /// has another lane, or the lane is hopeless and is given up. Otherwise the task writes.
    fn welcomed(&mut self, welcomed: WelcomedLane) {
        let WelcomedLane { peer, class, attempt, connection, facts, accepted, .. } = welcomed;
        let lane = welcomed.lane;
        if !self.is_current_attempt(peer, class, attempt) {
            return; // a newer attempt replaced it, maybe with another lane
        }
        if let Err(refusal) = self.admit(peer, connection, &facts) {
            self.counted.refused += u64::from(refusal == LaneRefusal::Claimed);
            return;
        }
        if welcomed.is_new && !self.directory.adopt(facts.incarnation, class, &lane) {
            return;
        }
        if lane.stats().appended > accepted
            && self.peer(peer).note_opened(class, connection, accepted) >= STALLED_MAX
        {
            tracing::warn!(
                node = self.name(peer), %peer, ?class, accepted,
                "net.lane_hopeless: the peer has closed the lane {STALLED_MAX} times without \
                 accepting a message; its messages count as lost: see the log of that node"
            );
            return self.give_up(peer, class);
        }
        self.swarm.behaviour_mut().node_admitted(connection);
        let _ = welcomed.reply.send(()); // an error: the task was aborted meanwhile
        self.feed_link(peer, link::LinkInput::Opened { class, attempt });
    }

    /// Registers a lane that an admitted peer has opened on this connection, which the link may not
    /// know yet. The used lanes to the peer are wanted from now on.
    fn register_inbound_lane(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        class: TrafficClass,
        reader: AbortHandle,
    ) {
        self.swarm.behaviour_mut().node_admitted(connection);
        self.peer(id).add_reader(connection, reader);
        if !self.peer(id).link.knows(connection) {
            let dialler = DialSide::Peer;
            self.feed_link(id, link::LinkInput::Established { connection, dialler });
        }
        self.feed_link(id, link::LinkInput::Admitted { connection, class });
        let Some(incarnation) = self.peer(id).incarnation() else { return };
        for class in TrafficClass::ALL {
            if self.directory.used(incarnation, class).is_some() {
                self.feed_link(id, link::LinkInput::Want(class));
            }
        }
    }

    /// Admits the incarnation that a peer has told after proving the secret, and keeps its facts;
    /// emits `Up` if it is new or was away. A former one is first quarantined, loses its lanes, and
    /// is reported as `NewIncarnation`. Refuses, in this order and without counting, a quarantined
    /// one, a claimed one, and as `Superseded` one on a closed connection and an outdated one.
    fn admit(
        &mut self,
        id: PeerId,
        connection: ConnectionId,
        facts: &NodeInfo,
    ) -> Result<(), LaneRefusal> {
        let node = NodeId { peer: id, incarnation: facts.incarnation };
        if self.is_quarantined(node) {
            return Err(LaneRefusal::Quarantined);
        }
        self.check_claim(node)?;
        let rank = self.swarm.behaviour().rank(connection).ok_or(LaneRefusal::Superseded)?;
        let change = self.peer(id).meet(Announcement { facts, rank });
        match change {
            IncarnationChange::Unchanged => {
                if self.peer(id).mark_back() {
                    self.emit(NetEvent::Up { node, facts: facts.clone() });
                }
                self.answered(id);
                return Ok(());
            }
            IncarnationChange::Outdated => return Err(LaneRefusal::Superseded),
            IncarnationChange::FirstContact | IncarnationChange::Restarted { .. } => {
                _ = self.peer(id).mark_back();
            }
        }
        self.directory.add(node, facts);
        if let IncarnationChange::Restarted { old, is_proof } = change {
            let old = NodeId { peer: id, incarnation: old };
            self.quarantine(old);
            self.drop_lanes(old);
            self.emit(NetEvent::NewIncarnation { old, node, is_proof });
            self.feed_link(id, link::LinkInput::Reborn);
        }
        self.emit(NetEvent::Up { node, facts: facts.clone() });
        self.answered(id);
        Ok(())
    }

    /// Refuses and logs an incarnation of another peer or of this node
    /// (docs/protocol/transport.md#one-peer-per-incarnation).
    fn check_claim(&mut self, node: NodeId) -> Result<(), LaneRefusal> {
        let is_own = node.incarnation == self.me.incarnation;
        let own = is_own.then_some(self.me.peer);
        let whose = own.or_else(|| self.directory.peer_of(node.incarnation));
        let Some(other) = whose.filter(|whose| *whose != node.peer) else { return Ok(()) };
        if self.warning_throttle.due(std::time::Instant::now(), self.source(node.peer), "claimed") {
            tracing::warn!(
                %node, peer = %node.peer, other = %NodeId { peer: other, ..node },
                "net.claimed: two peers claim one incarnation; the other one came first and keeps \
                 it, so this one is refused: restart it with its own data directory"
            );
        }
        Err(LaneRefusal::Claimed)
    }

    /// Emits `Answered` once for each address where a peer answers, if its incarnation is certain.
    fn answered(&mut self, id: PeerId) {
        let Some((incarnation, addresses)) = self.peer(id).take_answered() else { return };
        let node = NodeId { peer: id, incarnation };
        addresses.into_iter().for_each(|address| self.emit(NetEvent::Answered { node, address }));
    }

    fn is_current_attempt(&self, id: PeerId, class: TrafficClass, attempt: u64) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.link.is_current_attempt(class, attempt))
    }

    /// Tells the link how a substream ended, but not of a replaced attempt, nor of a lane that is
    /// finished at the stop. A refusal by the peer is logged and emitted, not counted. It is only a
    /// break for `WrongIncarnation`, which makes the known one stale, `Gap` and `Superseded`, which
    /// give the lane up, and `Stopping` unless this node stops. A refusal of the peer is counted.
    fn outbound_ended(
        &mut self,
        id: PeerId,
        class: TrafficClass,
        attempt: u64,
        ended: OutboundEnd,
    ) {
        if !self.is_current_attempt(id, class, attempt) {
            return; // of a replaced attempt, maybe to an earlier incarnation
        }
        let end = match ended {
            OutboundEnd::Finished if self.stops => return, // it is not opened again
            OutboundEnd::Finished => End::Broken,
            OutboundEnd::Broken(why) => {
                let node = self.name(id);
                tracing::debug!(node, peer = %id, ?class, why, "net.substream_ended");
                End::Broken
            }
            OutboundEnd::Refused(refusal) => {
                self.log_refusal_by_peer(id, &refusal);
                let end = match refusal {
                    LaneRefusal::WrongIncarnation { .. } => {
                        self.peer(id).mark_stale();
                        End::Broken
                    }
                    LaneRefusal::Gap { .. } | LaneRefusal::Superseded => {
                        self.give_up(id, class);
                        End::Broken
                    }
                    LaneRefusal::Stopping if !self.stops => End::Broken,
                    _ => End::Refused,
                };
                self.emit(NetEvent::Refused { peer: id, refusal });
                end
            }
            OutboundEnd::Unacceptable(refusal) => {
                self.refused(id, &refusal);
                End::Refused
            }
        };
        self.feed_link(id, link::LinkInput::Ended { class, attempt, end });
    }

    /// Counts and logs a refusal or violation of a peer's lane; a failed handshake is only logged.
    fn inbound_ended(&mut self, id: PeerId, class: TrafficClass, why: InboundError) {
        match why {
            InboundError::Refused(refusal) => self.refused(id, &refusal),
            InboundError::Handshake(error) => {
                let node = self.name(id);
                tracing::debug!(node, peer = %id, ?class, %error, "net.lane_not_opened");
            }
            InboundError::Violation(ended) => {
                self.counted.violations += 1;
                self.complain_of_violation(id, class, &ended);
            }
        }
    }

    fn refused(&mut self, id: PeerId, refusal: &LaneRefusal) {
        self.counted.refused += 1;
        self.log_refused_peer(id, refusal);
    }
}

/// Waits, without a limit, until each listener has reported an address, and takes all queued ones:
/// one on all addresses reports one per interface. Fails if a listener closes. Drops other events.
async fn listening(
    swarm: &mut Swarm<LaneBehaviour>,
    wanted: &[Multiaddr],
    ids: &[ListenerId],
) -> Result<Vec<Listener>, NetStartError> {
    let unbound = |wanted: &Multiaddr| Listener { wanted: wanted.clone(), bound: Vec::new() };
    let mut listeners: Vec<Listener> = wanted.iter().map(unbound).collect();
    let nth = |id: ListenerId| ids.iter().position(|known| *known == id);
    loop {
        let event = if listeners.iter().any(|listener| listener.bound.is_empty()) {
            swarm.select_next_some().await
        } else {
            let Some(event) = swarm.select_next_some().now_or_never() else { break };
            event
        };
        match event {
            SwarmEvent::NewListenAddr { listener_id, address } => {
                if let Some(nth) = nth(listener_id) {
                    listeners[nth].bound.push(address);
                }
            }
            SwarmEvent::ListenerClosed { listener_id, reason: Err(source), .. } => {
                if let Some(nth) = nth(listener_id) {
                    return Err(NetStartError::Listen { address: wanted[nth].clone(), source });
                }
            }
            _ => {} // a peer that connects this early tries again
        }
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests;
