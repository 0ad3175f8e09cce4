//! Interning of header names: a name is sent once, and afterwards as a number.
//!
//! Both tables grow in the order of messages: the sender's when a message is appended, the
//! receiver's when it is accepted. So they agree whenever a lane is resumed, wherever the
//! connection broke. They last as long as the lane: numbers are never replaced.

use std::collections::HashMap;
use std::sync::Arc;

use crate::net::frame::{
    self, Field, FrameViolation, Header, NAME_BYTES_MAX, NAMES_BYTES_MAX, NAMES_MAX,
};
use crate::net::wire::FIELDS_MAX;

/// Sender's table, and the header that was encoded last. Numbers count from 0.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    numbers: HashMap<Arc<str>, u16>, // ≤ NAMES_MAX; local names only
    bytes: usize,                    // of the names; ≤ NAMES_BYTES_MAX
    fresh: Vec<Arc<str>>,            // defined in `header`; ≤ FIELDS_MAX
    header: Vec<u8>,
    stands_for: Vec<Arc<str>>, // names in `header`, if `repeatable`; ≤ FIELDS_MAX
    repeatable: bool,          // whether `header` has numbers only, none of them new
}

impl NameTable {
    /// Encodes the header for these fields; `None` if there are too many or one is too long.
    /// Returns the last header again if it has the same fields and consists of numbers only.
    ///
    /// Names that it defines stay in the table. If the message is not appended after all, the
    /// caller must call [`forget`](Self::forget), but not after `None`: that would remove names of
    /// the message before.
    #[inline]
    pub(super) fn header(&mut self, fields: &[&str]) -> Option<&[u8]> {
        let same = self.repeatable
            && self.stands_for.len() == fields.len()
            && self.stands_for.iter().zip(fields).all(|(before, now)| **before == **now);
        if !same {
            self.write(fields)?;
        }
        Some(&self.header)
    }

    /// The header that was encoded last, also if it was forgotten; empty before the first.
    #[inline]
    pub(super) fn last(&self) -> &[u8] {
        &self.header
    }

    /// Encodes these fields into `header`. Each is written as its number, if it has one; otherwise
    /// it gets the next number, or is written as a literal if the table has [`NAMES_MAX`] names or
    /// the name would exceed [`NAMES_BYTES_MAX`] (a shorter one may still get a number). Returns
    /// `None`, and changes nothing, if there are too many fields or one is too long.
    fn write(&mut self, fields: &[&str]) -> Option<()> {
        if fields.len() > FIELDS_MAX || fields.iter().any(|name| name.len() > NAME_BYTES_MAX) {
            return None;
        }
        self.fresh.clear();
        self.stands_for.clear();
        self.header.clear();
        self.header.push(fields.len() as u8);
        self.repeatable = true;
        for name in fields {
            if let Some((kept, &number)) = self.numbers.get_key_value(*name) {
                self.stands_for.push(Arc::clone(kept));
                frame::put_field(&mut self.header, Field::Number(number));
                continue;
            }
            self.repeatable = false;
            if self.numbers.len() < NAMES_MAX && self.bytes + name.len() <= NAMES_BYTES_MAX {
                let number = self.numbers.len() as u16;
                let kept: Arc<str> = Arc::from(*name);
                self.bytes += name.len();
                self.fresh.push(Arc::clone(&kept));
                self.numbers.insert(kept, number);
                frame::put_field(&mut self.header, Field::Define(number, name));
            } else {
                frame::put_field(&mut self.header, Field::Literal(name));
            }
        }
        Some(())
    }

    /// Removes the names that the last header defined, because its message was rejected. Their
    /// numbers are given out again. Has no effect when called again, or if it defined none.
    pub(super) fn forget(&mut self) {
        for name in self.fresh.drain(..) {
            self.bytes -= name.len();
            self.numbers.remove(&name);
        }
    }
}

/// Receiver's table of names by number.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: Vec<Arc<str>>, // ≤ NAMES_MAX; those of the current message last
    bytes: usize,         // of the names; ≤ NAMES_BYTES_MAX
    accepted: usize,      // names defined by accepted messages
}

impl Names {
    /// Decodes a header into `fields`, whose earlier contents are replaced. Returns whether the
    /// same bytes would decode to the same names again: `false` with a definition or a literal. A
    /// number may be of a name that this header has defined before it.
    ///
    /// Names that it defines stay only if [`accept`](Self::accept) follows; otherwise the caller
    /// must call [`forget`](Self::forget), also after an error.
    ///
    /// # Errors
    /// [`FrameViolation::Header`] if a number is unknown, a definition has another number than the
    /// next one, or the table is full. `fields` and the table may be half changed then.
    pub(super) fn read(
        &mut self,
        header: Header<'_>,
        fields: &mut Vec<Arc<str>>,
    ) -> Result<bool, FrameViolation> {
        fields.clear();
        let mut repeatable = true;
        for field in header.fields() {
            match field {
                Field::Number(number) => {
                    let known = self.names.get(usize::from(number));
                    fields.push(Arc::clone(
                        known.ok_or(FrameViolation::Header("an unknown number"))?,
                    ));
                }
                Field::Define(number, name) => {
                    repeatable = false;
                    fields.push(self.define(number, name)?);
                }
                Field::Literal(name) => {
                    repeatable = false;
                    fields.push(Arc::from(name));
                }
            }
        }
        Ok(repeatable)
    }

