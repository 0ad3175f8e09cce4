//! The configuration machine under every schedule that chance finds, and under the worst ones.
//!
//! Real [`Epochs`](ostraca_ddata::replicator::epoch::Epochs) machines with a tiny parent each:
//! tokens for acked writes (merge is union), one guarded cell, one promised term. After every
//! step the checks A, BC, D1 and D2 of spec/reference/epochs.md §2 hold; after the faults stop,
//! everything serves again (E). Every canary must be caught, by seeds or by a trace that follows
//! from its rule; without the bug the same trace is safe.
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
