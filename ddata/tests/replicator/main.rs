//! The Replicator in simulated clusters.

#![cfg(feature = "canaries")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]
#![expect(
    clippy::redundant_closure_for_method_calls,
    reason = "`Edit::clear` names the method of five types"
)]
#![allow(unreachable_pub, missing_docs, reason = "a test binary exports nothing")]

mod acknowledged;
mod aggregators;
mod arbitrary;
mod bare;
mod behaviour_m;
mod cluster;
mod counters;
mod delivered;
mod disks;
mod effects;
mod excluded;
mod failures;
mod foreign;
mod golden;
mod groups;
mod guarded;
mod hostile;
mod input;
mod loads;
mod node;
mod propagation;
mod settings;
mod smoke;
mod subscriptions;
