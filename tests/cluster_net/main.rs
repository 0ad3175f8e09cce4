//! Clusters of whole nodes over loopback sockets: founding, joining, leaving, crashes and restarts.
#![allow(
    clippy::redundant_closure_for_method_calls,
    reason = "`Edit::increment` is not general in the edit's lifetime, the closure is"
)]

mod blocked;
mod bulk;
mod ending;
mod entities;
mod first_minutes;
mod fixture;
mod forming;
mod hostile;
mod losing;
mod probes;
mod process_log;
mod restarts;
mod rotation;
mod settings;
mod sharding;
mod signals;
mod strategies;
mod types;
#[path = "../fixtures/waits.rs"]
mod waits;
mod writers;
