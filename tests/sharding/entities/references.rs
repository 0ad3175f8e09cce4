//! References to entities that travel in messages and in answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use ostraca::sharding::asks::Asks;
use ostraca::sharding::bug::Canary;
use ostraca::sharding::config::Sharding;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::Lost;
use ostraca::sharding::entity::{Entity, Supervision};
use ostraca::sharding::entity_ref::EntityRef;
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use ostraca::sharding::ids::{EntityId, EntityType};
use ostraca::sharding::reply::Reply;
use ostraca::sharding::shard_region::{Setup, ShardRegion};
use serde::{Deserialize, Serialize};

use super::nodes::{NodeWorld, Nodes, Plan, node};

#[derive(Default)]
struct Friend {
    likes: u64,
    of: String,
}

#[derive(Serialize, Deserialize)]
enum Note {
    Like,
    LikeTo(EntityRef<Friend>),
    Visit(EntityRef<Stranger>),
    Myself(Reply<EntityRef<Friend>>),
    Likes(Reply<u64>),
    Of(Reply<String>),
}

impl Entity for Friend {
    type Message = Note;

    async fn handle(&mut self, note: Note, cx: &mut Context<'_, Self>) {
        match note {
            Note::Like => self.likes += 1,
            Note::LikeTo(other) => other.tell(Note::Like).expect("there is room"),
            Note::Visit(stranger) => self.of = stranger.to_string(),
            Note::Myself(reply) => reply.send(cx.myself()),
            Note::Likes(reply) => reply.send(self.likes),
            Note::Of(reply) => reply.send(self.of.clone()),
        }
    }
}

struct Stranger;

impl Entity for Stranger {
    type Message = u64;

    async fn handle(&mut self, _: u64, _: &mut Context<'_, Self>) {}
}

fn friends() -> Nodes<Friend> {
    let mut nodes = Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Friend::default());
    nodes.host(0, 0);
    nodes
}

/// Another type on one of the nodes.
fn strangers(index: usize, world: &Arc<NodeWorld>, asks: &Arc<Asks>) -> ShardRegion<Stranger> {
    let hash = HashExtractor::new(ShardHash::Xxh3, 1).expect("one shard");
    let setup = Setup {
        entity_type: EntityType::new("strangers").expect("a name"),
        me: node(index),
        settings: Sharding::default(),
        message_bytes_max: 1_000,
        supervision: Supervision::default(),
        extractor: Arc::new(ByMessage::new(hash, |_: &u64| None)),
        factory: Box::new(|_: &EntityId| Stranger),
        asks: Arc::clone(asks),
        canary: Canary::none(),
    };
    ShardRegion::new(setup, Arc::<NodeWorld>::clone(world))
}

#[test]
fn a_reference_in_a_message_and_in_an_answer_leads_to_its_entity() {
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

#[test]
fn a_reference_to_another_type_leads_there_if_the_node_has_started_it() {
    for started in [false, true] {
        let mut nodes = friends();
        let there = strangers(1, &nodes.nodes[1].world, &nodes.nodes[1].asks);
        let here = started.then(|| strangers(0, &nodes.nodes[0].world, &nodes.nodes[0].asks));
        let a = nodes.nodes[1].region.entity("a");
        a.tell(Note::Visit(there.entity("s"))).unwrap();
        let of = nodes.wait_for(async move { a.ask(Note::Of).await }).expect("it answers");
        assert_eq!(of, if started { "strangers/s" } else { "" });
        assert_eq!(nodes.lost(Lost::Undecodable), u64::from(!started));
        drop(here);
    }
}

#[test]
fn a_reference_is_read_nowhere_else_and_one_to_nobody_is_not_sent() {
    let nodes = friends();
    let bytes = rmp_serde::to_vec(&nodes.nodes[0].region.entity("a")).expect("it encodes");
    let read = rmp_serde::from_slice::<EntityRef<Friend>>(&bytes);
    let why = read.expect_err("there is no node").to_string();
    assert!(why.contains("only in a message"), "{why}");
    assert!(rmp_serde::to_vec(&nodes.nodes[0].region.entity("")).is_err());
}
