//! Replicated data for Ostraca: delta-state CRDTs and a Replicator, without I/O and without async.
//!
//! Everything here is a plain struct that is told what happened and answers with what to do
//! ([`machine`]). Sockets, clocks, disks and threads belong to whoever runs it: the tokio driver
//! of the `ostraca` package, or the simulator ([`sim`], feature `sim`), in which the same code runs
//! for simulated years under every fault we could think of.
//!
//! | to | see |
//! |---|---|
//! | choose a data type | [`guide`], [`types`] |
//! | replicate keys over a cluster | [`replicator::Replicator`] |
//! | know when a write is safe | [`replicator::request::WriteConsistency`], [`replicator::quorum`] |
//! | know what a membership change does to it | [`replicator::epoch`] |
//! | simulate a protocol of one's own | [`sim`] |
//! | measure how fast changes spread | [`convergence`] |
//!
//! What is promised, and shown by the suites under `tests/`:
//!
//! - Replicas that have received the same updates hold equal state, whatever the order, loss and
//!   duplication of messages.
//! - An update acknowledged at `WriteMajority` is seen by every later `ReadMajority`, over any
//!   number of membership changes; a value that a `ReadMajority` returned is never un-seen.
//! - A superseded owner of a guarded key group is refused, and its successor has seen everything
//!   that it was ever told was written.

pub mod bug;
pub mod causal;
pub mod clock;
#[cfg(feature = "sim")]
pub mod convergence;
pub mod data;
pub mod durable;
pub mod encoded;
pub mod id;
pub mod key;
pub mod machine;
pub mod replicator;
#[cfg(feature = "sim")]
pub mod sim;
pub mod types;

/// Each data type by example: what it means, what it costs, when not to use it.
pub mod guide {
    #![doc = include_str!("../docs/types.md")]
}
