//! `EntityRef` in messages and answers: it resolves at the receiving node, also when that node
//! starts the entity type later, and is refused outside of messages.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures::FutureExt;
use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::entity_ref::{AskError, EntityRef, TellError};
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::ids::{EntityId, EntityType};
use ostraca::sharding::reply::Reply;
use ostraca::sharding::shard_region::{RegionSetup, ShardRegion};
use serde::{Deserialize, Serialize};

use super::nodes::{NodeWorld, Nodes, Plan, node};

/// An entity that keeps and uses references to other entities.
#[derive(Default)]
struct Friend {
    likes: u64,
    of: Option<EntityRef<Stranger>>,
}

#[derive(Serialize, Deserialize)]
enum Note {
    Like,
    LikeTo(EntityRef<Friend>),
    Visit(EntityRef<Stranger>),
    Myself(Reply<EntityRef<Friend>>),
    Likes(Reply<u64>),
    Of(Reply<String>),
    Hail(Reply<Vec<String>>),
}

impl Entity for Friend {
    type Message = Note;

    async fn handle(&mut self, note: Note, cx: &mut Context<'_, Self>) {
        match note {
            Note::Like => self.likes += 1,
            Note::LikeTo(other) => other.tell(Note::Like).expect("there is room"),
            Note::Visit(stranger) => self.of = Some(stranger),
            Note::Myself(reply) => reply.send(cx.myself()),
            Note::Likes(reply) => reply.send(self.likes),
            Note::Of(reply) => {
                reply.send(self.of.as_ref().map(ToString::to_string).unwrap_or_default());
            }
            Note::Hail(reply) => reply.send(self.hail()),
        }
    }
}

impl Friend {
    /// The results of each kind of call on the stranger.
    fn hail(&self) -> Vec<String> {
        let Some(stranger) = &self.of else { return Vec::new() };
        let sent = |sent: Result<(), TellError>| {
            sent.map_or_else(|why| why.to_string(), |()| "told".into())
        };
        let asked = |asked: Option<Result<(), AskError>>| match asked {
            Some(Err(why)) => why.to_string(),
            _ => "waits".into(),
        };
        let patient = stranger.tell_wait(Word::Hello).now_or_never();
        vec![
            sent(stranger.tell(Word::Hello)),
            sent(patient.expect("it does not wait")),
            asked(stranger.ask(Word::Question).now_or_never()),
            asked(stranger.start().now_or_never()),
        ]
    }
}

#[derive(Default)]
struct Stranger;

#[derive(Serialize, Deserialize)]
enum Word {
    Hello,
    Question(Reply<()>),
}

impl Entity for Stranger {
    type Message = Word;

    async fn handle(&mut self, _: Word, _: &mut Context<'_, Self>) {}
}

fn friends() -> Nodes<Friend> {
    let mut nodes = Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Friend::default());
    nodes.host(0, 0);
    nodes
}

/// Starts the entity type `strangers` on one of the nodes.
fn strangers<E: Entity + Default>(nodes: &Nodes<Friend>, index: usize) -> ShardRegion<E> {
    let (world, asks) = (&nodes.nodes[index].world, &nodes.nodes[index].asks);
    let hash = HashExtractor::new(ShardHash::Xxh3, 1).expect("one shard");
    let setup = RegionSetup {
        entity_type: EntityType::new("strangers").expect("a name"),
        me: node(index),
        settings: ShardingConfig::default(),
        message_bytes_max: 1_000,
        supervision: Supervision::default(),
        extractor: Arc::new(ByMessage::new(hash, |_: &E::Message| None)),
        factory: Box::new(|_: &EntityId| E::default()),
        asks: Arc::clone(asks),
        fault_injection: ShardingFaultInjection::none(),
    };
    let region = ShardRegion::new(setup, Arc::<NodeWorld>::clone(world));
    region.publish();
    region
}

#[test]
fn references_in_messages_and_answers_reach_their_entity() {
    let mut nodes = friends();
    let (a, b) = (nodes.nodes[1].region.entity("a"), nodes.nodes[1].region.entity("b"));
    a.tell(Note::LikeTo(b.clone())).unwrap();
    let asked = b.clone();
    let myself = nodes.wait_for(async move { asked.ask(Note::Myself).await }).expect("it answers");
    assert_eq!(myself, b);
    myself.tell(Note::Like).unwrap();
    let likes = nodes.wait_for(async move { myself.ask(Note::Likes).await });
    assert_eq!(likes.expect("it answers"), 2);
}

#[test]
fn references_are_equal_by_type_and_id_on_whichever_node() {
    let nodes = friends();
    let of = |index: usize, id| nodes.nodes[index].region.entity(id);
    let hashes = RandomState::new();
    assert_eq!(of(0, "a"), of(1, "a"));
    assert_eq!(hashes.hash_one(of(0, "a")), hashes.hash_one(of(1, "a")));
    assert_ne!(of(0, "a"), of(0, "b"));
}

/// A planned move may bring a message to a node that has not started yet the type of a reference in
/// it.
#[test]
fn reference_resolves_after_its_type_is_started() {
    let mut nodes = friends();
    let there = strangers::<Stranger>(&nodes, 1);
    let a = nodes.nodes[1].region.entity("a");
    a.tell(Note::Visit(there.entity("s"))).unwrap();
    let asked = a.clone();
    let of = nodes.wait_for(async move { asked.ask(Note::Of).await }).expect("it answers");
    assert_eq!((&*of, nodes.lost(DeadLetterReason::Undecodable)), ("strangers/s", 0));

    let hail = async |a: EntityRef<Friend>| a.ask(Note::Hail).await.expect("it answers");
    let asked = a.clone();
    let said = nodes.wait_for(async move { hail(asked).await });
    let why = "this node has not started strangers (or started it as another type); not sent: \
               start it, be it as a proxy";
    assert_eq!(said, [why; 4], "tell, tell_wait, ask, start");

    let here = strangers::<Stranger>(&nodes, 0);
    let said = nodes.wait_for(async move { hail(a).await });
    assert_eq!(said, ["told", "told", "waits", "waits"]);
    assert_eq!(here.buffered(), 4, "all wait for a home");
}

#[test]
fn reference_to_a_name_of_another_type_does_not_decode() {
    let mut nodes = friends();
    let there = strangers::<Stranger>(&nodes, 1);
    let _here = strangers::<Friend>(&nodes, 0);
    nodes.nodes[1].region.entity("a").tell(Note::Visit(there.entity("s"))).unwrap();
    nodes.settle();
    assert_eq!(nodes.lost(DeadLetterReason::Undecodable), 1);
}

#[test]
fn references_decode_only_in_messages_and_need_an_id() {
    let nodes = friends();
    let bytes = rmp_serde::to_vec(&nodes.nodes[0].region.entity("a")).expect("it encodes");
    let read = rmp_serde::from_slice::<EntityRef<Friend>>(&bytes);
    let why = read.expect_err("decoded outside of a node").to_string();
    assert!(why.contains("only in a message"), "{why}");
    assert!(rmp_serde::to_vec(&nodes.nodes[0].region.entity("")).is_err());
}
