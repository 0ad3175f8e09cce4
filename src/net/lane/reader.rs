//! Reader of an inbound lane: decodes one substream, delivers its messages to the receiver, and
//! acknowledges accepted ones.
//!
//! It waits only for bytes and for a busy receiver. Acknowledgements are cumulative and never delay
//! reading (docs/protocol/transport.md#cumulative-acknowledgement). The most that a misbehaving
//! peer can cause is the end of this substream.

use std::future::{Future, poll_fn};
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::LaneEnd;
use super::buffer::Buffer;
use super::inbound::Turn;
use crate::net::config::NetLimits;
use crate::net::frame::{self, ACK_BYTES, Frame, FrameParseResult, FrameViolation, Header, kind};
use crate::net::{Busy, Inbound, NodeId, Receiver, TrafficClass};
use crate::wakers::yield_now;

/// Bytes of frames read after which an acknowledgement is sent even if more can be read: at most
/// this, and a quarter of the bytes that a lane may buffer or have in flight. Each acknowledgement
/// costs a system call on both sides, an encrypted message and a wake-up for 13 bytes; one every 64
/// KiB was an eighth of the cost of a busy lane.
const ACK_EVERY: usize = 256 * 1024;

/// Delay of an acknowledgement once there is nothing to read. An acknowledgement only lets the
/// sender free its buffer, so no message waits for it. Without the delay it cost a write, an
/// encrypted message and a wake-up on both sides for every request and every response.
const ACK_WITHIN: Duration = Duration::from_millis(5);

/// Bytes read before the task yields.
const BYTES_PER_POLL: usize = 1024 * 1024;

/// Messages of a user lane before the task yields, by their [weight](Receiver::weight). Some wake a
/// task each: tokio has a queue of 256 tasks per thread, and puts further ones into a global queue
/// that it polls rarely.
const MESSAGES_PER_POLL: usize = 128;

/// Reads one substream of a lane until its end, or until a later one takes the lane over. The
/// `Welcome` has told the sender how many messages were accepted before.
///
/// Returns [`LaneEnd::Finished`] only after an end frame; a substream that ends without one is
/// [`LaneEnd::Broken`]. Gives the turn back when it returns or is dropped. Accepted messages stay
/// accepted then, acknowledged or not; of an unfinished one nothing is kept. A later substream ends
/// it only where it waits, is about to read, or (on a user lane) has yielded; other frames in the
/// buffer are processed before.
pub async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    turn: Turn,
    from: NodeId,
    class: TrafficClass,
    limits: &NetLimits,
    receiver: Arc<dyn Receiver>,
) -> LaneEnd {
    let superseded = pin!(turn.superseded());
    let mut reader = LaneReader {
        substream: AckedStream {
            stream,
            acks: Acks::new(turn.accepted(), limits, class),
            ack_at: pin!(tokio::time::sleep(ACK_WITHIN)),
            ack_waits: false,
            superseded,
        },
        intake: MessageAssembler {
            turn,
            from,
            class,
            receiver: &*receiver,
            message_bytes_max: limits.message_bytes_max,
            fields: Vec::new(),
            repeatable: Vec::new(),
            pieces: None,
            unpaused: false,
        },
        buffer: Buffer::new(frame::bytes_max(limits)),
        frame_bytes_max: frame::bytes_max(limits),
        unyielded: 0,
        messages: 0,
    };
    match reader.run().await {
        Ok(()) => LaneEnd::Finished,
        Err(ended) => ended,
    }
}

struct LaneReader<'a, S, F> {
    substream: AckedStream<'a, S, F>,
    intake: MessageAssembler<'a>,
    buffer: Buffer,
    frame_bytes_max: usize,
    unyielded: usize, // bytes read since the last yield of `fill`
    messages: usize,  // of a user lane, by weight, since the last yield
}

/// The substream, and the acknowledgements to send on it.
struct AckedStream<'a, S, F> {
    stream: S,
    acks: Acks,
    ack_at: Pin<&'a mut Sleep>,
    ack_waits: bool,            // whether `ack_at` is running
    superseded: Pin<&'a mut F>, // completes when a later substream wants the lane
}

