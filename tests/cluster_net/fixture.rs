//! A cluster as a test writes it.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use ostraca::cluster::config::Cluster as Settings;
use ostraca::cluster::member::Address;
use ostraca::ddata::id::NodeId;
use ostraca::prelude::*;

/// Ten times what anything here takes on a machine that has other things to do.
pub(crate) const SOON: Duration = Duration::from_secs(90);

/// Ports that tests of this process were given, so that none is given twice.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Addresses of loopback that nobody listens on.
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

/// How the nodes of a test are set up.
pub(crate) struct Plan {
    pub(crate) seeds: Vec<Multiaddr>,
    settings: Settings,
}

impl Plan {
    /// With so many seeds. What is lost is noticed and removed soon.
    pub(crate) fn with_seeds(count: usize) -> Self {
        Self::changed(count, |settings| {
            settings.downing.stable_after = Some(Duration::from_millis(300));
            settings.lease.duration = Duration::from_secs(2);
            settings.lease.heartbeat_interval = Duration::from_millis(250);
        })
    }

    /// With settings of the test's own.
    pub(crate) fn changed(count: usize, change: impl FnOnce(&mut Settings)) -> Self {
        let seeds = free_addresses(count);
        let address = |seed: &Multiaddr| Address::new(seed.to_string()).expect("short");
        let mut settings =
            Settings { seeds: seeds.iter().map(address).collect(), ..Settings::default() };
        change(&mut settings);
        Self { seeds, settings }
    }

    /// With other settings than those that it was made with.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.settings);
    }

    pub(crate) fn config(&self, listen: &Multiaddr, data_dir: Option<&Path>) -> Config {
        let mut config = Config { cluster: self.settings.clone(), ..Config::default() };
        config.net.listen = vec![listen.clone()];
        config.net.data_dir = data_dir.map(Path::to_owned);
        config
    }

    /// A node that listens on a seed's address.
    pub(crate) async fn seed(&self, number: usize) -> Node {
        Node::start(self.config(&self.seeds[number], None)).await.expect("it starts")
    }

    /// A node that is no seed.
    pub(crate) async fn other(&self) -> Node {
        let address = free_addresses(1).remove(0);
        Node::start(self.config(&address, None)).await.expect("it starts")
    }

    /// All seeds, all Up to each other.
    pub(crate) async fn start(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for number in 0..self.seeds.len() {
            nodes.push(self.seed(number).await);
        }
        all_up(&nodes).await;
        nodes
    }
}

/// Waits until all of these see exactly these, all Up, and agree.
pub(crate) async fn all_up(nodes: &[Node]) {
    let expected: BTreeSet<NodeId> = nodes.iter().map(|node| node.cluster().me()).collect();
    for node in nodes {
        eventually("all are Up", async || {
            let Ok(view) = node.cluster().state().await else { return false };
            let seen: BTreeSet<NodeId> = view.members.iter().map(|member| member.node).collect();
            view.up() == expected.len() && seen == expected && view.unreachable.is_empty()
        })
        .await;
        soon(node.cluster().up()).await.expect("it is Up");
    }
}

/// Waits until none of these knows that one.
pub(crate) async fn gone(from: &[Node], who: NodeId) {
    for node in from {
        eventually("it is removed", async || {
            node.cluster().members().iter().all(|member| member.node != who)
        })
        .await;
    }
}

/// Starts a node on a directory, once its former life has let go of it.
pub(crate) async fn start_again(config: &Config) -> Node {
    let mut node = None;
    eventually("the old life lets go of its lock", async || {
        node = Node::start(config.clone()).await.ok();
        node.is_some()
    })
    .await;
    node.expect("it has started")
}

/// Waits until it is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let tries = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, tries).await.is_ok(), "never: {what}");
}

/// Waits for something that must not hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it hangs")
}

/// What a stream tells until `last` says so.
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

/// Ends nodes that the test needs no more, at once and without a goodbye.
pub(crate) fn drop_all(nodes: Vec<Node>) {
    drop(nodes);
}
