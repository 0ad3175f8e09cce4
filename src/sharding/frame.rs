//! Frames on user lanes between regions of one type: messages, barriers and echoes that keep their
//! order, answers, and busy notices (docs/protocol/message-order.md#messages). The node adds the
//! type's name and the sender's incarnation.
//!
//! ```text
//! 1 message  shard · stamp · envelope        4 bounce   shard · stamp · newest · home · envelope
//! 2 barrier  shard · stamp                   5 answer   correlation u64 · body
//! 3 echo     shard · stamp                   6 refused  correlation u64 · reason u8
//! 7 moved    as a message                    8 busy, 9 free, 10 still busy?  shard · id
//! ```
//! A moved message had to wait for a home, or came back. An id is its length (u16) and its bytes.
//! A shard is a LEB128 number, a stamp three: the term's number, its owner (u64), the sequence
//! number. A home is 0, or 1 and a u64. Other numbers are little-endian. Bytes after the last field
//! of a frame without a body are ignored; later releases may use them.

use ostraca_ddata::types::Term;

use super::dead_letters::DeadLetterReason;
use super::envelope::{Envelope, EnvelopeRef};
use super::gate::{HomeDecision, MailboxLimitCheck};
use super::ids::{EntityId, Generation, RegionId, ShardId};
use super::region_handle::BadFrame;

mod kind {
    pub(super) const MESSAGE: u8 = 1;
    pub(super) const BARRIER: u8 = 2;
    pub(super) const ECHO: u8 = 3;
    pub(super) const BOUNCE: u8 = 4;
    pub(super) const ANSWER: u8 = 5;
    pub(super) const REFUSED: u8 = 6;
    pub(super) const MOVED: u8 = 7;
    pub(super) const BUSY: u8 = 8;
    pub(super) const FREE: u8 = 9;
    pub(super) const STILL_BUSY: u8 = 10;
}

/// A report or question about the mailbox of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailboxNotice {
    /// The mailbox is full: a message was refused.
    Busy,
    /// The mailbox has room again.
    Free,
    /// The question whether it is still full.
    StillBusy,
}

/// Most bytes of a frame before its encoded message: a bounce with the longest numbers.
pub(super) const HEAD_BYTES_MAX: usize = 1 + 5 + 2 * (10 + 8 + 10) + 9;

/// Most bytes of a message frame before its encoded message.
pub(super) const MESSAGE_HEAD_BYTES_MAX: usize = 1 + 5 + (10 + 8 + 10);

/// Returns whether the frame is for a pending ask: an answer or a refusal. Looks at the first byte
/// only; `false` for an empty frame.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(kind::ANSWER | kind::REFUSED)))
}

