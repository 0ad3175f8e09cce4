//! Tests of the gate: directed tests of single decisions, and loom models of its lock.
//! `tests/sharding/order` explores all schedules of a few gates.

mod directed;
mod threads;
