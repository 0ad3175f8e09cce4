//! Writer of a lane: writes its queued messages to one substream, and reads the acknowledgements.
//!
//! One task handles both directions, so that neither waits for the other. Messages stay in the
//! lane's queue until they are acknowledged, so dropping the future at any point loses nothing.
//!
//! A sender need not wake the task for a single message: while the task is idle, the sender writes
//! inline, as far as the stream accepts the bytes at once. The task is woken by any later event of
//! the stream.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures::io::{AsyncRead, AsyncWrite};

use super::buffer::Buffer;
use super::outbound::WriterStep;
use super::{Lane, LaneEnd};
use crate::adaptive_yield::AdaptiveYield;
use crate::combiner::{Combiner, RemoveOnDrop};
use crate::net::TrafficClass;
use crate::net::frame::{self, FRAME_BYTES, Frame, FrameParseResult, FrameViolation, kind};
use crate::wakers::store_waker;

/// Number of writes, and of reads of acknowledgements, of one poll or inline write. Then the task
/// is woken for the rest.
const STEPS_PER_POLL: usize = 16;

/// Carries the lane from message `accepted + 1` on, until it is finished or abandoned, or the
/// substream ends.
///
/// If a lane has several writers, only the one that started last continues; the others return
/// [`LaneEnd::Superseded`], as does that of an abandoned lane. Returns [`LaneEnd::Violation`] at
/// once if `accepted` is less than was acknowledged before, or more than was sent; earlier writers
/// end then, too. [`LaneEnd::Finished`] comes when the end frame is written and the stream closed.
/// Drops the stream, then marks the lane as unconnected, when it returns or is dropped.
pub async fn run<S>(stream: S, lane: Lane, accepted: u64) -> LaneEnd
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turn = match lane.resume(accepted) {
        Ok(turn) => turn,
        Err(violation) => return LaneEnd::Violation(violation),
    };
    let _connected = Connected { lane: lane.clone(), turn };
    let combiner = Arc::new(Combiner::new(LaneWriter {
        stream,
        lane: lane.clone(),
        turn,
        batch: PendingWrite::None,
        copy: Vec::new(),
        unflushed: false,
        idle: false,
        yield_requested: None,
        yielding_since: None,
        adaptive_yield: WriterYield::trying(),
        closing: false,
        ended: None,
        waker: None,
        acks: Buffer::new(FRAME_BYTES),
    }));
    let _removed = RemoveOnDrop(&combiner); // a sender may hold the function for a while
    let helper = Arc::clone(&combiner);
    let inline_write: Arc<InlineWrite> =
        Arc::new(move || helper.try_help(LaneWriter::write_inline));
    lane.set_inline_writer(turn, &inline_write);
    poll_fn(|cx| combiner.work_blocking(|writer| writer.poll(cx))).await
}

/// Marks the lane as unconnected when the writer of this turn ends or is dropped.
struct Connected {
    lane: Lane,
    turn: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.lane.disconnect(self.turn);
    }
}

/// Writes inline if the lane's writer is idle. Returns `false` if the writer must be woken instead,
/// also if its task is just using it. Never blocks for the writer.
pub(super) type InlineWrite = dyn Fn() -> bool + Send + Sync;

/// Writer of one substream, used by its task and by senders that write inline.
struct LaneWriter<S> {
    stream: S,
    lane: Lane,
    turn: u64,
    batch: PendingWrite,
    copy: Vec<u8>,                // ≤ FRAME_BYTES
    unflushed: bool,              // a whole batch was written since the last flush
    idle: bool,                   // the last write sent and flushed all that may be sent
    yield_requested: Option<u64>, // at this number of messages: the next poll must yield
    yielding_since: Option<u64>,  // it yields since this number of messages
    adaptive_yield: WriterYield,
    closing: bool,                      // the end frame is being written, or is written
    ended: Option<io::Result<LaneEnd>>, // during an inline write: the task must return it
    waker: Option<Waker>,               // of its task; `None` before the first poll
    acks: Buffer,
}

