//! Simulated nodes: each has the runtime of one entity type and its region's machine. Lanes are
//! queues in memory, and a scripted coordinator keeps the predecessors of each decision and repeats
//! its `Release` and `Host` orders like the real one
//! (docs/protocol/sharding.md#a-decision-lists-every-predecessor). The test chooses every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca::cluster::lease::Departure;
use ostraca::sharding::activation::Activation;
use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::ids::{EntityId, EntityType, Generation, RegionId, ShardId};
use ostraca::sharding::installed::Installed;
use ostraca::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};
use ostraca::sharding::pending_asks::PendingAsks;
use ostraca::sharding::region::{Region, RegionConfig, RegionInput, RegionOutput};
use ostraca::sharding::region_handle::{NoRoom, RegionEnvironment, RegionHandle};
use ostraca::sharding::shard_region::{RegionSetup, ShardRegion};
use ostraca::sharding::wire::{
    HostShard, ReleaseShard, RouteTable, ShardRoute, ShardingMessage, ToCoordinator, ToRegion,
};
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::types::Term;

use super::executor::Executor;

/// Longest message that the nodes accept, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 16;

const COORDINATOR: ReplicaId = ReplicaId::new(1_000);

pub(crate) fn node(index: usize) -> RegionId {
    RegionId::new(ReplicaId::new(index as u64 + 1))
}

/// The lanes between all nodes, and faults of them that a test sets.
#[derive(Default)]
pub(crate) struct Lanes {
    pub(crate) frames: BTreeMap<(RegionId, RegionId), VecDeque<Vec<u8>>>,
    refused: BTreeSet<(RegionId, RegionId)>,
    pub(crate) limit: usize, // frames on a lane beyond which messages are refused
    pub(crate) answers: usize, // bytes on a lane beyond which replies and bounces are refused
    pub(crate) bytes_max: usize,
    pub(crate) out: BTreeSet<RegionId>,
    pub(crate) lingers: bool, // lanes to removed nodes accept answers, which are never read
}

/// The environment of one node's region.
pub(crate) struct NodeWorld {
    me: RegionId,
    executor: Arc<Executor>,
    lanes: Arc<Mutex<Lanes>>,
    facts: Mutex<VecDeque<RegionInput>>,
    pub(crate) leased: AtomicBool,
}

impl RegionEnvironment for NodeWorld {
    fn send(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        let mut lanes = self.lanes.lock().expect("nobody panicked");
        if lanes.out.contains(&to) {
            return Err(NoRoom::NoLane);
        }
        if frame.len() > lanes.bytes_max {
            return Err(NoRoom::TooLong);
        }
        let limit = lanes.limit;
        let lane = lanes.frames.entry((self.me, to)).or_default();
        if lane.len() < limit {
            lane.push_back(frame.to_vec());
            return Ok(());
        }
        lanes.refused.insert((self.me, to));
        Err(NoRoom::Full)
    }

    fn answer(&self, to: RegionId, frame: &[u8]) -> Result<(), NoRoom> {
        let mut lanes = self.lanes.lock().expect("nobody panicked");
        if lanes.out.contains(&to) {
            return if lanes.lingers { Ok(()) } else { Err(NoRoom::NoLane) };
        }
        if frame.len() > lanes.bytes_max {
            return Err(NoRoom::TooLong);
        }
        let limit = lanes.answers;
        let lane = lanes.frames.entry((self.me, to)).or_default();
        if limit < usize::MAX && lane.iter().map(Vec::len).sum::<usize>() + frame.len() > limit {
            return Err(NoRoom::Full);
        }
        lane.push_back(frame.to_vec());
        Ok(())
    }

    fn tell(&self, fact: RegionInput) {
        self.facts.lock().expect("nobody panicked").push_back(fact);
    }

    fn serves(&self) -> bool {
        self.leased.load(Ordering::SeqCst)
    }

    fn now(&self) -> Instant {
        self.executor.now()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.executor.spawn(task);
    }

