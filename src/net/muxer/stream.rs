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
/// the peer after the written data. Dropping a closed stream resets the peer once that sends data
/// or has no credit left, unless the peer closes its half before.
pub struct Stream<C> {
    shared: Arc<SharedMuxer<C>>,
    pipe: Arc<SharedStream>,
    reading: RecvBuffer,
}

impl<C> Stream<C> {
    pub(super) fn new(shared: Arc<SharedMuxer<C>>, pipe: Arc<SharedStream>) -> Self {
        Self { shared, pipe, reading: RecvBuffer::default() }
    }
}

impl<C> Stream<C> {
    /// Adds the stream to the waiting ones if `lists`, and wakes the connection's task if `tells`
    /// and it was not told before.
    fn enqueue_and_notify(&self, mut state: MutexGuard<'_, StreamState>, lists: bool, tells: bool) {
        let lists = lists && state.enqueue();
        let tells = tells && state.notify();
        drop(state);
        if lists {
            self.shared.waiting.push(&self.pipe);
        }
        if tells {
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

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tells = self.pipe.lock().notify();
        if tells {
            self.shared.push();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.pipe.lock();
        let ends = state.finish()?;
        self.enqueue_and_notify(state, ends, true);
        Poll::Ready(Ok(()))
    }
}

impl<C> Drop for Stream<C> {
    fn drop(&mut self) {
        let mut state = self.pipe.lock();
        state.abandon();
        self.enqueue_and_notify(state, true, false);
        self.shared.wake(); // opening a stream may wait for this one's slot
    }
}
