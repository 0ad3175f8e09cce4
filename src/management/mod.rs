//! Management: what an operator asks a running node, with the `ostraca` tool or with a program.
//!
//! A node answers by its public handles: who belongs to the cluster, what a key of replicated data
//! holds, where shards live. It tells nothing that its programs could not, and no secret. Knows no
//! protocol of the cluster.
//!
//! | file | is |
//! |---|---|
//! | [`wire`], [`item`], [`verbatim`] | requests, answers and values, and their bytes |
//! | [`server`], `answers`, `orders`, [`seats`] | a node's side, over any stream |
//! | `access` | which requests a caller may make |
//! | [`client`] | a tool's side, over any stream |
//! | [`socket`], [`config`] | the UNIX socket of a node, and where it is |

mod access;
mod answers;
pub mod client;
pub mod config;
pub mod item;
mod orders;
pub mod seats;
pub mod server;
pub mod socket;
pub mod verbatim;
pub mod wire;

pub use self::answers::Handles;
