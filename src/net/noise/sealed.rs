//! Messages after the handshake: a length of two bytes, what is said, enciphered, and its tag.
//!
//! Pure: says what travels, and moves nothing itself.

use std::io;
use std::ops::Range;

use ring::aead::MAX_TAG_LEN;

use super::suite::Key;

/// What one message says, bytes at most.
pub const PLAIN_MAX: usize = CIPHER_MAX - MAX_TAG_LEN;

/// The same, enciphered.
const CIPHER_MAX: usize = 65_535;

/// The length before it.
const PREFIX: usize = 2;

/// A message as it travels.
const MESSAGE_MAX: usize = PREFIX + CIPHER_MAX;

/// The room for what arrives: at first, ...
const ROOM_MIN: usize = 4 * 1024;

/// ... and on a busy connection.
const ROOM_MAX: usize = 2 * MESSAGE_MAX;

/// Messages on their way out: one that travels, and one that is being filled.
pub(super) struct Outgoing {
    key: Key,
    sealed: Vec<u8>, // ≤ MESSAGE_MAX
    sent: usize,     // of it
    open: Vec<u8>,   // ≤ MESSAGE_MAX with its tag; empty, or begins with room for its length
}

impl Outgoing {
    pub(super) const fn new(key: Key) -> Self {
        Self { key, sealed: Vec::new(), sent: 0, open: Vec::new() }
    }

    /// Takes of these bytes what fits into the message that is being filled.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let has = self.open.len().max(PREFIX);
        let len = bytes.len().min(PREFIX + PLAIN_MAX - has);
        if len > 0 {
            self.provide(has + len + MAX_TAG_LEN);
            self.open.resize(has, 0);
            self.open.extend_from_slice(&bytes[..len]);
        }
        len
    }

    /// Doubles, as a `Vec` does, but never beyond a message.
    fn provide(&mut self, len: usize) {
        let has = self.open.capacity();
        if has < len {
            let goal = (2 * has).clamp(len, MESSAGE_MAX);
            self.open.reserve_exact(goal - self.open.len());
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() == PREFIX + PLAIN_MAX
    }

    /// Something has been taken that is not sealed.
    pub(super) fn is_begun(&self) -> bool {
        !self.open.is_empty()
    }

    /// Seals what has been taken. What was sealed before has been sent.
    pub(super) fn seal(&mut self) -> io::Result<()> {
        assert!(self.unsent().is_empty(), "one message travels at a time");
        let tag = self.key.seal(&mut self.open[PREFIX..])?;
        self.open.extend_from_slice(tag.as_ref());
        let len = u16::try_from(self.open.len() - PREFIX).expect("≤ CIPHER_MAX");
        self.open[..PREFIX].copy_from_slice(&len.to_be_bytes());
        std::mem::swap(&mut self.open, &mut self.sealed);
        self.open.clear();
        self.sent = 0;
        Ok(())
    }

    pub(super) fn unsent(&self) -> &[u8] {
        &self.sealed[self.sent..]
    }

    pub(super) fn sent(&mut self, len: usize) {
        self.sent += len;
        assert!(self.sent <= self.sealed.len(), "no more is sent than there is");
    }
}

/// Messages that have arrived.
pub(super) struct Incoming {
    key: Key,
    bytes: Vec<u8>,      // ≤ ROOM_MAX
    plain: Range<usize>, // of `bytes`: deciphered, unread
    raw: Range<usize>,   // and what follows, as it arrived
    is_broken: bool,     // a message was changed on its way: no other is opened
}

impl Incoming {
    pub(super) const fn new(key: Key) -> Self {
        Self { key, bytes: Vec::new(), plain: 0..0, raw: 0..0, is_broken: false }
    }

