//! Sharding's machines together: every order of every step, and the real Replicator below them.

mod cluster;
mod coverage;
mod entities;
mod moves;
mod nodes;
mod stack;
#[path = "../cluster/whole/mod.rs"]
mod whole;
