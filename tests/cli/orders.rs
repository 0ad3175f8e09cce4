//! Commands that change data, members or shards, and `health`, against running nodes.

use std::path::PathBuf;
use std::time::Duration;

use ostraca::cluster::member::Address;
use ostraca::management::client::Client;
use ostraca::management::wire::{AdminRequest, AdminResponse};
use ostraca::node::shutdown::PhaseSettings;
use ostraca::prelude::*;
use ostraca::sharding::ids::EntityType;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::asking::{Bell, ended, json, node_at, settings, start};
use crate::run;
use crate::waits::{SOON, eventually};

pub(crate) type Ended = (i32, String, String);

/// Runs the tool while the nodes of this process go on.
pub(crate) async fn tool(socket: &str, arguments: &[&str]) -> Ended {
    let arguments: Vec<String> =
        arguments.iter().chain(&["--socket", socket]).map(|it| (*it).to_owned()).collect();
    let asked = tokio::task::spawn_blocking(move || {
        ended(&run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
    });
    asked.await.expect("no panic")
}

/// Two nodes that host the type `bell`, each with a socket; the coordinator runs on the first.
pub(crate) async fn pair(dir: &TempDir) -> [(Node, String, ShardRegion<Bell>); 2] {
    let (first, socket) = node_at(dir).await;
    let bells = first.sharding().start("bell", |_id| Bell).await.expect("it starts");
    first.sharding().wait_until_registered("bell").await.expect("it registers");
    let mut config = Config::default();
    let seed = first.addresses()[0].to_string();
    config.cluster.seeds = vec![Address::new(seed).expect("short")];
    let path: PathBuf = dir.path().join("other");
    config.management.control_socket = Some(path.clone());
    let second = Node::start(config).await.expect("it starts");
    second.cluster().wait_until_up().await.expect("it joins");
    let too = second.sharding().start("bell", |_id| Bell).await.expect("it starts");
    second.sharding().wait_until_registered("bell").await.expect("it registers");
    let path = path.to_str().expect("UTF-8").to_owned();
    [(first, socket, bells), (second, path, too)]
}

pub(crate) async fn ring(bells: &ShardRegion<Bell>) {
    for n in 0..20 {
        let bell = bells.entity(&format!("bell-{n}"));
        eventually("the bell rings", async || bell.ask(|reply| reply).await.is_ok()).await;
    }
}

async fn hosted(node: &Node) -> usize {
    node.sharding().region_state("bell").await.expect("it was started").shards.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_delete_removes_a_key_of_any_type() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let online = Key::<ORSet<String>>::new("online");
    let data = node.replicator();
    data.update(&online, WriteLocal, |set| set.insert("bob")).await.expect("made");
    let delete = ["data", "delete", "online", "--majority", "--json"];
    let (code, answer, errors) = tool(&socket, &delete).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(json(&answer), json("{\"deleted\":\"online\",\"consistency\":\"majority\"}"));
    assert_eq!(node.replicator().get(&online, ReadLocal).await.expect("read"), None);
    let (code, _, errors) = tool(&socket, &["data", "delete", "sharding/bell/homes"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("are the cluster's own"), "{errors}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_gives_all_shards_away_until_undone() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, socket, bells), (second, _, _)] = pair(&dir).await;
    ring(&bells).await;
    eventually("both host", async || hosted(&first).await > 0 && hosted(&second).await > 0).await;
    let (code, answer, errors) = tool(&socket, &["drain", "--timeout", "60s"]).await;
    assert_eq!((code, errors.as_str()), (0, ""), "{answer}");
    assert!(answer.contains(" hosts no shards and gets none"), "{answer}");
    assert_eq!(hosted(&first).await, 0);
    let members = json(&tool(&socket, &["members", "--json"]).await.1);
    let all = members["members"].as_array().expect("members");
    let me = all.iter().find(|member| member["node"] == members["me"]).expect("a member");
    assert_eq!((all.len(), &me["status"], &me["draining"]), (2, &"Up".into(), &true.into()));
    ring(&bells).await;
    assert_eq!(hosted(&first).await, 0, "it gets none");

    let (code, answer, _) = tool(&socket, &["drain", "--undo", "--json"]).await;
    assert_eq!((code, &json(&answer)["draining"]), (0, &false.into()), "{answer}");
    eventually("shards come back", async || hosted(&first).await > 0).await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_of_the_only_host_is_unfinished() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let bells = node.sharding().start("bell", |_id| Bell).await.expect("it starts");
    ring(&bells).await;
    let (code, answer, errors) = tool(&socket, &["drain", "--timeout", "100ms"]).await;
    assert_eq!(code, 5, "{answer}");
    assert!(answer.contains("it still hosts") && answer.contains(" of bell"), "{answer}");
    assert!(errors.contains("shards are left after 100ms"), "{errors}");
    ring(&bells).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebalance_runs_at_the_coordinator_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, at_first, _), (second, at_second, _)] = pair(&dir).await;
    let (code, answer, errors) = tool(&at_first, &["rebalance", "bell"]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.contains("checks the balance now"), "{answer}");
    let (code, _, errors) = tool(&at_second, &["rebalance", "bell"]).await;
    assert_eq!(code, 1);
    let address = first.addresses()[0].to_string();
    let address = address.split("/p2p/").next().expect("a part");
    assert!(errors.contains(&format!("--node {address}")), "{errors}");
    assert_eq!(tool(&at_first, &["rebalance", "ball"]).await.0, 3);
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_shards_ends_the_entities_of_a_type() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, socket, bells), (second, _, _)] = pair(&dir).await;
    ring(&bells).await;
    let (code, _, errors) = tool(&socket, &["stop-shards", "bell"]).await;
    assert_eq!(code, 2, "{errors}");
    assert_ne!(hosted(&first).await + hosted(&second).await, 0, "nothing was done");
    let stop = ["stop-shards", "bell", "--yes", "--timeout", "60s", "--json"];
    let (code, answer, errors) = tool(&socket, &stop).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(json(&answer), json("{\"entity_type\":\"bell\",\"stopped\":1000}"));
    let entities = async |node: &Node| {
        node.sharding().region_state("bell").await.expect("it was started").entities()
    };
    assert_eq!(entities(&first).await + entities(&second).await, 0);
    let twice = ["stop-shards", "bell", "3", "3", "--yes", "--timeout", "60s", "--json"];
    let (code, answer, errors) = tool(&socket, &twice).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!(json(&answer)["stopped"], 1);
    let (code, _, errors) = tool(&socket, &["stop-shards", "bell", "5000", "--yes"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("there is no 5000"), "{errors}");
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn down_removes_a_member_and_names_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, socket, _), (second, _, _)] = pair(&dir).await;
    let (me, address) = (second.cluster().me(), second.addresses()[0].to_string());
    let at = address.split("/p2p/").next().expect("a part");
    let (code, _, errors) = tool(&socket, &["down", "10.0.0.1:1", "--yes"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("`ostraca members` lists"), "{errors}");
    let host_port = at.replace("/ip4/", "").replace("/tcp/", ":");
    let (code, answer, errors) = tool(&socket, &["down", &host_port, "--yes"]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.starts_with(&format!("{me} at {at} was declared dead")), "{answer}");
    eventually("it is removed", async || first.cluster().members().len() == 1).await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepare_shutdown_freezes_the_cluster() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    assert_eq!(tool(&socket, &["prepare-shutdown"]).await.0, 2, "it needs --yes");
    let (code, answer, errors) = tool(&socket, &["prepare-shutdown", "--yes"]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.contains("stop all nodes now"), "{answer}");
    let members = tool(&socket, &["members"]).await.1;
    assert!(members.contains("the cluster prepares to stop"), "{members}");
    node.stop().await;
}

