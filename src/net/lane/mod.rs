//! Lane: an ordered, one-directional stream of messages of one class to one incarnation, which
//! survives broken connections.
//!
//! The sender's end is a [`Lane`], which buffers unacknowledged messages; a [`writer`] carries it
//! over one substream. The receiver's end is an [`InboundLane`](inbound::InboundLane), which counts
//! accepted messages; a [`reader`] feeds it from one substream. When a substream breaks, the next
//! one continues after the last accepted message, so that between two living nodes no message is
//! lost, duplicated or reordered.
//!
//! A lane outlives connections (docs/protocol/transport.md#a-lane-outlives-connections): message
//! order and replication rely on it.
//!
//! A lane is *open* until it has *ended*: it was *finished* ([`Lane::finish`]: nothing is appended,
//! the buffered messages are still sent) or *abandoned* ([`Lane::break_off`], or a panic under its
//! lock: its messages are dropped). A finished lane may still be abandoned. A lane is *connected*
//! while it has a writer.
//!
//! A lane that was abandoned is never continued. A new [`Lane`] to the same node has a higher
//! number, which is the upper half of its [generations](Lane::next_generation). When the receiver
//! sees a higher number, it counts messages from 1 again.
//!
//! Only one writer and one reader of a lane are active at a time: it is their *turn*. The turn of a
//! writer is a number, and ends when a later writer gets a higher one. The turn of a reader is a
//! [`Turn`](inbound::Turn), which it drops when a later generation wants the lane.

mod buffer;
pub mod inbound;
mod names;
mod outbound;
pub mod reader;
mod shared_outbound;
#[cfg(test)]
mod threads;
pub mod writer;

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Instant;

use libp2p::PeerId;
use ostraca_ddata::id::ReplicaId;

use super::config::NetLimits;
use super::frame::{FrameViolation, NAME_BYTES_MAX};
use super::wire::FIELDS_MAX;
use super::{NodeId, TrafficClass};
use outbound::{OutboundQueue, WriterStep};
use shared_outbound::SharedOutboundQueue;
use writer::InlineWrite;

/// Synchronisation primitives of [`shared_outbound`] and [`inbound`]. Tests compile these modules
/// against loom's types under the same names.
mod sync {
    pub(super) use std::sync::{Mutex, MutexGuard};

    /// Mutex for critical sections shorter than the time to park a thread: before parking_lot
    /// parks, it yields, so that a preempted holder can run if there are more threads than cores.
    pub(super) use parking_lot::{Mutex as ShortMutex, MutexGuard as ShortGuard};

    pub(super) use futures::task::AtomicWaker;
    pub(super) use tokio::sync::{Notify, watch};
}

/// Numbers the lanes of this process, so that a later lane to the same node has a higher number.
static LANES: AtomicU32 = AtomicU32::new(1);

/// Why a message was not sent. No part of it will arrive. If several apply, the first one in this
/// order is returned: `Broken`, `TooLong`, `Unconnected`, `Header`, `Full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The lane's buffer is full, or, on a user lane, a long message must let others go first
    /// (docs/protocol/transport.md#long-messages-take-turns), so `kept` may be below `max`. Wait
    /// for [`room`](Lane::room), drop the message, or raise `lane-bytes-max`.
    #[error("not sent: the lane is full with {kept} unacknowledged bytes of at most {max}")]
    Full {
        /// Bytes in the buffer, without this message.
        kept: usize,
        /// Maximum number of bytes in the buffer; for a response four times the setting.
        max: usize,
    },
    /// No connection carries the lane now. Only [`Lane::send_connected`] returns it. Wait for
    /// [`room`](Lane::room).
    #[error("not sent: no connection carries the lane")]
    Unconnected,
    /// The message is longer than one of the ends allows. Split it, or raise `message-bytes-max` on
    /// all nodes.
    #[error("not sent: the message has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Length of the body, in bytes.
        len: usize,
        /// The lower of both ends' limits, in bytes.
        max: usize,
    },
    /// The header (`fields`) has too many names, or one that is too long.
    #[error("not sent: a header has at most {FIELDS_MAX} names of {NAME_BYTES_MAX} bytes")]
    Header,
    /// The lane was finished or abandoned, and accepts no further messages. This is final, unlike
    /// [`LaneEnd::Broken`].
    #[error("not sent: the lane was closed")]
    Broken,
}

