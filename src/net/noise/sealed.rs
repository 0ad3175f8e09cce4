//! Buffers for messages after the handshake, each a length of two bytes and the ciphertext with its
//! tag.
//!
//! Without I/O: [`Channel`](super::Channel) moves the bytes.

use std::io;
use std::ops::Range;

use super::session::{CipherSession, TAG_LEN};

/// Maximum length of the content of a message, in bytes.
pub const PLAIN_MAX: usize = CIPHER_MAX - TAG_LEN;

/// Maximum length of its ciphertext, tag included.
const CIPHER_MAX: usize = 65_535;

/// Length of the length field.
const PREFIX: usize = 2;

/// Maximum length of a message on the wire.
const MESSAGE_MAX: usize = PREFIX + CIPHER_MAX;

/// Initial size of the receive buffer.
const ROOM_MIN: usize = 4 * 1024;

/// Size of the receive buffer on a busy connection.
const ROOM_MAX: usize = 2 * MESSAGE_MAX;

/// Outgoing messages: the sealed one that is being sent, and the content of the next one.
#[derive(Default)]
pub(super) struct SealedSendBuffer {
    sealed: Vec<u8>, // ≤ MESSAGE_MAX
    sent: usize,     // bytes of `sealed` that were sent
    plain: Vec<u8>,  // ≤ PLAIN_MAX
}

impl SealedSendBuffer {
    /// Buffers as many bytes as fit into the next message. Returns their number, 0 if it is full.
    /// Seals nothing, even if the message becomes full.
    pub(super) fn append(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(PLAIN_MAX - self.plain.len());
        self.reserve(self.plain.len() + len);
        self.plain.extend_from_slice(&bytes[..len]);
        len
    }

    /// Makes room for a content of `len` bytes, at most one message (panics beyond). Doubles the
    /// capacity, like a `Vec`, but never beyond one message; it never shrinks.
    fn reserve(&mut self, len: usize) {
        let has = self.plain.capacity();
        if has < len {
            let goal = (2 * has).clamp(len, PLAIN_MAX);
            self.plain.reserve_exact(goal - self.plain.len());
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.plain.len() == PLAIN_MAX
    }

    /// Whether there is buffered data that is not yet sealed.
    pub(super) fn is_begun(&self) -> bool {
        !self.plain.is_empty()
    }

    /// Seals the buffered data, even if there is none, into the next message. The previous message
    /// must have been sent; panics otherwise. The data is then no longer buffered, and the message
    /// is unsent. If it fails, because the nonces are used up, the data stays buffered and nothing
    /// is unsent.
    pub(super) fn seal(&mut self, session: &mut CipherSession) -> io::Result<()> {
        assert!(self.unsent().is_empty(), "one message travels at a time");
        self.sent = 0;
        let len = PREFIX + self.plain.len() + TAG_LEN;
        if self.sealed.capacity() < len {
            // Grows in the same steps as `plain`, instead of with each longer message.
            let goal = PREFIX + self.plain.capacity().min(PLAIN_MAX) + TAG_LEN;
            self.sealed.reserve_exact(goal - self.sealed.len());
        }
        self.sealed.resize(len, 0);
        let sealed = session.seal(&self.plain, &mut self.sealed[PREFIX..]);
        let len = sealed.inspect_err(|_| self.sealed.clear())?;
        let prefix = u16::try_from(len).expect("≤ CIPHER_MAX");
        self.sealed[..PREFIX].copy_from_slice(&prefix.to_be_bytes());
        self.plain.clear();
        Ok(())
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.sealed[self.sent..]
    }

    /// Marks the next `len` bytes of the sealed message as sent. Panics if fewer are unsent.
    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        assert!(self.sent <= self.sealed.len(), "at most the unsent bytes are sent");
    }
}

/// Incoming messages: bytes as they arrived, and the content of the last opened message.
#[derive(Default)]
pub(super) struct SealedReceiveBuffer {
    bytes: Vec<u8>,       // ≤ ROOM_MAX
    raw: Range<usize>,    // of `bytes`: not yet opened
    content: Vec<u8>,     // ≤ CIPHER_MAX, because opening needs room for the tag as well
    unread: Range<usize>, // of `content`
    is_broken: bool,      // a message was modified in transit: no other is opened, for ever
}

