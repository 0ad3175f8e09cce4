//! Shard placement that the program controls: by an allocation strategy of its own, and by pins.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ostraca::cluster::member::Address;
use ostraca::node::sharding::{ExplanationSubject, NotStarted, PinError, ShardingQueryError};
use ostraca::prelude::*;
use ostraca::sharding::allocation::{
    Allocations, ShardAllocationStrategy, StrategyError, StrategyFuture,
};
use ostraca::sharding::config::{AllocationStrategyName, ShardingConfig as Settings};
use ostraca::sharding::ids::{EntityId, RegionId, ShardId};

use crate::fixture::{Plan, all_up, drop_all};
use crate::waits::{SOON, eventually, soon};

const ENTITIES: u64 = 20;

struct Guest;

impl Entity for Guest {
    type Message = Reply<u64>;

    async fn handle(&mut self, whereabouts: Reply<u64>, cx: &mut Context<'_, Self>) {
        whereabouts.send(cx.node().replica().get());
    }
}

type Guests = ShardRegion<Guest>;

fn region_of(node: &Node) -> RegionId {
    RegionId::new(node.cluster().me().incarnation)
}

/// Number of entities per node; `None` if an entity does not answer yet.
async fn homes(region: &Guests) -> Option<BTreeMap<u64, usize>> {
    let mut homes = BTreeMap::new();
    for number in 0..ENTITIES {
        let entity = region.entity(&format!("guest-{number}"));
        *homes.entry(entity.ask(|reply| reply).await.ok()?).or_default() += 1;
    }
    Some(homes)
}

async fn all_live_at(region: &Guests, node: &Node) {
    let only = BTreeMap::from([(node.cluster().me().incarnation.get(), ENTITIES as usize)]);
    eventually("all are hosted there", async || homes(region).await.as_ref() == Some(&only)).await;
}

/// Places all shards at the configured region.
struct Told(Arc<Mutex<RegionId>>);

impl ShardAllocationStrategy for Told {
    fn name(&self) -> &str {
        "as told"
    }

    fn allocate(
        &self,
        _: ShardId,
        _: Option<RegionId>,
        _: Arc<Allocations>,
    ) -> StrategyFuture<RegionId> {
        let to = *self.0.lock().expect("no panic");
        Box::pin(async move { Ok(to) })
    }

    fn rebalance(&self, seen: Arc<Allocations>) -> StrategyFuture<BTreeMap<ShardId, RegionId>> {
        let to = *self.0.lock().expect("no panic");
        let moves = seen.homes().map(|(shard, _)| (shard, to)).collect();
        Box::pin(async move { Ok(moves) })
    }
}

fn setup(strategy: impl ShardAllocationStrategy) -> EntityTypeSetup<Guest> {
    let settings =
        Settings { rebalance_interval: Duration::from_millis(200), ..Settings::default() };
    EntityTypeSetup {
        settings: Some(settings),
        allocation_strategy: Some(Arc::new(strategy)),
        ..EntityTypeSetup::new("guest", |_| Guest)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_follow_a_custom_allocation_strategy() {
    let nodes = Plan::with_seeds(3).start().await;
    let told = Arc::new(Mutex::new(region_of(&nodes[1])));
    let mut regions = Vec::new();
    for node in &nodes {
        let started = node.sharding().start_with(setup(Told(told.clone()))).await;
        regions.push(started.expect("it starts"));
    }
    all_live_at(&regions[0], &nodes[1]).await;
    *told.lock().expect("no panic") = region_of(&nodes[2]);
    all_live_at(&regions[0], &nodes[2]).await;
    let about = ExplanationSubject::entity("guest-0").expect("a name");
    let why = soon(nodes[0].sharding().explain("guest", about, SOON)).await.expect("it answers");
    assert!(why.to_string().contains("as told"), "{why}");
    drop_all(nodes);
}

/// Fails in every possible way before its first valid placement; its answer to a rebalance never
/// comes.
struct Sick(AtomicU64);

impl ShardAllocationStrategy for Sick {
    fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: Arc<Allocations>,
    ) -> StrategyFuture<RegionId> {
        let nobody = RegionId::new(ostraca::ddata::id::ReplicaId::new(7));
        let fewest = seen.fewest().map(|(home, _)| home);
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => panic!("as ordered, at shard {shard} for {asker:?}"),
            1 => Box::pin(async { later() }),
            2 => Box::pin(async { Err::<RegionId, _>(StrategyError::new("as ordered")) }),
            3 => Box::pin(async move { Ok(nobody) }),
            _ => Box::pin(async move { fewest.ok_or_else(|| StrategyError::new("no node")) }),
        }
    }

    fn rebalance(&self, _: Arc<Allocations>) -> StrategyFuture<BTreeMap<ShardId, RegionId>> {
        Box::pin(std::future::pending())
    }
}