/// How a writer or a reader ended.
#[derive(Debug, thiserror::Error)]
pub enum LaneEnd {
    /// All messages were acknowledged, and the lane was closed in order.
    #[error("the lane was finished in order")]
    Finished,
    /// A later substream carries the lane, or, for a writer, this side has abandoned it.
    #[error("a later connection carries the lane, or it was abandoned")]
    Superseded,
    /// The connection broke, or the peer ended the substream; the lane can continue on another one.
    #[error("the connection broke")]
    Broken(#[from] io::Error),
    /// The peer violated the protocol. This may happen again on the next connection.
    #[error("the peer violated the protocol")]
    Violation(#[from] FrameViolation),
}

/// Statistics of a lane. When the lane is abandoned, `kept_bytes` becomes 0 and `undrained_since`
/// `None`; all other values stay, `unacknowledged` too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneStats {
    /// Bytes in the buffer, framing included: of unsent and unacknowledged messages, and of
    /// acknowledged ones whose chunk is not yet dropped.
    pub kept_bytes: usize,
    /// Unacknowledged messages, sent or not.
    pub unacknowledged: u64,
    /// Messages that were not yet sent on the current connection or, without one, on the last.
    pub unsent: u64,
    /// Total number of messages that the lane accepted.
    pub appended: u64,
    /// Number of messages sent. Falls back to the accepted ones when a new connection carries the
    /// lane, because the others are sent again.
    pub sent: u64,
    /// Total number of messages acknowledged.
    pub acknowledged: u64,
    /// Total number of messages sent again after broken connections, counted when the next
    /// connection begins.
    pub resent: u64,
    /// Number of bytes sent, framing included. Falls back like `sent`.
    pub sent_bytes: u64,
    /// Messages that were rejected as [`SendError::Full`], responses included. Other rejections do
    /// not count.
    pub refused: u64,
    /// Number of batches handed to a writer, retransmissions included. `sent / batches` is the
    /// average batch size.
    pub batches: u64,
    /// Since when messages have been waiting without any acknowledgement, also without a
    /// connection; `None` if none wait. Starts anew with each acknowledgement of a further message
    /// and with each connection.
    pub undrained_since: Option<Instant>,
    /// Whether a connection carries the lane.
    pub connected: bool,
}

/// Sending end of a lane. Clones share the lane.
#[derive(Clone, Debug)]
pub struct Lane(Arc<LaneShared>);

#[derive(Debug)]
struct LaneShared {
    peer: PeerId,
    incarnation: AtomicU64, // unknown until the welcome if the lane is the first contact
    class: TrafficClass,
    number: u32,           // of `LANES`
    substreams: AtomicU32, // generations given out
    queue: SharedOutboundQueue,
    inline_writer: Mutex<InlineWriter>,
}

/// The function with which senders write inline, and the turn of the writer that it belongs to.
#[derive(Default)]
struct InlineWriter {
    turn: u64,
    write: Option<Weak<InlineWrite>>, // the writer owns it, and the writer holds the lane
}

impl std::fmt::Debug for InlineWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InlineWriter").field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl Lane {
    /// Creates a lane that buffers at most [`NetLimits::lane_bytes_max`] bytes for this class, or
    /// one longer message. It has no connection, no directory knows it, and it has the next number
    /// of this process.
    #[must_use]
    pub fn new(to: NodeId, class: TrafficClass, limits: &NetLimits) -> Self {
        Self(Arc::new(LaneShared {
            peer: to.peer,
            incarnation: AtomicU64::new(to.incarnation.get()),
            class,
            number: LANES.fetch_add(1, Ordering::Relaxed),
            substreams: AtomicU32::new(0),
            queue: SharedOutboundQueue::new(OutboundQueue::new(class, limits)),
            inline_writer: Mutex::default(),
        }))
    }

    /// Node to which the lane leads, as given to [`new`](Self::new). A lane that was created for
    /// the first contact with a peer has the default incarnation until the peer has told its own
    /// and the directory has adopted the lane.
    #[must_use]
    pub fn to(&self) -> NodeId {
        let incarnation = ReplicaId::new(self.0.incarnation.load(Ordering::Relaxed));
        NodeId { peer: self.0.peer, incarnation }
    }

    /// Sets the incarnation to which the lane leads, once the peer has told it.
    pub(super) fn set_incarnation(&self, incarnation: ReplicaId) {
        self.0.incarnation.store(incarnation.get(), Ordering::Relaxed);
    }

    /// Traffic class of the lane.
    #[must_use]
    pub fn class(&self) -> TrafficClass {
        self.0.class
    }

