//! The Replicator and its parts (spec/replicated-data.md).

pub mod epoch;
pub mod quorum;
