//! Muxer: many streams over one connection, with the wire protocol of yamux.
//!
//! Why not the `yamux` crate: it writes each frame by itself (an encrypted message, a system call
//! and a wake-up for every acknowledgement and every credit), needs the connection's task for each
//! of them, and reads nothing while the answer to a ping waits to be written, so that two nodes
//! with saturated connections can block each other. This muxer writes all waiting frames together.
//! On an idle connection a sender writes inline, and reading never waits for writing
//! (docs/protocol/transport.md#reading-never-waits-for-writing). A window grows only while its data
//! waits for the stream's reader, not for the connection: a busy stream with 2 MiB in the socket
//! buffers would delay all other streams by that much.
//!
//! A `MuxerSession` owns the socket. One caller at a time uses it: the connection's task or, while
//! that is idle, a task that writes to a stream. A `SharedStream` holds the state of one stream.
//! Its lock is never held during reading, writing or encryption.

mod half_closed;
mod header;
mod pipe;
mod session;
mod stream;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::{AsyncRead, AsyncWrite};
use libp2p::core::muxing::{StreamMuxer, StreamMuxerEvent};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use parking_lot::Mutex;
use tokio::task::coop;

use self::pipe::SharedStream;
use self::session::MuxerSession;
pub use self::stream::Stream;
use crate::combiner::{Combiner, OwnerAccess};
use crate::wakers::store_waker;

/// Creates muxers with a limit of streams.
#[derive(Clone, Debug)]
pub struct Yamux {
    streams_max: usize,
}

impl Yamux {
    /// Creates an upgrade with at most `streams_max` concurrent streams per connection, both
    /// directions together. Beyond it, a stream opened by the peer is reset, and opening one waits.
    /// A stream counts until its user has dropped it and its last frame is being written, also if
    /// it was reset before.
    #[must_use]
    pub const fn new(streams_max: usize) -> Self {
        Self { streams_max }
    }
}

impl UpgradeInfo for Yamux {
    type Info = &'static str;
    type InfoIter = iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        iter::once("/yamux/1.0.0")
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> InboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<Muxer<C>, Infallible>>;

    fn upgrade_inbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(socket, MuxerSide::Server, self.streams_max)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<Muxer<C>, Infallible>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(socket, MuxerSide::Client, self.streams_max)))
    }
}

/// Side of the connection, which decides the stream ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MuxerSide {
    /// Dialled the connection; its streams have odd ids.
    Client,
    /// Accepted the connection; its streams have even ids.
    Server,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MuxerError {
    /// Normal end: the peer has sent go-away, with any code, or has closed the socket between two
    /// frames. Also returned after the session was removed or a user of it has panicked.
    #[error("the peer has closed the connection")]
    Closed,
    /// The socket failed, or ended within a frame.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The peer violated the protocol, and was sent go-away if the socket accepted it at once.
    #[error("the peer violated the yamux protocol")]
    Violation(#[from] MuxerViolation),
    /// This side has used its stream ids except for the last one, about 2³¹.
    #[error("the stream ids of the connection are used up: dial again")]
    NoMoreStreams,
}

/// Violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MuxerViolation {
    /// A frame has an unknown version.
    #[error("a frame has version {0}, expected 0")]
    Version(u8),
    /// A frame is of an unknown kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A stream id that the peer may not use: even ids belong to the accepting side, odd ids to the
    /// dialling side, and 0 to neither.
    #[error("it opened stream {0}, whose id it may not use")]
    Id(u32),
    /// The stream id is in use: that stream is open, or its peer has reset it while the user still
    /// holds it. yamux demands a new id for each stream.
    #[error("it opened stream {0}, whose id is still in use")]
    OpenedTwice(u32),
    /// The peer sends more data than its window allows.
    #[error("it sent {sent} bytes on a stream whose window has {granted}")]
    Window {
        /// Bytes that the window allows.
        granted: u32,
        /// Bytes that the frame announces.
        sent: u32,
    },
    /// The window would grow to 2³² bytes or more.
    #[error("it raised a window beyond 2^32 - 1 bytes")]
    Credit,
    /// The peer opens streams beyond the limit faster than their refusals are written: 256 are
    /// waiting.
    #[error("it opened streams beyond the limit faster than they could be refused")]
    Insists,
}

/// Queue of the streams that have something to send, in the order of their turns. Each is in it at
/// most once, which [`StreamState::enqueue`](pipe::StreamState::enqueue) ensures.
#[derive(Debug, Default)]
struct SendQueue(Mutex<VecDeque<Arc<SharedStream>>>);

impl SendQueue {
    fn push(&self, pipe: &Arc<SharedStream>) {
        self.0.lock().push_back(Arc::clone(pipe));
    }

    fn pop(&self) -> Option<Arc<SharedStream>> {
        self.0.lock().pop_front()
    }
}

/// State of a connection that its streams share.
#[derive(Debug)]
struct SharedMuxer<C> {
    combiner: Combiner<MuxerSession<C>>, // the connection's task owns the session
    waiting: SendQueue,
    task: Mutex<Option<Waker>>,
}

