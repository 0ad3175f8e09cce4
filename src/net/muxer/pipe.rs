//! State of one stream, in both directions: data waiting to be sent, and received data that is
//! unread.
//!
//! Without I/O: the session and the user's handle call it.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use super::MuxerViolation;
use super::header::{Flags, FrameHeader, FrameKind, HEADER_BYTES, WINDOW_FIRST};
use crate::net::noise::PLAIN_MAX;
use crate::wakers::store_waker;

/// Maximum number of bytes waiting to be sent on a stream: with its headers they fit into one
/// message of the cipher, if nothing precedes them.
pub(super) const PIECE: usize = PLAIN_MAX - 2 * HEADER_BYTES;

/// Maximum window of a stream, in bytes: unread and in flight. Reached only if the reader is slow.
const WINDOW_MAX: u32 = 1024 * 1024;

/// Number of consecutive credits to a fast reader after which the window shrinks.
const FAST_CREDITS_MAX: u8 = 32;

/// Length from which received bytes are moved with their buffer instead of copied.
const SMALL: usize = 4 * 1024;

/// Minimum size of a receive buffer.
const ROOM_MIN: usize = 1024;

/// Maximum number of empty buffers kept for reuse.
const SPARE_MAX: usize = 2;

/// Number of consecutive arrivals of less than [`SMALL`] after which no empty buffers of [`SMALL`]
/// and more are kept, until a longer one arrives.
const SMALL_ARRIVALS_MAX: u8 = 64;

/// Receive buffer: unread bytes from `from` to `to`, followed by free space.
#[derive(Debug, Default)]
pub(super) struct RecvBuffer {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl RecvBuffer {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Marks the first `len` unread bytes as read. Panics if there are fewer.
    pub(super) fn consume(&mut self, len: usize) {
        self.from += len;
        assert!(self.from <= self.to, "at most the unread bytes are consumed");
    }

    /// Free space of `len` bytes, for [`fill`](Self::fill). Nothing is unread then; the space is
    /// not cleared and holds previous contents. The buffer grows if necessary, and never shrinks.
    pub(super) fn space(&mut self, len: usize) -> &mut [u8] {
        (self.from, self.to) = (0, 0);
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }

    /// Marks the first `len` bytes of the space as filled, which are unread then. Panics if the
    /// buffer is shorter.
    pub(super) fn fill(&mut self, len: usize) {
        self.to = len;
        assert!(len <= self.bytes.len(), "a read is no longer than the space");
    }

    /// Copies bytes behind the unread ones. `false` if they do not all fit into the free space;
    /// then none is copied. Never grows the buffer.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.to..self.to + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.to += bytes.len();
        true
    }
}

/// Encoded headers that a stream sends in one turn: at most a window update and data.
#[derive(Debug, Default)]
pub(super) struct HeaderBuffer {
    bytes: [u8; 2 * HEADER_BYTES],
    from: usize,
    to: usize,
}

impl HeaderBuffer {
    /// Appends a header. Panics if there are two already.
    pub(super) fn push(&mut self, header: FrameHeader) {
        self.bytes[self.to..self.to + HEADER_BYTES].copy_from_slice(&header.encode());
        self.to += HEADER_BYTES;
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// Marks the next `len` bytes as sent. There must be as many, which is not checked.
    pub(super) fn sent(&mut self, len: usize) {
        self.from += len;
    }
}

/// Output of a stream's turn.
#[derive(Debug, Default)]
pub(super) struct TurnOutput {
    pub(super) headers: HeaderBuffer,
    /// The stream was dropped by its user and sends nothing after these frames: the session must
    /// remove it.
    pub(super) is_over: bool,
    /// The stream needs another turn, for a reset, and counts as queued already: the session must
    /// put it into the queue again.
    pub(super) goes_on: bool,
    /// Waker of a task that waits to write; only if queued data or FIN has left the stream.
    pub(super) writer: Option<Waker>,
}

/// State of this side's half: open, FIN waits to be sent, or FIN was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HalfState {
    Open,
    Ending,
    Ended,
}

/// State of the peer's half when the stream is removed on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerHalf {
    /// Ended by the peer, reset by either side, or failed with the connection.
    Closed,
    /// Open, and the peer has credit.
    Open,
    /// Open, and the peer has no credit, so that it may be waiting for some.
    Exhausted,
}

