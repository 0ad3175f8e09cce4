//! Whole simulated nodes without entities: membership, leases, replicated data and the sharding
//! machines, wired by the functions that the driver uses. Shards get homes, move when nodes join
//! and leave, and get new homes when a node crashes.

pub(crate) mod chaos;
mod effects;
mod going;
mod known_failures;
mod queries;
mod recovering;
mod slow_handlers;
mod strategies;
mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca::cluster::membership::port::MembershipCommand;
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::coordinator::CoordinatorPhase;
use ostraca::sharding::ids::{EntityType, ShardId};
use ostraca::sharding::machines::Hosts;
use ostraca::sharding::passivation::settings::{
    LimitScope, PassivationConfig, PassivationStrategy,
};
use ostraca::sharding::region::{HostingPhase, Region};
use ostraca_ddata::sim::{
    Faults, LaneRule, NodeIndex, RandomStream, Seed, Simulation, SimulationSetup,
};

use self::watch::ShardWatch;
use crate::whole::entities::Order;
use crate::whole::{Command, WholeNode, World};

type Sim = Simulation<WholeNode, ShardWatch>;

const SHARDS: u32 = 12;
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn counter() -> EntityType {
    EntityType::new("counter").expect("a valid name")
}

pub(crate) fn settings() -> Box<Settings> {
    Box::new(Settings { number_of_shards: SHARDS, ..Settings::default() })
}

/// A random passivation policy: a limit of at most `limit_max` active entities, or an idle timeout
/// out of `idle`, in milliseconds.
pub(crate) fn some_passivation(
    seed: Seed,
    chance: &mut RandomStream,
    limit_max: usize,
    idle: &[u64],
) -> PassivationConfig {
    let strategies = [
        PassivationStrategy::None,
        PassivationStrategy::LeastRecentlyUsed,
        PassivationStrategy::Composite,
    ];
    let mut passivation = PassivationConfig {
        strategy: *chance.pick(&strategies),
        active_entity_limit: 1 + chance.index(limit_max),
        idle_timeout: Duration::ZERO,
        scope: *chance.pick(&[LimitScope::Region, LimitScope::Shard]),
        ..PassivationConfig::default()
    };
    // A separate random stream, so that seeds known to find a fault keep their draws above.
    let mut own = RandomStream::split(seed.value, "idle", 0);
    if passivation.strategy == PassivationStrategy::None && own.index(2) == 0 {
        passivation.strategy = PassivationStrategy::Idle;
        passivation.idle_timeout = Duration::from_millis(*own.pick(idle));
    }
    passivation
}

fn shards() -> impl Iterator<Item = ShardId> {
    (0..SHARDS).map(ShardId::new)
}

fn by_default() -> Order {
    Order::Start(counter(), settings(), Hosts::Shards)
}

/// A simulated cluster in which the entity type `counter` is started.
pub(crate) struct Cluster {
    pub(crate) sim: Sim,
    told: u64,
    /// How the type is started.
    start: Box<dyn Fn() -> Order>,
}

impl Cluster {
    /// A cluster whose only faults are those that the test orders.
    fn calm(seed: impl Into<Seed>, places: usize, started: usize) -> Self {
        Self::with(seed, places, started, Faults::none(), World::new(3.min(places)))
    }

    fn with(
        seed: impl Into<Seed>,
        places: usize,
        started: usize,
        faults: Faults,
        world: World,
    ) -> Self {
        Self::starting(by_default, seed, (places, started), faults, world)
    }

    /// A cluster in which `start` starts the entity type.
    fn starting(
        start: impl Fn() -> Order + 'static,
        seed: impl Into<Seed>,
        places: (usize, usize),
        faults: Faults,
        world: World,
    ) -> Self {
        Self::watched(start, seed, places, faults, world, ShardWatch::default())
    }

    fn watched(
        start: impl Fn() -> Order + 'static,
        seed: impl Into<Seed>,
        (places, started): (usize, usize),
        faults: Faults,
        world: World,
        watch: ShardWatch,
    ) -> Self {
        let setup = SimulationSetup {
            started: Some(started),
            lanes: vec![LaneRule::STREAM],
            faults,
            ..SimulationSetup::new(seed, places)
        };
        let sim = Simulation::new(setup, watch, world.factory());
        let mut cluster = Self { sim, told: 0, start: Box::new(start) };
        (0..started).for_each(|place| cluster.host(place));
        cluster
    }

