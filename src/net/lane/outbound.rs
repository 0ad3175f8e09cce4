//! Outbound queue of a lane: unsent and unacknowledged messages, already encoded as frames.
//!
//! Without I/O, locks or tasks; it only reads the clock. Messages are appended to the open chunk. A
//! full chunk is sealed and shared with the writer, and is dropped when its last message is
//! acknowledged. So the bytes of acknowledged messages still count while their chunk has a later
//! message; the open chunk is emptied only when all messages are acknowledged. Messages are
//! numbered by position, from 1.
//!
//! Each writer has a turn, a number that [`OutboundQueue::resume`] gives out. Calls with an earlier
//! turn have no effect; [`OutboundQueue::take`] then tells the writer to end.
//!
//! *Taken* bytes were handed to a writer, and count as sent from then on. Nothing here wakes a
//! writer or a sender: the callers in [`shared_outbound`](super::shared_outbound) do, if a return
//! value asks for it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use super::names::NameTable;
use super::{LaneStats, SendError};
use crate::net::TrafficClass;
use crate::net::config::NetLimits;
use crate::net::frame::{
    self, FRAME_BYTES, FRAME_BYTES_MIN, FRAME_OVERHEAD, Frame, FrameParseResult, FrameViolation,
    kind,
};

/// Minimum space at the end of a chunk for the first piece of a long message.
const PIECE_BYTES_MIN: usize = 8 * 1024;

/// Maximum number of empty chunks kept for reuse.
const SPARE_MAX: usize = 4;

/// Length above which a message counts as long, in bytes, header and framing included.
const LONG: usize = 16 * 1024;

/// Number of unsent bytes above which a user lane rejects long messages
/// (docs/protocol/transport.md#long-messages-take-turns). A short message of another entity then
/// has at most this and one long message ahead of it.
const AHEAD_OF_LONG: usize = 256 * 1024;

/// Bytes of short messages that may pass a rejected long one. Beyond that the lane also rejects
/// short ones, until the long one has had its chance.
const PASSING_MAX: usize = 4 * 1024 * 1024;

/// Factor by which responses may exceed a lane's limit: see [`Lane::answer`](super::Lane::answer).
const ANSWERS_FACTOR: usize = 4;

/// A full chunk, shared with the writer.
#[derive(Debug)]
struct Sealed {
    bytes: Arc<Vec<u8>>,
    /// Number of the message that its first frame belongs to.
    first: u64,
    /// Whether its first frame is a piece other than the first one of its message.
    begins_inside: bool,
    /// Number of the last message with a byte in it.
    last: u64,
    /// Number of the last message that ends in this chunk or before.
    complete: u64,
}

/// Position of the next byte to take. It may be at the end of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    /// Index among all chunks since the lane began.
    chunk: u64,
    at: usize,
}

/// Next step of the writer.
#[derive(Debug)]
pub(super) enum WriterStep {
    /// Write this chunk, from this offset.
    Chunk(Arc<Vec<u8>>, usize),
    /// Write the copied bytes.
    Copied,
    /// Flush, then sleep: everything, or as much as the window allows, was sent. The next append
    /// asks to wake the writer in the first case. In the second no append does: an acknowledgement,
    /// which the writer itself reads, lets it go on.
    Nothing,
    /// Close the lane: it was finished, and all messages were acknowledged. Returned again by each
    /// further call.
    Finished,
    /// Stop: a later writer has the lane, or it was abandoned, also if bytes are left.
    Superseded,
}

/// Unacknowledged messages of one lane, and how far they were sent.
#[derive(Debug)]
pub(super) struct OutboundQueue {
    // Limits, in bytes.
    frame_bytes: usize,
    message_bytes_max: usize,
    bytes_max: usize,
    window: u64,

