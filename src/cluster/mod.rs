//! Membership of one cluster: gossip of the members' states, failure detection, the leader,
//! downing, hosting leases and singletons. Rules: docs/protocol/membership.md,
//! docs/protocol/leases.md.
//!
//! The modules use neither sockets nor sharding. Messages of peers and events of the transport
//! arrive as inputs of state machines.

pub mod config;
pub mod downing;
pub mod events;
pub mod failure_detector;
pub mod fault_injection;
pub mod gossip;
pub mod leader;
pub mod lease;
pub mod member;
pub mod member_order;
pub mod membership;
pub mod name_set;
pub mod reachability;
pub mod singleton;
pub mod wire;