/// Assembles messages from frames, and offers them to the receiver.
struct MessageAssembler<'a> {
    turn: Turn,
    from: NodeId,
    class: TrafficClass,
    receiver: &'a dyn Receiver,
    message_bytes_max: usize,
    fields: Vec<Arc<str>>,  // of the current message; ≤ FIELDS_MAX
    repeatable: Vec<u8>,    // header of `fields`, if it can repeat; else empty
    pieces: Option<Pieces>, // of a longer message
    unpaused: bool,         // no `pause` since the last accepted message
}

/// The received part of a message in pieces.
struct Pieces {
    total: usize,
    body: Vec<u8>, // ≤ total ≤ message_bytes_max
}

/// Result of processing a frame.
enum FrameStep {
    /// A message is complete: its body is in the frame, or in the pieces.
    Message(BodySource),
    /// No complete message yet.
    On,
    /// End of the lane.
    End,
}

enum BodySource {
    Frame,
    Pieces,
}

impl<S, F> LaneReader<'_, S, F>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()>,
{
    /// Delivers all messages whose frames are complete in the buffer, then acknowledges them if
    /// frames of `every` bytes were processed, and only then reads further bytes. A message that
    /// the receiver is too busy for is offered until it is accepted; a receiver that is ready and
    /// yet busy makes the task yield. Calls [`Receiver::pause`] before it waits for the receiver or
    /// for bytes. Returns `Ok` after an end frame, when the substream is closed; ignores bytes
    /// behind.
    async fn run(&mut self) -> Result<(), LaneEnd> {
        loop {
            while let FrameParseResult::Frame(frame, len) =
                frame::cut(self.buffer.unread(), self.frame_bytes_max)?
            {
                let weight = match self.intake.step(frame)? {
                    FrameStep::Message(source) => {
                        let body = match (source, frame) {
                            (BodySource::Frame, Frame::Message { body, .. }) => Some(body),
                            _ => None,
                        };
                        let mut waited = false;
                        let weight = loop {
                            match self.intake.offer(body) {
                                Ok(weight) => break weight,
                                Err(Busy) => {
                                    self.intake.pause();
                                    if mem::replace(&mut waited, true) {
                                        yield_now().await; // ready, yet still busy
                                    }
                                    self.substream.wait(&self.intake).await?;
                                }
                            }
                        };
                        self.intake.accept();
                        weight
                    }
                    FrameStep::On => 1,
                    FrameStep::End => return self.substream.end(self.intake.turn.accepted()).await,
                };
                self.buffer.consume(len);
                self.let_others_run(weight).await?;
                self.substream.acks.unacked += len;
            }
            self.intake.pause();
            if self.substream.acks.unacked >= self.substream.acks.every {
                // Right before the read that may widen the window, so that both are sent together.
                self.substream.acks.unacked = 0;
                self.substream.send_ack(self.intake.turn.accepted()).await?;
            }
            self.fill().await?;
        }
    }

    /// Counts the weight of a frame on a user lane; one that completes no message weighs 1. Once
    /// the sum since the last yield reaches [`MESSAGES_PER_POLL`], yields, and then fails with
    /// [`LaneEnd::Superseded`] if a later substream wants the lane. Does nothing on the other
    /// lanes, which yield only in [`fill`](Self::fill).
    async fn let_others_run(&mut self, weight: usize) -> Result<(), LaneEnd> {
        if self.intake.class != TrafficClass::User {
            return Ok(());
        }
        self.messages = self.messages.saturating_add(weight);
        if self.messages < MESSAGES_PER_POLL {
            return Ok(());
        }
        self.messages = 0;
        yield_now().await;
        poll_fn(|cx| Poll::Ready(self.substream.poll_superseded(cx))).await
    }

    /// Waits for bytes, reads once, and counts them. Yields after [`BYTES_PER_POLL`] bytes, because
    /// the stream may always be ready. Fails as [`poll_fill`](AckedStream::poll_fill) does.
    async fn fill(&mut self) -> Result<(), LaneEnd> {
        let accepted = self.intake.turn.accepted();
        let Self { substream, buffer, .. } = self;
        let len = poll_fn(|cx| substream.poll_fill(cx, buffer, accepted)).await?;
        self.intake.turn.counters().bytes.fetch_add(len as u64, Ordering::Relaxed);
        self.unyielded += len;
        if self.unyielded >= BYTES_PER_POLL {
            self.unyielded = 0;
            yield_now().await;
        }
        Ok(())
    }
}