#[test]
fn leave_ends_the_asked_node_with_exit_code_0() {
    let (_dir, file) = settings();
    let config = file.to_str().expect("UTF-8");
    let mut node = start(&file);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    let (code, answer, errors) = ended(&run(&["leave", "--config", config]));
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.contains(" was asked to leave"), "{answer}");
    node.tells(&["node.ended"]);
    assert!(node.child.wait().expect("our child process").success());
}

#[test]
fn health_exits_with_0_or_1() {
    let (dir, file) = settings();
    let socket = dir.path().join("data/control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let health =
        |arguments: &[&str]| ended(&run(&[&["health", "--socket", socket], arguments].concat()));
    let (code, answer, errors) = health(&["--json"]);
    assert_eq!((code, &json(&answer)["live"]), (1, &false.into()), "{errors}");
    let expected = "the node is not known to be live: there is no control socket";
    assert!(errors.contains(expected), "{errors}");

    let mut node = start(&file);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    assert_eq!(health(&["--live"]).0, 0);
    let (code, answer, errors) = health(&["--ready", "--timeout", "30s"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.contains(" is ready: Up in "), "{answer}");
    let found = json(&health(&["--json", "--timeout", "30s"]).1);
    assert_eq!((&found["live"], &found["ready"]), (&true.into(), &true.into()), "{found}");

    node.signal(Signal::KILL);
    node.child.wait().expect("our child process");
    assert_eq!((health(&["--live"]).0, health(&[]).0), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_of_a_stopping_node_is_live_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let mut config = Config::default();
    config.management.control_socket = Some(path.clone());
    let first = PhaseSettings { timeout: SOON }; // the test ends it
    config.shutdown.phases.insert(Phase::BeforeServiceUnbind, first);
    let node = Node::start(config).await.expect("it starts");
    let socket = path.to_str().expect("UTF-8");
    assert_eq!(tool(socket, &["health", "--timeout", "60s"]).await.0, 0);
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let holds = || async move {
        let _ = released.await; // fails when the test drops the sender
    };
    node.shutdown().add_task(Phase::BeforeServiceUnbind, "holds", holds).expect("in time");
    node.shutdown().begin(Reason::Asked);
    let (code, _, errors) = tool(socket, &["health", "--ready"]).await;
    assert_eq!(code, 1, "{errors}");
    let expected = "is not ready: the node is stopping: the program requested the shutdown";
    assert!(errors.contains(expected), "{errors}");
    assert_eq!(tool(socket, &["health", "--live"]).await.0, 0);
    drop(release);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_names_the_types_that_are_not_registered() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let mut config = Config::default();
    config.management.control_socket = Some(path.clone());
    config.sharding.healthcheck.names = vec![EntityType::new("absent").expect("a name")];
    let node = Node::start(config).await.expect("it starts");
    node.cluster().wait_until_up().await.expect("it founds a cluster");
    let socket = path.to_str().expect("UTF-8");
    let (code, _, errors) = tool(socket, &["health", "--timeout", "100ms"]).await;
    assert_eq!(code, 1, "{errors}");
    let expected = "is not ready: no coordinator has registered the region of absent on this node";
    assert!(errors.contains(expected), "{errors}");
    node.stop().await;
}

/// The node joins while the check waits, about 200 ms after it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_reports_the_status_after_the_wait() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, _) = node_at(&dir).await;
    let mut config = Config::default();
    config.cluster.wait_for_join = true;
    let path = dir.path().join("other");
    config.management.control_socket = Some(path.clone());
    let second = Node::start(config).await.expect("it starts");
    let mut client = Client::connect(&path).await.expect("it listens");
    let (request, seed) =
        (AdminRequest::Health { within_ms: 60_000 }, first.addresses()[0].clone());
    let (answer, ()) = tokio::join!(client.ask(&request, SOON), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        second.cluster().join(&seed).await.expect("it is no member yet");
    });
    let Ok(AdminResponse::Health(health)) = answer else { panic!("{answer:?}") };
    assert_eq!((health.ready, health.status.as_deref()), (Some(true), Some("Up")), "{health:?}");
    assert!(health.cluster.is_some(), "{health:?}");
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_of_a_node_outside_a_cluster_is_live_not_ready() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::default();
    config.cluster.wait_for_join = true;
    config.management.control_socket = Some(dir.path().join("s"));
    let node = Node::start(config).await.expect("it starts");
    let socket = dir.path().join("s");
    let socket = socket.to_str().expect("UTF-8");
    assert_eq!(tool(socket, &["health", "--live"]).await.0, 0);
    let (code, _, errors) = tool(socket, &["health", "--ready", "--timeout", "100ms"]).await;
    assert_eq!(code, 1);
    assert!(errors.contains(" is not ready: "), "{errors}");
    node.stop().await;
}
