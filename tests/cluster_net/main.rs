//! Clusters of whole nodes in one process, over real sockets of loopback: forming, joining,
//! leaving, dying, coming back. spec/membership.md

mod ending;
mod forming;
mod fixture;
mod losing;
