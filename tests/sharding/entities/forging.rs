//! A peer that forges answers to asks of another node: the number of an ask is secret, so the peer
//! must not be able to guess it
//! (docs/protocol/message-order.md#correlation-numbers-are-secret-and-single-use).

use std::collections::VecDeque;
use std::sync::Arc;

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::reply::Reply;

use super::door::Door;
use super::nodes::{Nodes, Plan, node};

/// Frame kind of an answer; the ask's number (eight bytes) and the encoded value follow.
const ANSWER: u8 = 5;

struct Oracle(Arc<Door>);

impl Entity for Oracle {
    type Message = Reply<u8>;

    async fn handle(&mut self, reply: Reply<u8>, _: &mut Context<'_, Self>) {
        self.0.pass().await;
        reply.send(42);
    }
}

/// The numbers of the asks of node `from` that are on its lane to node `to`.
fn numbers_on_lane(nodes: &Nodes<Oracle>, from: usize, to: usize) -> Vec<u64> {
    let lanes = nodes.lanes.lock().expect("nobody panicked");
    let asker = node(from).replica().get().to_le_bytes();
    let number = |frame: &Vec<u8>| {
        // The frame contains the asking node, followed by the number.
        let at = frame.windows(8).rposition(|bytes| bytes == asker).expect("the frame of an ask");
        u64::from_le_bytes(frame[at + 8..at + 16].try_into().expect("eight bytes"))
    };
    lanes.frames[&(node(from), node(to))].iter().map(number).collect()
}

fn forged(number: u64) -> Vec<u8> {
    let mut frame = vec![ANSWER];
    frame.extend(number.to_le_bytes());
    frame.push(13); // the value, as MessagePack
    frame
}

#[test]
fn peer_cannot_answer_asks_it_was_not_told_of() {
    let door = Arc::<Door>::default();
    let mut nodes = Nodes::new(&Plan { nodes: 3, ..Plan::default() }, |_, _| {
        let door = Arc::clone(&door);
        move |_: &EntityId| Oracle(Arc::clone(&door))
    });
    nodes.host(0, 0);
    // Nodes 0 and 1 know each other. The forger, node 2, has seen the first two asks of node 1.
    let ask = |nodes: &Nodes<Oracle>| nodes.nodes[1].region.entity("c").ask(|reply| reply);
    let seen = [ask(&nodes), ask(&nodes)];
    let seen_numbers = numbers_on_lane(&nodes, 1, 0);
    assert_eq!(seen_numbers.len(), seen.len());
    nodes.settle();
    let victim = ask(&nodes);
    nodes.settle();
    let near = seen_numbers.iter().flat_map(|seen| {
        (0..1_u64 << 13).flat_map(|by| [seen.wrapping_add(by + 1), seen.wrapping_sub(by + 1)])
    });
    let stride = seen_numbers[1].wrapping_sub(seen_numbers[0]);
    let guesses: VecDeque<u64> =
        near.chain(0..1 << 13).chain([seen_numbers[1].wrapping_add(stride)]).collect();
    let asker = &nodes.nodes[1];
    for guess in guesses.iter().filter(|guess| !seen_numbers.contains(guess)) {
        asker.hosting.arrived(node(2), &forged(*guess)).expect("a frame of ours");
    }
    assert_eq!((asker.asks.waiting(), asker.asks.late()), (3, guesses.len() as u64));
    // With the right number an answer may come from any node, because a `Reply` may be passed on.
    asker.hosting.arrived(node(2), &forged(seen_numbers[0])).expect("a frame of ours");
    door.open();
    let answers = nodes.wait_for(async move {
        let [first, second] = seen;
        [first.await.ok(), second.await.ok(), victim.await.ok()]
    });
    assert_eq!(answers, [Some(13), Some(42), Some(42)]);
}
