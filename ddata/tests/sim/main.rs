//! The simulator, shown with two toys: a probe that does what it is told and keeps what it sees,
//! and a small leaderless register whose planted bugs must be found.

#![cfg(feature = "sim")]

mod clocks;
mod convergence;
mod disks;
mod links;
mod pauses;
mod probe;
mod register;
mod replay;
