//! An envelope: an encoded message for an entity, as it travels, waits and moves with its shard. It
//! holds the entity's id, the reply address and the encoded body in one buffer.
//!
//! ```text
//! flags u8 · [asking node u64 · correlation u64] · id length u16 · id · body
//! ```
//! Flags: 0 a message; 1 a message whose sender waits for an answer; 3 a request to start the
//! entity, whose sender waits until it has started.
//!
//! Numbers are little-endian. The tests of [`frame`](super::frame) contain golden bytes.

use std::cell::Cell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use serde::de::{DeserializeOwned, Error};

use super::frame::MESSAGE_HEAD_BYTES_MAX;
use super::ids::{ENTITY_BYTES_MAX, EntityId, RegionId};
use super::panics::forget_panic;
use super::pending_asks::ReplyAddress;
use super::region_handle::BadFrame;

const ASKS: u8 = 1;
const STARTS: u8 = 3;
const ASKER_BYTES: usize = 16;

/// Most bytes of buffer that a thread keeps for its next envelope.
const ROOM_BYTES_MAX: usize = 64 * 1024;

thread_local! {
    /// Buffer in which envelopes are written, because their length is not known before. It is taken
    /// while an envelope is written, whose serialization may write other envelopes.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Deepest nesting of user values from other nodes. Deeper values could overflow the stack of the
/// thread that decodes them.
const NESTING_MAX: usize = 64;

/// Decodes a value of a user's type from bytes of another node. Bytes after the value are ignored.
///
/// # Errors
/// If the bytes are not a value of the type, nest deeper than [`NESTING_MAX`], or its `Deserialize`
/// panics.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    let read = || {
        let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
        decoder.set_max_depth(NESTING_MAX);
        T::deserialize(&mut decoder)
    };
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        forget_panic(panic); // the panic hook has reported it
        Err(Error::custom("the type's Deserialize panicked"))
    })
}

/// An envelope in the buffer where it was written, behind room for the head of its frame. One that
/// leaves on a lane at once is copied only once, into the lane. Any other is copied to an
/// [`Envelope`].
pub(super) struct EnvelopeBuilder {
    bytes: Vec<u8>, // buffer of the thread; the envelope begins at `AT`
    id_at: u16,     // offset in the envelope
    body_at: u16,   // offset in the envelope
}

impl EnvelopeBuilder {
    const AT: usize = MESSAGE_HEAD_BYTES_MAX;

    /// Writes an envelope for the entity `to` with the body that `body` appends, in the thread's
    /// buffer.
    ///
    /// With `asker`, the envelope is an ask. `asker` is called after the body is written, because
    /// the reply address gets its number while it is serialized. If it returns `None`, the message
    /// does not contain the reply address: the envelope stays an ask with number 0, for which
    /// [`EnvelopeRef::asker`] returns `None`.
    ///
    /// `body` may write other envelopes: these use a new buffer.
    ///
    /// # Errors
    /// The error of `body`; then the thread gets its buffer back and `asker` is not called. Nothing
    /// else fails.
    pub(super) fn write<X>(
        to: &EntityId,
        body: impl FnOnce(&mut Vec<u8>) -> Result<(), X>,
        asker: Option<&dyn Fn() -> Option<ReplyAddress>>,
    ) -> Result<Self, X> {
        let id = to.as_str().as_bytes();
        let id_length = u16::try_from(id.len()).expect("an id has at most ENTITY_BYTES_MAX bytes");
        let id_at = if asker.is_some() { 3 + ASKER_BYTES as u16 } else { 3 };
        let bytes = ROOM.try_with(Cell::take).unwrap_or_default(); // empty while the thread ends
        let mut envelope_builder = Self { bytes, id_at, body_at: id_at + id_length };
        let bytes = &mut envelope_builder.bytes;
        bytes.clear();
        bytes.resize(Self::AT + usize::from(id_at) - 2, 0);
        bytes.extend_from_slice(&id_length.to_le_bytes());
        bytes.extend_from_slice(id);
        body(bytes)?;
        if asker.is_some() {
            let envelope = &mut bytes[Self::AT..];
            envelope[0] = ASKS; // number 0: the reply address is not in the message
            if let Some(ReplyAddress { node, correlation }) = asker.and_then(|asker| asker()) {
                envelope[1..9].copy_from_slice(&node.replica().get().to_le_bytes());
                envelope[9..17].copy_from_slice(&correlation.to_le_bytes());
            }
        }
        Ok(envelope_builder)
    }

