//! A whole node of a cluster in the simulator: membership and the guarded Replicator, connected by
//! the functions that the real driver uses, over a transport with handshakes.
//!
//! The simulator provides the links. A node exchanges messages only with nodes with which it has
//! completed a handshake; a message for a life that has ended is answered with a reset, as on a TCP
//! connection.

#![allow(dead_code, unused_imports, reason = "shared by suites, each of which uses a part")]

pub(crate) mod entities;
pub(crate) mod house;
mod links;
mod meter;
mod places;
pub(crate) mod strategies;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::downing::LeaseAnswer;
use ostraca::cluster::events::ClusterEvent;
use ostraca::cluster::fault_injection::MembershipFaultInjection;
use ostraca::cluster::gossip::ClusterId;
use ostraca::cluster::lease::LeaseMessage;
use ostraca::cluster::lease::guard::{GuardInput, GuardOutput, GuardedReplicator};
use ostraca::cluster::member::{Address, Status};
use ostraca::cluster::membership::Membership;
use ostraca::cluster::membership::port::{
    MembershipCommand, MembershipInput, MembershipSetup, Memory, OperatorNotice, StopReason,
};
use ostraca::cluster::wire::{ClusterMessage, ComparedSettings};
use ostraca::node::routes::membership::{
    MembershipDestination, MembershipEvent as Told, RoutedLeaseMessage, TransportCommand, lease,
    news, route,
};
use ostraca::node::routes::sharding::{self, answer, overheard};
use ostraca::sharding::machines::{Machines, ShardingInput as Fact};
use ostraca::sharding::region::PayloadPartSizes;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::data::Registry;
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{AcceptedProposal, Epoch, EpochId};
use ostraca_ddata::replicator::wire::ReplicatorMessage;
use ostraca_ddata::replicator::{self, Replicator, port as data};
use ostraca_ddata::sim::{Boot, Direction, Effects, NodeIndex, Process, RandomStream, SyncFailed};

use self::entities::{Entities, Order, Seen};
use self::house::{House, Houses, Parcel};
pub(crate) use self::meter::{Meter, Sent};
pub(crate) use self::places::{address, addresses, alias, name_of_all, node_at, place_of};
use self::places::{dialled, place_of_id};
pub(crate) use self::watch::Watch;

/// Value of `wait_without_quorum` with [`World::waits`].
const HALF_AN_HOUR: Duration = Duration::from_secs(1_800);

const DIAL_TIMEOUT: Duration = Duration::from_secs(1);
const REDIAL_EVERY: Duration = Duration::from_millis(500);

/// Interval at which a leaving node checks whether its sent messages have all arrived.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Gossip states with more members are neither re-encoded nor fully hashed on their way, because
/// that would dominate the run time of a bench of a thousand nodes.
const MEMBERS_LOOKED_AT: usize = 200;

/// An entity message has 8 bytes: two fit into one payload, more are split into parts.
const CUT: PayloadPartSizes = PayloadPartSizes { whole: 16, part: 8, window: 16, words: 1 << 20 };

