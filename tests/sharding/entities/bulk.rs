//! Fairness of a lane under long messages: they must not starve short messages of the same shard,
//! nor be starved by them, and shards share the lane in turns by bytes
//! (docs/protocol/message-order.md#long-messages-wait-with-their-caller).

use std::sync::{Arc, Mutex};

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::ids::{EntityId, ShardId};
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan, Step, node};

/// Bytes of a long message.
const LONG: usize = 40_000;

#[derive(Serialize, Deserialize)]
enum Freight {
    Long(String),
    Short(u32),
}

/// Logs of each message whether it was long, and its number.
struct Depot(Arc<Mutex<Vec<(bool, u32)>>>);

impl Entity for Depot {
    type Message = Freight;

    async fn handle(&mut self, freight: Freight, _: &mut Context<'_, Self>) {
        let handled = match freight {
            Freight::Long(text) => (true, text.len() as u32),
            Freight::Short(number) => (false, number),
        };
        self.0.lock().expect("nobody panicked").push(handled);
    }
}

/// Two nodes; the second one hosts all shards, the first one sends.
struct Freighters {
    nodes: Nodes<Depot>,
    log: Arc<Mutex<Vec<(bool, u32)>>>,
}

impl Freighters {
    fn new(shards: u32) -> Self {
        let log = Arc::<Mutex<Vec<_>>>::default();
        let nodes = Nodes::new(&Plan { shards, ..Plan::default() }, |_, _| {
            let log = Arc::clone(&log);
            move |_: &EntityId| Depot(Arc::clone(&log))
        });
        let mut freighters = Self { nodes, log };
        (0..shards).for_each(|shard| freighters.nodes.host(shard, 1));
        freighters
    }

    fn limit_lane(&self, frames: usize) {
        self.nodes.lanes.lock().expect("nobody panicked").limit = frames;
    }

    /// An entity id that hashes to `shard`.
    fn name(&self, shard: u32) -> String {
        let of = &self.nodes.nodes[0].hosting;
        let is_of_it =
            |name: &String| of.shard(&EntityId::new(name).expect("an id")) == ShardId::new(shard);
        (0..).map(|n: u32| n.to_string()).find(is_of_it).expect("there is one")
    }

    fn tell(&self, to: &str, freight: Freight) {
        self.nodes.nodes[0].region.entity(to).tell(freight).expect("it waits, or is sent");
    }

    /// Starts a task that sends a long message and waits for room with it.
    fn ship(&mut self, to: &str) {
        self.ship_all(to, LONG, 1);
    }

    /// Starts a task that sends `count` messages of this length, and waits for room with each.
    fn ship_all(&mut self, to: &str, bytes: usize, count: usize) {
        let to = self.nodes.nodes[0].region.entity(to);
        self.nodes.executor.spawn(Box::pin(async move {
            for _ in 0..count {
                let long = Freight::Long("x".repeat(bytes));
                to.tell_wait(long).await.expect("there is room some time");
            }
        }));
        self.run_tasks();
    }

    fn run_tasks(&mut self) {
        while self.nodes.possible().contains(&Step::Task) {
            self.nodes.step(Step::Task, 0);
        }
    }

    /// Delivers the first frame of the lane; returns its length and its shard.
    fn deliver(&mut self) -> Option<(usize, u8)> {
        let first = {
            let lanes = self.nodes.lanes.lock().expect("nobody panicked");
            let frame = lanes.frames.get(&(node(0), node(1)))?.front()?;
            (frame.len(), frame[1])
        };
        self.nodes.step(Step::Lane, 0);
        self.run_tasks();
        Some(first)
    }

    fn handled(&self) -> Vec<(bool, u32)> {
        self.log.lock().expect("nobody panicked").clone()
    }
}