    numbers: NameTable,
    sealed: VecDeque<Sealed>, // with `open` ≤ bytes_max, with responses ≤ ANSWERS_FACTOR times
    open: Vec<u8>,            // ≤ FRAME_BYTES
    open_first: u64,          // as Sealed::first; meaningless while `open` is empty
    open_begins_inside: bool, // as Sealed::begins_inside
    spare: Vec<Vec<u8>>,      // ≤ SPARE_MAX, each ≤ FRAME_BYTES
    kept: usize,              // bytes in `sealed` and `open`
    gone: u64,                // number of chunks acknowledged and dropped; not bytes

    // Numbers of messages: acknowledged ≤ sent ≤ appended.
    appended: u64,
    acknowledged: u64,
    sent: u64,

    // State of the writer.
    turn: u64, // number of writers, those that failed to start included; only the last may take
    cursor: Cursor,
    taken_bytes: u64, // up to the cursor, since the lane began, without retransmissions
    gone_bytes: u64,  // up to the first kept chunk
    acknowledged_bytes: u64, // gone_bytes ≤ this ≤ taken_bytes; exact whenever all is acknowledged
    sleeps: bool,     // the next message must wake the writer; may be of a writer that has ended
    connection: LaneConnection,

    state: OutboundState,
    wanted: Option<usize>, // least bytes rejected as full; room() waits for them
    shares: bool,          // long messages yield to others, as on user lanes
    passing: Option<usize>, // short bytes since a long message was rejected; `None`: none was
    undrained_since: Option<Instant>,
    batches: u64,
    resent: u64,
    refused: u64, // rejected as full
}

/// Whether a writer has a substream for the lane. Abandoning the lane does not change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneConnection {
    Absent,
    /// Absent, and a message was rejected because of that: `room()` waits for a substream.
    Awaited,
    Present,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboundState {
    /// Messages may be appended.
    Open,
    /// No message may be appended; the buffered ones are sent, and then the end.
    Finishing,
    /// The lane was abandoned: its messages were dropped, and every writer ends.
    GivenUp,
}

impl OutboundQueue {
    /// Creates an empty queue without a writer, so that appends wake none yet. Frames have at most
    /// [`FRAME_BYTES`], also if `limits` allows more, and messages at most `u32::MAX` bytes. Only
    /// on user lanes long messages take turns.
    pub(super) fn new(class: TrafficClass, limits: &NetLimits) -> Self {
        Self {
            frame_bytes: frame::bytes_max(limits).min(FRAME_BYTES),
            message_bytes_max: limits.message_bytes_max.min(u32::MAX as usize),
            bytes_max: limits.lane_bytes_max(class),
            window: limits.lane_window as u64,
            numbers: NameTable::default(),
            sealed: VecDeque::new(),
            open: Vec::new(),
            open_first: 1,
            open_begins_inside: false,
            spare: Vec::new(),
            kept: 0,
            gone: 0,
            appended: 0,
            acknowledged: 0,
            sent: 0,
            turn: 0,
            cursor: Cursor { chunk: 0, at: 0 },
            taken_bytes: 0,
            gone_bytes: 0,
            acknowledged_bytes: 0,
            sleeps: false,
            connection: LaneConnection::Absent,
            state: OutboundState::Open,
            wanted: None,
            shares: class == TrafficClass::User,
            passing: None,
            undrained_since: None,
            batches: 0,
            resent: 0,
            refused: 0,
        }
    }

    /// Lowers the maximum message length, even to 0; a higher value has no effect. Buffered
    /// messages stay, however long.
    pub(super) fn limit_messages(&mut self, bytes_max: usize) {
        self.message_bytes_max = self.message_bytes_max.min(bytes_max);
    }

    /// Lowers the maximum frame length, but not below [`FRAME_BYTES_MIN`], for messages appended
    /// from now on; a higher value has no effect.
    pub(super) fn limit_frames(&mut self, bytes_max: usize) {
        self.frame_bytes = self.frame_bytes.min(bytes_max.max(FRAME_BYTES_MIN));
    }

    // ── Appending ──