impl<C> SharedMuxer<C> {
    /// Wakes the connection's task; does nothing if it has never been polled.
    fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> SharedMuxer<C> {
    /// Writes waiting frames inline, if the session is not in use, the connection's task does not
    /// wait for it and the caller has coop budget left; otherwise wakes the connection's task. Also
    /// wakes it if it wanted the session meanwhile, and if the inline write panics.
    fn push(&self) {
        let _ended_by_a_panic = WakeOnPanic(self);
        // A task without remaining coop budget could write nothing.
        let is_done = coop::has_budget_remaining()
            && !self.combiner.owner_waits()
            && self.combiner.help(|session| {
                let task = self.task.lock().clone();
                if let Some(task) = task {
                    session.push(&task, &self.waiting);
                }
                true
            });
        if !is_done {
            self.wake();
        }
    }

    /// Registers this task to be woken, in place of the one before.
    fn register(&self, cx: &Context<'_>) {
        store_waker(&mut self.task.lock(), cx.waker());
    }

    /// Registers this task as the one to wake, then runs a query on the session. Pending, without
    /// running it, while a writer uses the session, which wakes the task afterwards;
    /// [`MuxerError::Closed`] once the session is removed or a user of it has panicked.
    fn ask<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut MuxerSession<C>, &mut Context<'_>) -> Poll<Result<T, MuxerError>>,
    ) -> Poll<Result<T, MuxerError>> {
        self.register(cx);
        into_poll(self.combiner.query(|session| ask(session, cx)))
    }
}

/// Wakes the connection's task if an inline write panics, so that the task ends the connection.
struct WakeOnPanic<'a, C>(&'a SharedMuxer<C>);

impl<C> Drop for WakeOnPanic<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

/// Translates an access: the result of the call, pending while the session is in use,
/// [`MuxerError::Closed`] once it is gone.
fn into_poll<T>(found: OwnerAccess<Poll<Result<T, MuxerError>>>) -> Poll<Result<T, MuxerError>> {
    match found {
        OwnerAccess::Free(result) => result,
        OwnerAccess::Busy => Poll::Pending,
        OwnerAccess::Gone => Poll::Ready(Err(MuxerError::Closed)),
    }
}

/// One end of a connection. It reads only while it is polled; waiting frames are also written
/// inline by the streams. Dropping it ends its streams.
#[derive(Debug)]
pub struct Muxer<C> {
    shared: Arc<SharedMuxer<C>>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Muxer<C> {
    fn new(socket: C, mode: MuxerSide, streams_max: usize) -> Self {
        let shared = SharedMuxer {
            combiner: Combiner::new(MuxerSession::new(socket, mode, streams_max)),
            waiting: SendQueue::default(),
            task: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    fn stream(&self, pipe: Arc<SharedStream>) -> Stream<C> {
        Stream::new(Arc::clone(&self.shared), pipe)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = Stream<C>;
    type Error = MuxerError;

    /// Returns the next stream that the peer has opened, among those that `poll` has read; also one
    /// that the peer has reset since. Reads nothing itself.
    fn poll_inbound(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Stream<C>, MuxerError>> {
        let arrived = self.shared.ask(cx, |session, _| session.poll_arrived().map(Ok));
        arrived.map_ok(|pipe| self.stream(pipe))
    }

    /// Opens a stream, of which the peer learns by its first frame. Pending while the connection
    /// has its maximum of streams, in both directions together: every dropped stream wakes the
    /// task. Fails with [`MuxerError::NoMoreStreams`] once the ids are used up.
    fn poll_outbound(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Stream<C>, MuxerError>> {
        let opened = self.shared.ask(cx, |session, _| session.poll_open());
        opened.map_ok(|pipe| self.stream(pipe))
    }

    /// Ends all streams for their users, writes queued data and go-away, and closes the socket.
    /// Received data can still be read, but nothing is read from the socket. Pending until all is
    /// written; an error of writing ends it.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), MuxerError>> {
        self.shared.ask(cx, |session, cx| session.poll_close(cx, &self.shared.waiting))
    }

    /// Reads as far as possible, then writes up to a limit, after which it wakes its own task.
    /// libp2p calls it on every poll, before the others. Ready only with the error that ends the
    /// connection; then all its streams have failed, and it must not be polled again. Pending while
    /// a writer uses the session.
    fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<StreamMuxerEvent, MuxerError>> {
        self.shared.register(cx);
        into_poll(self.shared.combiner.work(|session| {
            let polled = session.poll(cx, &self.shared.waiting);
            if polled.is_ready() {
                session.end();
            }
            polled.map_ok(|never| match never {})
        }))
    }
}

impl<C> Drop for Muxer<C> {
    /// Fails all streams and drops the session with its socket; queued data and go-away are not
    /// sent. Blocks until an inline write has returned.
    fn drop(&mut self) {
        if let Some(mut session) = self.shared.combiner.remove() {
            session.end();
        }
    }
}
