//! Cluster sharding: entities by id, grouped into shards, each with one home that may move.
//!
//! Protocol: docs/protocol/sharding.md decides the homes, docs/protocol/message-order.md carries
//! the messages. `machines`, `coordinator` and `region` are state machines without I/O: messages of
//! peers are inputs, and messages to them are outputs. `runtime`, `shard` and `activation_task`
//! execute entities, and `gate` orders their messages. The public interface is in `entity`,
//! `context`, `entity_ref`, `shard_region`, `reply` and `config`.

pub mod activation;
mod activation_task;
mod active_entities;
pub mod agreed_settings;
pub mod allocation;
mod ask_cycles;
mod batch;
mod callers;
pub mod config;
pub mod context;
pub mod coordinator;
pub mod dead_letters;
pub mod decision_history;
pub mod entity;
pub mod entity_ref;
mod entity_table;
mod envelope;
pub mod explanation;
pub mod extractor;
pub mod fault_injection;
pub mod fencing;
mod frame;
mod full_mailboxes;
pub mod gate;
mod gate_effects;
mod handler_guard;
pub mod home;
mod id_hash;
pub mod ids;
pub mod installed;
mod instance;
mod loss_counter;
pub mod machines;
pub mod mailbox;
mod panics;
pub mod passivation;
mod passivation_tracker;
mod payload;
pub mod pending_asks;
pub mod polls;
pub mod region;
pub mod region_handle;
mod removed_senders;
pub mod repeat;
pub mod reply;
mod reply_path;
mod runtime;
mod scope;
mod send_error;
mod shard;
pub mod shard_region;
mod shard_stage;
mod slow_decisions;
mod slow_handlers;
mod state_transfer;
pub mod store;
pub mod stray;
mod timeouts;
pub mod timers;
mod tracked;
mod types;
mod waiting_shards;
pub mod wire;

pub(crate) use frame::is_answer;
pub(crate) use panics::forget_panic;