    fn run(&self, burst: Activation) {
        self.executor.run(burst);
    }

    fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        self.executor.sleep(pause)
    }
}

/// A node: the runtime of the entity type and the region's machine.
pub(crate) struct Node<E: Entity> {
    pub(crate) region: ShardRegion<E>,
    pub(crate) world: Arc<NodeWorld>,
    pub(crate) asks: Arc<PendingAsks>,
    pub(crate) hosting: Arc<dyn RegionHandle>,
    machine: Region,
    pub(crate) up: bool,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    generation: Generation,
    home: Option<RegionId>,
    after: BTreeMap<RegionId, Generation>,
    hosted: Generation, // highest generation for which a region reported Hosted
}

/// The nodes, the scripted coordinator, and the messages under way between them.
pub(crate) struct Nodes<E: Entity> {
    pub(crate) nodes: Vec<Node<E>>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) lanes: Arc<Mutex<Lanes>>,
    cells: BTreeMap<ShardId, Cell>,
    seq: u64,
    epoch: EpochId,
    members: BTreeSet<RegionId>,
    control: Vec<(RegionId, ReplicaId, ToRegion)>, // control messages, delivered in any order
}

/// One step of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Polls a ready task.
    Task,
    /// Delivers the first frame of a lane.
    Lane,
    /// Delivers a control message to a region.
    Control,
    /// Passes an input from a node's runtime to its region's machine.
    Input,
}

/// Settings that differ between tests.
pub(crate) struct Plan {
    pub(crate) nodes: usize,
    pub(crate) shards: u32,
    pub(crate) supervision: Supervision,
    pub(crate) settings: ShardingConfig,
    pub(crate) fault_injection: ShardingFaultInjection,
}

impl Default for Plan {
    fn default() -> Self {
        // No task that sweeps for idle entities.
        let passivation = PassivationConfig {
            strategy: PassivationStrategy::None,
            ..PassivationConfig::default()
        };
        // No task that watches for slow handlers.
        let slow_handler_after = Duration::ZERO;
        let settings =
            ShardingConfig { passivation, slow_handler_after, ..ShardingConfig::default() };
        let (supervision, fault_injection) =
            (Supervision::default(), ShardingFaultInjection::none());
        Self { nodes: 2, shards: 1, supervision, settings, fault_injection }
    }
}

impl<E: Entity> Nodes<E> {
    pub(crate) fn new<F>(plan: &Plan, factory: impl Fn(RegionId, Arc<NodeWorld>) -> F) -> Self
    where
        F: Fn(&EntityId) -> E + Send + Sync + 'static,
    {
        let executor = Executor::new();
        let lanes = Arc::new(Mutex::new(Lanes {
            limit: usize::MAX,
            answers: usize::MAX,
            bytes_max: MESSAGE_BYTES_MAX,
            ..Lanes::default()
        }));
        let members: BTreeSet<RegionId> = (0..plan.nodes).map(node).collect();
        let mut nodes = Vec::new();
        for index in 0..plan.nodes {
            let (me, asks) = (node(index), PendingAsks::new());
            let world = Arc::new(NodeWorld {
                me,
                executor: Arc::clone(&executor),
                lanes: Arc::clone(&lanes),
                facts: Mutex::default(),
                leased: AtomicBool::new(true),
            });
            let hash =
                HashExtractor::new(ShardHash::Xxh3, plan.shards).expect("a valid number of shards");
            let setup = RegionSetup {
                entity_type: EntityType::new("journal").expect("a name"),
                me,
                settings: plan.settings.clone(),
                message_bytes_max: MESSAGE_BYTES_MAX,
                supervision: plan.supervision,
                extractor: Arc::new(ByMessage::new(hash, |_: &E::Message| None)),
                factory: Box::new(factory(me, Arc::clone(&world))),
                asks: Arc::clone(&asks),
                fault_injection: plan.fault_injection,
            };
            let region = ShardRegion::new(setup, Arc::<NodeWorld>::clone(&world));
            region.publish();
            let config = RegionConfig { shards: plan.shards, ..RegionConfig::default() };
            let machine = Region::new(me, config, ShardingFaultInjection::none());
            let hosting = region.hosting();
            nodes.push(Node { region, world, asks, hosting, machine, up: true });
        }
        let (cells, control) = (BTreeMap::new(), Vec::new());
        let (seq, epoch) = (0, EpochId { generation: 1, number: 0 });
        let mut all = Self { nodes, executor, lanes, cells, seq, epoch, members, control };
        all.install();
        all
    }