    /// Appends a message, also without a writer. Returns whether the writer sleeps and must be
    /// woken; `true` only once for each time that it went to sleep, and perhaps for a writer that
    /// has ended meanwhile. Errors as for [`append_within`](Self::append_within).
    #[inline]
    pub(super) fn append(&mut self, fields: &[&str], body: &[u8]) -> Result<bool, SendError> {
        self.append_within(self.bytes_max, fields, body)
    }

    /// Appends a message like [`append`](Self::append), if the lane has a substream.
    ///
    /// # Errors
    /// [`SendError::Unconnected`] if it has none; from then on [`has_room`](Self::has_room) is
    /// false until it has one. It is not counted, and comes before a malformed header and a full
    /// lane. A message that is too long, or a lane that has ended, gets the error of
    /// [`append`](Self::append) instead.
    #[inline]
    pub(super) fn append_connected(
        &mut self,
        fields: &[&str],
        body: &[u8],
    ) -> Result<bool, SendError> {
        let fits = body.len() <= self.message_bytes_max; // otherwise it never will: `append` tells
        if self.state == OutboundState::Open && self.connection != LaneConnection::Present && fits {
            self.connection = LaneConnection::Awaited;
            return Err(SendError::Unconnected);
        }
        self.append(fields, body)
    }

    /// Appends a response, up to [`ANSWERS_FACTOR`] times the limit of other messages, also without
    /// a substream. A long one need not wait for its turn on a user lane. A response that is
    /// rejected as full is counted, too, and [`has_room`](Self::has_room) is false then.
    pub(super) fn append_answer(
        &mut self,
        fields: &[&str],
        body: &[u8],
    ) -> Result<bool, SendError> {
        self.append_within(self.bytes_max.saturating_mul(ANSWERS_FACTOR), fields, body)
    }

    /// Appends a message if the lane then buffers at most `max` bytes, or is empty; on a user lane
    /// a message that is no response must also have its turn ([`takes_turn`](Self::takes_turn)).
    ///
    /// The errors are checked in this order: ended, too long, header, full, turn. The last two are
    /// [`SendError::Full`], and only they are counted; after them
    /// [`has_room`](Self::has_room) is false. A rejected message leaves the names of its header
    /// undefined. `max` is compared with the message in one frame; pieces need some bytes more.
    #[inline]
    fn append_within(
        &mut self,
        max: usize,
        fields: &[&str],
        body: &[u8],
    ) -> Result<bool, SendError> {
        if self.state != OutboundState::Open {
            return Err(SendError::Broken);
        }
        if body.len() > self.message_bytes_max {
            return Err(SendError::TooLong { len: body.len(), max: self.message_bytes_max });
        }
        let header = self.numbers.header(fields).ok_or(SendError::Header)?.len();
        let whole = FRAME_OVERHEAD + header + body.len();
        // A message longer than the limit is accepted if the lane is empty.
        if self.kept > 0 && self.kept + whole > max {
            self.wanted = Some(self.wanted.map_or(whole, |wanted| wanted.min(whole)));
            return Err(self.refuse(max));
        }
        if self.shares && max == self.bytes_max && !self.takes_turn(whole) {
            return Err(self.refuse(max));
        }
        if self.acknowledged == self.appended {
            self.undrained_since = Some(Instant::now());
        }
        self.appended += 1;
        if whole <= self.frame_bytes {
            self.put_whole(whole, body);
        } else {
            self.put_pieces(body);
        }
        Ok(mem::take(&mut self.sleeps))
    }

    /// Counts a message as rejected, removes the names that its header has defined, and returns
    /// [`SendError::Full`]. Its header must be the last one of `numbers`. Leaves `wanted` and
    /// `passing` to the caller.
    fn refuse(&mut self, max: usize) -> SendError {
        self.numbers.forget();
        self.refused += 1;
        SendError::Full { kept: self.kept, max }
    }

