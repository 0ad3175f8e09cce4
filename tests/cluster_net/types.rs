//! Several entity types on nodes of several roles, started by several threads.

use std::collections::BTreeSet;
use std::sync::Arc;

use ostraca::prelude::*;
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::extractor::{ByMessage, HashExtractor, ShardHash};
use serde::{Deserialize, Serialize};

use crate::fixture::{Plan, all_up, drop_all, free_addresses};
use crate::waits::{eventually, soon};

/// Answers with the node that hosts it.
struct Guest;

impl Entity for Guest {
    type Message = Reply<u64>;

    async fn handle(&mut self, reply: Reply<u64>, cx: &mut Context<'_, Self>) {
        reply.send(cx.node().replica().get());
    }
}

async fn names(node: &Node) -> Vec<String> {
    let types = node.sharding().types().await.expect("it runs");
    types.into_iter().map(|it| it.entity_type.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_started_twice_by_several_threads_exist_once() {
    let node = Node::start(Config::default()).await.expect("it starts");
    assert_eq!(names(&node).await, [""; 0]);
    let starts: Vec<_> = (0..40)
        .map(|number: u32| {
            let sharding = node.sharding();
            let start = async move {
                let name = format!("guest-{:02}", number % 20);
                sharding.start(&name, |_| Guest).await.map(|region| (name, region))
            };
            tokio::spawn(start)
        })
        .collect();
    for start in starts {
        let (name, region) = soon(start).await.expect("no panic").expect("it starts");
        soon(node.sharding().wait_until_registered(&name)).await.expect("it serves");
        soon(region.entity("a").ask(|reply| reply)).await.expect("it answers");
    }
    let expected: Vec<String> = (0..20).map(|number| format!("guest-{number:02}")).collect();
    assert_eq!(names(&node).await, expected);
    soon(node.stop()).await;
}

/// A type that only members of the role host.
fn of_role(role: &str) -> EntityTypeSetup<Guest> {
    let settings = Settings { role: Some(role.to_owned()), ..Settings::default() };
    let settings = Settings { number_of_shards: 20, ..settings };
    EntityTypeSetup { settings: Some(settings), ..EntityTypeSetup::new(role, |_| Guest) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_of_two_roles_run_on_members_of_their_role() {
    let mut plan = Plan::with_seeds(2);
    plan.change(|settings| settings.roles = ["cook".to_owned()].into());
    let mut nodes = vec![plan.seed(0).await, plan.seed(1).await];
    plan.change(|settings| settings.roles = ["waiter".to_owned()].into());
    let last = plan.config(&free_addresses(1).remove(0), None);
    nodes.push(Node::start(last).await.expect("it starts"));
    all_up(&nodes).await;
    let mut regions = Vec::new();
    for node in &nodes {
        for role in ["cook", "waiter"] {
            let region = node.sharding().start_with(of_role(role)).await.expect("it starts");
            regions.push((role, region));
        }
    }
    let id = |node: &Node| node.cluster().me().incarnation.get();
    let members = |role| -> BTreeSet<u64> {
        let those = if role == "cook" { &nodes[..2] } else { &nodes[2..] };
        those.iter().map(id).collect()
    };
    for role in ["cook", "waiter"] {
        for node in &nodes {
            eventually("the members of the role host it", async || {
                let known = node.sharding().current_regions(role).await.expect("it is started");
                known.into_iter().map(|region| region.replica().get()).eq(members(role))
            })
            .await;
        }
    }
    for (role, region) in &regions {
        let mut homes = BTreeSet::new();
        for number in 0..30 {
            let guest = region.entity(&format!("guest-{number}"));
            homes.insert(soon(guest.ask(|reply| reply)).await.expect("it answers"));
        }
        assert_eq!(homes, members(role), "{role}");
    }
    drop(regions);
    drop_all(nodes);
}

/// A type with a number of shards and a hash that differ from the settings of the nodes.
fn with_extractor() -> EntityTypeSetup<Guest> {
    let hash = HashExtractor::new(ShardHash::Java, 20).expect("a valid number of shards");
    let extractor = Arc::new(ByMessage::new(hash, |_: &Reply<u64>| None));
    EntityTypeSetup { extractor: Some(extractor), ..EntityTypeSetup::new("guest", |_| Guest) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_with_the_setup_of_the_hosts_reaches_them() {
    let nodes = Plan::with_seeds(2).start().await;
    nodes[0].sharding().start_with(with_extractor()).await.expect("it starts");
    let sharding = nodes[1].sharding();
    let proxy = sharding.start_proxy_with(with_extractor()).await.expect("it starts");
    soon(sharding.wait_until_registered("guest")).await.expect("its settings agree");
    let host = nodes[0].cluster().me().incarnation.get();
    for number in 0..10 {
        let guest = proxy.entity(&format!("guest-{number}"));
        assert_eq!(soon(guest.ask(|reply| reply)).await.expect("it answers"), host);
    }
    drop_all(nodes);
}

/// The highest number that any node has written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Highest(u64);

impl ReplicatedData for Highest {
    const NAME: &'static str = "highest";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.max(other.0);
    }
}

fn raise(to: u64) -> impl FnOnce(&mut Edit<'_, User<Highest>>) -> Result<(), EditError> {
    move |highest| {
        highest.change_with(|it| {
            it.0 = it.0.max(to);
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_data_needs_registration_to_change_not_to_store() {
    let plan = Plan::with_seeds(3);
    let mut nodes = Vec::new();
    for number in 0..3 {
        let mut types = Registry::new();
        if number > 0 {
            types.register::<Highest>().expect("the only one of its name");
        }
        let config = plan.config(&plan.seeds[number], None);
        nodes.push(Node::builder(config).types(types).start().await.expect("it starts"));
    }
    all_up(&nodes).await;
    let key = Key::<User<Highest>>::new("highest");
    let (write, read) = (WriteMajority::within(secs(60)), ReadMajority::within(secs(60)));
    for (number, to) in [(1, 7), (2, 5)] {
        let raised = nodes[number].replicator().update(&key, write, raise(to));
        soon(raised).await.expect("a majority is there");
    }
    for node in &nodes {
        let found = soon(node.replicator().get(&key, read)).await.expect("a majority is there");
        let found = found.expect("it was written").get();
        assert_eq!(found.expect("it decodes"), Highest(7));
    }
    let refused = soon(nodes[0].replicator().update(&key, WriteLocal, raise(9))).await;
    let why = refused.expect_err("the type is not registered there").to_string();
    assert!(why.contains("NodeBuilder::types"), "{why}");
    drop_all(nodes);
}