    fn now(&self) -> Now {
        Now { mono: self.executor.now(), ..Now::default() }
    }

    fn feed(&mut self, index: usize, input: RegionInput) {
        let now = self.now();
        let mut out = Outbox::new();
        let node = &mut self.nodes[index];
        node.machine.handle(now, input, &mut out);
        node.machine.handle(now, RegionInput::Tick, &mut out);
        for output in out.drain() {
            match output {
                RegionOutput::Send { to, message } => self.sent(node_of(index), to, message),
                order => self.nodes[index].hosting.perform(order),
            }
        }
    }

    fn sent(&mut self, from: RegionId, to: ReplicaId, message: ShardingMessage) {
        match message {
            ShardingMessage::Region(word) => {
                self.control.push((RegionId::new(to), from.replica(), word));
            }
            ShardingMessage::Coordinator(ToCoordinator::Hosted(all)) => {
                for (shard, at) in all {
                    let cell = self.cells.entry(shard).or_default();
                    cell.hosted = cell.hosted.max(at);
                }
            }
            ShardingMessage::Coordinator(_) => {}
        }
    }

    fn install(&mut self) {
        self.epoch = self.epoch.next();
        (0..self.nodes.len()).for_each(|index| self.install_at(index));
    }

    /// Installs the newest configuration at a node, if the node is a member of it.
    pub(crate) fn install_at(&mut self, index: usize) {
        if self.members.contains(&node(index)) {
            let members = self.members.clone();
            let installed = Installed { epoch: self.epoch, members, forced: None };
            self.feed(index, RegionInput::Installed(installed));
        }
    }

    /// An operator forces a configuration, which only the coordinator knows so far.
    pub(crate) fn recover(&mut self) {
        self.epoch = EpochId { generation: self.epoch.generation + 1, number: 1 };
    }

    /// Makes a decision as if a quorum had acknowledged it, and queues its control messages.
    pub(crate) fn decide(&mut self, shard: ShardId, home: Option<usize>) {
        self.seq += 1;
        let generation = Generation::new(Term { number: 1, owner: COORDINATOR }, self.seq);
        let home = home.map(node_of);
        let cell = self.cells.entry(shard).or_default();
        let hosted = cell.hosted;
        cell.after.retain(|_, at| hosted <= *at);
        if let Some(old) = cell.home {
            cell.after.insert(old, cell.generation);
        }
        if let Some(home) = home {
            cell.after.remove(&home);
        }
        (cell.generation, cell.home) = (generation, home);
        self.send_orders(shard);
        let route = ShardRoute { shard, generation, home };
        for to in self.members.clone() {
            let homes: RouteTable = [route].into_iter().collect();
            self.control.push((to, COORDINATOR, ToRegion::Announce(homes)));
        }
    }

    /// Delivers the announcements to one node, and no other control message.
    pub(crate) fn announce(&mut self, to: usize) {
        self.deliver_control(to, |message| matches!(message, ToRegion::Announce(_)));
    }

    /// Delivers the control messages to one node for which `what` is true, and no others.
    pub(crate) fn deliver_control(&mut self, to: usize, what: impl Fn(&ToRegion) -> bool) {
        let control = std::mem::take(&mut self.control);
        let is_delivered =
            |(region, _, word): &(RegionId, ReplicaId, ToRegion)| *region == node(to) && what(word);
        let (delivered, kept): (Vec<_>, Vec<_>) = control.into_iter().partition(is_delivered);
        self.control = kept;
        for (_, from, message) in delivered {
            self.feed(to, RegionInput::Message { from, message });
        }
    }