    pub(crate) fn order(&mut self, place: usize, order: Order) {
        self.sim.command(NodeIndex::new(place), Command::Sharding(order));
    }

    fn host(&mut self, place: usize) {
        self.order(place, (self.start)());
    }

    fn want_all(&mut self, place: usize) {
        shards().for_each(|shard| self.order(place, Order::Want(counter(), shard)));
    }

    fn leave(&mut self, place: usize) {
        let id = self.at(place).me().incarnation;
        self.sim.command(NodeIndex::new(place), Command::User(MembershipCommand::Leave(id)));
    }

    fn at(&self, place: usize) -> &WholeNode {
        self.sim.process(NodeIndex::new(place)).expect("the node is up")
    }

    /// Sends one message to each hosted shard.
    fn tell(&mut self) {
        for (shard, place) in self.homes() {
            self.told += 1;
            let told = self.told;
            self.order(place, Order::Tell(counter(), shard, told));
        }
    }

    /// The hosted shards and their places.
    fn homes(&self) -> BTreeMap<ShardId, usize> {
        let hosted = |(node, process): (NodeIndex, &WholeNode)| {
            let region = process.region(&counter());
            let hosted = region.into_iter().flat_map(Region::hosted);
            let lives = hosted.filter(|(_, run)| matches!(run, HostingPhase::Hosting(_)));
            lives.map(|(shard, _)| (shard, node.get())).collect::<Vec<_>>()
        };
        self.sim.processes().flat_map(hosted).collect()
    }

    /// Number of shards hosted at each of these places.
    fn sizes<const N: usize>(&self, places: [usize; N]) -> [usize; N] {
        let homes = self.homes();
        places.map(|place| homes.values().filter(|at| **at == place).count())
    }

    pub(crate) fn story(&self) -> String {
        let story = |(_, node): (_, &WholeNode)| node.sharding_story(&counter()) + &node.story();
        self.sim.processes().map(story).collect()
    }

    #[track_caller]
    fn until(&mut self, seconds: u32, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let end = self.sim.now() + seconds * SECOND;
        loop {
            if let Err(failure) = self.sim.try_run_for(Duration::from_millis(50)) {
                panic!("{}\n{}{failure}", failure.reason, self.story());
            }
            if reached(self) {
                return;
            }
            assert!(self.sim.now() < end, "never: {what}\n{}", self.story());
        }
    }

    /// Three nodes that host all shards evenly.
    fn of_three(seed: u64, places: usize) -> Self {
        Self::of_three_in(seed, places, World::new(3))
    }

    fn of_three_in(seed: u64, places: usize, world: World) -> Self {
        let mut cluster = Self::with(seed, places, 3, Faults::none(), world);
        cluster.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
        cluster.want_all(1);
        cluster.until(20, "even", |it| it.sizes([0, 1, 2]) == [4, 4, 4]);
        cluster
    }

    /// Whether the coordinator knows this place's region.
    fn is_registered(&self, place: usize) -> bool {
        self.at(place).region(&counter()).is_some_and(Region::is_registered)
    }

    /// Phase of the coordinator at this place, if one runs.
    fn phase(&self, place: usize) -> Option<CoordinatorPhase> {
        let node = self.sim.process(NodeIndex::new(place))?;
        let phase = node.machines.of(&counter())?.coordinator()?.phase();
        (!matches!(phase, CoordinatorPhase::Off | CoordinatorPhase::Down)).then_some(phase)
    }

    /// Whether this place's coordinator decides.
    fn acts(&self, place: usize) -> bool {
        let of_type = self.sim.process(NodeIndex::new(place)).map(|node| &node.machines);
        let coordinator = of_type.and_then(|machines| machines.of(&counter())?.coordinator());
        coordinator.is_some_and(|coordinator| coordinator.phase() == CoordinatorPhase::Active)
    }
}

