//! Held messages, which arrive for a shard before it starts: their limits, what happens to them
//! when their sender leaves the cluster
//! (docs/protocol/message-order.md#orphaned-held-messages-expire), and barriers on a lane that is
//! full (docs/protocol/message-order.md#barriers-are-repeated).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::gate::BufferLimits;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::region::RegionOutput;
use ostraca::sharding::wire::ToRegion;

use super::nodes::{Nodes, Plan, Step, node};

const SHARD: ShardId = ShardId::new(0);
const OTHER: ShardId = ShardId::new(1);

type Log = Arc<Mutex<Vec<u32>>>;

/// An entity that logs its messages.
struct Notes(Log);

impl Entity for Notes {
    type Message = u32;

    async fn handle(&mut self, note: u32, _: &mut Context<'_, Self>) {
        self.0.lock().expect("nobody panicked").push(note);
    }
}

struct House {
    nodes: Nodes<Notes>,
    log: Log,
}

impl House {
    /// Three nodes; `moved` limits the exempt messages of each sender.
    fn new(moved: BufferLimits) -> Self {
        let log = Log::default();
        let plan = Plan::default();
        let settings = ShardingConfig { held_size: 1, ..plan.settings.clone() };
        let plan = Plan { nodes: 3, shards: 2, settings, ..plan };
        let of = Arc::clone(&log);
        let nodes = Nodes::new(&plan, |_, _| {
            let log = Arc::clone(&of);
            move |_: &EntityId| Notes(Arc::clone(&log))
        });
        nodes.nodes.iter().for_each(|node| node.region.limit_moved(moved));
        Self { nodes, log }
    }

    fn roomy() -> Self {
        Self::new(BufferLimits { messages: 100, bytes: 1 << 20 })
    }

    /// Tells `note` from a node to an entity of the shard.
    fn tell(&self, from: usize, shard: ShardId, note: u32) {
        let of = &self.nodes.nodes[from];
        let is_of_it =
            |name: &String| of.hosting.shard(&EntityId::new(name).expect("an id")) == shard;
        let name = (0..).map(|n: u32| n.to_string()).find(is_of_it).expect("there is one");
        of.region.entity(&name).tell(note).expect("it waits, or is sent");
    }

    /// Delivers all frames on lanes. No control message arrives and no task runs.
    fn deliver(&mut self) {
        while self.nodes.possible().contains(&Step::Lane) {
            self.nodes.step(Step::Lane, 0);
        }
    }

    fn is_release(word: &ToRegion) -> bool {
        matches!(word, ToRegion::Release(_))
    }

    fn log(&self) -> Vec<u32> {
        self.log.lock().expect("nobody panicked").clone()
    }

    fn sorted(&self) -> Vec<u32> {
        let mut log = self.log();
        log.sort_unstable();
        log
    }
}

/// Messages that waited for a home are exempt from limits, so a peer could claim that all of its
/// messages did. Therefore the exempt messages are bounded for each sender
/// (docs/protocol/message-order.md#moved-messages-are-exempt).
#[test]
fn exempt_held_messages_are_bounded_per_sender() {
    let mut house = House::new(BufferLimits { messages: 2, bytes: 1 << 20 });
    for shard in [SHARD, OTHER] {
        house.nodes.decide(shard, Some(0));
        (1..=3).for_each(|note| house.tell(1, shard, 10 * shard.get() + note));
    }
    house.nodes.announce(1);
    house.deliver(); // the home of both shards does not know of them yet
    let (held, lost) =
        (house.nodes.nodes[0].region.held(), house.nodes.lost(DeadLetterReason::HeldFull));
    assert_eq!((held, lost), (3, 3), "two exempt messages and one within the common limit");
    (4..=6).for_each(|note| house.tell(2, SHARD, note));
    house.nodes.announce(2);
    house.deliver();
    let (held, lost) =
        (house.nodes.nodes[0].region.held(), house.nodes.lost(DeadLetterReason::HeldFull));
    assert_eq!((held, lost), (6, 3), "another sender is not affected");
    house.nodes.settle();
    assert_eq!((house.sorted(), house.nodes.all_lost()), (vec![1, 2, 3, 4, 5, 6], 3));
    // The held messages have left, so there is room again.
    house.nodes.decide(SHARD, Some(2));
    house.nodes.settle();
    house.nodes.decide(SHARD, Some(0));
    house.nodes.announce(1);
    (7..=9).for_each(|note| house.tell(1, SHARD, note));
    house.nodes.settle_without_control();
    assert_eq!(house.nodes.nodes[0].region.held(), 3);
    house.nodes.settle();
    assert_eq!((house.log()[6..].to_vec(), house.nodes.all_lost()), (vec![7, 8, 9], 3));
}

#[test]
fn exempt_messages_of_an_entity_are_bounded_per_sender() {
    let mut house = House::new(BufferLimits { messages: 2, bytes: 1 << 20 });
    house.nodes.decide(SHARD, Some(0));
    house.nodes.deliver_control(0, |_| true);
    for from in [1, 2] {
        (1..=3).for_each(|n| house.tell(from, SHARD, 10 * n + from as u32));
    }
    house.nodes.announce(1);
    house.deliver(); // no message is handled yet
    assert_eq!(house.nodes.lost(DeadLetterReason::MailboxFull), 1);
    house.nodes.announce(2);
    house.deliver();
    assert_eq!(house.nodes.lost(DeadLetterReason::MailboxFull), 2, "each sender has its own share");
    house.nodes.settle();
    assert_eq!((house.log(), house.nodes.all_lost()), (vec![11, 21, 12, 22], 2));
}

