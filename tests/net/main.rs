//! Nodes on real sockets: who may talk, and what strangers can do (nothing). spec/transport.md

mod admission;
mod identity;
mod nodes;
mod openings;
mod strangers;
mod swarm;
