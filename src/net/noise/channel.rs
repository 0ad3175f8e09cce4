//! Encrypted channel with an authenticated peer over a socket.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::{AsyncRead, AsyncWrite};

use super::sealed::{SealedReceiveBuffer, SealedSendBuffer};
use super::session::CipherSession;

/// Bytes read after which the connection's task yields: a piece of a lane. (The last read may
/// exceed it.)
///
/// The connection's task wakes the readers of that data. tokio runs the most recently woken task
/// only on the thread that woke it, so the lanes' readers would wait as long as the connection kept
/// reading, and then the connection for them.
const BYTES_PER_TURN: usize = 64 * 1024;

/// Encrypted duplex byte stream. Written data is sent once a message is full
/// ([`PLAIN_MAX`](super::PLAIN_MAX)) and the socket accepts it, and with a flush. A channel buffers
/// up to five messages: two outgoing, two incoming, and the content of one; a few KiB if messages
/// are short.
pub struct Channel<S> {
    socket: S,
    session: CipherSession,
    outgoing: SealedSendBuffer,
    incoming: SealedReceiveBuffer,
    this_turn: usize, // bytes read since the last yield or pending read
}

impl<S> Channel<S> {
    pub(super) fn new(socket: S, session: CipherSession) -> Self {
        let (outgoing, incoming) = (SealedSendBuffer::default(), SealedReceiveBuffer::default());
        Self { socket, session, outgoing, incoming, this_turn: 0 }
    }

    /// Ends the channel. Its keys and nonces can continue in another one. Drops the socket, and
    /// data that is unsent, unopened or unread, which that one does not get.
    pub(super) fn into_session(self) -> CipherSession {
        self.session
    }
}

