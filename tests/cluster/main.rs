//! Protocols of the cluster on virtual time, with faults: one module per protocol.

mod lease;
mod membership;
mod singleton;
mod whole;
