//! Asks to entities on a node that is removed. If that node has the message of an ask, the ask fails
//! at once. If the message is elsewhere, the ask goes on
//! (docs/protocol/message-order.md#asks-end-with-the-node-that-has-their-message).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ostraca::cluster::lease::Departure;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, AskFuture, TimeoutReason};
use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan, Step, index_of, node};

const SHARD: ShardId = ShardId::new(0);

/// Answers with the index of its node.
struct Clerk {
    node: usize,
    door: Arc<Door>,
    handled: Arc<AtomicUsize>,
}

#[derive(Serialize, Deserialize)]
enum Query {
    Now(Reply<usize>),
    /// Answered once the door of the node is open.
    Later(Reply<usize>),
}

impl Entity for Clerk {
    type Message = Query;

    async fn handle(&mut self, query: Query, _: &mut Context<'_, Self>) {
        self.handled.fetch_add(1, Ordering::SeqCst);
        match query {
            Query::Now(reply) => reply.send(self.node),
            Query::Later(reply) => {
                self.door.pass().await;
                reply.send(self.node);
            }
        }
    }
}

/// Three nodes; node 0 hosts the shard, and node 1 asks. A first ask has been answered.
struct Office {
    nodes: Nodes<Clerk>,
    doors: [Arc<Door>; 3],
    /// Number of asks that any node began to handle, with the first one.
    handled: Arc<AtomicUsize>,
}

impl Office {
    fn new() -> Self {
        Self::with(ShardingFaultInjection::none())
    }

    fn with(fault_injection: ShardingFaultInjection) -> Self {
        let (doors, handled) = ([(); 3].map(|()| Arc::default()), Arc::<AtomicUsize>::default());
        let plan = Plan { nodes: 3, fault_injection, ..Plan::default() };
        let mut nodes = Nodes::new(&plan, |me, _| {
            let node = index_of(me);
            let (door, handled) = (Arc::clone(&doors[node]), Arc::clone(&handled));
            move |_: &EntityId| {
                let (door, handled) = (Arc::clone(&door), Arc::clone(&handled));
                Clerk { node, door, handled }
            }
        });
        nodes.host(0, 0);
        let mut office = Self { nodes, doors, handled };
        assert_eq!(office.answer_to(Query::Now), 0, "node 1 knows the home now");
        office
    }

    fn ask(&self, query: impl FnOnce(Reply<usize>) -> Query) -> AskFuture<Clerk, usize> {
        self.nodes.nodes[1].region.entity("clerk").ask(query)
    }

    fn answer_to(&mut self, query: impl FnOnce(Reply<usize>) -> Query) -> usize {
        let asked = self.ask(query);
        self.nodes.wait_for(asked).expect("it is answered")
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::SeqCst)
    }

    /// Limits the messages on a lane; 0 is as a lane without a connection.
    fn limit_lanes(&self, messages: usize) {
        self.nodes.lanes.lock().expect("nobody panicked").limit = messages;
    }

    /// Moves the shard to node 2 without telling node 1. The later rounds deliver the control
    /// messages that the earlier ones caused.
    fn move_silently(&mut self) {
        self.nodes.decide(SHARD, Some(2));
        for _ in 0..3 {
            for told in [0, 2] {
                self.nodes.deliver_control(told, |_| true);
                self.nodes.settle_without_control();
            }
        }
    }

    /// Asserts that the ask fails without waiting, because node 0 was removed.
    fn assert_lost(&mut self, asked: AskFuture<Clerk, usize>) {
        let before = self.nodes.executor.now();
        let why = self.nodes.wait_for(asked).expect_err("its node is gone");
        assert!(matches!(&why, AskError::NodeLost { node: at, .. } if *at == node(0)), "{why}");
        assert!(why.to_string().contains("may have been handled"), "{why}");
        assert_eq!(self.nodes.executor.now(), before, "it waits for no timeout");
        assert_eq!(self.nodes.nodes[1].asks.waiting(), 0);
    }
}

