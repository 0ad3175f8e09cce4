//! Signals: a node in a process of its own, which is this program once more.

use std::process::Stdio;

use ostraca::prelude::*;
use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::fixture::{Plan, all_up, drop_all, events_until, soon};

/// Where the process finds the cluster; set for the process only.
const SEED: &str = "OSTRACA_TEST_SEED";

type Told = Lines<BufReader<ChildStdout>>;

#[expect(clippy::print_stdout, reason = "a process tells its test what it does")]
fn tell(what: &str) {
    println!("\ntold {what}");
}

/// What the process does: it joins, and runs until a signal comes. The second signal finds it in
/// a task that never ends.
async fn run(seed: &str) {
    let mut config = Config::default();
    config.cluster.wait_for_join = true;
    let node = Node::start(config).await.expect("it starts");
    node.cluster().join(&seed.parse().expect("an address")).await.expect("an order");
    node.cluster().up().await.expect("it is let in");
    let hangs = || async {
        tell("stopping");
        std::future::pending::<()>().await;
    };
    if std::env::args().any(|argument| argument.ends_with("the_second_signal_ends_it_at_once")) {
        node.shutdown().add_task(Phase::ServiceStop, "hangs", hangs).expect("in time");
    }
    tell(&format!("up {}", node.cluster().me()));
    let reason = node.run_until_signal().await.expect("signals can be handled");
    assert_eq!(reason, Reason::Signal);
}

/// This program once more, as the test of that name.
fn process(test: &str, seed: &Multiaddr) -> (Child, Told) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", &format!("signals::{test}"), "--nocapture"])
        .env(SEED, seed.to_string())
        .stdin(Stdio::null())
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
            let line = lines.next_line().await.expect("it speaks UTF-8").expect("it runs");
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
        return run(&seed).await;
    }
    let plan = Plan::with_seeds(1);
    let nodes = plan.start().await;
    for which in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut events = nodes[0].cluster().events();
        let test = "the_first_signal_makes_a_node_leave_in_order";
        let (mut child, mut lines) = process(test, &plan.seeds[0]);
        let who = told(&mut lines, "up").await;
        signal(&child, which);
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
        return run(&seed).await;
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
