//! Entities behind their gates: the library's real code on an executor, lanes and a clock that the
//! tests drive step by step (`executor.rs`, `nodes.rs`). One file for each subject.

mod bulk;
mod busy;
mod decoding;
mod door;
mod drains;
mod dropping;
pub(crate) mod executor;
mod failing;
mod fencing;
mod first;
mod forging;
mod journal;
mod lapsing;
mod lengths;
mod limits;
mod lost_nodes;
mod moving;
mod nodes;
mod passivating;
mod references;
mod stopping;
mod storm;
mod successors;
mod tasks;
mod threads;
mod timeouts;
mod timing;
mod waits;
mod weights;