/// A stream, shared by its user and its connection.
#[derive(Debug)]
pub(super) struct SharedStream {
    pub(super) id: u32,
    state: Mutex<StreamState>,
}

#[derive(Debug)]
pub(super) struct StreamState {
    // Sending.
    opening: Flags, // flag of the first frame
    out: Vec<u8>,   // ≤ PIECE; within the peer's window
    credit: u32,    // further bytes that the peer's window allows
    fin: HalfState,
    writer: Option<Waker>,
    queued: bool,   // in the queue of waiting streams
    notified: bool, // and the connection's task was notified of it
    // Receiving.
    inbox: VecDeque<RecvBuffer>, // ≤ window
    spare: Vec<RecvBuffer>,      // ≤ SPARE_MAX, of SMALL and more
    small: RecvBuffer,           // spare, smaller than SMALL
    small_arrivals: u8,
    window: u32,      // granted + consumed + unread, if nothing is in flight
    fast_credits: u8, // consecutive credits to a fast reader
    granted: u32,     // bytes that the peer may send
    unread: u32,      // bytes in the inbox, or that were when the user dropped the stream
    consumed: u32,    // bytes read, not yet credited to the peer
    lag: u32,         // bytes unread after the last read
    ended: bool,      // the peer's half has ended with FIN
    reader: Option<Waker>,
    // Both.
    failure: Option<io::ErrorKind>, // error of reads, once the inbox is empty
    dead: bool,                     // failed or reset by `turn`: neither sends nor receives
    dropped: bool,                  // dropped by its user
}

impl SharedStream {
    /// Creates a stream that this side opens. Its first frame carries SYN.
    pub(super) fn outbound(id: u32) -> Self {
        Self::new(id, Flags::SYN, WINDOW_FIRST)
    }

    /// Creates a stream that the peer has opened and on which this side may send `credit` bytes.
    /// Its first frame carries ACK. The peer may send [`WINDOW_FIRST`] bytes.
    pub(super) fn inbound(id: u32, credit: u32) -> Self {
        Self::new(id, Flags::ACK, credit)
    }

    fn new(id: u32, opening: Flags, credit: u32) -> Self {
        let state = StreamState {
            opening,
            out: Vec::new(),
            credit,
            fin: HalfState::Open,
            writer: None,
            queued: false,
            notified: false,
            inbox: VecDeque::new(),
            spare: Vec::new(),
            small: RecvBuffer::default(),
            small_arrivals: 0,
            window: WINDOW_FIRST,
            fast_credits: 0,
            granted: WINDOW_FIRST,
            unread: 0,
            consumed: 0,
            lag: 0,
            ended: false,
            reader: None,
            failure: None,
            dead: false,
            dropped: false,
        };
        Self { id, state: Mutex::new(state) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock()
    }
}

// Methods for the user of the stream.
impl StreamState {
    /// Queues bytes for sending and returns their number, as many as both the peer's window and
    /// [`PIECE`] allow; `None` if that is none. Then `waker`, in place of an earlier one, is woken
    /// once there is room. Returns 0 if `bytes` is empty, even without room. The window shrinks
    /// here, not when the data is sent. The caller must [enqueue](Self::enqueue) the stream.
    ///
    /// # Errors
    /// `BrokenPipe` if this half was ended, or the stream was reset or its connection closed, also
    /// if `bytes` is empty. The end of the peer's half is no error.
    pub(super) fn write(&mut self, bytes: &[u8], waker: &Waker) -> io::Result<Option<usize>> {
        if self.dead || self.fin != HalfState::Open {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let credit = usize::try_from(self.credit).unwrap_or(usize::MAX);
        let len = bytes.len().min(PIECE - self.out.len()).min(credit);
        if len == 0 && !bytes.is_empty() {
            store_waker(&mut self.writer, waker);
            return Ok(None);
        }
        self.out.extend_from_slice(&bytes[..len]);
        self.credit -= u32::try_from(len).expect("≤ PIECE");
        Ok(Some(len))
    }

    /// Whether so much is queued that it is sent without a flush: a quarter of [`PIECE`].
    pub(super) fn is_large(&self) -> bool {
        self.out.len() >= PIECE / 4
    }

    /// Whether the connection's task must be told that the stream waits; marks it as told. `true`
    /// only once until the next [`turn`](Self::turn), and only if the stream is in the queue.
    pub(super) fn notify(&mut self) -> bool {
        self.queued && !mem::replace(&mut self.notified, true)
    }

    /// Whether the stream must be added to the queue of waiting streams; marks it as added. `false`
    /// if it is in the queue, or is dead, unless it was dropped and must be removed.
    pub(super) fn enqueue(&mut self) -> bool {
        let is_needed = !self.dead || self.dropped;
        is_needed && !mem::replace(&mut self.queued, true)
    }

    /// Ends this side's half: queued data is still sent, followed by FIN. The caller must enqueue
    /// the stream. `false` if it was ended before, also if the stream is dead or the connection was
    /// closed since. Fails with `BrokenPipe` if the stream is dead and was not ended before.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        match self.fin {
            HalfState::Open if self.dead => Err(io::ErrorKind::BrokenPipe.into()),
            HalfState::Open => {
                self.fin = HalfState::Ending;
                Ok(true)
            }
            HalfState::Ending | HalfState::Ended => Ok(false),
        }
    }

