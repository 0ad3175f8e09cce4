//! A node: how its parts meet. Nobody else knows this room.
//!
//! | file | is |
//! |---|---|
//! | `driver`, `inbox` | the one loop that runs machines, and what waits for it |
//! | [`wiring`] | who hears whom: a pure function |
//! | [`parts`] | starting and stopping a part |
//! | [`replicator`] | the async handle of replicated data |
//! | [`outgoing`], `receiver` | the two seams to the network |
//! | [`disk`] | the durable store as a peer |

pub mod clock;
mod data;
pub mod disk;
mod driver;
mod inbox;
pub mod outgoing;
pub mod parts;
mod rarely;
mod receiver;
pub mod replicator;
mod replies;
pub mod wiring;

pub use driver::{TURN_MAX, Turns};
pub use inbox::{InboxLimits, Waiting};
