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
/// all read as the end, so the protocol on top must mark its last message itself. Writing fails
/// when the other end reads nothing for `limits.control-undrained-max`, so that a peer that stops
/// reading cannot block the writer for longer. Dropping the stream without a shutdown resets the
/// other end.
#[derive(Debug)]
pub struct ClientStream {
    line: CountedSubstream,
    peer: PeerId,
    reading: EndSignal,
    writing: EndSignal,
    stall: Stall,
    _held: HeldResource,
}

/// Resource that is released when the stream is dropped.
#[derive(Debug)]
pub(in crate::net) enum HeldResource {
    /// A slot out of the node's limit of clients.
    Slot { _slot: LimitSlot },
    /// The client's connection, which is closed when this sender is dropped.
    Connection { _in_use: oneshot::Sender<()> },
}

impl ClientStream {
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

    /// Result of a write, given the result of the substream: pending writes fail when the stream
    /// was ended or the stall timeout expired.
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

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection is closed")
}

/// Ends a stream when it is dropped, because the connection itself may only end after the peer has
/// answered.
#[derive(Debug)]
pub(in crate::net) struct StreamEndGuard([oneshot::Sender<()>; 2]);

impl StreamEndGuard {
    /// Whether the stream was dropped.
    pub(in crate::net) fn are_over(&self) -> bool {
        self.0.iter().all(oneshot::Sender::is_closed)
    }
}

/// Whether this half was ended. Reader and writer may be two tasks, so each has its own channel.
#[derive(Debug)]
struct EndSignal(Option<oneshot::Receiver<()>>); // `None`: ended

impl EndSignal {
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

/// Timer that runs while the other end reads nothing.
#[derive(Debug)]
struct Stall {
    longest: Duration,
    since: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let longest = self.longest;
        let end = self.since.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        end.as_mut().poll(cx).is_ready()
    }
}

impl AsyncRead for ClientStream {
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
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.line).poll_write(cx, bytes);
        self.written(cx, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.line).poll_flush(cx);
        self.written(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.line).poll_close(cx);
        self.written(cx, outcome)
    }
}