    /// Queues the `Release` and `Host` orders of the shard's decision, at first and as a repetition
    /// (docs/protocol/sharding.md#repeat-until-hosted).
    pub(crate) fn send_orders(&mut self, shard: ShardId) {
        let Some(Cell { generation, home, after, .. }) = self.cells.get(&shard).cloned() else {
            return;
        };
        let epoch = self.epoch;
        for (from, listed) in &after {
            let order = ReleaseShard { shard, generation, to: home, listed: *listed };
            self.control.push((*from, COORDINATOR, ToRegion::Release(vec![order])));
        }
        if let Some(home) = home {
            let after = after.into();
            let order = HostShard { shard, generation, after, epoch };
            self.control.push((home, COORDINATOR, ToRegion::Host(vec![order])));
        }
    }

    /// Advances the clock of entities and regions.
    pub(crate) fn advance(&mut self, by: Duration) {
        self.executor.advance(by);
        for index in 0..self.nodes.len() {
            if self.nodes[index].up {
                self.feed(index, RegionInput::Tick);
            }
        }
    }

    pub(crate) fn home(&self, shard: ShardId) -> Option<RegionId> {
        self.cells.get(&shard).and_then(|cell| cell.home)
    }

    /// Crashes a node: its region stops, its lanes end, a configuration without it is installed.
    pub(crate) fn crash(&mut self, index: usize) {
        self.remove(index, Departure::Unheard);
    }

    /// As [`crash`](Self::crash), of a node about which this is known.
    pub(crate) fn remove(&mut self, index: usize, how: Departure) {
        let gone = node(index);
        self.nodes[index].up = false;
        self.nodes[index].world.leased.store(false, Ordering::SeqCst);
        self.members.remove(&gone);
        {
            let mut lanes = self.lanes.lock().expect("nobody panicked");
            lanes.out.insert(gone);
            lanes.frames.retain(|(from, to), _| *from != gone && *to != gone);
        }
        self.control.retain(|(to, ..)| *to != gone);
        self.feed(index, RegionInput::Over);
        self.install();
        for node in self.nodes.iter().filter(|node| node.up) {
            node.hosting.removed(gone, how);
        }
    }

    /// The kinds of steps that have something to do, in a fixed order.
    pub(crate) fn possible(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.executor.ready() > 0 {
            steps.push(Step::Task);
        }
        if self.lanes.lock().expect("nobody panicked").frames.values().any(|lane| !lane.is_empty())
        {
            steps.push(Step::Lane);
        }
        if !self.control.is_empty() {
            steps.push(Step::Control);
        }
        if self
            .nodes
            .iter()
            .any(|node| !node.world.facts.lock().expect("nobody panicked").is_empty())
        {
            steps.push(Step::Input);
        }
        steps
    }

    pub(crate) fn step(&mut self, step: Step, pick: usize) {
        match step {
            Step::Task => self.executor.step(pick),
            Step::Lane => self.deliver(pick),
            Step::Control => {
                let (to, from, message) = self.control.swap_remove(pick % self.control.len());
                let index = index_of(to);
                if self.nodes[index].up {
                    self.feed(index, RegionInput::Message { from, message });
                }
            }
            Step::Input => {
                let told =
                    |node: &Node<E>| !node.world.facts.lock().expect("nobody panicked").is_empty();
                let with: Vec<usize> =
                    (0..self.nodes.len()).filter(|index| told(&self.nodes[*index])).collect();
                let index = with[pick % with.len()];
                let fact =
                    self.nodes[index].world.facts.lock().expect("nobody panicked").pop_front();
                let fact = fact.expect("not empty");
                if let RegionInput::Wanted(shard) = fact {
                    self.wanted(shard);
                }
                self.feed(index, fact);
            }
        }
    }

