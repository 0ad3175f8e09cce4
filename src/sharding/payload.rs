//! The payload of a move: exported entity states, then the messages that were accepted and not
//! begun, in order (docs/protocol/sharding.md#the-payload-carries-what-has-not-begun).
//!
//! ```text
//! version u8 (2) · per entry: kind u8 · length u32 · content
//! kind 1, message: envelope
//! kind 2, state: id length u16 · id · state
//! ```
//! Numbers are little-endian.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use super::batch::{MessageInTransit, SingleMessage};
use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::entity_table::EntityTable;
use super::envelope::{Envelope, EnvelopeBuilder};
use super::fault_injection::{ShardingFault, ShardingFaultInjection};
use super::ids::EntityId;
use super::instance::Instance;
use super::panics::forget_panic;
use super::region_handle::BadFrame;
use super::runtime::encode;
use super::scope;
use super::state_transfer::ExportedState;

const VERSION: u8 = 2;

mod kind {
    pub(super) const MESSAGE: u8 = 1;
    pub(super) const STATE: u8 = 2;
}

/// Contents of a payload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PayloadContents {
    pub(super) states: Vec<(EntityId, ExportedState)>,
    pub(super) envelopes: Vec<Envelope>,
}

/// Values that are left after sealing. They are dropped after the shard's lock is released, because
/// their `Drop` is code of the user.
pub(super) struct SealedValues<E: Entity> {
    /// Instances that still exist, whose states are not in the payload.
    pub(super) values: Vec<Box<Instance<E>>>,
    /// Typed messages that were encoded into the payload.
    pub(super) typed: Vec<E::Message>,
    /// Messages that could not be encoded.
    pub(super) lost: Vec<(DeadLetterReason, SingleMessage<E::Message>)>,
}

/// Encodes the dormant states of a shard, then the messages in its mailboxes, row by row; only the
/// messages of one entity keep their order. The payload is `None` if there are neither. A message
/// that cannot be encoded is left out, and returned as lost with [`DeadLetterReason::Unencodable`].
///
/// Called under the shard's lock once no entity of the shard runs any longer: states that were
/// exported are dormant, and instances that are left are only dropped, without an export. The
/// `Serialize` of typed messages runs under that lock.
pub(super) fn seal<E: Entity>(
    mut entity_table: EntityTable<E>,
    fault_injection: ShardingFaultInjection,
) -> (Option<Bytes>, SealedValues<E>) {
    let mut left = SealedValues { values: Vec::new(), typed: Vec::new(), lost: Vec::new() };
    let mut bytes = Vec::new();
    // Never true in production: only tests inject faults.
    let loses_states = fault_injection.has(ShardingFault::StatesStay);
    let dormant = entity_table.dormant().filter(|_| !loses_states);
    dormant.for_each(|(id, state)| append_state(&mut bytes, id, state));
    for entity_slot in entity_table.all() {
        left.values.extend(entity_slot.instance.take());
        let Some(busy) = &mut entity_slot.busy else { continue };
        busy.mailbox.drain(|message| match message {
            MessageInTransit::Envelope(envelope) => append(&mut bytes, envelope.bytes()),
            MessageInTransit::Own(envelope) => append(&mut bytes, envelope.bytes()),
            MessageInTransit::Typed(message) | MessageInTransit::Weighed(message, _) => {
                match encoded(&entity_slot.id, &message) {
                    Some(envelope_builder) => {
                        append(&mut bytes, envelope_builder.bytes());
                        left.typed.push(message);
                    }
                    None => left
                        .lost
                        .push((DeadLetterReason::Unencodable, SingleMessage::Typed(message))),
                }
            }
        });
    }
    ((!bytes.is_empty()).then(|| bytes.into()), left)
}

/// Encodes a typed message; `None` if its `Serialize` fails or panics. The first reply address in
/// the message, if any, is also written to the header of the envelope.
fn encoded<M: serde::Serialize>(to: &EntityId, message: &M) -> Option<EnvelopeBuilder> {
    // A panic of user code must not poison the shard's lock.
    let write = || {
        catch_unwind(AssertUnwindSafe(|| encode(to, message, None).ok())).unwrap_or_else(|panic| {
            forget_panic(panic); // the panic hook has reported it
            None
        })
    };
    let (mut envelope_builder, asker) = scope::with_first_reply_address(write);
    // The header repeats the reply address of an ask, so that its asker learns of a loss although
    // the message is not decoded then.
    if let (Some(envelope_builder), Some(asker)) = (&mut envelope_builder, asker) {
        envelope_builder.set_asker(asker);
    }
    envelope_builder
}

/// Appends an entry with an encoded message.
fn append(bytes: &mut Vec<u8>, envelope: &[u8]) {
    head(bytes, kind::MESSAGE, envelope.len());
    bytes.extend_from_slice(envelope);
}

/// Appends an entry with the state of an entity.
fn append_state(bytes: &mut Vec<u8>, id: &EntityId, state: &[u8]) {
    let id = id.as_str().as_bytes();
    let id_length = u16::try_from(id.len()).expect("an id has at most ENTITY_BYTES_MAX bytes");
    head(bytes, kind::STATE, 2 + id.len() + state.len());
    bytes.extend_from_slice(&id_length.to_le_bytes());
    bytes.extend_from_slice(id);
    bytes.extend_from_slice(state);
}

/// Appends the head of an entry whose content has `length` bytes, after the version if this is the
/// first entry. Panics from 4 GiB on, which the limits of messages and exported states exclude.
fn head(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    if bytes.is_empty() {
        bytes.push(VERSION);
    }
    let length = u32::try_from(length).expect("message-bytes-max is less than 4 GiB");
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_le_bytes());
}

