//! Lapse of a node's lease: a short one pauses its entities, a long one drops instances and
//! handlers; waiting messages and the node's shards stay
//! (docs/protocol/leases.md#lapse-pauses-before-it-stops).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::AskError;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::reply::Reply;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::door::Door;
use super::nodes::{Nodes, Plan};

type Log = Arc<Mutex<Vec<String>>>;

/// An entity that counts, and logs its drop and its stop message.
struct Clerk {
    id: String,
    count: u64,
    door: Arc<Door>,
    log: Log,
}

/// A value that cannot be encoded again once it was decoded.
struct Once(bool);

impl Serialize for Once {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0 { Err(S::Error::custom("it was decoded before")) } else { to.serialize_unit() }
    }
}

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <()>::deserialize(from).map(|()| Self(true))
    }
}

#[derive(Serialize, Deserialize)]
enum Task {
    Count(Reply<u64>),
    Add,
    Wait(Reply<u64>),
    Seal(Once, Reply<u64>),
    /// Waits at the door, then asks "a" twice at once.
    Ask(Reply<u64>),
    Ring,
    Last,
}

impl Entity for Clerk {
    type Message = Task;

    async fn handle(&mut self, task: Task, cx: &mut Context<'_, Self>) {
        match task {
            Task::Count(reply) | Task::Seal(_, reply) => reply.send(self.count),
            Task::Add => {
                self.count += 1;
                let _timer = cx.after(Duration::from_secs(20), Task::Ring);
            }
            Task::Wait(reply) => {
                self.door.pass().await;
                reply.send(self.count);
            }
            Task::Ask(reply) => {
                self.door.pass().await;
                let a = cx.entity("a");
                let (one, other) = join(a.ask(Task::Wait), a.ask(Task::Count)).await;
                reply.send(one.unwrap_or(99) + other.unwrap_or(99));
            }
            Task::Ring => self.note("rang"),
            Task::Last => self.note("last"),
        }
    }

    fn stop_message() -> Option<Task> {
        Some(Task::Last)
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        self.note("hands over");
        None
    }
}

impl Clerk {
    fn note(&self, what: &str) {
        self.log.lock().expect("nobody panicked").push(format!("{} {what}", self.id));
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        self.note("dropped");
    }
}

/// Two nodes; the shard is hosted on node 0.
struct Office {
    nodes: Nodes<Clerk>,
    door: Arc<Door>,
    log: Log,
}

impl Office {
    fn new() -> Self {
        let (door, log) = (Arc::<Door>::default(), Log::default());
        let mut nodes = Nodes::new(&Plan::default(), |_, _| {
            let (door, log) = (Arc::clone(&door), Arc::clone(&log));
            move |id: &EntityId| Clerk {
                id: id.as_str().to_owned(),
                count: 0,
                door: Arc::clone(&door),
                log: Arc::clone(&log),
            }
        });
        nodes.host(0, 0);
        Self { nodes, door, log }
    }

    fn tell(&mut self, to: &str) {
        self.nodes.nodes[1].region.entity(to).tell(Task::Add).expect("there is room");
        self.nodes.settle();
    }

    fn lease(&self, held: bool) {
        self.nodes.nodes[0].world.leased.store(held, Ordering::SeqCst);
    }

    /// Lets enough time pass for paused entities to check the lease again.
    fn pass(&mut self) {
        for _ in 0..3 {
            self.nodes.advance(Duration::from_millis(10));
            self.nodes.settle();
        }
    }

    fn taken(&self) -> Vec<String> {
        let mut log = std::mem::take(&mut *self.log.lock().expect("nobody panicked"));
        log.sort_unstable();
        log
    }

    fn count(&mut self, of: &str) -> u64 {
        let clerk = self.nodes.nodes[1].region.entity(of);
        self.nodes.wait_for(async move { clerk.ask(Task::Count).await }).expect("it answers")
    }
}

#[test]
fn short_lapse_stops_no_entity() {
    let mut office = Office::new();
    office.tell("a");
    office.lease(false);
    office.tell("a");
    office.pass();
    office.lease(true);
    office.pass();
    assert_eq!((office.count("a"), office.taken()), (2, vec![]));
}

