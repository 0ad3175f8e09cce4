//! A read buffer between the socket and the cipher, which by itself reads 8 KiB a call. It grows
//! only while reads come back full: a connection that says little costs no memory.
//!
//! It also says when a connection that always finds more is to let others have a turn. Who reads
//! what it has brought is woken by its task, and tokio runs the task that was woken last on that
//! thread alone: as long as the connection went on, its lanes' readers waited, and then it for them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};

const FIRST: usize = 16 * 1024;
const BYTES_MAX: usize = 128 * 1024;

/// Bytes after which others get a turn: a piece of a lane. (The last read may bring more.)
const BYTES_PER_TURN: usize = 64 * 1024;

pub(super) struct Buffered<S> {
    inner: S,
    bytes: Vec<u8>, // ≤ BYTES_MAX; empty until a read came back full
    from: usize,
    to: usize,
    this_turn: usize, // bytes read since others had theirs
}

impl<S> Buffered<S> {
    pub(super) const fn new(inner: S) -> Self {
        Self { inner, bytes: Vec::new(), from: 0, to: 0, this_turn: 0 }
    }

    /// `false`: it is others' turn.
    fn begins(&mut self, cx: &Context<'_>) -> bool {
        if self.this_turn < BYTES_PER_TURN {
            return true;
        }
        self.this_turn = 0;
        cx.waker().wake_by_ref();
        false
    }

    fn grow(&mut self) {
        let len = (self.bytes.len() * 2).clamp(FIRST, BYTES_MAX);
        self.bytes.resize(len, 0);
    }
}

/// Reads, and counts it as part of this turn.
fn poll_read<S: AsyncRead + Unpin>(
    inner: &mut S,
    this_turn: &mut usize,
    cx: &mut Context<'_>,
    out: &mut [u8],
) -> Poll<io::Result<usize>> {
    let read = Pin::new(inner).poll_read(cx, out);
    match &read {
        Poll::Ready(Ok(len)) => *this_turn += len,
        Poll::Ready(Err(_)) => {}
        Poll::Pending => *this_turn = 0, // others have theirs
    }
    read
}

impl<S: AsyncRead + Unpin> AsyncRead for Buffered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.from == this.to {
            if !this.begins(cx) {
                return Poll::Pending;
            }
            if out.len() >= this.bytes.len() {
                let read = ready!(poll_read(&mut this.inner, &mut this.this_turn, cx, out))?;
                if read == out.len() && read > 0 {
                    this.grow();
                }
                return Poll::Ready(Ok(read));
            }
            this.to = ready!(poll_read(&mut this.inner, &mut this.this_turn, cx, &mut this.bytes))?;
            this.from = 0;
        }
        let len = out.len().min(this.to - this.from);
        out[..len].copy_from_slice(&this.bytes[this.from..this.from + len]);
        this.from += len;
        if this.from == this.to && this.to == this.bytes.len() {
            this.grow(); // it came back full, and has been handed out
        }
        Poll::Ready(Ok(len))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Buffered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::{AsyncReadExt, FutureExt};

    use super::*;

    /// Gives `left` bytes, at most `each` a call, counting up.
    struct Source {
        left: usize,
        each: usize,
        next: u8,
        calls: usize,
    }

    impl AsyncRead for Source {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            out: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let len = out.len().min(self.each).min(self.left);
            for byte in &mut out[..len] {
                *byte = self.next;
                self.next = self.next.wrapping_add(1);
            }
            self.left -= len;
            self.calls += 1;
            Poll::Ready(Ok(len))
        }
    }

    fn drain(left: usize, each: usize) -> Buffered<Source> {
        let mut buffered = Buffered::new(Source { left, each, next: 0, calls: 0 });
        let (mut expected, mut total) = (0_u8, 0);
        let mut out = [0; 8 * 1024];
        loop {
            let read = block_on(buffered.read(&mut out)).expect("the source never fails");
            if read == 0 {
                break;
            }
            for byte in &out[..read] {
                assert_eq!(*byte, expected);
                expected = expected.wrapping_add(1);
            }
            total += read;
        }
        assert_eq!(total, left);
        buffered
    }

    #[test]
    fn a_busy_connection_reads_in_few_calls_and_stops_growing_at_its_limit() {
        let buffered = drain(4 * 1024 * 1024, usize::MAX);
        assert_eq!(buffered.bytes.len(), BYTES_MAX);
        assert!(buffered.inner.calls < 48, "{} calls", buffered.inner.calls);
    }

    #[test]
    fn a_quiet_connection_takes_no_memory() {
        let buffered = drain(100_000, 100);
        assert_eq!(buffered.bytes.capacity(), 0);
    }

    #[test]
    fn others_have_a_turn_after_each_piece_however_much_there_is() {
        let mut buffered = Buffered::new(Source { left: 1 << 20, each: 5_000, next: 0, calls: 0 });
        let mut out = [0; 4_000];
        let (mut left, mut turns, mut since) = (1 << 20, 0, 0);
        while left > 0 {
            match buffered.read(&mut out).now_or_never() {
                Some(read) => {
                    let read = read.expect("the source never fails");
                    (left, since) = (left - read, since + read);
                    assert!(since <= BYTES_PER_TURN + FIRST, "{since} bytes in one turn");
                }
                None => (turns, since) = (turns + 1, 0),
            }
        }
        assert!((12..=16).contains(&turns), "{turns} turns");
        assert_eq!(block_on(buffered.read(&mut out)).expect("the source never fails"), 0);
    }

    #[test]
    fn an_empty_read_of_nothing_does_not_grow_it() {
        let mut buffered = Buffered::new(Source { left: 10, each: 10, next: 0, calls: 0 });
        assert_eq!(buffered.read(&mut []).now_or_never().expect("ready").expect("fine"), 0);
        assert_eq!(buffered.bytes.capacity(), 0);
    }
}