    /// Adds the reply address to an envelope that was written without one, and makes it an ask; the
    /// id and the body move back. Must not be called for an envelope written with `asker`, which
    /// would get a second one; this is not checked.
    pub(super) fn set_asker(&mut self, ReplyAddress { node, correlation }: ReplyAddress) {
        let [node, correlation] = [node.replica().get(), correlation].map(u64::to_le_bytes);
        self.bytes[Self::AT] = ASKS;
        let at = Self::AT + 1; // after the flags
        drop(self.bytes.splice(at..at, node.into_iter().chain(correlation)));
        self.id_at += ASKER_BYTES as u16;
        self.body_at += ASKER_BYTES as u16;
    }

    /// Returns the bytes of the envelope.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[Self::AT..]
    }

    /// Writes `head` in front of the envelope and returns both as one frame. The head has at most
    /// [`MESSAGE_HEAD_BYTES_MAX`] bytes; a longer one panics. May be called again with another
    /// head.
    #[inline]
    pub(super) fn framed(&mut self, head: &[u8]) -> &[u8] {
        let from = Self::AT - head.len();
        self.bytes[from..Self::AT].copy_from_slice(head);
        &self.bytes[from..]
    }

    /// Copies the envelope, without a head, into an allocation of its length.
    pub(super) fn envelope(&self) -> Envelope {
        let Self { id_at, body_at, .. } = *self;
        Envelope { bytes: Bytes::copy_from_slice(self.bytes()), id_at, body_at }
    }
}

/// Returns the buffer to the thread, unless it has grown above [`ROOM_BYTES_MAX`]. It replaces the
/// buffer that another envelope has returned meanwhile.
impl Drop for EnvelopeBuilder {
    fn drop(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        if bytes.capacity() <= ROOM_BYTES_MAX {
            let _ = ROOM.try_with(|room| room.set(bytes));
        }
    }
}

/// An envelope whose bytes are borrowed and whose body is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EnvelopeRef<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) id_at: u16,
    pub(super) body_at: u16, // ≤ 19 + ENTITY_BYTES_MAX
}

impl<'a> EnvelopeRef<'a> {
    /// Finds the parts of an envelope from another node, without a copy. The body may be empty and
    /// is not checked.
    ///
    /// # Errors
    /// [`BadFrame`] if the bytes are cut short before the body, the flags are unknown, or the id is
    /// empty, longer than [`ENTITY_BYTES_MAX`] or not UTF-8. An asker with number 0 is no error.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, BadFrame> {
        let flags = *bytes.first().ok_or(BadFrame("an empty message"))?;
        let asker = match flags {
            0 => 0,
            ASKS | STARTS => ASKER_BYTES,
            _ => return Err(BadFrame("unknown flags of a message")),
        };
        let id_at = 1 + asker + 2;
        let length = bytes.get(1 + asker..id_at).ok_or(BadFrame("a message cut short"))?;
        let id_length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        if !(1..=ENTITY_BYTES_MAX).contains(&id_length) {
            return Err(BadFrame("an entity id of an invalid length"));
        }
        let body_at = id_at + id_length;
        let id = bytes.get(id_at..body_at).ok_or(BadFrame("a message cut short"))?;
        std::str::from_utf8(id).map_err(|_| BadFrame("an entity id that is not UTF-8"))?;
        let fits = |at: usize| u16::try_from(at).expect("at most 19 + ENTITY_BYTES_MAX");
        Ok(Self { id_at: fits(id_at), body_at: fits(body_at), bytes })
    }

    /// Copies the envelope into its own allocation.
    pub(super) fn to_envelope(self) -> Envelope {
        let Self { bytes, id_at, body_at } = self;
        Envelope { bytes: Bytes::copy_from_slice(bytes), id_at, body_at }
    }

    /// Returns whether it only asks the entity to start; then the body has no meaning.
    #[inline]
    pub(super) const fn starts(self) -> bool {
        self.bytes[0] == STARTS
    }

    /// Returns the id of the entity.
    pub(super) fn id(self) -> &'a str {
        std::str::from_utf8(self.id_bytes()).expect("checked by read()")
    }

    /// Returns the id as bytes, for comparisons, without another UTF-8 check.
    #[inline]
    pub(super) fn id_bytes(self) -> &'a [u8] {
        &self.bytes[usize::from(self.id_at)..usize::from(self.body_at)]
    }

    /// Returns the reply address of an ask or a start. `None` for a message without one, and for
    /// one with number 0: an ask whose message did not contain its reply address.
    pub(super) fn asker(self) -> Option<ReplyAddress> {
        if self.bytes[0] == 0 {
            return None;
        }
        let number = |at: usize| {
            let bytes = self.bytes[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let asker = ReplyAddress { node: RegionId::new(number(1).into()), correlation: number(9) };
        (asker.correlation > 0).then_some(asker)
    }

    /// Returns the encoded message.
    #[inline]
    pub(super) fn body(self) -> &'a [u8] {
        &self.bytes[usize::from(self.body_at)..]
    }

    /// Returns all bytes of the envelope.
    #[inline]
    pub(super) const fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// An envelope that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Envelope {
    bytes: Bytes,
    id_at: u16,
    body_at: u16,
}

