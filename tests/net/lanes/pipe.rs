//! A connection in memory that splits the bytes at random and breaks at a given position.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::io::{AsyncRead, AsyncWrite};

/// SplitMix64: random numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number from 1 to `max`; small ones are as frequent as large ones.
    pub(crate) fn size(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1);
        (1 + self.below(2 << bits)).min(max)
    }
}

/// How a broken connection appears to the reading end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    /// The bytes that had arrived, then the end.
    Ended,
    /// An error; the bytes that had arrived are lost.
    Reset,
    /// No sign of it: only the writing end notices.
    Silent,
}

/// Behaviour of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Nature {
    /// Maximum number of bytes in flight, in each direction.
    pub(crate) capacity: usize,
    /// Number of bytes that arrive, forth and back, before the connection breaks.
    pub(crate) lives: [usize; 2],
    /// How the break appears.
    pub(crate) looks: Looks,
    /// Splits reads and writes at random, if set.
    pub(crate) chance: Option<Chance>,
}

impl Default for Nature {
    fn default() -> Self {
        Self { capacity: 64 * 1024, lives: [usize::MAX; 2], looks: Looks::Ended, chance: None }
    }
}

struct Connection {
    nature: Nature,
    broken: bool,
    halves: [Half; 2],
}

#[derive(Default)]
struct Half {
    bytes: VecDeque<u8>,
    closed: bool,
    wakers: Vec<Waker>,
}

impl Connection {
    fn wake(&mut self) {
        for half in &mut self.halves {
            half.wakers.drain(..).for_each(Waker::wake);
        }
    }

    fn portion(&mut self, most: usize) -> usize {
        let Some(chance) = &mut self.nature.chance else { return most };
        if chance.one_in(2) { chance.size(most) } else { most }
    }
}

/// One end; dropping it breaks the connection.
pub(crate) struct PipeEnd {
    connection: Arc<Mutex<Connection>>,
    writes: usize,
}

/// Creates the opener's end and the acceptor's end.
pub(crate) fn pipe(nature: Nature) -> (PipeEnd, PipeEnd) {
    let connection = Connection { nature, broken: false, halves: Default::default() };
    let connection = Arc::new(Mutex::new(connection));
    (PipeEnd { connection: Arc::clone(&connection), writes: 0 }, PipeEnd { connection, writes: 1 })
}

impl AsyncRead for PipeEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.connection.lock().expect("no panic inside");
        let (broken, looks) = (connection.broken, connection.nature.looks);
        let reads = 1 - self.writes;
        // The end that sends messages always notices the break.
        if broken && looks == Looks::Reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let there = connection.halves[reads].bytes.len();
        if there > 0 {
            let len = connection.portion(there.min(into.len()));
            let half = &mut connection.halves[reads];
            for (to, byte) in into.iter_mut().zip(half.bytes.drain(..len)) {
                *to = byte;
            }
            connection.wake();
            return Poll::Ready(Ok(len));
        }
        let told = broken && (looks != Looks::Silent || self.writes == 0);
        if told || connection.halves[reads].closed {
            return Poll::Ready(Ok(0));
        }
        connection.halves[reads].wakers.push(cx.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for PipeEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.connection.lock().expect("no panic inside");
        if connection.broken && (connection.nature.looks != Looks::Silent || self.writes == 0) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = connection.nature.capacity - connection.halves[self.writes].bytes.len();
        if room == 0 || connection.broken {
            connection.halves[self.writes].wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        let len = connection.portion(room.min(bytes.len()));
        let through = len.min(connection.nature.lives[self.writes]);
        connection.nature.lives[self.writes] -= through;
        connection.halves[self.writes].bytes.extend(&bytes[..through]);
        if through < len {
            connection.broken = true;
        }
        connection.wake();
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut connection = self.connection.lock().expect("no panic inside");
        connection.halves[self.writes].closed = true;
        connection.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut connection = self.connection.lock().expect("no panic inside");
        if connection.nature.looks != Looks::Silent {
            connection.halves[self.writes].closed = true;
        }
        if !connection.halves[1 - self.writes].closed {
            connection.broken = true;
        }
        connection.wake();
    }
}