    /// Exchanges a consumed buffer, which may be reused in all cases, for the next received one; an
    /// empty one at the end of the stream, at every call. `None` if nothing has arrived; then
    /// `waker`, in place of an earlier one, is woken later. Counts all bytes of the buffer as read:
    /// the caller must then check [`owes_credit`](Self::owes_credit).
    ///
    /// # Errors
    /// The failure of the stream, once all received data was read; but the end of the stream, if
    /// the peer ended its half before.
    pub(super) fn read(
        &mut self,
        used: RecvBuffer,
        waker: &Waker,
    ) -> io::Result<Option<RecvBuffer>> {
        if used.bytes.len() < SMALL {
            // A read after one that had to wait returns no buffer: the spare one must stay.
            if used.bytes.len() > self.small.bytes.len() {
                self.small = used;
            }
        } else if self.spare.len() < SPARE_MAX && self.small_arrivals < SMALL_ARRIVALS_MAX {
            self.spare.push(used);
        }
        let Some(bin) = self.inbox.pop_front() else {
            return match (self.ended, self.failure) {
                (true, _) => Ok(Some(RecvBuffer::default())),
                (false, Some(failure)) => Err(failure.into()),
                (false, None) => {
                    store_waker(&mut self.reader, waker);
                    Ok(None)
                }
            };
        };
        let len = u32::try_from(bin.unread().len()).expect("within the window");
        self.unread -= len;
        self.consumed += len;
        self.lag = self.unread;
        Ok(Some(bin))
    }

    /// Whether so much was read that the peer must be given credit: at least half the window.
    /// `false` if the peer can send no further data, because it has sent FIN or the stream is dead.
    pub(super) fn owes_credit(&self) -> bool {
        self.consumed >= self.window / 2 && !self.ended && !self.dead
    }

    /// Marks the stream as dropped by its user. Queued data is still sent; unread data and both
    /// wakers are dropped. If the peer has ended its half, this half ends with FIN. Otherwise a
    /// half that was not ended is reset by [`turn`](Self::turn). The caller must enqueue the
    /// stream, also a dead one, because only a turn has the session remove it.
    pub(super) fn abandon(&mut self) {
        self.dropped = true;
        if self.ended && self.fin == HalfState::Open {
            self.fin = HalfState::Ending; // both halves end: no reset is needed
        }
        self.inbox = VecDeque::new();
        (self.reader, self.writer) = (None, None);
    }
}

