//! The public calls on an entity: tell, ask and start, from the entity's own node and from another
//! one.

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, TellError};
use ostraca::sharding::ids::InvalidName;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan};

#[derive(Default)]
struct Counter {
    value: i64,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Add(i64),
    Get(Reply<i64>),
    Sum { of: String, reply: Reply<i64> },
    Forget(Reply<i64>),
}

impl Entity for Counter {
    type Message = Command;

    async fn handle(&mut self, command: Command, cx: &mut Context<'_, Self>) {
        match command {
            Command::Add(n) => self.value += n,
            Command::Get(reply) => reply.send(self.value),
            Command::Sum { of, reply } => {
                if let Ok(other) = cx.entity(&of).ask(Command::Get).await {
                    reply.send(self.value + other);
                }
            }
            Command::Forget(reply) => drop(reply),
        }
    }
}

fn counters(plan: &Plan) -> Nodes<Counter> {
    Nodes::new(plan, |_, _| |_: &_| Counter::default())
}

#[test]
fn tell_and_ask_work_locally_and_remotely() {
    let mut nodes = counters(&Plan::default());
    nodes.host(0, 0);
    for from in [0, 1] {
        let alice = nodes.nodes[from].region.entity("alice");
        alice.tell(Command::Add(1)).unwrap();
        alice.tell(Command::Add(20)).unwrap();
        let value = nodes.wait_for(async move { alice.ask(Command::Get).await }).unwrap();
        assert_eq!(value, 21 * (from as i64 + 1));
    }
    assert_eq!((nodes.nodes[0].region.entities(), nodes.nodes[1].region.entities()), (1, 0));
    assert_eq!(nodes.tasks_at_rest(), 0, "an idle entity has no task");
    assert!(nodes.nodes.iter().all(|node| node.asks.waiting() == 0), "no ask waits");
}

#[test]
fn the_first_message_asks_for_a_home_and_waits_for_it() {
    let mut nodes = counters(&Plan::default());
    let bob = nodes.nodes[1].region.entity("bob");
    bob.tell(Command::Add(5)).unwrap();
    assert_eq!(nodes.nodes[1].region.buffered(), 1);
    let value = nodes.wait_for(async move { bob.ask(Command::Get).await }).unwrap();
    assert_eq!((value, nodes.nodes[1].region.buffered()), (5, 0));
}

#[test]
fn an_entity_asks_another_one_while_it_handles_a_message() {
    let mut nodes = counters(&Plan { shards: 10, ..Plan::default() });
    for id in ["a", "b", "c"] {
        nodes.nodes[0].region.entity(id).tell(Command::Add(7)).unwrap();
    }
    nodes.settle();
    let a = nodes.nodes[1].region.entity("a");
    for of in ["b", "c"] {
        let (a, of) = (a.clone(), of.to_owned());
        let sum = async move { a.ask(|reply| Command::Sum { of, reply }).await };
        assert_eq!(nodes.wait_for(sum).unwrap(), 14);
    }
}

#[test]
fn any_node_starts_an_entity_without_a_message() {
    let mut nodes = counters(&Plan::default());
    for (from, id) in [(0, "a"), (1, "b"), (1, "a"), (0, "a")] {
        let started = nodes.nodes[from].region.start_entity(id);
        nodes.wait_for(started).expect("it starts");
    }
    let lives: usize = nodes.nodes.iter().map(|node| node.region.entities()).sum();
    assert_eq!((lives, nodes.tasks_at_rest(), nodes.all_lost()), (2, 0, 0));
    assert!(nodes.nodes.iter().all(|node| node.asks.waiting() == 0), "no ask waits");
    let unnamed = nodes.nodes[0].region.start_entity("");
    let why = nodes.wait_for(unnamed).expect_err("an empty id is invalid");
    assert!(matches!(why, AskError::NotSent(TellError::InvalidId(_))), "{why}");
}

#[test]
fn empty_id_is_refused_at_the_call() {
    let mut nodes = counters(&Plan::default());
    let unnamed = nodes.nodes[0].region.entity("");
    let empty = InvalidName::Empty { what: "entity id" };
    assert_eq!(unnamed.tell(Command::Add(1)), Err(TellError::InvalidId(empty)));
    let asked = nodes.wait_for(async move { unnamed.ask(Command::Get).await });
    assert!(matches!(asked, Err(AskError::NotSent(TellError::InvalidId(_)))));
}

#[test]
fn dropped_reply_fails_the_ask_at_once() {
    let mut nodes = counters(&Plan::default());
    nodes.host(0, 0);
    for from in [0, 1] {
        let alice = nodes.nodes[from].region.entity("alice");
        let start = nodes.executor.now();
        let error = nodes.wait_for(async move { alice.ask(Command::Forget).await }).unwrap_err();
        assert!(error.to_string().contains("no answer was given"), "{error}");
        assert_eq!(nodes.executor.now(), start, "the error came before the timeout");
    }
}
