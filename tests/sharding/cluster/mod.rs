//! Coordinators and regions on the real Replicator under simulated faults. Checked after every step
//! (`watch.rs`): a shard has one host, its acknowledged decisions have rising generations, no
//! message is handled twice. Checked after the faults end: each shard runs at the home that was
//! decided last, and every accepted message was handled, except those that a crashed node held.
//!
//! Up to three coordinators act at once, each believing that it is the only one. Messages of every
//! lane are lost, duplicated and reordered; links are cut, nodes pause and crash, configurations
//! change. `node.rs` lists the parts that are stand-ins.

mod directed;
mod node;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ostraca::sharding::coordinator::CoordinatorPhase;
use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use ostraca::sharding::ids::{RegionId, ShardId};
use ostraca::sharding::region::{HostingPhase, RegionShard};
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings, MembershipChange};
use ostraca_ddata::replicator::port::Peer;
use ostraca_ddata::sim::{
    Failure, FaultKind, Faults, LaneRule, LinkQuality, NodeIndex, RandomStream, Seed, Simulation,
    SimulationSetup, seeds,
};

use self::node::{Command, Node, SHARDS, Weakened, replica};
use self::watch::{Counts, Watch};

type Sim = Simulation<Node, Watch>;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NODES: usize = 5;
const CHAOS: Duration = Duration::from_secs(60);
/// Longest simulated time until all shards are settled after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(200);

/// A simulated cluster with the harness that acts on it at random.
struct World {
    sim: Sim,
    chance: RandomStream,
    coordinators: usize,
    told: u64,
    died_with: BTreeSet<u64>, // messages that crashed nodes held
}

fn links(draw: &mut RandomStream) -> LinkQuality {
    LinkQuality {
        base: draw.span(MS / 5, 20 * MS),
        spread: *draw.pick(&[MS / 10, 5 * MS, 100 * MS]),
        tail: *draw.pick(&[0.0, 0.02]),
        tail_scale: draw.span(50 * MS, 500 * MS),
        loss: *draw.pick(&[0.0, 0.05, 0.2]),
        duplicate: *draw.pick(&[0.0, 0.05]),
        reorder: *draw.pick(&[0.0, 0.2]),
    }
}

fn faults(seed: Seed) -> Faults {
    const KINDS: [FaultKind; 8] = [
        FaultKind::PartitionBySize,
        FaultKind::PartitionByAssignment,
        FaultKind::Isolate,
        FaultKind::OneWay,
        FaultKind::Flapping,
        FaultKind::Clog,
        FaultKind::SlowLink,
        FaultKind::Pause,
    ];
    let mut draw = RandomStream::split(seed.value, "weather", 0);
    let kept = *draw.pick(&[0.0, 0.3, 0.7]);
    let kinds = KINDS.iter().filter(|_| draw.chance(kept)).map(|kind| (*kind, 1)).collect();
    Faults {
        links: (0..=draw.below(2)).map(|_| links(&mut draw)).collect(),
        kinds,
        every: draw.span(SECOND, 10 * SECOND),
        span: (10 * MS, 12 * SECOND),
        pause: (MS, 20 * SECOND),
        ..Faults::none()
    }
}

impl World {
    fn new(seed: Seed, weakened: Weakened, coordinators: usize) -> Self {
        let setup = SimulationSetup {
            faults: faults(seed),
            lanes: vec![LaneRule::WILD; 4],
            ..SimulationSetup::new(seed, NODES)
        };
        let mut sim =
            Simulation::new(setup, Watch::default(), move |boot| Node::new(&boot, weakened));
        let members: Vec<ReplicaId> = (0..NODES).map(|node| replica(node, 1)).collect();
        let settings = EpochSettings { digest_seed: seed.value, ..EpochSettings::default() };
        let id = EpochId { generation: 1, number: 1 };
        let epoch = Arc::new(Epoch::founding(id, members, settings).expect("it is valid"));
        for node in (0..NODES).map(NodeIndex::new) {
            sim.command(node, Command::Found(epoch.clone()));
        }
        Self {
            sim,
            chance: RandomStream::split(seed.value, "harness", 0),
            coordinators,
            told: 0,
            died_with: BTreeSet::new(),
        }
    }

    fn running(&self) -> Vec<(NodeIndex, ReplicaId)> {
        self.sim.processes().map(|(node, process)| (node, process.id())).collect()
    }

    fn coordinating(&self) -> Vec<NodeIndex> {
        let runs = |process: &Node| {
            !matches!(process.coordinator.phase(), CoordinatorPhase::Off | CoordinatorPhase::Down)
        };
        self.sim.processes().filter(|(_, process)| runs(process)).map(|(node, _)| node).collect()
    }

