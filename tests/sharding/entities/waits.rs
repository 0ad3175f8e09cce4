//! Handlers that do not end and asks that cannot be answered: how they are logged and counted, and
//! the errors that callers get (docs/protocol/message-order.md#ask-cycles-are-named-on-one-node).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, TimeoutReason};
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::polls;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{Nodes, Plan};
use crate::memory_log::MemoryLog;

/// From when on a poll blocks its thread.
const BLOCKS_FROM: Duration = Duration::from_millis(500);

type Errors = Arc<Mutex<Vec<AskError>>>;

struct Waiter {
    door: Arc<Door>,
    errors: Errors,
}

#[derive(Serialize, Deserialize)]
enum Say {
    Wait,
    /// Blocks its thread until the door is open.
    Block,
    Echo(Reply<u8>),
    /// Asks the first of these entities to ask the next one, and so on; the last one answers.
    Ask(Vec<String>, Reply<u8>),
    /// Asks itself in a task.
    AskInTask(Reply<u8>),
}

impl Entity for Waiter {
    type Message = Say;

    async fn handle(&mut self, say: Say, cx: &mut Context<'_, Self>) {
        match say {
            Say::Wait => self.door.pass().await,
            Say::Block => self.door.block(),
            Say::Echo(reply) => reply.send(7),
            Say::Ask(path, reply) => {
                let (next, rest) = path.split_first().expect("the path is not empty");
                let rest = rest.to_vec();
                let asked = cx.entity(next).ask(|reply| {
                    if rest.is_empty() { Say::Echo(reply) } else { Say::Ask(rest, reply) }
                });
                match asked.await {
                    Ok(answer) => reply.send(answer),
                    Err(why) => self.errors.lock().expect("nobody panicked").push(why),
                }
            }
            Say::AskInTask(reply) => {
                let myself = cx.myself();
                cx.spawn(async move {
                    if let Ok(answer) = myself.ask(Say::Echo).await {
                        reply.send(answer);
                    }
                });
            }
        }
    }
}

struct Waits {
    nodes: Nodes<Waiter>,
    door: Arc<Door>,
    errors: Errors,
}

impl Waits {
    fn new(slow_handler_after: Duration) -> Self {
        let plan = Plan::default();
        let settings = ShardingConfig { slow_handler_after, ..plan.settings.clone() };
        let plan = Plan { settings, shards: 4, ..plan };
        let (door, errors) = (Arc::<Door>::default(), Errors::default());
        let mut nodes = Nodes::new(&plan, |_, _| {
            let (door, errors) = (Arc::clone(&door), Arc::clone(&errors));
            move |_: &EntityId| Waiter { door: Arc::clone(&door), errors: Arc::clone(&errors) }
        });
        (0..4).for_each(|shard| nodes.host(shard, 0));
        Self { nodes, door, errors }
    }

    fn tell(&mut self, id: &str, say: Say) {
        self.nodes.nodes[0].region.entity(id).tell(say).expect("there is room");
        self.nodes.settle();
    }

    fn pass(&mut self, secs: u64) {
        for _ in 0..secs {
            self.nodes.advance(Duration::from_secs(1));
            self.nodes.settle();
        }
    }

    fn slow(&self) -> u64 {
        self.nodes.nodes[0].region.slow_handlers()
    }

    /// Asks the first entity to ask along the others. Returns the errors that the handlers got.
    fn ask_along(&mut self, path: &[&str]) -> Vec<AskError> {
        let rest = path[1..].iter().map(|id| (*id).to_owned()).collect();
        let _asked = self.nodes.nodes[1].region.entity(path[0]).ask(|reply| Say::Ask(rest, reply));
        self.pass(12);
        std::mem::take(&mut *self.errors.lock().expect("nobody panicked"))
    }
}

/// The lines that are logged while `run` runs.
pub(super) fn logged(run: impl FnOnce()) -> Vec<String> {
    let log = MemoryLog::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    tracing::subscriber::with_default(subscriber, run);
    log.text().lines().map(str::to_owned).collect()
}