fn later() -> Result<RegionId, StrategyError> {
    panic!("as ordered, later")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_strategy_does_not_affect_other_types() {
    let nodes = Plan::with_seeds(1).start().await;
    let sharding = nodes[0].sharding();
    let sick = sharding.start_with(setup(Sick(AtomicU64::new(0)))).await.expect("it starts");
    let well = sharding.start("well", |_| Guest).await.expect("it starts");
    assert_eq!(all_of(&well).await, ENTITIES as usize, "another type is not affected");
    assert_eq!(all_of(&sick).await, ENTITIES as usize);
    soon(async {
        for node in nodes {
            node.stop().await;
        }
    })
    .await;
}

/// Queries its node about types during the call of `name`.
struct Nosy(Sharding, Arc<Mutex<Vec<bool>>>);

impl ShardAllocationStrategy for Nosy {
    fn name(&self) -> &str {
        let (sharding, (tell, told)) = (self.0.clone(), mpsc::channel());
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let asked = runtime.block_on(sharding.current_regions("nobody's"));
            tell.send(matches!(asked, Err(ShardingQueryError::NotStarted { .. })))
        });
        let answered = told.recv_timeout(Duration::from_secs(10)).unwrap_or(false);
        self.1.lock().expect("no panic").push(answered);
        "nosy"
    }

    fn allocate(
        &self,
        _: ShardId,
        _: Option<RegionId>,
        _: Arc<Allocations>,
    ) -> StrategyFuture<RegionId> {
        Box::pin(std::future::pending())
    }

    fn rebalance(&self, _: Arc<Allocations>) -> StrategyFuture<BTreeMap<ShardId, RegionId>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strategy_name_is_read_once_without_a_lock() {
    let nodes = Plan::with_seeds(1).start().await;
    let asked = Arc::<Mutex<Vec<bool>>>::default();
    let nosy = Nosy(nodes[0].sharding(), asked.clone());
    nodes[0].sharding().start_with(setup(nosy)).await.expect("it starts");
    assert_eq!(*asked.lock().expect("no panic"), [true]);
    drop_all(nodes);
}

/// A node without membership behaves as after the end of membership.
#[tokio::test]
async fn start_on_a_stopped_node_keeps_nothing() {
    let node = Node::listen(Config::default()).await.expect("it listens");
    let (strategy, made) = (Arc::new(Sick(AtomicU64::new(0))), Arc::new(AtomicU64::new(0)));
    let counts = made.clone();
    let factory = move |_: &EntityId| {
        counts.fetch_add(1, Ordering::Relaxed);
        Guest
    };
    let setup = EntityTypeSetup {
        allocation_strategy: Some(strategy.clone()),
        ..EntityTypeSetup::new("guest", factory)
    };
    let started = node.sharding().start_with(setup).await;
    assert!(matches!(started, Err(NotStarted::Stopped)), "{started:?}");
    assert_eq!((Arc::strong_count(&strategy), Arc::strong_count(&made)), (1, 1));
}

