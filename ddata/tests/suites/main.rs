//! The Replicator's suites (work in progress).

#![cfg(feature = "canaries")]
#![allow(unreachable_pub, missing_docs, reason = "a test binary exports nothing")]

mod canaries;
mod chain;
mod coordinators;
mod decisions;
mod history;
mod membership;
#[path = "../replicator/node.rs"]
mod node;
mod oracle;
mod plans;
mod run;
mod strikes;
mod suites;
mod workload;
