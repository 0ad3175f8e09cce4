//! Cluster sharding: entities by id, grouped into shards, each with one home that moves
//! (spec/sharding.md, spec/safety.md §2, §3, §5).
//!
//! Knows nothing of sockets: what peers say arrives as inputs, what they are told leaves as
//! outputs or down a lane.

pub mod allocation;
pub mod bug;
pub mod config;
pub mod coordinator;
pub mod extractor;
pub mod gate;
pub mod home;
pub mod hosting;
pub mod ids;
pub mod installed;
pub mod passivation;
pub mod region;
pub mod remembered;
pub mod repeat;
pub mod store;
pub mod wire;