impl SealedReceiveBuffer {
    /// Copies unread decrypted data to `out`, and returns its length; 0 if none is left or `out` is
    /// empty. Opens no message.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.unread.len());
        out[..len].copy_from_slice(&self.content[self.unread.start..][..len]);
        self.unread.start += len;
        len
    }

    /// Opens the next message once the last one was read; `false` if it has not arrived completely.
    /// The content of an opened message may be empty. Panics if unread data is left.
    ///
    /// After a modified message, or one shorter than a tag, every call returns the same error
    /// (`InvalidData`) and the message stays unopened, so that the reader gets a prefix of what the
    /// other end has sent, without gaps. So does every call after the last nonce (`Other`).
    pub(super) fn open(&mut self, session: &mut CipherSession) -> io::Result<bool> {
        assert!(self.unread.is_empty(), "the last message was read");
        let Some(len) = self.next_message_len().filter(|len| *len <= self.raw.len()) else {
            return Ok(false);
        };
        let message = self.raw.start + PREFIX..self.raw.start + len;
        if self.content.len() < message.len() {
            let goal = (2 * self.content.len()).clamp(message.len(), CIPHER_MAX);
            self.content.reserve_exact(goal - self.content.len());
            self.content.resize(goal, 0);
        }
        // An error instead of `None` means that the nonces are used up. They stay so: it comes
        // again without a flag.
        let opened = match self.is_broken {
            true => None,
            false => session.open(&self.bytes[message.clone()], &mut self.content)?,
        };
        let Some(len) = opened else {
            self.is_broken = true; // and the message stays the next one
            let what = "a message was modified in transit";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        self.unread = 0..len;
        self.raw.start = message.end;
        Ok(true)
    }

    /// Length of the next message on the wire, its length field included; `None` until that field
    /// has arrived.
    fn next_message_len(&self) -> Option<usize> {
        let prefix = self.bytes[self.raw.clone()].first_chunk()?;
        Some(PREFIX + usize::from(u16::from_be_bytes(*prefix)))
    }

    /// Free space for arriving bytes, at least for the rest of the next message and, together with
    /// its bytes so far, [`ROOM_MIN`]. Moves the unopened bytes to the front or grows the buffer if
    /// necessary. The space is not cleared. Call it only after all complete messages were opened:
    /// otherwise it may be empty, and a read into it would return 0, as at the end of the stream.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let needed = self.next_message_len().unwrap_or(PREFIX).max(ROOM_MIN);
        if self.raw.is_empty() {
            self.raw = 0..0;
        } else if self.raw.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.raw.clone(), 0);
            self.raw = 0..self.raw.len();
        }
        self.grow(self.raw.start + needed);
        &mut self.bytes[self.raw.end..]
    }

    /// Marks the first `len` bytes of the [space](Self::room) as filled; panics if it is shorter.
    /// If all of it is filled, the buffer doubles, up to [`ROOM_MAX`], and never shrinks again.
    pub(super) fn fill(&mut self, len: usize) {
        self.raw.end += len;
        assert!(self.raw.end <= self.bytes.len(), "a read is no longer than the space");
        if self.raw.end == self.bytes.len() && self.bytes.len() < ROOM_MAX {
            self.grow((2 * self.bytes.len()).min(ROOM_MAX));
        }
    }

    /// Grows the buffer to this length. Does nothing if it is longer already.
    fn grow(&mut self, len: usize) {
        if len > self.bytes.len() {
            self.bytes.reserve_exact(len - self.bytes.len());
            self.bytes.resize(len, 0);
        }
    }

    /// Whether bytes have arrived that were not opened. If [`open`](Self::open) has returned
    /// `false` at the end of the stream, they are a truncated message.
    pub(super) fn has_unopened(&self) -> bool {
        !self.raw.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::tests::{sessions, unable_to_seal};
    use super::super::suite::Suite;
    use super::*;

    fn near() -> CipherSession {
        let [near, _far] = sessions(Suite::ChaChaPoly, None);
        near
    }

    /// Sends `all` in messages of `each` bytes, which are received in portions of another size.
    fn pass(all: &[u8], each: usize, portion: usize) -> SealedReceiveBuffer {
        pass_with(sessions(Suite::ChaChaPoly, None), all, each, portion)
    }

    /// Like [`pass`], with these sessions. Panics if the received bytes differ from `all`.
    fn pass_with(
        [mut near, mut far]: [CipherSession; 2],
        all: &[u8],
        each: usize,
        portion: usize,
    ) -> SealedReceiveBuffer {
        let (mut outgoing, mut incoming) =
            (SealedSendBuffer::default(), SealedReceiveBuffer::default());
        let mut travels = Vec::new();
        for content in all.chunks(each) {
            assert_eq!(outgoing.append(content), content.len());
            outgoing.seal(&mut near).expect("nonces are left");
            travels.extend_from_slice(outgoing.unsent());
            outgoing.sent(outgoing.unsent().len());
        }
        let (mut received, mut out, mut rest) = (Vec::new(), [0; 4_000], &travels[..]);
        while !rest.is_empty() {
            let room = incoming.room();
            let (now, later) = rest.split_at(rest.len().min(portion).min(room.len()));
            room[..now.len()].copy_from_slice(now);
            incoming.fill(now.len());
            rest = later;
            while incoming.open(&mut far).expect("it is not modified") {
                while let len @ 1.. = incoming.read(&mut out) {
                    received.extend_from_slice(&out[..len]);
                }
            }
        }
        assert!(received == all && !incoming.has_unopened(), "{each}, {portion}");
        incoming
    }

    #[test]
    fn sealed_messages_open_with_any_fragmentation() {
        let all: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        for each in [PLAIN_MAX, 40_000, 16_000, 5_000, 1_000] {
            for portion in [usize::MAX, 99_999, 12_345, 1_234] {
                pass(&all, each, portion);
            }
        }
        pass(&all[..9_000], 100, 1);
        // With a new key after each three messages.
        pass_with(sessions(Suite::AesGcm, Some(3)), &all[..9_000], 1_000, 1_234);
        pass_with(sessions(Suite::AesGcm, Some(3)), &all, PLAIN_MAX, usize::MAX);
    }

    #[test]
    fn quiet_channel_takes_little_memory_and_busy_one_five_messages() {
        // The five of a busy one: two as they arrive and the content of one, and an outgoing one as
        // content and sealed.
        let memory = |incoming: &SealedReceiveBuffer| {
            (incoming.bytes.capacity(), incoming.content.capacity())
        };
        assert_eq!(memory(&SealedReceiveBuffer::default()), (0, 0));
        let (raw, content) = memory(&pass(&[7; 100_000], 100, 1_000));
        assert!(raw == ROOM_MIN && content < 256, "{raw}, {content}");
        // Full messages, some just below the maximum, and short ones.
        for each in [PLAIN_MAX, PLAIN_MAX - 12, 40_000, 5_000] {
            let (raw, content) = memory(&pass(&vec![7; 2_000_000], each, usize::MAX));
            assert!(raw == ROOM_MAX && content <= CIPHER_MAX, "{each}: {raw}, {content}");
        }
        let (mut outgoing, mut near) = (SealedSendBuffer::default(), near());
        while outgoing.append(&[7; 100]) > 0 {}
        outgoing.seal(&mut near).expect("nonces are left");
        assert_eq!(
            (outgoing.plain.capacity(), outgoing.sealed.capacity()),
            (PLAIN_MAX, MESSAGE_MAX)
        );
    }

    #[test]
    fn message_never_exceeds_its_maximum() {
        let (mut outgoing, mut near) = (SealedSendBuffer::default(), near());
        assert_eq!(outgoing.append(&[]), 0);
        assert!(!outgoing.is_begun(), "nothing was taken");
        assert_eq!(outgoing.append(&vec![7; 2 * PLAIN_MAX]), PLAIN_MAX);
        assert!(outgoing.is_full());
        assert_eq!(outgoing.append(&[7]), 0);
        outgoing.seal(&mut near).expect("nonces are left");
        assert_eq!(outgoing.unsent().len(), MESSAGE_MAX);
    }

    #[test]
    fn message_too_short_for_its_tag_is_refused() {
        let mut incoming = SealedReceiveBuffer::default();
        incoming.room()[..4].copy_from_slice(&[0, 2, 9, 9]);
        incoming.fill(4);
        let error = incoming.open(&mut near()).expect_err("no tag");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn message_that_cannot_be_sealed_stays() {
        let mut outgoing = SealedSendBuffer::default();
        outgoing.append(b"sealed");
        outgoing.seal(&mut near()).expect("a nonce is left");
        outgoing.sent(outgoing.unsent().len());
        outgoing.append(b"not sealed");
        let mut near = unable_to_seal();
        for _ in 0..2 {
            outgoing.seal(&mut near).expect_err("it cannot");
            assert!(outgoing.unsent().is_empty() && outgoing.is_begun());
        }
    }
}
