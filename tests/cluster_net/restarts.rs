//! Nodes that restart on their data directories.

use ostraca::net::address::socket_address;
use ostraca::prelude::*;

use crate::fixture::{Plan, all_up, free_addresses, start_again};
use crate::process_log::{alone, begin_log, lines};
use crate::waits::{eventually, soon};

/// One node with a data directory and no seeds, as in an operator's first starts.
#[tokio::test(flavor = "multi_thread")]
async fn lone_node_is_up_in_each_life() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::default();
    config.net.data_dir = Some(dir.path().to_owned());
    let mut clusters = std::collections::BTreeSet::new();
    let mut generations = Vec::new();
    for _ in 0..3 {
        let node = Node::start(config.clone()).await.expect("it starts");
        soon(node.cluster().wait_until_up()).await.expect("it resumes");
        clusters.extend(node.cluster().state().await.expect("it runs").id);
        let epoch = node.replicator().configuration().await.expect("it runs").expect("installed");
        generations.push(epoch.id().generation);
        soon(node.stop()).await;
    }
    assert_eq!(clusters.len(), 1, "the same cluster");
    assert!(generations.is_sorted_by(|one, next| one < next), "{generations:?}");
}

/// Three nodes stop in order one after the other and restart in the order in which they stopped.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_stopped_in_turn_come_back_by_the_last_one() {
    let plan = Plan::with_seeds(3);
    let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let config = |place: usize| plan.config(&plan.seeds[place], Some(dirs[place].path()));
    let mut nodes = Vec::new();
    for place in 0..3 {
        nodes.push(Node::start(config(place)).await.expect("it starts"));
    }
    all_up(&nodes).await;
    for node in nodes {
        soon(node.stop()).await;
    }
    let mut again = Vec::new();
    for place in 0..3 {
        again.push(start_again(&config(place)).await);
    }
    all_up(&again).await;
    for node in again {
        soon(node.stop()).await;
    }
}

/// A node with a directory that is no seed returns after the only seed has stopped for good.
#[tokio::test(flavor = "multi_thread")]
async fn node_returns_by_the_members_that_it_knew() {
    let plan = Plan::with_seeds(1);
    let dirs = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let addresses = free_addresses(2);
    let seed =
        Node::start(plan.config(&plan.seeds[0], Some(dirs[0].path()))).await.expect("starts");
    let mut nodes = vec![seed];
    for (address, dir) in addresses.iter().zip(&dirs[1..]) {
        nodes.push(Node::start(plan.config(address, Some(dir.path()))).await.expect("it starts"));
    }
    all_up(&nodes).await;
    let returning = nodes.pop().expect("three");
    soon(returning.stop()).await;
    soon(nodes.remove(0).stop()).await; // the seed, which does not return
    eventually("the other one is alone", async || nodes[0].cluster().members().len() == 1).await;
    nodes.push(start_again(&plan.config(&addresses[1], Some(dirs[2].path()))).await);
    all_up(&nodes).await;
    for node in nodes {
        soon(node.stop()).await;
    }
}

/// Counts asks and transfers its count when its shard moves.
#[derive(Default)]
struct Count(u64);

#[derive(serde::Serialize, serde::Deserialize)]
struct Add(Reply<u64>);

impl Entity for Count {
    type Message = Add;

    async fn handle(&mut self, Add(reply): Add, _: &mut Context<'_, Self>) {
        self.0 += 1;
        reply.send(self.0);
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        Some(self.0.to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), ostraca::sharding::entity::BoxError> {
        self.0 = u64::from_le_bytes(state.try_into()?);
        Ok(())
    }
}

async fn counts(node: &Node) -> ShardRegion<Count> {
    let region = node.sharding().start("count", |_| Count::default()).await.expect("it starts");
    soon(node.sharding().wait_until_registered("count")).await.expect("it serves");
    region
}

async fn add_to_all(region: &ShardRegion<Count>) -> Vec<u64> {
    let mut counts = Vec::new();
    for number in 0..20 {
        let entity = region.entity(&format!("count-{number}"));
        counts.push(soon(entity.ask(Add)).await.expect("it answers"));
    }
    counts
}

/// The last host stops while its replacement is joining and hosts nothing yet. If joining takes
/// longer than the host waits, states are lost: the host must say that it waits in the attempt in
/// which they are not.
#[tokio::test(flavor = "multi_thread")]
async fn last_host_waits_for_a_member_that_is_joining() {
    alone("restarts", "last_host_waits_for_a_member_that_is_joining", async {
        begin_log();
        for _ in 0..10 {
            let plan = Plan::changed(1, |_| {});
            let last = plan.seed(0).await;
            let region = counts(&last).await;
            assert_eq!(add_to_all(&region).await, [1; 20]);
            drop(region);
            let next = plan.other().await;
            eventually("it is let in", async || last.cluster().members().len() == 2).await;
            let stopping = tokio::spawn(async move { last.stop().await });
            soon(next.cluster().wait_until_up()).await.expect("it is Up");
            let region = counts(&next).await;
            soon(stopping).await.expect("it stops");
            let port = socket_address(&next.addresses()[0]).expect("an address of TCP").port();
            let address = format!("/tcp/{port}");
            let waits = ["INFO", "cluster.waits_for_newcomers", r#"{"count"}"#, address.as_str()];
            if add_to_all(&region).await == [2; 20] && !lines(&waits).is_empty() {
                return;
            }
            drop(next);
        }
        panic!("states were lost each time, or moved without a wait");
    })
    .await;
}