/// Settings of the nodes of a run. Cheap to clone.
#[derive(Clone)]
pub(crate) struct World {
    /// Settings of the node at a place, without its own address.
    pub(crate) config: Rc<dyn Fn(usize) -> ClusterConfig>,
    /// Settings that must agree between nodes, by place.
    pub(crate) settings: Rc<dyn Fn(usize) -> ComparedSettings>,
    /// The address that the node at a place advertises.
    pub(crate) claims: Rc<dyn Fn(usize) -> Address>,
    /// Whether a place has a data directory; with one, memory and identity survive a restart.
    pub(crate) keeps: Rc<dyn Fn(usize) -> bool>,
    /// Names the data directory of a life at a place; a new name in each life stands for a copied
    /// directory.
    pub(crate) directory: Rc<dyn Fn(usize, u32) -> u64>,
    /// Whether a restart with a data directory proves that the old process is dead.
    pub(crate) proof: bool,
    /// Time that a leaving node takes to drain; `None` means that it never finishes.
    pub(crate) drain: Option<Duration>,
    /// Probability that a message between nodes that have shaken hands is lost; 0 to 1.
    pub(crate) loss: Rc<Cell<f64>>,
    /// The holder of the lease of `lease-majority`.
    pub(crate) downing_lease: Rc<Cell<Option<NodeId>>>,
    /// Counts sent messages if present.
    pub(crate) meter: Option<Rc<RefCell<Meter>>>,
    /// Creates real entity runtimes, in place of the simulated entities.
    pub(crate) houses: Option<Houses>,
    pub(crate) cut: PayloadPartSizes,
    /// Whether a side without a quorum waits half an hour for an operator; otherwise it stops at
    /// once, as by default.
    pub(crate) waits: bool,
    pub(crate) fault_injection: MembershipFaultInjection,
}

impl World {
    /// Every node has these settings and a data directory; the first `seeds` places are seeds.
    pub(crate) fn new(seeds: usize) -> Self {
        Self::with(move |_| ClusterConfig {
            seeds: addresses(0..seeds),
            ..ClusterConfig::default()
        })
    }

    pub(crate) fn with(config: impl Fn(usize) -> ClusterConfig + 'static) -> Self {
        Self {
            config: Rc::new(config),
            settings: Rc::new(|_| ComparedSettings::default()),
            claims: Rc::new(address),
            keeps: Rc::new(|_| true),
            directory: Rc::new(|place, _| place as u64),
            proof: true,
            drain: Some(Duration::from_millis(50)),
            loss: Rc::new(Cell::new(0.0)),
            downing_lease: Rc::new(Cell::new(None)),
            meter: None,
            houses: None,
            cut: CUT,
            waits: false,
            fault_injection: MembershipFaultInjection::none(),
        }
    }

    /// The factory of nodes for [`ostraca_ddata::sim::Simulation::new`].
    pub(crate) fn factory(self) -> impl FnMut(Boot<'_, Vec<Memory>>) -> WholeNode {
        move |boot| WholeNode::new(&boot, self.clone())
    }
}

