//! Read buffer of a stream: grows under load, and shrinks when little arrives.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::io::AsyncRead;

/// Initial size, and size after a period of little traffic, in bytes.
const BYTES_MIN: usize = 4 * 1024;

/// Size under load, in bytes; larger only where frames may be longer. A quarter of a stream's
/// window, because the muxer credits read bytes to the sender only at the next read, once the
/// buffer has been consumed.
const BYTES_MAX: usize = 64 * 1024;

/// Number of consecutive reads of less than an eighth of the buffer after which it is halved once;
/// the next halving takes as many reads again.
const SMALL_READS: u32 = 1_024;

/// Bytes that were read and not yet consumed: `bytes[start..end]`. Its size is the length of
/// `bytes`.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>, // ≤ max
    start: usize,
    end: usize,
    max: usize, // ≥ BYTES_MAX
    small_reads: u32,
}

impl Buffer {
    /// Creates a buffer for frames of up to `frame_max` bytes; its maximum size is that or
    /// [`BYTES_MAX`], whichever is larger. Allocates nothing before the first read.
    pub(super) fn new(frame_max: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, max: BYTES_MAX.max(frame_max), small_reads: 0 }
    }

    /// Bytes that were read and not yet consumed.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Consumes the first `len` unread bytes. Panics if there are fewer. Moves and frees nothing.
    #[inline]
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "at most the unread bytes are consumed");
    }

    /// Reads once, and returns the number of bytes; 0 at the end of the stream. Adapts the size of
    /// the buffer before the read, also if that is pending or fails, and after it. The unread bytes
    /// stay in any case, and new ones follow them.
    ///
    /// The caller must have consumed all whole frames. Panics if the unread bytes fill a buffer of
    /// the maximum size, which a part of a frame cannot do.
    pub(super) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let space = &mut self.bytes[self.end..];
        let len = ready!(Pin::new(stream).poll_read(cx, space))?;
        assert!(len <= space.len(), "a stream reads at most as much as there is room");
        self.end += len;
        self.note(len);
        Poll::Ready(Ok(len))
    }

    /// Moves the unread rest (less than a frame) to the front, and doubles the buffer, up to `max`,
    /// if the rest fills it; an empty buffer gets [`BYTES_MIN`]. Panics if the rest fills a buffer
    /// of `max` bytes. It never grows by a length that a peer only claims.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let len = (2 * self.bytes.len()).clamp(BYTES_MIN, self.max);
            assert!(len > self.bytes.len(), "a whole frame fits, and frames are consumed first");
            self.resize(len);
        }
    }

    /// Adapts the size after a read of `len` bytes: doubles a buffer that the read has filled, up
    /// to `max`, or halves it after [`SMALL_READS`] small reads in a row, but never below the
    /// unread bytes or [`BYTES_MIN`]. A read that is not small starts the count anew.
    fn note(&mut self, len: usize) {
        if self.end == self.bytes.len() && self.bytes.len() < self.max {
            self.resize((2 * self.bytes.len()).min(self.max));
        }
        self.small_reads = if len < self.bytes.len() / 8 { self.small_reads + 1 } else { 0 };
        if self.small_reads < SMALL_READS {
            return;
        }
        self.small_reads = 0;
        if self.bytes.len() > BYTES_MIN {
            let len = (self.bytes.len() / 2).max(self.end).max(BYTES_MIN);
            self.bytes.truncate(len);
            self.bytes.shrink_to_fit();
        }
    }

    /// Grows the buffer to exactly `len` bytes, which must not be less than its length. The new
    /// bytes are zero.
    fn resize(&mut self, len: usize) {
        self.bytes.reserve_exact(len - self.bytes.len());
        self.bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests {
    use futures::task::noop_waker;

    use super::*;

    /// Reads once from `bytes`.
    fn fill(buffer: &mut Buffer, mut bytes: &[u8]) -> usize {
        let waker = noop_waker();
        match buffer.poll_fill(&mut Context::from_waker(&waker), &mut bytes) {
            Poll::Ready(Ok(len)) => len,
            other => panic!("a slice is always ready: {other:?}"),
        }
    }

    #[test]
    fn buffer_grows_with_received_bytes_only() {
        let mut buffer = Buffer::new(64 * 1024);
        assert_eq!(fill(&mut buffer, &[0xff; 4]), 4);
        assert_eq!(buffer.bytes.len(), BYTES_MIN);
        let plenty = vec![7; 1 << 20];
        while buffer.unread().len() < BYTES_MAX - 1 {
            let before = buffer.unread().len();
            let space = buffer.bytes.len() - before;
            assert_eq!(fill(&mut buffer, &plenty[..space.max(1)]), space.max(1));
            assert!(buffer.bytes.len() <= (2 * buffer.unread().len()).clamp(BYTES_MIN, BYTES_MAX));
            if buffer.unread().len() == BYTES_MAX {
                break;
            }
        }
        assert_eq!(buffer.bytes.len(), BYTES_MAX);
    }

    #[test]
    fn buffer_shrinks_after_many_small_reads() {
        // The second one is no multiple of the least size.
        for max in [BYTES_MAX, 100_000] {
            let mut buffer = Buffer::new(max);
            while buffer.bytes.len() < max {
                let len = fill(&mut buffer, &vec![7; max]);
                buffer.consume(len);
            }
            for _ in 0..8 * SMALL_READS {
                let len = fill(&mut buffer, b"little");
                buffer.consume(len);
            }
            assert_eq!(buffer.bytes.len(), BYTES_MIN);
        }
    }

    #[test]
    fn count_of_small_reads_is_bounded_at_minimum_size() {
        let mut buffer = Buffer::new(BYTES_MAX);
        for _ in 0..3 * SMALL_READS {
            let len = fill(&mut buffer, b"little");
            buffer.consume(len);
            assert!(buffer.small_reads < SMALL_READS);
        }
        assert_eq!(buffer.bytes.len(), BYTES_MIN);
    }
}
