//! The other end of a muxer in tests: the `yamux` crate behind libp2p's traits, or frames by hand.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use yamux::{Config, Connection, ConnectionError, Mode};

pub(super) struct Theirs<C> {
    connection: Connection<C>,
    arrived: VecDeque<yamux::Stream>,
    taker: Option<Waker>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Theirs<C> {
    pub(super) fn new(socket: C, mode: Mode) -> Self {
        let connection = Connection::new(socket, Config::default(), mode);
        Self { connection, arrived: VecDeque::new(), taker: None }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Theirs<C> {
    type Substream = yamux::Stream;
    type Error = ConnectionError;

    fn poll_inbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<yamux::Stream, ConnectionError>> {
        self.taker = Some(cx.waker().clone());
        self.arrived.pop_front().map_or(Poll::Pending, |stream| Poll::Ready(Ok(stream)))
    }

    fn poll_outbound(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<yamux::Stream, ConnectionError>> {
        self.connection.poll_new_outbound(cx)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ConnectionError>> {
        self.connection.poll_close(cx)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, ConnectionError>> {
        let next = ready!(self.connection.poll_next_inbound(cx));
        let stream = next.unwrap_or(Err(ConnectionError::Closed))?;
        self.arrived.push_back(stream);
        if let Some(taker) = self.taker.take() {
            taker.wake();
        }
        cx.waker().wake_by_ref(); // there may be more
        Poll::Pending
    }
}

/// Passes data on only with a flush, like a cipher.
pub(super) struct FlushedSocket<C> {
    socket: C,
    held: Vec<u8>,
}

impl<C> FlushedSocket<C> {
    pub(super) const fn new(socket: C) -> Self {
        Self { socket, held: Vec::new() }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for FlushedSocket<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for FlushedSocket<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        const MAX: usize = 64 * 1024;
        if self.held.len() >= MAX {
            ready!(self.as_mut().poll_flush(cx))?;
        }
        self.held.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { socket, held } = &mut *self;
        while !held.is_empty() {
            let len = ready!(Pin::new(&mut *socket).poll_write(cx, held))?;
            held.drain(..len);
        }
        Pin::new(socket).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

/// Sends one piece after another, each at a new poll, and handles writes with `writing`.
pub(super) struct Deaf {
    pub(super) says: VecDeque<Vec<u8>>,
    pub(super) pauses: bool,
    pub(super) writing: fn() -> io::Result<usize>,
}

impl AsyncRead for Deaf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if std::mem::take(&mut self.pauses) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(saying) = self.says.front_mut() else { return Poll::Pending };
        let len = saying.len().min(into.len());
        into[..len].copy_from_slice(&saying[..len]);
        saying.drain(..len);
        if saying.is_empty() {
            self.says.pop_front();
            self.pauses = true;
        }
        Poll::Ready(Ok(len))
    }
}

impl AsyncWrite for Deaf {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready((self.writing)())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Kinds and flags of frames, from the specification.
pub(super) const DATA: u8 = 0;
pub(super) const WINDOW: u8 = 1;
pub(super) const PING: u8 = 2;
pub(super) const GOODBYE: u8 = 3;
pub(super) const SYN: u8 = 1;
pub(super) const ACK: u8 = 2;
pub(super) const FIN: u8 = 4;
pub(super) const RST: u8 = 8;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, len: u32) -> Vec<u8> {
    let mut bytes = vec![0, kind, 0, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

pub(super) fn data(flags: u8, stream: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame(DATA, flags, stream, bytes.len() as u32);
    frame.extend(bytes);
    frame
}
