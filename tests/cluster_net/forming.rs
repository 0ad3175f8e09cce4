//! How a cluster is founded and how it grows.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca::cluster::member::Address;
use ostraca::node::StartError;
use ostraca::node::cluster::{DownError, JoinError, LeaveError};
use ostraca::prelude::*;

use crate::fixture::{Plan, all_up, drop_all, free_addresses};
use crate::waits::{eventually, soon};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_seeds_is_a_cluster_of_its_own() {
    let node = Node::start(Config::default()).await.expect("nothing has to be set");
    soon(node.cluster().wait_until_up()).await.expect("it founds alone");
    let view = node.cluster().state().await.expect("it runs");
    assert_eq!((view.up(), view.leader, view.converged), (1, Some(node.cluster().me()), true));
    let key = Key::<PNCounter>::new("visits");
    let replicator = node.replicator();
    let within = WriteMajority::within(PATIENCE);
    replicator.update(&key, within, |visits| visits.increment()).await.expect("a quorum of one");
    eventually("it may serve", async || node.lease().serves()).await;
    soon(node.stop()).await;
    assert!(replicator.replica_count().await.is_err(), "the node has stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_seeds_found_one_cluster_in_which_majorities_hold() {
    let plan = Plan::with_seeds(3);
    let nodes = plan.start().await;
    let mut ids = BTreeSet::new();
    for node in &nodes {
        ids.insert(node.cluster().state().await.expect("it runs").id);
        eventually("it may serve", async || node.lease().serves()).await;
    }
    assert!(ids.len() == 1 && !ids.contains(&None), "exactly one cluster: {ids:?}");

    let key = Key::<ORSet<String>>::new("online");
    let write = WriteMajority::within(PATIENCE);
    for (node, name) in nodes.iter().zip(["alice", "bob", "carol"]) {
        let added = node.replicator().update(&key, write, move |set| set.insert(name));
        assert!(added.await.expect("a majority is there"));
    }
    for node in &nodes {
        let read = node.replicator().get(&key, ReadMajority::within(PATIENCE)).await;
        assert_eq!(read.expect("a majority is there").map(|set| set.len()), Some(3));
        assert_eq!(node.replicator().replica_count().await.expect("it runs"), 3);
    }
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn joiner_that_is_no_seed_reads_earlier_writes() {
    let plan = Plan::with_seeds(3);
    let mut nodes = plan.start().await;
    let key = Key::<PNCounter>::new("sold");
    let write = WriteMajority::within(PATIENCE);
    nodes[0].replicator().update(&key, write, |sold| sold.add(7)).await.expect("a majority");
    let joiner = plan.other().await;
    soon(joiner.cluster().wait_until_up()).await.expect("it joins");
    let read = joiner.replicator().get(&key, ReadMajority::within(PATIENCE)).await;
    assert_eq!(read.expect("a majority is there").map(|sold| sold.value()), Some(7));
    nodes.push(joiner);
    all_up(&nodes).await;
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_can_be_names() {
    let named = |address: &Multiaddr| {
        let text = address.to_string().replace("/ip4/127.0.0.1/", "/dns4/localhost/");
        Address::new(text).expect("short")
    };
    let mut plan = Plan::with_seeds(2);
    let seeds = plan.seeds.iter().map(named).collect();
    plan.change(|settings| {
        settings.seeds = seeds;
        settings.expected_nodes = Some(2);
    });
    let mut nodes = plan.start().await;
    nodes.push(plan.other().await);
    all_up(&nodes).await;
    drop_all(nodes);
}

/// Membership has a thread of its own; a function of the program blocks the data part.
#[tokio::test(flavor = "multi_thread")]
async fn membership_runs_while_replicated_data_is_busy() {
    let plan = Plan::with_seeds(2);
    let mut nodes = plan.start().await;
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (began, begins) = tokio::sync::oneshot::channel();
    let replicator = nodes[0].replicator();
    let busy = tokio::spawn(async move {
        let key = Key::<Flag>::new("busy");
        let function = move |_: &mut Edit<'_, Flag>| {
            let _ = began.send(());
            let _ = released.recv(); // returns an error once the other end is dropped
            Ok(())
        };
        replicator.update(&key, WriteLocal, function).await
    });
    soon(begins).await.expect("it began");
    let before = nodes[0].cluster().stats().await.expect("it runs").sent;
    eventually("it continues to send", async || {
        nodes[0].cluster().stats().await.expect("it runs").sent >= before + 5
    })
    .await;
    assert!(!busy.is_finished());
    drop(release);
    soon(busy).await.expect("no panic").expect("it was local");
    nodes.push(plan.other().await);
    all_up(&nodes).await;
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_node_joins_the_given_address() {
    let host = Plan::with_seeds(0);
    let first = host.other().await;
    soon(first.cluster().wait_until_up()).await.expect("it founds alone");
    let waiting = Plan::changed(0, |settings| settings.wait_for_join = true);
    let second = waiting.other().await;
    assert!(second.cluster().members().is_empty());
    let peer: Multiaddr = format!("/p2p/{}", second.id().peer).parse().expect("an address");
    assert_eq!(second.cluster().join(&peer).await, Err(JoinError::Address { len: 0 }));
    second.cluster().join(&first.addresses()[0]).await.expect("an address");
    let nodes = [first, second];
    all_up(&nodes).await;
    let again = nodes[1].cluster().join(&nodes[0].addresses()[0]).await;
    assert_eq!(again, Err(JoinError::Member));
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_commands_are_refused() {
    let plan = Plan::with_seeds(1);
    let nodes = plan.start().await;
    let cluster = nodes[0].cluster();
    let elsewhere = free_addresses(1).remove(0);
    assert_eq!(cluster.join(&elsewhere).await, Err(JoinError::HasSeeds));
    let mut nobody = cluster.me();
    nobody.incarnation = (nobody.incarnation.get() ^ 1).into();
    assert_eq!(cluster.leave(nobody).await, Err(LeaveError::Unknown { node: nobody }));
    assert_eq!(cluster.down(nobody).await, Err(DownError::Unknown { node: nobody }));
    drop_all(nodes);
    eventually("it has ended", async || soon(cluster.wait_until_up()).await.is_err()).await;
    assert!(cluster.state().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn inconsistent_settings_start_no_node() {
    let plan = Plan::changed(1, |settings| settings.gossip_interval = Duration::ZERO);
    let refused = Node::start(plan.config(&plan.seeds[0], None)).await.err();
    assert!(matches!(refused, Some(StartError::Config(_))), "{refused:?}");
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("membership"), b"\xc1").expect("written");
    let config = Plan::with_seeds(1);
    let refused = Node::start(config.config(&config.seeds[0], Some(dir.path()))).await.err();
    assert!(matches!(refused, Some(StartError::Memory(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_that_meet_stay_separate() {
    let (one, other) = (Plan::with_seeds(0), Plan::with_seeds(0));
    let nodes = [one.other().await, other.other().await];
    for node in &nodes {
        soon(node.cluster().wait_until_up()).await.expect("it founds alone");
    }
    nodes[0].net().dial(nodes[1].addresses()[0].clone());
    eventually("they are connected", async || {
        nodes[0].net().peers().await.iter().any(|peer| peer.linked)
    })
    .await;
    for node in &nodes {
        let key = Key::<Flag>::new("here");
        let write = WriteMajority::within(PATIENCE);
        node.replicator().update(&key, write, |flag| flag.switch_on()).await.expect("alone");
        assert_eq!(node.cluster().members().len(), 1);
    }
}