    /// A region wants a home for the shard: the coordinator decides, unless the shard has one.
    fn wanted(&mut self, shard: ShardId) {
        let home = self.home(shard);
        if home.is_none_or(|home| !self.members.contains(&home)) {
            let up: Vec<usize> = (0..self.nodes.len()).filter(|at| self.nodes[*at].up).collect();
            let chosen = up[shard.get() as usize % up.len()];
            self.decide(shard, Some(chosen));
        }
    }

    fn deliver(&mut self, pick: usize) {
        let (from, to, frame, room) = {
            let mut lanes = self.lanes.lock().expect("nobody panicked");
            let filled: Vec<_> = lanes
                .frames
                .iter()
                .filter(|(_, lane)| !lane.is_empty())
                .map(|(ends, _)| *ends)
                .collect();
            let (from, to) = filled[pick % filled.len()];
            let lane = lanes.frames.get_mut(&(from, to)).expect("it has frames");
            let frame = lane.pop_front().expect("it has frames");
            (from, to, frame, lanes.refused.remove(&(from, to)))
        };
        let receiver = &self.nodes[index_of(to)];
        receiver.hosting.arrived(from, &frame).expect("a frame of ours");
        if room {
            self.nodes[index_of(from)].hosting.room(to);
        }
    }

    /// Runs until no step is possible, the first possible kind first.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let Some(step) = self.possible().first().copied() else { return };
            self.step(step, 0);
        }
        panic!("steps remain after 1,000,000");
    }

    /// As [`settle`](Self::settle), but control messages stay under way.
    pub(crate) fn settle_without_control(&mut self) {
        let possible =
            |nodes: &Self| nodes.possible().into_iter().find(|step| *step != Step::Control);
        while let Some(step) = possible(self) {
            self.step(step, 0);
        }
    }

    /// Decides that a node hosts the shard, and settles.
    pub(crate) fn host(&mut self, shard: u32, index: usize) {
        self.decide(ShardId::new(shard), Some(index));
        self.settle();
    }

    pub(crate) fn lost(&self, why: DeadLetterReason) -> u64 {
        let all = self.nodes.iter().flat_map(|node| node.region.dead_letters());
        all.filter(|(of, _)| *of == why).map(|(_, count)| count).sum()
    }

    /// Shards with slow handlers, as the region of a node tells its coordinator.
    pub(crate) fn slow_shards(&self, index: usize) -> Vec<ShardId> {
        self.nodes[index].machine.with_slow_handlers().collect()
    }

    /// Payloads that were discarded although a later home may have taken them.
    pub(crate) fn discarded(&self) -> u64 {
        self.nodes.iter().map(|node| node.machine.stats().discarded).sum()
    }

    /// Payloads that were fetched in parts.
    pub(crate) fn fetched(&self) -> u64 {
        self.nodes.iter().map(|node| node.machine.stats().fetched).sum()
    }

    pub(crate) fn all_lost(&self) -> u64 {
        let all = self.nodes.iter().flat_map(|node| node.region.dead_letters());
        all.map(|(_, count)| count).sum()
    }

    /// Number of tasks that remain after 1.5 s without asks.
    pub(crate) fn tasks_at_rest(&mut self) -> usize {
        for _ in 0..30 {
            self.advance(Duration::from_millis(50));
            self.settle();
        }
        self.executor.tasks()
    }

    /// Runs a future of the test together with everything else until it is ready.
    pub(crate) fn wait_for<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let result = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&result);
        self.executor.spawn(Box::pin(async move {
            let value = future.await;
            *kept.lock().expect("nobody panicked") = Some(value);
        }));
        for _ in 0..10_000 {
            self.settle();
            if let Some(value) = result.lock().expect("nobody panicked").take() {
                return value;
            }
            self.advance(Duration::from_millis(10));
        }
        panic!("the future is not ready after 100 s");
    }
}

fn node_of(index: usize) -> RegionId {
    node(index)
}

pub(crate) fn index_of(region: RegionId) -> usize {
    usize::try_from(region.replica().get()).expect("small") - 1
}
