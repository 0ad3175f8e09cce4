//! Framing: encodes the messages of a lane as frames, and decodes frames from bytes.
//!
//! A frame is a length (`u32`, big-endian, of the rest), a kind (one byte) and contents that depend
//! on the kind. This module knows neither lanes nor streams: it decodes without allocating, and
//! checks a length before the reader waits for that many bytes.
//!
//! | kind | name | contents |
//! |---|---|---|
//! | 1 | message | header, body |
//! | 2 | first piece of a longer message | length of the body (`u32`), header, piece |
//! | 3 | another piece | piece |
//! | 4 | last piece | piece |
//! | 5 | ack, in the opposite direction | number of accepted messages (`u64`) |
//! | 6 | end | none |
//! | 128… | reserved for later releases | counted and skipped |
//!
//! A header is a count (one byte) of names, each of which is a `u16`: the number of a name that was
//! defined before, or [`DEFINE`] (followed by the new number, length and text), or [`LITERAL`]
//! (followed by length and text).

use super::config::NetLimits;
use super::wire::FIELDS_MAX;

/// Length of a frame's length field, in bytes.
pub const LENGTH_BYTES: usize = 4;

/// Maximum length of the frames that this release sends, in bytes, length field included.
pub const FRAME_BYTES: usize = 64 * 1024;

/// Minimum of the setting `frame-bytes-max`: a header with the longest names fits into it.
pub const FRAME_BYTES_MIN: usize = 8 * 1024;

/// Maximum length of a name in a header, in bytes.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Maximum number of names with a number on one lane; further names are sent as literals.
pub const NAMES_MAX: usize = 1_024;

/// Maximum total length of all names with a number on one lane, in bytes.
pub const NAMES_BYTES_MAX: usize = 64 * 1024;

/// Marks a definition in a header: a new number, the name's length and the name follow.
pub const DEFINE: u16 = 0xfffe;

/// Marks a literal in a header: a name's length and the name follow, without a number.
pub const LITERAL: u16 = 0xffff;

/// Kinds of frames. A later release that adds a kind which older nodes may ignore must number it
/// from [`SKIPPABLE`](kind::SKIPPABLE) on
/// (docs/protocol/transport.md#unknown-kinds-may-be-skipped).
pub mod kind {
    /// A whole message in one frame.
    pub const MESSAGE: u8 = 1;
    /// The first piece of a longer message.
    pub const FIRST: u8 = 2;
    /// A further piece of the message.
    pub const CONTINUE: u8 = 3;
    /// The last piece of the message.
    pub const LAST: u8 = 4;
    /// Acknowledgement, sent in the opposite direction of the messages.
    pub const ACK: u8 = 5;
    /// End of the lane: no further frame follows.
    pub const END: u8 = 6;
    /// First of the kinds that are skipped by nodes that do not know them.
    pub const SKIPPABLE: u8 = 0x80;
}

/// Maximum length of a frame under these limits, in bytes, length field included: the setting
/// `frame-bytes-max`, but at least [`FRAME_BYTES_MIN`] and at most `u32::MAX`. This node accepts
/// frames of this length, but sends none above [`FRAME_BYTES`].
#[must_use]
pub fn bytes_max(limits: &NetLimits) -> usize {
    limits.frame_bytes_max.clamp(FRAME_BYTES_MIN, u32::MAX as usize)
}

