//! Encodings: a user's value as MessagePack, and the binary layout of deltas, contexts and states.
//!
//! Every layout starts with a version byte and a table of its replicas, so that a dot takes two or
//! three bytes. A `LayoutReader` never allocates memory for a length that the input announces and
//! never panics, because the input comes from a peer. Values inside are MessagePack with named
//! fields ([`Encoded`]), because the positional form can't be decoded after a field was added.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::id::ReplicaId;

mod budget;

pub use budget::{
    BUDGET_BYTES, BUDGET_FACTOR, VERBATIM, checked_list, converted_list, entry_list, from_foreign,
    list, packed_list, shared_list,
};

/// Version of the layout, its first byte.
pub const VERSION: u8 = 1;

/// Maximum nesting of a MessagePack value. rmp-serde's own default of 1,024 levels lets 2 KB of
/// input overflow a 2 MiB stack.
pub const NESTING_MAX: usize = 64;

/// Maximum length that [`Encoded`] stores inline.
const INLINE_BYTES_MAX: usize = 22;

/// A user's value in encoded form. Sets, maps and registers store and compare this form.
///
/// Equal values must have equal encodings; elements that contain a `HashMap` do not. Up to 22 bytes
/// are stored inline and longer ones are shared, so a clone copies little.
#[derive(Clone)]
pub struct Encoded(EncodedForm);

#[derive(Clone)]
enum EncodedForm {
    Inline { len: u8, bytes: [u8; INLINE_BYTES_MAX] },
    Shared(Arc<[u8]>),
}

/// A value can't be encoded.
#[derive(Debug, thiserror::Error)]
#[error("the value does not encode as MessagePack; nothing was changed")]
pub struct EncodeError(#[from] rmp_serde::encode::Error);

/// A value can't be decoded as the requested type: another version or another type wrote it.
#[derive(Debug, thiserror::Error)]
#[error("{len} bytes do not decode as `{expected}`: another version, or another type, wrote them")]
pub struct ValueError {
    /// Length of the encoded value, in bytes.
    pub len: usize,
    /// Name of the requested type.
    pub expected: &'static str,
    /// The error of the MessagePack decoder.
    pub source: rmp_serde::decode::Error,
}

impl Encoded {
    /// Encodes a value as MessagePack with named fields.
    ///
    /// # Errors
    /// [`EncodeError`] if the value's `Serialize` fails.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self, EncodeError> {
        let mut bytes = Vec::with_capacity(32);
        value.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map())?;
        Ok(Self::from_bytes(&bytes))
    }

    /// Wraps encoded bytes without checking them.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= INLINE_BYTES_MAX => {
                let mut inline = [0; INLINE_BYTES_MAX];
                inline[..bytes.len()].copy_from_slice(bytes);
                Self(EncodedForm::Inline { len, bytes: inline })
            }
            _ => Self(EncodedForm::Shared(bytes.into())),
        }
    }

    /// Returns the encoded bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            EncodedForm::Inline { len, bytes } => &bytes[..usize::from(*len)],
            EncodedForm::Shared(bytes) => bytes,
        }
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// [`ValueError`] if the bytes are not a `T`, or nest deeper than [`NESTING_MAX`].
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        from_msgpack(self.as_bytes())
    }
}

/// Decodes a MessagePack value with at most [`NESTING_MAX`] levels. The bytes must end with it.
/// Does not limit the memory that `T` takes.
///
/// # Errors
/// [`ValueError`] if the bytes are not a `T` or nest deeper, which comes first, or if they continue
/// after the value.
pub fn from_msgpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(bytes);
    decoder.set_max_depth(NESTING_MAX);
    let len = bytes.len();
    let whole = |value| match value_len(bytes) {
        Some(end) if end == len => Ok(value),
        _ => Err(rmp_serde::decode::Error::Syntax("bytes are left over at the end".to_owned())),
    };
    T::deserialize(&mut decoder).and_then(whole).map_err(|source| ValueError {
        len,
        expected: std::any::type_name::<T>(),
        source,
    })
}

