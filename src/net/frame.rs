//! Frames: how a lane's messages are cut into bytes, and bytes into messages.
//!
//! A frame is a length (`u32`, big-endian, of what follows it), a kind (one byte) and what the
//! kind says. It knows neither lanes nor streams: bytes in, frames out; nothing is allocated, and
//! a length is checked before anyone waits for that many bytes.
//!
//! | kind | name | then |
//! |---|---|---|
//! | 1 | message | header, body |
//! | 2 | first piece of a longer message | its length (`u32`), header, piece |
//! | 3 | another piece | piece |
//! | 4 | the last piece | piece |
//! | 5 | ack, on the way back | how many messages were accepted (`u64`) |
//! | 6 | end | nothing |
//! | 128… | for later releases | counted and skipped |
//!
//! A header is a count (one byte) of names, each a `u16`: the number of a name defined before, or
//! [`DEFINE`] (a new number, length, text), or [`LITERAL`] (length, text). (spec/transport.md)

use super::config::Limits;
use super::wire::FIELDS_MAX;

/// Bytes of the length before every frame.
pub const LENGTH_BYTES: usize = 4;

/// The longest frame that this release makes, in bytes, its length included.
pub const FRAME_BYTES: usize = 64 * 1024;

/// The least that the longest frame may be set to: a header of the longest names fits.
pub const FRAME_BYTES_MIN: usize = 8 * 1024;

/// The longest name in a header, in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Names that have a number on one lane; those beyond are spelled out in every message.
pub const NAMES_MAX: usize = 1_024;

/// Bytes of all names that have a number on one lane.
pub const NAMES_BYTES_MAX: usize = 64 * 1024;

/// Says in a header that a new number, its name's length and the name follow.
pub const DEFINE: u16 = 0xfffe;

/// Says in a header that a name's length and the name follow, which gets no number.
pub const LITERAL: u16 = 0xffff;

/// What a frame is. Kinds that later releases add get numbers from [`SKIPPABLE`](kind::SKIPPABLE)
/// on if an older node may do without them.
pub mod kind {
    /// A whole message.
    pub const MESSAGE: u8 = 1;
    /// The first piece of a longer message.
    pub const FIRST: u8 = 2;
    /// Another piece of it.
    pub const CONTINUE: u8 = 3;
    /// The last piece of it.
    pub const LAST: u8 = 4;
    /// What was accepted; on the way back.
    pub const ACK: u8 = 5;
    /// Nothing comes any more.
    pub const END: u8 = 6;
    /// From here on: skipped by those that do not know it.
    pub const SKIPPABLE: u8 = 0x80;
}

/// The longest frame under these limits, in bytes, its length included.
#[must_use]
pub fn bytes_max(limits: &Limits) -> usize {
    limits.frame_bytes_max.clamp(FRAME_BYTES_MIN, u32::MAX as usize)
}

