//! The seam between the Replicator's task and the network: where messages leave.
//!
//! A node plugs its lanes in here, a test whatever it likes.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_ddata::id::ReplicaId;

use crate::net::Class;

/// Takes messages for other nodes. Called within the Replicator, on its task, a caller's or a lane
/// reader's, one at a time: it must not block.
pub trait Outgoing: Send + 'static {
    /// Sends `message` to an incarnation, in order within its class, or says why not. What is not
    /// sent is not lost for good: the Replicator sends again, or mends it by anti-entropy.
    ///
    /// # Errors
    /// [`NotSent`].
    fn send(&mut self, to: ReplicaId, class: Class, message: &[u8]) -> Result<(), NotSent>;

    /// Sends a message of the hosting lease on the control lane. Who carries none has no leases.
    ///
    /// # Errors
    /// [`NotSent`].
    fn send_lease(&mut self, _to: ReplicaId, _message: &[u8]) -> Result<(), NotSent> {
        Err(NotSent::NoLink)
    }

    /// The batch is over. Lanes wake their writers by themselves; who gathers sends now.
    fn flush(&mut self) {}
}

/// Nobody to talk to: a cluster of one.
impl Outgoing for () {
    fn send(&mut self, _: ReplicaId, _: Class, _: &[u8]) -> Result<(), NotSent> {
        Err(NotSent::NoLink)
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// The lane keeps as much as it may.
    #[error("the lane is full")]
    Full,
    /// Longer than the peer takes.
    #[error("the message is longer than the peer takes")]
    TooLong,
    /// No lane leads there: an incarnation that is gone, or not known yet.
    #[error("no lane leads there")]
    NoLink,
}

/// What was sent, and what was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages taken by lanes.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages refused by full lanes.
    pub full: u64,
    /// Messages too long for the peer.
    pub too_long: u64,
    /// Messages to nobody that there is a lane to.
    pub no_link: u64,
}

/// [`Sent`], while it is counted.
#[derive(Debug, Default)]
pub(super) struct Sending {
    messages: AtomicU64,
    bytes: AtomicU64,
    full: AtomicU64,
    too_long: AtomicU64,
    no_link: AtomicU64,
}

impl Sending {
    pub(super) fn note(&self, bytes: usize, sent: Result<(), NotSent>) {
        let counter = match sent {
            Ok(()) => {
                self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                &self.messages
            }
            Err(NotSent::Full) => &self.full,
            Err(NotSent::TooLong) => &self.too_long,
            Err(NotSent::NoLink) => &self.no_link,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Sent {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Sent {
            messages: of(&self.messages),
            bytes: of(&self.bytes),
            full: of(&self.full),
            too_long: of(&self.too_long),
            no_link: of(&self.no_link),
        }
    }
}
