//! Passivation, by the entity itself or by a policy (idle timeout, limit of active entities).
//! Messages that arrive meanwhile are handled by the next instance
//! (docs/protocol/sharding.md#passivation-loses-no-message).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::passivation::settings::{
    LimitScope, PassivationConfig, PassivationStrategy,
};
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan};

type Log = Arc<Mutex<Vec<String>>>;

struct Sleeper {
    log: Log,
    handled: u32,
}

#[derive(Serialize, Deserialize)]
enum Poke {
    Once,
    Passivate,
    Panic,
    Last,
}

impl Entity for Sleeper {
    type Message = Poke;

    async fn handle(&mut self, poke: Poke, cx: &mut Context<'_, Self>) {
        self.handled += 1;
        let what = match poke {
            Poke::Once => "once",
            Poke::Last => "last",
            Poke::Panic => panic!("planned by the test"),
            Poke::Passivate => {
                cx.passivate();
                "passivate"
            }
        };
        self.log.lock().expect("nobody panicked").push(format!(
            "{} {what} {}",
            cx.id(),
            self.handled
        ));
    }

    fn stop_message() -> Option<Poke> {
        Some(Poke::Last)
    }
}

fn sleepers(passivation: PassivationConfig, shards: u32) -> (Nodes<Sleeper>, Log) {
    let settings = ShardingConfig { passivation, ..ShardingConfig::default() };
    let plan = Plan { settings, shards, ..Plan::default() };
    let log = Log::default();
    let mut nodes = Nodes::new(&plan, |_, _| {
        let log = Arc::clone(&log);
        move |_: &EntityId| Sleeper { log: Arc::clone(&log), handled: 0 }
    });
    (0..shards).for_each(|shard| nodes.host(shard, 0));
    (nodes, log)
}

fn poke(nodes: &mut Nodes<Sleeper>, ids: &[&str]) {
    for id in ids {
        nodes.nodes[0].region.entity(id).tell(Poke::Once).expect("there is room");
        nodes.settle();
    }
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut *log.lock().expect("nobody panicked"))
}