/// A frame, still where it was read to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole message.
    Message {
        /// Its names.
        header: Header<'a>,
        /// What it says.
        body: &'a [u8],
    },
    /// The first piece of a longer message.
    First {
        /// Bytes of the whole body.
        total: u32,
        /// Its names.
        header: Header<'a>,
        /// The body's beginning.
        piece: &'a [u8],
    },
    /// Another piece.
    Continue(&'a [u8]),
    /// The last piece.
    Last(&'a [u8]),
    /// On the way back.
    Ack {
        /// Messages that were accepted, since the lane began.
        accepted: u64,
    },
    /// The lane is over.
    End,
    /// Of a kind from a later release, which may be skipped.
    Unknown(u8),
}

/// What stands at the front of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut<'a> {
    /// A frame, and how many bytes it took, its length included.
    Frame(Frame<'a>, usize),
    /// A part of a frame: read on.
    Short,
}

/// What a peer did that no peer of this version does. It costs the substream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A length beyond the limit, or of nothing.
    #[error(
        "a frame that says it has {claimed} bytes, with 1 to {max} allowed, as this node has told"
    )]
    FrameLength {
        /// What the frame says.
        claimed: usize,
        /// The limit.
        max: usize,
    },
    /// A kind that is not known and must not be skipped.
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    /// A frame that ends before its contents do, or has bytes too many.
    #[error("a frame of kind {0} whose contents do not fit its length")]
    Contents(u8),
    /// A header that breaks a rule.
    #[error("a header that is none: {0}")]
    Header(&'static str),
    /// A message beyond the limit.
    #[error(
        "a message of {claimed} bytes, at most {max} allowed: set the same message-bytes-max on all nodes"
    )]
    MessageLength {
        /// What the message says, or already has.
        claimed: usize,
        /// The limit.
        max: usize,
    },
    /// Pieces that are no message.
    #[error("pieces that are no message: {0}")]
    Pieces(&'static str),
    /// A frame of the other direction.
    #[error("a frame of kind {0} in the wrong direction")]
    Direction(u8),
    /// An acknowledgement of less than an earlier one.
    #[error("an acknowledgement of {accepted} messages after one of {before}")]
    AckBackwards {
        /// The earlier one.
        before: u64,
        /// This one.
        accepted: u64,
    },
    /// An acknowledgement of what was never sent.
    #[error("an acknowledgement of {accepted} messages when {sent} were sent")]
    AckBeyond {
        /// What was sent.
        sent: u64,
        /// What is acknowledged.
        accepted: u64,
    },
}

/// Takes the frame at the front of `bytes`, if all of it is there.
///
/// # Errors
/// A [`Violation`], as soon as the bytes that are there show it: a length above `bytes_max` is
/// refused before anything else of the frame has come.
pub fn cut(bytes: &[u8], bytes_max: usize) -> Result<Cut<'_>, Violation> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(Cut::Short);
    };
    let length = u32::from_be_bytes(*length) as usize;
    let max = bytes_max.saturating_sub(LENGTH_BYTES);
    if length == 0 || length > max {
        return Err(Violation::FrameLength { claimed: length, max });
    }
    let Some(frame) = rest.get(..length) else { return Ok(Cut::Short) };
    let (kind, contents) = (frame[0], &frame[1..]);
    Ok(Cut::Frame(read(kind, contents)?, LENGTH_BYTES + length))
}

#[inline]
fn read(kind: u8, contents: &[u8]) -> Result<Frame<'_>, Violation> {
    match kind {
        kind::MESSAGE => {
            let (header, body) = Header::split(contents)?;
            Ok(Frame::Message { header, body })
        }
        kind::FIRST => {
            let (total, rest) = contents.split_first_chunk().ok_or(Violation::Contents(kind))?;
            let (header, piece) = Header::split(rest)?;
            Ok(Frame::First { total: u32::from_be_bytes(*total), header, piece })
        }
        kind::CONTINUE => Ok(Frame::Continue(contents)),
        kind::LAST => Ok(Frame::Last(contents)),
        kind::ACK => {
            let accepted = contents.try_into().map_err(|_| Violation::Contents(kind))?;
            Ok(Frame::Ack { accepted: u64::from_be_bytes(accepted) })
        }
        kind::END if contents.is_empty() => Ok(Frame::End),
        kind::END => Err(Violation::Contents(kind)),
        _ if kind >= kind::SKIPPABLE => Ok(Frame::Unknown(kind)),
        _ => Err(Violation::Kind(kind)),
    }
}

// ── Headers ──

/// The header of a message, as it came: its form was checked, its numbers were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a>(&'a [u8]);

