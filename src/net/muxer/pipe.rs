//! One stream of a connection, both ways: what waits to be sent, and what has arrived unread.
//!
//! Pure: says what to do, and does nothing itself.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use super::Violation;
use super::header::{Flags, HEADER_BYTES, Header, Kind, WINDOW_FIRST};
use crate::net::noise::PLAIN_MAX;

/// What waits to be sent on a stream, bytes at most: with its headers, and if nothing went before, one
/// message of the cipher.
pub(super) const PIECE: usize = PLAIN_MAX - 2 * HEADER_BYTES;

/// What a stream may have under way and unread, bytes, at most: so much where its reader is slow.
const WINDOW_MAX: u32 = 1024 * 1024;

/// `easy` credits after which a window shrinks.
const EASY: u8 = 32;

/// Fewer bytes are copied, more change hands with what they lie in.
const SMALL: usize = 4 * 1024;

/// The smallest room for what arrives.
const ROOM_MIN: usize = 1024;

/// Emptied pieces that are kept for what comes next.
const SPARE_MAX: usize = 2;

/// Small arrivals in a row after which none are.
const QUIET: u8 = 64;

/// Bytes, from `from` to `to`; what follows is room.
#[derive(Debug, Default)]
pub(super) struct Bin {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Bin {
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.from += len;
        assert!(self.from <= self.to, "no more is used than there is");
    }

    /// Room for `len` bytes; whatever was in it is gone.
    pub(super) fn space(&mut self, len: usize) -> &mut [u8] {
        (self.from, self.to) = (0, 0);
        if self.bytes.len() < len {
            self.bytes.resize(len, 0);
        }
        &mut self.bytes[..len]
    }

    /// So many bytes of the room are filled.
    pub(super) fn fill(&mut self, len: usize) {
        self.to = len;
        assert!(len <= self.bytes.len(), "no more is read than there is room for");
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.to..self.to + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.to += bytes.len();
        true
    }
}

/// The headers that a stream sends at one turn: credit, data.
#[derive(Debug, Default)]
pub(super) struct Heads {
    bytes: [u8; 2 * HEADER_BYTES],
    from: usize,
    to: usize,
}

impl Heads {
    pub(super) fn push(&mut self, header: Header) {
        self.bytes[self.to..self.to + HEADER_BYTES].copy_from_slice(&header.encode());
        self.to += HEADER_BYTES;
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    pub(super) fn sent(&mut self, len: usize) {
        self.from += len;
    }
}

/// What a stream says at its turn.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) heads: Heads,
    /// Nobody needs the stream any more.
    pub(super) is_over: bool,
    /// It has more to say: it waits for another turn.
    pub(super) goes_on: bool,
    /// Whoever waits to write.
    pub(super) writer: Option<Waker>,
}

/// Whether a half has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    Wanted,
    Said,
}

/// The peer's half of a stream that is removed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerHalf {
    /// The peer has ended it, or either end has reset the stream.
    Closed,
    /// Open, and the peer has credit.
    Open,
    /// Open, and the peer has no credit: it may wait for some.
    Exhausted,
}

/// A stream, shared by its user and its connection.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) id: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    // Forth.
    opening: Flags, // goes with what is said first
    out: Vec<u8>,   // ≤ PIECE; within the peer's window
    credit: u32,    // what the peer takes beyond that
    fin: End,
    writer: Option<Waker>,
    listed: bool, // waits for its turn
    told: bool,   // and the connection's task knows
    // Back.
    inbox: VecDeque<Bin>, // ≤ window
    spare: Vec<Bin>,      // ≤ SPARE_MAX, of SMALL and more
    small: Bin,           // spare, of less
    quiet: u8,
    window: u32,   // granted + consumed + what is unread, if all has arrived
    easy: u8,      // credits in a row given to a reader that keeps up
    granted: u32,  // what the peer may send
    unread: u32,   // in the inbox
    consumed: u32, // of which it has not heard
    lag: u32,      // what was unread after the last read
    ended: bool,
    reader: Option<Waker>,
    // Both.
    failure: Option<io::ErrorKind>, // of reading, once all is read
    dead: bool,                     // nothing goes or comes any more
    dropped: bool,                  // by its user
}

impl Pipe {
    /// A stream that is opened here: says so with what it sends first.
    pub(super) fn outbound(id: u32) -> Self {
        Self::new(id, Flags::SYN, WINDOW_FIRST)
    }