/// A decoded frame that borrows from the read buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A whole message in one frame.
    Message {
        /// Names of the header.
        header: Header<'a>,
        /// Payload of the message.
        body: &'a [u8],
    },
    /// The first piece of a longer message.
    First {
        /// Length of the whole body, in bytes.
        total: u32,
        /// Names of the header.
        header: Header<'a>,
        /// Start of the body.
        piece: &'a [u8],
    },
    /// A further piece of the body. May be empty as far as the syntax goes; the reader refuses
    /// that.
    Continue(&'a [u8]),
    /// The last piece of the body. Empty ones are refused by the reader, too.
    Last(&'a [u8]),
    /// Acknowledgement of messages in the opposite direction.
    Ack {
        /// Number of messages accepted since the lane began.
        accepted: u64,
    },
    /// End of the lane.
    End,
    /// A frame of an unknown kind from a later release, which may be skipped.
    Unknown(u8),
}

/// Result of [`cut`]: a frame, or too few bytes for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameParseResult<'a> {
    /// A frame, and its length in bytes, length field included.
    Frame(Frame<'a>, usize),
    /// Only a part of a frame: more bytes are needed.
    Short,
}

/// Violation of the protocol by the peer. The substream must be closed, but not the connection,
/// which carries other lanes (docs/protocol/transport.md#a-violation-costs-one-substream). This
/// module finds the first four; the reader and the writer of a lane find the others, and errors of
/// the [`Header`](Self::Header) that its syntax does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameViolation {
    /// The length is zero or beyond the limit.
    #[error("frame length {claimed}: this node has announced 1 to {max} as allowed")]
    FrameLength {
        /// Value of the length field, which does not count itself.
        claimed: usize,
        /// Maximum of that value: four bytes less than the maximum length of a frame.
        max: usize,
    },
    /// The kind is unknown and must not be skipped.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The contents of a frame of this kind (first piece, acknowledgement or end) do not have the
    /// length that it requires.
    #[error("the contents of a frame of kind {0} do not match its length")]
    Contents(u8),
    /// The header is malformed.
    #[error("malformed frame header: {0}")]
    Header(&'static str),
    /// The message is longer than the limit.
    #[error(
        "message length {claimed}, at most {max} allowed: set message-bytes-max alike on all nodes"
    )]
    MessageLength {
        /// Length that the message announces, or has reached.
        claimed: usize,
        /// Maximum length of a message, in bytes.
        max: usize,
    },
    /// The sequence of pieces does not form a message.
    #[error("malformed sequence of pieces: {0}")]
    Pieces(&'static str),
    /// A frame that only the other side may send.
    #[error("a frame of kind {0} in the wrong direction")]
    Direction(u8),
    /// An acknowledgement of fewer messages than an earlier one.
    #[error("an acknowledgement of {accepted} messages after one of {before}")]
    AckBackwards {
        /// Number acknowledged by the earlier frame.
        before: u64,
        /// Number acknowledged by this frame.
        accepted: u64,
    },
    /// An acknowledgement of messages that were not sent.
    #[error("an acknowledgement of {accepted} messages when {sent} were sent")]
    AckBeyond {
        /// Number of messages sent.
        sent: u64,
        /// Number acknowledged by this frame.
        accepted: u64,
    },
}

/// Decodes the frame at the start of `bytes`, from which it borrows. Returns
/// [`FrameParseResult::Short`] if the frame is not complete, also for empty `bytes`; ignores the
/// bytes behind it. `bytes_max` is the maximum length of a frame, length field included.
///
/// # Errors
/// A [`FrameViolation`]. A length of zero or above `bytes_max` is refused before any further byte
/// of the frame has arrived (docs/protocol/transport.md#lengths-are-checked-before-allocation).
/// Kind and contents are judged only once the frame is complete.
pub fn cut(bytes: &[u8], bytes_max: usize) -> Result<FrameParseResult<'_>, FrameViolation> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(FrameParseResult::Short);
    };
    let length = u32::from_be_bytes(*length) as usize;
    let max = bytes_max.saturating_sub(LENGTH_BYTES);
    if length == 0 || length > max {
        return Err(FrameViolation::FrameLength { claimed: length, max });
    }
    let Some(frame) = rest.get(..length) else { return Ok(FrameParseResult::Short) };
    let (kind, contents) = (frame[0], &frame[1..]);
    Ok(FrameParseResult::Frame(read(kind, contents)?, LENGTH_BYTES + length))
}

/// Decodes the contents of a complete frame. Checks the syntax of a header, but neither its numbers
/// nor the lengths and the order of pieces, which may be empty here. An acknowledgement must have
/// exactly eight bytes, an end none. A kind from [`SKIPPABLE`](kind::SKIPPABLE) on becomes
/// [`Frame::Unknown`], whatever its contents; any other unknown kind, 0 included, is a violation.
#[inline]
fn read(kind: u8, contents: &[u8]) -> Result<Frame<'_>, FrameViolation> {
    match kind {
        kind::MESSAGE => {
            let (header, body) = Header::split(contents)?;
            Ok(Frame::Message { header, body })
        }
        kind::FIRST => {
            let (total, rest) =
                contents.split_first_chunk().ok_or(FrameViolation::Contents(kind))?;
            let (header, piece) = Header::split(rest)?;
            Ok(Frame::First { total: u32::from_be_bytes(*total), header, piece })
        }
        kind::CONTINUE => Ok(Frame::Continue(contents)),
        kind::LAST => Ok(Frame::Last(contents)),
        kind::ACK => {
            let accepted = contents.try_into().map_err(|_| FrameViolation::Contents(kind))?;
            Ok(Frame::Ack { accepted: u64::from_be_bytes(accepted) })
        }
        kind::END if contents.is_empty() => Ok(Frame::End),
        kind::END => Err(FrameViolation::Contents(kind)),
        _ if kind >= kind::SKIPPABLE => Ok(Frame::Unknown(kind)),
        _ => Err(FrameViolation::Kind(kind)),
    }
}

// ── Headers ──

/// Header of a message. Its syntax was checked, its numbers were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a>(&'a [u8]);

