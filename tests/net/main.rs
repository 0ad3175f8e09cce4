//! Nodes on real sockets: who may talk, what strangers can do (nothing), and what arrives.
//! spec/transport.md

mod admission;
mod hub;
mod identity;
mod nodes;
mod openings;
mod proxy;
mod strangers;
mod swarm;
