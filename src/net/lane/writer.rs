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
use super::desk::Desk;
use super::outbound::Taken;
use super::{Ended, Lane};
use crate::net::Class;
use crate::net::frame::{self, Cut, FRAME_BYTES, Frame, Violation, kind};

/// Number of writes, and of reads of acknowledgements, before the task yields.
const STEPS_PER_POLL: usize = 16;

/// Carries the lane from message `accepted + 1` on, until it is finished or the substream ends.
///
/// If a lane has several writers, only the one that started last continues.
pub async fn run<S>(stream: S, lane: Lane, accepted: u64) -> Ended
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turn = match lane.resume(accepted) {
        Ok(turn) => turn,
        Err(violation) => return Ended::Violation(violation),
    };
    let desk = Desk::new(Writer {
        stream,
        lane: lane.clone(),
        turn,
        batch: Batch::None,
        copy: Vec::new(),
        unflushed: false,
        rests: false,
        put_off: None,
        gives_way: None,
        courtesy: Courtesy::default(),
        closing: false,
        ended: None,
        waker: None,
        acks: Buffer::new(FRAME_BYTES),
    });
    let beside = desk.beside();
    let stand_in: Arc<StandIn> = Arc::new(move || beside.write(Writer::write_now));
    lane.seat(turn, &stand_in);
    poll_fn(|cx| desk.with(|writer| writer.poll(cx))).await
}

/// Writes inline if the lane's writer is idle. Returns `false` if the writer must be woken instead.
pub(super) type StandIn = dyn Fn() -> bool + Send + Sync;

struct Writer<S> {
    stream: S,
    lane: Lane,
    turn: u64,
    batch: Batch,
    copy: Vec<u8>, // ≤ FRAME_BYTES
    unflushed: bool,
    rests: bool,            // idle: the last write sent everything
    put_off: Option<u64>,   // at this number of messages: the next poll must yield
    gives_way: Option<u64>, // it yields since this number of messages
    courtesy: Courtesy,
    closing: bool,
    ended: Option<io::Result<Ended>>, // during an inline write: the task must return it
    waker: Option<Waker>,             // of its task
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
#[derive(Debug, Default)]
struct Courtesy {
    worth: u8,   // further yields without gain that are allowed
    hurried: u8, // messages written alone since the last yield
    late: bool,  // the next trial comes one message later
}

impl Courtesy {
    /// Consecutive yields without gain after which it stops.
    const PATIENCE: u8 = 4;
    /// Messages written alone between two trials. Every second time it is one more, because
    /// otherwise all trials could hit the last messages of bursts, which nothing follows.
    const TRIAL_EVERY: u8 = 8;

    fn gives_way(&mut self) -> bool {
        self.hurried += 1;
        let trial = self.hurried >= Self::TRIAL_EVERY + u8::from(self.late);
        let tries = self.worth > 0 || trial;
        if tries {
            self.hurried = 0;
            self.late ^= trial;
        }
        tries
    }

    /// Whether yielding has found more messages lately.
    const fn is_worth(&self) -> bool {
        self.worth > 0
    }

