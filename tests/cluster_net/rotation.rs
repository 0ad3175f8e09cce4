//! Clusters of three nodes under load while their secret or their transport is replaced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ostraca::net::client::{ConnectError, connect};
use ostraca::net::config::{self as net, Stack};
use ostraca::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::fixture::{Plan, all_up, free_addresses};
use crate::waits::{SOON, eventually, soon};

const ENTITIES: u64 = 30;

#[derive(Default)]
struct Counter(u64);

#[derive(Serialize, Deserialize)]
struct Add(u64, Reply<u64>);

impl Entity for Counter {
    type Message = Add;

    async fn handle(&mut self, Add(more, reply): Add, _: &mut Context<'_, Self>) {
        self.0 += more;
        reply.send(self.0);
    }
}

/// Replaces the file by a rename, so that no reader sees a partial file.
fn write(path: &Path, secrets: &[u8]) {
    let lines: String =
        secrets.iter().map(|byte| format!("{byte:02x}").repeat(32) + "\n").collect();
    let beside = path.with_extension("new");
    std::fs::write(&beside, lines).expect("a directory of this test's own");
    std::fs::rename(beside, path).expect("the same directory");
}

/// Asks all entities in turn from one node until told to stop; counts the answers and returns the
/// first failed ask.
async fn load(
    region: ShardRegion<Counter>,
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
) -> Result<(), String> {
    while !stop.load(Ordering::Relaxed) {
        for entity in 0..ENTITIES {
            let entity = region.entity(&format!("counter-{entity}"));
            let asked = entity.ask(|reply| Add(1, reply)).await;
            asked.map_err(|error| format!("{:?}: {error}", entity.id()))?;
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

struct Cluster {
    plan: Plan,
    dir: tempfile::TempDir,
    nodes: Vec<Node>,
    regions: Vec<ShardRegion<Counter>>, // one per node
}

/// Tasks that ask the entities from every node.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Result<(), String>>>,
}

impl Load {
    fn from(regions: &[ShardRegion<Counter>]) -> Self {
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let task = |region: &ShardRegion<Counter>| {
            tokio::spawn(load(region.clone(), stop.clone(), answers.clone()))
        };
        let tasks = regions.iter().map(task).collect();
        Self { stop, answers, tasks }
    }

    /// Waits until the answers since this call exceed three per entity.
    async fn goes_on(&self) {
        let so_far = self.answers.load(Ordering::Relaxed);
        eventually("the load continues", async || {
            self.answers.load(Ordering::Relaxed) > so_far + 3 * ENTITIES
        })
        .await;
    }

    /// Stops the load; no ask may have failed.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            soon(task).await.expect("no panic").expect("no ask fails");
        }
    }
}

impl Cluster {
    /// Three nodes, each with a secret file of its own.
    async fn start(secrets: &[u8], stacks: &[Stack; 3]) -> Self {
        let plan = Plan::with_seeds(3);
        let dir = tempfile::tempdir().expect("a directory for temporary files");
        let mut it = Self { plan, dir, nodes: Vec::new(), regions: Vec::new() };
        for (address, stack) in it.plan.seeds.clone().iter().zip(stacks) {
            it.add(address, secrets, *stack).await;
        }
        all_up(&it.nodes).await;
        for node in &it.nodes {
            let sharding = node.sharding();
            let region = sharding.start("counter", |_| Counter::default()).await;
            it.regions.push(region.expect("it starts"));
        }
        for node in &it.nodes {
            soon(node.sharding().wait_until_registered("counter")).await.expect("it serves");
        }
        it
    }

    /// Stops the oldest node in order and starts a replacement at its address with this transport.
    /// Meanwhile the other nodes must answer every ask.
    async fn restart_first(&mut self, secrets: &[u8], stack: Stack) {
        let load = Load::from(&self.regions[1..]);
        let (former, _region) = (self.nodes.remove(0), self.regions.remove(0));
        let address = former.addresses()[0].clone();
        load.goes_on().await;
        former.stop().await;
        load.goes_on().await;
        let address: Multiaddr = address.iter().take(2).collect(); // without the peer id
        self.add(&address, secrets, stack).await;
        all_up(&self.nodes).await;
        let next = self.nodes.last().expect("it was added");
        let sharding = next.sharding();
        let region = sharding.start("counter", |_| Counter::default()).await;
        self.regions.push(region.expect("it starts"));
        soon(sharding.wait_until_registered("counter")).await.expect("it serves");
        load.goes_on().await;
        load.end().await;
    }

    /// Starts a node with its own file of these secrets, or without a file if there are none.
    async fn add(&mut self, address: &Multiaddr, secrets: &[u8], stack: Stack) {
        let mut config = self.plan.config(address, None);
        config.net.transport = stack;
        if !secrets.is_empty() {
            let file = self.file(self.nodes.len());
            write(&file, secrets);
            config.net.secret_file = Some(file);
        }
        self.nodes.push(Node::start(config).await.expect("it starts"));
    }

    fn file(&self, number: usize) -> std::path::PathBuf {
        self.dir.path().join(format!("secret-{number}"))
    }

    /// Writes these secrets to one node's file after the other while the load continues.
    async fn step(&self, secrets: &[u8], load: &Load) {
        for (number, node) in self.nodes.iter().enumerate() {
            let before = node.net().stats().await.secrets;
            write(&self.file(number), secrets);
            eventually("the file is read", async || node.net().stats().await.secrets != before)
                .await;
            load.goes_on().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_is_replaced_under_load_without_a_failed_ask() {
    let mut it = Cluster::start(&[1], &[Stack::Own; 3]).await;
    let load = Load::from(&it.regions);
    for secrets in [&[1, 2][..], &[2, 1], &[2]] {
        it.step(secrets, &load).await;
    }
    // Only the new secret is valid now: a node that has only this one joins, and a client with the
    // old one is rejected.
    it.add(&free_addresses(1)[0], &[2], Stack::Own).await;
    all_up(&it.nodes).await;
    for (secret, is_accepted) in [(2, true), (1, false)] {
        for node in &it.nodes {
            let file = it.dir.path().join("tool");
            write(&file, &[secret]);
            let config = net::NetConfig { secret_file: Some(file), ..net::NetConfig::default() };
            let called = connect(&config, &node.net().addresses()[0], SOON).await;
            let is_refused =
                matches!(called, Err(ConnectError::Handshake { .. } | ConnectError::Closed { .. }));
            assert_eq!((called.is_ok(), is_refused), (is_accepted, !is_accepted), "{secret}");
        }
    }
    load.end().await;
    assert!(it.nodes.iter().all(|node| node.cluster().members().len() == 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_and_stock_transports_form_one_cluster() {
    use Stack::{Mixed, Own, Stock};
    for (secrets, stacks) in [(&[1][..], [Mixed, Stock, Mixed]), (&[], [Own, Stock, Own])] {
        let it = Cluster::start(secrets, &stacks).await;
        let load = Load::from(&it.regions);
        for _ in 0..3 {
            load.goes_on().await;
        }
        load.end().await;
    }
}

/// The procedure to change the transport after a security advisory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_changes_the_transport_without_a_failed_ask() {
    let mut it = Cluster::start(&[1], &[Stack::Own; 3]).await;
    for stack in [Stack::Mixed, Stack::Stock] {
        for _ in 0..3 {
            it.restart_first(&[1], stack).await;
        }
    }
}
