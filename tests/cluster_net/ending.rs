//! Orderly shutdown of nodes: phases, removal by the others, and shutdown of a whole cluster.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::prelude::*;

use crate::fixture::{Plan, all_up, drop_all, events_until, free_addresses, gone};
use crate::waits::{eventually, soon};

#[tokio::test(flavor = "multi_thread")]
async fn stopping_node_is_removed_and_never_unreachable() {
    let plan = Plan::with_seeds(3);
    let mut nodes = plan.start().await;
    let mut events = nodes[0].cluster().events();
    let leaver = nodes.pop().expect("three");
    let who = leaver.cluster().me();
    soon(leaver.stop()).await;
    let told = events_until(
        &mut events,
        |event| matches!(event, ClusterEvent::MemberRemoved { member, .. } if member.node == who),
    )
    .await;
    let short = |event: &ClusterEvent| match event {
        ClusterEvent::MemberLeft(member) if member.node == who => Some("left"),
        ClusterEvent::MemberExited(member) if member.node == who => Some("exited"),
        ClusterEvent::MemberDowned(member) if member.node == who => Some("downed"),
        ClusterEvent::UnreachableMember(member) if member.node == who => Some("unreachable"),
        ClusterEvent::MemberRemoved { member, .. } if member.node == who => Some("removed"),
        _ => None,
    };
    // The stream may skip a step if the next one followed at once.
    let mut steps = ["left", "exited", "removed"].iter();
    for step in told.iter().filter_map(short) {
        assert!(steps.any(|expected| *expected == step), "{step}: {told:?}");
    }
    gone(&nodes, who).await;
    all_up(&nodes).await;
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn node_asked_to_leave_stops_itself() {
    let plan = Plan::with_seeds(3);
    let mut nodes = plan.start().await;
    let leaver = nodes.remove(0);
    let who = leaver.cluster().me();
    nodes[0].cluster().leave(who).await.expect("a member");
    assert_eq!(soon(leaver.shutdown().done()).await, Reason::Leaving);
    gone(&nodes, who).await;
    all_up(&nodes).await;
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_tasks_run_in_their_phases() {
    // With the default lease: a shorter one may lapse for a moment on a busy machine.
    let plan = Plan::changed(2, |settings| {
        settings.downing.stable_after = Some(Duration::from_millis(300));
    });
    let mut nodes = plan.start().await;
    let leaver = nodes.pop().expect("two");
    let (who, log) = (leaver.cluster().me(), Arc::<Mutex<Vec<String>>>::default());
    for phase in Phase::ALL {
        let (cluster, lease, log) = (leaver.cluster(), leaver.lease(), log.clone());
        let elsewhere = nodes[0].cluster();
        let look = move || async move {
            let here = cluster.members().into_iter().find(|member| member.node == who);
            let there = elsewhere.members().into_iter().any(|member| member.node == who);
            let status = here.map_or("-".to_owned(), |member| member.status.to_string());
            let line =
                format!("{phase}: {status}, known there: {there}, serves: {}", lease.serves());
            log.lock().expect("no test panics under it").push(line);
        };
        leaver.shutdown().add_task(phase, "look", look).expect("it has not begun");
    }
    eventually("it may serve", async || leaver.lease().serves()).await;
    soon(leaver.stop()).await;
    let log = log.lock().expect("no test panics under it").clone();
    let phases: Vec<&str> = log.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(phases, Phase::ALL.map(Phase::name));
    for (phase, line) in Phase::ALL.into_iter().zip(&log) {
        match phase {
            phase if phase < Phase::ClusterLeave => {
                assert!(line.contains("Up, known there: true, serves: true"), "{line}");
            }
            phase if phase > Phase::ClusterExitingDone => {
                assert!(line.contains("known there: false, serves: false"), "{line}");
            }
            _ => {}
        }
    }
    gone(&nodes, who).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_node_releases_its_directory_and_keeps_its_cluster() {
    let plan = Plan::with_seeds(2);
    let mut nodes = plan.start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let address = free_addresses(1).remove(0);
    let mut clusters = BTreeSet::new();
    for _ in 0..2 {
        let start = Node::start(plan.config(&address, Some(dir.path())));
        let node = start.await.expect("nobody holds the directory");
        nodes.push(node);
        all_up(&nodes).await;
        let node = nodes.pop().expect("three");
        clusters.insert(node.cluster().state().await.expect("it runs").id);
        let who = node.cluster().me();
        soon(node.stop()).await;
        gone(&nodes, who).await;
    }
    assert_eq!(clusters.len(), 1);
    assert!(dir.path().join("membership").exists());
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_can_stop_at_once() {
    let plan = Plan::with_seeds(3);
    let nodes = plan.start().await;
    nodes[0].cluster().prepare_for_full_shutdown().await.expect("it runs");
    for node in &nodes {
        eventually("all have heard it", async || {
            node.cluster().state().await.is_ok_and(|view| view.preparing_for_shutdown)
        })
        .await;
    }
    soon(futures::future::join_all(nodes.into_iter().map(Node::stop))).await;
}
