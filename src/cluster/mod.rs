//! Membership: who belongs to the cluster, who is reachable, who leads, who goes
//! (spec/membership.md, spec/safety.md §1, §4, §6).
//!
//! Knows nothing of sockets, nor of sharding: what peers say and what the transport notices
//! arrive as inputs.

pub mod bug;
pub mod config;
pub mod downing;
pub mod events;
pub mod failure_detector;
pub mod gossip;
pub mod leader;
pub mod lease;
pub mod member;
pub mod membership;
pub mod reachability;
pub mod ring;
pub mod singleton;
pub mod wire;
