//! Entities on nodes: the code that runs, under an executor and lanes that the tests drive.

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
mod moving;
mod nodes;
mod passivating;
mod references;
mod stopping;
mod storm;
mod tasks;
mod threads;
mod timeouts;
mod timing;
mod weights;