#[test]
fn ask_fails_when_the_node_that_handles_it_is_removed() {
    let mut office = Office::new();
    let asked = office.ask(Query::Later);
    office.nodes.settle();
    assert_eq!(office.handled(), 2, "its handler began");
    office.nodes.crash(0);
    office.assert_lost(asked);
    assert_ne!(office.answer_to(Query::Now), 0, "the next ask reaches the next home");
}

/// Node 1 asks, and node 0 crashes before the message arrives.
fn crash_with_the_lane(
    fault_injection: ShardingFaultInjection,
) -> (Office, AskFuture<Clerk, usize>) {
    let mut office = Office::with(fault_injection);
    let asked = office.ask(Query::Now);
    office.nodes.crash(0);
    (office, asked)
}

#[test]
fn ask_on_the_lane_of_a_removed_node_fails_and_is_not_resent() {
    let (mut office, asked) = crash_with_the_lane(ShardingFaultInjection::none());
    office.assert_lost(asked);
    office.nodes.settle();
    assert_eq!(office.handled(), 1, "only the first ask");
}

/// The reason why the removal ends an ask: no answer can come.
#[test]
fn ask_that_outlives_its_node_waits_for_its_timeout() {
    let fault = ShardingFaultInjection::with(ShardingFault::AskOutlivesNode);
    let (mut office, asked) = crash_with_the_lane(fault);
    let before = office.nodes.executor.now();
    let why = office.nodes.wait_for(asked).expect_err("its message is lost");
    assert!(matches!(why, AskError::Timeout { .. }), "{why}");
    let waited = office.nodes.executor.now() - before;
    assert!(waited >= Plan::default().settings.ask_timeout, "{waited:?}");
}

/// Node 1 asks while its lane to node 0 has no connection, and node 0 crashes before it has one.
fn crash_behind_a_lane(
    fault_injection: ShardingFaultInjection,
) -> (Office, AskFuture<Clerk, usize>) {
    let mut office = Office::with(fault_injection);
    office.limit_lanes(0);
    let asked = office.ask(Query::Now);
    office.limit_lanes(usize::MAX);
    office.nodes.crash(0);
    (office, asked)
}

#[test]
fn ask_that_waits_for_a_lane_is_answered_by_the_next_home() {
    let (mut office, asked) = crash_behind_a_lane(ShardingFaultInjection::none());
    let home = office.nodes.wait_for(asked).expect("it was on no lane");
    assert_ne!(home, 0);
    assert_eq!(office.handled(), 2, "this ask and the first one, once each");
}

/// The reason why a lane without a connection has no room.
#[test]
fn ask_in_an_unconnected_lane_is_lost_with_its_node() {
    let fault = ShardingFaultInjection::with(ShardingFault::UnconnectedLaneTakes);
    let (mut office, asked) = crash_behind_a_lane(fault);
    office.assert_lost(asked);
    assert_eq!(office.handled(), 1, "only the first ask");
}

#[test]
fn timeout_of_an_ask_behind_a_lane_says_that_it_waits() {
    let mut office = Office::new();
    office.limit_lanes(0);
    let asked = office.ask(Query::Now);
    let why = office.nodes.wait_for(asked).expect_err("the lane takes nothing");
    assert!(matches!(why, AskError::Timeout { kept: TimeoutReason::BehindLane, .. }), "{why}");
}

#[test]
fn ask_whose_message_moved_on_outlives_its_former_node() {
    let mut office = Office::new();
    let [first, second] = [(); 2].map(|()| office.ask(Query::Later));
    office.nodes.settle();
    office.nodes.decide(SHARD, Some(2));
    office.nodes.settle();
    office.doors[0].open();
    assert_eq!(office.nodes.wait_for(first).expect("its handler ended"), 0);
    office.nodes.crash(0); // the second one moved to node 2
    office.nodes.settle();
    office.doors[2].open();
    assert_eq!(office.nodes.wait_for(second).expect("its node lives"), 2);
}

