//! Messages after a node's regions have stopped: they are counted, and callers are told.

use std::sync::Arc;

use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, TellError};
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::region::RegionOutput;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan};

struct Asked;

#[derive(Serialize, Deserialize)]
enum Question {
    Nothing,
    Now(Reply<u64>),
}

impl Entity for Asked {
    type Message = Question;

    async fn handle(&mut self, question: Question, _: &mut Context<'_, Self>) {
        if let Question::Now(reply) = question {
            reply.send(1);
        }
    }
}

fn nodes() -> Nodes<Asked> {
    Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Asked)
}

fn stop(nodes: &Nodes<Asked>, index: usize) {
    Arc::clone(&nodes.nodes[index].hosting).perform(RegionOutput::StopAll);
}

#[test]
fn messages_after_the_stop_are_refused_and_counted() {
    let mut nodes = nodes();
    nodes.host(0, 0);
    let there = nodes.nodes[1].region.entity("a");
    there.tell(Question::Nothing).unwrap();
    nodes.settle();
    stop(&nodes, 0);
    let before = nodes.nodes[0].region.entities();
    for number in 0..10 {
        let other = nodes.nodes[1].region.entity(&format!("b{number}"));
        other.tell(Question::Nothing).unwrap();
    }
    nodes.settle();
    assert_eq!(nodes.lost(DeadLetterReason::NodeStopped), 10);
    assert_eq!(nodes.nodes[0].region.entities(), before, "no entry for refused messages");
    let asked = nodes.wait_for(async move { there.ask(Question::Now).await });
    assert!(
        matches!(asked, Err(AskError::Refused { why: DeadLetterReason::NodeStopped, .. })),
        "{asked:?}"
    );
    assert_eq!(nodes.lost(DeadLetterReason::NodeStopped), 11);
}

#[test]
fn messages_waiting_at_the_stop_are_refused() {
    let mut nodes = nodes();
    let here = nodes.nodes[0].region.entity("a");
    let asked = here.ask(Question::Now);
    here.tell(Question::Nothing).unwrap();
    assert_eq!(nodes.nodes[0].region.buffered(), 2);
    stop(&nodes, 0);
    stop(&nodes, 0);
    assert_eq!(
        (nodes.nodes[0].region.buffered(), nodes.lost(DeadLetterReason::NodeStopped)),
        (0, 2)
    );
    let asked = nodes.wait_for(asked);
    assert!(
        matches!(asked, Err(AskError::Refused { why: DeadLetterReason::NodeStopped, .. })),
        "{asked:?}"
    );
    assert_eq!(nodes.lost(DeadLetterReason::NodeStopped), 2, "counted once");
    assert_eq!(here.tell(Question::Nothing), Err(TellError::Stopped));
}