/// One name in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Defined in an earlier message, or earlier in this one.
    Number(u16),
    /// Defined here.
    Define(u16, &'a str),
    /// Spelled out.
    Literal(&'a str),
}

impl<'a> Header<'a> {
    /// Takes the header at the front of `bytes`; the rest is the body.
    ///
    /// # Errors
    /// A [`Violation`] if there are too many names, one is too long or no text, or bytes end early.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Violation> {
        let (&count, mut rest) = bytes.split_first().ok_or(Violation::Header("it is missing"))?;
        if usize::from(count) > FIELDS_MAX {
            return Err(Violation::Header("it has too many names"));
        }
        for _ in 0..count {
            (_, rest) = split_field(rest)?;
        }
        let (header, body) = bytes.split_at(bytes.len() - rest.len());
        Ok((Self(header), body))
    }

    /// Its bytes: equal bytes without a definition mean equal names.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Its names.
    pub fn fields(self) -> impl Iterator<Item = Field<'a>> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (field, after) = split_field(rest).ok()?;
            rest = after;
            Some(field)
        })
    }
}

#[inline]
fn split_field(bytes: &[u8]) -> Result<(Field<'_>, &[u8]), Violation> {
    let (number, rest) = split_u16(bytes)?;
    match number {
        DEFINE => {
            let (number, rest) = split_u16(rest)?;
            let (name, rest) = split_name(rest)?;
            Ok((Field::Define(number, name), rest))
        }
        LITERAL => {
            let (name, rest) = split_name(rest)?;
            Ok((Field::Literal(name), rest))
        }
        number => Ok((Field::Number(number), rest)),
    }
}

#[inline]
fn split_u16(bytes: &[u8]) -> Result<(u16, &[u8]), Violation> {
    let (number, rest) = bytes.split_first_chunk().ok_or(Violation::Header("it ends early"))?;
    Ok((u16::from_be_bytes(*number), rest))
}

fn split_name(bytes: &[u8]) -> Result<(&str, &[u8]), Violation> {
    let (length, rest) = split_u16(bytes)?;
    if usize::from(length) > NAME_BYTES_MAX {
        return Err(Violation::Header("a name is too long"));
    }
    let (name, rest) =
        rest.split_at_checked(length.into()).ok_or(Violation::Header("it ends early"))?;
    let name = std::str::from_utf8(name).map_err(|_| Violation::Header("a name is no text"))?;
    Ok((name, rest))
}

// ── Writing ──

/// Bytes of an acknowledgement.
pub const ACK_BYTES: usize = LENGTH_BYTES + 1 + 8;

/// Bytes of a frame beyond its contents: length and kind.
pub const FRAME_OVERHEAD: usize = LENGTH_BYTES + 1;

/// The end of a lane.
pub const END: [u8; FRAME_OVERHEAD] = [0, 0, 0, 1, kind::END];

/// The beginning of a frame with `contents` bytes after its kind.
#[must_use]
#[inline]
pub fn begin(kind: u8, contents: usize) -> [u8; FRAME_OVERHEAD] {
    let length = u32::try_from(contents + 1).expect("a frame's length was bounded before");
    let [a, b, c, d] = length.to_be_bytes();
    [a, b, c, d, kind]
}

/// An acknowledgement.
#[must_use]
pub fn ack(accepted: u64) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[..FRAME_OVERHEAD].copy_from_slice(&begin(kind::ACK, 8));
    bytes[FRAME_OVERHEAD..].copy_from_slice(&accepted.to_be_bytes());
    bytes
}

/// Appends a field to a header.
pub fn put_field(header: &mut Vec<u8>, field: Field<'_>) {
    match field {
        Field::Number(number) => header.extend_from_slice(&number.to_be_bytes()),
        Field::Define(number, name) => {
            header.extend_from_slice(&DEFINE.to_be_bytes());
            header.extend_from_slice(&number.to_be_bytes());
            put_name(header, name);
        }
        Field::Literal(name) => {
            header.extend_from_slice(&LITERAL.to_be_bytes());
            put_name(header, name);
        }
    }
}

fn put_name(header: &mut Vec<u8>, name: &str) {
    assert!(name.len() <= NAME_BYTES_MAX, "a name's length is checked before it is written");
    let length = u16::try_from(name.len()).expect("NAME_BYTES_MAX fits");
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(name.as_bytes());
}
