//! A test cluster of nodes in one process.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use ostraca::cluster::config::ClusterConfig as Settings;
use ostraca::cluster::member::Address;
use ostraca::ddata::id::NodeId;
use ostraca::prelude::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::waits::{eventually, soon};

/// Ports handed out to tests of this process, so that no two tests get the same one.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Loopback addresses that no process listens on.
pub(crate) fn free_addresses(count: usize) -> Vec<Multiaddr> {
    let mut held = Vec::new();
    let mut free = Vec::new();
    while free.len() < count {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        held.push(listener);
        if GIVEN.lock().expect("no test panics under it").insert(port) {
            free.push(format!("/ip4/127.0.0.1/tcp/{port}").parse().expect("an address"));
        }
    }
    free
}

/// Configuration of a test's nodes.
pub(crate) struct Plan {
    pub(crate) seeds: Vec<Multiaddr>,
    settings: Settings,
}

impl Plan {
    /// With this number of seeds, and short times until a lost node is detected and removed.
    pub(crate) fn with_seeds(count: usize) -> Self {
        Self::changed(count, |settings| {
            settings.downing.stable_after = Some(Duration::from_millis(300));
            settings.lease.duration = Duration::from_secs(2);
            settings.lease.heartbeat_interval = Duration::from_millis(250);
        })
    }

    /// With settings that the test changes.
    pub(crate) fn changed(count: usize, change: impl FnOnce(&mut Settings)) -> Self {
        let seeds = free_addresses(count);
        let address = |seed: &Multiaddr| Address::new(seed.to_string()).expect("short");
        let mut settings =
            Settings { seeds: seeds.iter().map(address).collect(), ..Settings::default() };
        change(&mut settings);
        Self { seeds, settings }
    }

    /// Changes the settings of nodes that start later.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
    }

    pub(crate) fn config(&self, listen: &Multiaddr, data_dir: Option<&Path>) -> Config {
        let mut config = Config { cluster: self.settings.clone(), ..Config::default() };
        config.net.listen = vec![listen.clone()];
        config.net.data_dir = data_dir.map(Path::to_owned);
        config
    }

    /// Starts a node at a seed's address.
    pub(crate) async fn seed(&self, number: usize) -> Node {
        Node::start(self.config(&self.seeds[number], None)).await.expect("it starts")
    }

    /// Starts a node that is no seed.
    pub(crate) async fn other(&self) -> Node {
        let address = free_addresses(1).remove(0);
        Node::start(self.config(&address, None)).await.expect("it starts")
    }

    /// Starts all seeds and waits until all are Up in each node's view.
    pub(crate) async fn start(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for number in 0..self.seeds.len() {
            nodes.push(self.seed(number).await);
        }
        all_up(&nodes).await;
        nodes
    }
}

/// Waits until each of these nodes lists exactly these nodes, all Up and reachable.
pub(crate) async fn all_up(nodes: &[Node]) {
    let expected: BTreeSet<NodeId> = nodes.iter().map(|node| node.cluster().me()).collect();
    for node in nodes {
        eventually("all are Up", async || {
            let Ok(view) = node.cluster().state().await else { return false };
            let seen: BTreeSet<NodeId> = view.members.iter().map(|member| member.node).collect();
            view.up() == expected.len() && seen == expected && view.unreachable.is_empty()
        })
        .await;
        soon(node.cluster().wait_until_up()).await.expect("it is Up");
    }
}

/// Waits until none of these nodes lists `who`.
pub(crate) async fn gone(from: &[Node], who: NodeId) {
    for node in from {
        eventually("it is removed", async || {
            node.cluster().members().iter().all(|member| member.node != who)
        })
        .await;
    }
}

/// Starts a node on a directory once its former process has released the lock.
pub(crate) async fn start_again(config: &Config) -> Node {
    let mut node = None;
    eventually("the old process releases its lock", async || {
        node = Node::start(config.clone()).await.ok();
        node.is_some()
    })
    .await;
    node.expect("it has started")
}

/// A runtime of its own, as in a separate process. It may be dropped within another one.
pub(crate) struct Background(Option<Runtime>);

impl Background {
    pub(crate) fn start(threads: usize) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        Self(Some(runtime.expect("threads")))
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.as_ref().expect("only dropping takes it").spawn(task)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Events of a stream up to the one that `last` accepts.
pub(crate) async fn events_until(
    events: &mut ClusterEvents,
    last: impl Fn(&ClusterEvent) -> bool,
) -> Vec<ClusterEvent> {
    let mut told = Vec::new();
    loop {
        let event = soon(events.next()).await.expect("the node runs");
        let is_last = last(&event);
        told.push(event);
        if is_last {
            return told;
        }
    }
}

/// Drops nodes without an orderly shutdown.
pub(crate) fn drop_all(nodes: Vec<Node>) {
    drop(nodes);
}
