//! Several nodes in one process, with the real driver, over a network in memory.

mod cancelling;
mod cluster;
mod disks;
mod failures;
mod levels;
mod load;
mod network;
mod receiving;
mod stopping;
mod subscriptions;
