//! Tasks that entities spawn: they run beside the handlers, pause without a lease, and end with
//! their instance, before its shard leaves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::region_handle::RegionEnvironment;
use serde::{Deserialize, Serialize};

use super::nodes::{NodeWorld, Nodes, Plan};

type Log = Arc<Mutex<Vec<String>>>;

struct Worker {
    log: Log,
    world: Arc<NodeWorld>,
}

#[derive(Serialize, Deserialize)]
enum Order {
    /// Starts a task that sleeps for this many milliseconds and then tells `Done`.
    Work(u64),
    Panic,
    Done,
    Passivate,
    /// Sets a timer, and handles this message until its executor ends.
    SetTimerAndHang,
}

/// Logs that it was dropped.
struct Tool(Log);

impl Drop for Tool {
    fn drop(&mut self) {
        self.0.lock().expect("nobody panicked").push("dropped".to_owned());
    }
}

impl Entity for Worker {
    type Message = Order;

    async fn handle(&mut self, order: Order, cx: &mut Context<'_, Self>) {
        match order {
            Order::Work(millis) => {
                let (tool, myself) = (Tool(Arc::clone(&self.log)), cx.myself());
                let sleep = self.world.sleep(Duration::from_millis(millis));
                cx.spawn(async move {
                    let _tool = tool;
                    sleep.await;
                    myself.tell(Order::Done).expect("there is room");
                });
            }
            Order::Panic => cx.spawn(async { panic!("planned by the test") }),
            Order::Done => self.log.lock().expect("nobody panicked").push("done".to_owned()),
            Order::Passivate => cx.passivate(),
            Order::SetTimerAndHang => {
                let _timer = cx.after(Duration::from_secs(60), Order::Done);
                std::future::pending::<()>().await;
            }
        }
    }
}

struct Works {
    nodes: Nodes<Worker>,
    log: Log,
}

impl Works {
    fn new() -> Self {
        let log = Log::default();
        let mut nodes = Nodes::new(&Plan::default(), |_, world| {
            let log = Arc::clone(&log);
            move |_: &EntityId| Worker { log: Arc::clone(&log), world: Arc::clone(&world) }
        });
        nodes.host(0, 0);
        Self { nodes, log }
    }

    fn tell(&mut self, order: Order) {
        self.nodes.nodes[1].region.entity("w").tell(order).expect("there is room");
        self.nodes.settle();
    }

    fn pass(&mut self, millis: u64) {
        self.nodes.advance(Duration::from_millis(millis));
        self.nodes.settle();
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().expect("nobody panicked"))
    }
}

#[test]
fn a_task_runs_beside_the_handlers_and_tells_its_entity() {
    let mut works = Works::new();
    works.tell(Order::Work(50));
    works.tell(Order::Done);
    assert_eq!(works.taken(), ["done"], "the task holds up no message");
    works.pass(50);
    assert_eq!(works.taken(), ["dropped", "done"]);
    assert_eq!(works.nodes.executor.tasks(), 0);
}

#[test]
fn a_task_ends_with_its_instance_and_its_shard_moves_after_that() {
    let mut works = Works::new();
    works.tell(Order::Work(50));
    works.tell(Order::Passivate);
    assert_eq!(works.taken(), ["dropped"]);
    works.tell(Order::Work(50));
    works.nodes.decide(ShardId::new(0), Some(1));
    works.nodes.settle();
    assert_eq!(works.taken(), ["dropped"]);
    assert_eq!(works.nodes.nodes[0].region.entities(), 0, "the shard has left");
    works.tell(Order::Done);
    works.pass(100);
    assert_eq!((works.taken(), works.nodes.all_lost()), (vec!["done".to_owned()], 0));
}

#[test]
fn shard_leaves_after_the_tasks_of_its_entities() {
    let mut works = Works::new();
    works.tell(Order::Work(50));
    works.nodes.decide(ShardId::new(0), Some(1));
    works.nodes.nodes[1].region.entity("w").tell(Order::Done).expect("there is room");
    let mut dropped_first = false;
    while let Some(step) = works.nodes.possible().last().copied() {
        works.nodes.step(step, 0);
        let log = works.log.lock().expect("nobody panicked").clone();
        dropped_first |= log == ["dropped"];
        assert!(log.first().is_none_or(|first| first == "dropped"), "{log:?}");
    }
    assert!(dropped_first);
    assert_eq!(works.taken(), ["dropped", "done"]);
}

/// The activation is dropped with its executor, so it cannot wait for the timer itself.
#[test]
fn shard_leaves_after_the_timers_of_a_dropped_activation() {
    let mut works = Works::new();
    works.tell(Order::SetTimerAndHang);
    works.nodes.decide(ShardId::new(0), Some(1));
    works.nodes.settle();
    works.nodes.executor.end();
    assert_eq!(works.nodes.nodes[0].region.entities(), 1, "a task waits for the timer");
    works.nodes.settle();
    assert_eq!(works.nodes.nodes[0].region.entities(), 0);
}

#[test]
fn a_task_rests_while_there_is_no_lease() {
    let mut works = Works::new();
    works.tell(Order::Work(50));
    works.nodes.nodes[0].world.leased.store(false, Ordering::SeqCst);
    (0..10).for_each(|_| works.pass(10));
    assert_eq!(works.taken(), [""; 0]);
    works.nodes.nodes[0].world.leased.store(true, Ordering::SeqCst);
    (0..3).for_each(|_| works.pass(10));
    assert_eq!(works.taken(), ["dropped", "done"]);
}

#[test]
fn a_task_that_panics_is_counted_and_its_entity_goes_on() {
    let mut works = Works::new();
    works.tell(Order::Panic);
    works.tell(Order::Done);
    assert_eq!((works.taken(), works.nodes.nodes[0].region.failures()), (vec!["done".into()], 1));
    works.nodes.host(0, 1);
    assert_eq!(works.nodes.nodes[0].region.entities(), 0, "its shard leaves");
}