// Methods for the connection.
impl StreamState {
    /// Encodes the next frames of the stream, which has left the queue: a window update if credit
    /// is owed (none for a dropped stream), then data or FIN or both; maybe nothing. The first of
    /// them carries SYN or ACK of a new stream. All queued data is moved into `body`, which must be
    /// empty, so that the waiting writer of the output may write again.
    ///
    /// A stream that its user dropped without ending its half is reset, and is dead then: in this
    /// turn if it has no data to send, otherwise in the next one, for which it counts as enqueued.
    /// No reset is sent if the peer has never heard of the stream. A dead stream sends nothing.
    pub(super) fn turn(&mut self, id: u32, body: &mut Vec<u8>) -> TurnOutput {
        let mut output = TurnOutput { is_over: self.dropped, ..TurnOutput::default() };
        (self.queued, self.notified) = (false, false);
        if self.dead {
            return output;
        }
        let header = |kind, flags, len| FrameHeader { kind, flags, stream: id, len };
        if self.owes_credit() && !self.dropped {
            let credit = self.fit_window();
            self.granted += credit;
            if credit > 0 {
                output.headers.push(header(
                    FrameKind::Window,
                    mem::take(&mut self.opening),
                    credit,
                ));
            }
        }
        let resets = self.dropped && self.fin == HalfState::Open;
        if !self.out.is_empty() || self.fin == HalfState::Ending {
            let mut flags = mem::take(&mut self.opening);
            if self.fin == HalfState::Ending {
                self.fin = HalfState::Ended;
                flags = flags.and(Flags::FIN);
            }
            if self.out.len() < SMALL {
                body.extend_from_slice(&self.out);
                self.out.clear();
            } else {
                mem::swap(&mut self.out, body);
            }
            let len = u32::try_from(body.len()).expect("≤ PIECE");
            output.headers.push(header(FrameKind::Data, flags, len));
            output.writer = self.writer.take();
            if resets {
                // Queued data is sent before the reset.
                (output.is_over, output.goes_on) = (false, true);
                self.queued = true;
            }
        } else if resets {
            self.dead = true;
            if self.opening != Flags::SYN {
                let flags = mem::take(&mut self.opening).and(Flags::RST);
                output.headers.push(header(FrameKind::Data, flags, 0));
            } // otherwise the peer does not know the stream
        }
        output
    }

    /// Returns the credit for the consumed bytes: more than that while the reader is slow, less
    /// while it keeps up (docs/protocol/transport.md#windows-grow-only-for-slow-readers). It may be
    /// 0. Counts the consumed bytes as credited; the caller must add the credit to `granted`. The
    /// stream must [owe credit](Self::owes_credit).
    ///
    /// The window doubles, up to [`WINDOW_MAX`], if more than a quarter of it was unread after the
    /// last read. It halves, down to [`WINDOW_FIRST`], after [`FAST_CREDITS_MAX`] credits in a row
    /// with less than an eighth unread, and the count starts over.
    ///
    /// Unread data of a slow reader lies in this stream's inbox, where it delays no other stream,
    /// and a larger window lets both ends work longer at a time. With a fast reader the data in
    /// flight lies in the socket buffers, where it delays all streams of the connection.
    fn fit_window(&mut self) -> u32 {
        let read = mem::take(&mut self.consumed);
        let keeps_up = self.lag < self.window / 8;
        self.fast_credits = if keeps_up { self.fast_credits.saturating_add(1) } else { 0 };
        if self.lag > self.window / 4 && self.window < WINDOW_MAX {
            let more = self.window;
            self.window += more;
            return read + more;
        }
        if self.fast_credits >= FAST_CREDITS_MAX && self.window > WINDOW_FIRST {
            self.fast_credits = 0;
            self.window /= 2;
            return read - self.window; // not negative: at least half the window was read
        }
        read
    }

    /// State of the peer's half, for the session that removes this stream.
    pub(super) const fn peer_half(&self) -> PeerHalf {
        match self.granted {
            _ if self.ended || self.dead => PeerHalf::Closed,
            0 => PeerHalf::Exhausted,
            _ => PeerHalf::Open,
        }
    }

    /// Checks the length of data that the peer announces against its window, and reduces the window
    /// by it. Fails, and changes nothing, if the window is smaller; a dead, dropped or ended stream
    /// is checked like any other. Must be called before the data [arrives](Self::arrive).
    pub(super) fn reserve_window(&mut self, len: u32) -> Result<(), MuxerViolation> {
        let Some(granted) = self.granted.checked_sub(len) else {
            return Err(MuxerViolation::Window { granted: self.granted, sent: len });
        };
        self.granted = granted;
        Ok(())
    }