#[test]
fn slow_handler_is_counted_once_and_logged_at_doubling_ages() {
    let mut waits = Waits::new(Duration::from_secs(8));
    let lines = logged(|| {
        waits.tell("wedged", Say::Wait);
        waits.tell("quick", Say::Wait);
        waits.pass(7);
        assert_eq!(waits.slow(), 0);
        waits.pass(193);
    });
    assert_eq!(waits.slow(), 2);
    let of = |id: &str| {
        let is_it = |line: &&String| line.contains(&format!("entity={id} "));
        lines.iter().filter(|line| line.contains("sharding.slow_handler")).filter(is_it).count()
    };
    assert_eq!((of("wedged"), of("quick")), (5, 5), "at 8, 16, 32, 64, 128 s: {lines:#?}");
    let named =
        ["entity_type=journal", "message_type=\"sharding::entities::waits::Say\"", "running_for="];
    assert!(named.iter().all(|part| lines[0].contains(part)), "{}", lines[0]);
    waits.door.open();
    waits.pass(10);
    assert_eq!(waits.nodes.executor.tasks(), 0, "the watch has ended");
    waits.door.close();
    waits.tell("wedged", Say::Wait);
    waits.pass(10);
    assert_eq!(waits.slow(), 3);
}

#[test]
fn shard_is_reported_while_a_handler_of_it_is_slow() {
    let mut waits = Waits::new(Duration::from_secs(8));
    let lines = logged(|| {
        waits.tell("wedged", Say::Wait);
        waits.pass(7);
        assert_eq!(waits.nodes.slow_shards(0), []);
        waits.pass(5);
    });
    let wedged = waits.nodes.slow_shards(0);
    assert_eq!((wedged.len(), waits.nodes.slow_shards(1)), (1, vec![]));
    let left_out: Vec<_> = lines.iter().filter(|line| line.contains("left_out")).collect();
    let named = ["INFO", "sharding.left_out", "entity_type=journal", "entity=wedged", "shards=1"];
    let is_named = left_out.len() == 1 && named.iter().all(|part| left_out[0].contains(part));
    assert!(is_named, "{lines:#?}");
    waits.door.open();
    waits.pass(10);
    assert_eq!(waits.nodes.slow_shards(0), [], "it has ended");
    assert_eq!(waits.nodes.executor.tasks(), 0, "none looks any more");
}

#[test]
fn shard_is_reported_while_a_handler_blocks_its_thread() {
    let mut waits = Waits::new(Duration::from_secs(8));
    waits.nodes.nodes[0].region.entity("wedged").tell(Say::Block).expect("there is room");
    let executor = Arc::clone(&waits.nodes.executor);
    let blocked = std::thread::spawn(move || executor.step(0));
    // As the stall monitor does; the clock of polls goes on from where it stands.
    let hosting = Arc::clone(&waits.nodes.nodes[0].hosting);
    let since_boot = (1_u32..).find(|tenths| {
        let long = polls::longer_than(BLOCKS_FROM, *tenths * Duration::from_millis(100));
        let named = long.iter().filter_map(|poll| hosting.polled(poll));
        let is_it = |entity: Option<EntityId>| entity.is_some_and(|id| id.as_str() == "wedged");
        std::thread::sleep(Duration::from_millis(1));
        named.map(|(entity, _)| entity).any(is_it)
    });
    let since_boot = since_boot.expect("it blocks") * Duration::from_millis(100);
    waits.pass(3);
    assert_eq!(waits.nodes.slow_shards(0), [], "not for so long yet");
    polls::longer_than(BLOCKS_FROM, since_boot + Duration::from_secs(8));
    waits.pass(3);
    assert_eq!(waits.nodes.slow_shards(0).len(), 1);
    let entity = waits.nodes.nodes[0].region.entity("wedged");
    let asked = entity.ask_within(Duration::from_millis(500), Say::Echo);
    let why = waits.nodes.wait_for(asked).unwrap_err();
    let text = why.to_string();
    assert!(matches!(why, AskError::Timeout { kept: TimeoutReason::NotBegun, .. }), "{text}");
    assert!(text.contains("it waits for the handler of wedged"), "{text}");
    waits.door.open();
    blocked.join().expect("it has ended");
    waits.pass(6);
    assert_eq!(waits.nodes.slow_shards(0), [], "it has ended");
    assert_eq!(waits.nodes.executor.tasks(), 0, "none looks any more");
}

