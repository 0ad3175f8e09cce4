//! [`MessageSender`]: interface by which the Replicator sends messages. A node implements it with
//! lanes, a test with a simulated network.

use std::sync::atomic::{AtomicU64, Ordering};

use ostraca_ddata::id::ReplicaId;

use crate::net::TrafficClass;

/// Sends messages to other nodes. It is called inside the Replicator, on its task, a caller's or a
/// lane reader's, never concurrently, and must not block.
pub trait MessageSender: Send + 'static {
    /// Sends `message` to an incarnation, in order within its class. The Replicator repairs the
    /// loss of an unsent message, by sending again or by anti-entropy.
    ///
    /// # Errors
    /// [`NotSent`], with the reason why the message was not sent.
    fn send(&mut self, to: ReplicaId, class: TrafficClass, message: &[u8]) -> Result<(), NotSent>;

    /// Sends a message of the hosting lease on the control lane. The default implementation sends
    /// nothing and fails with [`NotSent::NoLink`], so that there are no leases.
    ///
    /// # Errors
    /// [`NotSent`], with the reason why the message was not sent.
    fn send_lease(&mut self, _to: ReplicaId, _message: &[u8]) -> Result<(), NotSent> {
        Err(NotSent::NoLink)
    }

    /// Returns the name of a node for the log. The default implementation knows the incarnation
    /// only.
    fn name_of(&self, node: ReplicaId) -> String {
        node.to_string()
    }

    /// Called at the end of a batch: an implementation that gathers messages must send them now.
    /// Lanes wake their writers by themselves.
    fn flush(&mut self) {}
}

/// Sends nothing, for a cluster of one node: every message fails with [`NotSent::NoLink`], and is
/// counted so.
impl MessageSender for () {
    fn send(&mut self, _: ReplicaId, _: TrafficClass, _: &[u8]) -> Result<(), NotSent> {
        Err(NotSent::NoLink)
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// The lane has reached its limit of queued messages.
    #[error("the lane is full")]
    Full,
    /// The message, or a name in its header, is longer than the peer or this node allows.
    #[error("the message is longer than the peer accepts")]
    TooLong,
    /// There is no lane to this incarnation: it has ended, or is not known yet.
    #[error("there is no lane to that node")]
    NoLink,
}

/// Counters of the messages that the Replicator has sent to peers or tried to send, with its grants
/// of leases. Messages of other parts, and grants that are sent on receipt, are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Messages accepted by lanes.
    pub messages: u64,
    /// Total size of these messages in bytes, without headers.
    pub bytes: u64,
    /// Messages refused by full lanes, and further parts of a transfer of which a part was refused,
    /// which are not tried.
    pub full: u64,
    /// Messages that exceeded the limit of the peer or of this node.
    pub too_long: u64,
    /// Messages for nodes to which there was no lane.
    pub no_link: u64,
}

/// The counters behind [`SendCounters`].
#[derive(Debug, Default)]
pub(super) struct AtomicSendCounters {
    messages: AtomicU64,
    bytes: AtomicU64,
    full: AtomicU64,
    too_long: AtomicU64,
    no_link: AtomicU64,
}

impl AtomicSendCounters {
    /// Counts a message by its outcome. `bytes` are added only if it was sent.
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

    /// Reads the counters one after the other, not all at one moment.
    pub(super) fn read(&self) -> SendCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SendCounters {
            messages: of(&self.messages),
            bytes: of(&self.bytes),
            full: of(&self.full),
            too_long: of(&self.too_long),
            no_link: of(&self.no_link),
        }
    }
}
