//! Exit codes of `ostraca node` and the events that end it.

use std::io::{BufRead, BufReader, Lines};
use std::net::TcpListener;
use std::process::{ChildStderr, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Running, ostraca, watch};

/// A free loopback address.
fn address() -> String {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
    format!("/ip4/127.0.0.1/tcp/{}", port.expect("loopback has ports").port())
}

/// Two nodes of a cluster, the older one first, with short timeouts for failure detection.
fn pair() -> [Running; 2] {
    let seed = address();
    let start = |address: &str| {
        let mut command = ostraca();
        command
            .args(["node", "--log", "json"])
            .env("OSTRACA__CLUSTER__SEEDS", format!("[{seed:?}]"))
            .env("OSTRACA__NET__LISTEN", format!("[{address:?}]"))
            .env("OSTRACA__CLUSTER__DOWNING__STABLE_AFTER", "1s");
        let node = Running::of(command);
        watch(&node);
        node
    };
    let mut older = start(&seed);
    older.tells(&["cluster.member", "\"what\":\"up\""]);
    let mut younger = start("/ip4/127.0.0.1/tcp/0");
    younger.tells(&["ddata.installed", "\"members\":2"]);
    older.tells(&["cluster.member", "\"what\":\"up\""]);
    [older, younger]
}

/// Reads the rest of the node's log and its exit code.
fn ended(node: &mut Running) -> (String, Option<i32>) {
    let lines: Vec<String> = node.log.by_ref().map(|line| line.expect("UTF-8")).collect();
    (lines.join("\n"), node.child.wait().expect("our child process").code())
}

#[test]
fn node_stopped_by_downing_strategy_exits_with_6() {
    let [older, mut younger] = pair();
    older.signal(Signal::KILL);
    let (log, code) = ended(&mut younger);
    assert_eq!(code, Some(6), "{log}");
    assert!(log.contains("error: the downing strategy ends this side of a split"), "{log}");
}

#[test]
fn node_removed_by_others_exits_with_6() {
    let [mut older, mut younger] = pair();
    let id = Pid::from_child(&younger.child);
    kill_process(id, Signal::STOP).expect("our child process");
    older.tells(&["cluster.member", "\"what\":\"removed\""]);
    kill_process(id, Signal::CONT).expect("our child process");
    let (log, code) = ended(&mut younger);
    assert_eq!(code, Some(6), "{log}");
    older.signal(Signal::TERM);
    assert_eq!(ended(&mut older).1, Some(0));
}

#[test]
fn node_with_a_closed_log_pipe_still_exits_with_0() {
    let mut command = ostraca();
    command.arg("node").env("RUST_LOG", "trace");
    let mut node = Running::of(command);
    watch(&node);
    let first = node.log.next().expect("it logs").expect("UTF-8");
    node.log = closed(); // every later line meets a closed pipe
    node.signal(Signal::TERM); // sent once the node has started and written many log lines
    assert_eq!(node.child.wait().expect("our child process").code(), Some(0), "after {first}");
}

/// The stderr of a process that has ended.
fn closed() -> Lines<BufReader<ChildStderr>> {
    let mut child = ostraca().arg("--version").stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().expect("it starts");
    let log = child.stderr.take().expect("piped");
    child.wait().expect("our child process");
    BufReader::new(log).lines()
}