    /// Returns the generation of the next substream, for its `Hello`: the lane's number in the
    /// upper half, a count of its substreams, from 1, in the lower half. Generations therefore
    /// increase with every call, also from one lane to the next. Every call uses one up, and works
    /// also once the lane has ended.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        let substream = self.0.substreams.fetch_add(1, Ordering::Relaxed) + 1;
        u64::from(self.0.number) << 32 | u64::from(substream)
    }

    /// Number of the first unacknowledged message, or of the next one if all are acknowledged; for
    /// the `Hello`. Unchanged when the lane is abandoned.
    #[must_use]
    pub fn first_unacknowledged(&self) -> u64 {
        self.0.queue.lock().acknowledged() + 1
    }

    /// Lowers the maximum message length to what the other end accepts according to its `Welcome`,
    /// in bytes. Applies to messages that are appended from now on. Senders get a lane only to a
    /// node that was admitted, so this is known before its first message. A higher value has no
    /// effect.
    pub fn limit_messages(&self, bytes_max: usize) {
        self.0.queue.lock().limit_messages(bytes_max);
    }

    /// Like [`limit_messages`](Self::limit_messages), for the length of frames. Values below
    /// [`FRAME_BYTES_MIN`](super::frame::FRAME_BYTES_MIN) count as that. Must be called before the
    /// first message is appended, because that is when frames are built.
    pub fn limit_frames(&self, bytes_max: usize) {
        self.0.queue.lock().limit_frames(bytes_max);
    }

    /// Appends a message to the lane: a short critical section and a copy. If the lane's writer is
    /// idle, the caller wakes it, or writes the message inline, outside the lane's lock. `fields`
    /// are the names in the header (docs/protocol/transport.md#frames-of-a-lane). Never waits for
    /// room. Without a connection the message is buffered.
    ///
    /// `Ok` means appended: the message is lost if the lane is abandoned before it is acknowledged.
    ///
    /// # Errors
    /// [`SendError`], but not `Unconnected`; the message was not sent then.
    #[inline]
    pub fn send(&self, fields: &[&str], body: &[u8]) -> Result<(), SendError> {
        self.0.queue.send(fields, body, || self.write_inline())
    }

    /// Appends a message like [`send`](Self::send), but only while a connection carries the lane.
    /// A message that this refuses was never in the lane, so it is not lost with the lane, and may
    /// be sent elsewhere (docs/protocol/message-order.md#a-lane-without-a-connection-has-no-room).
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent then.
    #[inline]
    pub fn send_connected(&self, fields: &[&str], body: &[u8]) -> Result<(), SendError> {
        self.0.queue.send_connected(fields, body, || self.write_inline())
    }

    /// Appends a response to an accepted message (a reply, an acknowledgement, a bounce). Responses
    /// may fill the lane to four times its limit, so that two nodes that answer each other do not
    /// block each other (docs/protocol/transport.md#answers-have-four-times-the-room). Long ones
    /// need not let others go first. Otherwise like [`send`](Self::send), also without a
    /// connection.
    ///
    /// # Errors
    /// [`SendError`]; the message was not sent then. On `Full` the caller must drop the response
    /// and count it: [`room`](Self::room) is only for ordinary messages.
    pub fn answer(&self, fields: &[&str], body: &[u8]) -> Result<(), SendError> {
        self.0.queue.answer(fields, body, || self.write_inline())
    }

    /// Completes when a message that was rejected with [`SendError::Full`] probably fits, and a
    /// connection carries the lane if one was rejected with [`SendError::Unconnected`], or when the
    /// lane has ended; at once if no message was rejected since there last was room. Rejections of
    /// all senders count, and all waiting calls complete together. Reserves nothing: the message
    /// may be rejected again. Waits without a limit of time.
    pub async fn room(&self) {
        self.0.queue.room().await;
    }

    /// Finishes the lane: later messages are rejected as [`SendError::Broken`], and the writer
    /// closes it in order once all earlier ones are acknowledged. Without a connection the messages
    /// wait for the next writer. Has no effect on a lane that has ended.
    pub fn finish(&self) {
        self.0.queue.finish();
    }

    /// Abandons the lane and drops its messages: its writer ends, and later messages are rejected
    /// as [`SendError::Broken`]. Works also on a finished lane. Returns the number of
    /// unacknowledged messages, each of which may have been accepted; 0 if the lane was abandoned
    /// before. Neither counts nor reports them, and does not remove the lane from the directory:
    /// the caller must.
    pub fn break_off(&self) -> u64 {
        self.0.queue.break_off()
    }

    /// Returns the current statistics.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.0.queue.stats()
    }

    fn lock_inline_writer(&self) -> MutexGuard<'_, InlineWriter> {
        self.0.inline_writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes inline what was appended, without the lock of `inline_writer`. Returns `false` if the
    /// writer must be woken instead, also if the lane has none. `true` does not mean that all is
    /// written: the writer's task writes the rest when the stream has room.
    fn write_inline(&self) -> bool {
        let write = self.lock_inline_writer().write.as_ref().and_then(Weak::upgrade);
        write.is_some_and(|write| write())
    }

    // ── For the writer ──

    /// Sets the function for inline writes by the writer of this turn, unless a later writer has
    /// the lane.
    fn set_inline_writer(&self, turn: u64, write: &Arc<InlineWrite>) {
        let mut inline_writer = self.lock_inline_writer();
        if turn >= inline_writer.turn {
            *inline_writer = InlineWriter { turn, write: Some(Arc::downgrade(write)) };
        }
    }

    /// Begins the turn of a writer that continues after message `accepted`, and returns its number.
    /// The lane is connected from now on, unless it was abandoned. The turns of all earlier writers
    /// are over, also if it fails because `accepted` is impossible; the lane is unconnected then.
    fn resume(&self, accepted: u64) -> Result<u64, FrameViolation> {
        self.0.queue.resume(accepted)
    }

    /// Marks the lane as unconnected, because the writer of this turn has ended, and its substream
    /// with it. Has no effect if a later writer has the lane.
    fn disconnect(&self, turn: u64) {
        self.0.queue.disconnect(turn);
    }

    /// Total number of messages appended since the lane was created.
    fn appended(&self) -> u64 {
        self.0.queue.appended()
    }

    /// Next step of the writer of this turn. For [`WriterStep::Copied`] the bytes are in `copy`,
    /// whose earlier contents are replaced; otherwise `copy` is unchanged. The bytes count as sent
    /// from now on, so the writer must write them before it takes the next step.
    fn take(&self, turn: u64, copy: &mut Vec<u8>) -> WriterStep {
        self.0.queue.take(turn, copy)
    }

    /// Drops the messages up to `accepted`, which the peer has acknowledged to the writer of this
    /// turn. Has no effect, not even an error, if that turn is over or the lane was abandoned. On
    /// an error, because `accepted` goes back or beyond the sent messages, nothing changes.
    fn acknowledge(&self, turn: u64, accepted: u64) -> Result<(), FrameViolation> {
        self.0.queue.acknowledge(turn, accepted)
    }

    /// Registers the waker of this turn's writer, in place of an earlier one. Returns `false`, and
    /// keeps the registered waker, if its turn is over; `true` also if the lane was abandoned. A
    /// wake-up uses the waker up, so the writer registers at each poll.
    fn register(&self, turn: u64, waker: &Waker) -> bool {
        self.0.queue.register(turn, waker)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use futures::FutureExt;
    use ostraca_ddata::id::ReplicaId;

    use super::*;
    use crate::net::PeerId;

    /// Records whether it was woken.
    #[derive(Default)]
    struct WakeRecorder(AtomicBool);

    impl Wake for WakeRecorder {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn lane() -> Lane {
        let to = NodeId { peer: PeerId::random(), incarnation: ReplicaId::new(1) };
        Lane::new(to, TrafficClass::User, &NetLimits::default())
    }

    /// Panics while it holds the lock of the lane's queue, and catches the panic.
    fn panic_under_the_lock(lane: &Lane) {
        let panics = || {
            let _held = lane.0.queue.lock();
            panic!("on purpose");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    }

    #[test]
    fn panic_under_the_lock_abandons_the_lane() {
        let lane = lane();
        lane.send(&[], b"kept").expect("it has room");
        panic_under_the_lock(&lane);
        assert_eq!(lane.send(&[], b"later"), Err(SendError::Broken));
        assert_eq!(lane.stats().kept_bytes, 0);
    }

    #[test]
    fn panic_under_the_lock_wakes_writer_and_waiters_for_room() {
        let lane = lane();
        let turn = lane.resume(0).expect("nothing was accepted");
        let writer = Arc::<WakeRecorder>::default();
        assert!(lane.register(turn, &Waker::from(Arc::clone(&writer))));
        lane.disconnect(turn);
        assert_eq!(lane.send_connected(&[], b"refused"), Err(SendError::Unconnected));
        let mut room = pin!(lane.room());
        assert!(room.as_mut().now_or_never().is_none(), "no connection carries the lane");
        panic_under_the_lock(&lane);
        assert!(writer.0.load(Ordering::Relaxed));
        assert!(room.as_mut().now_or_never().is_some(), "the lane has ended");
    }
}