#[test]
fn long_lapse_drops_instances_and_keeps_waiting_messages() {
    let mut office = Office::new();
    ["idle", "busy", "paused"].iter().for_each(|id| office.tell(id));
    let asked = office.nodes.nodes[1].region.entity("busy").ask(Task::Wait);
    office.nodes.settle();
    office.lease(false);
    ["busy", "paused", "new"].iter().for_each(|id| office.tell(id));
    office.pass();
    assert_eq!(office.taken(), [""; 0], "the lapse is still short");
    office.nodes.nodes[0].hosting.lapsed();
    office.pass();
    let dropped = ["busy dropped", "idle dropped", "paused dropped"];
    assert_eq!(office.taken(), dropped, "without stop messages and exported states");
    let why = office.nodes.wait_for(asked).expect_err("the handler was dropped");
    assert!(matches!(why, AskError::Refused { why: DeadLetterReason::NotLeased, .. }), "{why}");
    assert_eq!(office.nodes.nodes[0].region.entities(), 3, "entities with waiting messages");
    office.door.open();
    office.lease(true);
    office.pass();
    for (id, count) in [("idle", 0), ("busy", 1), ("paused", 1), ("new", 1)] {
        assert_eq!(office.count(id), count, "{id}");
    }
    assert_eq!((office.nodes.lost(DeadLetterReason::NotLeased), office.nodes.all_lost()), (1, 1));
    office.nodes.advance(Duration::from_secs(20));
    office.nodes.settle();
    assert_eq!(
        office.taken(),
        ["busy rang", "new rang", "paused rang"],
        "timers of dropped instances do not fire"
    );
}

#[test]
fn ask_moves_unchanged_after_a_lapse() {
    let mut office = Office::new();
    office.tell("a");
    office.lease(false);
    let a = office.nodes.nodes[1].region.entity("a");
    let asked = a.ask(|reply| Task::Seal(Once(false), reply));
    office.nodes.settle(); // the message was taken out of its mailbox and decoded
    office.nodes.decide(ShardId::new(0), Some(1));
    office.nodes.settle();
    assert_eq!(office.taken(), [""; 0], "without the lease no stop message is handled");
    office.lease(true);
    office.pass();
    assert_eq!(office.nodes.wait_for(asked).expect("it answers"), 0);
    assert_eq!(office.taken(), ["a dropped", "a hands over", "a last"]);
    assert_eq!(office.nodes.all_lost(), 0, "the message moves in its first encoding");
}

#[test]
fn message_during_a_lapse_waits_for_dropped_instances() {
    let mut office = Office::new();
    office.tell("a");
    office.nodes.nodes[0].hosting.lapsed();
    assert_eq!((office.nodes.executor.ready(), office.taken()), (1, vec![]), "drops in a task");
    let before = office.nodes.executor.tasks();
    for id in ["a", "b"] {
        office.nodes.nodes[0].region.entity(id).tell(Task::Add).expect("there is room");
    }
    assert_eq!(office.nodes.executor.tasks(), before, "no entity begins meanwhile");
    office.nodes.settle();
    assert_eq!(office.taken(), ["a dropped"]);
    assert_eq!((office.count("a"), office.count("b")), (1, 1));
}

#[test]
fn queued_task_drops_the_old_instance_before_the_new_one() {
    let mut office = Office::new();
    office.tell("a");
    office.nodes.nodes[0].region.entity("a").tell(Task::Add).expect("there is room");
    office.nodes.nodes[0].hosting.lapsed();
    assert_eq!((office.nodes.executor.ready(), office.taken()), (1, vec![]), "one task, no drop");
    office.nodes.executor.step(0);
    assert_eq!(office.taken(), ["a dropped"]);
    office.nodes.settle();
    assert_eq!((office.count("a"), office.taken()), (1, vec![]));
}

#[test]
fn lapse_during_a_drain_does_not_cut_the_drain_short() {
    let mut office = Office::new();
    let asked = office.nodes.nodes[1].region.entity("boss").ask(Task::Ask);
    office.nodes.settle();
    office.nodes.decide(ShardId::new(0), Some(1));
    office.nodes.settle();
    office.door.open();
    office.nodes.executor.step(0); // asks "a" twice
    office.door.close();
    office.nodes.settle(); // the first of them waits
    office.nodes.nodes[0].hosting.lapsed();
    office.door.open();
    assert_eq!(office.nodes.wait_for(asked).expect("it answers"), 0);
    let each = ["dropped", "hands over", "last"];
    let of = |id: &'static str| each.map(|what| format!("{id} {what}"));
    assert_eq!(office.taken(), [of("a"), of("boss")].concat());
}
