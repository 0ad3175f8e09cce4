//! Draining a shard: it waits for running handlers, carries their waiting messages to the next home
//! in order, reaches other entities of the shard for its handlers, and is bounded by an abort
//! (docs/protocol/sharding.md#release-drains, docs/protocol/sharding.md#drain-is-bounded).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::oneshot;
use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, TimeoutReason};
use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan, node};

/// An entity that logs what it handles, and whose handlers may wait at a door.
struct Guest {
    door: Arc<Door>,
    side: Arc<Door>,
    log: Arc<Mutex<Vec<String>>>,
    node: u64,
}

#[derive(Serialize, Deserialize)]
enum Say {
    Wait(String),
    Word(String),
    /// Waits at the side door.
    WaitAside,
    /// Waits at the door, then asks another entity.
    WaitAndAsk(String),
    WaitAndPassivate,
    /// As `WaitAndAsk`, but in a spawned task whose result the handler awaits.
    AskInTask(String),
    Echo(Reply<u64>),
    Last,
}

impl Guest {
    fn log(&self, cx: &Context<'_, Self>, what: &str) {
        self.log.lock().expect("nobody panicked").push(format!("{}@{} {what}", cx.id(), self.node));
    }
}

impl Entity for Guest {
    type Message = Say;

    async fn handle(&mut self, say: Say, cx: &mut Context<'_, Self>) {
        match say {
            Say::Word(word) => self.log(cx, &word),
            Say::Wait(word) => {
                self.door.pass().await;
                self.log(cx, &format!("{word} moving={}", cx.moving()));
            }
            Say::WaitAside => self.side.pass().await,
            Say::WaitAndAsk(other) => {
                self.door.pass().await;
                let answer = cx.entity(&other).ask(Say::Echo).await;
                self.log(cx, &format!("asked {:?}", answer.ok()));
            }
            Say::WaitAndPassivate => {
                self.door.pass().await;
                cx.passivate();
            }
            Say::AskInTask(other) => {
                let (door, other) = (Arc::clone(&self.door), cx.entity(&other));
                let (tell, told) = oneshot::channel();
                cx.spawn(async move {
                    door.pass().await;
                    let _told = tell.send(other.ask(Say::Echo).await.ok());
                });
                let answer = told.await;
                self.log(cx, &format!("asked {:?}", answer.ok().flatten()));
            }
            Say::Echo(reply) => reply.send(self.node),
            Say::Last => self.log(cx, "last"),
        }
    }

    fn stop_message() -> Option<Say> {
        Some(Say::Last)
    }
}

/// Nodes with entities `Guest`; shard 0 is hosted on node 0.
struct House {
    nodes: Nodes<Guest>,
    door: Arc<Door>,
    side: Arc<Door>,
    log: Arc<Mutex<Vec<String>>>,
}

impl House {
    fn new(fault_injection: ShardingFaultInjection) -> Self {
        Self::of(2, fault_injection)
    }

    fn of(nodes: usize, fault_injection: ShardingFaultInjection) -> Self {
        Self::by(&Plan { nodes, fault_injection, ..Plan::default() })
    }

    fn slow_after(slow_handler_after: Duration) -> Self {
        let plan = Plan::default();
        let settings = ShardingConfig { slow_handler_after, ..plan.settings.clone() };
        Self::by(&Plan { settings, ..plan })
    }

    fn by(plan: &Plan) -> Self {
        let (door, side) = (Arc::<Door>::default(), Arc::<Door>::default());
        let log = Arc::<Mutex<Vec<String>>>::default();
        let nodes = Nodes::new(plan, |me, _| {
            let (door, side) = (Arc::clone(&door), Arc::clone(&side));
            let log = Arc::clone(&log);
            move |id: &EntityId| {
                assert!(id.as_str() != "unborn", "planned by the test");
                let (door, side) = (Arc::clone(&door), Arc::clone(&side));
                Guest { door, side, log: Arc::clone(&log), node: me.replica().get() }
            }
        });
        let mut house = Self { nodes, door, side, log };
        house.nodes.host(0, 0);
        house
    }

    fn tell(&self, from: usize, to: &str, say: Say) {
        self.nodes.nodes[from].region.entity(to).tell(say).expect("there is room");
    }

    fn pass(&mut self, secs: u64) {
        for _ in 0..secs {
            self.nodes.advance(Duration::from_secs(1));
            self.nodes.settle();
        }
    }

