//! Dropping an entity's value. `Drop` is the user's code: it may be slow, panic, or tell a message.
//! It therefore runs in a task, never where machines and lanes run, and a shard leaves only after
//! it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::passivation::settings::PassivationConfig;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan, Step};

/// Counts instances and drops, and says what a drop does.
#[derive(Default)]
struct Watch {
    dropped: AtomicUsize,
    begun: AtomicUsize,
    panics: AtomicBool,
    at_drop: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// An entity whose drop the test controls.
struct Heavy(Arc<Watch>);

impl Drop for Heavy {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        if let Some(act) = self.0.at_drop.get() {
            act();
        }
        assert!(!self.0.panics.load(Ordering::SeqCst), "planned by the test");
    }
}

#[derive(Serialize, Deserialize)]
enum Lift {
    Up,
    Passivate,
    Count(Reply<usize>),
}

impl Entity for Heavy {
    type Message = Lift;

    async fn handle(&mut self, lift: Lift, cx: &mut Context<'_, Self>) {
        match lift {
            Lift::Up => {}
            Lift::Passivate => cx.passivate(),
            Lift::Count(reply) => reply.send(self.0.begun.load(Ordering::SeqCst)),
        }
    }
}

fn heavy(plan: &Plan, watch: &Arc<Watch>) -> Nodes<Heavy> {
    let mut nodes = Nodes::new(plan, |_, _| {
        let watch = Arc::clone(watch);
        move |_: &EntityId| {
            watch.begun.fetch_add(1, Ordering::SeqCst);
            Heavy(Arc::clone(&watch))
        }
    });
    nodes.host(0, 0);
    nodes
}

/// Runs all steps except those of tasks.
fn settle_without_tasks(nodes: &mut Nodes<Heavy>) {
    while let Some(step) = nodes.possible().into_iter().find(|step| *step != Step::Task) {
        nodes.step(step, 0);
    }
}

#[test]
fn shard_leaves_after_its_values_are_dropped_in_a_task() {
    let watch = Arc::new(Watch::default());
    let mut nodes = heavy(&Plan::default(), &watch);
    nodes.nodes[0].region.entity("a").tell(Lift::Up).unwrap();
    nodes.settle();
    nodes.decide(ShardId::new(0), Some(1));
    settle_without_tasks(&mut nodes);
    assert_eq!(watch.dropped.load(Ordering::SeqCst), 0, "dropped where machines and lanes run");
    nodes.nodes[1].region.entity("a").tell(Lift::Up).unwrap();
    settle_without_tasks(&mut nodes);
    assert_eq!(nodes.nodes[1].region.entities(), 0, "the next home has not begun");
    nodes.settle();
    assert_eq!(watch.dropped.load(Ordering::SeqCst), 1);
    assert_eq!((nodes.nodes[0].region.entities(), nodes.nodes[1].region.entities()), (0, 1));
    assert_eq!(nodes.all_lost(), 0);
}

#[test]
fn panic_in_drop_delays_neither_shard_nor_successor() {
    let watch = Arc::new(Watch { panics: AtomicBool::new(true), ..Watch::default() });
    let mut nodes = heavy(&Plan::default(), &watch);
    let here = nodes.nodes[0].region.entity("a");
    for lift in [Lift::Up, Lift::Passivate, Lift::Up, Lift::Up] {
        here.tell(lift).unwrap();
    }
    nodes.settle();
    assert_eq!((watch.dropped.load(Ordering::SeqCst), nodes.nodes[0].region.failures()), (1, 1));
    nodes.decide(ShardId::new(0), Some(1));
    nodes.settle();
    let begun = nodes.wait_for(async move { here.ask(Lift::Count).await }).unwrap();
    assert_eq!((begun, nodes.nodes[0].region.failures()), (3, 2));
    assert_eq!((nodes.nodes[0].region.entities(), nodes.nodes[1].region.entities()), (0, 1));
    assert_eq!(nodes.all_lost(), 0);
    watch.panics.store(false, Ordering::SeqCst); // values are dropped at the end of the test
}

#[test]
fn message_during_a_drop_starts_no_instance_before_its_end() {
    let idle =
        PassivationConfig { idle_timeout: Duration::from_secs(60), ..PassivationConfig::default() };
    let settings = ShardingConfig { passivation: idle, ..ShardingConfig::default() };
    let plan = Plan { settings, ..Plan::default() };
    let watch = Arc::new(Watch::default());
    let mut nodes = heavy(&plan, &watch);
    let here = nodes.nodes[0].region.entity("a");
    here.tell(Lift::Up).unwrap();
    nodes.settle();
    let executor = Arc::clone(&nodes.executor);
    let started = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&started);
    let act = move || {
        let before = executor.ready();
        here.tell(Lift::Up).unwrap();
        kept.lock().expect("nobody panicked").push(executor.ready() - before);
    };
    assert!(watch.at_drop.set(Box::new(act)).is_ok());
    for _ in 0..8 {
        nodes.advance(Duration::from_secs(15));
        nodes.settle();
    }
    assert_eq!(started.lock().expect("nobody panicked")[..1], [0], "a task starts during the drop");
    assert!(
        watch.begun.load(Ordering::SeqCst) > 1,
        "the message was not handled by a new instance"
    );
    assert_eq!(nodes.all_lost(), 0);
}
