//! Suites of sharding: exhaustive exploration of moves (`moves`) and of message order (`order`),
//! coordinators and regions on the real Replicator under simulated faults (`cluster`, `stack`),
//! entities behind their gates (`entities`), whole simulated nodes (`nodes`), and a check that each
//! listed behaviour has a test (`coverage`).

mod cluster;
mod coverage;
mod entities;
#[path = "../fixtures/memory_log.rs"]
mod memory_log;
mod moves;
mod nodes;
mod order;
mod stack;
#[path = "../cluster/whole/mod.rs"]
mod whole;
