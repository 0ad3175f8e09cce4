//! Ostraca: sharded, stateful entities on a cluster that needs no external store.
pub mod cluster;
pub mod net;

pub use ostraca_ddata as ddata;