/// Waits until all entities answer and returns their number.
async fn all_of(region: &Guests) -> usize {
    eventually("all answer", async || homes(region).await.is_some()).await;
    homes(region).await.map_or(0, |homes| homes.values().sum())
}

/// Starts a type whose shards are pinned.
async fn pinned(node: &Node) -> Guests {
    let name = AllocationStrategyName::External;
    let settings = Settings { allocation_strategy: name, ..Settings::default() };
    let setup =
        EntityTypeSetup { settings: Some(settings), ..EntityTypeSetup::new("guest", |_| Guest) };
    node.sharding().start_with(setup).await.expect("it starts")
}

fn address_of(from: &Node, node: &Node) -> Address {
    let members = from.cluster().members();
    let member = members.iter().find(|member| member.node == node.cluster().me());
    member.expect("it is a member").address.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_move_shards_and_wait_for_absent_nodes() {
    let plan = Plan::with_seeds(2);
    let mut nodes = plan.start().await;
    let regions = [pinned(&nodes[0]).await, pinned(&nodes[1]).await];
    let shards: Vec<ShardId> =
        (0..ENTITIES).map(|n| regions[0].entity(&format!("guest-{n}")).shard()).collect();
    let all_to = |address: Address| shards.iter().map(move |shard| (*shard, address.clone()));
    let sharding = nodes[1].sharding();
    for at in [1, 0] {
        let to = address_of(&nodes[0], &nodes[at]);
        soon(sharding.pin_shards("guest", all_to(to), SOON)).await.expect("a majority has it");
        all_live_at(&regions[0], &nodes[at]).await;
    }
    let free = crate::fixture::free_addresses(1).remove(0);
    let to_come = Address::new(free.to_string()).expect("short");
    soon(sharding.pin_shards("guest", all_to(to_come), SOON)).await.expect("a majority has it");
    let pins = soon(sharding.pins("guest", SOON)).await.expect("it answers");
    assert!(pins.len() <= ENTITIES as usize && pins.values().all(|pin| pin.region.is_none()));
    all_live_at(&regions[1], &nodes[0]).await;
    nodes.push(Node::start(plan.config(&free, None)).await.expect("it starts"));
    let third = pinned(&nodes[2]).await;
    all_up(&nodes).await;
    all_live_at(&third, &nodes[2]).await;
    let own = nodes[2].sharding();
    eventually("all pins are met", async || {
        let pins = own.pins("guest", SOON).await.expect("it answers");
        pins.values().all(ostraca::node::sharding::Pin::is_met)
    })
    .await;
    soon(own.unpin_shards("guest", shards.clone(), SOON)).await.expect("a majority has it");
    assert_eq!(soon(sharding.pins("guest", SOON)).await.expect("it answers"), BTreeMap::new());
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_that_no_node_follows_are_refused() {
    let nodes = Plan::with_seeds(1).start().await;
    let sharding = nodes[0].sharding();
    let here = address_of(&nodes[0], &nodes[0]);
    let pin = async |name: &str, shard: u32| {
        let pins = [(ShardId::new(shard), here.clone())];
        sharding.pin_shards(name, pins, SOON).await
    };
    let unknown = pin("guest", 0).await;
    assert!(
        matches!(unknown, Err(PinError::Query(ShardingQueryError::NotStarted { .. }))),
        "{unknown:?}"
    );
    pinned(&nodes[0]).await;
    sharding.start("well", |_| Guest).await.expect("it starts");
    let error = pin("well", 0).await.expect_err("it has another strategy");
    assert_eq!(
        error.to_string(),
        "well follows no pins: set its allocation-strategy = \"external\" on all nodes; nothing \
         was pinned"
    );
    let error = pin("guest", 1_000).await.expect_err("there are 1,000");
    assert_eq!(error.to_string(), "guest has the shards 0 to 999: there is no 1000");
    pin("guest", 999).await.expect("it is there");
    drop_all(nodes);
}