    fn storm(&mut self) -> Result<(), Box<Failure>> {
        let end = self.sim.now() + CHAOS;
        while self.sim.now() < end {
            let wait = self.chance.span(10 * MS, 600 * MS);
            self.sim.try_run_for(wait)?;
            self.act();
            if self.chance.chance(0.3) {
                self.look();
            }
        }
        Ok(())
    }

    /// One random action: a coordinator starts, stops or moves a shard, a region asks for a shard,
    /// messages are sent, or a node crashes.
    fn act(&mut self) {
        let running = self.running();
        if running.is_empty() {
            return;
        }
        let (node, id) = *self.chance.pick(&running);
        let shard = ShardId::new(self.chance.below(u64::from(SHARDS)) as u32);
        let coordinating = self.coordinating();
        if coordinating.len() < self.coordinators && self.chance.chance(0.15) {
            self.sim.command(node, Command::Coordinate(true));
            let told = running.iter().filter(|_| self.chance.chance(0.7));
            told.for_each(|(to, _)| self.sim.command(*to, Command::CoordinatorAt(id)));
        }
        if !coordinating.is_empty() {
            let at = *self.chance.pick(&coordinating);
            if self.chance.chance(0.05) {
                self.sim.command(at, Command::Coordinate(false));
            } else if self.chance.chance(0.5) {
                let times = *self.chance.pick(&[1, 1, 2, 3]);
                (0..times).for_each(|_| self.sim.command(at, Command::Move(shard)));
            }
        }
        self.sim.command(node, Command::Want(shard));
        self.tell();
        if self.chance.chance(0.03) && self.survives_without(id) {
            self.died_with.extend(self.sim.process(node).map(Node::holds).unwrap_or_default());
            self.sim.crash(node);
        }
        if self.chance.chance(0.2) {
            self.sim.restart_all();
        }
    }

    /// Sends up to two messages to each hosted shard.
    fn tell(&mut self) {
        let hosted = |(node, process): (NodeIndex, &Node)| {
            process.region.hosted().map(|(shard, _)| (node, shard)).collect::<Vec<_>>()
        };
        let hosted: Vec<_> = self.sim.processes().flat_map(hosted).collect();
        for (node, shard) in hosted {
            for _ in 0..self.chance.below(3) {
                self.told += 1;
                self.sim.command(node, Command::Tell(shard, self.told));
            }
        }
    }

    /// Whether a quorum of the newest configuration plus one member runs without `id`.
    fn survives_without(&self, id: ReplicaId) -> bool {
        let running = self.running();
        let Some(epoch) = &self.sim.observer().newest else { return false };
        let runs = |member: &&ReplicaId| {
            **member != id && running.iter().any(|(_, other)| other == *member)
        };
        let living = epoch.members().iter().filter(runs).count();
        living > epoch.members().len() / 2 + 1
    }

    /// Stand-in for membership: tells all nodes the known members, and proposes a configuration
    /// that replaces the crashed ones.
    fn look(&mut self) {
        let running = self.running();
        let Some(epoch) = self.sim.observer().newest.clone() else { return };
        let runs = |id: &ReplicaId| running.iter().any(|(_, other)| other == id);
        let dead: Vec<_> = epoch.members().iter().copied().filter(|id| !runs(id)).collect();
        let all = running.iter().map(|(_, id)| *id).chain(dead.iter().copied());
        let peers: Vec<Peer> =
            all.map(|id| Peer { id, stopping: false, reachable: runs(&id) }).collect();
        for (node, _) in &running {
            self.sim.command(*node, Command::Members(peers.clone()));
        }
        let new = running.iter().map(|(_, id)| *id).filter(|id| !epoch.is_member(*id));
        let change =
            MembershipChange { join: new.collect(), lost: dead, ..MembershipChange::default() };
        let members: Vec<_> = running.iter().filter(|(_, id)| epoch.is_member(*id)).collect();
        if !change.is_empty() && !members.is_empty() {
            let (node, _) = **self.chance.pick(&members);
            self.sim.command(node, Command::Propose(change));
        }
    }

    /// Ends the faults, appoints one coordinator, and waits until all shards are settled.
    fn peace(&mut self) -> Result<(), Box<Failure>> {
        self.sim.heal();
        self.sim.restart_all();
        for node in self.coordinating() {
            self.sim.command(node, Command::Coordinate(false));
        }
        self.sim.try_run_for(10 * MS)?;
        let end = self.sim.now() + REST_WITHIN;
        while self.sim.now() < end {
            self.look();
            self.appoint();
            for shard in 0..SHARDS {
                self.sim.command(NodeIndex::new(0), Command::Want(ShardId::new(shard)));
            }
            self.sim.try_run_for(SECOND)?;
            if self.unsettled().is_none() {
                return Ok(());
            }
        }
        let reason = self.unsettled().unwrap_or_default();
        Err(Box::new(self.sim.failure(format!("not at rest: {reason}"))))
    }