    /// Adds a name to the table. `number` must be the next one, which is checked first; the table
    /// must have room. The same name may have several numbers.
    fn define(&mut self, number: u16, name: &str) -> Result<Arc<str>, FrameViolation> {
        if usize::from(number) != self.names.len() {
            return Err(FrameViolation::Header("a number out of turn"));
        }
        if self.names.len() == NAMES_MAX || self.bytes + name.len() > NAMES_BYTES_MAX {
            return Err(FrameViolation::Header("more names than are kept"));
        }
        let name: Arc<str> = Arc::from(name);
        self.bytes += name.len();
        self.names.push(Arc::clone(&name));
        Ok(name)
    }

    /// Keeps the names that the current message defined, because it was accepted.
    #[inline]
    pub(super) fn accept(&mut self) {
        self.accepted = self.names.len();
    }

    /// Removes the names that were defined since the last [`accept`](Self::accept), because their
    /// message will be sent again. Has no effect if there are none.
    pub(super) fn forget(&mut self) {
        for name in self.names.drain(self.accepted..) {
            self.bytes -= name.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(names: &mut Names, header: &[u8]) -> Result<Vec<String>, FrameViolation> {
        let (header, body) = Header::split(header)?;
        assert_eq!(body, b"");
        let mut fields = Vec::new();
        names.read(header, &mut fields)?;
        names.accept();
        Ok(fields.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn name_is_sent_once_and_then_as_a_number() {
        let (mut numbers, mut names) = (NameTable::default(), Names::default());
        let lengths: Vec<usize> = (0..3)
            .map(|_| {
                let header = numbers.header(&["order", "order", "user"]).expect("short").to_vec();
                assert_eq!(read(&mut names, &header).expect("ours"), ["order", "order", "user"]);
                header.len()
            })
            .collect();
        assert_eq!(lengths, [1 + 11 + 2 + 10, 1 + 6, 1 + 6]);
    }

    #[test]
    fn definitions_of_a_rejected_message_are_repeated() {
        let mut numbers = NameTable::default();
        let first = numbers.header(&["a", "b"]).expect("short").to_vec();
        numbers.forget();
        assert_eq!(numbers.header(&["a", "b"]).expect("short"), first);
        let mut names = Names::default();
        let mut fields = Vec::new();
        names.read(Header::split(&first).expect("ours").0, &mut fields).expect("ours");
        names.forget();
        assert_eq!(read(&mut names, &first).expect("it comes again"), ["a", "b"]);
        assert_eq!(names.bytes, 2);
    }

    #[test]
    fn names_beyond_the_table_are_sent_as_literals() {
        let (mut numbers, mut names) = (NameTable::default(), Names::default());
        for at in 0..NAMES_MAX + 10 {
            for _ in 0..2 {
                let name = format!("n{at}");
                let header = numbers.header(&[&name]).expect("short").to_vec();
                assert_eq!(read(&mut names, &header).expect("ours"), [name]);
            }
        }
        assert_eq!((numbers.numbers.len(), names.names.len()), (NAMES_MAX, NAMES_MAX));
        let long = "x".repeat(NAME_BYTES_MAX);
        let (mut numbers, mut names) = (NameTable::default(), Names::default());
        for at in 0..2 * NAMES_BYTES_MAX / NAME_BYTES_MAX {
            let name = format!("{at:04}{}", &long[4..]);
            let header = numbers.header(&[&name]).expect("short").to_vec();
            assert_eq!(read(&mut names, &header).expect("ours"), [name]);
        }
        assert_eq!((numbers.bytes, names.bytes), (NAMES_BYTES_MAX, NAMES_BYTES_MAX));
    }

    #[test]
    fn wrong_numbers_and_too_many_names_are_refused() {
        let mut names = Names::default();
        let header = |field| {
            let mut bytes = vec![1];
            frame::put_field(&mut bytes, field);
            bytes
        };
        let unknown = read(&mut names, &header(Field::Number(0)));
        assert_eq!(unknown, Err(FrameViolation::Header("an unknown number")));
        let early = read(&mut names, &header(Field::Define(1, "b")));
        assert_eq!(early, Err(FrameViolation::Header("a number out of turn")));
        for at in 0..NAMES_MAX {
            read(&mut names, &header(Field::Define(at as u16, "a"))).expect("in turn");
        }
        let beyond = read(&mut names, &header(Field::Define(NAMES_MAX as u16, "a")));
        assert_eq!(beyond, Err(FrameViolation::Header("more names than are kept")));
    }

    #[test]
    fn too_many_fields_or_too_long_ones_have_no_header() {
        let mut numbers = NameTable::default();
        assert_eq!(numbers.header(&["a"; FIELDS_MAX + 1]), None);
        assert_eq!(numbers.header(&[&"x".repeat(NAME_BYTES_MAX + 1)]), None);
        assert!(numbers.header(&[&"x".repeat(NAME_BYTES_MAX)]).is_some());
    }
}