impl<S> fmt::Debug for Channel<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + Unpin> Channel<S> {
    /// Reads from the socket into the buffer of incoming messages, in which no complete message may
    /// be left. Returns the number of bytes, 0 at the end of the socket. After [`BYTES_PER_TURN`]
    /// without a pending read it reads nothing, wakes its own task and is pending once; the count
    /// then starts over.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.this_turn >= BYTES_PER_TURN {
            self.this_turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.socket).poll_read(cx, self.incoming.room());
        match &read {
            Poll::Ready(Ok(len)) => {
                self.this_turn += len;
                self.incoming.fill(*len);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.this_turn = 0, // other tasks run now
        }
        read
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Channel<S> {
    /// Reads decrypted data, of at most one message per call. Messages without content are skipped.
    /// Returns 0 at the end of the socket between two messages, whether the peer has closed it or
    /// not, or at once if `out` is empty. Fails, after all data of earlier messages, with
    /// `UnexpectedEof` if the socket ends within a message, with `InvalidData`, at every later call
    /// as well, if a message was modified, likewise with `Other` if the nonces are used up, and
    /// with an error of the socket.
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        loop {
            let len = this.incoming.read(out);
            if len > 0 || out.is_empty() {
                return Poll::Ready(Ok(len));
            }
            if this.incoming.open(&mut this.session)? {
                continue;
            }
            if ready!(this.poll_fill(cx))? == 0 {
                let broken = this.incoming.has_unopened();
                let end = if broken { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(0) };
                return Poll::Ready(end);
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Channel<S> {
    /// Writes the rest of the sealed message to the socket, without a flush. Ready once all of it
    /// was written, or if there is none. A write of 0 bytes is the error `WriteZero`.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let unsent @ [_, ..] = self.outgoing.unsent() {
            let len = ready!(Pin::new(&mut self.socket).poll_write(cx, unsent))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.sent(len);
        }
        Poll::Ready(Ok(()))
    }

    /// Seals the buffered data once the previous message was written. Does nothing more if no data
    /// is buffered. If sealing fails, because the nonces are used up, the data stays buffered.
    fn poll_seal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        if self.outgoing.is_begun() {
            self.outgoing.seal(&mut self.session)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Seals and writes all buffered data, also less than a full message. Does not flush the
    /// socket.
    fn poll_send_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_seal(cx))?;
        self.poll_send(cx)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    /// Buffers as many bytes as fit into the next message, and returns their number; 0 only if
    /// `bytes` is empty. If that message is full before, it is sealed first, which is pending until
    /// the previous message was written, and sent as far as the socket accepts it; an error of that
    /// is returned, and no byte is taken. If it becomes full, it is sent likewise; an error of that
    /// is reported by the next call, because the bytes were taken. Never flushes the socket.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.outgoing.is_full() {
            ready!(this.poll_seal(cx))?;
            let _ = this.poll_send(cx)?;
        }
        let len = this.outgoing.append(bytes);
        if this.outgoing.is_full() {
            // These bytes are already buffered. If they cannot be sent now, the next call reports
            // the error.
            let _ = this.poll_send_all(cx);
        }
        Poll::Ready(Ok(len))
    }

    /// Seals and sends all buffered data, then flushes the socket. Pending until all is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_all(cx))?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    /// Seals and sends all buffered data, then closes the socket, without a message about the end.
    /// The socket stays open if sending fails.
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_all(cx))?;
        Pin::new(&mut self.socket).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use futures::executor::block_on;
    use futures::io::{AsyncReadExt, AsyncWriteExt, Cursor};

    use super::super::session::tests::{sessions, states};
    use super::super::suite::Suite;
    use super::*;

    fn ends() -> [CipherSession; 2] {
        sessions(Suite::ChaChaPoly, None)
    }

    /// A reader that returns a few bytes per call.
    struct SlowReader(Cursor<Vec<u8>>);

    impl AsyncRead for SlowReader {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            out: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let most = out.len().min(5_000);
            Pin::new(&mut self.0).poll_read(cx, &mut out[..most])
        }
    }

    /// A writer that accepts a few bytes per call, and fails on each third call.
    #[derive(Default)]
    struct Shaky {
        taken: Vec<u8>,
        calls: usize,
    }

    impl AsyncWrite for Shaky {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Poll::Ready(Err(io::ErrorKind::Interrupted.into()));
            }
            let len = bytes.len().min(10_000);
            self.taken.extend_from_slice(&bytes[..len]);
            Poll::Ready(Ok(len))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Encrypted bytes of `all` in messages of `each` bytes, and the session of the far end, which
    /// can read them.
    fn sealed_messages(all: &[u8], each: usize) -> (Vec<u8>, CipherSession) {
        let [near, far] = ends();
        let mut channel = Channel::new(Cursor::new(Vec::new()), near);
        for piece in all.chunks(each) {
            block_on(channel.write_all(piece)).expect("a Vec takes all");
            block_on(channel.flush()).expect("a Vec takes all");
        }
        (channel.socket.into_inner(), far)
    }

    #[test]
    fn busy_channel_yields_after_each_piece() {
        const BYTES: usize = 1 << 20;
        let (travels, far) = sealed_messages(&vec![9; BYTES], 4_000);
        let mut channel = Channel::new(SlowReader(Cursor::new(travels)), far);
        let woken = Arc::<WakeCounter>::default();
        let waker = Arc::clone(&woken).into();
        let mut cx = Context::from_waker(&waker);
        let mut out = [0; 4_000];
        let (mut left, mut turns, mut since) = (BYTES, 0, 0);
        while left > 0 {
            match Pin::new(&mut channel).poll_read(&mut cx, &mut out) {
                Poll::Ready(read) => {
                    let read = read.expect("it is not modified");
                    (left, since) = (left - read, since + read);
                    assert!(since <= BYTES_PER_TURN + 10_000, "{since} bytes in one turn");
                }
                Poll::Pending => {
                    (turns, since) = (turns + 1, 0);
                    assert_eq!(woken.0.load(Ordering::Relaxed), turns, "only the channel wakes it");
                }
            }
        }
        assert!((12..=16).contains(&turns), "{turns} turns");
        for _ in 0..2 {
            assert_eq!(block_on(channel.read(&mut out)).expect("in order"), 0);
        }
        assert_eq!(block_on(channel.read(&mut [])).expect("nothing"), 0);
    }

    #[test]
    fn write_after_an_error_continues() {
        let all: Vec<u8> = (0..300_000_u32).map(|at| (at >> 5) as u8).collect();
        let [near, far] = ends();
        let mut channel = Channel::new(Shaky::default(), near);
        let (mut rest, mut errors) = (&all[..], 0);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        while !rest.is_empty() {
            match Pin::new(&mut channel).poll_write(&mut cx, rest) {
                Poll::Ready(Ok(len)) => rest = &rest[len..],
                Poll::Ready(Err(_)) => errors += 1,
                Poll::Pending => panic!("it never waits"),
            }
        }
        while block_on(channel.flush()).is_err() {
            errors += 1;
        }
        assert!(errors > 3, "{errors}");
        let mut received = Vec::new();
        let mut channel = Channel::new(Cursor::new(channel.socket.taken), far);
        block_on(channel.read_to_end(&mut received)).expect("nothing is missing");
        assert!(received == all);
    }

    /// A message without content does not end the stream.
    #[test]
    fn empty_message_is_skipped() {
        let [mut near, far] = states(Suite::ChaChaPoly);
        let mut travels = Vec::new();
        for content in [&b""[..], b"hello"] {
            let mut message = vec![0; content.len() + 16];
            let len = near.write_message(content, &mut message).expect("a nonce is left");
            travels.extend_from_slice(&u16::try_from(len).expect("short").to_be_bytes());
            travels.extend_from_slice(&message);
        }
        let mut received = Vec::new();
        let far = CipherSession::new(far, Suite::ChaChaPoly);
        let mut channel = Channel::new(Cursor::new(travels), far);
        block_on(channel.read_to_end(&mut received)).expect("in order");
        assert_eq!(received, b"hello");
    }

    #[test]
    fn modified_message_ends_reading() {
        let (mut travels, far) = sealed_messages(b"abc", 1);
        travels[2 + 1 + 16 + 2] ^= 1; // the second
        let mut channel = Channel::new(Cursor::new(travels), far);
        let mut out = [0; 9];
        assert_eq!(block_on(channel.read(&mut out)).expect("unchanged"), 1);
        for _ in 0..3 {
            let kind = block_on(channel.read(&mut out)).expect_err("changed").kind();
            assert_eq!(kind, io::ErrorKind::InvalidData);
        }
    }
}