/// A name in a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Number of a name that was defined in an earlier message, or earlier in this header.
    Number(u16),
    /// Definition of a number for a name.
    Define(u16, &'a str),
    /// A name without a number.
    Literal(&'a str),
}

impl<'a> Header<'a> {
    /// Splits `bytes` into the header at the start and the body, which may be empty. A header
    /// without names is one byte, 0. Accepts any number, also one that was never defined, and a
    /// definition of a number out of turn.
    ///
    /// # Errors
    /// [`FrameViolation::Header`] if `bytes` is empty, there are more than [`FIELDS_MAX`] names, a
    /// name is too long or not UTF-8, or the bytes end early.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), FrameViolation> {
        let (&count, mut rest) =
            bytes.split_first().ok_or(FrameViolation::Header("it is missing"))?;
        if usize::from(count) > FIELDS_MAX {
            return Err(FrameViolation::Header("it has too many names"));
        }
        for _ in 0..count {
            (_, rest) = split_field(rest)?;
        }
        let (header, body) = bytes.split_at(bytes.len() - rest.len());
        Ok((Self(header), body))
    }

    /// The encoded header, its count included. Two headers of one lane with equal bytes and without
    /// definitions have equal names.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The names in order. [`split`](Self::split) has checked them, so none is left out.
    pub fn fields(self) -> impl Iterator<Item = Field<'a>> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (field, after) = split_field(rest).ok()?;
            rest = after;
            Some(field)
        })
    }
}

/// Splits the first name of a header from the rest. Fails if the bytes end early, or if the text of
/// the name is malformed ([`split_name`]).
#[inline]
fn split_field(bytes: &[u8]) -> Result<(Field<'_>, &[u8]), FrameViolation> {
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
fn split_u16(bytes: &[u8]) -> Result<(u16, &[u8]), FrameViolation> {
    let (number, rest) =
        bytes.split_first_chunk().ok_or(FrameViolation::Header("it ends early"))?;
    Ok((u16::from_be_bytes(*number), rest))
}

/// Splits a name's length and text from the rest. Fails if the length is above [`NAME_BYTES_MAX`],
/// the bytes end early, or the text is not UTF-8, in this order. A name may be empty.
fn split_name(bytes: &[u8]) -> Result<(&str, &[u8]), FrameViolation> {
    let (length, rest) = split_u16(bytes)?;
    if usize::from(length) > NAME_BYTES_MAX {
        return Err(FrameViolation::Header("a name is too long"));
    }
    let (name, rest) =
        rest.split_at_checked(length.into()).ok_or(FrameViolation::Header("it ends early"))?;
    let name =
        std::str::from_utf8(name).map_err(|_| FrameViolation::Header("a name is not UTF-8"))?;
    Ok((name, rest))
}

// ── Writing ──

/// Length of an acknowledgement frame, in bytes.
pub const ACK_BYTES: usize = LENGTH_BYTES + 1 + 8;

/// Overhead of a frame in bytes: length and kind.
pub const FRAME_OVERHEAD: usize = LENGTH_BYTES + 1;

/// The encoded end frame.
pub const END: [u8; FRAME_OVERHEAD] = [0, 0, 0, 1, kind::END];

/// Encodes the length and kind of a frame with `contents` bytes after the kind. Does not check the
/// kind, nor the length against a limit of the peer.
///
/// # Panics
/// If the length does not fit into 32 bits.
#[must_use]
#[inline]
pub fn begin(kind: u8, contents: usize) -> [u8; FRAME_OVERHEAD] {
    let length = u32::try_from(contents + 1).expect("a frame's length was bounded before");
    let [a, b, c, d] = length.to_be_bytes();
    [a, b, c, d, kind]
}

/// Encodes an acknowledgement frame.
#[must_use]
pub fn ack(accepted: u64) -> [u8; ACK_BYTES] {
    let mut bytes = [0; ACK_BYTES];
    bytes[..FRAME_OVERHEAD].copy_from_slice(&begin(kind::ACK, 8));
    bytes[FRAME_OVERHEAD..].copy_from_slice(&accepted.to_be_bytes());
    bytes
}

/// Appends a field to an encoded header. Leaves the count in its first byte to the caller, and does
/// not check that a number is below [`DEFINE`]: a higher one would decode as a definition or a
/// literal.
///
/// # Panics
/// If a name is longer than [`NAME_BYTES_MAX`].
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

/// Appends a name's length and text to an encoded header. Panics if it is too long.
fn put_name(header: &mut Vec<u8>, name: &str) {
    assert!(name.len() <= NAME_BYTES_MAX, "a name's length is checked before it is written");
    let length = u16::try_from(name.len()).expect("NAME_BYTES_MAX fits");
    header.extend_from_slice(&length.to_be_bytes());
    header.extend_from_slice(name.as_bytes());
}
