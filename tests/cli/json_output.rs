//! `--json`: every command that prints offers it, and the forms of answers that no other test reads.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use ostraca::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::asking::{ended, json, node_at};
use crate::orders::{pair, ring, tool};
use crate::waits::{SOON, eventually};
use crate::{ostraca, run};

/// Commands that print a log, or a script for a shell.
const NO_ANSWER: [&str; 2] = ["node", "completions"];

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let Some((_, listed)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !matches!(*name, "" | "help")).map(str::to_owned).collect()
}

#[test]
fn every_command_that_prints_offers_json() {
    let mut open = vec![Vec::<String>::new()];
    let mut found = Vec::new();
    while let Some(command) = open.pop() {
        let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["-h"]).collect();
        let (code, help, _) = ended(&run(&arguments));
        assert_eq!(code, 0, "{command:?}");
        let below = subcommands(&help);
        if below.is_empty() {
            let name = command.join(" ");
            let expected = !NO_ANSWER.contains(&name.as_str());
            assert_eq!(help.contains("--json"), expected, "{name}: {help}");
            found.push(name);
        }
        open.extend(below.into_iter().map(|name| [command.clone(), vec![name]].concat()));
    }
    for command in ["members", "explain node", "data watch", "node", "completions"] {
        assert!(found.iter().any(|it| it == command), "{command}: {found:?}");
    }
    assert!(found.len() >= 24, "{found:?}");
}

/// A command that prints an object per line until it is interrupted.
struct Watching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(arguments: &[&str], socket: &str) -> Self {
        let mut command = ostraca();
        command.args(arguments).args(["--json", "--socket", socket]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> Value {
        json(&self.lines.next().expect("a line").expect("UTF-8"))
    }

    fn end(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("our child process");
        assert!(self.child.wait().expect("our child process").success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_list_and_watch_print_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let (node, socket) = node_at(&dir).await;
    let (data, key) = (node.replicator(), Key::<PNCounter>::new("hits"));
    let mut watching = Watching::start(&["data", "watch", "hits"], &socket);
    assert_eq!(watching.next()["value"], Value::Null);
    data.update(&key, WriteLocal, |hits| hits.add(2)).await.expect("made");
    let expected = json("{\"key\":\"hits\",\"type\":\"pn-counter\",\"value\":2}");
    assert_eq!(watching.next(), expected);
    watching.end();
    data.update(&Key::<PNCounter>::new("other"), WriteLocal, |it| it.add(1)).await.expect("made");
    for (list, expected) in
        [(&["data", "list"][..], "[\"hits\",\"other\"]"), (&["data", "list", "h"], "[\"hits\"]")]
    {
        let (code, answer, errors) = tool(&socket, &[list, &["--json"]].concat()).await;
        assert_eq!((code, json(&answer)), (0, json(expected)), "{errors}");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_watch_prints_an_object_for_each_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, socket, bells), (second, _, _)] = pair(&dir).await;
    let mut watching = Watching::start(&["shards", "bell", "--watch"], &socket);
    let entities = |all: &Value| -> u64 {
        let regions = all["regions"].as_array().expect("regions").iter();
        let shards = regions.flat_map(|region| region["shards"].as_array().expect("shards"));
        shards.map(|shard| shard[1].as_u64().expect("a number")).sum()
    };
    let before = watching.next();
    assert_eq!((&before["entity_type"], entities(&before)), (&"bell".into(), 0), "{before}");
    ring(&bells).await;
    let give_up = Instant::now() + SOON;
    while entities(&watching.next()) < 20 {
        assert!(Instant::now() < give_up, "the bells are never shown");
    }
    watching.end();
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_print_json() {
    let dir = tempfile::tempdir().expect("a directory");
    let [(first, socket, _), (second, _, _)] = pair(&dir).await;
    let order = async |arguments: &[&str]| {
        let (code, answer, errors) = tool(&socket, &[arguments, &["--json"]].concat()).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        json(&answer)
    };
    let named = |ordered: &str, node: &Node| {
        let address = node.addresses()[0].to_string();
        let address = address.split("/p2p/").next().expect("a part").to_owned();
        let node = node.cluster().me().to_string();
        serde_json::json!({ "ordered": ordered, "node": node, "address": address })
    };
    let rebalanced = serde_json::json!({ "ordered": "rebalance", "entity_type": "bell" });
    assert_eq!(order(&["rebalance", "bell"]).await, rebalanced);
    let other = second.cluster().me().to_string();
    assert_eq!(order(&["down", &other, "--yes"]).await, named("down", &second));
    eventually("it is removed", async || first.cluster().members().len() == 1).await;
    assert_eq!(order(&["leave"]).await, named("leave", &first));
    first.stop().await;

    let dir = tempfile::tempdir().expect("a directory");
    let (last, socket) = node_at(&dir).await;
    let (code, answer, errors) = tool(&socket, &["prepare-shutdown", "--yes", "--json"]).await;
    let frozen = json("{\"ordered\":\"prepare-shutdown\"}");
    assert_eq!((code, json(&answer)), (0, frozen), "{errors}");
    last.stop().await;
}