/// The member that an event concerns, and its status.
fn told_of(event: &ClusterEvent) -> Option<(NodeId, Status)> {
    match event {
        ClusterEvent::MemberRemoved { member, .. }
        | ClusterEvent::MemberJoined(member)
        | ClusterEvent::MemberWeaklyUp(member)
        | ClusterEvent::MemberUp(member)
        | ClusterEvent::MemberLeft(member)
        | ClusterEvent::MemberExited(member)
        | ClusterEvent::MemberDowned(member) => Some((member.node, member.status)),
        _ => None,
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// A handshake, or the answer to one; an answer is not answered.
    Hello {
        address: Address,
        cluster: Option<ClusterId>,
        keeps: bool,
        is_answer: bool,
    },
    /// No process listens here.
    Refused,
    /// The receiver was removed, so its handshake is rejected.
    Quarantined,
    /// The addressed life has ended or has closed the link.
    Reset {
        meant: NodeId,
        /// The link on which the unroutable message came; `None` stands for any link.
        link: Option<u64>,
    },
    Cluster(ClusterMessage),
    Lease(LeaseMessage),
    Data(ReplicatorMessage),
    /// The first name of its header, the entity type and the bytes.
    Sharding(&'static str, String, Vec<u8>),
    /// A frame of a user lane.
    User(Parcel),
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: NodeId,
    /// `None`: the process that currently runs at the place.
    pub(crate) to: Option<NodeId>,
    /// Number of the sender's link to that place, in order of handshakes.
    pub(crate) link: u64,
    pub(crate) body: Body,
}

/// Requests of a harness to a node.
#[derive(Debug)]
pub(crate) enum Command {
    /// A user's request to membership.
    User(MembershipCommand),
    /// Delivers a message as if the given node had sent it.
    Inject(NodeId, ClusterMessage),
    /// An input of the Replicator.
    Data(Box<data::ReplicatorInput>),
    /// A request to the sharding machines or to the simulated entities.
    Sharding(Order),
}

/// Events that a harness observes.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Installed(Arc<Epoch>),
    Synced(EpochId),
    Belongs(ClusterId),
    /// The node has founded: its Replicator received the first configuration.
    Found(Arc<Epoch>),
    Cluster(ClusterEvent),
    Notice(OperatorNotice),
    /// The node may begin messages; emitted at each renewal.
    Leased,
    Lapsed,
    Stopped(StopReason),
    Sharding(Seen),
}

#[derive(Debug)]
enum Work {
    Membership(MembershipInput),
    Guard(GuardInput),
    Sharding(Fact),
}

pub(crate) struct WholeNode {
    world: World,
    place: usize,
    keeps: bool,
    me: NodeId,
    pub(crate) membership: Membership,
    pub(crate) guard: GuardedReplicator,
    pub(crate) machines: Machines,
    pub(crate) entities: Entities,
    pub(crate) house: Option<Box<dyn House>>,
    pub(crate) over: Option<StopReason>,
    cluster: Option<ClusterId>,
    links: BTreeMap<usize, NodeId>,             // completed handshakes
    shaken: BTreeMap<usize, u64>,               // number of handshakes
    gone: Vec<ReplicaId>,                       // links closed since the last run
    lives: BTreeMap<usize, NodeId>,             // newest known of each place
    kept: BTreeMap<NodeId, Address>,            // links that membership wants
    dials: BTreeMap<usize, (Address, Instant)>, // not answered yet
    forgotten: BTreeSet<NodeId>,
    redial_at: Option<Instant>,
    drained_at: Option<Instant>,
    left_at: Option<Instant>, // when the wait for its sent messages began
    work: VecDeque<Work>,
    persists: u64,
    pub(crate) memory: Memory, // last written to disk
    pub(crate) notices: Vec<OperatorNotice>,
    losing: RandomStream,        // decides the lost messages
    seen: Vec<(NodeId, Status)>, // statuses reported to subscribers
}

impl WholeNode {
    fn new(boot: &Boot<'_, Vec<Memory>>, world: World) -> Self {
        let place = boot.node.get();
        let keeps = (world.keeps)(place);
        let me = node_at(place, boot.incarnation, keeps);
        let mut config = (world.config)(place);
        if world.waits {
            config.downing.wait_without_quorum.get_or_insert(HALF_AN_HOUR);
        }
        let memory = boot.disk.last().filter(|_| keeps).cloned().unwrap_or_default();
        let membership = Membership::new(MembershipSetup {
            me,
            address: (world.claims)(place),
            config,
            settings: (world.settings)(place),
            memory: memory.clone(),
            directory: keeps.then(|| (world.directory)(place, boot.incarnation)),
            seed: boot.seed,
            fault_injection: world.fault_injection,
        });
        let replicator = Replicator::new(replicator::ReplicatorParameters {
            me: me.incarnation,
            config: ReplicatorConfig::default(),
            registry: Registry::default(),
            seed: boot.seed ^ 1,
            fault_injection: ostraca_ddata::fault_injection::FaultInjection::none(),
        });
        Self {
            guard: GuardedReplicator::new(replicator, world.fault_injection),
            machines: Machines::new(me.incarnation, Duration::ZERO).cutting(world.cut),
            entities: Entities::new(boot.seed),
            house: world.houses.as_ref().map(|house| house(me.incarnation, boot.seed)),
            world,
            place,
            keeps,
            me,
            membership,
            over: None,
            cluster: None,
            links: BTreeMap::new(),
            shaken: BTreeMap::new(),
            gone: Vec::new(),
            lives: BTreeMap::new(),
            kept: BTreeMap::new(),
            dials: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            redial_at: None,
            drained_at: None,
            left_at: None,
            work: VecDeque::new(),
            persists: 0,
            memory,
            notices: Vec::new(),
            losing: RandomStream::split(boot.seed, "loss", 0),
            seen: Vec::new(),
        }
    }

    pub(crate) fn me(&self) -> NodeId {
        self.me
    }

    /// Whether this node rejects that life because it removed it.
    pub(crate) fn refuses(&self, node: NodeId) -> bool {
        self.forgotten.contains(&node)
    }

    /// Whether a dial of that place is unanswered.
    pub(crate) fn is_dialling(&self, place: usize) -> bool {
        self.dials.contains_key(&place)
    }

    /// The cluster that the node belongs to, or belonged to when it stopped.
    pub(crate) const fn belonged(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// The node's own status in its gossip.
    pub(crate) fn status(&self) -> Option<Status> {
        let own = self.membership.gossip()?.member(self.me.incarnation)?;
        Some(own.status)
    }

    /// The configuration that the Replicator has installed.
    pub(crate) fn epoch(&self) -> Option<&Arc<Epoch>> {
        self.guard.replicator().epochs().installed()
    }

    /// The accepted proposal for the next configuration.
    pub(crate) fn accepted(&self) -> Option<&AcceptedProposal> {
        self.guard.replicator().epochs().state().accepted.as_ref()
    }

    /// Whether any handshake has completed.
    pub(crate) fn is_linked(&self) -> bool {
        !self.links.is_empty()
    }

    /// Places of the members that this node lists as Up.
    pub(crate) fn up(&self) -> BTreeSet<usize> {
        let Some(gossip) = self.membership.gossip() else { return BTreeSet::new() };
        let up = gossip.members().filter(|member| member.status == Status::Up);
        up.map(|member| place_of(member.node)).collect()
    }

    /// Places of all members that this node lists.
    pub(crate) fn members(&self) -> BTreeSet<usize> {
        let Some(gossip) = self.membership.gossip() else { return BTreeSet::new() };
        gossip.members().map(|member| place_of(member.node)).collect()
    }

    /// The node's state, for a failure report.
    pub(crate) fn story(&self) -> String {
        let members = self.membership.gossip().map(|gossip| {
            let unreachable = gossip.unreachable();
            let mark = |id| if unreachable.contains(&id) { "?" } else { "" };
            let member = |m: &Arc<ostraca::cluster::member::Member>| {
                format!("{}{}{}", m.node.incarnation, m.status, mark(m.incarnation()))
            };
            let members: Vec<String> = gossip.members().map(member).collect();
            let records = gossip.reachability().records();
            let records: Vec<String> =
                records.map(|record| format!("{}>{}", record.observer, record.subject)).collect();
            let (members, records) = (members.join(" "), records.join(" "));
            format!("{members}; {records}; seen by {} of {}", gossip.seen().len(), gossip.len())
        });
        let epochs = self.guard.replicator().epochs();
        let epoch = epochs.installed().map(|epoch| (epoch.id().number, epoch.members().to_vec()));
        format!(
            "{} ({}): over {:?}, {members:?}, epoch {epoch:?} member {} sealed {} synced {}, links \
             {:?}\n  {:?} {:?} {:?}\n",
            self.place,
            self.me.incarnation,
            self.over,
            epochs.is_member(),
            epochs.sealed(),
            epochs.synced(),
            self.links.keys().collect::<Vec<_>>(),
            self.membership.stats(),
            epochs.stats(),
            self.notices,
        )
    }

    /// The statuses of the node at a place that subscribers were told, in order.
    pub(crate) fn lives_seen(&self, place: usize) -> Vec<Status> {
        let of_it = self.seen.iter().filter(|(node, _)| place_of(*node) == place);
        of_it.map(|(_, status)| *status).collect()
    }

    pub(crate) fn converged(&self) -> bool {
        self.membership.gossip().is_some_and(|gossip| gossip.converged(self.me.incarnation))
    }

    // ── wiring ──

    /// Processes queued inputs and the inputs that their outputs cause.
    fn work_off(&mut self, now: Now, fx: &mut Effects<Self>) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Membership(input) => {
                    let mut out = Outbox::new();
                    self.work.extend(overheard(&input).map(Work::Sharding));
                    self.membership.handle(now, input, &mut out);
                    for output in out.drain() {
                        let told = sharding::news(&output, &self.membership);
                        self.work.extend(told.map(Work::Sharding));
                        self.dest(now, route(output), fx);
                    }
                }
                Work::Sharding(fact) => self.shard(now, fact, fx),
                Work::Guard(input) => {
                    let mut out = Outbox::new();
                    self.guard.handle(now, input, &mut out);
                    out.drain().for_each(|output| self.guarded(output, fx));
                }
            }
        }
    }

    fn dest(&mut self, now: Now, dest: MembershipDestination, fx: &mut Effects<Self>) {
        if let MembershipDestination::Disk(memory) = &dest {
            self.memory.clone_from(memory);
        }
        match dest {
            MembershipDestination::Peer { to, message } => {
                self.send(to, Body::Cluster(message), fx);
            }
            MembershipDestination::Lease { to, message } => self.lease(to, message, fx),
            MembershipDestination::Guard(input) => {
                if let GuardInput::Data(data::ReplicatorInput::Found(epoch)) = &input {
                    fx.emit(Event::Found(epoch.clone()));
                }
                self.work.push_back(Work::Guard(input));
            }
            MembershipDestination::Transport(order) => self.transport(now, order, fx),
            MembershipDestination::Disk(memory) if self.keeps => {
                fx.write(memory);
                self.persists += 1;
                fx.sync(self.persists);
            }
            MembershipDestination::Disk(_) => {
                self.work.push_back(Work::Membership(MembershipInput::Persisted));
            }
            MembershipDestination::Node(told) => self.told(told, fx),
        }
    }

    fn guarded(&mut self, output: GuardOutput, fx: &mut Effects<Self>) {
        self.work.extend(news(&output).map(Work::Membership));
        let output = match answer(output) {
            ControlFlow::Break(fact) => return self.work.push_back(Work::Sharding(fact)),
            ControlFlow::Continue(output) => output,
        };
        match output {
            GuardOutput::Lease { to, message } => self.lease(to, message, fx),
            GuardOutput::Data(data::ReplicatorOutput::Send { to, message, .. }) => {
                if let Some(to) = self.linked(to) {
                    self.send(to, Body::Data(message), fx);
                }
            }
            GuardOutput::Data(data::ReplicatorOutput::Installed(epoch)) => {
                fx.emit(Event::Installed(epoch));
            }
            GuardOutput::Data(data::ReplicatorOutput::Synced(id)) => fx.emit(Event::Synced(id)),
            GuardOutput::Data(_) => {}
        }
    }

    fn lease(&mut self, to: ReplicaId, message: LeaseMessage, fx: &mut Effects<Self>) {
        if to == self.me.incarnation {
            self.leased(to, message);
        } else if let Some(to) = self.linked(to) {
            self.send(to, Body::Lease(message), fx);
        }
    }

    fn leased(&mut self, from: ReplicaId, message: LeaseMessage) {
        self.work.push_back(match lease(from, message) {
            RoutedLeaseMessage::Guard(input) => Work::Guard(input),
            RoutedLeaseMessage::Membership(input) => Work::Membership(input),
        });
    }

    fn told(&mut self, told: Told, fx: &mut Effects<Self>) {
        match told {
            Told::Cluster(event) => {
                if let ClusterEvent::MemberLeft(member) = &event
                    && member.node == self.me
                {
                    self.work.extend([Fact::Drain, Fact::Leave].map(Work::Sharding));
                }
                self.seen.extend(told_of(&event));
                fx.emit(Event::Cluster(event));
            }
            Told::Notice(notice) => {
                self.notices.push(notice.clone());
                fx.emit(Event::Notice(notice));
            }
            Told::LeaseHeld(_) => fx.emit(Event::Leased),
            Told::LeaseLapsed | Told::LeaseLost => {
                if let (Told::LeaseLost, Some(house)) = (&told, &mut self.house) {
                    house.lapsed();
                }
                fx.emit(Event::Lapsed);
            }
            Told::DowningLease { acquire } => self.outside(acquire),
            Told::Stop(why) => {
                fx.emit(Event::Stopped(why));
                self.over = Some(why);
                let reset = Body::Reset { meant: self.me, link: None };
                for to in std::mem::take(&mut self.links).into_values() {
                    self.write(place_of(to), Some(to), reset.clone(), fx);
                }
            }
        }
    }

    /// The simulated provider of `lease-majority`'s lease answers at once.
    fn outside(&mut self, acquire: bool) {
        let holder = self.world.downing_lease.get();
        let is_free = holder.is_none_or(|holder| holder == self.me);
        if is_free {
            self.world.downing_lease.set(acquire.then_some(self.me));
        }
        if acquire {
            let answer = if is_free { LeaseAnswer::Granted } else { LeaseAnswer::Denied };
            self.work.push_back(Work::Membership(MembershipInput::DowningLease(Some(answer))));
        }
    }
}

