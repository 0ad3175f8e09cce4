//! The Replicator in simulated clusters.

#![cfg(feature = "canaries")]
#![allow(unreachable_pub, missing_docs, reason = "a test binary exports nothing")]

mod aggregators;
mod bare;
mod cluster;
mod node;
mod propagation;
mod smoke;
mod subscriptions;