    /// Records how many further messages were found after yielding.
    const fn learn(&mut self, more: u64) {
        self.worth = if more > 0 { Self::PATIENCE } else { self.worth.saturating_sub(1) };
    }
}

/// Bytes being written, and the offset of the next one.
enum Batch {
    None,
    Chunk(Arc<Vec<u8>>, usize),
    Copied(usize),
    End(usize),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if !self.lane.register(self.turn, cx.waker()) {
            return Poll::Ready(Ended::Superseded);
        }
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
        if !self.closing
            && let Err(ended) = self.read_acks(cx)
        {
            return Poll::Ready(ended);
        }
        if let Some(before) = self.gives_way.take() {
            self.courtesy.learn(self.lane.appended() - before);
        } else if let Some(before) = self.put_off.take() {
            self.gives_way = Some(before);
            // Messages that arrived before this poll would also have been written alone.
            match self.lane.appended() - before {
                0 => {}
                more => self.courtesy.learn(more),
            }
            if self.courtesy.is_worth() {
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
        Poll::Ready(ended.unwrap_or_else(Ended::Broken))
    }

    /// Writes inline, on behalf of the task, which later events of the stream wake. Returns `false`
    /// if the task must be woken now.
    fn write_now(&mut self) -> bool {
        if !self.rests || self.lane.class() != Class::User {
            return false;
        }
        let Some(waker) = self.waker.clone() else { return false };
        if self.courtesy.gives_way() {
            self.put_off = Some(self.lane.appended());
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

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Ended>> {
        self.rests = false;
        for _ in 0..STEPS_PER_POLL {
            ready!(self.write_batch(cx))?;
            if self.closing {
                ready!(Pin::new(&mut self.stream).poll_close(cx))?;
                return Poll::Ready(Ok(Ended::Finished));
            }
            self.batch = match self.lane.take(self.turn, &mut self.copy) {
                Taken::Chunk(bytes, from) => Batch::Chunk(bytes, from),
                Taken::Copied => Batch::Copied(0),
                Taken::Finished => {
                    self.closing = true;
                    Batch::End(0)
                }
                Taken::Superseded => return Poll::Ready(Ok(Ended::Superseded)),
                Taken::Nothing => {
                    ready!(self.flush(cx))?;
                    self.rests = true;
                    return Poll::Pending;
                }
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn write_batch(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (bytes, at) = match &mut self.batch {
                Batch::None => return Poll::Ready(Ok(())),
                Batch::Chunk(bytes, at) => (&bytes[..], at),
                Batch::Copied(at) => (&self.copy[..], at),
                Batch::End(at) => (&frame::END[..], at),
            };
            if *at == bytes.len() {
                self.batch = Batch::None;
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

    fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    // ── Acknowledgements ──

    /// Reads the available acknowledgements. An error ends the writer.
    fn read_acks(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
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

    fn apply_acks(&mut self) -> Result<(), Violation> {
        let mut newest = None;
        while let Cut::Frame(frame, len) = frame::cut(self.acks.unread(), FRAME_BYTES)? {
            match frame {
                Frame::Ack { accepted } => match newest.replace(accepted) {
                    Some(before) if before > accepted => {
                        return Err(Violation::AckBackwards { before, accepted });
                    }
                    _ => {}
                },
                Frame::Unknown(_) => {}
                Frame::Message { .. } => return Err(Violation::Direction(kind::MESSAGE)),
                Frame::First { .. } => return Err(Violation::Direction(kind::FIRST)),
                Frame::Continue(_) => return Err(Violation::Direction(kind::CONTINUE)),
                Frame::Last(_) => return Err(Violation::Direction(kind::LAST)),
                Frame::End => return Err(Violation::Direction(kind::END)),
            }
            self.acks.consume(len);
        }
        newest.map_or(Ok(()), |accepted| self.lane.acknowledge(self.turn, accepted))
    }
}

#[cfg(test)]
mod tests {
    use super::Courtesy;

    /// Number of yields for 800 messages, if each yield finds this many further messages.
    fn given(more: u64) -> usize {
        let mut courtesy = Courtesy::default();
        let given = (0..800).filter(|_| {
            let given = courtesy.gives_way();
            if given {
                courtesy.learn(more);
            }
            given
        });
        given.count()
    }

    #[test]
    fn writer_yields_while_it_finds_more_messages() {
        assert_eq!(given(3), 793, "always, once it was tried");
    }

    #[test]
    fn lone_messages_rarely_wait_for_a_yield() {
        assert_eq!(given(0), 94, "one of eight, one of nine, and so on");
    }

    #[test]
    fn writer_stops_yielding_without_gain() {
        let mut courtesy = Courtesy::default();
        courtesy.learn(1);
        for _ in 0..4 {
            assert!(courtesy.gives_way());
            courtesy.learn(0);
        }
        assert!(!courtesy.gives_way());
    }
}
