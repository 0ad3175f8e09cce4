//! Ostraca: sharded, stateful entities on a cluster that needs no external store.
pub mod cluster;
pub mod config;
pub mod net;
pub mod node;
pub mod prelude;
pub mod sharding;

pub use config::Config;
pub use node::Node;
pub use node::replicator::Replicator;
pub use ostraca_ddata as ddata;
