//! Cluster sharding: entities by id, grouped into shards, each with one home that may move.
//!
//! Protocol: docs/protocol/sharding.md decides the homes, docs/protocol/message-order.md carries
//! the messages. `machines`, `coordinator` and `region` are state machines without I/O: messages of
//! peers are inputs, and messages to them are outputs. `runtime`, `shard` and `run` execute
//! entities, and `gate` orders their messages. The public interface is in `entity`, `context`,
//! `entity_ref`, `shard_region`, `reply` and `config`.

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
mod panics;
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
pub(crate) use panics::forget_panic;
pub(crate) use run::yield_now;