/// Hashes frequent and long messages by their key fields, because formatting a state takes longer
/// than processing it. `None`: the caller hashes the text of the message.
fn hash_message(message: &ClusterMessage, hasher: &mut DefaultHasher) -> Option<()> {
    use ClusterMessage as M;
    std::mem::discriminant(message).hash(hasher);
    match message {
        M::Heartbeat(sequence) | M::HeartbeatAnswer(sequence) => sequence.hash(hasher),
        M::Gossip(gossip) if gossip.len() > MEMBERS_LOOKED_AT => {
            (gossip.len(), gossip.seen().len()).hash(hasher);
        }
        M::Gossip(gossip) | M::Welcome { gossip } => {
            (gossip.digest(), gossip.seen().len()).hash(hasher);
        }
        M::GossipDelta(delta) => delta.content().hash(hasher),
        M::GossipDigest(digest) => (digest.content, digest.seen).hash(hasher),
        M::GossipStatus(status) => (status.content, status.seen).hash(hasher),
        M::GossipSeen(seen) => (seen.content, seen.nodes.len()).hash(hasher),
        _ => return None,
    }
    Some(())
}

impl Process for WholeNode {
    type Message = Packet;
    type Command = Command;
    type Event = Event;
    type Disk = Vec<Memory>;

    fn message(&mut self, now: Now, from: NodeIndex, packet: Packet, fx: &mut Effects<Self>) {
        if self.over.is_some() {
            if let Body::Hello { .. } = packet.body {
                self.write(from.get(), Some(packet.from), Body::Refused, fx);
            }
            return;
        }
        self.receive(now, packet, fx);
        self.work_off(now, fx);
        self.keep_house(now, fx);
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        if self.over.is_some() {
            return;
        }
        let work = match command {
            Command::User(wish) => Some(Work::Membership(MembershipInput::Command(wish))),
            Command::Inject(from, message) => Some(Work::Membership(MembershipInput::Message {
                from,
                message,
                waited: Duration::ZERO,
            })),
            Command::Data(input) => Some(Work::Guard(GuardInput::Data(*input))),
            Command::Sharding(order) => self.ordered(now, order, fx).map(Work::Sharding),
        };
        self.work.extend(work);
        self.work_off(now, fx);
        self.keep_house(now, fx);
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        if self.over.is_some() {
            return;
        }
        let late = self.dials.iter().filter(|(_, (_, until))| now.mono >= *until);
        for place in late.map(|(place, _)| *place).collect::<Vec<_>>() {
            if let Some((address, _)) = self.dials.remove(&place) {
                self.refused(place, address);
            }
        }
        if self.redial_at.is_some_and(|at| now.mono >= at) {
            self.redial(now, fx);
        }
        if self.drained_at.is_some_and(|at| now.mono >= at) {
            let is_calm = self.is_calm(now);
            self.drained_at = (!is_calm).then(|| now.mono + LOOK_EVERY);
            let drained = is_calm
                .then_some(Work::Membership(MembershipInput::Command(MembershipCommand::Drained)));
            self.work.extend(drained);
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| now.mono >= at);
        if is_due(self.guard.next_deadline()) {
            self.work.push_back(Work::Guard(GuardInput::Data(data::ReplicatorInput::Tick)));
        }
        self.work_off(now, fx);
        if self.over.is_none() && is_due(self.membership.next_deadline()) {
            self.work.push_back(Work::Membership(MembershipInput::Tick));
            self.work_off(now, fx);
        }
        self.entities_due(now, fx);
        if self.over.is_none() && is_due(self.machines.next_deadline()) {
            self.work.push_back(Work::Sharding(Fact::Tick));
            self.work_off(now, fx);
        }
        self.keep_house(now, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.over.is_some() {
            return None;
        }
        let dials = self.dials.values().map(|(_, until)| *until).min();
        let machines = [
            self.membership.next_deadline(),
            self.guard.next_deadline(),
            self.machines.next_deadline(),
            self.entities.next_deadline(),
        ];
        let house = self.house.as_ref().and_then(|house| house.next_deadline());
        let own = [dials, self.redial_at, self.drained_at, house];
        own.into_iter().chain(machines).flatten().min()
    }

    fn synced(
        &mut self,
        now: Now,
        _token: u64,
        outcome: Result<(), SyncFailed>,
        fx: &mut Effects<Self>,
    ) {
        if self.over.is_none() && outcome.is_ok() {
            self.work.push_back(Work::Membership(MembershipInput::Persisted));
            self.work_off(now, fx);
            self.keep_house(now, fx);
        }
    }

    fn link_broken(&mut self, now: Now, peer: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        if self.over.is_some() {
            return;
        }
        if let Some(node) = self.links.get(&peer.get()).copied() {
            self.hang_up(node);
            self.redial(now, fx);
            self.work_off(now, fx);
            self.keep_house(now, fx);
        }
    }

    fn link_up(&mut self, now: Now, _: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        if self.over.is_none() {
            self.redial(now, fx);
            self.work_off(now, fx);
            self.keep_house(now, fx);
        }
    }

    fn digest(packet: &Packet) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        (packet.from, packet.to).hash(&mut hasher);
        match &packet.body {
            Body::Cluster(message) => hash_message(message, &mut hasher)?,
            Body::Lease(message) => message.hash(&mut hasher),
            Body::Data(message) => message.hash(&mut hasher),
            _ => return None, // the simulator hashes its text
        }
        Some(hasher.finish())
    }

    fn recode(mut packet: Packet) -> Packet {
        packet.body = match packet.body {
            Body::Cluster(ClusterMessage::Gossip(gossip)) if gossip.len() > MEMBERS_LOOKED_AT => {
                Body::Cluster(ClusterMessage::Gossip(gossip))
            }
            Body::Cluster(message) => {
                let bytes = rmp_serde::to_vec_named(&message).expect("plain data");
                let again: ClusterMessage = rmp_serde::from_slice(&bytes).expect("our own bytes");
                assert_eq!(again, message, "decoding returns the encoded message");
                Body::Cluster(again)
            }
            Body::Lease(message) => {
                let bytes = rmp_serde::to_vec_named(&message).expect("plain data");
                Body::Lease(rmp_serde::from_slice(&bytes).expect("our own bytes"))
            }
            Body::Data(message) => {
                Body::Data(ReplicatorMessage::decode(&message.encode()).expect("our own bytes"))
            }
            other => other,
        };
        packet
    }
}