#[test]
fn ask_of_a_node_that_knows_no_move_fails_only_after_a_crash() {
    for how in [Departure::Stopped, Departure::Unheard] {
        let mut office = Office::new();
        let [first, second] = [(); 2].map(|()| office.ask(Query::Later));
        office.nodes.settle();
        office.doors[0].open();
        office.move_silently();
        assert_eq!(office.nodes.home(SHARD), Some(node(2)));
        drop(first); // it only kept node 0 busy, so that the second one moved with the shard
        office.nodes.remove(0, how);
        match how {
            Departure::Stopped => {
                office.doors[2].open();
                assert_eq!(office.nodes.wait_for(second).expect("its message moved"), 2);
            }
            Departure::Unheard => office.assert_lost(second), // it moved, but node 1 cannot know
        }
    }
}

#[test]
fn ask_whose_message_came_back_is_sent_to_the_next_home() {
    let mut office = Office::new();
    office.move_silently();
    let asked = office.ask(Query::Now);
    office.nodes.step(Step::Lane, 0); // node 0 gets the message and returns it
    office.nodes.step(Step::Lane, 0); // node 1 gets it back
    office.nodes.crash(0); // before node 0 acknowledges the barrier that ends its lane
    assert_eq!(office.nodes.wait_for(asked).expect("it was not there"), 2);
    assert_eq!(office.handled(), 2, "this ask and the first one, once each");
}

/// The asks were made on the former home, so their messages were encoded only for the move.
#[test]
fn ask_that_moved_from_its_node_is_refused_with_the_next_home() {
    let mut office = Office::new();
    let clerk = office.nodes.nodes[0].region.entity("clerk");
    let [first, second, third] = [(); 3].map(|()| clerk.ask(Query::Later));
    office.nodes.settle();
    office.nodes.decide(SHARD, Some(2));
    office.nodes.settle();
    office.doors[0].open();
    assert_eq!(office.nodes.wait_for(first).expect("its handler ended"), 0);
    assert_eq!(office.handled(), 3, "the second one has begun at node 2, and the third one waits");
    let before = office.nodes.executor.now();
    office.nodes.crash(2);
    let reasons = [DeadLetterReason::HandlerStopped, DeadLetterReason::NodeStopped];
    for (asked, reason) in [second, third].into_iter().zip(reasons) {
        let why = office.nodes.wait_for(asked).expect_err("its node stopped");
        assert!(matches!(&why, AskError::Refused { why, .. } if *why == reason), "{why}");
    }
    assert_eq!(office.nodes.executor.now(), before, "they wait for no timeout");
}

/// The region's machine handles the stop of its node before the end of the drain.
#[test]
fn ask_in_a_payload_sealed_before_the_stop_is_refused() {
    // Messages of node 0 are dropped in a task after the drain, and those of node 1 at once.
    for asking in [0, 1] {
        let mut office = Office::new();
        let clerk = office.nodes.nodes[asking].region.entity("clerk");
        let [_first, second] = [(); 2].map(|()| clerk.ask(Query::Later));
        office.nodes.settle();
        office.nodes.decide(SHARD, Some(2));
        office.nodes.settle();
        office.doors[0].open();
        while office.nodes.nodes[0].region.entities() > 0 {
            office.nodes.step(Step::Task, 0);
        }
        let before = office.nodes.executor.now();
        office.nodes.crash(0);
        let why = office.nodes.wait_for(second).expect_err("its payload is lost");
        let reason = DeadLetterReason::NodeStopped;
        assert!(matches!(&why, AskError::Refused { why, .. } if *why == reason), "{why}");
        assert_eq!(office.nodes.lost(reason), 1, "asked from node {asking}");
        assert_eq!(office.nodes.executor.now(), before, "it waits for no timeout");
    }
}
