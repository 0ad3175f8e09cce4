//! Robustness against bodies from other nodes and against panics of the user's code: nesting deeper
//! than the limit, a `Deserialize` that panics, a `Serialize` that fails or panics, and a handler
//! that panics before it returns its future.

use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::entity_ref::AskError;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::reply::Reply;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nodes::{Nodes, Plan};

#[derive(Serialize, Deserialize)]
struct Deep(Vec<Deep>);

impl Deep {
    fn of(levels: usize) -> Self {
        (1..levels).fold(Self(Vec::new()), |inner, _| Self(vec![inner]))
    }
}

/// A value whose `Deserialize` panics.
#[derive(Debug, Serialize)]
struct Rude(u8);

impl<'de> Deserialize<'de> for Rude {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("planned by the test");
    }
}

/// A value whose `Serialize` fails, or panics if `panics` is true.
#[derive(Debug, Deserialize)]
struct Mute {
    panics: bool,
}

impl Serialize for Mute {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        assert!(!self.panics, "planned by the test");
        Err(S::Error::custom("planned by the test"))
    }
}

#[derive(Serialize, Deserialize)]
enum Talk {
    Plain,
    Deep(Deep),
    AskDeep(usize, Reply<Deep>),
    AskRude(Reply<Rude>),
    AskMute(bool, Reply<Mute>),
    PanicAtOnce,
    Count(Reply<u64>),
}

#[derive(Default)]
struct Listener {
    handled: u64,
}

impl Entity for Listener {
    type Message = Talk;

    fn handle(&mut self, talk: Talk, _: &mut Context<'_, Self>) -> impl Future<Output = ()> + Send {
        assert!(!matches!(talk, Talk::PanicAtOnce), "planned by the test");
        async move {
            match talk {
                Talk::Plain | Talk::Deep(_) => self.handled += 1,
                Talk::AskDeep(levels, reply) => reply.send(Deep::of(levels)),
                Talk::AskRude(reply) => reply.send(Rude(1)),
                Talk::AskMute(panics, reply) => reply.send(Mute { panics }),
                Talk::Count(reply) => reply.send(self.handled),
                Talk::PanicAtOnce => {}
            }
        }
    }
}

fn nodes() -> Nodes<Listener> {
    let plan = Plan { supervision: Supervision::Resume, ..Plan::default() };
    let mut nodes = Nodes::new(&plan, |_, _| |_: &EntityId| Listener::default());
    nodes.host(0, 0);
    nodes
}

fn count(nodes: &mut Nodes<Listener>) -> u64 {
    let listener = nodes.nodes[1].region.entity("l");
    nodes.wait_for(async move { listener.ask(Talk::Count).await }).expect("it answers")
}

#[test]
fn bodies_and_answers_nest_only_so_deep() {
    let mut nodes = nodes();
    let listener = nodes.nodes[1].region.entity("l");
    for levels in [20, 100] {
        listener.tell(Talk::Deep(Deep::of(levels))).unwrap();
    }
    nodes.settle();
    assert_eq!((count(&mut nodes), nodes.lost(DeadLetterReason::Undecodable)), (1, 1));
    for (levels, reads) in [(20, true), (100, false)] {
        let listener = listener.clone();
        let ask = async move { listener.ask(|reply| Talk::AskDeep(levels, reply)).await };
        let answer = nodes.wait_for(ask);
        assert_eq!(answer.is_ok(), reads);
        assert!(matches!(answer, Ok(_) | Err(AskError::Decode { .. })));
    }
}

#[test]
fn panic_in_deserialize_of_an_answer_fails_only_that_ask() {
    let mut nodes = nodes();
    let listener = nodes.nodes[1].region.entity("l");
    let answer = nodes.wait_for(async move { listener.ask(Talk::AskRude).await });
    assert!(matches!(answer, Err(AskError::Decode { .. })), "{answer:?}");
    assert_eq!(count(&mut nodes), 0, "the lane still works");
}

#[test]
fn answer_that_does_not_encode_is_refused_and_counted() {
    let mut nodes = nodes();
    let listener = nodes.nodes[1].region.entity("l");
    let ask = async move { listener.ask(|reply| Talk::AskMute(false, reply)).await };
    let answer = nodes.wait_for(ask);
    assert!(
        matches!(answer, Err(AskError::Refused { why: DeadLetterReason::NoAnswer, .. })),
        "{answer:?}"
    );
    assert_eq!((nodes.lost(DeadLetterReason::NoAnswer), nodes.all_lost()), (1, 1));
}

#[test]
fn asker_learns_that_encoding_its_answer_panicked() {
    let mut nodes = nodes();
    let listener = nodes.nodes[1].region.entity("l");
    let ask = async move { listener.ask(|reply| Talk::AskMute(true, reply)).await };
    let answer = nodes.wait_for(ask);
    assert!(
        matches!(answer, Err(AskError::Refused { why: DeadLetterReason::EntityFailed, .. })),
        "{answer:?}"
    );
    assert_eq!((nodes.lost(DeadLetterReason::EntityFailed), nodes.all_lost()), (1, 1));
}

#[test]
fn handler_that_panics_before_its_future_is_supervised() {
    let mut nodes = nodes();
    let listener = nodes.nodes[0].region.entity("l");
    for talk in [Talk::Plain, Talk::PanicAtOnce, Talk::Plain] {
        listener.tell(talk).unwrap();
    }
    nodes.settle();
    assert_eq!(count(&mut nodes), 2, "the same instance continues");
    assert_eq!(
        (nodes.lost(DeadLetterReason::EntityFailed), nodes.nodes[0].region.failures()),
        (1, 1)
    );
}
