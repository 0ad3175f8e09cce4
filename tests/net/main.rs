//! Nodes on real sockets: who may talk, what strangers can do (nothing), and what arrives.
//! spec/transport.md
#![expect(clippy::print_stderr, reason = "a failed run says how to repeat it")]

/// The transport of all nodes here; `stock.rs` has the same tests with the other one.
const TRANSPORT: ostraca::net::config::Stack = ostraca::net::config::Stack::Own;

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
