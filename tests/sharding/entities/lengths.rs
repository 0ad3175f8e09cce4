//! Messages and answers near the limits of a lane: each is handled, refused to its caller, or
//! counted as lost.

use std::sync::{Arc, Mutex};

use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, TellError};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{MESSAGE_BYTES_MAX, Nodes, Plan, Step, node};

#[derive(Default)]
struct Store {
    handled: u64,
}

#[derive(Serialize, Deserialize)]
enum Load {
    Put(String),
    Get(usize, Reply<String>),
    PutAsked(String, Reply<u64>),
    Count(Reply<u64>),
}

impl Entity for Store {
    type Message = Load;

    async fn handle(&mut self, load: Load, _: &mut Context<'_, Self>) {
        match load {
            Load::Put(_) => self.handled += 1,
            Load::Get(bytes, reply) => reply.send("x".repeat(bytes)),
            Load::PutAsked(_, reply) | Load::Count(reply) => reply.send(self.handled),
        }
    }
}

fn nodes() -> Nodes<Store> {
    let mut nodes = Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Store::default());
    nodes.host(0, 0);
    nodes
}

fn count(nodes: &mut Nodes<Store>) -> u64 {
    let store = nodes.nodes[1].region.entity("s");
    nodes.wait_for(async move { store.ask(Load::Count).await }).expect("it answers")
}

#[test]
fn a_message_near_the_limit_is_refused_or_handled() {
    let mut nodes = nodes();
    let store = nodes.nodes[1].region.entity("s");
    count(&mut nodes); // node 1 learns the home
    let (mut sent, mut refused) = (0, 0);
    for bytes in MESSAGE_BYTES_MAX - 150..MESSAGE_BYTES_MAX + 5 {
        match store.tell(Load::Put("x".repeat(bytes))) {
            Ok(()) => sent += 1,
            Err(TellError::TooLong { bytes, limit }) => {
                assert!(bytes > limit);
                refused += 1;
            }
            Err(why) => panic!("{why}"),
        }
    }
    assert_eq!((count(&mut nodes), nodes.all_lost()), (sent, 0));
    assert!(sent > 0 && refused > 0);
}

#[test]
fn message_too_long_for_the_lane_is_counted_and_skipped() {
    let mut nodes = nodes();
    let store = nodes.nodes[1].region.entity("s");
    count(&mut nodes);
    nodes.lanes.lock().expect("nobody panicked").bytes_max = 1_000;
    store.tell(Load::Put("x".repeat(2_000))).unwrap();
    store.tell(Load::Put("x".repeat(20))).unwrap();
    nodes.settle();
    assert_eq!((count(&mut nodes), nodes.lost(DeadLetterReason::TooLong)), (1, 1));
    let long = async move { store.ask(|reply| Load::PutAsked("x".repeat(2_000), reply)).await };
    let asked = nodes.wait_for(long);
    assert!(
        matches!(asked, Err(AskError::Refused { why: DeadLetterReason::TooLong, .. })),
        "{asked:?}"
    );
}

#[test]
fn an_answer_that_is_too_long_is_refused_and_counted() {
    let mut nodes = nodes();
    let store = nodes.nodes[1].region.entity("s");
    let long = async move { store.ask(|reply| Load::Get(MESSAGE_BYTES_MAX, reply)).await };
    let asked = nodes.wait_for(long);
    assert!(
        matches!(asked, Err(AskError::Refused { why: DeadLetterReason::AnswerTooLong, .. })),
        "{asked:?}"
    );
    assert_eq!((nodes.lost(DeadLetterReason::AnswerTooLong), nodes.all_lost()), (1, 1));
}

type Asked = Arc<Mutex<Option<Result<u64, AskError>>>>;

/// Starts an ask on node 1 and runs tasks only, so that nothing is delivered.
fn ask(nodes: &mut Nodes<Store>, load: impl FnOnce(Reply<u64>) -> Load + Send + 'static) -> Asked {
    let (store, asked) = (nodes.nodes[1].region.entity("s"), Asked::default());
    let result = Arc::clone(&asked);
    nodes.executor.spawn(Box::pin(async move {
        let answer = store.ask(load).await;
        *result.lock().expect("nobody panicked") = Some(answer);
    }));
    while nodes.possible().contains(&Step::Task) {
        nodes.step(Step::Task, 0);
    }
    asked
}

#[test]
fn bounces_beyond_the_lane_limit_are_counted_and_asks_fail() {
    let mut nodes = nodes();
    let store = nodes.nodes[1].region.entity("s");
    count(&mut nodes); // node 1 learns the home
    nodes.decide(ShardId::new(0), Some(1));
    nodes.deliver_control(0, |_| true);
    nodes.settle_without_control(); // node 0 has drained, and node 1 does not know of the move
    nodes.lanes.lock().expect("nobody panicked").answers = 2_500;
    store.tell(Load::Put("x".repeat(2_000))).unwrap();
    store.tell(Load::Put("y".repeat(2_000))).unwrap();
    let asked = ask(&mut nodes, |reply| Load::PutAsked("z".repeat(2_000), reply));
    (0..3).for_each(|_| nodes.step(Step::Lane, 1)); // bounces stay on the lane back
    assert_eq!(nodes.lost(DeadLetterReason::LaneFull), 2);
    nodes.settle();
    assert_eq!((count(&mut nodes), nodes.all_lost()), (1, 2));
    let asked = asked.lock().expect("nobody panicked").take();
    let is_told =
        matches!(asked, Some(Err(AskError::Refused { why: DeadLetterReason::LaneFull, .. })));
    assert!(is_told, "{asked:?}");
}

#[test]
fn an_answer_to_a_member_without_a_lane_is_counted() {
    let mut nodes = nodes();
    count(&mut nodes); // node 1 learns the home
    let asked = ask(&mut nodes, Load::Count);
    nodes.lanes.lock().expect("nobody panicked").out.insert(node(1)); // no lane yet
    nodes.settle();
    assert_eq!((nodes.lost(DeadLetterReason::AnswerLost), nodes.all_lost()), (1, 1));
    assert!(asked.lock().expect("nobody panicked").is_none(), "the caller waits for its timeout");
}
