//! A simulated node: the real Replicator, a region, and a coordinator while the harness runs one
//! here. Stand-ins: membership (the harness announces the members and proposes configurations),
//! leases (none: only crashed nodes are removed), the singleton (the harness starts and stops
//! coordinators at will), the strategy (any region), gates (a message arrives where the shard is
//! hosted), and entities (a mailbox of numbers for each shard, handled one after the other; the
//! messages that are left when a drain ends are the payload).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ostraca::sharding::config::MajorityPlus;
use ostraca::sharding::coordinator::{
    Chosen, Coordinator, CoordinatorConfig, CoordinatorInput, CoordinatorOutput, CoordinatorPhase,
};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::home::ShardHome;
use ostraca::sharding::ids::{EntityType, Generation, RegionId, ShardId};
use ostraca::sharding::installed::Installed;
use ostraca::sharding::region::{
    HostingPhase, PayloadPartSizes, Region, RegionConfig, RegionInput, RegionOutput, RegionShard,
};
use ostraca::sharding::store::{HomesKey, StoreAnswer, StoreRequest};
use ostraca::sharding::wire::ShardingMessage;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, MembershipChange};
use ostraca_ddata::replicator::port::{LaneClass, Peer, ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::RequestId;
use ostraca_ddata::replicator::wire::ReplicatorMessage;
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters};
use ostraca_ddata::sim::{Boot, Direction, Effects, NodeIndex, Process, RandomStream};

pub(crate) const SHARDS: u32 = 6;
const MS: Duration = Duration::from_millis(1);

/// The id of a node's `life`-th incarnation.
pub(crate) fn replica(node: usize, life: u32) -> ReplicaId {
    ReplicaId::new((u64::from(life) << 16) | (node as u64 + 1))
}

pub(crate) fn node_of(replica: ReplicaId) -> NodeIndex {
    NodeIndex::new((replica.get() & 0xffff) as usize - 1)
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    Data(ReplicatorMessage),
    Sharding(ShardingMessage),
}

/// A message between two incarnations. A node ignores messages to its earlier incarnations.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    from: ReplicaId,
    to: ReplicaId,
    content: Content,
}

#[derive(Debug)]
pub(crate) enum Command {
    Found(Arc<Epoch>),
    Members(Vec<Peer>),
    Propose(MembershipChange),
    /// An operator forces a configuration with these members and the node itself.
    Force(BTreeSet<ReplicaId>),
    /// Starts (`true`) or stops the coordinator on this node.
    Coordinate(bool),
    CoordinatorAt(ReplicaId),
    Want(ShardId),
    /// Moves the shard to a random region, or to home `None`.
    Move(ShardId),
    MoveTo(ShardId, Option<RegionId>),
    /// A message for an entity of the shard; ignored unless the shard is hosted here.
    Tell(ShardId, u64),
}

#[derive(Debug)]
pub(crate) enum Event {
    Installed(Arc<Epoch>),
    /// A coordinator has read these homes.
    Read(Vec<(ShardId, ShardHome)>),
    /// A quorum has acknowledged these homes.
    Decided(Vec<(ShardId, ShardHome)>),
    Hosts(ShardId, Generation),
    Adopted,
    Refused,
    /// The message went into a mailbox.
    Accepted(u64),
    Handled(u64),
    /// The message was dropped and counted as lost.
    Discarded(u64),
}

/// Rules of sharding and of the Replicator that a fault injection leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weakened {
    pub(crate) rule: ShardingFaultInjection,
    pub(crate) store: FaultInjection,
}

pub(crate) struct Node {
    id: ReplicaId,
    key: HomesKey,
    pub(crate) replicator: Replicator,
    pub(crate) coordinator: Coordinator,
    pub(crate) region: Region,
    weakened: Weakened,
    above: u64,
    coordinators: u64, // number of coordinators that ran here before the present one
    asked: BTreeMap<RequestId, StoreRequest>,
    chosen: Option<(Instant, CoordinatorInput)>,
    drains: BTreeMap<ShardId, Instant>,
    mailboxes: BTreeMap<ShardId, Vec<u64>>, // messages accepted and not yet handled
    handle_at: Option<Instant>,
    chance: RandomStream,
}

