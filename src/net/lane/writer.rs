//! Carries a lane over one substream: writes what is queued, reads what is acknowledged.
//!
//! One task, both directions, never waiting for the one while the other could go on. What it has
//! taken is still the lane's: dropping the future at any point loses nothing.
//!
//! A message that is alone need not wait for that task: who sends it writes it in the task's place
//! as far as that goes at once, and the task is woken by whatever follows.

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

/// Writes, and reads of acknowledgements, before others get a turn.
const STEPS_PER_POLL: usize = 16;

/// Carries the lane from message `accepted + 1` on, until it is finished or the substream ends.
///
/// Of several writers of a lane only the one that began last goes on.
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

/// Writes in the place of a lane's writer, if that rests. `false`: the writer must be woken.
pub(super) type StandIn = dyn Fn() -> bool + Send + Sync;

struct Writer<S> {
    stream: S,
    lane: Lane,
    turn: u64,
    batch: Batch,
    copy: Vec<u8>, // ≤ FRAME_BYTES
    unflushed: bool,
    rests: bool,            // all was sent when it wrote last
    put_off: Option<u64>,   // with so many messages appended: polled next, it is to give way
    gives_way: Option<u64>, // and does, since then
    courtesy: Courtesy,
    closing: bool,
    ended: Option<io::Result<Ended>>, // while somebody stood in: its task is to say so
    waker: Option<Waker>,             // of its task
    acks: Buffer,
}

/// Whether a writer that rests lets others go first.
///
/// Who sends is often the first of many that have something to send: a runtime that runs first
/// what was woken last would have it write each message alone. But a task that goes to the end of
/// the queue costs the switch to a second thread, which tokio wakes for it: of a message that is
/// alone, most of its way. So it gives way while that has brought more to write, and else tries now
/// and then. When it does not, the sender writes on the spot: tokio wakes a second thread as well
/// for what is woken by the third task in a row of which each has woken the next, and an answer's
/// way has as many without the writer's.
#[derive(Debug, Default)]
struct Courtesy {
    worth: u8,   // how often yet in vain
    hurried: u8, // since it was tried last
    late: bool,  // the next trial
}

impl Courtesy {
    /// In vain in a row, before it stops.
    const PATIENCE: u8 = 4;
    /// Messages that are alone for one trial, and one more each second time: else all trials could
    /// fall on the last messages of bursts, which are followed by nothing.
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

    /// Whether others had something to send of late.
    const fn is_worth(&self) -> bool {
        self.worth > 0
    }

    /// So many messages more were there after it had given way.
    const fn learn(&mut self, more: u64) {
        self.worth = if more > 0 { Self::PATIENCE } else { self.worth.saturating_sub(1) };
    }
}

/// What is being written, and from where on.
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
            // What came before this poll would have been written alone as well.
            match self.lane.appended() - before {
                0 => {}
                more => self.courtesy.learn(more),
            }
            if self.courtesy.is_worth() {
                // A wake from within a poll goes to the end of the queue, from which any thread may
                // take it: those that are ready go first.
                cx.waker().wake_by_ref();
            } else {
                // Most likely there is nobody: no thread is woken to find that.
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

    /// On behalf of its task, which is woken by whatever follows. `false`: it must be woken now.
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

    // ── Forth ──

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

    // ── Back ──

    /// Reads what there is; an error is the end.
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

    /// How often it gives way in 800 messages, if each time so many messages more are there then.
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
    fn a_writer_gives_way_while_that_brings_more_to_write() {
        assert_eq!(given(3), 793, "always, once it was tried");
    }

    #[test]
    fn messages_that_are_alone_are_rarely_kept_waiting() {
        assert_eq!(given(0), 94, "one of eight, one of nine, and so on");
    }

    #[test]
    fn it_stops_when_that_brings_nothing_any_more() {
        let mut courtesy = Courtesy::default();
        courtesy.learn(1);
        for _ in 0..4 {
            assert!(courtesy.gives_way());
            courtesy.learn(0);
        }
        assert!(!courtesy.gives_way());
    }
}
