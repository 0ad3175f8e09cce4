//! Tests with nodes as processes of the operating system, which are killed and paused, and whose
//! hosts vanish. Each process is another run of this test program, see [`served`].
#![expect(clippy::print_stderr, reason = "a run reports durations and skipped parts")]
#![expect(clippy::print_stdout, reason = "a process reports to its test on standard output")]
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "`Edit::increment` is not general in the edit's lifetime, the closure is"
)]

#[path = "../fixtures/namespaces.rs"]
mod namespaces;
#[path = "../fixtures/waits.rs"]
mod waits;

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
mod signals;