impl Node {
    pub(crate) fn new(boot: &Boot<'_, ()>, weakened: Weakened) -> Self {
        let id = replica(boot.node.get(), boot.incarnation);
        let setup = ReplicatorParameters {
            me: id,
            config: ReplicatorConfig::default(),
            registry: Registry::new(),
            seed: boot.seed,
            fault_injection: weakened.store,
        };
        // A message has 8 bytes: a payload of two is sent whole, a longer one in parts.
        let cut = PayloadPartSizes { whole: 16, part: 8, window: 16, words: 250 };
        let config = RegionConfig { shards: SHARDS, cut, ..RegionConfig::default() };
        let entity_type = EntityType::new("counter").expect("a valid name");
        Self {
            id,
            key: HomesKey::new(&entity_type, MajorityPlus::Some(0)).with_fault(weakened.rule),
            replicator: Replicator::new(setup),
            coordinator: coordinator(id, weakened.rule),
            region: Region::new(RegionId::new(id), config, weakened.rule),
            weakened,
            above: 0,
            coordinators: 0,
            asked: BTreeMap::new(),
            chosen: None,
            drains: BTreeMap::new(),
            mailboxes: BTreeMap::new(),
            handle_at: None,
            chance: RandomStream::split(boot.seed, "node", 0),
        }
    }

    pub(crate) fn id(&self) -> ReplicaId {
        self.id
    }

    fn data(&mut self, now: Now, input: ReplicatorInput, fx: &mut Effects<Self>) {
        let mut out = Outbox::new();
        self.replicator.handle(now, input, &mut out);
        let outputs: Vec<ReplicatorOutput> = out.drain().collect();
        for output in outputs {
            match output {
                ReplicatorOutput::Send { to, class, message } => {
                    let lane = match class {
                        LaneClass::Control => 0,
                        LaneClass::Data => 1,
                        LaneClass::Bulk => 2,
                    };
                    let packet = Packet { from: self.id, to, content: Content::Data(message) };
                    fx.send(node_of(to), lane, packet);
                }
                ReplicatorOutput::Reply { id, reply } => {
                    let answer = self.key.answer(reply);
                    self.answered(now, id, answer, fx);
                }
                ReplicatorOutput::AskConsent { query, .. } => {
                    self.data(now, ReplicatorInput::Consent { query, remaining: Vec::new() }, fx);
                }
                ReplicatorOutput::Installed(epoch) => self.installed(now, &epoch, fx),
                ReplicatorOutput::Excluded(_) => self.region(now, RegionInput::Over, fx),
                _ => {}
            }
        }
    }

    fn installed(&mut self, now: Now, epoch: &Arc<Epoch>, fx: &mut Effects<Self>) {
        fx.emit(Event::Installed(epoch.clone()));
        let installed = Installed::from(&**epoch);
        self.coordinate(now, CoordinatorInput::Installed(installed.clone()), fx);
        self.region(now, RegionInput::Installed(installed), fx);
    }

    fn answered(&mut self, now: Now, id: RequestId, answer: StoreAnswer, fx: &mut Effects<Self>) {
        let asked = self.asked.remove(&id);
        match (&answer, asked) {
            (StoreAnswer::Fenced(cells, ..), _) => fx.emit(Event::Read(cells.clone())),
            (StoreAnswer::Written, Some(StoreRequest::Write { cells, .. })) => {
                fx.emit(Event::Decided(cells));
            }
            (StoreAnswer::Refused { .. }, _) => fx.emit(Event::Refused),
            _ => {}
        }
        if id.0 >> 32 == self.coordinators {
            let id = id.0 & u64::from(u32::MAX);
            self.coordinate(now, CoordinatorInput::Answered { id, answer }, fx);
        }
    }

    fn coordinate(&mut self, now: Now, input: CoordinatorInput, fx: &mut Effects<Self>) {
        let mut out = Outbox::new();
        self.coordinator.handle(now, input, &mut out);
        let outputs: Vec<CoordinatorOutput> = out.drain().collect();
        for output in outputs {
            match output {
                CoordinatorOutput::Send { to, message } => self.send_sharding(to, message, fx),
                CoordinatorOutput::Ask { id, ask } => {
                    let id = RequestId(self.coordinators << 32 | id);
                    self.asked.insert(id, ask.clone());
                    let request = self.key.request(ask);
                    self.data(now, ReplicatorInput::Request { id, request }, fx);
                }
                CoordinatorOutput::Allocate { question, shards } => {
                    self.allocate(now, question, shards);
                }
                CoordinatorOutput::SteppedDown { highest, .. } => {
                    self.above = self.above.max(highest.number);
                }
                CoordinatorOutput::Acting(_)
                | CoordinatorOutput::Differs(_)
                | CoordinatorOutput::Step(_)
                | CoordinatorOutput::Slow(_) => {}
            }
        }
    }

