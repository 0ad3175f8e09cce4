//! Tests of the simulator with two toy protocols: a probe that executes orders and records its
//! inputs, and a small leaderless register whose planted bugs must be found.

#![cfg(feature = "sim")]

mod clocks;
mod convergence;
mod disks;
mod links;
mod pauses;
mod probe;
mod register;
mod replay;
