//! Tests of nodes on real sockets: admission, resistance to strangers, and delivery of messages.
#![expect(clippy::print_stderr, reason = "a failed run prints how to repeat it")]

mod admission;
mod flapping;
mod guessing;
mod hub;
mod identity;
mod lanes;
#[path = "../fixtures/memory_log.rs"]
mod memory_log;
mod muxer;
mod nodes;
mod noise;
mod openings;
mod proxy;
mod secrets;
mod strangers;
mod swarm;
mod talk;
#[path = "../fixtures/waits.rs"]
mod waits;

use std::process::Command;

use ostraca::net::config::Stack;

/// If this variable is set, all nodes of these tests use `net.transport = "stock"`.
const STOCK: &str = "TEST_STOCK_TRANSPORT";

/// Tests of nodes, lanes and clients over real sockets, which run over both transports.
const OVER_SOCKETS: [&str; 9] = [
    "admission::",
    "flapping::",
    "hub::",
    "identity::",
    "nodes::",
    "proxy::",
    "secrets::",
    "strangers::",
    "swarm::",
];

/// Transport of all nodes in these tests.
fn transport() -> Stack {
    if std::env::var_os(STOCK).is_some() { Stack::Stock } else { Stack::Own }
}

/// Runs this program again with the other transport, because building a second one takes a minute.
#[test]
fn suite_passes_over_stock_transport() {
    if transport() == Stack::Stock {
        return;
    }
    let program = std::env::current_exe().expect("it runs");
    let mut again = Command::new(program);
    let output = again.args(OVER_SOCKETS).env(STOCK, "1").output().expect("it starts");
    let (log, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let log = String::from_utf8_lossy(log);
    assert!(output.status.success(), "{STOCK}=1 cargo test --test net: {log}\n{errors}");
    let ran = log.lines().filter(|line| line.ends_with("... ok")).count();
    assert!(ran >= 100, "{OVER_SOCKETS:?} name only {ran} tests");
}
