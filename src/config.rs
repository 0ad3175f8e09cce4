//! All settings of a node, a struct per room.

use ostraca_ddata::replicator;

use crate::net;

/// Settings of a node. `Config::default()` runs on a free port of loopback, without a data
/// directory and without a secret: nothing has to be set for the first try.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The transport: listening, admission, limits.
    pub net: net::config::Config,
    /// Replicated data.
    pub ddata: replicator::config::Config,
}