    /// Whether a message whose frame has `whole` bytes may be appended now: always behind little
    /// unsent data (up to [`AHEAD_OF_LONG`]). Otherwise a long one may not, and a short one may
    /// until more than [`PASSING_MAX`] bytes of short ones have passed a rejected long one.
    ///
    /// Counts the passing bytes, those of rejected short messages included. The count ends when
    /// [`room_again`](Self::room_again) returns `true`, so that the rejected messages are retried
    /// together.
    fn takes_turn(&mut self, whole: usize) -> bool {
        if self.unsent_bytes() <= AHEAD_OF_LONG {
            return true;
        }
        if whole > LONG {
            self.passing.get_or_insert(0);
            return false;
        }
        let Some(passed) = &mut self.passing else { return true };
        *passed += whole;
        *passed <= PASSING_MAX
    }

    /// Number of buffered bytes that the last writer has not taken, also if it has ended.
    /// Meaningless for an abandoned lane, whose taken bytes are no longer buffered.
    const fn unsent_bytes(&self) -> usize {
        (self.gone_bytes + self.kept as u64 - self.taken_bytes) as usize
    }

    /// Appends a message, which [`append_within`](Self::append_within) has counted and whose header
    /// is the last one of `numbers`, as one frame of `whole` bytes, at most [`FRAME_BYTES`]. Seals
    /// the open chunk before if the frame does not fit into it. Checks no limit.
    #[inline]
    fn put_whole(&mut self, whole: usize, body: &[u8]) {
        if self.open.len() + whole > FRAME_BYTES {
            self.seal(self.appended - 1, self.appended - 1);
        }
        if self.open.is_empty() {
            self.open_first = self.appended;
            self.open_begins_inside = false;
        }
        let header = self.numbers.last();
        self.open.extend_from_slice(&frame::begin(kind::MESSAGE, header.len() + body.len()));
        self.open.extend_from_slice(header);
        self.open.extend_from_slice(body);
        self.kept += whole;
    }

    /// Appends a message as two or more consecutive frames, so that the receiver needs one buffer
    /// per lane (docs/protocol/transport.md#pieces-are-never-interleaved). Seals the open chunk
    /// whenever the next piece does not fit, and before the first piece if that would be short; the
    /// last piece stays in the open chunk. No piece is empty. Only for messages that do not fit
    /// into one frame; otherwise like [`put_whole`](Self::put_whole).
    fn put_pieces(&mut self, body: &[u8]) {
        if FRAME_BYTES - self.open.len() < PIECE_BYTES_MIN.min(self.frame_bytes) {
            self.seal(self.appended - 1, self.appended - 1);
        }
        if self.open.is_empty() {
            self.open_first = self.appended;
            self.open_begins_inside = false;
        }
        let total = u32::try_from(body.len()).expect("message_bytes_max fits");
        let header = self.numbers.last();
        let fixed = 4 + header.len();
        let room = self.frame_bytes.min(FRAME_BYTES - self.open.len()) - FRAME_OVERHEAD - fixed;
        let (piece, mut rest) = body.split_at(room.min(body.len() - 1));
        self.open.extend_from_slice(&frame::begin(kind::FIRST, fixed + piece.len()));
        self.open.extend_from_slice(&total.to_be_bytes());
        self.open.extend_from_slice(header);
        self.open.extend_from_slice(piece);
        self.kept += FRAME_OVERHEAD + fixed + piece.len();
        while !rest.is_empty() {
            if FRAME_BYTES - self.open.len() < self.frame_bytes.min(FRAME_OVERHEAD + rest.len()) {
                self.seal(self.appended, self.appended - 1);
                self.open_first = self.appended;
                self.open_begins_inside = true;
            }
            let room = self.frame_bytes - FRAME_OVERHEAD;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            let kind = if after.is_empty() { kind::LAST } else { kind::CONTINUE };
            self.open.extend_from_slice(&frame::begin(kind, piece.len()));
            self.open.extend_from_slice(piece);
            self.kept += FRAME_OVERHEAD + piece.len();
            rest = after;
        }
    }

