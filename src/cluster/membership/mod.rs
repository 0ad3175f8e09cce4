//! The membership machine.

pub mod port;
