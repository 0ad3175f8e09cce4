//! A fast decoder for `Write` messages with unguarded deltas, which are most of the traffic.
//!
//! The general decoder visits every entry twice, by field names, and allocates the name of the
//! shape for each entry. This one accepts only the fields in the order that the present release
//! encodes, and decodes them as the general one would. Any other message, well-formed or not, is
//! left to the general decoder.

use std::sync::Arc;

use super::epoch::EpochId;
use super::wire::{Body, Entries, Entry, EntryContent, ReplicatorMessage};
use crate::encoded::{BUDGET_BYTES, BUDGET_FACTOR};
use crate::key::KeyName;

/// Minimum encoded size of an entry, in bytes: its field names with empty values.
const ENTRY_BYTES_MIN: usize = 17;

/// Overhead of an allocation, in bytes: the counters of an `Arc`.
const ALLOCATION: usize = 16;

/// Decodes a write of the expected form; `None` for all other bytes, and for bytes after its end.
/// The caller then uses the general decoder, which also finds out whether the message is malformed.
///
/// Reads the id of the configuration, which may be absent, the push number, whether all entries of
/// the push are here (`whole`), and the entries with their keys, in this order. The lengths of key
/// names are not checked.
pub(super) fn write(bytes: &[u8]) -> Option<ReplicatorMessage> {
    let mut rest = ByteCursor(bytes);
    let epoch = match rest.byte()? {
        0x81 => None,
        0x82 => {
            rest.skip(b"\xa1e")?;
            Some(rest.epoch()?)
        }
        _ => return None,
    };
    rest.skip(b"\xa1m\x81\xa1w\x83\xa1n")?;
    let push = rest.uint()?;
    rest.skip(b"\xa1a")?;
    let whole = match rest.byte()? {
        0xc2 => false,
        0xc3 => true,
        _ => return None,
    };
    rest.skip(b"\xa1e")?;
    let entries = rest.entries()?;
    rest.0
        .is_empty()
        .then_some(ReplicatorMessage { epoch, body: Body::Write { push, whole, entries } })
}

/// The rest of the input. Every method returns `None` if the input is not as expected or too short;
/// it may have advanced then.
struct ByteCursor<'a>(&'a [u8]);

impl<'a> ByteCursor<'a> {
    /// Takes the next `len` bytes.
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// Passes over exactly these bytes.
    fn skip(&mut self, expected: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(())
    }

    /// Reads a big-endian number of `width` bytes.
    fn number(&mut self, width: usize) -> Option<u64> {
        let digits = self.take(width)?;
        Some(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
    }

    /// Reads an unsigned msgpack integer of any width, also a wider one than its value needs; a
    /// signed one is not expected.
    fn uint(&mut self) -> Option<u64> {
        match self.byte()? {
            small @ 0..=0x7f => Some(small.into()),
            0xcc => self.number(1),
            0xcd => self.number(2),
            0xce => self.number(4),
            0xcf => self.number(8),
            _ => None,
        }
    }

    fn len(&mut self, width: usize) -> Option<usize> {
        self.number(width)?.try_into().ok()
    }

    /// Reads a msgpack string of less than 64 KiB; whether it is UTF-8 is not checked.
    fn text(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            short @ 0xa0..=0xbf => usize::from(short & 0x1f),
            0xd9 => self.len(1)?,
            0xda => self.len(2)?,
            _ => return None,
        };
        self.take(len)
    }

