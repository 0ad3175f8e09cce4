//! Ostraca: sharded, stateful entities on a cluster that needs no external store.
//!
//! A service is written as **entities**, each addressed by its id. Ostraca spreads them over the
//! nodes of a cluster, keeps at most one live instance of each, routes every message to wherever its
//! entity lives now, and moves entities when nodes come and go. What must be remembered is replicated
//! data inside the cluster itself.
//!
//! # A first entity
//!
//! A type with state, an enum of messages, and what a message does:
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
//! let alice = counters.entity("alice"); // cheap; she starts with the first message
//! alice.tell(Command::Add(2))?; // handled at most once, in the order sent
//! alice.tell(Command::Add(3))?;
//! assert_eq!(alice.ask(Command::Get).await?, 5);
//! # node.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! [`tell`](sharding::entity_ref::EntityRef::tell) sends and returns,
//! [`ask`](sharding::entity_ref::EntityRef::ask) waits for the answer that the entity sends through
//! its [`Reply`](sharding::reply::Reply). Both work the same wherever the entity lives.
//!
//! # A second node
//!
//! The same program on another host, with an address of the first: `config.cluster.seeds`. All nodes
//! may have the same list; whoever comes first founds. Shards move to the newcomer as soon as it has
//! registered, and back when it leaves ([`Node::stop`]): their waiting messages go along, in order,
//! and so does what their entities [hand over](sharding::entity::Entity::hand_over). What a node holds
//! when it crashes is lost, and its entities start elsewhere, as new.
//!
//! Nodes that listen beyond loopback need a secret (`net.cluster-secret-file`; `ostraca secret --out
//! FILE` makes one). [`Config::load`] reads a file and the environment.
//!
//! # Replicated data, with or without entities
//!
//! ```
//! use ostraca::prelude::*;
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let node = Node::start(Config::default()).await?;
//! # node.cluster().up().await?;
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
//! A write that a majority acknowledged is seen by every later majority read, whoever joins or leaves
//! meanwhile. [`ddata::guide`] shows each data type by example, with its costs and when not to use it.
//!
//! # Where to go on
//!
//! | to | see |
//! |---|---|
//! | start types, with settings of their own, or as a proxy | [`node::sharding::Sharding`] |
//! | supervise, passivate, set timers | [`sharding::entity::Entity`], [`sharding::context::Context`] |
//! | order effects on systems outside of the cluster | [`sharding::fencing::FencingToken`] |
//! | see who is there, join, leave | [`node::cluster::Cluster`] |
//! | end a node in order, at SIGTERM as well | [`node::shutdown::CoordinatedShutdown`] |
//! | ask a running node, as the `ostraca` tool does | [`management`] |
//! | set anything | [`Config`] |
//!
//! The repository's `docs/` tells what is guaranteed and what is lost when something fails, how to
//! operate a cluster, how to configure a node and choose a downing strategy, and how it works inside.

pub mod cluster;
pub mod config;
pub mod management;
pub mod net;
pub mod node;
pub mod prelude;
mod runtime;
pub mod sharding;
mod threads;

pub use config::Config;
pub use node::Node;
pub use node::replicator::Replicator;
pub use ostraca_ddata as ddata;

/// Its programs compile and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
