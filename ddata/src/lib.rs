//! Replicated data for Ostraca: delta-state CRDTs and a Replicator, without I/O and without async.

pub mod bug;
pub mod causal;
pub mod clock;
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
