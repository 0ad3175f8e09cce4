//! However an instance ends, the entity's next instance begins only after the tasks of the former
//! one were dropped with everything that they hold; otherwise both could own the same resource
//! (docs/protocol/sharding.md#an-instance-ends-before-its-successor).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};
use ostraca_ddata::sim::RandomStream;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan};

const SHARD: ShardId = ShardId::new(0);

/// A lock for each entity, with the instance that holds it. Counts how often an instance found its
/// lock held by a former one (`found_held`), and free (`taken`).
#[derive(Default)]
struct Locks {
    instances: u32,
    held: BTreeMap<String, u32>,
    found_held: u32,
    taken: u32,
}

type Shared = Arc<Mutex<Locks>>;

/// Holds the lock of an entity until it is dropped.
struct Guard(String, Shared);

impl Drop for Guard {
    fn drop(&mut self) {
        self.1.lock().expect("nobody panicked").held.remove(&self.0);
    }
}

struct Worker {
    instance: u32,
    locks: Shared,
    door: Arc<Door>,
}

#[derive(Serialize, Deserialize)]
enum Order {
    /// Takes the entity's lock in a task that never ends.
    Work,
    Passivate,
    Panic,
    /// Handles this message until it is aborted.
    Hang,
    Last,
}

impl Entity for Worker {
    type Message = Order;

    async fn handle(&mut self, order: Order, cx: &mut Context<'_, Self>) {
        match order {
            Order::Work => {
                let id = cx.id().as_str().to_owned();
                let mut locks = self.locks.lock().expect("nobody panicked");
                if let Some(holder) = locks.held.get(&id).copied() {
                    locks.found_held += u32::from(holder != self.instance);
                    return;
                }
                locks.held.insert(id.clone(), self.instance);
                locks.taken += 1;
                let guard = Guard(id, Arc::clone(&self.locks));
                cx.spawn(async move {
                    let _held = guard;
                    std::future::pending::<()>().await;
                });
            }
            Order::Passivate => cx.passivate(),
            Order::Panic => panic!("planned by the test"),
            Order::Hang => self.door.pass().await,
            Order::Last => {}
        }
    }

    fn stop_message() -> Option<Order> {
        Some(Order::Last)
    }
}

/// How an instance ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Passivate,
    PanicAndRestart,
    PanicAndStop,
    Idle,
    Limit,
    LapseIdle,
    LapseBusy,
    Move,
    Abort,
    StopShard,
}

use Ending::{
    Abort, Idle, LapseBusy, LapseIdle, Limit, Move, PanicAndRestart, PanicAndStop, Passivate,
    StopShard,
};

const ENDINGS: [Ending; 10] = [
    Passivate,
    PanicAndRestart,
    PanicAndStop,
    Idle,
    Limit,
    LapseIdle,
    LapseBusy,
    Move,
    Abort,
    StopShard,
];

struct Works {
    nodes: Nodes<Worker>,
    locks: Shared,
    chance: RandomStream,
}

impl Works {
    fn new(ending: Ending, seed: u64) -> Self {
        let passivation = PassivationConfig {
            strategy: match ending {
                Idle => PassivationStrategy::Idle,
                Limit => PassivationStrategy::LeastRecentlyUsed,
                _ => PassivationStrategy::None,
            },
            idle_timeout: Duration::from_secs(60),
            active_entity_limit: 1,
            ..PassivationConfig::default()
        };
        // No pause before a restart, which would hide that it does not wait for the tasks.
        let none = Duration::ZERO;
        let settings =
            ShardingConfig { passivation, restart_backoff_min: none, ..ShardingConfig::default() };
        let supervision = match ending {
            PanicAndStop => Supervision::Stop,
            _ => Supervision::Restart,
        };
        let plan = Plan { settings, supervision, ..Plan::default() };
        let (locks, door) = (Shared::default(), Arc::<Door>::default());
        let mut nodes = Nodes::new(&plan, |_, _| {
            let (locks, door) = (Arc::clone(&locks), Arc::clone(&door));
            move |_: &EntityId| {
                let mut counted = locks.lock().expect("nobody panicked");
                counted.instances += 1;
                let (instance, door) = (counted.instances, Arc::clone(&door));
                Worker { instance, locks: Arc::clone(&locks), door }
            }
        });
        nodes.host(0, 0);
        Self { nodes, locks, chance: RandomStream::split(seed, "successors", 0) }
    }

    fn tell(&self, id: &str, order: Order) {
        self.nodes.nodes[1].region.entity(id).tell(order).expect("there is room");
    }

    /// Runs all steps in random order until none is possible.
    fn run(&mut self) {
        for _ in 0..100_000 {
            let possible = self.nodes.possible();
            if possible.is_empty() {
                return;
            }
            let step = *self.chance.pick(&possible);
            let pick = self.chance.index(1 << 20);
            self.nodes.step(step, pick);
        }
        panic!("steps remain after 100,000");
    }

    fn pass(&mut self, secs: u64) {
        self.nodes.advance(Duration::from_secs(secs));
    }

    fn end(&mut self, ending: Ending) {
        match ending {
            Passivate => self.tell("w", Order::Passivate),
            PanicAndRestart => self.tell("w", Order::Panic),
            PanicAndStop => {
                self.tell("w", Order::Panic);
                self.run(); // messages told before the stop would be lost
            }
            Idle => self.pass(120),
            Limit => self.tell("other", Order::Last),
            LapseIdle | LapseBusy => {
                if let LapseBusy = ending {
                    self.tell("w", Order::Hang);
                    self.run();
                }
                let node = &self.nodes.nodes[0];
                node.world.leased.store(false, Ordering::SeqCst);
                node.hosting.lapsed();
                node.world.leased.store(true, Ordering::SeqCst);
            }
            Move => self.nodes.decide(SHARD, Some(1)),
            Abort => {
                self.tell("w", Order::Hang);
                self.run();
                self.nodes.decide(SHARD, Some(1));
                self.run();
                self.pass(15); // handoff-timeout
            }
            StopShard => self.nodes.decide(SHARD, None),
        }
    }
}

#[test]
fn successor_begins_after_tasks_of_former_instance() {
    for (ending, seed) in ENDINGS.into_iter().flat_map(|ending| (0..30).map(move |s| (ending, s))) {
        let mut works = Works::new(ending, seed);
        works.tell("w", Order::Work);
        works.run();
        for turn in 2..5 {
            works.end(ending);
            if let Idle | Limit = ending {
                works.run(); // before the next message, which would keep the instance
            }
            works.tell("w", Order::Work);
            works.run();
            if let Move | Abort | StopShard = ending {
                works.nodes.host(0, 0); // moves back: the instance ends once more
                works.tell("w", Order::Work);
                works.run();
            }
            works.pass(1); // paused entities check the lease again
            works.run();
            let locks = works.locks.lock().expect("nobody panicked");
            assert_eq!(locks.found_held, 0, "{ending:?}, seed {seed}, turn {turn}");
            assert!(locks.taken >= turn, "{ending:?}, seed {seed}: {} of {turn}", locks.taken);
        }
    }
}