    fn moves(&mut self, to: usize) {
        self.nodes.decide(ShardId::new(0), Some(to));
        self.nodes.settle();
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().expect("nobody panicked").clone()
    }
}

#[test]
fn drain_waits_for_handlers_and_moves_the_rest_in_order() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::Wait("first".to_owned()));
    house.nodes.settle();
    house.tell(0, "a", Say::Word("second".to_owned()));
    house.tell(1, "b", Say::Word("idle soon".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.tell(0, "a", Say::Word("third".to_owned()));
    house.tell(1, "a", Say::Word("from elsewhere".to_owned()));
    house.nodes.settle();
    assert_eq!(house.log(), ["b@1 idle soon", "b@1 last"], "no further message begins");
    house.door.open();
    house.nodes.settle();
    let log = house.log();
    let expected = ["a@1 first moving=true", "a@1 last", "a@2 second", "a@2 third"];
    let of_node_one = log[2..].iter().filter(|line| !line.contains("elsewhere"));
    assert_eq!(of_node_one.collect::<Vec<_>>(), expected);
    assert!(log.iter().any(|line| line == "a@2 from elsewhere"), "{log:?}");
    assert_eq!(house.nodes.all_lost(), 0);
}

/// The sender crashes while its message waits at the next home for a slow handler at the old one.
#[test]
fn messages_held_at_the_next_home_outlive_their_sender() {
    let mut house = House::of(3, ShardingFaultInjection::none());
    house.tell(0, "a", Say::Wait("slow".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.tell(2, "a", Say::Word("from the crashed node".to_owned()));
    house.nodes.settle();
    assert_eq!(house.nodes.nodes[1].region.held(), 1);
    house.nodes.crash(2);
    house.door.open();
    house.nodes.settle();
    assert_eq!(house.log(), ["a@1 slow moving=true", "a@1 last", "a@2 from the crashed node"]);
    assert_eq!(house.nodes.all_lost(), 0);
}

#[test]
fn asks_within_a_shard_do_not_hold_up_its_drain() {
    let run = |fault_injection| {
        let mut house = House::new(fault_injection);
        house.tell(0, "a", Say::WaitAndAsk("b".to_owned()));
        house.nodes.settle();
        house.moves(1);
        house.tell(0, "b", Say::Word("before the ask".to_owned()));
        house.door.open();
        house.nodes.settle();
        house.tell(0, "b", Say::Word("after the ask".to_owned()));
        house.nodes.settle();
        house.log()
    };
    let log = run(ShardingFaultInjection::none());
    let expected = ["b@1 before the ask", "a@1 asked Some(1)", "a@1 last", "b@1 last"];
    let here = log.iter().filter(|line| line.contains("@1"));
    let mut here: Vec<_> = here.map(String::as_str).collect();
    here.sort_unstable();
    let mut sorted = expected;
    sorted.sort_unstable();
    assert_eq!(here, sorted, "answered before the mailboxes were sealed: {log:?}");
    assert_eq!(log.last().map(String::as_str), Some("b@2 after the ask"));
    let stuck = run(ShardingFaultInjection::with(ShardingFault::DrainingHandlersNotMarked));
    assert!(!stuck.iter().any(|line| line.contains("asked")), "{stuck:?}");
}

#[test]
fn ask_from_an_awaited_task_does_not_hold_up_the_drain() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::AskInTask("b".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.door.open();
    house.nodes.settle();
    let mut log = house.log();
    log.sort_unstable();
    assert_eq!(log, ["a@1 asked Some(1)", "a@1 last", "b@1 last"], "before any timeout");
    assert_eq!(house.nodes.nodes[0].region.entities(), 0, "the shard has left");
}

#[test]
fn an_executor_that_ends_during_a_drain_takes_no_further_task() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::WaitAndAsk("b".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.door.open();
    let before = house.nodes.executor.tasks();
    while house.nodes.executor.tasks() == before {
        house.nodes.executor.step(0);
    }
    house.nodes.executor.shut_down(); // a waits for the task of b, which has not begun
    assert_eq!((house.log(), house.nodes.executor.tasks()), (vec![], 0));
    assert_eq!(house.nodes.nodes[0].region.entities(), 0, "waiting messages are in a payload");
}

#[test]
fn endless_handler_is_aborted_without_losing_later_messages() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.tell(0, "a", Say::Word("second".to_owned()));
    house.moves(1);
    assert_eq!(house.log(), [""; 0]);
    house.nodes.advance(Duration::from_secs(16));
    house.nodes.settle();
    assert_eq!(house.log(), ["a@2 second"]);
    assert_eq!((house.nodes.lost(DeadLetterReason::Aborted), house.nodes.all_lost()), (1, 1));
}

#[test]
fn mates_of_a_stuck_handler_stop_at_once() {
    let mut house = House::new(ShardingFaultInjection::none());
    for id in ["b", "c"] {
        house.tell(0, id, Say::Word("lives".to_owned()));
    }
    house.tell(0, "stuck", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.moves(1);
    let mut log = house.log();
    log.sort_unstable();
    let stopped = ["b@1 last", "b@1 lives", "c@1 last", "c@1 lives"];
    assert_eq!(log, stopped, "no time has passed, and they got their stop message");
    assert_eq!(house.nodes.nodes[0].region.entities(), 3, "the shard waits for the stuck one");
    house.nodes.advance(Duration::from_secs(16));
    house.nodes.settle();
    assert_eq!(house.nodes.nodes[0].region.entities(), 0, "after `handoff-timeout`");
    assert_eq!((house.nodes.lost(DeadLetterReason::Aborted), house.nodes.all_lost()), (1, 1));
}

#[test]
fn slow_handler_is_dropped_once_its_mates_have_stopped() {
    let mut house = House::slow_after(Duration::from_secs(8));
    house.tell(0, "stuck", Say::Wait("never".to_owned()));
    house.pass(12);
    house.tell(0, "stuck", Say::Word("second".to_owned()));
    house.tell(0, "mate", Say::WaitAside);
    house.nodes.settle();
    house.moves(1);
    assert_eq!(
        (house.log(), house.nodes.lost(DeadLetterReason::Aborted)),
        (vec![], 0),
        "a mate still runs"
    );
    house.side.open();
    house.nodes.settle();
    assert_eq!(house.log(), ["mate@1 last", "stuck@2 second"], "no time has passed");
    assert_eq!((house.nodes.lost(DeadLetterReason::Aborted), house.nodes.all_lost()), (1, 1));
}

#[test]
fn timeout_in_a_drain_names_the_handler_that_holds_it_up() {
    let mut house = House::slow_after(Duration::from_secs(8)); // checked every 2 s
    house.tell(0, "stuck", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.pass(3);
    house.tell(0, "younger", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.pass(2);
    house.moves(1);
    let mate = house.nodes.nodes[0].region.entity("mate");
    let asked = mate.ask_within(Duration::from_secs(2), Say::Echo);
    let why = house.nodes.wait_for(asked).expect_err("the shard waits for the handlers");
    let text = why.to_string();
    let AskError::Timeout { kept: TimeoutReason::Moving, handler: Some(handler), .. } = why else {
        panic!("{text}");
    };
    assert_eq!(handler.entity.as_str(), "stuck", "{text}");
    assert!(handler.message_type.ends_with("::Say"), "{text}");
    assert_eq!(handler.running_for.as_secs(), 7, "{text}");
    assert!(text.contains("it waits for the handler of stuck, which has run for 7"), "{text}");
}

#[test]
fn handler_that_gets_slow_in_a_drain_is_dropped_then() {
    let mut house = House::slow_after(Duration::from_secs(4));
    house.tell(0, "stuck", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.pass(3);
    assert_eq!(
        (house.nodes.home(ShardId::new(0)), house.nodes.lost(DeadLetterReason::Aborted)),
        (Some(node(1)), 0)
    );
    assert!(house.nodes.nodes[0].region.entities() > 0, "it may still end");
    house.pass(3);
    assert_eq!(house.nodes.nodes[0].region.entities(), 0, "well before `handoff-timeout`");
    assert_eq!((house.nodes.lost(DeadLetterReason::Aborted), house.nodes.all_lost()), (1, 1));
}

#[test]
fn slow_handlers_that_remain_are_dropped_together() {
    let mut house = House::slow_after(Duration::from_secs(4));
    for id in ["a", "b", "c"] {
        house.tell(0, id, Say::Wait("never".to_owned()));
    }
    house.pass(8);
    house.tell(0, "young", Say::Wait("never".to_owned()));
    house.nodes.settle();
    house.moves(1);
    assert_eq!(house.nodes.lost(DeadLetterReason::Aborted), 0, "one of them is not slow");
    house.pass(6);
    assert_eq!((house.nodes.lost(DeadLetterReason::Aborted), house.nodes.all_lost()), (4, 4));
    assert_eq!(house.nodes.nodes[0].region.entities(), 0);
}

#[test]
fn panic_in_factory_during_a_drain_loses_only_its_message() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::WaitAndAsk("unborn".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.door.open();
    house.nodes.settle();
    assert_eq!(house.log(), ["a@1 asked None", "a@1 last"]);
    assert_eq!((house.nodes.lost(DeadLetterReason::EntityFailed), house.nodes.all_lost()), (1, 1));
    assert_eq!(house.nodes.nodes[0].region.entities(), 0, "the shard has left");
}

#[test]
fn a_lapsed_lease_pauses_handlers_and_begins_nothing() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::Wait("first".to_owned()));
    house.nodes.settle();
    house.nodes.nodes[0].world.leased.store(false, Ordering::SeqCst);
    house.tell(0, "b", Say::Word("other".to_owned()));
    house.door.open();
    for _ in 0..10 {
        house.nodes.settle();
        house.nodes.advance(Duration::from_millis(10));
    }
    assert_eq!(house.log(), [""; 0], "no message begins and no handler continues");
    house.nodes.nodes[0].world.leased.store(true, Ordering::SeqCst);
    house.nodes.advance(Duration::from_millis(10));
    house.nodes.settle();
    let mut log = house.log();
    log.sort_unstable();
    assert_eq!(log, ["a@1 first moving=false", "b@1 other"]);
}

#[test]
fn known_failure_07_removed_node_stops_and_counts_its_messages() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::Wait("first".to_owned()));
    house.nodes.settle();
    house.tell(0, "a", Say::Word("second".to_owned()));
    house.tell(0, "b", Say::Word("other".to_owned()));
    house.nodes.crash(0);
    house.door.open();
    house.nodes.settle();
    assert_eq!(house.log(), [""; 0]);
    assert_eq!(house.nodes.lost(DeadLetterReason::NodeStopped), 2);
    assert_eq!(house.nodes.lost(DeadLetterReason::HandlerStopped), 1, "its handler had begun");
    assert_eq!(house.nodes.executor.tasks(), 0);
    house.tell(1, "a", Say::Word("again".to_owned()));
    house.nodes.settle();
    assert_eq!(house.log(), ["a@2 again"], "{:?}", node(1));
    let refused = house.nodes.nodes[0].region.entity("a").tell(Say::Word("here".to_owned()));
    assert!(refused.is_err());
}

#[test]
fn known_failure_01_and_04_messages_for_stopping_shard_survive() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.door.open();
    let mut expected = Vec::new();
    for (number, to) in [1, 0, 1, 0].into_iter().enumerate() {
        house.tell(0, "a", Say::Word(format!("{number} before")));
        house.nodes.decide(ShardId::new(0), Some(to));
        house.tell(0, "a", Say::Word(format!("{number} after")));
        house.nodes.settle();
        expected.extend([format!("{number} before"), format!("{number} after")]);
    }
    let log = house.log();
    let words = log.iter().filter(|line| !line.ends_with("last"));
    let words: Vec<&str> = words.filter_map(|line| line.split_once(' ')).map(|(_, w)| w).collect();
    assert_eq!(words, expected, "all handled without waiting for a retry");
    assert_eq!(house.nodes.all_lost(), 0);
}

#[test]
fn known_failure_05_each_live_entity_gets_its_stop_message() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.nodes.host(0, 1);
    assert_eq!(house.log(), [""; 0], "a shard without entities leaves at once");
    for id in ["a", "b", "c"] {
        house.tell(0, id, Say::Word("lives".to_owned()));
    }
    house.nodes.settle();
    house.nodes.host(0, 0);
    let log = house.log();
    let mut last: Vec<_> = log.iter().filter(|line| line.ends_with("last")).collect();
    last.sort_unstable();
    assert_eq!(last, ["a@2 last", "b@2 last", "c@2 last"]);
    assert!(house.nodes.nodes.iter().all(|node| node.region.entities() == 0));
}

#[test]
fn known_failure_43_messages_of_a_passivating_entity_move() {
    let mut house = House::new(ShardingFaultInjection::none());
    house.tell(0, "a", Say::WaitAndPassivate);
    house.nodes.settle();
    house.tell(0, "a", Say::Word("second".to_owned()));
    house.tell(1, "a", Say::Word("from elsewhere".to_owned()));
    house.nodes.settle();
    house.moves(1);
    house.door.open();
    house.nodes.settle();
    let mut log = house.log();
    log.sort_unstable();
    assert_eq!(log, ["a@1 last", "a@2 from elsewhere", "a@2 second"]);
    assert_eq!(house.nodes.all_lost(), 0);
}