    /// Stand-in for the singleton after the faults: runs the coordinator on the first running
    /// member and stops all others.
    fn appoint(&mut self) {
        let Some(epoch) = self.sim.observer().newest.clone() else { return };
        let running = self.running();
        let oldest = running.iter().find(|(_, id)| epoch.is_member(*id));
        if let Some((node, id)) = oldest {
            let at = self.coordinating();
            for other in at.iter().filter(|other| *other != node) {
                self.sim.command(*other, Command::Coordinate(false));
            }
            if !at.contains(node) {
                self.sim.command(*node, Command::Coordinate(true));
            }
            for (to, _) in &running {
                self.sim.command(*to, Command::CoordinatorAt(*id));
            }
        }
    }

    /// The first difference from the coordinator's decisions, or `None` when all shards are
    /// settled.
    fn unsettled(&self) -> Option<String> {
        let acting =
            self.sim.processes().find(|(_, p)| p.coordinator.phase() == CoordinatorPhase::Active);
        let Some((_, process)) = acting else { return Some("no coordinator acts".into()) };
        let missing = self.sim.observer().open.difference(&self.died_with).next();
        if let Some(id) = missing {
            return Some(format!("message {id} is neither handled nor counted"));
        }
        for shard in (0..SHARDS).map(ShardId::new) {
            let Some(record) = process.coordinator.record(shard) else {
                return Some(format!("shard {shard} was never decided upon"));
            };
            let (home, at) = (record.home().region, record.home().generation);
            let hosts = |node: &Node| {
                let run = node.region.shard(shard).map(RegionShard::run);
                Some(RegionId::new(node.id())) == home && run == Some(HostingPhase::Hosting(at))
            };
            if !record.is_settled() || !self.sim.processes().any(|(_, node)| hosts(node)) {
                let runs: Vec<_> = self
                    .sim
                    .processes()
                    .map(|(_, node)| (node.id(), node.region.shard(shard).cloned()))
                    .collect();
                return Some(format!("shard {shard}: {record:?}, {runs:?}"));
            }
        }
        None
    }
}

fn run(seed: Seed, weakened: Weakened, coordinators: usize) -> Result<Counts, Box<Failure>> {
    let mut world = World::new(seed, weakened, coordinators);
    world.storm()?;
    world.peace()?;
    for (node, process) in world.sim.processes() {
        let stats = process.coordinator.stats();
        assert_eq!(stats.duplicate_home_detected, 0, "at {node}, seed {}", seed.value);
    }
    let fetched = world.sim.processes().map(|(_, process)| process.region.stats().fetched).sum();
    let Watch { open, counts, .. } = world.sim.observer();
    Ok(Counts { lost_with_a_node: open.len() as u64, fetched, ..*counts })
}

#[test]
#[expect(clippy::print_stdout, reason = "what the runs have reached")]
fn every_shard_has_one_host_and_ends_at_its_last_home() {
    let test = "every_shard_has_one_host_and_ends_at_its_last_home";
    let (mut all, mut runs) = (Counts::default(), 0);
    for seed in seeds(test, 60) {
        let most = 1 + (seed.value % 3) as usize;
        let counts = run(seed, Weakened::default(), most).unwrap_or_else(|failure| {
            panic!("{failure}");
        });
        all.add(&counts);
        runs += 1;
    }
    println!("{runs} runs: {all:?}");
    let Counts { decided, hosted, adopted, refused, read, handled, fetched, .. } = all;
    let reached = [decided, hosted, adopted, refused, read, handled, fetched];
    let changed = all.configurations > runs;
    assert!(runs < 20 || (changed && reached.iter().all(|count| *count > 0)), "{all:?}");
}

/// Whether one of the seeds `0..runs` fails with this fault injected.
fn is_seen(weakened: Weakened, runs: u64) -> bool {
    let seen = |value: u64| {
        let seed = Seed::from(value);
        World::new(seed, weakened, 3).storm().is_err()
    };
    (0..runs).any(seen)
}

#[test]
fn omitted_rules_are_found_on_the_real_replicator() {
    for bug in [
        ShardingFault::StartWithoutReleased,
        ShardingFault::ReleasedBeforeDrained,
        ShardingFault::AfterLastHomeOnly,
    ] {
        let weakened = Weakened { rule: ShardingFaultInjection::with(bug), ..Weakened::default() };
        assert!(is_seen(weakened, 30), "{bug:?}");
    }
    let store = FaultInjection::with(ReplicatorFault::NoTermCheck);
    assert!(is_seen(Weakened { store, ..Weakened::default() }, 60), "no term check");
}
