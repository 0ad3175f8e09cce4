//! A client's stream, as either end holds it.

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

use crate::net::swarm::{Line, Slot};

/// Bytes to and from the other end, in order. What they mean is the users' business.
///
/// Its end is no message: a clean close, a reset and a dead connection may all read as the end, so
/// users say themselves when they have said all. Writing fails when the other end takes nothing
/// for `limits.control-undrained-max`: who stops reading holds nobody. Dropped without a shutdown,
/// it resets the other end.
#[derive(Debug)]
pub struct ClientStream {
    line: Line,
    peer: PeerId,
    reading: Cut,
    writing: Cut,
    stall: Stall,
    _held: Held,
}

/// What is given back when the stream is dropped.
#[derive(Debug)]
pub(in crate::net) enum Held {
    /// One of the node's places for clients.
    Place { _place: Slot },
    /// The client's connection.
    Connection { _in_use: oneshot::Sender<()> },
}

impl ClientStream {
    pub(in crate::net) fn new(
        line: Line,
        peer: PeerId,
        undrained_max: Duration,
        held: Held,
    ) -> (Self, Ends) {
        let (reader, reading) = oneshot::channel();
        let (writer, writing) = oneshot::channel();
        let [reading, writing] = [reading, writing].map(|told| Cut(Some(told)));
        let stall = Stall { longest: undrained_max, since: None };
        (Self { line, peer, reading, writing, stall, _held: held }, Ends([reader, writer]))
    }

    /// Who is at the other end: what the connection says.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// What writing has come to, given what the substream says.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        said: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if said.is_ready() {
            self.stall.since = None;
            return said;
        }
        if self.writing.is_cut(cx) {
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

/// Ends a stream when it is dropped: the connection's own end may wait for the peer.
#[derive(Debug)]
pub(in crate::net) struct Ends([oneshot::Sender<()>; 2]);

impl Ends {
    /// Whether the stream is gone.
    pub(in crate::net) fn are_over(&self) -> bool {
        self.0.iter().all(oneshot::Sender::is_closed)
    }
}

/// Whether this half was ended; reader and writer may be two tasks, so each has its own.
#[derive(Debug)]
struct Cut(Option<oneshot::Receiver<()>>); // none: it was

impl Cut {
    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        let told = self.0.as_mut().map(|told| Pin::new(told).poll(cx));
        match told {
            Some(Poll::Pending) => false,
            Some(Poll::Ready(_)) | None => {
                self.0 = None;
                true
            }
        }
    }
}

/// How long the other end has taken nothing.
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
        let said = Pin::new(&mut self.line).poll_read(cx, into.initialize_unfilled());
        if said.is_pending() && self.reading.is_cut(cx) {
            return Poll::Ready(Err(closed()));
        }
        let read = ready!(said)?;
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
        let said = Pin::new(&mut self.line).poll_write(cx, bytes);
        self.written(cx, said)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.line).poll_flush(cx);
        self.written(cx, said)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let said = Pin::new(&mut self.line).poll_close(cx);
        self.written(cx, said)
    }
}
