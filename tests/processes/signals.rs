//! Signals to a node whose shutdown has begun for another reason. The node is another run of this
//! test program.

use std::process::Stdio;

use ostraca::node::shutdown::PhaseSettings;
use ostraca::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::served::tell;
use crate::waits::{SOON, soon};

/// The environment variable that makes a run of this program the node.
const NODE: &str = "OSTRACA_TEST_STOPPING_NODE";

/// Runs a node that logs to standard output. Its program begins the shutdown, and one of its tasks
/// hangs for longer than the test waits.
async fn hang_in_shutdown() {
    tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).init();
    let mut config = Config::default();
    let timeout = SOON * 10;
    config.shutdown.phases.insert(Phase::ServiceStop, PhaseSettings { timeout });
    let node = Node::start(config).await.expect("it starts");
    let shutdown = node.shutdown();
    let hangs = || async {
        tell("stopping");
        std::future::pending::<()>().await;
    };
    shutdown.add_task(Phase::ServiceStop, "hangs", hangs).expect("in time");
    let run = node.run_until_signal();
    tokio::pin!(run);
    let ended = tokio::select! {
        biased; // the first poll installs the signal handlers
        ended = &mut run => ended,
        () = std::future::ready(()) => {
            shutdown.begin(Reason::Asked);
            run.await
        }
    };
    tell(&format!("ended {ended:?}"));
}

/// Waits for a line of the process that contains this text.
async fn line_with(lines: &mut Lines<BufReader<ChildStdout>>, text: &str) {
    let line = async {
        while let Some(line) = lines.next_line().await.expect("it prints UTF-8") {
            if line.contains(text) {
                return;
            }
        }
        panic!("the process ended without printing {text:?}");
    };
    let waited = tokio::time::timeout(SOON, line).await;
    assert!(waited.is_ok(), "the process does not print {text:?}");
}

fn send(child: &Child, signal: Signal) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    kill_process(id.expect("it runs"), signal).expect("it is ours");
}

/// The first signal only warns: the node stops already, and may have much to move. The second one
/// ends it.
#[tokio::test(flavor = "multi_thread")]
async fn second_signal_ends_a_shutdown_begun_otherwise() {
    if std::env::var_os(NODE).is_some() {
        return hang_in_shutdown().await;
    }
    let test = "signals::second_signal_ends_a_shutdown_begun_otherwise";
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(NODE, "1")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    line_with(&mut lines, "@ stopping").await;
    send(&child, Signal::TERM);
    line_with(&mut lines, "node.stopping").await;
    send(&child, Signal::INT);
    line_with(&mut lines, "node.impatient").await;
    let ended = soon(child.wait()).await.expect("it is ours");
    assert_eq!(ended.code(), Some(130));
}
