//! Clusters of whole nodes in one process, over real sockets of loopback: forming, joining,
//! leaving, dying, coming back. spec/membership.md

mod ending;
mod fixture;
mod forming;
mod losing;