    /// Seals the open chunk, which must not be empty (otherwise it panics), and begins a new one,
    /// in a spare buffer if there is one. `last` is the number of the last message with a byte in
    /// the sealed chunk, `complete` that of the last message which ends in it or before. The caller
    /// sets `open_first` and `open_begins_inside` for the new one. The cursor stays: it may be
    /// inside.
    fn seal(&mut self, last: u64, complete: u64) {
        let next = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(FRAME_BYTES));
        let bytes = mem::replace(&mut self.open, next);
        assert!(!bytes.is_empty(), "only a chunk with something in it is sealed");
        self.sealed.push_back(Sealed {
            bytes: Arc::new(bytes),
            first: self.open_first,
            begins_inside: self.open_begins_inside,
            last,
            complete,
        });
    }

    // ── Sending ──

    /// Starts a new writer, which continues after message `accepted`; earlier writers end, as soon
    /// as they are woken. Returns its turn, also if the lane was abandoned: then
    /// [`take`](Self::take) ends the writer, and the lane stays unconnected.
    ///
    /// The messages up to `accepted` are dropped, and the others are sent again: those that were
    /// sent before are added to `resent`. `undrained_since` begins anew if there are any. May make
    /// room, which it does not return: the caller must notify those that wait.
    ///
    /// # Errors
    /// [`FrameViolation`] if `accepted` is less than was acknowledged, or more than was sent. Then
    /// the lane is unconnected and its messages stay, but the turn of the earlier writer is over.
    pub(super) fn resume(&mut self, accepted: u64) -> Result<u64, FrameViolation> {
        self.disconnect(self.turn); // its writer ends
        self.turn += 1;
        if self.state == OutboundState::GivenUp {
            return Ok(self.turn);
        }
        self.acknowledge(self.turn, accepted)?;
        self.connection = LaneConnection::Present;
        if self.acknowledged < self.appended {
            self.undrained_since = Some(Instant::now()); // restart per connection
        }
        self.resent += self.sent - accepted;
        self.sent = accepted;
        self.cursor = Cursor { chunk: self.gone, at: self.place_of(accepted + 1) };
        self.taken_bytes = self.gone_bytes + self.cursor.at as u64;
        self.acknowledged_bytes = self.taken_bytes;
        Ok(self.turn)
    }

    /// Offset of a message in the first buffered chunk; 0 if nothing is buffered. Panics if the
    /// message does not begin in that chunk, unless it is the one that follows the chunk.
    fn place_of(&self, message: u64) -> usize {
        let (bytes, first) = match self.sealed.front() {
            Some(chunk) => (&chunk.bytes[..], chunk.first),
            None if self.open.is_empty() => return 0,
            None => (&self.open[..], self.open_first),
        };
        let (mut at, mut number) = (0, first);
        while at < bytes.len() {
            let Ok(FrameParseResult::Frame(frame, len)) = frame::cut(&bytes[at..], FRAME_BYTES)
            else {
                panic!("a chunk holds whole frames, each as this file has written them");
            };
            let begins = matches!(frame, Frame::Message { .. } | Frame::First { .. });
            if number == message && begins {
                break;
            }
            number += u64::from(matches!(frame, Frame::Message { .. } | Frame::Last(_)));
            at += len;
        }
        assert!(number == message, "the first kept chunk holds the first kept message");
        at
    }

    /// Returns the next step of the writer of this turn, and counts its bytes as sent, and each
    /// message that ends in them or before. Bytes of the open chunk are copied to `copy`, in place
    /// of its contents; those of a sealed one are shared. A step takes all bytes up to the end of
    /// the chunk, also more than the window has left. While the window is used up, it takes only a
    /// chunk that begins inside a message. May make room ([`room_again`](Self::room_again)).
    pub(super) fn take(&mut self, turn: u64, copy: &mut Vec<u8>) -> WriterStep {
        if turn != self.turn || self.state == OutboundState::GivenUp {
            return WriterStep::Superseded;
        }
        let index = (self.cursor.chunk - self.gone) as usize;
        let inside = |begins_inside: bool| self.cursor.at == 0 && begins_inside;
        let under_way = self.taken_bytes - self.acknowledged_bytes;
        // The window never splits a message
        // (docs/protocol/transport.md#the-window-never-splits-a-message), because a message is
        // acknowledged only as a whole.
        let held = |begins_inside| under_way >= self.window && !inside(begins_inside);
        if let Some(chunk) = self.sealed.get(index) {
            if self.cursor.at == chunk.bytes.len() {
                self.cursor = Cursor { chunk: self.cursor.chunk + 1, at: 0 };
                return self.take(turn, copy);
            }
            if held(chunk.begins_inside) {
                return WriterStep::Nothing;
            }
            let (bytes, from) = (Arc::clone(&chunk.bytes), self.cursor.at);
            self.sent = chunk.complete;
            self.advance(bytes.len() - from);
            return WriterStep::Chunk(bytes, from);
        }
        if self.cursor.at < self.open.len() {
            if held(self.open_begins_inside) {
                return WriterStep::Nothing;
            }
            copy.clear();
            copy.extend_from_slice(&self.open[self.cursor.at..]);
            self.sent = self.appended;
            self.advance(copy.len());
            return WriterStep::Copied;
        }
        if self.state == OutboundState::Finishing && self.acknowledged == self.appended {
            return WriterStep::Finished;
        }
        self.sleeps = true;
        WriterStep::Nothing
    }

    /// Moves the cursor behind these bytes, and counts one write.
    fn advance(&mut self, bytes: usize) {
        self.cursor.at += bytes;
        self.taken_bytes += bytes as u64;
        self.batches += 1;
    }

    /// Total number of messages appended.
    pub(super) fn appended(&self) -> u64 {
        self.appended
    }

    pub(super) fn is_turn(&self, turn: u64) -> bool {
        turn == self.turn
    }

    /// Marks the lane as unconnected, because the writer of this turn has ended, and its substream
    /// with it. Has no effect if a later writer has started. The turn stays, and the sent messages
    /// count as unsent only once the next writer starts.
    pub(super) fn disconnect(&mut self, turn: u64) {
        if turn == self.turn && self.connection == LaneConnection::Present {
            self.connection = LaneConnection::Absent;
        }
    }

    // ── Acknowledging ──

    /// Drops the messages up to `accepted`, which the writer of this turn has seen acknowledged.
    /// Returns whether callers waiting for room may try again: `false` also if the turn is over or
    /// the lane was abandoned (before any error), and if `accepted` is what was acknowledged last;
    /// nothing changes then. `undrained_since` begins anew, or ends if all is acknowledged.
    ///
    /// # Errors
    /// [`FrameViolation`] if `accepted` is less than an earlier one, or more than was sent. Nothing
    /// changes then; the caller ends the writer.
    pub(super) fn acknowledge(&mut self, turn: u64, accepted: u64) -> Result<bool, FrameViolation> {
        if turn != self.turn || self.state == OutboundState::GivenUp {
            return Ok(false);
        }
        if accepted < self.acknowledged {
            return Err(FrameViolation::AckBackwards { before: self.acknowledged, accepted });
        }
        if accepted > self.sent {
            return Err(FrameViolation::AckBeyond { sent: self.sent, accepted });
        }
        if accepted == self.acknowledged {
            return Ok(false);
        }
        self.acknowledged = accepted;
        let all = accepted == self.appended;
        self.undrained_since = if all { None } else { Some(Instant::now()) };
        while self.sealed.front().is_some_and(|chunk| chunk.last <= accepted)
            && let Some(chunk) = self.sealed.pop_front()
        {
            if self.cursor.chunk == self.gone {
                // It was sent while it was open, and has been sealed since.
                assert!(self.cursor.at == chunk.bytes.len(), "what is acknowledged was taken");
                self.cursor = Cursor { chunk: self.gone + 1, at: 0 };
            }
            self.drop_first(chunk.bytes.len());
            self.gone += 1;
            self.recycle(chunk.bytes);
        }
        if all {
            assert!(self.sealed.is_empty() && self.cursor.chunk == self.gone, "all was sent");
            self.drop_first(self.open.len());
            self.open.clear();
            self.cursor.at = 0;
        }
        self.acknowledged_bytes = self.acknowledged_bytes.max(self.gone_bytes);
        if accepted == self.sent {
            self.acknowledged_bytes = self.taken_bytes;
        }
        Ok(self.room_again())
    }

    /// Counts bytes at the start of the queue as dropped. The caller removes them.
    fn drop_first(&mut self, bytes: usize) {
        self.kept -= bytes;
        self.gone_bytes += bytes as u64;
    }

    /// Keeps the buffer of a dropped chunk for reuse, unless the writer still holds it or there are
    /// [`SPARE_MAX`] already.
    fn recycle(&mut self, bytes: Arc<Vec<u8>>) {
        if self.spare.len() < SPARE_MAX
            && let Ok(mut bytes) = Arc::try_unwrap(bytes)
        {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Whether callers waiting for room may try again, after bytes were sent or acknowledged: a
    /// message was rejected as full, and the shortest one fits below the limit of ordinary messages
    /// or the queue is empty; or a long message was rejected for its turn, and little is unsent.
    /// `true` only once: it forgets the rejected messages of both kinds, but not that one awaits a
    /// connection. The caller must then notify those that wait.
    pub(super) fn room_again(&mut self) -> bool {
        let fits = |wanted| self.kept == 0 || self.kept + wanted <= self.bytes_max;
        let again = self.wanted.is_some_and(fits)
            || self.passing.is_some() && self.unsent_bytes() <= AHEAD_OF_LONG;
        if again {
            (self.wanted, self.passing) = (None, None);
        }
        again
    }

    /// Whether no message was rejected, as full or for lack of a connection, since there last was
    /// room, or the lane has ended. `true` does not mean that a message of any length fits.
    pub(super) fn has_room(&self) -> bool {
        let waits = self.wanted.is_some()
            || self.passing.is_some()
            || self.connection == LaneConnection::Awaited;
        !waits || self.state != OutboundState::Open
    }

    // ── The end ──

    /// Rejects further messages; the buffered ones are still sent. Has no effect if the lane has
    /// ended.
    pub(super) fn finish(&mut self) {
        if self.state == OutboundState::Open {
            self.state = OutboundState::Finishing;
        }
    }

    /// Abandons the lane, open or finished: drops all messages, and ends every writer, present and
    /// later, at its next [`take`](Self::take). Returns the number of unacknowledged messages; 0 if
    /// the lane was abandoned before. The counts of messages in [`stats`](Self::stats) stay, that
    /// of the unacknowledged ones too.
    pub(super) fn give_up(&mut self) -> u64 {
        if self.state == OutboundState::GivenUp {
            return 0;
        }
        self.state = OutboundState::GivenUp;
        self.sealed.clear();
        self.open = Vec::new();
        self.spare = Vec::new();
        self.numbers = NameTable::default();
        self.kept = 0;
        (self.wanted, self.passing) = (None, None); // the byte counts no longer match `kept`
        self.undrained_since = None;
        self.appended - self.acknowledged
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub(super) fn stats(&self) -> LaneStats {
        LaneStats {
            kept_bytes: self.kept,
            unacknowledged: self.appended - self.acknowledged,
            unsent: self.appended - self.sent,
            appended: self.appended,
            sent: self.sent,
            acknowledged: self.acknowledged,
            resent: self.resent,
            sent_bytes: self.taken_bytes,
            refused: self.refused,
            batches: self.batches,
            undrained_since: self.undrained_since,
            connected: self.connection == LaneConnection::Present,
        }
    }
}

#[cfg(test)]
mod tests;
