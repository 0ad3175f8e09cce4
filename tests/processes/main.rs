//! Nodes as processes of the operating system: killed, paused, and on hosts that vanish.
//! "To be shown" of spec/transport.md, spec/membership.md and
//! spec/sharding.md.
#![expect(clippy::print_stderr, reason = "a run says what it took, and what it skips")]
#![expect(clippy::print_stdout, reason = "a process tells its test what it sees")]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "`Edit::increment` is not general in the edit's lifetime, the closure is"
)]

#[path = "../fixtures/namespaces.rs"]
mod namespaces;

mod cluster;
mod counters;
mod deaths;
mod entities;
mod hosts;
mod lease;
mod member;
mod outside;
mod peer;
mod replicas;
mod served;