/// A received frame, decoded. The bytes are borrowed; the body of an envelope or answer is not
/// decoded. `stamp` is the generation by which the sender of the message or barrier took the
/// receiver for the home; echoes and bounces repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShardingFrame<'a> {
    /// A message or, with `Exempt`, a moved one.
    Message { shard: ShardId, stamp: Generation, fit: MailboxLimitCheck, envelope: EnvelopeRef<'a> },
    /// Asks for an echo once everything before it on the lane was accepted or returned.
    Barrier { shard: ShardId, stamp: Generation },
    /// Answers a barrier, whose stamp it repeats.
    Echo { shard: ShardId, stamp: Generation },
    /// A message that returns to its sender, with the newest decision that its receiver knows.
    Bounce { shard: ShardId, stamp: Generation, newest: HomeDecision, envelope: EnvelopeRef<'a> },
    /// The encoded answer of an ask; `()` for a start.
    Answer { correlation: u64, body: &'a [u8] },
    /// The reason why an ask gets no answer.
    Refused { correlation: u64, why: DeadLetterReason },
    /// A notice or question about a mailbox.
    Notice { notice: MailboxNotice, shard: ShardId, id: EntityId },
}

impl<'a> ShardingFrame<'a> {
    /// Decodes a frame. Does not check whether the type has the shard, whether a region is a
    /// member, or whether an ask waits.
    ///
    /// # Errors
    /// [`BadFrame`] if the frame is empty or cut short, has an unknown kind, reason or form of a
    /// home, a number that is too large, an invalid term (also that of [`Generation::NEVER`]), or
    /// an envelope or entity id that is invalid.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, BadFrame> {
        let mut rest = FrameCursor(bytes);
        let kind = rest.byte()?;
        Ok(match kind {
            kind::MESSAGE | kind::MOVED => {
                let (shard, stamp) = (rest.shard()?, rest.generation()?);
                let fit = if kind == kind::MOVED {
                    MailboxLimitCheck::Exempt
                } else {
                    MailboxLimitCheck::Must
                };
                Self::Message { shard, stamp, fit, envelope: rest.envelope()? }
            }
            kind::BARRIER => Self::Barrier { shard: rest.shard()?, stamp: rest.generation()? },
            kind::ECHO => Self::Echo { shard: rest.shard()?, stamp: rest.generation()? },
            kind::BOUNCE => {
                let (shard, stamp) = (rest.shard()?, rest.generation()?);
                let newest = HomeDecision { generation: rest.generation()?, home: rest.home()? };
                Self::Bounce { shard, stamp, newest, envelope: rest.envelope()? }
            }
            kind::ANSWER => Self::Answer { correlation: rest.fixed()?, body: rest.0 },
            kind::REFUSED => {
                let correlation = rest.fixed()?;
                let why =
                    DeadLetterReason::of(rest.byte()?).ok_or(BadFrame("an unknown reason"))?;
                Self::Refused { correlation, why }
            }
            kind::BUSY => rest.notice(MailboxNotice::Busy)?,
            kind::FREE => rest.notice(MailboxNotice::Free)?,
            kind::STILL_BUSY => rest.notice(MailboxNotice::StillBusy)?,
            _ => return Err(BadFrame("an unknown kind")),
        })
    }
}

/// Writes a message frame with its encoded message. Like all functions here that write a frame, it
/// replaces the content of `to`.
pub(super) fn message(
    to: &mut Vec<u8>,
    shard: ShardId,
    stamp: Generation,
    fit: MailboxLimitCheck,
    envelope: &Envelope,
) {
    message_head(to, shard, stamp, fit);
    to.extend_from_slice(envelope.bytes());
}

/// Writes the fields of a message frame that precede the encoded message. An exempt message gets
/// the kind of a moved one.
pub(super) fn message_head(
    to: &mut Vec<u8>,
    shard: ShardId,
    stamp: Generation,
    fit: MailboxLimitCheck,
) {
    let kind = match fit {
        MailboxLimitCheck::Must => kind::MESSAGE,
        MailboxLimitCheck::Exempt => kind::MOVED,
    };
    head(to, kind, shard, stamp);
}

/// Writes a barrier frame.
pub(super) fn barrier(to: &mut Vec<u8>, shard: ShardId, stamp: Generation) {
    head(to, kind::BARRIER, shard, stamp);
}

/// Writes the echo of a barrier.
pub(super) fn echo(to: &mut Vec<u8>, shard: ShardId, stamp: Generation) {
    head(to, kind::ECHO, shard, stamp);
}

/// Writes a message that returns to its sender, with the stamp that the sender gave it and the
/// newest decision known here.
pub(super) fn bounce(
    to: &mut Vec<u8>,
    shard: ShardId,
    stamp: Generation,
    newest: HomeDecision,
    envelope: &Envelope,
) {
    head(to, kind::BOUNCE, shard, stamp);
    generation(to, newest.generation);
    match newest.home {
        None => to.push(0),
        Some(home) => {
            to.push(1);
            to.extend_from_slice(&home.replica().get().to_le_bytes());
        }
    }
    to.extend_from_slice(envelope.bytes());
}

/// Writes the start of an answer; the caller appends the encoded value.
pub(super) fn answer(to: &mut Vec<u8>, correlation: u64) {
    to.clear();
    to.push(kind::ANSWER);
    to.extend_from_slice(&correlation.to_le_bytes());
}

/// Writes the reason why an ask has no answer.
pub(super) fn refused(to: &mut Vec<u8>, correlation: u64, why: DeadLetterReason) {
    to.clear();
    to.push(kind::REFUSED);
    to.extend_from_slice(&correlation.to_le_bytes());
    to.push(why.code());
}

/// Writes a busy notice, a free notice or the question about the mailbox of an entity.
pub(super) fn notice(to: &mut Vec<u8>, notice: MailboxNotice, shard: ShardId, id: &EntityId) {
    to.clear();
    to.push(match notice {
        MailboxNotice::Busy => kind::BUSY,
        MailboxNotice::Free => kind::FREE,
        MailboxNotice::StillBusy => kind::STILL_BUSY,
    });
    varint(to, shard.get().into());
    let id = id.as_str().as_bytes();
    let length = u16::try_from(id.len()).expect("an id has at most ENTITY_BYTES_MAX bytes");
    to.extend_from_slice(&length.to_le_bytes());
    to.extend_from_slice(id);
}

/// Replaces the content of `to` by kind, shard and stamp.
fn head(to: &mut Vec<u8>, kind: u8, shard: ShardId, stamp: Generation) {
    to.clear();
    to.push(kind);
    varint(to, shard.get().into());
    generation(to, stamp);
}

/// Appends a generation: term number, owner, sequence number.
fn generation(to: &mut Vec<u8>, Generation { term, seq }: Generation) {
    varint(to, term.number);
    to.extend_from_slice(&term.owner.get().to_le_bytes());
    varint(to, seq);
}

/// Appends a number in LEB128, 1 to 10 bytes.
fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80); // the low seven bits
        number >>= 7;
    }
    to.push(number as u8);
}

