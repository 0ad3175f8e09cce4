//! Session of a connection: reads frames and passes their data to the streams, and writes the
//! frames of the streams.
//!
//! Streams take turns, each with up to a [`PIECE`] of data. The session flushes once no stream
//! waits, or after so much data that the peer has something to do meanwhile. So acknowledgements,
//! credit and data of several streams share one encrypted message and one system call.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures::{AsyncRead, AsyncWrite};

use super::half_closed::HalfClosed;
use super::header::{
    Flags, FrameHeader, FrameKind, GO_AWAY_NORMAL, GO_AWAY_VIOLATION, HEADER_BYTES, WINDOW_FIRST,
};
use super::pipe::{HeaderBuffer, PIECE, PeerHalf, RecvBuffer, SharedStream};
use super::{MuxerError, MuxerSide, MuxerViolation, SendQueue};

/// Bytes of data, without headers, written before the session reads again.
const BYTES_PER_TURN: usize = 256 * 1024;

/// Bytes of data, without headers, written inline before the rest is left to the connection's task.
const BYTES_PUSHED: usize = 16 * 1024;

/// Maximum number of queued answers to pings. Beyond it, the oldest are dropped.
const PONGS_MAX: usize = 8;

/// Maximum number of queued refusals of streams beyond the limit. A peer that exceeds it violates
/// the protocol.
const REFUSED_MAX: usize = 256;

/// State of a connection: its socket, its streams, the frame that is being read, and the frames
/// that are being written. The connection's task calls `poll`, an inline writer calls `push`, one
/// at a time.
#[derive(Debug)]
pub(super) struct MuxerSession<C> {
    socket: C,
    mode: MuxerSide,
    streams_max: usize,
    streams: HashMap<u32, Arc<SharedStream>>, // ≤ streams_max
    half_closed: HalfClosed,
    next_id: u32,
    arrived: VecDeque<Arc<SharedStream>>, // of `streams`, not yet accepted
    end: Option<MuxerError>,              // error of writing, until `poll` returns it
    has_read: bool,                       // whether this poll has read a byte
    // Reading.
    expected: Expected,
    read: RecvBuffer, // ≤ PIECE
    // Writing.
    headers: HeaderBuffer,
    body: Vec<u8>, // ≤ PIECE
    body_sent: usize,
    pongs: VecDeque<FrameHeader>,   // ≤ PONGS_MAX
    refused: VecDeque<FrameHeader>, // ≤ REFUSED_MAX
    // Streams to reset. Each has left `half_closed`, or was removed while this queue was empty.
    resets: VecDeque<u32>, // ≤ HALF_CLOSED_MAX
    go_away: GoAway,
    unflushed: usize, // bytes written to the socket since its last flush
}

/// Part of the input that is read next.
#[derive(Debug)]
enum Expected {
    /// A header, with the number of bytes received so far.
    Header([u8; HEADER_BYTES], usize),
    /// Data of a frame, of which `left` bytes have not been read yet; without a stream it is
    /// discarded. A frame without data passes through this state as well. `is_last`: the frame has
    /// FIN, so that the peer's half ends after its data.
    Data { pipe: Option<Arc<SharedStream>>, left: u32, is_last: bool },
}

/// State of the go-away frame that this side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GoAway {
    Idle,
    /// Go-away with this code must be written after all other waiting frames.
    Wanted(u32),
    /// Go-away is being written or was written.
    Sent,
}

const HEADER: Expected = Expected::Header([0; HEADER_BYTES], 0);

impl<C> MuxerSession<C> {
    /// Fails all streams of the connection with `ConnectionAborted`, and forgets them, also those
    /// that were not accepted yet. Received data can still be read; queued data is dropped. Wakes
    /// the tasks that wait to read or write, but leaves the socket and the queue of streams as they
    /// are. Not related to the field `end`.
    pub(super) fn end(&mut self) {
        self.wake_all(|pipe| pipe.lock().fail(io::ErrorKind::ConnectionAborted));
        self.streams.clear();
        self.arrived.clear();
    }