#[test]
fn an_entity_that_passivates_itself_loses_no_message() {
    let off =
        PassivationConfig { strategy: PassivationStrategy::None, ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(off, 1);
    for from in [0, 1] {
        let entity = nodes.nodes[from].region.entity("a");
        for poke in [Poke::Once, Poke::Passivate, Poke::Once, Poke::Passivate] {
            entity.tell(poke).unwrap();
        }
        nodes.settle();
        let turn = ["a once 1", "a passivate 2", "a last 3"];
        assert_eq!(taken(&log), [turn, turn].concat());
        assert_eq!(nodes.nodes[0].region.entities(), 0);
    }
}

#[test]
fn idle_entity_stops_after_its_timeout_and_busy_one_stays() {
    let idle =
        PassivationConfig { idle_timeout: Duration::from_secs(60), ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(idle, 2);
    poke(&mut nodes, &["a", "b"]);
    assert_eq!(taken(&log), ["a once 1", "b once 1"]);
    for _ in 0..6 {
        nodes.advance(Duration::from_secs(15));
        poke(&mut nodes, &["b"]);
    }
    let lines = taken(&log);
    assert_eq!(lines.iter().filter(|line| line.starts_with('a')).collect::<Vec<_>>(), ["a last 2"]);
    assert!(!lines.contains(&"b last 2".to_owned()), "{lines:?}");
    assert_eq!(nodes.nodes[0].region.entities(), 1);
    poke(&mut nodes, &["a"]);
    assert_eq!(taken(&log), ["a once 1"], "a new instance");
}

/// When the sweep finds the idle entity, a message waits for it and its task has not begun.
#[test]
fn message_at_the_end_of_idle_timeout_keeps_the_entity() {
    let idle =
        PassivationConfig { idle_timeout: Duration::from_secs(60), ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(idle, 1);
    poke(&mut nodes, &["a"]);
    for nth in 2..5 {
        let _told_so_far = taken(&log);
        nodes.advance(Duration::from_secs(90));
        poke(&mut nodes, &["a"]); // after the sweep that is due
        assert_eq!(taken(&log), [format!("a once {nth}")]);
    }
}

/// More entities than one sweep visits at a time.
#[test]
fn thousands_of_idle_entities_stop_and_free_their_entries() {
    let idle =
        PassivationConfig { idle_timeout: Duration::from_secs(60), ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(idle, 1);
    let ids: Vec<_> = (0..2_500).map(|number| number.to_string()).collect();
    for _ in 0..2 {
        for id in &ids {
            nodes.nodes[0].region.entity(id).tell(Poke::Once).expect("there is room");
        }
        nodes.settle();
        assert_eq!((nodes.nodes[0].region.entities(), taken(&log).len()), (2_500, 2_500));
        for _ in 0..8 {
            nodes.advance(Duration::from_secs(15));
            poke(&mut nodes, &["999", "1000", "2499"]);
        }
        assert_eq!(nodes.nodes[0].region.entities(), 3);
        nodes.advance(Duration::from_secs(120));
        nodes.settle();
        assert_eq!(nodes.nodes[0].region.entities(), 0);
        let last = taken(&log).iter().filter(|line| line.contains(" last ")).count();
        assert_eq!(last, 2_500);
    }
}

#[test]
fn least_recently_used_entity_stops_above_the_limit() {
    for (scope, shards, left) in [(LimitScope::Region, 5, 3), (LimitScope::Shard, 1, 3)] {
        let limit = PassivationConfig {
            strategy: PassivationStrategy::LeastRecentlyUsed,
            active_entity_limit: 3,
            scope,
            ..PassivationConfig::default()
        };
        let (mut nodes, log) = sleepers(limit, shards);
        poke(&mut nodes, &["a", "b", "c", "a", "d"]);
        assert_eq!(taken(&log).last().map(String::as_str), Some("b last 2"), "{scope:?}");
        assert_eq!(nodes.nodes[0].region.entities(), left);
        nodes.nodes[0].region.set_active_entity_limit(1);
        nodes.settle();
        let mut stopped = taken(&log);
        stopped.sort_unstable();
        assert_eq!(stopped, ["a last 3", "c last 2"], "{scope:?}");
        assert_eq!(nodes.nodes[0].region.entities(), 1);
    }
}

#[test]
fn message_to_a_stopping_entity_keeps_it_under_the_limit() {
    let limit = PassivationConfig {
        strategy: PassivationStrategy::LeastRecentlyUsed,
        active_entity_limit: 1,
        ..PassivationConfig::default()
    };
    let (mut nodes, log) = sleepers(limit, 1);
    poke(&mut nodes, &["a"]);
    for id in ["b", "a", "c"] {
        nodes.nodes[0].region.entity(id).tell(Poke::Once).expect("there is room");
    }
    nodes.settle();
    poke(&mut nodes, &["d", "d", "d", "d"]);
    assert_eq!(nodes.nodes[0].region.entities(), 1);
    assert!(taken(&log).contains(&"a last 3".to_owned()));
}

#[test]
fn start_of_a_passivating_entity_waits_for_next_instance() {
    let off =
        PassivationConfig { strategy: PassivationStrategy::None, ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(off, 1);
    let entity = nodes.nodes[1].region.entity("a");
    for poke in [Poke::Once, Poke::Passivate] {
        entity.tell(poke).unwrap();
    }
    let started = nodes.nodes[1].region.start_entity("a");
    nodes.wait_for(started).expect("it started");
    nodes.settle();
    assert_eq!(taken(&log), ["a once 1", "a passivate 2", "a last 3"]);
    assert_eq!(nodes.nodes[0].region.entities(), 1, "the next instance, without a message");
    entity.tell(Poke::Once).unwrap();
    nodes.settle();
    assert_eq!(taken(&log), ["a once 1"]);
}

#[test]
fn panic_and_passivation_lose_no_later_message() {
    let off =
        PassivationConfig { strategy: PassivationStrategy::None, ..PassivationConfig::default() };
    let (mut nodes, log) = sleepers(off, 1);
    let entity = nodes.nodes[1].region.entity("a");
    for poke in [Poke::Panic, Poke::Once, Poke::Passivate, Poke::Once] {
        entity.tell(poke).unwrap();
    }
    nodes.settle();
    assert_eq!(taken(&log), [""; 0], "the restart waits");
    nodes.advance(Duration::from_secs(1));
    nodes.settle();
    let first = ["a once 1", "a passivate 2", "a last 3"];
    assert_eq!(taken(&log), [&first[..], &["a once 1"]].concat());
    assert_eq!(nodes.all_lost(), 1, "the message whose handler panicked");
}

/// An entity that counts live instances and whose handler waits at the door.
struct Blocked {
    alive: Arc<AtomicUsize>,
    door: Arc<Door>,
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Entity for Blocked {
    type Message = ();

    async fn handle(&mut self, (): (), _: &mut Context<'_, Self>) {
        self.door.pass().await;
    }
}

/// Tells `ids` entities one message each. Returns the number of live instances at the peak, and
/// after all handlers have ended without a further message.
fn burst(passivation: PassivationConfig, ids: usize) -> (usize, usize) {
    let settings = ShardingConfig { passivation, ..ShardingConfig::default() };
    let plan = Plan { settings, shards: 4, ..Plan::default() };
    let (alive, door) = (Arc::<AtomicUsize>::default(), Arc::<Door>::default());
    let mut nodes = Nodes::new(&plan, |_, _| {
        let (alive, door) = (Arc::clone(&alive), Arc::clone(&door));
        move |_: &EntityId| {
            alive.fetch_add(1, Ordering::SeqCst);
            Blocked { alive: Arc::clone(&alive), door: Arc::clone(&door) }
        }
    });
    (0..4).for_each(|shard| nodes.host(shard, 0));
    for id in 0..ids {
        nodes.nodes[0].region.entity(&id.to_string()).tell(()).expect("there is room");
    }
    nodes.settle();
    let peak = alive.load(Ordering::SeqCst);
    door.open();
    nodes.settle();
    assert_eq!(nodes.nodes[0].region.entities(), alive.load(Ordering::SeqCst));
    (peak, alive.load(Ordering::SeqCst))
}

#[test]
fn limit_holds_after_burst_without_further_messages() {
    for scope in [LimitScope::Region, LimitScope::Shard] {
        for strategy in [
            PassivationStrategy::LeastRecentlyUsed,
            PassivationStrategy::Segmented,
            PassivationStrategy::MostRecentlyUsed,
            PassivationStrategy::LeastFrequentlyUsed,
            PassivationStrategy::Composite,
        ] {
            let idle_timeout = Duration::ZERO; // only the limit stops entities
            let limit = PassivationConfig {
                strategy,
                scope,
                active_entity_limit: 100,
                idle_timeout,
                ..PassivationConfig::default()
            };
            let (peak, rest) = burst(limit, 5_000);
            assert_eq!((peak, rest), (5_000, 100), "{strategy:?}, {scope:?}");
        }
    }
}

#[test]
fn limit_of_1000_holds_after_burst_of_50000_ids() {
    let limit = PassivationConfig {
        strategy: PassivationStrategy::LeastRecentlyUsed,
        active_entity_limit: 1_000,
        ..PassivationConfig::default()
    };
    assert_eq!(burst(limit, 50_000), (50_000, 1_000));
}
