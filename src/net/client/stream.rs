//! Duplex stream between a client and a node, as either end holds it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{AsyncRead as _, AsyncWrite as _};
use libp2p::PeerId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::net::swarm::{CountedSubstream, LimitSlot};

/// An ordered byte stream to the other end. The transport does not interpret its bytes.
///
/// The end of the stream carries no information: a clean close, a reset and a dead connection may
/// all read as the end, so the protocol on top must mark its last message itself. Writing, flushing
/// and shutting down fail when the other end reads nothing for `limits.control-undrained-max`, so
/// that a peer that stops reading cannot block the writer for longer; the stream stays open.
/// Dropping the stream without a shutdown resets the other end.
#[derive(Debug)]
pub struct ClientStream {
    line: CountedSubstream,
    peer: PeerId,
    /// End of the reading half and of the writing half, both by the [`StreamEndGuard`].
    reading: EndSignal,
    writing: EndSignal,
    stall: Stall,
    _held: HeldResource,
}

/// Resource that is released when the stream is dropped, not when it ends: a slot at the node, the
/// connection at the client.
#[derive(Debug)]
pub(in crate::net) enum HeldResource {
    /// A slot out of the node's limit of clients.
    Slot { _slot: LimitSlot },
    /// The client's connection, which is closed when this sender is dropped.
    Connection { _in_use: oneshot::Sender<()> },
}

impl ClientStream {
    /// Wraps an admitted substream. The owner of the connection keeps the guard and drops it when
    /// the connection ends; the stream then ends ([`StreamEndGuard`]). `undrained_max` is the stall
    /// timeout of writes.
    pub(in crate::net) fn new(
        line: CountedSubstream,
        peer: PeerId,
        undrained_max: Duration,
        held: HeldResource,
    ) -> (Self, StreamEndGuard) {
        let (reader, reading) = oneshot::channel();
        let (writer, writing) = oneshot::channel();
        let [reading, writing] = [reading, writing].map(|signal| EndSignal(Some(signal)));
        let stall = Stall { longest: undrained_max, since: None };
        (
            Self { line, peer, reading, writing, stall, _held: held },
            StreamEndGuard([reader, writer]),
        )
    }

    /// Peer id of the other end, as authenticated by the connection.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Result of a write, flush or shutdown, given the result of the substream, which is returned
    /// if it is ready, also an error: an ended stream takes bytes as long as the substream does. A
    /// pending one fails with `ConnectionAborted`, checked first, when the stream was ended, and
    /// with `TimedOut` when the other end has read nothing for the stall timeout. Any ready result
    /// stops that time; a dropped future of a write does not.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall.since = None;
            return outcome;
        }
        if self.writing.is_ended(cx) {
            return Poll::Ready(Err(closed()));
        }
        if self.stall.is_over(cx) {
            let longest = self.stall.longest;
            let why = format!("the other end has taken nothing for {longest:?}");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        Poll::Pending
    }
}

/// The error of a half that was ended with its connection.
fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection is closed")
}

/// Ends a stream when it is dropped, because the connection itself may only end after the peer has
/// answered. Pending reads and writes of the stream then fail with `ConnectionAborted`; bytes that
/// have already arrived are still read.
#[derive(Debug)]
pub(in crate::net) struct StreamEndGuard([oneshot::Sender<()>; 2]);

impl StreamEndGuard {
    /// Whether the [`ClientStream`] was dropped, in which case the guard has no effect. `false` for
    /// a stream that the other end has closed but that still exists.
    pub(in crate::net) fn is_stream_dropped(&self) -> bool {
        self.0.iter().all(oneshot::Sender::is_closed)
    }
}

/// Whether this half was ended. Reader and writer may be two tasks, so each has its own channel.
#[derive(Debug)]
struct EndSignal(Option<oneshot::Receiver<()>>); // `None`: ended, and seen so

impl EndSignal {
    /// Whether the guard was dropped; from then on always true. Otherwise wakes the task when that
    /// happens.
    fn is_ended(&mut self, cx: &mut Context<'_>) -> bool {
        let signal = self.0.as_mut().map(|signal| Pin::new(signal).poll(cx));
        match signal {
            Some(Poll::Pending) => false,
            Some(Poll::Ready(_)) | None => {
                self.0 = None;
                true
            }
        }
    }
}

/// Timer that runs while the other end reads nothing, for at most `longest`.
#[derive(Debug)]
struct Stall {
    longest: Duration,
    /// Runs since the first of the pending writes; `None` if the last write was not pending.
    since: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    /// Starts the timer if it does not run, and returns whether its time is over. Otherwise wakes
    /// the task at its end. An expired timer stays expired until a write makes progress, so every
    /// pending write fails at once until then. Must be called in a tokio runtime.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let longest = self.longest;
        let end = self.since.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        end.as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for ClientStream {
    /// Reads what has arrived, also after the guard was dropped; fails with `ConnectionAborted`
    /// only then and when nothing is left. No bytes mean that the other end has closed its half.
    /// Reading has no timeout.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.line).poll_read(cx, into.initialize_unfilled());
        if outcome.is_pending() && self.reading.is_ended(cx) {
            return Poll::Ready(Err(closed()));
        }
        let read = ready!(outcome)?;
        into.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    /// Writes some of the bytes; see [`ClientStream`] for a peer that does not read.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.line).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    /// Sends buffered bytes. Limited in time as a write is.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.line).poll_flush(cx);
        self.written(cx, outcome)
    }

    /// Closes this half, so that the other end reads the end; reading goes on. Limited in time as a
    /// write is. The held resource stays until the stream is dropped.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.line).poll_close(cx);
        self.written(cx, outcome)
    }
}