    /// Calls `end` on every stream, and wakes the tasks whose wakers it returns.
    fn wake_all(&self, end: impl Fn(&SharedStream) -> [Option<Waker>; 2]) {
        let wakers = self.streams.values().flat_map(|pipe| end(pipe));
        wakers.flatten().for_each(Waker::wake);
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> MuxerSession<C> {
    /// Creates a session without streams. This side's stream ids are 1, 3, 5 … as the client, and
    /// 2, 4, 6 … as the server.
    pub(super) fn new(socket: C, mode: MuxerSide, streams_max: usize) -> Self {
        Self {
            socket,
            mode,
            streams_max,
            streams: HashMap::new(),
            half_closed: HalfClosed::default(),
            next_id: match mode {
                MuxerSide::Client => 1,
                MuxerSide::Server => 2,
            },
            arrived: VecDeque::new(),
            end: None,
            has_read: false,
            expected: HEADER,
            read: RecvBuffer::default(),
            headers: HeaderBuffer::default(),
            body: Vec::new(),
            body_sent: 0,
            pongs: VecDeque::new(),
            refused: VecDeque::new(),
            resets: VecDeque::new(),
            go_away: GoAway::Idle,
            unflushed: 0,
        }
    }

    /// Reads until the socket is pending, then writes about [`BYTES_PER_TURN`] of data, and wakes
    /// its own task if more waits. Ready only with the error that ends the connection; the caller
    /// must then call [`end`](Self::end). An error of reading is returned after one attempt to
    /// write waiting frames (and go-away, after a violation), and precedes an error of writing.
    ///
    /// An error of writing, also one of [`push`](Self::push), stops further writes, but is returned
    /// only by a poll that has read nothing: the streams get all that the peer has sent before.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        waiting: &SendQueue,
    ) -> Poll<Result<Infallible, MuxerError>> {
        self.has_read = false;
        let read = self.poll_read(cx);
        if let Poll::Ready(Err(MuxerError::Violation(_))) = &read {
            self.go_away = GoAway::Wanted(GO_AWAY_VIOLATION);
        }
        if self.end.is_none()
            && let Poll::Ready(Err(end)) = self.poll_write(cx, waiting, BYTES_PER_TURN)
        {
            self.end = Some(end);
        }
        if read.is_ready() {
            return read;
        }
        match self.end.take() {
            Some(end) if self.has_read => {
                // Read what the peer sent before it closed the connection.
                self.end = Some(end);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(end) => Poll::Ready(Err(end)),
            None => Poll::Pending,
        }
    }

    /// Writes waiting frames inline, up to about [`BYTES_PUSHED`] of data. `task` is the waker of
    /// the connection's task. It is woken for the rest, by later events of the socket, and by an
    /// error, which the next [`poll`](Self::poll) that reads nothing returns. Reads nothing itself.
    /// Does nothing after an error of writing.
    pub(super) fn push(&mut self, task: &Waker, waiting: &SendQueue) {
        if self.end.is_some() {
            return;
        }
        let written = self.poll_write(&mut Context::from_waker(task), waiting, BYTES_PUSHED);
        if let Poll::Ready(Err(end)) = written {
            self.end = Some(end);
            task.wake_by_ref();
        }
    }

    /// Opens a stream once there are fewer than the maximum, in both directions together. Writes
    /// nothing: the peer learns of the stream by its first frame. Pending registers no waker: the
    /// caller must have registered the task, which every dropped stream wakes. At the maximum it is
    /// pending even if the ids are used up; otherwise it fails then, at every call, with
    /// [`MuxerError::NoMoreStreams`].
    pub(super) fn poll_open(&mut self) -> Poll<Result<Arc<SharedStream>, MuxerError>> {
        if self.streams.len() >= self.streams_max {
            return Poll::Pending;
        }
        let pipe = Arc::new(SharedStream::outbound(self.next_id));
        self.next_id = self.next_id.checked_add(2).ok_or(MuxerError::NoMoreStreams)?;
        self.streams.insert(pipe.id, Arc::clone(&pipe));
        Poll::Ready(Ok(pipe))
    }

    /// Returns the next stream that the peer has opened, even if the peer has reset it since.
    /// Pending registers no waker.
    pub(super) fn poll_arrived(&mut self) -> Poll<Arc<SharedStream>> {
        self.arrived.pop_front().map_or(Poll::Pending, Poll::Ready)
    }

    /// Writes all queued data and go-away, and closes the socket. Reads nothing. Pending until the
    /// socket is closed; fails at the first error of writing, without closing the socket. The first
    /// call also ends all streams for their users, unless go-away was wanted before because of a
    /// violation. A stream that is removed from then on is not reset.
    pub(super) fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        waiting: &SendQueue,
    ) -> Poll<Result<(), MuxerError>> {
        if self.go_away == GoAway::Idle {
            self.go_away = GoAway::Wanted(GO_AWAY_NORMAL);
            self.wake_all(|pipe| pipe.lock().close());
        }
        ready!(self.poll_write(cx, waiting, usize::MAX))?;
        Pin::new(&mut self.socket).poll_close(cx).map_err(MuxerError::Io)
    }

    // ── Reading ──

    /// Reads frames and passes their data to the streams, until the socket is pending; nothing else
    /// bounds it. Data goes to its stream as it arrives, not only with the last byte of the frame.
    /// Ready only with an error: [`MuxerError::Closed`] if the socket ends between two frames or
    /// the peer sends go-away, `UnexpectedEof` if it ends within a frame, any other error of the
    /// socket, or a violation. Must not be called again after an error.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<Infallible, MuxerError>> {
        loop {
            match &mut self.expected {
                Expected::Header(bytes, have) => {
                    let len =
                        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut bytes[*have..]))?;
                    if len == 0 {
                        let at_end = *have == 0;
                        return Poll::Ready(Err(if at_end {
                            MuxerError::Closed
                        } else {
                            broken()
                        }));
                    }
                    self.has_read = true;
                    *have += len;
                    if *have == HEADER_BYTES {
                        let header = FrameHeader::decode(*bytes)?;
                        self.expected = HEADER;
                        self.on(header)?;
                    }
                }
                Expected::Data { pipe, left: 0, is_last } => {
                    let ended = pipe.as_ref().filter(|_| *is_last);
                    wake(ended.and_then(|pipe| pipe.lock().end()));
                    self.expected = HEADER;
                }
                Expected::Data { pipe, left, .. } => {
                    let most = usize::try_from(*left).map_or(PIECE, |left| left.min(PIECE));
                    let room = self.read.space(most);
                    let len = ready!(Pin::new(&mut self.socket).poll_read(cx, room))?;
                    if len == 0 {
                        return Poll::Ready(Err(broken()));
                    }
                    self.has_read = true;
                    self.read.fill(len);
                    *left -= u32::try_from(len).expect("≤ PIECE");
                    wake(pipe.as_ref().and_then(|pipe| pipe.lock().arrive(&mut self.read)));
                }
            }
        }
    }

    /// Handles a complete header. A ping is answered, later and ahead of all other frames; beyond
    /// [`PONGS_MAX`] queued answers the oldest is dropped. A ping without SYN is ignored. Go-away
    /// ends the connection with [`MuxerError::Closed`], whatever its code.
    fn on(&mut self, header: FrameHeader) -> Result<(), MuxerError> {
        match header.kind {
            FrameKind::Data | FrameKind::Window => self.on_stream(header),
            FrameKind::Ping => {
                if header.flags.has(Flags::SYN) {
                    self.pongs.truncate(PONGS_MAX - 1);
                    self.pongs.push_front(FrameHeader { flags: Flags::ACK, ..header });
                }
                Ok(())
            }
            FrameKind::GoAway => Err(MuxerError::Closed),
        }
    }

    /// Handles the header of a data or window frame, and expects its data next. SYN opens the
    /// stream. RST fails it with `ConnectionReset`, and takes precedence over all else in the
    /// frame, also over SYN. Otherwise the data is checked against the window of the stream, or the
    /// credit is added. Fails if the peer violates the protocol.
    ///
    /// Data of an unknown or refused stream, or in a frame with RST, is read and discarded; its
    /// length is not checked. A stream that was reset is known until its user drops it: its data is
    /// discarded too, but checked.
    fn on_stream(&mut self, header: FrameHeader) -> Result<(), MuxerError> {
        let FrameHeader { kind, flags, stream, len } = header;
        let (data, mut credit) = if kind == FrameKind::Data { (len, 0) } else { (0, len) };
        let is_new = flags.has(Flags::SYN) && !flags.has(Flags::RST);
        let is_known = !is_new || self.on_open(stream, mem::take(&mut credit))?;
        let pipe = self.streams.get(&stream).filter(|_| is_known).cloned();
        if let Some(pipe) = &pipe {
            let mut state = pipe.lock();
            let wakers = if flags.has(Flags::RST) {
                state.fail(io::ErrorKind::ConnectionReset)
            } else {
                state.reserve_window(data)?;
                [state.credit(credit)?, None]
            };
            drop(state);
            wakers.into_iter().for_each(wake);
        } else {
            self.on_unknown_stream(header);
        }
        let is_last = flags.has(Flags::FIN) && !flags.has(Flags::RST);
        self.expected = Expected::Data { pipe, left: data, is_last };
        Ok(())
    }

    /// Answers the first data on a half-closed stream with RST, and forgets the stream. A frame
    /// with FIN or RST only makes the session forget a half-closed stream, even if it has data; all
    /// other frames are ignored, as are those of streams that are not half-closed.
    ///
    /// A frame with FIN needs no answer, because its sender waits for nothing after it. Neither
    /// does credit: it comes from a peer that still reads what was sent before the stream was
    /// closed here, and a peer that reads to the end and then closes must not fail.
    fn on_unknown_stream(&mut self, header: FrameHeader) {
        let FrameHeader { kind, flags, stream, len } = header;
        let is_over = flags.has(Flags::FIN) || flags.has(Flags::RST);
        let is_unread = kind == FrameKind::Data && len > 0;
        if is_over {
            self.half_closed.remove(stream);
        } else if is_unread && self.half_closed.remove(stream) {
            self.resets.push_back(stream);
        }
    }

    /// Removes a stream that its user has dropped. RST follows if the peer may wait for credit: at
    /// once if the peer has no credit left, so that it can send nothing that would be answered,
    /// otherwise on its next data. If too many streams wait for that, the oldest of them is reset
    /// now. No RST follows if the stream is dead, the peer has ended its half, also by a FIN whose
    /// data is still being read, or this side ends the connection.
    fn remove(&mut self, pipe: &Arc<SharedStream>) {
        self.streams.remove(&pipe.id);
        // The peer has sent FIN together with data that is still being read.
        let is_ending = matches!(&self.expected,
            Expected::Data { pipe: Some(ending), is_last: true, .. } if Arc::ptr_eq(ending, pipe));
        let half = pipe.lock().peer_half();
        if is_ending || self.go_away != GoAway::Idle {
            return;
        }
        let reset = match half {
            PeerHalf::Closed => None,
            PeerHalf::Exhausted => Some(pipe.id),
            PeerHalf::Open => self.half_closed.insert(pipe.id),
        };
        self.resets.extend(reset);
    }

    /// Accepts or refuses a stream of the peer, whose initial window is enlarged by `credit`.
    /// `false`: there is no room for it, and it alone is reset
    /// (docs/protocol/transport.md#an-extra-stream-is-reset-alone). Fails, because the peer
    /// violates the protocol, if the id is not one of the peer's or is in use, [`REFUSED_MAX`]
    /// refusals wait, or the window exceeds 32 bits. A stream that the peer has reset uses its id
    /// until the user drops it. The specification demands a new id for each stream, so only a
    /// faulty peer opens it again.
    fn on_open(&mut self, id: u32, credit: u32) -> Result<bool, MuxerError> {
        let odd = self.mode == MuxerSide::Server; // clients use odd ids
        if id == 0 || (id % 2 == 1) != odd {
            return Err(MuxerViolation::Id(id).into());
        }
        if self.streams.contains_key(&id) {
            return Err(MuxerViolation::OpenedTwice(id).into());
        }
        if self.streams.len() >= self.streams_max {
            if self.refused.len() == REFUSED_MAX {
                return Err(MuxerViolation::Insists.into());
            }
            let flags = Flags::ACK.and(Flags::RST);
            let refusal = FrameHeader { kind: FrameKind::Data, flags, stream: id, len: 0 };
            self.refused.push_back(refusal);
            return Ok(false);
        }
        let credit = credit.checked_add(WINDOW_FIRST).ok_or(MuxerViolation::Credit)?;
        self.half_closed.remove(id); // a peer that reuses the id no longer uses the former stream
        let pipe = Arc::new(SharedStream::inbound(id, credit));
        self.streams.insert(id, Arc::clone(&pipe));
        self.arrived.push_back(pipe);
        Ok(true)
    }

    // ── Writing ──

    /// Writes waiting frames, those that an earlier call has prepared first. Ready once no frame
    /// waits, go-away (if wanted) was written, and all bytes were flushed. After about `most` bytes
    /// of data, headers not counted, it wakes the task of `cx` and is pending, without a flush of
    /// the last bytes. Also flushes after each [`PIECE`]. Frames that were prepared but not written
    /// stay for the next call.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        waiting: &SendQueue,
        most: usize,
    ) -> Poll<Result<(), MuxerError>> {
        let mut written = 0;
        loop {
            while let unsent @ [_, ..] = self.headers.unsent() {
                let len = ready!(write(&mut self.socket, cx, unsent))?;
                self.headers.sent(len);
                self.unflushed += len;
            }
            while let unsent @ [_, ..] = &self.body[self.body_sent..] {
                let len = ready!(write(&mut self.socket, cx, unsent))?;
                self.body_sent += len;
                self.unflushed += len;
                written += len;
            }
            if self.unflushed >= PIECE {
                ready!(self.poll_flush(cx))?;
            }
            if written >= most {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !self.next(waiting) {
                return self.poll_flush(cx);
            }
        }
    }

    /// Flushes the socket if bytes were written since its last flush.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), MuxerError>> {
        if self.unflushed > 0 {
            ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
            self.unflushed = 0;
        }
        Poll::Ready(Ok(()))
    }

    /// Prepares the next frames to write, in this order: an answer to a ping, a refusal, a reset,
    /// the turn of the stream at the head of the queue, and go-away once nothing else waits.
    /// `false`: nothing waits. `true` also if the turn of a stream has yielded no frame. The
    /// previous frames must have been written completely. Go-away is prepared only once; frames
    /// that are queued later still follow it.
    ///
    /// After its turn, before its frames are written, a stream that is over is removed, a stream
    /// that goes on is queued again at the end, and a task that waits to write to it is woken.
    fn next(&mut self, waiting: &SendQueue) -> bool {
        self.headers = HeaderBuffer::default();
        self.body.clear();
        self.body_sent = 0;
        if let Some(header) = self.pongs.pop_back().or_else(|| self.refused.pop_front()) {
            self.headers.push(header);
            return true;
        }
        if let Some(stream) = self.resets.pop_front() {
            self.headers.push(FrameHeader {
                kind: FrameKind::Data,
                flags: Flags::RST,
                stream,
                len: 0,
            });
            return true;
        }
        if let Some(pipe) = waiting.pop() {
            let output = pipe.lock().turn(pipe.id, &mut self.body);
            if output.is_over {
                self.remove(&pipe);
            }
            if output.goes_on {
                waiting.push(&pipe);
            }
            wake(output.writer);
            self.headers = output.headers;
            return true;
        }
        if let GoAway::Wanted(why) = self.go_away {
            self.go_away = GoAway::Sent;
            let flags = Flags::default();
            self.headers.push(FrameHeader { kind: FrameKind::GoAway, flags, stream: 0, len: why });
            return true;
        }
        false
    }
}

/// Writes to the socket. A write of 0 bytes is the error `WriteZero`.
fn write<C: AsyncWrite + Unpin>(
    socket: &mut C,
    cx: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<Result<usize, MuxerError>> {
    let len = ready!(Pin::new(socket).poll_write(cx, bytes))?;
    Poll::Ready(if len == 0 {
        Err(MuxerError::Io(io::ErrorKind::WriteZero.into()))
    } else {
        Ok(len)
    })
}

/// Returns the error for a socket that ends within a frame.
fn broken() -> MuxerError {
    MuxerError::Io(io::ErrorKind::UnexpectedEof.into())
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
