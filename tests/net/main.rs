//! The transport on real sockets.

mod hub;
mod proxy;