    /// One that the peer has opened, and takes so much.
    pub(super) fn inbound(id: u32, credit: u32) -> Self {
        Self::new(id, Flags::ACK, credit)
    }

    fn new(id: u32, opening: Flags, credit: u32) -> Self {
        let state = State {
            opening,
            out: Vec::new(),
            credit,
            fin: End::No,
            writer: None,
            listed: false,
            told: false,
            inbox: VecDeque::new(),
            spare: Vec::new(),
            small: Bin::default(),
            quiet: 0,
            window: WINDOW_FIRST,
            easy: 0,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

// What its user does.
impl State {
    /// Takes bytes to be sent; how many, or none if there is no room: then `waker` is woken later.
    pub(super) fn write(&mut self, bytes: &[u8], waker: &Waker) -> io::Result<Option<usize>> {
        if self.dead || self.fin != End::No {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let credit = usize::try_from(self.credit).unwrap_or(usize::MAX);
        let len = bytes.len().min(PIECE - self.out.len()).min(credit);
        if len == 0 && !bytes.is_empty() {
            keep(&mut self.writer, waker);
            return Ok(None);
        }
        self.out.extend_from_slice(&bytes[..len]);
        self.credit -= u32::try_from(len).expect("≤ PIECE");
        Ok(Some(len))
    }

    /// Whether so much waits that it goes out without a flush.
    pub(super) fn is_large(&self) -> bool {
        self.out.len() >= PIECE / 4
    }

    /// `true`, once until its turn: the connection's task is to be told that the stream waits.
    pub(super) fn tell(&mut self) -> bool {
        self.listed && !mem::replace(&mut self.told, true)
    }

    /// `true`: it waits for its turn from now on, and is to be listed.
    pub(super) fn list(&mut self) -> bool {
        let is_needed = !self.dead || self.dropped;
        is_needed && !mem::replace(&mut self.listed, true)
    }

    /// No more is written; what was is sent, and then that it ends. `false`: so it was before.
    pub(super) fn finish(&mut self) -> io::Result<bool> {
        match self.fin {
            End::No if self.dead => Err(io::ErrorKind::BrokenPipe.into()),
            End::No => {
                self.fin = End::Wanted;
                Ok(true)
            }
            End::Wanted | End::Said => Ok(false),
        }
    }

    /// What has arrived next, in exchange for what is used up; none if nothing has, and then
    /// `waker` is woken later. Empty at the end.
    pub(super) fn read(&mut self, used: Bin, waker: &Waker) -> io::Result<Option<Bin>> {
        if used.bytes.len() < SMALL {
            self.small = used;
        } else if self.spare.len() < SPARE_MAX && self.quiet < QUIET {
            self.spare.push(used);
        }
        let Some(bin) = self.inbox.pop_front() else {
            return match (self.ended, self.failure) {
                (true, _) => Ok(Some(Bin::default())),
                (false, Some(failure)) => Err(failure.into()),
                (false, None) => {
                    keep(&mut self.reader, waker);
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

    /// The peer is to hear of what was read.
    pub(super) fn owes_credit(&self) -> bool {
        self.consumed >= self.window / 2 && !self.ended && !self.dead
    }

    /// Its user is gone. What was written is still sent.
    pub(super) fn abandon(&mut self) {
        self.dropped = true;
        if self.ended && self.fin == End::No {
            self.fin = End::Wanted; // both have said what they had to say
        }
        self.inbox = VecDeque::new();
        (self.reader, self.writer) = (None, None);
    }
}

// What its connection does.
impl State {
    /// What it has to say; the data is moved into `body`, which is empty before.
    pub(super) fn turn(&mut self, id: u32, body: &mut Vec<u8>) -> Said {
        let mut said = Said { is_over: self.dropped, ..Said::default() };
        (self.listed, self.told) = (false, false);
        if self.dead {
            return said;
        }
        let header = |kind, flags, len| Header { kind, flags, stream: id, len };
        if self.owes_credit() && !self.dropped {
            let credit = self.fit_window();
            self.granted += credit;
            if credit > 0 {
                said.heads.push(header(Kind::Window, mem::take(&mut self.opening), credit));
            }
        }
        let resets = self.dropped && self.fin == End::No;
        if !self.out.is_empty() || self.fin == End::Wanted {
            let mut flags = mem::take(&mut self.opening);
            if self.fin == End::Wanted {
                self.fin = End::Said;
                flags = flags.and(Flags::FIN);
            }
            if self.out.len() < SMALL {
                body.extend_from_slice(&self.out);
                self.out.clear();
            } else {
                mem::swap(&mut self.out, body);
            }
            let len = u32::try_from(body.len()).expect("≤ PIECE");
            said.heads.push(header(Kind::Data, flags, len));
            said.writer = self.writer.take();
            if resets {
                // What was written goes first.
                (said.is_over, said.goes_on) = (false, true);
                self.listed = true;
            }
        } else if resets {
            self.dead = true;
            if self.opening != Flags::SYN {
                let flags = mem::take(&mut self.opening).and(Flags::RST);
                said.heads.push(header(Kind::Data, flags, 0));
            } // else the peer has never heard of it
        }
        said
    }

    /// What was read is given back as credit: more of it while the reader is what is slow, less
    /// where it keeps up.
    ///
    /// What waits for a slow reader lies in this stream's inbox, behind which nobody else waits: a
    /// larger window lets both ends work longer at a time. Where the reader keeps up, what is under
    /// way lies in the sockets, and all streams of the connection wait behind it.
    fn fit_window(&mut self) -> u32 {
        let read = mem::take(&mut self.consumed);
        let keeps_up = self.lag < self.window / 8;
        self.easy = if keeps_up { self.easy.saturating_add(1) } else { 0 };
        if self.lag > self.window / 4 && self.window < WINDOW_MAX {
            let more = self.window;
            self.window += more;
            return read + more;
        }
        if self.easy >= EASY && self.window > WINDOW_FIRST {
            self.easy = 0;
            self.window /= 2;
            return read - self.window; // half of it, and no less was read
        }
        read
    }

    pub(super) const fn peer_half(&self) -> PeerHalf {
        match self.granted {
            _ if self.ended || self.dead => PeerHalf::Closed,
            0 => PeerHalf::Exhausted,
            _ => PeerHalf::Open,
        }
    }

    /// Data of the peer: all of it is within the window.
    pub(super) fn expect(&mut self, len: u32) -> Result<(), Violation> {
        let Some(granted) = self.granted.checked_sub(len) else {
            return Err(Violation::Window { granted: self.granted, sent: len });
        };
        self.granted = granted;
        Ok(())
    }

    /// What was read of it; what nobody reads is dropped.
    ///
    /// Only what fills most of what it lies in changes hands with it: a peer that sends little at a
    /// time occupies no more than twice what it may send.
    pub(super) fn arrive(&mut self, read: &mut Bin) -> Option<Waker> {
        if self.dropped || self.dead || self.ended {
            return None;
        }
        let bytes = read.unread();
        self.unread += u32::try_from(bytes.len()).expect("within the window");
        let is_small = bytes.len() < SMALL;
        self.quiet = if is_small { self.quiet.saturating_add(1) } else { 0 };
        if self.quiet == QUIET {
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

    /// The peer takes more.
    pub(super) fn credit(&mut self, more: u32) -> Result<Option<Waker>, Violation> {
        self.credit = self.credit.checked_add(more).ok_or(Violation::Credit)?;
        Ok(if more > 0 { self.writer.take() } else { None })
    }

    /// The peer has said all that it will.
    pub(super) fn end(&mut self) -> Option<Waker> {
        self.ended = true;
        self.reader.take()
    }

    /// Nothing more goes or comes. What has arrived may still be read.
    pub(super) fn die(&mut self, why: io::ErrorKind) -> [Option<Waker>; 2] {
        self.dead = true;
        self.out = Vec::new();
        self.failure.get_or_insert(why);
        [self.reader.take(), self.writer.take()]
    }

    /// No more is written or read, but what was written is still sent.
    pub(super) fn close(&mut self) -> [Option<Waker>; 2] {
        self.failure.get_or_insert(io::ErrorKind::ConnectionAborted);
        if self.fin == End::No {
            self.fin = End::Said; // the connection's goodbye says it
        }
        [self.reader.take(), self.writer.take()]
    }
}

/// Wakes this one next.
pub(super) fn keep(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(kept) => kept.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unread_occupies_little_more_than_it_is_however_it_comes() {
        for portion in [1, 100, SMALL - 1, SMALL, SMALL + 1, PIECE / 2 - 1, PIECE / 2, PIECE] {
            let pipe = Pipe::inbound(1, WINDOW_FIRST);
            let (mut state, mut read) = (pipe.lock(), Bin::default());
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