    fn allocate(&mut self, now: Now, question: u64, shards: Vec<(ShardId, Option<RegionId>)>) {
        let targets: Vec<RegionId> = self.coordinator.targets().collect();
        if targets.is_empty() || self.chance.chance(0.05) {
            return; // the strategy fails, and the coordinator asks again
        }
        let why: std::sync::Arc<str> = "any".into();
        let chosen = |(shard, _)| {
            let why = why.clone();
            Chosen { shard, to: *self.chance.pick(&targets), why }
        };
        let homes = shards.into_iter().map(chosen).collect();
        let at = now.mono + self.chance.span(Duration::ZERO, 50 * MS);
        let input = CoordinatorInput::Allocated { question, homes };
        self.chosen = Some((at, input));
    }

    fn region(&mut self, now: Now, input: RegionInput, fx: &mut Effects<Self>) {
        let mut out = Outbox::new();
        self.region.handle(now, input, &mut out);
        let outputs: Vec<RegionOutput> = out.drain().collect();
        for output in outputs {
            match output {
                RegionOutput::Send { to, message } => self.send_sharding(to, message, fx),
                RegionOutput::Start { shard, generation, payload } => {
                    fx.emit(Event::Hosts(shard, generation));
                    let carried = payload.map(|payload| messages(&payload)).unwrap_or_default();
                    let before = self.mailboxes.insert(shard, carried);
                    assert!(before.is_none_or(|mailbox| mailbox.is_empty()), "undrained mailbox");
                    self.handle_at = Some(now.mono);
                }
                RegionOutput::Adopt { shard, generation } => {
                    fx.emit(Event::Hosts(shard, generation));
                    fx.emit(Event::Adopted);
                }
                RegionOutput::Drain { shard, .. } => {
                    let long = [MS, 20 * MS, 200 * MS, 30_000 * MS];
                    let longest = *self.chance.pick(&long);
                    let takes = self.chance.span(Duration::ZERO, longest);
                    self.drains.insert(shard, now.mono + takes);
                }
                RegionOutput::Abort(shard) => {
                    self.drains.insert(shard, now.mono);
                }
                RegionOutput::Discard { payload, .. } => {
                    messages(&payload).into_iter().for_each(|id| fx.emit(Event::Discarded(id)));
                }
                RegionOutput::StopAll => self.drains.clear(),
                _ => {}
            }
        }
    }

    /// Each shard hosted here handles one message.
    fn handle(&mut self, now: Now, fx: &mut Effects<Self>) {
        let mut more = false;
        for (shard, mailbox) in &mut self.mailboxes {
            let run = self.region.shard(*shard).map_or(HostingPhase::Idle, RegionShard::run);
            if matches!(run, HostingPhase::Hosting(_)) && !mailbox.is_empty() {
                fx.emit(Event::Handled(mailbox.remove(0)));
                more |= !mailbox.is_empty();
            }
        }
        let pause = self.chance.span(MS, 500 * MS);
        self.handle_at = more.then(|| now.mono + pause);
    }

    /// The messages that a crash of this node would lose.
    pub(crate) fn holds(&self) -> Vec<u64> {
        let shards = (0..SHARDS).map(ShardId::new);
        let kept = shards.filter_map(|shard| self.region.shard(shard)?.kept().cloned());
        let kept = kept.flat_map(|payload| messages(&payload));
        self.mailboxes.values().flatten().copied().chain(kept).collect()
    }

    fn send_sharding(&mut self, to: ReplicaId, message: ShardingMessage, fx: &mut Effects<Self>) {
        let packet = Packet { from: self.id, to, content: Content::Sharding(message) };
        fx.send(node_of(to), 3, packet);
    }

    fn drained(&mut self, now: Now, fx: &mut Effects<Self>) {
        let over: Vec<ShardId> =
            self.drains.iter().filter(|(_, at)| **at <= now.mono).map(|(id, _)| *id).collect();
        for shard in over {
            self.drains.remove(&shard);
            let left = self.mailboxes.remove(&shard).unwrap_or_default();
            let payload = (!left.is_empty()).then(|| sealed(&left));
            self.region(now, RegionInput::Drained { shard, payload }, fx);
        }
    }
}

fn sealed(messages: &[u64]) -> Bytes {
    messages.iter().flat_map(|id| id.to_be_bytes()).collect()
}

fn messages(payload: &Bytes) -> Vec<u64> {
    let ids = payload.chunks_exact(8);
    ids.map(|id| u64::from_be_bytes(id.try_into().expect("eight bytes"))).collect()
}

fn coordinator(id: ReplicaId, fault_injection: ShardingFaultInjection) -> Coordinator {
    let config =
        CoordinatorConfig { shards: SHARDS, word_bytes_max: 250, ..CoordinatorConfig::default() };
    Coordinator::new(id, config, fault_injection)
}

