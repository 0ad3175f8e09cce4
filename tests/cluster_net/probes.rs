//! Tools get answers from a node whose program blocks every thread of its runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ostraca::management::client::Client;
use ostraca::management::wire::{AdminRequest, AdminResponse, ConsistencyLevel, ExplainSubject};
use ostraca::net::client::connect_as;
use ostraca::net::identity::Identity;
use ostraca::prelude::*;

use crate::fixture::Background;
use crate::waits::{SOON, eventually, soon};

/// Threads of the node's runtime.
const THREADS: usize = 2;

struct Bell;

impl Entity for Bell {
    type Message = Reply<()>;

    async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
        ring.send(());
    }
}

/// A runtime whose threads may be blocked until this is dropped.
struct Blockable {
    released: Arc<AtomicBool>,
    runtime: Background,
}

impl Blockable {
    fn start() -> Self {
        Self { released: Arc::default(), runtime: Background::start(THREADS) }
    }

    /// Blocks all threads.
    async fn block(&self) {
        let blocked = Arc::<AtomicUsize>::default();
        for _ in 0..THREADS {
            let (blocked, released) = (blocked.clone(), self.released.clone());
            self.runtime.spawn(async move {
                blocked.fetch_add(1, Ordering::SeqCst);
                while !released.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5)); // blocks, as a task must not
                }
            });
        }
        eventually("all threads are blocked", async || blocked.load(Ordering::SeqCst) == THREADS)
            .await;
    }

    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }
}

impl Drop for Blockable {
    fn drop(&mut self) {
        self.release();
    }
}

/// Sends the requests of `ostraca health`, `members`, `shards`, `explain` and `data get`.
async fn ask_all(client: &mut Client) {
    let entity_type = || "bell".to_owned();
    let mut ask =
        async |request: AdminRequest| client.ask(&request, SOON).await.expect("it answers");
    let AdminResponse::Health(health) = ask(AdminRequest::Health { within_ms: 0 }).await else {
        panic!()
    };
    assert_eq!(health.status.as_deref(), Some("Up"), "{health:?}");
    let AdminResponse::Members(all) = ask(AdminRequest::Members).await else { panic!() };
    assert_eq!(all.members.len(), 1, "{all:?}");
    let shards = AdminRequest::Shards { entity_type: entity_type(), within_ms: 60_000 };
    let AdminResponse::Shards(shards) = ask(shards).await else { panic!() };
    assert_eq!((shards.regions.len(), shards.unanswered.len()), (1, 0), "{shards:?}");
    let about = ExplainSubject::Entity("big".to_owned());
    let why = AdminRequest::Explain { entity_type: entity_type(), about, within_ms: 60_000 };
    let AdminResponse::Explained(why) = ask(why).await else { panic!() };
    assert!(why.text.contains("which lives on "), "{}", why.text);
    let get = AdminRequest::Get { key: "none".to_owned(), level: ConsistencyLevel::Local };
    assert!(matches!(ask(get).await, AdminResponse::Value(None)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_are_answered_while_the_runtime_is_blocked() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let mut config = Config::default();
    config.management.control_socket = Some(path.clone());
    let program = Blockable::start();
    let starting = program.runtime.spawn(async move {
        let node = Node::start(config).await.expect("it starts");
        let bells = node.sharding().start("bell", |_id| Bell).await.expect("it starts");
        bells.entity("big").ask(|reply| reply).await.expect("it rings");
        node
    });
    let node = soon(starting).await.expect("it does not panic");
    let mut before = Client::connect(&path).await.expect("it listens");
    program.block().await;

    ask_all(&mut before).await;
    ask_all(&mut soon(Client::connect(&path)).await.expect("it accepts")).await;
    let identity = Identity::load(None).expect("a new one");
    let remote = Config::default().net;
    let called = connect_as(&identity, &remote, &node.addresses()[0], SOON).await;
    ask_all(&mut Client::over(called.expect("it admits the client"))).await;

    program.release();
    soon(node.stop()).await;
}
