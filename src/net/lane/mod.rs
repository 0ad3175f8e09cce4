//! A lane: one ordered, one-directional line of messages to one incarnation, for one class, that
//! outlives connections.
//!
//! The sender's end is a [`Lane`], which keeps what is not acknowledged; a [`writer`] carries it
//! over one substream. The receiver's end is an [`InboundLane`](inbound::InboundLane), which
//! counts what was accepted; a [`reader`] fills it from one substream. When a substream breaks,
//! the next one goes on after the last accepted message: nothing is lost, repeated or reordered
//! between two living nodes. It knows neither peers' addresses nor what messages mean.
//! (spec/transport.md)
//!
//! A lane that was given up is never continued: a new [`Lane`] to the same node has a higher
//! [number](Lane::next_generation), at which the receiver begins to count anew.

mod buffer;
mod desk;
mod handoff;
pub mod inbound;
mod names;
mod outbound;
pub mod reader;
#[cfg(test)]
mod threads;
pub mod writer;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use super::config::Limits;
use super::frame::{NAME_BYTES_MAX, Violation};
use super::wire::FIELDS_MAX;
use super::{Class, NodeId};
use handoff::Handoff;
use outbound::{Outbound, Taken};
use writer::StandIn;

/// What [`desk`], [`handoff`] and [`inbound`] synchronise with. Their tests under loom have other types of
/// these names.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// For what many threads hold, each for less than it takes to put one to sleep. Where threads are
    /// more than cores, it lets a holder run that waits for a core.
    pub(super) use parking_lot::{Mutex as ShortMutex, MutexGuard as ShortGuard};

    pub(super) use futures::task::AtomicWaker;
    pub(super) use tokio::sync::{Notify, watch};
}

/// Numbers the lanes of this process, so that a later lane to the same node is known as such.
static LANES: AtomicU32 = AtomicU32::new(1);

/// Why a message was not sent. It was not: nothing of it will arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much waits already. Wait for [`room`](Lane::room), drop, or raise `lane-bytes-max`.
    #[error("the lane keeps {kept} bytes that are not acknowledged, of at most {max}; not sent")]
    Full {
        /// Bytes that are kept.
        kept: usize,
        /// Bytes that may be.
        max: usize,
    },
    /// It never fits. Cut it into several, or raise `message-bytes-max` on all nodes.
    #[error("the message has {len} bytes, at most {max} are allowed; not sent")]
    TooLong {
        /// Bytes of the body.
        len: usize,
        /// Bytes that both ends allow.
        max: usize,
    },
    /// Too many names, or one too long.
    #[error("a header has at most {FIELDS_MAX} names of {NAME_BYTES_MAX} bytes; not sent")]
    Header,
    /// The lane was finished or given up: that incarnation gets nothing more on it.
    #[error("the lane is over; not sent")]
    Broken,
}

/// How a writer or a reader came to its end.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// In order: all was acknowledged, and both ends know that nothing follows.
    #[error("the lane was finished in order")]
    Finished,
    /// A later substream carries the lane, or it was given up on this side.
    #[error("a later connection carries the lane, or it was given up")]
    Superseded,
    /// The connection ended; the lane can go on over another.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// The peer broke the protocol. The same may happen again on the next connection.
    #[error("the peer broke the protocol")]
    Violation(#[from] Violation),
}

/// A lane at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Bytes kept: unsent and unacknowledged.
    pub kept_bytes: usize,
    /// Messages that are not acknowledged, sent or not.
    pub unacknowledged: u64,
    /// Messages that are not sent on the current connection.
    pub unsent: u64,
    /// Messages that [`Lane::send`] took, ever.
    pub appended: u64,
    /// Messages sent, ever; those sent again count once.
    pub sent: u64,
    /// Messages acknowledged, ever.
    pub acknowledged: u64,
    /// Messages that were sent again after a connection broke, each time.
    pub resent: u64,
    /// Bytes sent, ever, frames and all; those sent again count once.
    pub sent_bytes: u64,
    /// Messages that were refused because the lane was full.
    pub refused: u64,
    /// Writes: `sent / batches` is how well messages were coalesced.
    pub batches: u64,
    /// Since when messages wait without any being acknowledged; `None` if none wait.
    pub undrained_since: Option<Instant>,
}

/// The sender's end of a lane. Cheap to clone; all clones are the same lane.
#[derive(Clone, Debug)]
pub struct Lane(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    to: NodeId,
    class: Class,
    number: u32,
    substreams: AtomicU32,
    handoff: Handoff,
    seat: Mutex<Seat>,
}

