//! The Replicator in simulated clusters.

#![cfg(feature = "canaries")]
#![allow(unreachable_pub, missing_docs, reason = "a test binary exports nothing")]

mod aggregators;
mod arbitrary;
mod bare;
mod behaviour_m;
mod cluster;
mod failures;
mod guarded;
mod input;
mod node;
mod propagation;
mod smoke;
mod subscriptions;
