//! Management: requests of operators to a running node, sent by the `ostraca` tool or by a program.
//!
//! A node answers through its public handles: cluster members, replicated data, placement of
//! shards. An answer contains nothing that a program with these handles could not read, and no
//! secret. The module implements no cluster protocol.
//!
//! | file | contents |
//! |---|---|
//! | [`wire`], [`verbatim`] | requests, answers and values, and their encoding |
//! | [`server`], `answers`, `orders`, [`connection_slots`] | the node's side, over any stream |
//! | `access` | the requests that a caller may make |
//! | [`client`] | the tool's side, over any stream |
//! | [`socket`], [`config`] | the UNIX socket of a node and its path |

mod access;
mod answers;
pub mod client;
pub mod config;
pub mod connection_slots;
mod orders;
pub mod server;
pub mod socket;
pub mod verbatim;
pub mod wire;

pub use self::answers::Handles;