    /// Reads what was deciphered.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let len = out.len().min(self.plain.len());
        out[..len].copy_from_slice(&self.bytes[self.plain.start..][..len]);
        self.plain.start += len;
        len
    }

    /// Deciphers the next message, once the last one was read; `false`: it is not there yet.
    ///
    /// After one that somebody has changed, all that is asked for is that error: what is read is what
    /// the other end has sent up to some point, with nothing left out.
    pub(super) fn open(&mut self) -> io::Result<bool> {
        assert!(self.plain.is_empty(), "the last message was read");
        let Some(len) = self.expected().filter(|len| *len <= self.raw.len()) else {
            return Ok(false);
        };
        let message = self.raw.start + PREFIX..self.raw.start + len;
        let opened =
            if self.is_broken { None } else { self.key.open(&mut self.bytes[message.clone()])? };
        let Some(plain) = opened else {
            self.is_broken = true; // and the message stays the next one
            let what = "what arrived is not what the other end sent: somebody has changed it";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        self.plain = message.start..message.start + plain;
        self.raw.start = message.end;
        Ok(true)
    }

    /// The next message's length, as it travels, if that much of it is there.
    fn expected(&self) -> Option<usize> {
        let prefix = self.bytes[self.raw.clone()].first_chunk()?;
        Some(PREFIX + usize::from(u16::from_be_bytes(*prefix)))
    }

    /// Room for what arrives next, once all that is here was read: for the rest of a message at
    /// least.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let needed = self.expected().unwrap_or(PREFIX).max(ROOM_MIN);
        if self.raw.is_empty() {
            self.raw = 0..0;
        } else if self.raw.start + needed > self.bytes.len() {
            self.bytes.copy_within(self.raw.clone(), 0);
            self.raw = 0..self.raw.len();
        }
        self.grow(self.raw.start + needed);
        &mut self.bytes[self.raw.end..]
    }

    /// So much of the room was filled. If it is all, there is more next time.
    pub(super) fn fill(&mut self, len: usize) {
        self.raw.end += len;
        assert!(self.raw.end <= self.bytes.len(), "no more arrives than there is room for");
        if self.raw.end == self.bytes.len() && self.bytes.len() < ROOM_MAX {
            self.grow((2 * self.bytes.len()).min(ROOM_MAX));
        }
    }

    /// To this length, if it is less, and no further.
    fn grow(&mut self, len: usize) {
        if len > self.bytes.len() {
            self.bytes.reserve_exact(len - self.bytes.len());
            self.bytes.resize(len, 0);
        }
    }

    /// Some of a message is here, and the rest is not.
    pub(super) fn is_amid(&self) -> bool {
        !self.raw.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::{KEY_BYTES, MESSAGES_OF_A_KEY, Suite};
    use super::*;

    fn key() -> Key {
        Key::new(Suite::ChaChaPoly, &[7; KEY_BYTES])
    }

    /// One that is soon followed by the next.
    fn worn() -> Key {
        let mut key = Key::new(Suite::AesGcm, &[7; KEY_BYTES]);
        key.skip_to(MESSAGES_OF_A_KEY - 3);
        key
    }

    fn halves() -> (Outgoing, Incoming) {
        (Outgoing::new(key()), Incoming::new(key()))
    }

    /// Says it in messages of `each`, which arrive in portions that know nothing of messages.
    fn pass(all: &[u8], each: usize, portion: usize) -> Incoming {
        pass_with(key, all, each, portion)
    }

    fn pass_with(key: fn() -> Key, all: &[u8], each: usize, portion: usize) -> Incoming {
        let (mut outgoing, mut incoming) = (Outgoing::new(key()), Incoming::new(key()));
        let mut travels = Vec::new();
        for said in all.chunks(each) {
            assert_eq!(outgoing.take(said), said.len());
            outgoing.seal().expect("numbers are left");
            travels.extend_from_slice(outgoing.unsent());
            outgoing.sent(outgoing.unsent().len());
        }
        let (mut heard, mut out, mut rest) = (Vec::new(), [0; 4_000], &travels[..]);
        while !rest.is_empty() {
            let room = incoming.room();
            let (now, later) = rest.split_at(rest.len().min(portion).min(room.len()));
            room[..now.len()].copy_from_slice(now);
            incoming.fill(now.len());
            rest = later;
            while incoming.open().expect("nobody changes it") {
                while let len @ 1.. = incoming.read(&mut out) {
                    heard.extend_from_slice(&out[..len]);
                }
            }
        }
        assert!(heard == all && !incoming.is_amid(), "{each}, {portion}");
        incoming
    }

    #[test]
    fn what_is_sealed_is_opened_however_it_travels() {
        let all: Vec<u8> = (0..1_000_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        for each in [PLAIN_MAX, 40_000, 16_000, 5_000, 1_000] {
            for portion in [usize::MAX, 99_999, 12_345, 1_234] {
                pass(&all, each, portion);
            }
        }
        pass(&all[..9_000], 100, 1);
        pass_with(worn, &all[..9_000], 1_000, 1_234);
        pass_with(worn, &all, PLAIN_MAX, usize::MAX);
    }

    #[test]
    fn a_quiet_connection_takes_little_memory_and_a_busy_one_two_messages() {
        assert_eq!(Incoming::new(key()).bytes.capacity(), 0);
        assert_eq!(pass(&[7; 100_000], 100, 1_000).bytes.capacity(), ROOM_MIN);
        for each in [PLAIN_MAX, PLAIN_MAX - 12, 40_000, 5_000] {
            let busy = pass(&vec![7; 2_000_000], each, usize::MAX);
            assert_eq!(busy.bytes.capacity(), ROOM_MAX, "{each}");
        }
        let (mut outgoing, _) = halves();
        while outgoing.take(&[7; 100]) > 0 {}
        outgoing.seal().expect("numbers are left");
        assert_eq!(outgoing.sealed.capacity(), MESSAGE_MAX);
    }

    #[test]
    fn a_message_takes_no_more_than_it_may() {
        let (mut outgoing, _) = halves();
        assert_eq!(outgoing.take(&[]), 0);
        assert!(!outgoing.is_begun(), "nothing was taken");
        assert_eq!(outgoing.take(&vec![7; 2 * PLAIN_MAX]), PLAIN_MAX);
        assert!(outgoing.is_full());
        assert_eq!(outgoing.take(&[7]), 0);
        outgoing.seal().expect("numbers are left");
        assert_eq!(outgoing.unsent().len(), MESSAGE_MAX);
    }

    #[test]
    fn a_message_too_short_for_its_tag_is_refused() {
        let (_, mut incoming) = halves();
        incoming.room()[..4].copy_from_slice(&[0, 2, 9, 9]);
        incoming.fill(4);
        assert_eq!(incoming.open().expect_err("no tag").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn what_cannot_be_sealed_stays() {
        let (mut outgoing, _) = halves();
        outgoing.key.skip_to(u64::MAX - 1);
        outgoing.take(b"the last");
        outgoing.seal().expect("one number is left");
        outgoing.sent(outgoing.unsent().len());
        outgoing.take(b"one too many");
        for _ in 0..2 {
            outgoing.seal().expect_err("none is left");
            assert!(outgoing.unsent().is_empty() && outgoing.is_begun());
        }
    }
}
