//! Ostraca: sharded, stateful entities on a cluster that needs no external store.
//!
//! A service consists of **entities**, each addressed by its id. Ostraca spreads the entities over
//! the nodes of a cluster, keeps at most one live instance of each, routes every message to the
//! node that hosts its entity, and moves entities when nodes join or leave. The cluster stores its
//! own metadata as replicated data on its nodes.
//!
//! # A first entity
//!
//! An entity is a type with state, an enum of messages, and a handler:
//!
//! ```
//! use ostraca::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Default)]
//! struct Counter(i64);
//!
//! #[derive(Serialize, Deserialize)]
//! enum Command {
//!     Add(i64),
//!     Get(Reply<i64>),
//! }
//!
//! impl Entity for Counter {
//!     type Message = Command;
//!
//!     async fn handle(&mut self, command: Command, _: &mut Context<'_, Self>) {
//!         match command {
//!             Command::Add(n) => self.0 += n,
//!             Command::Get(reply) => reply.send(self.0),
//!         }
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // With no settings a node listens on loopback and founds a cluster alone.
//! let node = Node::start(Config::default()).await?;
//! let counters = node.sharding().start("counter", |_id| Counter::default()).await?;
//!
//! let alice = counters.entity("alice"); // cheap: the entity starts with its first message
//! alice.tell(Command::Add(2))?; // handled at most once, in the order sent
//! alice.tell(Command::Add(3))?;
//! assert_eq!(alice.ask(Command::Get).await?, 5);
//! # node.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! [`tell`](sharding::entity_ref::EntityRef::tell) sends a message and returns,
//! [`ask`](sharding::entity_ref::EntityRef::ask) also waits for the answer that the entity sends
//! through its [`Reply`](sharding::reply::Reply). Both work alike for local and remote entities.
//!
//! # A second node
//!
//! Run the same program on another host, with an address of the first node in
//! `config.cluster.seeds`. All nodes may have the same list. A majority of the seeds in it founds
//! the cluster, so with one seed that node founds it alone; every other node joins. Shards move to
//! a new node as soon as it has registered, and back when it leaves ([`Node::stop`]). Buffered
//! messages move along, in order, and so does the state that entities
//! [hand over](sharding::entity::Entity::export_state). When a node crashes, the state of its
//! entities is lost; they start on other nodes with a new instance.
//!
//! Nodes that listen beyond loopback need a secret (`net.cluster-secret-file`; `ostraca secret
//! --out FILE` makes one). [`Config::load`] reads a file and the environment.
//!
//! # Replicated data, with or without entities
//!
//! ```
//! use ostraca::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let node = Node::start(Config::default()).await?;
//! # node.cluster().wait_until_up().await?;
//! let online = Key::<ORSet<String>>::new("online");
//! let data = node.replicator();
//! data.update(&online, WriteMajority::within(secs(3)), |set| set.insert("alice")).await?;
//! let seen = data.get(&online, ReadMajority::within(secs(3))).await?;
//! assert!(seen.is_some_and(|set| set.contains("alice")));
//! # node.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Every later majority read sees a write that a majority acknowledged, even if nodes join or leave
//! in between. [`ddata::guide`] shows each data type by example, with its costs and when not to use
//! it.
//!
//! # Where to go on
//!
//! | to | see |
//! |---|---|
//! | start entity types, with their own settings or as a proxy | [`node::sharding::Sharding`] |
//! | supervise, passivate, set timers | [`sharding::entity::Entity`], [`sharding::context::Context`] |
//! | order effects on systems outside of the cluster | [`sharding::fencing::FencingToken`] |
//! | list members, join, leave | [`node::cluster::Cluster`] |
//! | stop a node gracefully, also at SIGTERM | [`node::shutdown::CoordinatedShutdown`] |
//! | query a running node, as the `ostraca` tool does | [`management`] |
//! | configure a node | [`Config`] |
//!
//! The pages in the repository's `docs/` state the guarantees and what a failure loses, and explain
//! how to operate a cluster, how to configure a node, how to choose a downing strategy, and how
//! Ostraca works inside.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod adaptive_yield;
pub mod cluster;
mod combiner;
#[cfg(test)]
mod combiner_threads;
pub mod config;
pub mod management;
pub mod net;
pub mod node;
pub mod prelude;
mod runtime;
pub mod sharding;
mod threads;
#[cfg(test)]
#[path = "../tests/fixtures/waits.rs"]
mod waits;
mod wakers;

pub use config::Config;
pub use node::Node;
pub use node::replicator::Replicator;
pub use ostraca_ddata as ddata;

/// Synchronisation primitives of [`combiner`]. Its loom tests replace them with loom's.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
    pub(crate) use std::sync::{Mutex, MutexGuard};
}

/// Compiles and runs the programs of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