impl<S, F> AckedStream<'_, S, F>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = ()>,
{
    /// Fails with [`LaneEnd::Superseded`] if a later substream wants the lane; otherwise registers
    /// the task for that. Must not be called again after it has failed: it would panic.
    fn poll_superseded(&mut self, cx: &mut Context<'_>) -> Result<(), LaneEnd> {
        match self.superseded.as_mut().poll(cx) {
            Poll::Ready(()) => Err(LaneEnd::Superseded),
            Poll::Pending => Ok(()),
        }
    }

    /// Reads once into the buffer, and returns the number of bytes, at least 1. While there is
    /// nothing to read, acknowledges the accepted messages after [`ACK_WITHIN`]. Fails when a later
    /// substream wants the lane (checked first, also if bytes are there), at the end of the stream,
    /// and if reading or the acknowledgement fails.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Buffer,
        accepted: u64,
    ) -> Poll<Result<usize, LaneEnd>> {
        self.poll_superseded(cx)?;
        match buffer.poll_fill(cx, &mut self.stream)? {
            Poll::Ready(0) => Poll::Ready(Err(eof())),
            Poll::Ready(len) => Poll::Ready(Ok(len)),
            Poll::Pending => {
                self.poll_ack_soon(cx, accepted)?;
                Poll::Pending
            }
        }
    }

    /// Acknowledges the accepted messages once the delay has passed, which begins with the first
    /// call that finds any, and which later messages do not prolong. A partly written or unflushed
    /// acknowledgement is continued at once, and so is one for the messages accepted since. Returns
    /// `Ok` also while the acknowledgement waits for the delay or for the stream.
    fn poll_ack_soon(&mut self, cx: &mut Context<'_>, accepted: u64) -> io::Result<()> {
        if self.acks.is_idle() {
            if self.acks.acked == accepted {
                self.ack_waits = false;
                return Ok(());
            }
            if !self.ack_waits {
                self.ack_waits = true;
                self.ack_at.as_mut().reset(tokio::time::Instant::now() + ACK_WITHIN);
            }
            if self.ack_at.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            self.ack_waits = false;
        }
        match self.acks.poll(cx, &mut self.stream, accepted) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Ok(()),
        }
    }

    /// Acknowledges the accepted messages without delay, as far as the stream accepts the bytes at
    /// once: it is never pending. Later calls of [`poll_ack_soon`](Self::poll_ack_soon) write the
    /// rest. Writes nothing if all were acknowledged.
    async fn send_ack(&mut self, accepted: u64) -> Result<(), LaneEnd> {
        poll_fn(|cx| {
            let _ = self.acks.poll(cx, &mut self.stream, accepted)?;
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Waits until the receiver may have room, and counts each call as busy. Earlier messages are
    /// acknowledged without delay, because nothing is read meanwhile; an acknowledgement for which
    /// the stream has no room does not prolong the wait. Fails if a later substream wants the lane
    /// or the acknowledgement cannot be written, but does not notice that the stream ended.
    async fn wait(&mut self, intake: &MessageAssembler<'_>) -> Result<(), LaneEnd> {
        intake.turn.counters().busy.fetch_add(1, Ordering::Relaxed);
        let accepted = intake.turn.accepted();
        let mut ready = intake.receiver.ready(intake.class);
        poll_fn(|cx| {
            self.poll_superseded(cx)?;
            let _ = self.acks.poll(cx, &mut self.stream, accepted)?;
            ready.as_mut().poll(cx).map(Ok)
        })
        .await
    }

    /// Writes the acknowledgement that is still due or begun, and closes this half of the
    /// substream. As a rule all messages are acknowledged: a sender does not end the lane before.
    /// Waits for the stream without a limit. Fails if a later substream wants the lane or the
    /// stream breaks; the lane then does not count as finished.
    async fn end(&mut self, accepted: u64) -> Result<(), LaneEnd> {
        poll_fn(|cx| {
            self.poll_superseded(cx)?;
            ready!(self.acks.poll(cx, &mut self.stream, accepted))?;
            ready!(Pin::new(&mut self.stream).poll_close(cx))?;
            Poll::Ready(Ok(()))
        })
        .await
    }
}

// ── Messages ──

impl MessageAssembler<'_> {
    /// Validates a frame, decodes its header and stores its piece. The body of a whole message
    /// stays in the frame. A complete message must then be offered and accepted before the next
    /// frame. A [`Frame::Unknown`], of a newer release, is counted and skipped, even among pieces.
    ///
    /// Violations are, in this order: a message or the end among pieces, a body that is longer than
    /// allowed, also if it is only announced, a header that does not fit the table of names; a
    /// piece that is empty, the first included, without a first one or too many; and an
    /// acknowledgement. The reader must end then: names and pieces may be half changed.
    #[inline]
    fn step(&mut self, frame: Frame<'_>) -> Result<FrameStep, FrameViolation> {
        match frame {
            Frame::Message { header, body } => {
                if self.pieces.is_some() {
                    return Err(FrameViolation::Pieces("another message among them"));
                }
                self.check_length(body.len())?;
                self.read_header(header)?;
                Ok(FrameStep::Message(BodySource::Frame))
            }
            Frame::First { total, header, piece } => {
                if self.pieces.is_some() {
                    return Err(FrameViolation::Pieces("another message among them"));
                }
                self.check_length(total as usize)?;
                self.read_header(header)?;
                self.pieces = Some(Pieces { total: total as usize, body: Vec::new() });
                self.add(piece)?;
                Ok(FrameStep::On)
            }
            Frame::Continue(piece) => self.add(piece).map(|()| FrameStep::On),
            Frame::Last(piece) => self.add_last(piece),
            Frame::Unknown(_) => {
                self.turn.counters().skipped.fetch_add(1, Ordering::Relaxed);
                Ok(FrameStep::On)
            }
            Frame::End if self.pieces.is_some() => {
                Err(FrameViolation::Pieces("the end among them"))
            }
            Frame::End => Ok(FrameStep::End),
            Frame::Ack { .. } => Err(FrameViolation::Direction(kind::ACK)),
        }
    }

    #[inline]
    fn check_length(&self, claimed: usize) -> Result<(), FrameViolation> {
        if claimed > self.message_bytes_max {
            return Err(FrameViolation::MessageLength { claimed, max: self.message_bytes_max });
        }
        Ok(())
    }

    /// Decodes the header into `fields`, by the lane's table of numbered names. Skips that if the
    /// bytes are those of the last header, and it consisted of numbers only. After an error
    /// `fields` may be half changed.
    #[inline]
    fn read_header(&mut self, header: Header<'_>) -> Result<(), FrameViolation> {
        if header.as_bytes() == self.repeatable {
            return Ok(());
        }
        self.repeatable.clear();
        if self.turn.progress.names.read(header, &mut self.fields)? {
            self.repeatable.extend_from_slice(header.as_bytes());
        }
        Ok(())
    }

    /// Appends a piece. Memory grows with the received bytes, never with the announced length.
    /// Fails if no message was begun, the piece is empty, or the body would exceed its announced
    /// length. A body that reaches that length is not complete before its last piece.
    fn add(&mut self, piece: &[u8]) -> Result<(), FrameViolation> {
        let Some(pieces) = &mut self.pieces else {
            return Err(FrameViolation::Pieces("the first is missing"));
        };
        let len = pieces.body.len() + piece.len();
        if piece.is_empty() || len > pieces.total {
            return Err(FrameViolation::Pieces("one is empty, or they are too many"));
        }
        if len > pieces.body.capacity() {
            let more = pieces.body.len().max(piece.len()).min(pieces.total - pieces.body.len());
            pieces.body.reserve_exact(more);
        }
        pieces.body.extend_from_slice(piece);
        Ok(())
    }

    /// Appends the last piece. Fails if it does not complete the announced length.
    fn add_last(&mut self, piece: &[u8]) -> Result<FrameStep, FrameViolation> {
        self.add(piece)?;
        match &self.pieces {
            Some(pieces) if pieces.body.len() == pieces.total => {
                Ok(FrameStep::Message(BodySource::Pieces))
            }
            _ => Err(FrameViolation::Pieces("they end early")),
        }
    }

    /// Offers the current message, with this body or the pieces, and returns its weight if it was
    /// accepted; the weight is 1 on lanes other than user lanes, otherwise the receiver is asked
    /// for it at each call, before it gets the message. Changes nothing here, so that it can be
    /// repeated after [`Busy`]. After `Ok`, the caller must call [`accept`](Self::accept).
    #[inline]
    fn offer(&self, body: Option<&[u8]>) -> Result<usize, Busy> {
        let pieces = || self.pieces.as_ref().map_or(&[][..], |pieces| &pieces.body);
        let message = Inbound {
            from: self.from,
            class: self.class,
            fields: &self.fields,
            body: body.unwrap_or_else(pieces),
        };
        let is_weighed = self.class == TrafficClass::User;
        let weight = if is_weighed { self.receiver.weight(&message) } else { 1 };
        self.receiver.receive(message).map(|()| weight)
    }

    /// Records that the receiver has accepted the message, which is then never offered again:
    /// counts it, keeps the names that its header has defined, and drops its pieces.
    #[inline]
    fn accept(&mut self) {
        let progress = &mut self.turn.progress;
        progress.accepted += 1;
        progress.names.accept();
        self.pieces = None;
        self.unpaused = true;
        progress.accepted_ever += 1;
        let ever = progress.accepted_ever;
        self.turn.counters().accepted.store(ever, Ordering::Relaxed);
    }
}

impl MessageAssembler<'_> {
    /// Tells the receiver, once after the last accepted message, that the reader is about to read
    /// from the stream, to wait for room or to end. Does nothing if no message was accepted since
    /// the last call.
    fn pause(&mut self) {
        if mem::take(&mut self.unpaused) {
            self.receiver.pause(self.class);
        }
    }
}