/// Decodes a MessagePack value from another node or a tool, like [`from_msgpack`], within the
/// memory budget of [`from_foreign`]. Not for users' values, whose types decide their memory.
///
/// # Errors
/// Those of [`from_msgpack`], and [`ValueError`] if the value exceeds the memory budget.
pub fn from_peer<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    let len = bytes.len();
    let whole = |value| match value_len(bytes) {
        Some(end) if end == len => Ok(value),
        _ => Err(rmp_serde::decode::Error::Syntax("bytes are left over at the end".to_owned())),
    };
    from_foreign(bytes, NESTING_MAX).and_then(whole).map_err(|source| ValueError {
        len,
        expected: std::any::type_name::<T>(),
        source,
    })
}

/// Returns the length of the MessagePack value at the start of `bytes`, which the decoder does not
/// report. `None` if `bytes` end within the value or are empty. Walks lists and maps without
/// recursion, and checks neither the content nor the nesting. An unused marker counts as a value of
/// one byte.
///
/// Source: the MessagePack specification, *Formats*.
fn value_len(bytes: &[u8]) -> Option<usize> {
    if let Some(len) = bytes.first().and_then(|marker| number_len(*marker)) {
        return (len <= bytes.len()).then_some(len); // fast path: most elements and keys are numbers
    }
    let (mut at, mut values) = (0_usize, 1_u64);
    while values > 0 {
        let marker = *bytes.get(at)?;
        at += 1;
        let mut number = |width: usize| {
            let digits = bytes.get(at..at.checked_add(width)?)?;
            at += width;
            Some(digits.iter().fold(0_u64, |number, digit| number << 8 | u64::from(*digit)))
        };
        let (skip, inside) = match marker {
            0x80..=0x8f => (0, 2 * u64::from(marker & 0x0f)),
            0x90..=0x9f => (0, u64::from(marker & 0x0f)),
            0xa0..=0xbf => (u64::from(marker & 0x1f), 0),
            0xc4 | 0xd9 => (number(1)?, 0),
            0xc5 | 0xda => (number(2)?, 0),
            0xc6 | 0xdb => (number(4)?, 0),
            0xc7 => (number(1)? + 1, 0),
            0xc8 => (number(2)? + 1, 0),
            0xc9 => (number(4)? + 1, 0),
            0xcc | 0xd0 => (1, 0),
            0xcd | 0xd1 | 0xd4 => (2, 0),
            0xd5 => (3, 0),
            0xca | 0xce | 0xd2 => (4, 0),
            0xd6 => (5, 0),
            0xcb | 0xcf | 0xd3 => (8, 0),
            0xd7 => (9, 0),
            0xd8 => (17, 0),
            0xdc => (0, number(2)?),
            0xdd => (0, number(4)?),
            0xde => (0, 2 * number(2)?),
            0xdf => (0, 2 * number(4)?),
            _ => (0, 0), // small integers, nil, booleans
        };
        at = at.checked_add(usize::try_from(skip).ok()?)?;
        values = values - 1 + inside;
    }
    (at <= bytes.len()).then_some(at)
}

/// Returns the length, marker included, of a number, a boolean or nil with this marker; `None` for
/// every other marker.
const fn number_len(marker: u8) -> Option<usize> {
    Some(match marker {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
        0xcc | 0xd0 => 2,
        0xcd | 0xd1 => 3,
        0xca | 0xce | 0xd2 => 5,
        0xcb | 0xcf | 0xd3 => 9,
        _ => return None,
    })
}