impl Envelope {
    /// Makes an envelope, without a body, that asks an entity to start. The start is reported to
    /// the reply address, whose number must not be 0; this is not checked.
    pub(super) fn start(to: &EntityId, ReplyAddress { node, correlation }: ReplyAddress) -> Self {
        let id = to.as_str().as_bytes();
        let id_length = u16::try_from(id.len()).expect("an id has at most ENTITY_BYTES_MAX bytes");
        let mut bytes = vec![STARTS];
        bytes.extend_from_slice(&node.replica().get().to_le_bytes());
        bytes.extend_from_slice(&correlation.to_le_bytes());
        bytes.extend_from_slice(&id_length.to_le_bytes());
        bytes.extend_from_slice(id);
        let id_at = 19;
        Self { bytes: bytes.into(), id_at, body_at: id_at + id_length }
    }

    /// Finds the parts of an envelope and keeps the bytes; fails as [`EnvelopeRef::read`].
    pub(super) fn read(bytes: Bytes) -> Result<Self, BadFrame> {
        let EnvelopeRef { id_at, body_at, .. } = EnvelopeRef::read(&bytes)?;
        Ok(Self { bytes, id_at, body_at })
    }

    #[inline]
    pub(super) fn view(&self) -> EnvelopeRef<'_> {
        let Self { bytes, id_at, body_at } = self;
        EnvelopeRef { bytes, id_at: *id_at, body_at: *body_at }
    }

    /// Returns the id of the entity.
    pub(super) fn id(&self) -> &str {
        self.view().id()
    }

    /// Returns the id as bytes, see [`EnvelopeRef::id_bytes`].
    #[inline]
    pub(super) fn id_bytes(&self) -> &[u8] {
        self.view().id_bytes()
    }

    /// Returns the reply address, see [`EnvelopeRef::asker`].
    pub(super) fn asker(&self) -> Option<ReplyAddress> {
        self.view().asker()
    }

    /// Returns all bytes of the envelope.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Makes an envelope for entity `a`, of `bytes` bytes, whose body begins with the number.
    pub(in crate::sharding) fn envelope(number: u64, bytes: usize) -> Envelope {
        let mut text = vec![0, 1, 0, b'a'];
        text.extend_from_slice(&number.to_le_bytes());
        text.resize(bytes, b'x');
        Envelope::read(text.into()).expect("an envelope")
    }

    #[test]
    fn deserialize_that_panics_twice_is_an_error() {
        struct PanicsWhenDropped;
        impl Drop for PanicsWhenDropped {
            fn drop(&mut self) {
                panic!("planned by the test: a payload that panics again");
            }
        }
        struct Undecodable;
        impl<'de> serde::Deserialize<'de> for Undecodable {
            fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                std::panic::panic_any(PanicsWhenDropped)
            }
        }
        assert!(decode::<Undecodable>(&[0]).is_err());
    }
}
