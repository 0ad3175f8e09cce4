//! Where a stream is read to: large when much comes, small when little does.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::io::AsyncRead;

/// The size at first, and after a while of little; bytes.
const BYTES_MIN: usize = 4 * 1024;

/// The size under load, bytes; more only where frames may be longer.
const BYTES_MAX: usize = 256 * 1024;

/// Reads in a row that used less than an eighth, before it shrinks.
const SMALL_READS: u32 = 1_024;

/// Bytes that were read and not yet used.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>, // ≤ max
    start: usize,
    end: usize,
    max: usize,
    small_reads: u32,
}

impl Buffer {
    /// Takes frames of up to `frame_max` bytes.
    pub(super) fn new(frame_max: usize) -> Self {
        Self { bytes: Vec::new(), start: 0, end: 0, max: BYTES_MAX.max(frame_max), small_reads: 0 }
    }

    /// What was read and not used.
    #[inline]
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Uses up the first `len` bytes.
    #[inline]
    pub(super) fn consume(&mut self, len: usize) {
        self.start += len;
        assert!(self.start <= self.end, "no more is used than was read");
    }

    /// Reads once; how many bytes came. 0 at the stream's end.
    pub(super) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<io::Result<usize>> {
        self.make_room();
        let space = &mut self.bytes[self.end..];
        let len = ready!(Pin::new(stream).poll_read(cx, space))?;
        assert!(len <= space.len(), "a stream reads no more than it was given room for");
        self.end += len;
        self.note(len);
        Poll::Ready(Ok(len))
    }

    /// Moves what is left (less than a frame) to the front, and grows once that is all there is
    /// room for: never by a length that someone claims.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            let len = (2 * self.bytes.len()).clamp(BYTES_MIN, self.max);
            assert!(len > self.bytes.len(), "a whole frame fits, and frames are used up first");
            self.resize(len);
        }
    }

    fn note(&mut self, len: usize) {
        if self.end == self.bytes.len() && self.bytes.len() < self.max {
            self.resize((2 * self.bytes.len()).min(self.max));
        }
        self.small_reads = if len < self.bytes.len() / 8 { self.small_reads + 1 } else { 0 };
        if self.small_reads >= SMALL_READS && self.bytes.len() > BYTES_MIN {
            self.small_reads = 0;
            let len = (self.bytes.len() / 2).max(self.end);
            self.bytes.truncate(len);
            self.bytes.shrink_to_fit();
        }
    }

    fn resize(&mut self, len: usize) {
        self.bytes.reserve_exact(len - self.bytes.len());
        self.bytes.resize(len, 0);
    }
}