    /// Takes received data, and returns the waker of a task that waits to read. Data is dropped,
    /// and never credited, if the user has dropped the stream, the stream is dead, or the peer had
    /// ended its half. `read` gets another buffer, maybe one without space, if its own is moved.
    /// Many small arrivals in a row release the spare buffers.
    ///
    /// Only a buffer of which at least half is filled, with [`SMALL`] bytes or more, is moved into
    /// the inbox; other data is copied. So a peer that sends small frames occupies at most twice
    /// the memory of its window.
    pub(super) fn arrive(&mut self, read: &mut RecvBuffer) -> Option<Waker> {
        if self.dropped || self.dead || self.ended {
            return None;
        }
        let bytes = read.unread();
        self.unread += u32::try_from(bytes.len()).expect("within the window");
        let is_small = bytes.len() < SMALL;
        self.small_arrivals = if is_small { self.small_arrivals.saturating_add(1) } else { 0 };
        if self.small_arrivals == SMALL_ARRIVALS_MAX {
            self.spare = Vec::new();
        }
        if !is_small && 2 * bytes.len() >= read.bytes.len() {
            let fresh = self.spare.pop().unwrap_or_default();
            self.inbox.push_back(mem::replace(read, fresh));
        } else if !self.inbox.back_mut().is_some_and(|last| last.append(bytes)) {
            let mut bin = mem::take(&mut self.small);
            bin.space(bytes.len().max(ROOM_MIN))[..bytes.len()].copy_from_slice(bytes);
            bin.fill(bytes.len());
            self.inbox.push_back(bin);
        }
        self.reader.take()
    }

    /// Adds to the credit that the peer has granted, and returns the waker of a task that waits to
    /// write, also if [`PIECE`] bytes are still queued; `None` if `more` is 0. Fails, and changes
    /// nothing, if the credit would exceed 32 bits.
    pub(super) fn credit(&mut self, more: u32) -> Result<Option<Waker>, MuxerViolation> {
        self.credit = self.credit.checked_add(more).ok_or(MuxerViolation::Credit)?;
        Ok(if more > 0 { self.writer.take() } else { None })
    }

    /// Marks the peer's half as ended, and returns the waker of a task that waits to read.
    pub(super) fn end(&mut self) -> Option<Waker> {
        self.ended = true;
        self.reader.take()
    }

    /// Ends the stream in both directions, and returns the wakers of its reader and its writer.
    /// Received data can still be read, queued data is dropped, and a FIN that waits is not sent.
    /// Reading fails with the first failure of the stream, writing with `BrokenPipe`.
    pub(super) fn fail(&mut self, why: io::ErrorKind) -> [Option<Waker>; 2] {
        self.dead = true;
        self.out = Vec::new();
        self.failure.get_or_insert(why);
        [self.reader.take(), self.writer.take()]
    }

    /// Ends the stream for its user when this side closes the connection, and returns the wakers of
    /// its reader and its writer. Queued data is still sent, without FIN if that does not wait
    /// already: the stream is not dead. Received data can still be read; then reading fails with
    /// `ConnectionAborted`, unless the stream failed or the peer ended its half before.
    pub(super) fn close(&mut self) -> [Option<Waker>; 2] {
        self.failure.get_or_insert(io::ErrorKind::ConnectionAborted);
        if self.fin == HalfState::Open {
            self.fin = HalfState::Ended; // go-away implies it
        }
        [self.reader.take(), self.writer.take()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_read_keeps_the_spare_small_buffer() {
        let pipe = SharedStream::inbound(1, WINDOW_FIRST);
        let (mut state, mut read) = (pipe.lock(), RecvBuffer::default());
        read.space(PIECE)[..1].fill(7);
        read.fill(1);
        state.arrive(&mut read);
        let got = state.read(RecvBuffer::default(), Waker::noop()).expect("it is open");
        let mut used = got.expect("a byte has arrived");
        used.consume(1);
        assert!(state.read(used, Waker::noop()).expect("it is open").is_none());
        assert!(state.read(RecvBuffer::default(), Waker::noop()).expect("it is open").is_none());
        assert_eq!(state.small.bytes.len(), ROOM_MIN, "the next small arrival reuses it");
    }

    #[test]
    fn unread_data_occupies_at_most_twice_its_size() {
        for portion in [1, 100, SMALL - 1, SMALL, SMALL + 1, PIECE / 2 - 1, PIECE / 2, PIECE] {
            let pipe = SharedStream::inbound(1, WINDOW_FIRST);
            let (mut state, mut read) = (pipe.lock(), RecvBuffer::default());
            let mut unread = 0;
            while unread + portion <= WINDOW_FIRST as usize {
                read.space(PIECE)[..portion].fill(7);
                read.fill(portion);
                state.arrive(&mut read);
                unread += portion;
            }
            let occupied: usize = state.inbox.iter().map(|bin| bin.bytes.len()).sum();
            assert!(occupied <= 2 * unread, "{occupied} for {unread} in portions of {portion}");
            let bins = state.inbox.len();
            assert!(bins <= 2 * WINDOW_FIRST as usize / ROOM_MIN, "{bins}: {portion}");
        }
    }
}
