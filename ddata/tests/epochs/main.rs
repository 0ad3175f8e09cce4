//! Explores the configuration machine: random schedules, all schedules of small cases, and the
//! shortest bad ones.
//!
//! Each node is a real [`Epochs`](ostraca_ddata::replicator::epoch::Epochs) machine with a small
//! parent that holds tokens for acknowledged writes (merge is union), one guarded value and one
//! promised term. After every step the properties A, BC, D1 and D2 of
//! docs/protocol/configurations.md#properties must hold; after the faults stop, all members must
//! serve again (E). Every planted fault must be caught, by seeds or by a trace that follows from
//! its rule; without the fault the same trace is safe.
//!
//! Replay a seed: `OSTRACA_SEED=<n> cargo test -p ostraca-ddata --all-features --test epochs`.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that panics and prints")]

mod check;
mod exhaustive;
mod explore;
mod forged;
mod parent;
mod scenarios;
mod world;