impl Process for Node {
    type Message = Packet;
    type Command = Command;
    type Event = Event;
    type Disk = ();

    fn message(&mut self, now: Now, _: NodeIndex, packet: Packet, fx: &mut Effects<Self>) {
        let Packet { from, to, content } = packet;
        if to != self.id {
            return;
        }
        match content {
            Content::Data(message) => {
                self.data(now, ReplicatorInput::Message { from, message }, fx);
            }
            Content::Sharding(ShardingMessage::Coordinator(message)) => {
                self.coordinate(now, CoordinatorInput::Message { from, message }, fx);
            }
            Content::Sharding(ShardingMessage::Region(message)) => {
                self.region(now, RegionInput::Message { from, message }, fx);
            }
        }
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        match command {
            Command::Found(epoch) => self.data(now, ReplicatorInput::Found(epoch), fx),
            Command::Members(peers) => self.data(now, ReplicatorInput::Members(peers), fx),
            Command::Propose(change) => self.data(now, ReplicatorInput::Propose(change), fx),
            Command::Force(kept) => {
                let replaced = self.replicator.epochs().id().unwrap_or_default();
                self.data(now, ReplicatorInput::Force { replaced, kept }, fx);
            }
            Command::Coordinate(true) => {
                if self.coordinator.phase() == CoordinatorPhase::Down {
                    let installed = self.replicator.epochs().installed().cloned();
                    self.coordinators += 1;
                    self.chosen = None;
                    self.coordinator = coordinator(self.id, self.weakened.rule);
                    installed.iter().for_each(|epoch| self.installed(now, epoch, fx));
                }
                self.above = self.above.max(self.coordinator.term().number);
                self.coordinate(now, CoordinatorInput::Start { above: self.above }, fx);
            }
            Command::Coordinate(false) => self.coordinate(now, CoordinatorInput::Stop, fx),
            Command::CoordinatorAt(id) => {
                self.region(now, RegionInput::CoordinatorAt(Some(id)), fx);
            }
            Command::Tell(shard, id) => {
                let run = self.region.shard(shard).map_or(HostingPhase::Idle, RegionShard::run);
                if matches!(run, HostingPhase::Hosting(_)) {
                    fx.emit(Event::Accepted(id));
                    self.mailboxes.entry(shard).or_default().push(id);
                    let pause = self.chance.span(MS, 500 * MS);
                    self.handle_at = self.handle_at.or(Some(now.mono + pause));
                }
            }
            Command::Want(shard) => self.region(now, RegionInput::Wanted(shard), fx),
            Command::MoveTo(shard, to) => {
                let input = CoordinatorInput::Move { shard, to, why: "test".into() };
                self.coordinate(now, input, fx);
            }
            Command::Move(shard) => {
                let targets: Vec<RegionId> = self.coordinator.targets().collect();
                if self.coordinator.record(shard).is_some() && !targets.is_empty() {
                    let to = Some(*self.chance.pick(&targets)).filter(|_| self.chance.chance(0.9));
                    let input = CoordinatorInput::Move { shard, to, why: "test".into() };
                    self.coordinate(now, input, fx);
                }
            }
        }
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.drained(now, fx);
        if let Some((_, input)) = self.chosen.take_if(|(at, _)| *at <= now.mono) {
            self.coordinate(now, input, fx);
        }
        if self.handle_at.is_some_and(|at| at <= now.mono) {
            self.handle(now, fx);
        }
        self.data(now, ReplicatorInput::Tick, fx);
        self.coordinate(now, CoordinatorInput::Tick, fx);
        self.region(now, RegionInput::Tick, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let machines = [
            self.replicator.next_deadline(),
            self.coordinator.next_deadline(),
            self.region.next_deadline(),
            self.chosen.as_ref().map(|(at, _)| *at),
            self.handle_at,
        ];
        machines.into_iter().flatten().chain(self.drains.values().copied()).min()
    }

    fn link_up(&mut self, now: Now, peer: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        let members = self.replicator.epochs().installed();
        let known = members.map(|epoch| epoch.members().to_vec()).unwrap_or_default();
        for id in known.into_iter().filter(|id| node_of(*id) == peer) {
            self.data(now, ReplicatorInput::LinkUp(id), fx);
        }
    }

    fn recode(packet: Packet) -> Packet {
        let Content::Sharding(message) = &packet.content else { return packet };
        let bytes = rmp_serde::to_vec_named(message).expect("messages encode");
        let decoded = rmp_serde::from_slice(&bytes).expect("encoded messages decode");
        assert_eq!(message, &decoded, "decoding changed the message");
        Packet { content: Content::Sharding(decoded), ..packet }
    }
}
