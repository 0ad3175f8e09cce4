//! The tests of nodes, lanes and clients over real sockets with `net.transport = "stock"`.
#![expect(clippy::print_stderr, reason = "a failed run says how to repeat it")]

/// The transport of all nodes here; `main.rs` has the same tests with the other one.
const TRANSPORT: ostraca::net::config::Stack = ostraca::net::config::Stack::Stock;

mod admission;
mod flapping;
mod hub;
mod identity;
mod nodes;
mod proxy;
mod secrets;
mod strangers;
mod swarm;