/// Formats the first 24 bytes in hexadecimal; the rest is left out without a sign.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_bytes().iter().take(24) {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Compares the encoded bytes, not the values.
impl PartialEq for Encoded {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Encoded {}

impl PartialOrd for Encoded {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Orders by the encoded bytes, which is neither the order of the values nor that of stored maps.
impl Ord for Encoded {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Encoded {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

/// The hash that orders the keys of a stored map or set. It is the same on every node.
#[must_use]
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Why bytes from a peer or a disk are invalid. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end within a value, or a length exceeds the remaining bytes. Also: a number is too
    /// large for its type, a replica is not in the table, or a delta has no dots.
    #[error("the bytes end too early, or a length in them exceeds them")]
    Truncated,
    /// Bytes follow the value.
    #[error("{left} bytes are left over at the end")]
    Trailing {
        /// Number of bytes that follow.
        left: usize,
    },
    /// The version byte is not [`VERSION`]: a later release wrote the value.
    #[error("layout version {found} is not known here (this release writes {VERSION}): upgrade")]
    Version {
        /// The version byte that was found.
        found: u8,
    },
    /// A dot has the counter 0 or one above the highest.
    #[error("a dot with an impossible counter")]
    ImpossibleDot,
    /// Replicas, runs, dots or keys are unsorted or duplicated, adjacent runs are not joined, a
    /// number is padded, or a state contains empty places. No release writes this.
    #[error("not in canonical form")]
    NotCanonical,
    /// An entry's dot is not in the context, or the same delta overwrites it.
    #[error("an entry's dot lies outside its context")]
    DotOutsideContext,
    /// A tag that no release writes.
    #[error("unknown tag {found} for {what}")]
    Tag {
        /// The part with the tag.
        what: &'static str,
        /// The tag that was found.
        found: u8,
    },
    /// A part exceeds its limit.
    #[error("more than {limit} {what}")]
    TooLong {
        /// The part that is too long.
        what: &'static str,
        /// The maximum that is allowed.
        limit: usize,
    },
    /// An unknown type name.
    #[error("type `{0}` is not known here: register it, or upgrade")]
    UnknownType(String),
    /// The bytes are not a MessagePack message of the expected kind.
    #[error("not a message of this protocol: {0}")]
    Message(String),
}

/// Writes the binary layout: integers as LEB128, replicas as indices into a table, which lists them
/// in the order of their first use.
#[derive(Debug, Default)]
pub(crate) struct LayoutWriter {
    table: SmallVec<[ReplicaId; 8]>,
    sorted: SmallVec<[(ReplicaId, usize); 8]>, // the table sorted, with indices into it
    next: usize, // index into `sorted` of the expected replica: they mostly come in order
    body: Vec<u8>,
}

impl LayoutWriter {
    pub(crate) fn new() -> Self {
        Self { body: Vec::with_capacity(64), ..Self::default() }
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.body.push(byte);
    }

    pub(crate) fn varint(&mut self, value: u64) {
        put_varint(&mut self.body, value);
    }

    pub(crate) fn length(&mut self, value: usize) {
        self.varint(value as u64);
    }