/// Decides whether an idle writer yields to other tasks before it writes.
///
/// A sender is often the first of many tasks that have something to send. A runtime that runs the
/// most recently woken task first would let the writer write each of their messages alone. On the
/// other hand, a task that goes to the end of the queue costs the switch to a second thread, which
/// tokio wakes for it; for a single message that is most of its latency. So the writer yields as
/// long as that has found more messages to write, and otherwise only tries it now and then.
///
/// When it does not yield, the sender writes inline instead of waking the task. The reason is that
/// tokio also wakes a second thread for a task that is woken by the third task of a chain in which
/// each has woken the next, and the path of a response has a chain of that length without the
/// writer's task.
type WriterYield = AdaptiveYield<4, 8>;

/// Bytes being written, and the offset of the next one.
enum PendingWrite {
    None,
    Chunk(Arc<Vec<u8>>, usize),
    /// The bytes are in `copy` of the writer.
    Copied(usize),
    /// The bytes are [`frame::END`].
    End(usize),
}

impl<S: AsyncRead + AsyncWrite + Unpin> LaneWriter<S> {
    /// Polls the writer for its task: reads acknowledgements, then writes. If
    /// [`write_inline`](Self::write_inline) has asked for a yield, this poll writes nothing and
    /// wakes the task; the next one records how many messages came meanwhile, and writes. Messages
    /// that came before this poll are recorded by it, if there are any.
    ///
    /// Ready when the writer has ended, checked in this order: it was superseded, the substream
    /// ended or an acknowledgement was invalid, an inline write has found the end, writing failed,
    /// the lane was finished or abandoned. Reads no acknowledgements once it closes the substream.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LaneEnd> {
        if !self.lane.register(self.turn, cx.waker()) {
            return Poll::Ready(LaneEnd::Superseded);
        }
        store_waker(&mut self.waker, cx.waker());
        if !self.closing
            && let Err(ended) = self.read_acks(cx)
        {
            return Poll::Ready(ended);
        }
        if let Some(before) = self.yielding_since.take() {
            self.adaptive_yield.learn(self.lane.appended() > before);
        } else if let Some(before) = self.yield_requested.take() {
            self.yielding_since = Some(before);
            // Messages that arrived before this poll would also have been written alone.
            if self.lane.appended() > before {
                self.adaptive_yield.learn(true);
            }
            if self.adaptive_yield.pays_off() {
                // A wake from within a poll puts the task at the end of the queue, from which any
                // thread may take it: tasks that are ready run first.
                cx.waker().wake_by_ref();
            } else {
                // Probably no other task has messages, so no second thread should be woken for this
                // yield.
                let _pending = pin!(tokio::task::yield_now()).poll(cx);
            }
            return Poll::Pending;
        }
        let ended = match self.ended.take() {
            Some(ended) => ended,
            None => ready!(self.write(cx)),
        };
        Poll::Ready(ended.unwrap_or_else(LaneEnd::Broken))
    }

    /// Writes inline, on behalf of the task, which later events of the stream wake. Returns `true`
    /// also if the stream had no room for all of it, and `false` if the caller must wake the lane's
    /// latest writer now: this one is not idle, its lane is no user lane, it yields first, or it
    /// has ended, which its task, woken here, then returns. In the first three cases nothing is
    /// written.
    fn write_inline(&mut self) -> bool {
        if !self.idle || self.lane.class() != TrafficClass::User {
            return false;
        }
        let Some(waker) = self.waker.clone() else { return false };
        if self.adaptive_yield.should_yield() {
            self.yield_requested = Some(self.lane.appended());
            return false;
        }
        match self.write(&mut Context::from_waker(&waker)) {
            Poll::Pending => true,
            Poll::Ready(ended) => {
                self.ended = Some(ended);
                waker.wake();
                false
            }
        }
    }

    // ── Writing ──

    /// Writes what the lane has. Pending while the stream has no room; pending, and idle, once
    /// everything that may be sent is flushed; pending, woken and not flushed, after
    /// [`STEPS_PER_POLL`] steps. Ready only at the end: with [`LaneEnd::Finished`] after the end
    /// frame was written and the stream closed, with [`LaneEnd::Superseded`], or with an error of
    /// the stream. A superseded writer first writes the rest of its batch.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<LaneEnd>> {
        self.idle = false;
        for _ in 0..STEPS_PER_POLL {
            ready!(self.write_batch(cx))?;
            if self.closing {
                ready!(Pin::new(&mut self.stream).poll_close(cx))?;
                return Poll::Ready(Ok(LaneEnd::Finished));
            }
            self.batch = match self.lane.take(self.turn, &mut self.copy) {
                WriterStep::Chunk(bytes, from) => PendingWrite::Chunk(bytes, from),
                WriterStep::Copied => PendingWrite::Copied(0),
                WriterStep::Finished => {
                    self.closing = true;
                    PendingWrite::End(0)
                }
                WriterStep::Superseded => return Poll::Ready(Ok(LaneEnd::Superseded)),
                WriterStep::Nothing => {
                    ready!(self.flush(cx))?;
                    self.idle = true;
                    return Poll::Pending;
                }
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes the rest of the batch, without a flush. Ready at once if there is none. A stream that
    /// accepts no byte fails with `WriteZero`.
    fn write_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (bytes, at) = match &mut self.batch {
                PendingWrite::None => return Poll::Ready(Ok(())),
                PendingWrite::Chunk(bytes, at) => (&bytes[..], at),
                PendingWrite::Copied(at) => (&self.copy[..], at),
                PendingWrite::End(at) => (&frame::END[..], at),
            };
            if *at == bytes.len() {
                self.batch = PendingWrite::None;
                self.unflushed = true;
                continue;
            }
            let len = ready!(Pin::new(&mut self.stream).poll_write(cx, &bytes[*at..]))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *at += len;
        }
    }

    /// Flushes the stream if a batch was written since the last flush; otherwise ready at once. A
    /// pending flush is done again by the next call.
    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    // ── Acknowledgements ──

    /// Reads and applies the available acknowledgements; after [`STEPS_PER_POLL`] reads it wakes
    /// the task for the rest. Fails, which ends the writer, if the stream ends or breaks
    /// ([`LaneEnd::Broken`]) or an acknowledgement is invalid ([`LaneEnd::Violation`]).
    fn read_acks(&mut self, cx: &mut Context<'_>) -> Result<(), LaneEnd> {
        for _ in 0..STEPS_PER_POLL {
            match self.acks.poll_fill(cx, &mut self.stream) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Ok(0)) => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Poll::Ready(Ok(_)) => self.apply_acks()?,
                Poll::Ready(Err(cause)) => return Err(cause.into()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Applies the acknowledgements that are complete in the buffer, all of them by the newest one,
    /// and skips frames of unknown kinds from 128 on. Fails if an acknowledgement is lower than one
    /// before, or beyond what was sent, if a frame is of a kind that only the sender of a lane may
    /// use, or if one is malformed or longer than [`FRAME_BYTES`]. Then none of them is applied.
    fn apply_acks(&mut self) -> Result<(), FrameViolation> {
        let mut newest = None;
        while let FrameParseResult::Frame(frame, len) = frame::cut(self.acks.unread(), FRAME_BYTES)?
        {
            match frame {
                Frame::Ack { accepted } => match newest.replace(accepted) {
                    Some(before) if before > accepted => {
                        return Err(FrameViolation::AckBackwards { before, accepted });
                    }
                    _ => {}
                },
                Frame::Unknown(_) => {}
                Frame::Message { .. } => return Err(FrameViolation::Direction(kind::MESSAGE)),
                Frame::First { .. } => return Err(FrameViolation::Direction(kind::FIRST)),
                Frame::Continue(_) => return Err(FrameViolation::Direction(kind::CONTINUE)),
                Frame::Last(_) => return Err(FrameViolation::Direction(kind::LAST)),
                Frame::End => return Err(FrameViolation::Direction(kind::END)),
            }
            self.acks.consume(len);
        }
        newest.map_or(Ok(()), |accepted| self.lane.acknowledge(self.turn, accepted))
    }
}