/// Decodes a payload up to its end or the first malformed entry, and returns all entries before
/// that, also with an error. The result states whether it was complete. An empty payload and one of
/// another version are errors; a version without entries is a complete payload. An entity may have
/// several states: the caller must check that.
pub(super) fn read(payload: &Bytes) -> (PayloadContents, Result<(), BadFrame>) {
    let mut carried = PayloadContents::default();
    let Some((VERSION, mut rest)) = payload.split_first().map(|(v, rest)| (*v, rest)) else {
        return (carried, Err(BadFrame("a payload of an unknown version")));
    };
    while !rest.is_empty() {
        match next(payload, rest, &mut carried) {
            Ok(behind) => rest = behind,
            Err(why) => return (carried, Err(why)),
        }
    }
    (carried, Ok(()))
}

const CUT: BadFrame = BadFrame("a payload cut short");

/// Decodes the first entry of `rest`, which is the end of `whole`, adds it to `to`, and returns the
/// bytes behind it. After an error `to` is unchanged. An entry of an unknown kind is an error, not
/// skipped. A message shares the memory of `whole`; a state is copied.
fn next<'a>(whole: &Bytes, rest: &'a [u8], to: &mut PayloadContents) -> Result<&'a [u8], BadFrame> {
    let (kind, rest) = rest.split_first().ok_or(CUT)?;
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(CUT)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (content, behind) = rest.split_at_checked(length).ok_or(CUT)?;
    match *kind {
        kind::MESSAGE => to.envelopes.push(Envelope::read(whole.slice_ref(content))?),
        kind::STATE => to.states.push(state(content)?),
        _ => return Err(BadFrame("an entry of an unknown kind in a payload")),
    }
    Ok(behind)
}

/// Decodes the content of an entry with a state, which takes up everything behind the id. The state
/// may be empty. An id that is empty, too long or not UTF-8 is an error.
fn state(content: &[u8]) -> Result<(EntityId, ExportedState), BadFrame> {
    let (length, rest) = content.split_first_chunk::<2>().ok_or(CUT)?;
    let length = usize::from(u16::from_le_bytes(*length));
    let (id, state) = rest.split_at_checked(length).ok_or(CUT)?;
    let id = std::str::from_utf8(id).map_err(|_| BadFrame("an entity id that is not UTF-8"))?;
    let id = EntityId::new(id).map_err(|_| BadFrame("an entity id of an invalid length"))?;
    Ok((id, state.into())) // copied: it may outlive the payload by far
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a payload with two states and two messages, and the lengths after which
    /// it may end: after the version, and after each entry.
    fn ends() -> (Vec<u8>, Vec<usize>) {
        let to = EntityId::new("a").unwrap();
        let (mut bytes, mut ends) = (Vec::new(), vec![1]);
        append_state(&mut bytes, &to, b"xyz");
        ends.push(bytes.len());
        append_state(&mut bytes, &EntityId::new("bc").unwrap(), b"");
        ends.push(bytes.len());
        for envelope_builder in [encoded(&to, &1).unwrap(), encoded(&to, &"two").unwrap()] {
            append(&mut bytes, envelope_builder.bytes());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn payloads_have_golden_bytes() {
        let hex: String = ends().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "02\
             02060000000100 61 78797a\
             02040000000200 6263\
             0105000000 00 0100 61 01\
             0108000000 00 0100 61 a374776f";
        assert_eq!(hex, golden.replace(' ', ""));
    }

    #[test]
    fn truncated_payload_yields_its_whole_entries() {
        let (bytes, ends) = ends();
        for length in 0..=bytes.len() {
            let (read, rest) = read(&Bytes::copy_from_slice(&bytes[..length]));
            let whole = ends[1..].iter().filter(|end| length >= **end).count();
            assert_eq!((read.states.len(), read.envelopes.len()), (whole.min(2), whole.max(2) - 2));
            assert_eq!(rest.is_ok(), ends.contains(&length));
        }
        let (read, _) = read(&bytes.into());
        let states = read.states.iter().map(|(id, state)| (id.as_str(), &state[..]));
        assert_eq!(states.collect::<Vec<_>>(), [("a", &b"xyz"[..]), ("bc", b"")]);
        let ids = read.envelopes.iter().map(Envelope::id);
        assert_eq!(ids.collect::<Vec<_>>(), ["a", "a"]);
    }

    #[test]
    fn malformed_payload_is_refused_without_panic() {
        assert!(read(&Bytes::from_static(&[9])).1.is_err(), "unknown version");
        let (bytes, _) = ends();
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = value;
                let (carried, rest) = read(&changed.into());
                let entries = carried.states.len() + carried.envelopes.len();
                // A changed entry may decode to another valid one; a wrong version never decodes.
                assert!(entries == 4 || rest.is_err() || at > 0, "{at} {value}");
            }
        }
        let no_id = [VERSION, kind::STATE, 2, 0, 0, 0, 0, 0];
        assert!(read(&Bytes::copy_from_slice(&no_id)).1.is_err(), "an empty id");
    }

    #[test]
    fn serialize_that_panics_twice_makes_no_envelope() {
        struct PanicsWhenDropped;
        impl Drop for PanicsWhenDropped {
            fn drop(&mut self) {
                panic!("planned by the test: a payload that panics again");
            }
        }
        struct Unencodable;
        impl serde::Serialize for Unencodable {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                std::panic::panic_any(PanicsWhenDropped)
            }
        }
        assert!(encoded(&EntityId::new("a").unwrap(), &Unencodable).is_none());
    }
}
