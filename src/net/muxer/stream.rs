//! Stream handle for the user.

use std::fmt;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{AsyncRead, AsyncWrite};
use parking_lot::MutexGuard;

use super::SharedMuxer;
use super::pipe::{RecvBuffer, SharedStream, StreamState};

/// A duplex byte stream. Reading yields the peer's data until the peer closes its half, and fails
/// after a reset or the end of the connection; data received before is read first. Written data is
/// sent with a flush, or once there is much of it. Dropping the stream without closing it resets
/// the peer after the written data, or closes it, if the peer has closed its half. Dropping a
/// closed stream resets the peer once that sends data or has no credit left, unless the peer closes
/// its half before.
pub struct Stream<C> {
    shared: Arc<SharedMuxer<C>>,
    pipe: Arc<SharedStream>,
    reading: RecvBuffer, // taken from `pipe`; all its bytes already count as read there
}

impl<C> Stream<C> {
    pub(super) fn new(shared: Arc<SharedMuxer<C>>, pipe: Arc<SharedStream>) -> Self {
        Self { shared, pipe, reading: RecvBuffer::default() }
    }
}

impl<C> Stream<C> {
    /// Releases `state` before it locks the queue or wakes a task. If `enqueues`, adds the stream
    /// to the queue of waiting ones; not if it is in the queue, or is dead without having been
    /// dropped. If `notifies`, wakes the connection's task; not if the stream is not in the queue,
    /// or the task was notified since the stream's last turn.
    fn enqueue_and_notify(
        &self,
        mut state: MutexGuard<'_, StreamState>,
        enqueues: bool,
        notifies: bool,
    ) {
        let enqueues = enqueues && state.enqueue();
        let notifies = notifies && state.notify();
        drop(state);
        if enqueues {
            self.shared.waiting.push(&self.pipe);
        }
        if notifies {
            self.shared.wake();
        }
    }
}

impl<C> fmt::Debug for Stream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.pipe.id).finish()
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<C> {
    /// Reads received data, of one receive buffer per call; 0 once the peer's half has ended, and
    /// if `out` is empty while data is there. Pending until data arrives, even if `out` is empty.
    /// Fails, after the data received before, with `ConnectionReset` or `ConnectionAborted`.
    ///
    /// A whole buffer counts as read when its first byte is. Once half the window was read, the
    /// stream is queued and the connection's task woken to give the peer credit.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.reading.unread().is_empty() {
            let used = mem::take(&mut self.reading);
            let mut state = self.pipe.lock();
            let Some(bin) = state.read(used, cx.waker())? else { return Poll::Pending };
            let owes = state.owes_credit();
            self.enqueue_and_notify(state, owes, owes);
            self.reading = bin;
        }
        let len = out.len().min(self.reading.unread().len());
        out[..len].copy_from_slice(&self.reading.unread()[..len]);
        self.reading.consume(len);
        Poll::Ready(Ok(len))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<C> {
    /// Queues as many bytes as the peer's window and the limit of queued data (`PIECE`) allow, and
    /// returns their number; 0 only if `bytes` is empty. Writes nothing to the socket: the
    /// connection's task is woken only if a quarter of `PIECE` is queued, or there is no room at
    /// all, which is pending; and only once until the stream's next turn. Fails with `BrokenPipe`
    /// after a close, a reset, or the end of the connection, but not after the peer's close.
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.pipe.lock();
        let written = state.write(bytes, cx.waker())?;
        let goes_out = written.is_none() || state.is_large();
        self.enqueue_and_notify(state, written.is_some_and(|len| len > 0), goes_out);
        written.map_or(Poll::Pending, |len| Poll::Ready(Ok(len)))
    }

    /// Writes waiting frames of all streams inline, or wakes the connection's task if the session
    /// is in use or this task has no coop budget left. Does nothing if this stream has nothing
    /// queued, or the task was notified of it since the stream's last turn. Always ready: does not
    /// wait for the socket, and reports no error, even after a reset.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let notifies = self.pipe.lock().notify();
        if notifies {
            self.shared.push();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends this side's half: FIN follows the queued data, and the connection's task is woken.
    /// Reading goes on. Always ready, without waiting for the socket. A second call succeeds, also
    /// after a reset, as does one after the connection was closed by this side. Fails with
    /// `BrokenPipe` if the stream was reset or its connection broke before the first.
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.pipe.lock();
        let ends = state.finish()?;
        self.enqueue_and_notify(state, ends, true);
        Poll::Ready(Ok(()))
    }
}

impl<C> Drop for Stream<C> {
    /// Drops unread data, and queues the stream, so that the session sends the rest and removes it.
    /// Always wakes the connection's task, because opening a stream may wait for this one's place.
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.abandon();
        self.enqueue_and_notify(state, true, false);
        self.shared.wake(); // opening a stream may wait for this one's slot
    }
}
