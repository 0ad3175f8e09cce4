//! Signals to a node in a process of its own, which is this test program started again.

use std::process::Stdio;
use std::time::Duration;

use ostraca::node::lease::LeaseDeadline;
use ostraca::prelude::*;
use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::fixture::{Plan, all_up, drop_all, events_until};
use crate::waits::{eventually, soon};

/// The seed's address for the child process; unset in the test itself.
const SEED: &str = "OSTRACA_TEST_SEED";

type Told = Lines<BufReader<ChildStdout>>;

#[expect(clippy::print_stdout, reason = "the child process reports to its test")]
fn tell(what: &str) {
    println!("\ntold {what}");
}

/// Starts the node of a child process and joins the cluster.
async fn join(seed: &str) -> Node {
    let mut config = Config::default();
    config.cluster.wait_for_join = true;
    config.cluster.lease.heartbeat_interval = Duration::from_millis(250);
    let node = Node::start(config).await.expect("it starts");
    node.cluster().join(&seed.parse().expect("an address")).await.expect("accepted");
    node.cluster().wait_until_up().await.expect("it joins");
    node
}

/// Runs until the node stops; calls `last` and then reports the reason.
async fn run_before(node: Node, last: impl FnOnce()) {
    let me = node.cluster().me();
    let run = node.run_until_signal();
    tokio::pin!(run);
    let reason = tokio::select! {
        biased; // the first poll installs the signal handlers
        reason = &mut run => reason,
        () = std::future::ready(()) => {
            tell(&format!("up {me}"));
            run.await
        }
    };
    last();
    tell(&format!("ended {:?}", reason.expect("signals can be handled")));
}

async fn run(node: Node) {
    run_before(node, || ()).await;
}

/// Reports whether the node serves when a line arrives on stdin: a line written during a pause is
/// read as soon as the process continues.
fn tell_when_asked(lease: &LeaseDeadline) {
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    tell(&format!("woken, serves: {}", lease.serves()));
}

/// Starts this program again as a child process that runs only the given test.
fn process(test: &str, seed: &Multiaddr) -> (Child, Told) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("signals::{test}"), "--nocapture"])
        .env(SEED, seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let told = BufReader::new(child.stdout.take().expect("piped")).lines();
    (child, told)
}

async fn told(lines: &mut Told, word: &str) -> String {
    let line = async {
        loop {
            let line = lines.next_line().await.expect("it prints UTF-8").expect("it runs");
            if let Some(rest) = line.strip_prefix("told ").and_then(|line| line.strip_prefix(word))
            {
                return rest.trim().to_owned();
            }
        }
    };
    soon(line).await
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    kill_process(id.expect("it runs"), signal).expect("it is ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_signal_makes_a_node_leave_in_order() {
    if let Ok(seed) = std::env::var(SEED) {
        return run(join(&seed).await).await;
    }
    let plan = Plan::with_seeds(1);
    let nodes = plan.start().await;
    for which in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut events = nodes[0].cluster().events();
        let test = "the_first_signal_makes_a_node_leave_in_order";
        let (mut child, mut lines) = process(test, &plan.seeds[0]);
        let who = told(&mut lines, "up").await;
        signal(&child, which);
        assert_eq!(told(&mut lines, "ended").await, "Signal");
        assert!(soon(child.wait()).await.expect("it ends").success());
        let is_removal = |event: &ClusterEvent| {
            matches!(event, ClusterEvent::MemberRemoved { member, .. }
                if member.node.to_string() == who)
        };
        let seen = events_until(&mut events, is_removal).await;
        let missed = |event: &ClusterEvent| {
            matches!(event, ClusterEvent::UnreachableMember(_) | ClusterEvent::MemberDowned(_))
        };
        assert!(!seen.iter().any(missed), "{seen:?}");
        all_up(&nodes).await;
    }
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_signal_ends_it_at_once() {
    if let Ok(seed) = std::env::var(SEED) {
        let node = join(&seed).await;
        let hangs = || async {
            tell("stopping");
            std::future::pending::<()>().await;
        };
        node.shutdown().add_task(Phase::ServiceStop, "hangs", hangs).expect("in time");
        return run(node).await;
    }
    let plan = Plan::with_seeds(1);
    let nodes = plan.start().await;
    let (mut child, mut lines) = process("the_second_signal_ends_it_at_once", &plan.seeds[0]);
    told(&mut lines, "up").await;
    signal(&child, rustix::process::Signal::TERM);
    told(&mut lines, "stopping").await;
    signal(&child, rustix::process::Signal::INT);
    assert_eq!(soon(child.wait()).await.expect("it ends").code(), Some(130));
    drop_all(nodes);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_paused_node_serves_nothing_and_stops() {
    if let Ok(seed) = std::env::var(SEED) {
        let node = join(&seed).await;
        let lease = node.lease();
        eventually("it may serve", async || lease.serves()).await;
        let woken = std::thread::spawn(move || tell_when_asked(&lease));
        return run_before(node, || woken.join().expect("it told")).await;
    }
    let plan = Plan::with_seeds(1);
    let nodes = plan.start().await;
    let mut events = nodes[0].cluster().events();
    let test = "long_paused_node_serves_nothing_and_stops";
    let (mut child, mut lines) = process(test, &plan.seeds[0]);
    let who = told(&mut lines, "up").await;
    signal(&child, rustix::process::Signal::STOP);
    let is_removal = |event: &ClusterEvent| {
        matches!(event, ClusterEvent::MemberRemoved { member, .. }
            if member.node.to_string() == who)
    };
    events_until(&mut events, is_removal).await;
    let mut ask = child.stdin.take().expect("piped");
    ask.write_all(b"now\n").await.expect("a pipe holds a line");
    signal(&child, rustix::process::Signal::CONT);
    assert_eq!(told(&mut lines, "woken, serves:").await, "false");
    let reason = told(&mut lines, "ended").await;
    assert!(reason.starts_with("Membership"), "{reason}");
    assert!(soon(child.wait()).await.expect("it ends").success());
    all_up(&nodes).await;
    drop_all(nodes);
}