#[test]
fn long_tell_waits_leave_the_way_to_shard_mates() {
    let mut freighters = Freighters::new(1);
    freighters.limit_lane(1);
    (0..4).for_each(|_| freighters.ship("bulk"));
    freighters.tell("mate", Freight::Short(7));
    let lengths: Vec<usize> =
        std::iter::from_fn(|| freighters.deliver()).map(|(bytes, _)| bytes).collect();
    assert_eq!(lengths.len(), 5);
    let ahead = lengths.iter().take_while(|bytes| **bytes >= LONG).sum::<usize>();
    assert!(ahead < 2 * LONG, "{ahead} bytes ahead of the short message");
    let handled = freighters.handled();
    assert_eq!(handled.iter().filter(|(is_long, _)| *is_long).count(), 4);
    assert!(handled.contains(&(false, 7)));
}

#[test]
fn two_bulk_entities_share_their_shard() {
    const EACH: usize = 20;
    let mut freighters = Freighters::new(1);
    freighters.limit_lane(1);
    // The length tells of which entity a message is.
    let lengths = [LONG, LONG + 1];
    for _ in 0..2 {
        freighters.ship_all("one", lengths[0], EACH);
        freighters.ship_all("other", lengths[1], EACH);
    }
    for _ in 0..2 * EACH {
        freighters.deliver().expect("the callers have half of their messages left");
    }
    let handled = freighters.handled();
    let count = |bytes: usize| handled.iter().filter(|it| **it == (true, bytes as u32)).count();
    let [one, other] = lengths.map(count);
    assert_eq!(one + other, 2 * EACH);
    assert!(one <= 2 * other && other <= 2 * one, "{one} and {other} messages");

    freighters.tell("mate", Freight::Short(7));
    for _ in 0..3 {
        freighters.deliver().expect("callers wait");
    }
    assert!(freighters.handled().contains(&(false, 7)), "a mate waits for bulk");
    while freighters.deliver().is_some() {}
    assert_eq!(freighters.handled().len(), 4 * EACH + 1);
}

#[test]
fn waiting_long_message_gets_its_turn_among_short_ones() {
    let mut freighters = Freighters::new(1);
    freighters.limit_lane(1);
    (0..3).for_each(|number| freighters.tell("mate", Freight::Short(number)));
    freighters.ship("bulk");
    let mut delivered = 0;
    while !freighters.handled().iter().any(|(is_long, _)| *is_long) {
        freighters.tell("mate", Freight::Short(100 + delivered)); // the lane is never empty
        freighters.deliver().expect("the lane is full");
        delivered += 1;
        assert!(delivered < 600, "the long message starves");
    }
    assert!(delivered > 3, "the long message overtook earlier ones");
}

#[test]
fn caller_with_a_long_message_follows_a_moved_shard() {
    let mut freighters = Freighters::new(1);
    freighters.limit_lane(1);
    freighters.ship("bulk");
    freighters.ship("bulk"); // waits with its caller
    freighters.nodes.host(0, 0);
    assert_eq!(freighters.handled(), [(true, LONG as u32); 2]);
}

#[test]
fn shards_share_a_lane_in_turns_by_bytes() {
    const MESSAGE: usize = 10_000;
    const TURN: usize = 64 << 10;
    let mut freighters = Freighters::new(2);
    freighters.limit_lane(1);
    let names = [freighters.name(0), freighters.name(1)];
    for name in &names {
        (0..40).for_each(|_| freighters.tell(name, Freight::Long("x".repeat(MESSAGE))));
    }
    // Room for one message at a time: the shards alternate.
    let shards: Vec<u8> = (0..10).filter_map(|_| freighters.deliver()).map(|(_, of)| of).collect();
    assert!(shards[1..].windows(2).all(|pair| pair[0] != pair[1]), "{shards:?}");
    // Room for all messages: a shard sends at most its share before the other one has its turn.
    freighters.limit_lane(usize::MAX);
    let (mut run, mut last, mut turns) = (0, u8::MAX, 0);
    while let Some((bytes, shard)) = freighters.deliver() {
        (run, turns) = if shard == last { (run + bytes, turns) } else { (bytes, turns + 1) };
        last = shard;
        assert!(run <= TURN + 3 * (MESSAGE + 100), "{run} bytes of shard {shard} in a row");
    }
    assert!(turns >= 8, "{turns} turns");
    assert_eq!(freighters.handled().len(), 80);
}