#[test]
fn known_failure_39_shards_asked_for_at_once_are_spread_evenly() {
    for seed in 0..10 {
        let cluster = Cluster::of_three(seed, 3);
        let acting = (0..3).filter(|place| cluster.acts(*place)).count();
        assert_eq!(acting, 1, "seed {seed}");
        assert_eq!(cluster.sim.observer().starts, u64::from(SHARDS), "no shard moved");
    }
}

#[test]
fn joining_node_gets_its_share_with_the_fewest_moves() {
    for seed in 0..5 {
        let mut cluster = Cluster::of_three(seed, 4);
        cluster.sim.restart(NodeIndex::new(3));
        cluster.host(3);
        cluster.until(20, "even", |it| it.sizes([0, 1, 2, 3]) == [3, 3, 3, 3]);
        assert_eq!(cluster.sim.observer().starts, u64::from(SHARDS) + 3, "seed {seed}");
    }
}

#[test]
fn a_proxy_hosts_nothing_and_never_coordinates() {
    let mut cluster = Cluster::of_three(1, 4);
    cluster.sim.restart(NodeIndex::new(3));
    cluster.order(3, Order::Start(counter(), settings(), Hosts::Nothing));
    cluster.until(20, "the proxy is registered", |it| it.is_registered(3));
    cluster.sim.try_run_for(30 * SECOND).expect("nothing is wrong");
    assert_eq!(cluster.sizes([0, 1, 2, 3]), [4, 4, 4, 0]);
    (0..3).for_each(|place| cluster.sim.crash(NodeIndex::new(place)));
    cluster.sim.try_run_for(30 * SECOND).expect("nothing is wrong");
    assert!(!cluster.acts(3));
}

/// A node that leaves gracefully moves its shards with all messages; a leaving coordinator is
/// replaced.
#[test]
fn nodes_leaving_one_after_another_lose_no_message() {
    for seed in 0..10 {
        let mut cluster = Cluster::of_three(seed, 3);
        for place in 0..3 {
            (0..5).for_each(|_| cluster.tell());
            cluster.leave(place);
            cluster.until(60, "it has left", |it| it.at(place).over.is_some());
            let live_on = if place == 2 { 0 } else { SHARDS as usize };
            cluster.until(60, "all shards are hosted", |it| it.homes().len() == live_on);
            if place < 2 {
                let is_handled = |it: &Cluster| it.sim.observer().open.is_empty();
                cluster.until(60, "what was told is handled", is_handled);
                assert_eq!(cluster.sim.observer().discarded, 0, "seed {seed}");
            }
        }
    }
}

#[test]
fn shards_of_a_removed_node_get_new_homes() {
    for seed in 0..10 {
        let mut cluster = Cluster::of_three(seed, 3);
        let crashed = (seed % 3) as usize;
        cluster.sim.crash(NodeIndex::new(crashed));
        cluster.until(60, "all shards are hosted", |it| it.homes().len() == SHARDS as usize);
        let others: Vec<usize> = (0..3).filter(|place| *place != crashed).collect();
        cluster.until(20, "even", |it| it.sizes([others[0], others[1]]) == [6, 6]);
        (0..3).for_each(|_| cluster.tell());
        cluster.until(20, "what is told is handled", |it| it.sim.observer().open.is_empty());
    }
}

#[test]
fn known_failure_06_paused_coordinator_is_replaced_for_good() {
    for seed in 0..5 {
        let mut cluster = Cluster::of_three(seed, 3);
        let coordinates = (0..3).find(|place| cluster.acts(*place)).expect("one acts");
        let node = NodeIndex::new(coordinates);
        cluster.sim.pause(node, 60 * SECOND);
        cluster.until(50, "another one acts", |it| {
            (0..3).any(|place| place != coordinates && it.acts(place))
        });
        cluster.until(20, "its shards are hosted elsewhere", |it| {
            let homes = it.homes();
            let elsewhere = homes.values().filter(|place| **place != coordinates).count();
            elsewhere == SHARDS as usize
        });
        cluster.until(60, "it knows its removal", |it| it.at(coordinates).over.is_some());
        assert_eq!(cluster.sizes([coordinates]), [0]);
    }
}