    /// Reads a msgpack byte string of any length.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = match self.byte()? {
            0xc4 => self.len(1)?,
            0xc5 => self.len(2)?,
            0xc6 => self.len(4)?,
            _ => return None,
        };
        self.take(len)
    }

    /// Reads the head of a msgpack list and returns the number of elements that it announces.
    fn list(&mut self) -> Option<usize> {
        match self.byte()? {
            short @ 0x90..=0x9f => Some(usize::from(short & 0x0f)),
            0xdc => self.len(2),
            0xdd => self.len(4),
            _ => None,
        }
    }

    /// Reads the id of a configuration, with its field names.
    fn epoch(&mut self) -> Option<EpochId> {
        self.skip(b"\x82\xa1g")?;
        let generation = self.uint()?;
        self.skip(b"\xa1n")?;
        Some(EpochId { generation, number: self.uint()? })
    }

    /// Reads a list of entries. `None` if it announces more entries than the input can hold, or
    /// would exceed the memory budget of the general decoder. The indices are not checked.
    fn entries(&mut self) -> Option<Entries> {
        let mut budget = self.0.len() * BUDGET_FACTOR + BUDGET_BYTES;
        let count = self.list().filter(|count| count * ENTRY_BYTES_MIN <= self.0.len())?;
        budget = budget.checked_sub(count * size_of::<Entry>())?;
        let mut all: Vec<Entry> = Vec::with_capacity(count);
        for _ in 0..count {
            let (last, before) = (all.last().map(|last| &last.shape), self.0.len());
            let entry = self.entry(last)?;
            budget = budget.checked_sub(before - self.0.len() + 2 * ALLOCATION)?;
            all.push(entry);
        }
        Some(all.into())
    }

    /// Reads an unguarded delta; an entry with a guard, a full state or a probe is not expected.
    /// `last` is the shape of the entry before, which is shared if equal. Neither shape nor delta
    /// is decoded.
    fn entry(&mut self, last: Option<&Arc<str>>) -> Option<Entry> {
        self.skip(b"\x84\xa1i")?;
        let index = self.uint()?.try_into().ok()?;
        self.skip(b"\xa1k")?;
        let key = KeyName::new(str::from_utf8(self.text()?).ok()?);
        self.skip(b"\xa1s")?;
        let shape = self.text()?;
        let shape = match last.filter(|last| last.as_bytes() == shape) {
            Some(last) => last.clone(),
            None => str::from_utf8(shape).ok()?.into(),
        };
        self.skip(b"\xa1c\x81\xa1d")?;
        let content = EntryContent::Delta(self.bytes()?.into());
        Some(Entry { index, key, shape, guard: None, content })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::{ContextBytes, WireGuard, encode};
    use super::*;
    use crate::causal::CausalContext;
    use crate::encoded::from_msgpack;
    use crate::key::Group;

    fn generally(bytes: &[u8]) -> Option<ReplicatorMessage> {
        from_msgpack(bytes).ok()
    }

    fn message() -> impl Strategy<Value = ReplicatorMessage> {
        let number = prop_oneof![0..200_u64, 0..100_000_u64, any::<u64>()];
        let epoch = proptest::option::of((number.clone(), number.clone()));
        let epoch =
            epoch.prop_map(|id| id.map(|(generation, number)| EpochId { generation, number }));
        let name = prop_oneof!["[a-cé]{0,40}", "[a-c]{200,300}"];
        let shape = prop_oneof![Just("flag"), Just("pn-counter"), Just("")];
        let delta = prop_oneof![vec_of(0..40), vec_of(250..300), vec_of(65_530..65_545)];
        let entry = (any::<u16>(), name, shape, delta).prop_map(|(index, key, shape, delta)| {
            let (index, key) = (index.into(), KeyName::new(&key));
            Entry {
                index,
                key,
                shape: shape.into(),
                guard: None,
                content: EntryContent::Delta(delta.into()),
            }
        });
        let entries = prop_oneof![
            9 => proptest::collection::vec(entry.clone(), 0..40),
            1 => entry.prop_map(|entry| vec![entry; 3]),
        ];
        (epoch, number, any::<bool>(), entries).prop_map(|(epoch, push, whole, entries)| {
            ReplicatorMessage { epoch, body: Body::Write { push, whole, entries: entries.into() } }
        })
    }

    fn vec_of(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        (len, any::<u8>()).prop_map(|(len, byte)| vec![byte; len])
    }

    proptest! {
        #[test]
        fn writes_of_this_release_take_the_fast_path(message in message()) {
            prop_assert_eq!(write(&encode(&message)), Some(message));
        }

        #[test]
        fn fast_decoder_agrees_with_the_general_one(
            message in message(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..3),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = encode(&message);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            if let Some(read) = write(&bytes) {
                prop_assert_eq!(Some(read), generally(&bytes));
            }
        }
    }

    #[test]
    fn other_messages_are_left_to_the_general_decoder() {
        let plain = Entry {
            index: 0,
            key: "k".into(),
            shape: "flag".into(),
            guard: None,
            content: EntryContent::Delta(vec![7].into()),
        };
        let guard = Some(WireGuard { group: Group::new("k"), term: None });
        let full = EntryContent::Full(vec![7].into());
        let probe = EntryContent::Probe(ContextBytes::new(&CausalContext::new()));
        let guarded = Entry { guard, ..plain.clone() };
        let others = [full, probe].map(|content| Entry { content, ..plain.clone() });
        for entry in others.into_iter().chain([guarded]) {
            let entries = [plain.clone(), entry].into_iter().collect();
            let message = ReplicatorMessage {
                epoch: None,
                body: Body::Write { push: 1, whole: true, entries },
            };
            let bytes = encode(&message);
            assert_eq!((write(&bytes), generally(&bytes)), (None, Some(message)));
        }
        let known = ReplicatorMessage { epoch: None, body: Body::Known(vec![]) };
        assert_eq!(write(&encode(&known)), None);
    }

    #[test]
    fn length_beyond_the_input_is_refused() {
        let head = b"\x81\xa1m\x81\xa1w\x83\xa1n\x01\xa1a\xc3\xa1e\xdd\xff\xff\xff\xff";
        assert_eq!(write(head), None);
    }
}