impl Drop for MessageAssembler<'_> {
    /// Tells the receiver of the pause. The turn is given back after that.
    fn drop(&mut self) {
        self.pause(); // the reader may end at any message
    }
}

// ── Acknowledgements ──

/// State of the acknowledgements. At most one is being written; the next one covers all messages
/// accepted meanwhile.
struct Acks {
    frame: [u8; ACK_BYTES],
    at: usize,      // of `frame`, the next byte to write; ACK_BYTES: none is being written
    acked: u64,     // messages that `frame` acknowledges, written or not
    unacked: usize, // bytes of frames processed since the last acknowledgement was begun
    every: usize,   // of `unacked` after which the reader acknowledges; ≤ ACK_EVERY, may be 0
    unflushed: bool,
}

impl Acks {
    /// Creates the state of a substream whose sender knows that `acked` messages were accepted, so
    /// that it acknowledges only further ones. Uses this node's limits for the sender's, because
    /// all nodes of a cluster have the same settings.
    fn new(acked: u64, limits: &NetLimits, class: TrafficClass) -> Self {
        let under_way = limits.lane_window.min(limits.lane_bytes_max(class));
        let every = ACK_EVERY.min(under_way / 4);
        Self { frame: [0; ACK_BYTES], at: ACK_BYTES, acked, unacked: 0, every, unflushed: false }
    }

    /// Whether every started acknowledgement has been written and flushed.
    const fn is_idle(&self) -> bool {
        self.at == ACK_BYTES && !self.unflushed
    }

    /// Writes and flushes acknowledgements until the last one covers the `accepted` messages. Ready
    /// when it is flushed, at once if there is nothing to do. A begun one is completed first,
    /// without a flush of its own. A new one resets `unacked` when it is begun.
    fn poll<S: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        accepted: u64,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.at < ACK_BYTES {
                let len = ready!(Pin::new(&mut *stream).poll_write(cx, &self.frame[self.at..]))?;
                if len == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.at += len;
                self.unflushed = true;
            } else if self.acked < accepted {
                self.frame = frame::ack(accepted);
                (self.at, self.acked, self.unacked) = (0, accepted, 0);
            } else if self.unflushed {
                ready!(Pin::new(&mut *stream).poll_flush(cx))?;
                self.unflushed = false;
            } else {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// The end of a stream without an end frame.
fn eof() -> LaneEnd {
    io::Error::from(io::ErrorKind::UnexpectedEof).into()
}