/// Held messages of several senders may exceed the mailbox limit; all are delivered at the start.
#[test]
fn held_messages_are_all_delivered_at_the_start() {
    let mut house = House::new(BufferLimits { messages: 2, bytes: 1 << 20 });
    house.nodes.decide(SHARD, Some(0));
    for from in [1, 2] {
        (1..=3).for_each(|n| house.tell(from, SHARD, 10 * n + from as u32));
        house.nodes.announce(from);
    }
    house.deliver();
    assert_eq!(house.nodes.nodes[0].region.held(), 6);
    house.nodes.settle();
    assert_eq!((house.sorted(), house.nodes.all_lost()), (vec![11, 12, 21, 22, 31, 32], 0));
}

/// Tells node 0 whether a coordinator is known.
fn coordinated(house: &mut House, known: bool) {
    house.nodes.nodes[0].hosting.perform(RegionOutput::Coordinated(known));
}

/// Node 0 holds two messages of node 1 for a shard whose decision it does not know, and node 1 has
/// crashed.
fn orphaned(house: &mut House) {
    house.nodes.decide(SHARD, Some(0));
    (1..=2).for_each(|note| house.tell(1, SHARD, note));
    house.nodes.announce(1);
    house.deliver();
    house.nodes.crash(1);
    coordinated(house, true);
    assert_eq!((house.nodes.nodes[0].region.held(), house.nodes.all_lost()), (2, 0));
}

/// With the lane to the crashed node removed, and with a lane that still accepts frames unread.
#[test]
fn bounces_to_a_removed_node_are_counted() {
    for lingers in [false, true] {
        let mut house = House::roomy();
        house.nodes.lanes.lock().expect("nobody panicked").lingers = lingers;
        orphaned(&mut house);
        house.nodes.decide(SHARD, Some(2));
        house.nodes.deliver_control(0, House::is_release);
        assert_eq!(
            (house.nodes.lost(DeadLetterReason::NodeGone), house.nodes.nodes[0].region.held()),
            (2, 0)
        );
        house.nodes.settle();
        assert_eq!((house.log(), house.nodes.all_lost()), (vec![], 2));
    }
}

#[test]
fn orphaned_held_messages_expire_without_a_decision() {
    let mut house = House::roomy();
    orphaned(&mut house);
    let pass = |house: &mut House, secs| {
        house.nodes.advance(Duration::from_secs(secs));
        house.nodes.nodes[0].hosting.remind();
        (house.nodes.nodes[0].region.held(), house.nodes.lost(DeadLetterReason::NodeGone))
    };
    assert_eq!(pass(&mut house, 100), (2, 0), "the time begins with the first check");
    assert_eq!(pass(&mut house, 29), (2, 0));
    coordinated(&mut house, false);
    assert_eq!(pass(&mut house, 500), (2, 0), "no coordinator could announce a home");
    coordinated(&mut house, true);
    assert_eq!(pass(&mut house, 29), (2, 0), "a new coordinator has the full time");
    assert_eq!(pass(&mut house, 1), (0, 2));
    house.nodes.settle();
    assert_eq!((house.log(), house.nodes.all_lost()), (vec![], 2));
}

#[test]
fn orphaned_held_messages_wait_while_their_decision_is_known() {
    let mut house = House::roomy();
    house.nodes.host(0, 2);
    house.nodes.decide(SHARD, Some(0));
    house.nodes.announce(1);
    (1..=2).for_each(|note| house.tell(1, SHARD, note));
    house.deliver();
    house.nodes.crash(1);
    coordinated(&mut house, true);
    house.nodes.nodes[0].hosting.remind();
    house.nodes.advance(Duration::from_secs(29));
    house.nodes.deliver_control(0, |_| true); // node 0 waits for the former home
    for _ in 0..10 {
        house.nodes.advance(Duration::from_secs(29));
        house.nodes.nodes[0].hosting.remind();
    }
    assert_eq!((house.nodes.nodes[0].region.held(), house.nodes.all_lost()), (2, 0));
    house.nodes.settle();
    assert_eq!((house.log(), house.nodes.all_lost()), (vec![1, 2], 0));
}

/// The lane is full beyond its limit for control frames, so the barrier is repeated later, and no
/// message overtakes it.
#[test]
fn barrier_refused_by_its_lane_holds_back_later_messages() {
    let mut house = House::roomy();
    house.nodes.host(0, 0);
    house.tell(1, SHARD, 1);
    house.nodes.settle();
    house.tell(1, SHARD, 2); // on the lane
    house.nodes.lanes.lock().expect("nobody panicked").answers = 0;
    house.nodes.decide(SHARD, Some(2));
    house.nodes.announce(1);
    house.tell(1, SHARD, 3);
    let sent = |house: &House| {
        let lanes = house.nodes.lanes.lock().expect("nobody panicked");
        let to = |to| lanes.frames.get(&(node(1), node(to))).map_or(0, VecDeque::len);
        (to(0), to(2), house.nodes.nodes[1].region.buffered())
    };
    assert_eq!(sent(&house), (1, 0, 1), "no barrier, and no message past it");
    house.nodes.nodes[1].hosting.remind();
    house.nodes.nodes[1].hosting.room(node(2));
    assert_eq!(sent(&house), (1, 0, 1), "the repeated barrier found no room either");
    house.nodes.lanes.lock().expect("nobody panicked").answers = usize::MAX;
    house.nodes.nodes[1].hosting.remind();
    assert_eq!(sent(&house), (2, 0, 1));
    house.nodes.settle();
    assert_eq!((house.log(), house.nodes.all_lost()), (vec![1, 2, 3], 0));
}
