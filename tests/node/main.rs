//! Tests of the Replicator's handle: several nodes in one process, with the real driver, over a
//! network in memory.

#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "`Edit::increment` is not general in the edit's lifetime, the closure is"
)]

mod cancelling;
mod cluster;
mod disks;
mod failures;
mod levels;
mod load;
mod network;
mod receiving;
mod stopping;
mod subscriptions;
#[path = "../fixtures/waits.rs"]
mod waits;
mod wire;
