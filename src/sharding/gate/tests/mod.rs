//! Tests of the gate: exhaustive exploration with fault injection, directed tests of single
//! decisions, and loom models of its lock.

mod directed;
mod exploration;
mod threads;
mod world;
