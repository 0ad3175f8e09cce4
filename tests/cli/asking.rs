//! Commands of the tool that read from running nodes: `ostraca node` processes, and nodes in this
//! process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use ostraca::cluster::member::Address;
use ostraca::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tempfile::TempDir;

use crate::waits::{SOON, until};
use crate::{Running, ostraca, run, said, watch};

/// Exit code, stdout and stderr of a finished command.
pub(crate) fn ended(output: &Output) -> (i32, String, String) {
    let (answer, errors) = said(output);
    (output.status.code().expect("it ended by itself"), answer, errors)
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Creates a directory with a settings file of a node whose data directory is in it.
pub(crate) fn settings() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, data) = (dir.path().join("node.toml"), dir.path().join("data"));
    let text = format!("[net]\ndata-dir = {:?}\n", data.to_str().expect("UTF-8"));
    std::fs::write(&file, text).expect("it is written");
    (dir, file)
}

pub(crate) fn start(file: &Path) -> Running {
    let mut command = ostraca();
    command.args(["node", "--log", "json", "--config"]).arg(file);
    let mut node = Running::of(command);
    watch(&node);
    node.tells(&["management.listening", "control.sock"]);
    node
}

/// The commands have time limits of seconds; the defaults would wait for 15 s and longer.
#[test]
fn paused_node_is_reported_as_paused_with_exit_code_4() {
    let (dir, file) = settings();
    let mut command = ostraca();
    command.args(["node", "--log", "json", "--config"]).arg(&file);
    let mut node = Running::of(command);
    watch(&node);
    node.tells(&["management.listening"]);
    let line = node.tells(&["node.listening"]);
    let from = line.find("/ip4/127.0.0.1/tcp/").expect("an address");
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.';
    let address: String = line[from..].chars().take_while(|c| is_part(*c)).collect();
    kill_process(Pid::from_child(&node.child), Signal::STOP).expect("our child process");

    let socket = dir.path().join("data/control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let by_socket = ["data", "get", "motd", "--socket", socket, "--timeout", "1s"];
    let by_address = ["data", "get", "motd", "--node", &address, "--timeout", "1s"];
    for arguments in [&by_socket[..], &by_address] {
        let (code, _, errors) = ended(&run(arguments));
        assert_eq!(code, 4, "{errors}");
        assert!(errors.contains("no answer from") && errors.contains("within 2s"), "{errors}");
        assert!(errors.contains("stopped (SIGSTOP, a debugger) or overloaded"), "{errors}");
        assert!(!errors.contains("secret"), "{errors}");
    }
}

#[test]
fn tool_finds_node_by_settings_across_restarts() {
    let (dir, file) = settings();
    let config = file.to_str().expect("UTF-8");
    let socket = dir.path().join("data/control.sock");
    let ask = |arguments: &[&str]| ended(&run(&[arguments, &["--config", config]].concat()));

    let (code, _, errors) = ask(&["members"]);
    assert_eq!(code, 4, "{errors}");
    assert!(errors.contains("there is no control socket at") && errors.contains("control.sock"));

    let mut node = start(&file);
    node.tells(&["cluster.member", "\"what\":\"up\""]);
    let (code, answer, errors) = ask(&["members"]);
    assert_eq!((code, errors.as_str()), (0, ""), "{answer}");
    assert!(answer.contains(": 1 member, all have seen this"), "{answer}");
    assert!(answer.contains(".1: replicated data on 1, decided by 1 voters"), "{answer}");
    assert!(answer.contains("  Up  ") && answer.contains("leads, asked"), "{answer}");
    let members = json(&ask(&["members", "--json"]).1);
    assert_eq!(members["members"][0]["status"], "Up");
    assert_eq!(members["members"][0]["node"], members["me"]);

    assert_eq!(ask(&["data", "list"]), (0, String::new(), String::new()));
    assert_eq!(ask(&["data", "set", "motd", "hello"]), (0, String::new(), String::new()));
    let limits = ["data", "set", "limits", "{\"orders\":[1,-2]}", "--majority"];
    assert_eq!(ask(&limits), (0, String::new(), String::new()));
    let get = ask(&["data", "get", "motd"]);
    assert_eq!(get, (0, "motd: lww-register\n  \"hello\"\n".to_owned(), String::new()));
    let get = json(&ask(&["data", "get", "limits", "--json", "--majority"]).1);
    assert_eq!(
        get,
        json("{\"key\":\"limits\",\"type\":\"lww-register\",\"value\":{\"orders\":[1,-2]}}")
    );
    assert_eq!(ask(&["data", "list"]).1, "limits\nmotd\n");
    assert_eq!(ask(&["data", "list", "mo"]).1, "motd\n");

    node.signal(Signal::KILL);
    node.child.wait().expect("our child process");
    let (code, _, errors) = ask(&["members"]);
    assert_eq!(code, 4);
    assert!(errors.contains("its node has ended or runs on another host"), "{errors}");
    assert!(socket.exists(), "a killed node leaves its socket");

    let mut again = start(&file);
    let until = Instant::now() + SOON;
    loop {
        let (code, answer, _) = ask(&["members"]);
        assert_eq!(code, 0, "the stale socket was replaced");
        if answer.contains(": 1 member") {
            break;
        }
        assert!(Instant::now() < until, "the only member goes on: {answer}");
    }
    again.signal(Signal::TERM);
    again.tells(&["node.ended"]);
    assert!(again.child.wait().expect("our child process").success());
    assert!(!socket.exists(), "a stopped node removes its socket");
}

/// Starts a node in this process with its control socket in `dir`.
pub(crate) async fn node_at(dir: &TempDir) -> (Node, String) {
    let socket = dir.path().join("s");
    let mut config = Config::default();
    config.management.control_socket = Some(socket.clone());
    let node = Node::start(config).await.expect("it starts");
    node.cluster().wait_until_up().await.expect("it founds a cluster");
    (node, socket.to_str().expect("UTF-8").to_owned())
}

#[derive(Serialize, Deserialize)]
struct Seat {
    row: u8,
    taken_by: Option<String>,
}

async fn fill(data: &Replicator) {
    let edit = WriteLocal;
    let online = Key::<ORSet<String>>::new("online");
    data.update(&online, edit, |set| {
        set.insert("bob")?;
        set.insert("alice")
    })
    .await
    .expect("made");
    let hits = Key::<PNCounter>::new("hits");
    data.update(&hits, edit, |hits| hits.add(-3)).await.expect("made");
    let seat = Seat { row: 7, taken_by: None };
    let seats = Key::<ORMap<(u8, char), LWWRegister<Seat>>>::new("seats");
    data.update(&seats, edit, move |map| map.update(&(7, 'A'), |it| it.set(&seat)))
        .await
        .expect("made");
    let rooms = Key::<ORMultiMap<String, u32>>::new("rooms");
    data.update(&rooms, edit, |map| map.bind("lobby", &12)).await.expect("made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_get_reads_all_types_and_set_only_registers() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    fill(&node.replicator()).await;
    let ask = |arguments: &[&str]| ended(&run(&[arguments, &["--socket", &socket]].concat()));
    for (key, expected) in [
        ("online", "online: or-set, 2 elements\n  \"alice\"\n  \"bob\"\n"),
        ("hits", "hits: pn-counter\n  -3\n"),
        (
            "seats",
            "seats: or-map/lww-register, 1 entry\n  [7,\"A\"]  {\"row\":7,\"taken_by\":null}\n",
        ),
        ("rooms", "rooms: or-multi-map, 1 entry\n  \"lobby\"  [12]\n"),
    ] {
        assert_eq!(ask(&["data", "get", key]), (0, expected.to_owned(), String::new()));
    }
    for (key, says) in [
        ("online", "the key holds `or-set`, not `lww-register`; nothing was changed"),
        ("sharding/cart/homes", "keys that begin with sharding/ are the cluster's own"),
    ] {
        let (code, answer, errors) = ask(&["data", "set", key, "1"]);
        assert_eq!((code, answer.as_str()), (1, ""));
        assert!(errors.contains(says), "{errors}");
    }
    let (code, answer, errors) = ask(&["data", "get", "onlin"]);
    assert_eq!((code, answer.as_str()), (3, ""));
    let expected = "error: onlin holds nothing on this node, others may hold a value \
                    (--majority); this node holds the keys hits, online, rooms, seats\n";
    assert_eq!(errors, expected);
    let (code, _, errors) = ask(&["data", "set", "big", &"x".repeat(120_000)]);
    assert_eq!(code, 0, "{errors}");
    node.stop().await;
    assert_eq!(ask(&["data", "list"]).0, 4);
}

pub(crate) struct Bell;

impl Entity for Bell {
    type Message = Reply<()>;

    async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
        ring.send(());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_lists_placement_and_names_known_types() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let ask = |arguments: &[&str]| ended(&run(&[arguments, &["--socket", &socket]].concat()));
    let (code, _, errors) = ask(&["shards", "bell"]);
    assert_eq!(code, 3);
    assert!(errors.contains("bell was not started on this node"), "{errors}");
    assert!(errors.contains("nothing was started here"), "{errors}");
    let mut config = Config::default();
    let seed = node.addresses()[0].to_string();
    config.cluster.seeds = vec![Address::new(seed).expect("short")];
    let other = Node::start(config).await.expect("it starts");
    let mut bells = None;
    for node in [&node, &other] {
        bells = Some(node.sharding().start("bell", |_id| Bell).await.expect("it starts"));
        node.sharding().wait_until_registered("bell").await.expect("it registers");
    }
    let bells = bells.expect("it was started twice");
    for n in 0..20 {
        bells.entity(&format!("bell-{n}")).ask(|reply| reply).await.expect("it rings");
    }
    let (code, answer, errors) = ask(&["shards", "bell"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(answer.starts_with("bell: 20 entities in "), "{answer}");
    assert!(answer.contains(" shards on 2 nodes\n"), "{answer}");
    assert_eq!(answer.matches("/ip4/127.0.0.1/tcp/").count(), 2, "{answer}");
    assert_eq!(answer.matches("  coordinates\n").count(), 1, "{answer}");
    let (_, each, _) = ask(&["shards", "bell", "--each"]);
    let shards = each.lines().count() - 3; // without the summary, the empty line and the header
    assert!(answer.contains(&format!(" in {shards} shards on ")), "{each}");
    let all = json(&ask(&["shards", "bell", "--json"]).1);
    assert_eq!(all["regions"].as_array().map(Vec::len), Some(2), "{all}");
    assert_eq!(all["unanswered"].as_array().map(Vec::len), Some(0), "{all}");
    let why = ask(&["explain", "entity", "bell", "bell-3"]);
    assert_eq!((why.0, why.2.as_str()), (0, ""));
    assert!(why.1.starts_with("entity \"bell-3\" of bell is in shard "), "{}", why.1);
    let told = json(&ask(&["explain", "entity", "bell", "bell-3", "--json"]).1);
    let shard = told["shard"].to_string();
    assert_eq!(told["about"], json("{\"entity\":\"bell-3\"}"), "{told}");
    let why = ask(&["explain", "shard", "bell", &shard]).1;
    assert!(why.starts_with(&format!("shard {shard} of bell lives on ")), "{why}");
    let me = node.cluster().me().to_string();
    let why = ask(&["explain", "node", "bell", &me]).1;
    assert!(why.starts_with("node ") && why.contains(" had a part in "), "{why}");
    let (code, _, errors) = ask(&["explain", "shard", "bell", "1000"]);
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("bell has the shards 0 to 999: there is no 1000"), "{errors}");
    let (code, _, errors) = ask(&["explain", "node", "bell", "nobody"]);
    assert_eq!(code, 1);
    assert!(errors.contains("`ostraca members` lists them"), "{errors}");
    let (code, _, errors) = ask(&["shards", "ball"]);
    assert_eq!(code, 3);
    assert!(errors.contains("started here: bell"), "{errors}");
    other.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_watched_until_ctrl_c() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let (data, key) = (node.replicator(), Key::<PNCounter>::new("hits"));
    let mut command: Command = ostraca();
    command.args(["data", "watch", "hits", "--socket", &socket]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("a line").expect("UTF-8");
    assert!(next().ends_with("Z  holds nothing"));
    for total in [2, 4] {
        data.update(&key, WriteLocal, |hits| hits.add(2)).await.expect("made");
        let line = next();
        assert!(line.ends_with(&format!("Z  pn-counter  {total}")), "{line}");
    }
    data.delete(&key, WriteLocal).await.expect("made");
    assert!(next().ends_with("Z  holds nothing"));
    kill_process(Pid::from_child(&child), Signal::INT).expect("our child process");
    assert!(child.wait().expect("our child process").success());
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_tool_proves_secret_and_never_joins() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, secret: &str| {
        let path = dir.path().join(name);
        let text =
            format!("[net]\ncluster-secret = \"{secret}\"\n[management]\nremote = \"all\"\n");
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let ours = file("ours.toml", &"k7".repeat(32));
    let other = file("other.toml", &"q3".repeat(32));
    let node = Node::start(Config::load(&ours).expect("settings")).await.expect("it starts");
    node.cluster().wait_until_up().await.expect("it founds");
    let at = node.addresses()[0].to_string();
    let ask = async |arguments: &[&str], config: &str| {
        let arguments = [arguments, &["--node", &at, "--config", config]].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let asked = tokio::task::spawn_blocking(move || {
            run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        ended(&asked.await.expect("no panic"))
    };
    let (code, _, errors) = ask(&["data", "set", "motd", "hello"], &ours).await;
    assert_eq!(code, 0, "{errors}");
    let key = Key::<LWWRegister<String>>::new("motd");
    let held = node.replicator().get(&key, ReadLocal).await.expect("read").expect("set");
    assert_eq!(held.get().expect("text"), Some("hello".to_owned()));
    let (code, answer, errors) = ask(&["members"], &ours).await;
    assert_eq!(code, 0, "{errors}");
    assert!(
        answer.contains(": 1 member, all have seen this"),
        "the tool is not a member: {answer}"
    );
    let (code, answer, errors) = ask(&["members"], &other).await;
    assert_eq!((code, answer.as_str()), (1, ""), "{errors}");
    assert!(errors.contains("secret"), "{errors}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_with_the_client_secret_reads_members_and_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let [cluster, client] =
        [("cluster", "k7"), ("client", "q3")].map(|(name, digits)| file(name, &digits.repeat(32)));
    let settings =
        format!("[net]\ncluster-secret-file = {cluster:?}\nclient-secret-file = {client:?}\n");
    let of_node = file("node.toml", &settings);
    let of_tool = file("tool.toml", &format!("[net]\nclient-secret-file = {client:?}\n"));
    let of_cheat = file("cheat.toml", &format!("[net]\ncluster-secret-file = {client:?}\n"));
    let node = Node::start(Config::load(&of_node).expect("settings")).await.expect("it starts");
    node.cluster().wait_until_up().await.expect("it founds");
    let at = node.addresses()[0].to_string();
    let ask = async |arguments: &[&str], config: &str| {
        let arguments = [arguments, &["--node", &at, "--config", config]].concat();
        let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
        let asked = tokio::task::spawn_blocking(move || {
            run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        });
        ended(&asked.await.expect("no panic"))
    };
    let (code, answer, errors) = ask(&["members"], &of_tool).await;
    assert_eq!(code, 0, "{errors}");
    assert!(answer.contains(": 1 member, all have seen this"), "{answer}");
    let (code, _, errors) = ask(&["data", "get", "motd"], &of_tool).await;
    assert!(!errors.contains("secret"), "the node admitted it: {code}, {errors}");
    let (code, answer, errors) = ask(&["members"], &of_cheat).await;
    assert_eq!((code, answer.as_str()), (1, ""), "{errors}");
    assert!(errors.contains("secret"), "{errors}");
    node.stop().await;
}

#[test]
fn invalid_argument_error_names_valid_ones() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, socket) = (dir.path().join("file"), dir.path().join("none"));
    std::fs::write(&file, "no socket").expect("it is written");
    let [file, none] = [&file, &socket].map(|path| path.to_str().expect("UTF-8").to_owned());
    for (arguments, code, says) in [
        (&["members"][..], 2, "which node? Name its settings (--config FILE)"),
        (&["health"], 2, "which node? Name its settings (--config FILE)"),
        (&["members", "--socket", &none], 4, "there is no control socket at"),
        (&["members", "--socket", &file], 4, "is not a socket"),
        (&["members", "--config", &none], 1, "none can't be read"),
        (&["members", "--config", "a", "--socket", "b"], 2, "cannot be used with"),
        (&["members", "--node", "nonsense"], 2, "write HOST:PORT, such as 10.0.0.1:4100"),
        (&["down", "x", "--socket", &none], 2, "pass --yes"),
        (&["stop-shards", "t", "--socket", &none], 2, "pass --yes"),
        (&["health", "--live", "--ready"], 2, "cannot be used with"),
        (&["members", "--log", "json"], 2, "unexpected argument '--log'"),
        (&["data", "get", "k", "--timeout", "soon", "--socket", &none], 2, "invalid value 'soon'"),
        (&["data", "get", "k", "--timeout", "61s", "--socket", &none], 2, "must be 1ms to 60s"),
        (&["data", "get", "k", "--timeout", "0s", "--socket", &none], 2, "must be 1ms to 60s"),
        (&["members", "--timeout", "0s", "--socket", &none], 2, "must be 1ms to 60s"),
        (&["health", "--timeout", "999us", "--socket", &none], 2, "must be 1ms to 60s"),
        (&["drain", "--timeout", "0s", "--socket", &none], 2, "must be 1ms to 60s"),
        (&["data", "set", "k"], 2, "<VALUE>"),
        (&["data", "set", "", "v", "--socket", &none], 2, "a value is required for '<KEY>'"),
        (&["data", "get", "", "--socket", &none], 2, "a value is required for '<KEY>'"),
        (&["shards"], 2, "<TYPE>"),
    ] {
        let (found, answer, errors) = ended(&run(arguments));
        assert_eq!((found, answer.as_str()), (code, ""), "{errors}");
        assert!(errors.contains(says), "{arguments:?}: {errors}");
    }
}

#[test]
fn every_command_has_an_example_in_its_help() {
    for command in [
        &["node"][..],
        &["config"],
        &["secret"],
        &["sim"],
        &["members"],
        &["shards"],
        &["health"],
        &["leave"],
        &["drain"],
        &["down"],
        &["stop-shards"],
        &["rebalance"],
        &["prepare-shutdown"],
        &["completions"],
        &["man"],
        &["explain", "shard"],
        &["explain", "entity"],
        &["explain", "node"],
        &["data", "get"],
        &["data", "set"],
        &["data", "delete"],
        &["data", "watch"],
        &["data", "list"],
    ] {
        let (code, answer, _) = ended(&run(&[command, &["--help"]].concat()));
        assert_eq!(code, 0);
        let example = format!("  ostraca {} ", command.join(" "));
        assert!(answer.contains("Examples:\n") && answer.contains(&example), "{answer}");
    }
    let (_, answer, _) = ended(&run(&["--help"]));
    assert!(answer.contains("Exit codes:\n  0  success\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_of_a_type_started_elsewhere_names_its_hosts() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let mut config = Config::default();
    config.cluster.seeds = vec![Address::new(node.addresses()[0].to_string()).expect("short")];
    let other = Node::start(config).await.expect("it starts");
    let _bells = other.sharding().start("bell", |_id| Bell).await.expect("it starts");
    let at = other.addresses()[0].to_string();
    let at = at.split("/p2p/").next().expect("a part");
    let expected = format!("; hosted by the nodes at {at}: ask one of them (--node {at})");
    let errors = async || {
        let (code, _, errors) = ended(&run(&["shards", "bell", "--socket", &socket]));
        assert_eq!(code, 3, "{errors}");
        assert!(errors.contains("bell was not started on this node"), "{errors}");
        errors
    };
    until("gossip names the host", errors, |errors| errors.contains(&expected)).await;
    other.stop().await;
    node.stop().await;
}
