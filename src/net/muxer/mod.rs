//! The muxer: streams over one connection, in the wire protocol of yamux, which others speak too.
//!
//! Why our own: the `yamux` crate writes each frame by itself (a cipher message, a call of the system
//! and a wake-up for every acknowledgement and every credit), needs its connection's task for each
//! of them, and reads nothing while the answer to a ping waits to be written, so that two nodes that
//! are saturated both ways can wait for each other. Here what waits goes out together; who writes
//! little on a quiet connection writes it on the spot; and nothing that is written keeps anything
//! from being read. A window grows only while what it lets through waits for its reader, not for the
//! connection: a busy stream that had 2 MiB in the sockets would delay the others by as much
//! (spec/reference/libp2p.md §3.4).
//!
//! A `Session` has the socket and takes one caller at a time: the connection's task or, while that
//! is elsewhere, somebody who writes. A `Pipe` is one stream's state, under a lock that nobody
//! holds while anything is read, written or enciphered.

mod half_closed;
mod header;
mod pipe;
mod seat;
mod session;
mod stream;
#[cfg(test)]
mod threads;

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

use self::pipe::{Pipe, keep};
use self::seat::{Found, Seat};
use self::session::Session;
pub use self::stream::Stream;

/// What [`seat`] synchronises with; its tests have loom's.
mod sync {
    pub(super) use std::sync::Mutex;
    pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

/// Makes muxers.
#[derive(Clone, Debug)]
pub struct Yamux {
    streams_max: usize,
}

impl Yamux {
    /// At most `streams_max` at once on a connection, both directions together: the peer's next one
    /// is reset, and ours waits.
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
        ready(Ok(Muxer::new(socket, Mode::Server, self.streams_max)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> OutboundConnectionUpgrade<C> for Yamux {
    type Output = Muxer<C>;
    type Error = Infallible;
    type Future = Ready<Result<Muxer<C>, Infallible>>;

    fn upgrade_outbound(self, socket: C, _: Self::Info) -> Self::Future {
        ready(Ok(Muxer::new(socket, Mode::Client, self.streams_max)))
    }
}

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Who dialled: its streams have odd numbers.
    Client,
    /// Who was dialled: even ones.
    Server,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// In order: the peer has said goodbye, or has closed the socket between two frames.
    #[error("the peer has closed the connection")]
    Closed,
    /// The socket failed, or ended within a frame.
    #[error("the connection broke")]
    Io(#[from] io::Error),
    /// The peer did what no peer may; it was told goodbye.
    #[error("the peer breaks the rules of yamux")]
    Violation(#[from] Violation),
    /// This end has opened 2³¹ streams.
    #[error("the connection's numbers of streams are used up: dial anew")]
    NoMoreStreams,
}

/// What a peer may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The version of a frame.
    #[error("it speaks version {0}, not 0")]
    Version(u8),
    /// The kind of a frame.
    #[error("a frame is of the unknown kind {0}")]
    Kind(u8),
    /// Even numbers are for who was dialled, odd ones for who dialled, and none is 0.
    #[error("it opens stream {0}, a number that is not its own to give")]
    Id(u32),
    /// A stream of this number lives.
    #[error("it opens stream {0} a second time")]
    OpenedTwice(u32),
    /// More data than it has credit for.
    #[error("it sends {sent} bytes on a stream that takes {granted}")]
    Window {
        /// Bytes that it might have sent.
        granted: u32,
        /// Bytes that it says it sends.
        sent: u32,
    },
    /// 2³² bytes or more.
    #[error("it gives more credit than there can be")]
    Credit,
    /// Hundreds of refusals wait to be written.
    #[error("it opens streams beyond the limit faster than they are refused")]
    Insists,
}

/// Streams that have something to say, in the order of their turns; each is in it once.
#[derive(Debug, Default)]
struct Waiting(Mutex<VecDeque<Arc<Pipe>>>);

impl Waiting {
    fn push(&self, pipe: &Arc<Pipe>) {
        self.0.lock().push_back(Arc::clone(pipe));
    }

    fn pop(&self) -> Option<Arc<Pipe>> {
        self.0.lock().pop_front()
    }
}

/// What a connection shares with its streams.
#[derive(Debug)]
struct Shared<C> {
    seat: Seat<Session<C>>,
    waiting: Waiting,
    task: Mutex<Option<Waker>>,
}

impl<C> Shared<C> {
    /// The connection's task goes on.
    fn wake(&self) {
        if let Some(task) = &*self.task.lock() {
            task.wake_by_ref();
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> Shared<C> {
    /// Writes what waits on the spot, if the connection's task is elsewhere; else it is told.
    fn push(&self) {
        let _ended_by_a_panic = Alarm(self);
        // A task whose budget is used up could write nothing.
        let is_left = !coop::has_budget_remaining()
            || self.seat.stand_in(|session| {
                let task = self.task.lock().clone();
                if let Some(task) = task {
                    session.push(&task, &self.waiting);
                }
            });
        if is_left {
            self.wake();
        }
    }

    /// From here on this task is the one that is woken.
    fn enlist(&self, cx: &Context<'_>) {
        keep(&mut self.task.lock(), cx.waker());
    }

    fn ask<T>(
        &self,
        cx: &mut Context<'_>,
        ask: impl FnOnce(&mut Session<C>, &mut Context<'_>) -> Poll<Result<T, Error>>,
    ) -> Poll<Result<T, Error>> {
        self.enlist(cx);
        said(self.seat.ask(|session| ask(session, cx)))
    }
}

/// Who panics while it writes in the task's place leaves the end of the connection to the task.
struct Alarm<'a, C>(&'a Shared<C>);

impl<C> Drop for Alarm<'_, C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

fn said<T>(found: Found<Poll<Result<T, Error>>>) -> Poll<Result<T, Error>> {
    match found {
        Found::Free(said) => said,
        Found::Busy => Poll::Pending,
        Found::Gone => Poll::Ready(Err(Error::Closed)),
    }
}

/// One end of a connection. It moves bytes while it is polled; dropped, it ends its streams.
#[derive(Debug)]
pub struct Muxer<C> {
    shared: Arc<Shared<C>>,
}

impl<C: AsyncRead + AsyncWrite + Unpin> Muxer<C> {
    fn new(socket: C, mode: Mode, streams_max: usize) -> Self {
        let shared = Shared {
            seat: Seat::new(Session::new(socket, mode, streams_max)),
            waiting: Waiting::default(),
            task: Mutex::new(None),
        };
        Self { shared: Arc::new(shared) }
    }

    fn stream(&self, pipe: Arc<Pipe>) -> Stream<C> {
        Stream::new(Arc::clone(&self.shared), pipe)
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> StreamMuxer for Muxer<C> {
    type Substream = Stream<C>;
    type Error = Error;

    fn poll_inbound(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream<C>, Error>> {
        let arrived = self.shared.ask(cx, |session, _| session.poll_arrived().map(Ok));
        arrived.map_ok(|pipe| self.stream(pipe))
    }

    fn poll_outbound(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Stream<C>, Error>> {
        let opened = self.shared.ask(cx, |session, _| session.poll_open());
        opened.map_ok(|pipe| self.stream(pipe))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.shared.ask(cx, |session, cx| session.poll_close(cx, &self.shared.waiting))
    }

    /// The one call that moves anything; libp2p calls it each time, before the others.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<StreamMuxerEvent, Error>> {
        self.shared.enlist(cx);
        said(self.shared.seat.work(|session| {
            let polled = session.poll(cx, &self.shared.waiting);
            if polled.is_ready() {
                session.end();
            }
            polled.map_ok(|never| match never {})
        }))
    }
}

impl<C> Drop for Muxer<C> {
    fn drop(&mut self) {
        if let Some(mut session) = self.shared.seat.leave() {
            session.end();
        }
    }
}
