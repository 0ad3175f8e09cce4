//! A connection in memory that hands over bytes in any portions and breaks where it is told to.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures::io::{AsyncRead, AsyncWrite};

/// SplitMix64: chance that a seed decides.
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

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// From 1 to `max`, small ones as often as large ones.
    pub(crate) fn size(&mut self, max: usize) -> usize {
        let bits = self.below(max.ilog2() as usize + 1);
        (1 + self.below(2 << bits)).min(max)
    }
}

/// What a broken connection looks like to the end that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looks {
    /// What had arrived, then the end.
    Ended,
    /// An error, and what had arrived is gone.
    Reset,
    /// Nothing at all: only the writing end learns of it.
    Silent,
}

/// How a connection behaves.
#[derive(Clone, Debug)]
pub(crate) struct Nature {
    /// Bytes under way in each direction.
    pub(crate) capacity: usize,
    /// Bytes that get through, forth and back, before it breaks.
    pub(crate) lives: [usize; 2],
    /// What the break looks like.
    pub(crate) looks: Looks,
    /// Splits reads and writes at random.
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

/// One end; dropping it ends the connection.
pub(crate) struct End {
    connection: Arc<Mutex<Connection>>,
    writes: usize,
}

/// The opener's end and the acceptor's.
pub(crate) fn pipe(nature: Nature) -> (End, End) {
    let connection = Connection { nature, broken: false, halves: Default::default() };
    let connection = Arc::new(Mutex::new(connection));
    (End { connection: Arc::clone(&connection), writes: 0 }, End { connection, writes: 1 })
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.connection.lock().expect("no panic inside");
        let (broken, looks) = (connection.broken, connection.nature.looks);
        let reads = 1 - self.writes;
        // The end that sends messages always learns of the break.
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

impl AsyncWrite for End {
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

impl Drop for End {
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