#[test]
fn log_of_shards_left_out_is_throttled() {
    let mut waits = Waits::new(Duration::from_secs(1));
    let lines = logged(|| {
        for _ in 0..5 {
            waits.tell("wedged", Say::Wait);
            waits.pass(5);
            assert_eq!(waits.nodes.slow_shards(0).len(), 1);
            waits.door.open();
            waits.pass(5);
            assert_eq!(waits.nodes.slow_shards(0), []);
            waits.door.close();
        }
    });
    let left_out = lines.iter().filter(|line| line.contains("sharding.left_out")).count();
    assert_eq!(left_out, 1, "once a minute: {lines:#?}");
}

#[test]
fn zero_turns_the_slow_handler_watch_off() {
    let mut waits = Waits::new(Duration::ZERO);
    waits.tell("wedged", Say::Wait);
    waits.pass(100);
    assert_eq!((waits.slow(), waits.nodes.executor.tasks()), (0, 1), "the handler alone");
}

#[test]
fn handler_that_asks_itself_learns_so_at_once() {
    let mut waits = Waits::new(Duration::ZERO);
    waits.tell("a", Say::Ask(vec!["a".to_owned()], unawaited()));
    let errors = std::mem::take(&mut *waits.errors.lock().expect("nobody panicked"));
    assert!(matches!(&errors[..], [AskError::AsksItself { .. }]), "{errors:?}");
    assert!(errors[0].to_string().starts_with("journal/a asks itself"), "{}", errors[0]);
    // A task may ask its own entity.
    let asked = waits.nodes.nodes[0].region.entity("a").ask(Say::AskInTask);
    assert_eq!(waits.nodes.wait_for(asked).expect("it answers"), 7);
}

#[test]
fn cycle_of_asks_on_one_node_is_named() {
    for path in [&["a", "b", "a"][..], &["a", "b", "c", "a"], &["a", "b", "c", "d", "b"]] {
        let mut waits = Waits::new(Duration::ZERO);
        let errors = waits.ask_along(path);
        let named = errors.iter().find_map(|why| match why {
            AskError::Cycle { cycle, .. } => Some(cycle.clone()),
            _ => None,
        });
        let first = usize::from(path.len() == 5);
        let expected: Vec<_> = path[first..].iter().map(|id| format!("journal/{id}")).collect();
        let closed = named.as_deref().map(|cycle| {
            let names: Vec<_> = cycle.split(" -> ").collect();
            let mut members = names[1..].to_vec();
            members.sort_unstable();
            (names.first() == names.last(), members.join(" "))
        });
        let mut members = expected[1..].to_vec();
        members.sort_unstable();
        assert_eq!(closed, Some((true, members.join(" "))), "{path:?}: {errors:?}");
    }
}

#[test]
fn chain_of_asks_without_a_cycle_is_answered() {
    let mut waits = Waits::new(Duration::ZERO);
    let path: Vec<_> = ["b", "c", "d"].map(str::to_owned).into();
    let asked = waits.nodes.nodes[1].region.entity("a").ask(|reply| Say::Ask(path, reply));
    assert_eq!(waits.nodes.wait_for(asked).expect("it answers"), 7);
}

#[test]
fn ask_behind_a_running_handler_has_not_begun() {
    let mut waits = Waits::new(Duration::ZERO);
    let entity = waits.nodes.nodes[0].region.entity("wedged");
    waits.tell("wedged", Say::Wait);
    waits.pass(1);
    let why = waits.nodes.wait_for(entity.ask(Say::Echo)).unwrap_err();
    assert!(matches!(why, AskError::Timeout { kept: TimeoutReason::NotBegun, .. }), "{why}");
    let text = why.to_string();
    let named = ["has not begun", "it waits for the handler of wedged, which has run for 11"];
    assert!(named.iter().all(|part| text.contains(part)), "{text}");
}

/// A `Reply` whose answer is not awaited.
fn unawaited() -> Reply<u8> {
    let reply = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&reply);
    let waits = Waits::new(Duration::ZERO);
    let _asked = waits.nodes.nodes[0].region.entity("x").ask(|to| {
        *kept.lock().expect("nobody panicked") = Some(to);
        Say::Wait
    });
    reply.lock().expect("nobody panicked").take().expect("the closure ran")
}
