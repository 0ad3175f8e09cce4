//! Replicated data for Ostraca: delta-state CRDTs and a Replicator, without I/O and without async.
//!
//! Every protocol is a plain struct: a [`machine`] that consumes inputs and returns outputs to
//! execute. The caller owns sockets, clocks, disks and threads. It is the tokio driver of the
//! `ostraca` package, or the simulator ([`sim`], feature `sim`), which runs the same code for
//! simulated years under injected faults.
//!
//! | to | see |
//! |---|---|
//! | choose a data type | [`guide`], [`types`] |
//! | replicate keys over a cluster | [`replicator::Replicator`] |
//! | know when a write is safe | [`replicator::request::WriteConsistency`], [`replicator::quorum`] |
//! | know the effect of a membership change on data | [`replicator::epoch`] |
//! | simulate your own protocol | [`sim`] |
//! | measure how fast changes spread | [`convergence`] |
//!
//! Guarantees, tested by the suites under `tests/`:
//!
//! - Replicas that have received the same updates have equal states, whatever the order, loss and
//!   duplication of messages.
//! - Every later `ReadMajority` sees an update that was acknowledged at `WriteMajority`, over any
//!   number of membership changes. A value returned by one `ReadMajority` is seen by all later
//!   ones.
//! - A superseded owner of a guarded key group is refused, and its successor has seen every write
//!   that the former owner got acknowledged.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod causal;
pub mod clock;
#[cfg(feature = "sim")]
pub mod convergence;
pub mod data;
pub mod durable;
pub mod encoded;
pub mod fault_injection;
pub mod id;
pub mod key;
pub mod log_throttle;
pub mod machine;
pub mod replicator;
#[cfg(feature = "sim")]
pub mod sim;
pub mod types;

/// Each data type by example: its meaning, its costs and its limits.
pub mod guide {
    #![doc = include_str!("../docs/types.md")]
}
