//! Cluster protocols on virtual time, with injected faults: one module per protocol.

mod lease;
mod membership;
mod singleton;
mod whole;
