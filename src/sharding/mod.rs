//! Cluster sharding: entities by id, grouped into shards, each with one home that moves
//! (spec/sharding.md, spec/safety.md §2, §3, §5).
//!
//! Knows nothing of sockets: what peers say arrives as inputs, what they are told leaves as
//! outputs or down a lane.

mod actives;
pub mod agreed;
pub mod allocation;
mod ask_cycles;
pub mod asks;
mod batch;
pub mod bug;
pub mod burst;
mod callers;
pub mod config;
pub mod context;
pub mod coordinator;
mod crowded;
pub mod dead_letters;
pub mod entity;
pub mod entity_ref;
pub mod explain;
pub mod extractor;
pub mod fencing;
mod frame;
pub mod gate;
mod handover;
pub mod home;
pub mod hosting;
mod id_hash;
pub mod ids;
pub mod installed;
mod instance;
mod letter;
mod linger;
pub mod machines;
pub mod mailbox;
mod moved;
mod pace;
mod passivating;
pub mod passivation;
mod payload;
pub mod polls;
pub mod region;
pub mod remembered;
pub mod repeat;
pub mod reply;
mod run;
mod runtime;
mod scope;
mod shard;
pub mod shard_region;
mod slow_handlers;
pub mod store;
pub mod stray;
mod tenancy;
mod tenants;
mod timeouts;
pub mod timers;
mod tracked;
mod types;
pub mod wire;

pub(crate) use frame::is_answer;
pub(crate) use run::{forget_panic, yield_now};
