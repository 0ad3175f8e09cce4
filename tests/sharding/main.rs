//! Sharding's machines together: every order of every step, and the real Replicator below them.

mod cluster;
mod entities;
mod moves;
