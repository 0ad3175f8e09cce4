//! A program blocks every thread of its runtime, or a turn of the Replicator takes long: the node
//! keeps its lease, its membership and its promises to other nodes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ostraca::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::fixture::{Background, Plan};
use crate::process_log::{alone, begin_log, lines};
use crate::waits::{SOON, eventually, soon};

/// Longer than a lease lasts, and longer than a silent node remains a member.
const BLOCKS: Duration = Duration::from_secs(12);

/// Threads of each node's runtime.
const THREADS: usize = 2;

static BEGUN: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

static RELEASED: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
struct Sleeper;

#[derive(Serialize, Deserialize)]
enum Command {
    Where(Reply<u64>),
    /// Sleeps without an `await`.
    Block,
    /// Sleeps without an `await` until the test ends it.
    BlockUntilReleased,
}

impl Entity for Sleeper {
    type Message = Command;

    async fn handle(&mut self, command: Command, cx: &mut Context<'_, Self>) {
        match command {
            Command::Where(reply) => reply.send(cx.node().replica().get()),
            Command::Block => {
                BEGUN.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(BLOCKS);
                ENDED.fetch_add(1, Ordering::SeqCst);
            }
            Command::BlockUntilReleased => {
                while !RELEASED.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// A node with a runtime of its own, as in a separate process.
struct Apart {
    node: Node,
    region: ShardRegion<Sleeper>,
    runtime: Background,
}

impl Apart {
    async fn start(config: Config) -> Self {
        let runtime = Background::start(THREADS);
        let starting = runtime.spawn(async move {
            let node = Node::start(config).await.expect("it starts");
            let sharding = node.sharding();
            let region = sharding.start("sleeper", |_| Sleeper).await.expect("it starts");
            (node, region)
        });
        let (node, region) = soon(starting).await.expect("it does not panic");
        Self { node, region, runtime }
    }

    fn replica(&self) -> u64 {
        self.node.cluster().me().incarnation.get()
    }
}

/// The node that hosts an entity, as the entity answers to `from`.
async fn home(from: &Apart, entity: &str) -> Option<u64> {
    from.region.entity(entity).ask(Command::Where).await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_runtime_keeps_lease_and_membership() {
    let plan = Plan::changed(3, |_| {});
    let mut nodes = Vec::new();
    for seed in 0..3 {
        nodes.push(Apart::start(plan.config(&plan.seeds[seed], None)).await);
    }
    for apart in &nodes {
        soon(apart.node.cluster().wait_until_up()).await.expect("it is Up");
        soon(apart.node.sharding().wait_until_registered("sleeper")).await.expect("it serves");
    }
    let (mut blocked, mut others) = (Vec::new(), Vec::new());
    for number in 0.. {
        let name = format!("sleeper-{number}");
        eventually("it lives somewhere", async || home(&nodes[1], &name).await.is_some()).await;
        match home(&nodes[1], &name).await {
            Some(at) if at == nodes[0].replica() => blocked.push(name),
            _ => others.push(name),
        }
        if blocked.len() >= THREADS && others.len() >= 6 {
            break;
        }
    }
    blocked.truncate(THREADS);
    for name in &blocked {
        nodes[1].region.entity(name).tell(Command::Block).expect("room");
    }
    eventually("all threads are blocked", async || BEGUN.load(Ordering::SeqCst) == THREADS).await;

    while ENDED.load(Ordering::SeqCst) == 0 {
        for apart in &nodes {
            assert!(apart.node.lease().serves(), "a lease has lapsed");
        }
        let view = nodes[1].node.cluster().state().await.expect("it runs");
        assert_eq!((view.up(), view.unreachable.len()), (3, 0), "the blocked node is reachable");
        for name in &others {
            let at = home(&nodes[2], name).await.expect("entities of other nodes answer");
            assert_ne!(at, nodes[0].replica());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    for name in &blocked {
        eventually("it answers again", async || {
            home(&nodes[1], name).await == Some(nodes[0].replica())
        })
        .await;
    }
    let stalls = nodes[0].node.stats().await.stalls;
    assert_eq!(stalls.handlers_blocked, THREADS as u64, "{stalls:?}");
    assert!(stalls.runtime_blocked >= 1, "{stalls:?}");
    assert!(stalls.runtime_blocked_max > BLOCKS / 2, "{stalls:?}");
    assert_eq!(nodes[2].node.stats().await.stalls.handlers_blocked, 0, "only on the blocked node");
    for Apart { node, runtime, .. } in nodes {
        soon(node.stop()).await;
        drop(runtime);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_names_handlers_that_block_all_threads() {
    alone("blocked", "log_names_handlers_that_block_all_threads", async {
        begin_log();
        let Apart { node, region, runtime } = Apart::start(Config::default()).await;
        soon(node.cluster().wait_until_up()).await.expect("it founds alone");
        soon(node.sharding().wait_until_registered("sleeper")).await.expect("it serves");
        let names: Vec<String> = (0..THREADS).map(|number| format!("sleeper-{number}")).collect();
        for name in &names {
            region.entity(name).tell(Command::BlockUntilReleased).expect("room");
        }

        let command = std::any::type_name::<Command>();
        for name in &names {
            let entity = format!("entity=\"{name}\"");
            let words = ["WARN", "sharding.handler_blocks", entity.as_str(), command];
            eventually("the handler is logged", async || !lines(&words).is_empty()).await;
        }
        let handlers: Vec<String> =
            names.iter().map(|name| format!("sleeper/{name} ({command})")).collect();
        let mut words = vec!["WARN", "node.runtime_blocked"];
        words.extend(handlers.iter().map(String::as_str));
        eventually("all are named", async || !lines(&words).is_empty()).await;

        RELEASED.store(true, Ordering::SeqCst);
        eventually("the end is logged", async || !lines(&["INFO", "node.runtime_free"]).is_empty())
            .await;
        soon(node.stop()).await;
        drop(runtime);
    })
    .await;
}

/// Keeps the node's Replicator in one turn for [`BLOCKS`]. Sends the name of the turn's thread.
async fn hold(replicator: Replicator, began: oneshot::Sender<Option<String>>) {
    let function = move |_: &mut Edit<'_, Flag>| {
        let _ = began.send(std::thread::current().name().map(str::to_owned));
        std::thread::sleep(BLOCKS);
        Ok(())
    };
    let held = replicator.update(&Key::<Flag>::new("held"), WriteLocal, function);
    held.await.expect("a local change");
}

/// The Replicators of two of three nodes are held, so that the lease of no node could be renewed if a
/// grantor waited for its Replicator. The first one is held on the thread of a caller, the second one
/// on its own thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_turn_of_the_replicator_keeps_the_lease() {
    let plan = Plan::changed(3, |_| {});
    let nodes = plan.start().await;
    for node in &nodes {
        eventually("it has a lease", async || node.lease().serves()).await;
    }
    let (begins, began) = oneshot::channel();
    let replicator = nodes[0].replicator();
    let first = tokio::task::spawn_blocking(move || {
        Handle::current().block_on(hold(replicator, begins));
    });
    soon(began).await.expect("the turn began");

    // Writes that wait for the first node: with some pending, a caller leaves its request to the
    // Replicator's thread.
    let mut writes = Vec::new();
    for number in 0..4 {
        let key = Key::<Flag>::new(&format!("flag-{number}"));
        let write =
            nodes[1].replicator().update(&key, WriteAll::within(SOON), |flag| flag.switch_on());
        writes.push(tokio::spawn(write));
    }
    eventually("the writes wait", async || nodes[1].replicator().load().replies_awaited >= 4).await;
    let (begins, began) = oneshot::channel();
    let second = tokio::spawn(hold(nodes[1].replicator(), begins));
    let thread = soon(began).await.expect("the turn began");
    assert_eq!(thread.as_deref(), Some("ostraca-data"));

    while !(first.is_finished() && second.is_finished()) {
        for node in &nodes {
            assert!(node.lease().serves(), "a lease has lapsed");
            let view = node.cluster().state().await.expect("it runs");
            assert_eq!((view.up(), view.unreachable.len()), (3, 0), "all nodes are reachable");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    soon(first).await.expect("it does not panic");
    soon(second).await.expect("it does not panic");
    for write in writes {
        assert!(soon(write).await.expect("it does not panic").expect("all nodes answer again"));
    }
    for node in &nodes[..2] {
        let turns = node.stats().await.replicator.turns;
        assert!(turns.turn_max > BLOCKS / 2 && turns.turns_slow >= 1, "{turns:?}");
    }
    for node in nodes {
        soon(node.stop()).await;
    }
}