/// The bytes that are not decoded yet. Each method takes its bytes from the front, and fails with
/// [`BadFrame`] if they are too few or invalid; the frame must then be dropped.
struct FrameCursor<'a>(&'a [u8]);

impl<'a> FrameCursor<'a> {
    fn byte(&mut self) -> Result<u8, BadFrame> {
        let (first, rest) = self.0.split_first().ok_or(BadFrame("cut short"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn fixed(&mut self) -> Result<u64, BadFrame> {
        let (first, rest) = self.0.split_first_chunk::<8>().ok_or(BadFrame("cut short"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }

    /// Reads a LEB128 number of at most 64 bits. Longer forms than necessary are accepted, up to
    /// ten bytes.
    fn varint(&mut self) -> Result<u64, BadFrame> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadFrame("a number of more than 64 bits"))
    }

    fn shard(&mut self) -> Result<ShardId, BadFrame> {
        let number = self.varint()?;
        u32::try_from(number)
            .map(ShardId::new)
            .map_err(|_| BadFrame("a shard number of more than 32 bits"))
    }

    /// Reads a generation. One whose term no decision can have is refused, `NEVER` included: a
    /// message with a stamp above all decisions would be held for ever.
    fn generation(&mut self) -> Result<Generation, BadFrame> {
        let (number, owner) = (self.varint()?, self.fixed()?.into());
        let term = Term { number, owner };
        if !term.is_valid() {
            return Err(BadFrame("an invalid term"));
        }
        Ok(Generation::new(term, self.varint()?))
    }

    /// Reads a home; `None` if the decision has none.
    fn home(&mut self) -> Result<Option<RegionId>, BadFrame> {
        match self.byte()? {
            0 => Ok(None),
            1 => Ok(Some(RegionId::new(self.fixed()?.into()))),
            _ => Err(BadFrame("an unknown form of a home")),
        }
    }

    /// Reads shard and entity id of a notice; the cursor does not advance beyond the shard. Further
    /// bytes are ignored, because later releases may add fields.
    fn notice(&mut self, notice: MailboxNotice) -> Result<ShardingFrame<'a>, BadFrame> {
        let (shard, cut) = (self.shard()?, BadFrame("cut short"));
        let (length, rest) = self.0.split_first_chunk::<2>().ok_or(cut)?;
        let id = rest.get(..usize::from(u16::from_le_bytes(*length))).ok_or(cut)?;
        let id = std::str::from_utf8(id).map_err(|_| BadFrame("an entity id that is not UTF-8"))?;
        let id = EntityId::new(id).map_err(|_| BadFrame("an entity id of an invalid length"))?;
        Ok(ShardingFrame::Notice { notice, shard, id })
    }

    /// Reads the rest of the frame as an envelope; the cursor does not advance.
    fn envelope(&mut self) -> Result<EnvelopeRef<'a>, BadFrame> {
        EnvelopeRef::read(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use crate::sharding::envelope::EnvelopeBuilder;
    use crate::sharding::pending_asks::ReplyAddress;

    const fn g(number: u64, owner: u64, seq: u64) -> Generation {
        Generation::new(Term { number, owner: ostraca_ddata::id::ReplicaId::new(owner) }, seq)
    }

    fn envelope(id: &str, body: &[u8], asker: Option<ReplyAddress>) -> Envelope {
        let write = |to: &mut Vec<u8>| {
            to.extend_from_slice(body);
            Ok::<(), Infallible>(())
        };
        let asking = || asker;
        let asking = asker.is_some().then_some(&asking as &dyn Fn() -> Option<ReplyAddress>);
        EnvelopeBuilder::write(&EntityId::new(id).unwrap(), write, asking).unwrap().envelope()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// All kinds of frames with their golden bytes, because nodes of different releases read each
    /// other's.
    #[expect(clippy::too_many_lines, reason = "one entry for each frame")]
    fn all() -> Vec<(Vec<u8>, ShardingFrame<'static>, &'static str)> {
        let (shard, stamp) = (ShardId::new(300), g(2, 3, 129));
        let node = RegionId::new(7.into());
        let leaked = |asker| &*Box::leak(Box::new(envelope("ab", b"xy", asker)));
        let (plain, asking) = (leaked(None), leaked(Some(ReplyAddress { node, correlation: 5 })));
        let newest = HomeDecision { generation: g(3, 4, 1), home: Some(node) };
        let nowhere = HomeDecision { home: None, ..newest };
        let write = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = vec![9; 3]; // old content, replaced
            write(&mut bytes);
            bytes
        };
        vec![
            (
                write(&|to| message(to, shard, stamp, MailboxLimitCheck::Must, asking)),
                ShardingFrame::Message {
                    shard,
                    stamp,
                    fit: MailboxLimitCheck::Must,
                    envelope: asking.view(),
                },
                "01ac020203000000000000008101\
                 0107000000000000000500000000000000020061627879",
            ),
            (
                write(&|to| barrier(to, shard, stamp)),
                ShardingFrame::Barrier { shard, stamp },
                "02ac020203000000000000008101",
            ),
            (
                write(&|to| echo(to, shard, stamp)),
                ShardingFrame::Echo { shard, stamp },
                "03ac020203000000000000008101",
            ),
            (
                write(&|to| bounce(to, shard, stamp, newest, plain)),
                ShardingFrame::Bounce { shard, stamp, newest, envelope: plain.view() },
                "04ac020203000000000000008101\
                 03040000000000000001010700000000000000\
                 00020061627879",
            ),
            (
                write(&|to| bounce(to, shard, stamp, nowhere, plain)),
                ShardingFrame::Bounce { shard, stamp, newest: nowhere, envelope: plain.view() },
                "04ac020203000000000000008101\
                 0304000000000000000100\
                 00020061627879",
            ),
            (
                write(&|to| {
                    answer(to, 5);
                    to.extend_from_slice(b"xy");
                }),
                ShardingFrame::Answer { correlation: 5, body: b"xy" },
                "0505000000000000007879",
            ),
            (
                write(&|to| refused(to, 5, DeadLetterReason::MailboxFull)),
                ShardingFrame::Refused { correlation: 5, why: DeadLetterReason::MailboxFull },
                "06050000000000000001",
            ),
        ]
    }

    /// The same for busy notices.
    fn notices() -> Vec<(Vec<u8>, ShardingFrame<'static>, &'static str)> {
        let (shard, id) = (ShardId::new(300), EntityId::new("ab").unwrap());
        let goldens = [
            (MailboxNotice::Busy, "08ac0202006162"),
            (MailboxNotice::Free, "09ac0202006162"),
            (MailboxNotice::StillBusy, "0aac0202006162"),
        ];
        let written = goldens.map(|(what, golden)| {
            let mut bytes = vec![9; 3];
            notice(&mut bytes, what, shard, &id);
            (bytes, ShardingFrame::Notice { notice: what, shard, id: id.clone() }, golden)
        });
        written.into()
    }

    #[test]
    fn answers_and_refusals_are_known_by_their_first_byte() {
        for (bytes, frame, _) in all().into_iter().chain(notices()) {
            let expected =
                matches!(frame, ShardingFrame::Answer { .. } | ShardingFrame::Refused { .. });
            assert_eq!(is_answer(&bytes), expected, "{frame:?}");
        }
        assert!(!is_answer(&[]));
    }

    #[test]
    fn a_notice_may_be_longer_in_a_later_release() {
        for (mut bytes, frame, _) in notices() {
            bytes.extend_from_slice(b"more");
            assert_eq!(ShardingFrame::read(&bytes), Ok(frame));
        }
    }

    #[test]
    fn a_message_that_moved_has_golden_bytes() {
        let (mut bytes, envelope, fit) =
            (Vec::new(), envelope("ab", b"xy", None), MailboxLimitCheck::Exempt);
        message(&mut bytes, ShardId::new(300), g(2, 3, 129), fit, &envelope);
        assert_eq!(hex(&bytes), "07ac02020300000000000000810100020061627879");
        let (shard, stamp, envelope) = (ShardId::new(300), g(2, 3, 129), envelope.view());
        assert_eq!(
            ShardingFrame::read(&bytes),
            Ok(ShardingFrame::Message { shard, stamp, fit, envelope })
        );
    }

    #[test]
    fn frames_have_golden_bytes() {
        for (bytes, frame, golden) in all().into_iter().chain(notices()) {
            assert_eq!(hex(&bytes), golden.replace(char::is_whitespace, ""), "{frame:?}");
            assert_eq!(ShardingFrame::read(&bytes), Ok(frame));
        }
    }

    #[test]
    fn frame_heads_fit_the_reserved_room() {
        let (shard, stamp) = (ShardId::new(u32::MAX), g(u64::MAX, u64::MAX, u64::MAX));
        let home = Some(RegionId::new(u64::MAX.into()));
        let (envelope, mut bytes) = (envelope("ab", b"xy", None), Vec::new());
        bounce(&mut bytes, shard, stamp, HomeDecision { generation: stamp, home }, &envelope);
        assert_eq!(bytes.len() - envelope.bytes().len(), HEAD_BYTES_MAX);
    }

    /// A message with such a stamp would be held for a decision that never comes.
    #[test]
    fn impossible_stamp_is_refused() {
        let (shard, envelope) = (ShardId::new(1), envelope("ab", b"xy", None));
        let mut bytes = Vec::new();
        for number in [0, Term::NUMBER_MAX + 1, u64::MAX] {
            let refused = Err(BadFrame("an invalid term"));
            message(&mut bytes, shard, g(number, 3, 1), MailboxLimitCheck::Must, &envelope);
            assert_eq!(ShardingFrame::read(&bytes), refused);
            barrier(&mut bytes, shard, g(number, 3, 1));
            assert_eq!(ShardingFrame::read(&bytes), refused);
            let newest = HomeDecision { generation: g(number, 3, 1), home: None };
            bounce(&mut bytes, shard, g(1, 3, 1), newest, &envelope);
            assert_eq!(ShardingFrame::read(&bytes), refused);
        }
        message(&mut bytes, shard, g(Term::NUMBER_MAX, 3, 1), MailboxLimitCheck::Must, &envelope);
        assert!(ShardingFrame::read(&bytes).is_ok());
    }

    #[test]
    fn envelope_decodes_to_the_encoded_fields() {
        let asker = ReplyAddress { node: RegionId::new(7.into()), correlation: 5 };
        let asking = envelope("ab", b"xy", Some(asker));
        let read = EnvelopeRef::read(asking.bytes()).unwrap();
        assert_eq!(read.to_envelope(), asking);
        assert_eq!((read.id(), read.body(), read.asker()), ("ab", &b"xy"[..], Some(asker)));
        assert_eq!(envelope("ab", b"xy", None).asker(), None);
    }

    #[test]
    fn envelope_that_starts_its_entity_has_golden_bytes() {
        let asker = ReplyAddress { node: RegionId::new(7.into()), correlation: 5 };
        let starts = Envelope::start(&EntityId::new("ab").unwrap(), asker);
        assert_eq!(hex(starts.bytes()), "030700000000000000050000000000000002006162");
        let read = EnvelopeRef::read(starts.bytes()).unwrap();
        assert_eq!((read.id(), read.asker(), read.starts()), ("ab", Some(asker), true));
        assert_eq!(read, starts.view());
        assert!(!envelope("ab", b"xy", Some(asker)).view().starts());
    }

    #[test]
    fn damaged_frames_never_panic() {
        for (bytes, ..) in all().into_iter().chain(notices()) {
            for length in 0..bytes.len() {
                let _ = ShardingFrame::read(&bytes[..length]);
            }
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Ok(
                        ShardingFrame::Message { envelope, .. }
                        | ShardingFrame::Bounce { envelope, .. },
                    ) = ShardingFrame::read(&changed)
                    {
                        let _ = (envelope.id(), envelope.body(), envelope.asker());
                    }
                }
            }
        }
        assert_eq!(ShardingFrame::read(&[]), Err(BadFrame("cut short")));
        assert_eq!(ShardingFrame::read(&[77]), Err(BadFrame("an unknown kind")));
        let long = [2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(ShardingFrame::read(&long), Err(BadFrame("a number of more than 64 bits")));
    }
}