    /// Writes 8 bytes, the lowest first.
    pub(crate) fn fixed(&mut self, value: u64) {
        self.body.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a number as LEB128, in 1 to 19 bytes.
    pub(crate) fn wide(&mut self, mut value: u128) {
        while value >= 0x80 {
            self.body.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.body.push(value as u8);
    }

    /// Writes the length, then the bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.body.extend_from_slice(bytes);
    }

    /// Writes the index of a replica in the table. Adds it to the table if it is new.
    pub(crate) fn replica(&mut self, replica: ReplicaId) {
        let index = self.intern(replica);
        self.length(index);
    }

    /// Returns the index of a replica in the table, and adds it at the end if it is new. Needs no
    /// search while replicas come in ascending order.
    fn intern(&mut self, replica: ReplicaId) -> usize {
        match self.sorted.get(self.next) {
            Some((known, at)) if *known == replica => {
                self.next += 1;
                return *at;
            }
            None if self.sorted.last().is_none_or(|(last, _)| *last < replica) => {
                let at = self.table.len();
                self.sorted.push((replica, at));
                self.table.push(replica);
                self.next = self.sorted.len();
                return at;
            }
            _ => {}
        }
        let found = self.sorted.binary_search_by_key(&replica, |(known, _)| *known);
        let at = found.unwrap_or_else(|at| {
            self.sorted.insert(at, (replica, self.table.len()));
            self.table.push(replica);
            at
        });
        self.next = at + 1;
        self.sorted[at].1
    }

    /// Returns version, length of the table, table and body as one buffer.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.body.len() + self.table.len() * 8 + 4);
        bytes.push(VERSION);
        put_varint(&mut bytes, self.table.len() as u64);
        for replica in &self.table {
            bytes.extend_from_slice(&replica.get().to_le_bytes());
        }
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// Appends a number as LEB128, in 1 to 10 bytes.
fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads the layout of a [`LayoutWriter`], possibly from a malicious peer.
///
/// Each method fails with [`DecodeError::Truncated`] if the bytes end too early, and with
/// [`DecodeError::NotCanonical`] if a number, a length or an index is padded. A failed read may
/// have consumed bytes, so the reader is useless afterwards.
#[derive(Debug)]
pub(crate) struct LayoutReader<'a> {
    table: &'a [[u8; 8]],
    left: &'a [u8],
}

impl<'a> LayoutReader<'a> {
    /// Reads the version and the table of replicas, which may repeat replicas or list unused ones.
    /// Fails for every version except [`VERSION`], before the table is read.
    pub(crate) fn new(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Self { table: &[], left: bytes };
        let found = reader.byte()?;
        if found != VERSION {
            return Err(DecodeError::Version { found });
        }
        let count = reader.length(8)?;
        let (table, left) =
            reader.left.split_at_checked(count * 8).ok_or(DecodeError::Truncated)?;
        Ok(Self { table: table.as_chunks().0, left })
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let (&first, rest) = self.left.split_first().ok_or(DecodeError::Truncated)?;
        self.left = rest;
        Ok(first)
    }

    /// Reads a number in LEB128. Above 64 bits it fails with `Truncated`, in a longer form than
    /// needed with [`DecodeError::NotCanonical`].
    pub(crate) fn varint(&mut self) -> Result<u64, DecodeError> {
        if let Some((&byte, left)) = self.left.split_first()
            && byte < 0x80
        {
            self.left = left;
            return Ok(byte.into());
        }
        u64::try_from(self.wide()?).map_err(|_| DecodeError::Truncated)
    }

    /// Reads a number of up to 128 bits, with the errors of [`varint`](Self::varint).
    pub(crate) fn wide(&mut self) -> Result<u128, DecodeError> {
        let mut value = 0_u128;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            let part = u128::from(byte & 0x7f);
            if (part << shift) >> shift != part {
                return Err(DecodeError::Truncated);
            }
            value |= part << shift;
            match byte {
                0 if shift > 0 => return Err(DecodeError::NotCanonical), // padding
                0..0x80 => return Ok(value),
                _ => {}
            }
        }
        Err(DecodeError::Truncated)
    }

    /// Reads a count of items that take at least `each` bytes. Fails with `Truncated` if they
    /// exceed the remaining bytes. If `each` is 0, the count is not limited.
    pub(crate) fn length(&mut self, each: usize) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        if count.checked_mul(each).is_none_or(|bytes| bytes > self.left.len()) {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// Reads 8 bytes, the lowest first.
    pub(crate) fn fixed(&mut self) -> Result<u64, DecodeError> {
        let (first, rest) = self.left.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.left = rest;
        Ok(u64::from_le_bytes(*first))
    }

    /// Reads a length and returns that many bytes of the input, without a copy.
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.length(1)?;
        let (first, rest) = self.left.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.left = rest;
        Ok(first)
    }

    /// Reads the index of a replica. Fails with `Truncated` if the table is shorter.
    pub(crate) fn replica(&mut self) -> Result<ReplicaId, DecodeError> {
        let at = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        let replica = self.table.get(at).ok_or(DecodeError::Truncated)?;
        Ok(ReplicaId::new(u64::from_le_bytes(*replica)))
    }

    /// Fails with [`DecodeError::Trailing`] if bytes are left.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }
}
