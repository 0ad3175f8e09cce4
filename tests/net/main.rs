//! Nodes on real sockets: who may talk, what strangers can do (nothing), and what arrives.
//! spec/transport.md
#![expect(clippy::print_stderr, reason = "a failed run says how to repeat it")]

mod admission;
mod flapping;
mod hub;
mod identity;
mod lanes;
mod muxer;
mod nodes;
mod noise;
mod openings;
mod proxy;
mod secrets;
mod strangers;
mod swarm;
mod talk;

use std::process::Command;

use ostraca::net::config::Stack;

/// If this variable is set, all nodes of these tests have `net.transport = "stock"`.
const STOCK: &str = "TEST_STOCK_TRANSPORT";

/// Tests of nodes, lanes and clients over real sockets, whatever the transport.
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

/// The transport of all nodes here.
fn transport() -> Stack {
    if std::env::var_os(STOCK).is_some() { Stack::Stock } else { Stack::Own }
}

/// A second program with these tests would take a minute to build: this one runs them again.
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