/// Who may write in the place of the writer that began last.
#[derive(Default)]
struct Seat {
    turn: u64,
    stand_in: Option<Weak<StandIn>>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Lane {
    /// A new lane, which keeps at most [`Limits::lane_bytes_max`] bytes for this class.
    #[must_use]
    pub fn new(to: NodeId, class: Class, limits: &Limits) -> Self {
        Self(Arc::new(Shared {
            to,
            class,
            number: LANES.fetch_add(1, Ordering::Relaxed),
            substreams: AtomicU32::new(0),
            handoff: Handoff::new(Outbound::new(class, limits)),
            seat: Mutex::default(),
        }))
    }

    /// To whom.
    #[must_use]
    pub fn to(&self) -> NodeId {
        self.0.to
    }

    /// For what.
    #[must_use]
    pub fn class(&self) -> Class {
        self.0.class
    }

    /// The generation of the next substream, for its `Hello`: the lane's number in the upper half,
    /// a count of its substreams in the lower. So it only grows, also from one lane to the next.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        let substream = self.0.substreams.fetch_add(1, Ordering::Relaxed) + 1;
        u64::from(self.0.number) << 32 | u64::from(substream)
    }

    /// The number of the first message that is kept, or would be: for the `Hello`.
    #[must_use]
    pub fn first_unacknowledged(&self) -> u64 {
        self.0.handoff.lock().acknowledged() + 1
    }

    /// Lowers the longest message to what the other end takes, as its `Welcome` says; bytes.
    pub fn limit_messages(&self, bytes_max: usize) {
        self.0.handoff.lock().limit_messages(bytes_max);
    }

    /// Lowers the longest frame to what the other end takes, as its `Welcome` says; bytes. For
    /// messages that are appended from now on.
    pub fn limit_frames(&self, bytes_max: usize) {
        self.0.handoff.lock().limit_frames(bytes_max);
    }

    /// Appends a message: a short lock, a copy, and only if the writer sleeps it is woken, or the
    /// message written in its place.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent then.
    #[inline]
    pub fn send(&self, fields: &[&str], body: &[u8]) -> Result<(), SendError> {
        self.0.handoff.send(fields, body, || self.writes_now())
    }

    /// Appends what answers an accepted message (a reply, an ack, a bounce), past the lane's limit,
    /// up to four times that: two nodes that answer each other must not wait for each other. Who
    /// gets `Full` here drops the answer and counts it.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent then.
    pub fn answer(&self, fields: &[&str], body: &[u8]) -> Result<(), SendError> {
        self.0.handoff.answer(fields, body, || self.writes_now())
    }

    /// Ends when a message that was refused as [`SendError::Full`] (probably) fits, or the lane is
    /// over; at once if none was refused since.
    pub async fn room(&self) {
        self.0.handoff.room().await;
    }

    /// No message follows: the writer ends the lane in order once all is acknowledged.
    pub fn finish(&self) {
        self.0.handoff.finish();
    }

    /// Gives the lane up, for good, and drops what it keeps: how many messages were not
    /// acknowledged. Each of them may have been accepted. 0 if it was given up before.
    pub fn break_off(&self) -> u64 {
        self.0.handoff.break_off()
    }

    /// The lane at this moment.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.0.handoff.stats()
    }

    fn lock_seat(&self) -> MutexGuard<'_, Seat> {
        self.0.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what was appended is written, or the writer hears of it by itself.
    fn writes_now(&self) -> bool {
        let stand_in = self.lock_seat().stand_in.as_ref().and_then(Weak::upgrade);
        stand_in.is_some_and(|stand_in| stand_in())
    }

    // ── For the writer ──

    /// From now on that one stands in for the writer of this turn, unless a later one has the lane.
    fn seat(&self, turn: u64, stand_in: &Arc<StandIn>) {
        let mut seat = self.lock_seat();
        if turn >= seat.turn {
            *seat = Seat { turn, stand_in: Some(Arc::downgrade(stand_in)) };
        }
    }

    fn resume(&self, accepted: u64) -> Result<u64, Violation> {
        self.0.handoff.resume(accepted)
    }

    fn appended(&self) -> u64 {
        self.0.handoff.appended()
    }

    fn take(&self, turn: u64, copy: &mut Vec<u8>) -> Taken {
        self.0.handoff.take(turn, copy)
    }

    fn acknowledge(&self, turn: u64, accepted: u64) -> Result<(), Violation> {
        self.0.handoff.acknowledge(turn, accepted)
    }

    fn register(&self, turn: u64, waker: &Waker) -> bool {
        self.0.handoff.register(turn, waker)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use ostraca_ddata::id::ReplicaId;

    use super::*;
    use crate::net::PeerId;

    #[test]
    fn who_panics_with_a_lane_in_hand_gives_it_up() {
        let to = NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(1) };
        let lane = Lane::new(to, Class::User, &Limits::default());
        lane.send(&[], b"kept").expect("it has room");
        let panics = || {
            let _held = lane.0.handoff.lock();
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(lane.send(&[], b"later"), Err(SendError::Broken));
        assert_eq!(lane.stats().kept_bytes, 0);
    }
}
