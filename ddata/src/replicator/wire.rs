//! What Replicators say to each other, and its bytes.
//!
//! Messages are MessagePack with short named fields, so that a field more or a field less decodes
//! on the release before and after. Deltas, states and contexts inside are hand-laid
//! ([`crate::encoded`]) and encoded once for all peers. Everything that arrives is foreign: it
//! decodes or it is counted and dropped.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use super::entries::Entries;
use super::epoch::{EpochId, EpochMessage};
use crate::causal::CausalContext;
use crate::encoded::{DecodeError, Reader, Writer, from_peer_within, list};
use crate::key::{Group, KeyName};
use crate::types::Term;

/// Bytes that many messages share.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Bytes(Arc<[u8]>);

impl Bytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B#{:016x}", self.0.len(), crate::encoded::hash_of(&self.0))
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Slice;
        impl<'de> Visitor<'de> for Slice {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(bytes.into())
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(bytes.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _seq: A) -> Result<Bytes, A::Error> {
                Err(A::Error::custom("a list where bytes are expected"))
            }
        }
        deserializer.deserialize_bytes(Slice)
    }
}

/// A causal context in its hand-laid form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContextBytes(Bytes);

impl ContextBytes {
    /// Encodes a context.
    #[must_use]
    pub fn new(context: &CausalContext) -> Self {
        let mut writer = Writer::new();
        context.encode(&mut writer);
        Self(writer.finish().into())
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`DecodeError`] if it is none.
    pub fn decode(&self) -> Result<CausalContext, DecodeError> {
        let mut reader = Reader::new(self.0.as_slice())?;
        let context = CausalContext::decode(&mut reader)?;
        reader.end()?;
        Ok(context)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Group and term of guarded data.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WireGuard {
    /// The group.
    #[serde(rename = "g")]
    pub group: Group,
    /// The term of a guarded write; absent in what merely spreads.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
}

/// What an entry brings.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Content {
    /// A delta, or a repair, which is one.
    #[serde(rename = "d")]
    Delta(Bytes),
    /// A full state.
    #[serde(rename = "f")]
    Full(Bytes),
    /// A context only: do you hold this?
    #[serde(rename = "p")]
    Probe(ContextBytes),
}

impl Content {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Delta(bytes) | Self::Full(bytes) => bytes.len(),
            Self::Probe(context) => context.len(),
        }
    }
}

/// Something of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the push that it belongs to.
    #[serde(rename = "i")]
    pub index: u32,
    /// The key.
    #[serde(rename = "k")]
    pub key: KeyName,
    /// The name of its shape.
    #[serde(rename = "s", deserialize_with = "crate::key::shared_text")]
    pub shape: Arc<str>,
    /// Whether it is guarded, and by what.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<WireGuard>,
    /// What it brings.
    #[serde(rename = "c")]
    pub content: Content,
}

impl Entry {
    /// About its size on the wire, in bytes.
    pub(super) fn len(&self) -> usize {
        let guard = self.guard.as_ref().map_or(0, |guard| 40 + guard.group.as_str().len());
        40 + guard + self.key.as_str().len() + self.shape.len() + self.content.len()
    }
}

/// A key with what its holder has seen of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The key.
    #[serde(rename = "k")]
    pub key: KeyName,
    /// What was seen.
    #[serde(rename = "c")]
    pub context: ContextBytes,
}

impl Held {
    pub(super) fn new(key: &KeyName, context: &CausalContext) -> Self {
        Self { key: key.clone(), context: ContextBytes::new(context) }
    }

    pub(super) fn len(&self) -> usize {
        8 + self.key.as_str().len() + self.context.len()
    }
}

/// Why an entry was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Nack {
    /// Rule R: this is what the replica has seen.
    #[serde(rename = "l")]
    Lack(ContextBytes),
    /// A higher term was promised.
    #[serde(rename = "f")]
    Fenced(Term),
    /// The same, of an entry that was taken here before: the write may be on a majority.
    #[serde(rename = "h")]
    FencedYetHeld(Term),
    /// The durable store failed.
    #[serde(rename = "s")]
    StoreFailed,
    /// The key holds another kind of data here.
    #[serde(rename = "w")]
    WrongType,
    /// It does not decode, or its type is unknown here.
    #[serde(rename = "u")]
    Undecodable,
    /// It is to be acknowledged as a write, and it does not carry the guard of this group, which
    /// the key belongs to.
    #[serde(rename = "g")]
    Guarded(Group),
}

/// Which entries of a push an acknowledgement speaks of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// All that the push had when it was sent whole.
    #[serde(rename = "a")]
    All,
    /// These.
    #[serde(rename = "o", deserialize_with = "list")]
    Only(Vec<u32>),
}

impl Scope {
    pub(super) fn contains(&self, index: u32) -> bool {
        match self {
            Self::All => true,
            Self::Only(some) => some.contains(&index),
        }
    }
}

/// The side of a comparison that answers from something other than its live state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum At {
    /// What it holds now.
    #[serde(rename = "l")]
    Live,
    /// The snapshot that it froze for this epoch.
    #[serde(rename = "z")]
    Sealed(EpochId),
    /// What it holds now, if it is synced for this epoch.
    #[serde(rename = "s")]
    Synced(EpochId),
}

/// A step of a comparison. The asker keeps the books, the answerer none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Query {
    /// Is your sum this? If not: your 256 sums.
    #[serde(rename = "r")]
    Root {
        /// The sum over everything.
        #[serde(rename = "s")]
        sum: u64,
        /// The seed it was made with.
        #[serde(rename = "k")]
        seed: u64,
    },
    /// The 256 sums below each of these.
    #[serde(rename = "m")]
    Leaves(Vec<u8>),
    /// The keys and contexts in the buckets of these ranges, both ends included.
    #[serde(rename = "k", deserialize_with = "list")]
    Keys(Vec<(u16, u16)>),
    /// What I lack of these.
    #[serde(rename = "w", deserialize_with = "list")]
    Want(Vec<Held>),
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// Equal.
    #[serde(rename = "e")]
    Same,
    /// 256 sums.
    #[serde(rename = "t", deserialize_with = "list")]
    Tops(Vec<u64>),
    /// 256 sums below each one asked for.
    #[serde(rename = "m", deserialize_with = "list")]
    Leaves(Vec<(u8, Vec<u64>)>),
    /// Keys with contexts; `upto` is the last bucket of which everything is said.
    #[serde(rename = "k")]
    Keys {
        /// What is held.
        #[serde(rename = "h", deserialize_with = "list")]
        held: Vec<Held>,
        /// The last bucket that is complete.
        #[serde(rename = "u")]
        upto: u16,
    },
    /// Repairs.
    #[serde(rename = "w")]
    Entries {
        /// How many of the wanted keys, from the first on, this answers; ask again for the rest.
        #[serde(rename = "d")]
        done: u32,
        /// What was lacking of them.
        #[serde(rename = "e", deserialize_with = "list")]
        entries: Vec<Entry>,
    },
    /// Not to be had here (any more).
    #[serde(rename = "n")]
    Gone,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// A push: changes, resent until acknowledged, or repairs of them. `push` 0 wants no answer.
    #[serde(rename = "w")]
    Write {
        /// Names the push, and in the lowest four bits which sending of it this is.
        #[serde(rename = "n")]
        push: u64,
        /// Whether this is all of it.
        #[serde(rename = "a")]
        whole: bool,
        /// What it brings.
        #[serde(rename = "e")]
        entries: Entries,
    },
    /// The answer: my contexts contain what was named, but for these.
    #[serde(rename = "a")]
    Ack {
        /// As sent.
        #[serde(rename = "n")]
        push: u64,
        /// Which entries were looked at.
        #[serde(rename = "o")]
        scope: Scope,
        /// Whether it counts: the answering replica is eligible in the message's epoch.
        #[serde(rename = "c")]
        counts: bool,
        /// What was not taken.
        #[serde(
            rename = "x",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        nacks: Vec<(u32, Nack)>,
    },
    /// A read. The context is what the reader holds.
    #[serde(rename = "r")]
    Read {
        /// Names the request.
        #[serde(rename = "n")]
        request: u64,
        /// Key and what the reader holds of it.
        #[serde(rename = "k")]
        held: Held,
    },
    /// The answer to a read.
    #[serde(rename = "v")]
    ReadAnswer {
        /// As asked.
        #[serde(rename = "n")]
        request: u64,
        /// Whether it counts.
        #[serde(rename = "c")]
        counts: bool,
        /// What this replica vouches for; absent if it is just what the reader holds.
        #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
        context: Option<ContextBytes>,
        /// What the reader lacks.
        #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
        entry: Option<Box<Entry>>, // on its own, as all that is long: messages are moved a lot
    },
    /// Promise to refuse guarded writes of this group below this term.
    #[serde(rename = "f")]
    Fence {
        /// Names the request.
        #[serde(rename = "n")]
        request: u64,
        /// The group.
        #[serde(rename = "g")]
        group: Group,
        /// The term.
        #[serde(rename = "t")]
        term: Term,
        /// What the asker holds of the group.
        #[serde(rename = "h", deserialize_with = "list")]
        held: Vec<Held>,
    },
    /// Promised, with what the asker lacks of the group.
    #[serde(rename = "p")]
    Promised {
        /// As asked.
        #[serde(rename = "n")]
        request: u64,
        /// Whether it counts.
        #[serde(rename = "c")]
        counts: bool,
        /// Keys of the group of which the asker holds something else, with what is held here.
        #[serde(rename = "h", deserialize_with = "list")]
        differing: Vec<Held>,
        /// What the asker lacks.
        #[serde(rename = "e", deserialize_with = "list")]
        entries: Vec<Entry>,
    },
    /// Not promised: this higher term was.
    #[serde(rename = "q")]
    NotPromised {
        /// As asked.
        #[serde(rename = "n")]
        request: u64,
        /// The term that stands.
        #[serde(rename = "t")]
        current: Term,
    },
    /// A step of a comparison.
    #[serde(rename = "c")]
    Compare {
        /// Names the question.
        #[serde(rename = "n")]
        session: u64,
        /// What it compares with.
        #[serde(rename = "a")]
        at: At,
        /// The question.
        #[serde(rename = "q")]
        query: Query,
    },
    /// The answer of a comparison.
    #[serde(rename = "d")]
    Compared {
        /// As asked.
        #[serde(rename = "n")]
        session: u64,
        /// As asked.
        #[serde(rename = "a")]
        at: At,
        /// The answer.
        #[serde(rename = "r")]
        answer: Box<Answer>,
        /// Terms promised: the asker of a sealed or synced state promises them too.
        #[serde(
            rename = "p",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        promises: Vec<(Group, Term)>,
    },
    /// A step of a configuration change.
    #[serde(rename = "e")]
    Epoch(EpochMessage),
    /// Last uses of keys that expire, as ages in milliseconds: told to the one who decides.
    #[serde(rename = "u", deserialize_with = "list")]
    Used(Vec<(KeyName, u64)>),
    /// The answer to `Used`, of the one who decides: when it knows these keys to have been used
    /// last, as ages. What it does not know is reported again.
    #[serde(rename = "k", deserialize_with = "list")]
    Known(Vec<(KeyName, u64)>),
    /// A piece of a message too long for a frame.
    #[serde(rename = "b")]
    Part {
        /// Names the message.
        #[serde(rename = "n")]
        transfer: u64,
        /// Its whole length.
        #[serde(rename = "t")]
        total: u32,
        /// Where this piece begins.
        #[serde(rename = "o")]
        offset: u32,
        /// The piece.
        #[serde(rename = "b")]
        bytes: Bytes,
    },
}

/// A message between two Replicators.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// The sender's installed configuration.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochId>,
    /// What it says.
    #[serde(rename = "m")]
    pub body: Body,
}

/// Bytes of memory that a message may take for each of its bytes. Contexts of keys are B-trees, and
/// most hold one replica: 10 bytes of input that take 300 of memory.
pub const MESSAGE_FACTOR: usize = 64;

/// MessagePack's empty list.
const NO_ENTRIES: u8 = 0x90;

/// Stands for a length that is found out by encoding.
const MEASURED: usize = 1 << 30;

impl Nack {
    fn len(&self) -> usize {
        64 + match self {
            Self::Lack(context) => context.len(),
            Self::Guarded(group) => group.as_str().len(),
            _ => 0,
        }
    }
}

impl Body {
    /// About its size on the wire, in bytes; never far below it.
    pub(super) fn len(&self) -> usize {
        let entries = |entries: &[Entry]| entries.iter().map(Entry::len).sum::<usize>();
        let held = |held: &[Held]| held.iter().map(Held::len).sum::<usize>();
        64 + match self {
            Self::Write { entries: all, .. } => entries(all),
            Self::Ack { nacks, scope, .. } => {
                let indices = if let Scope::Only(indices) = scope { indices.len() } else { 0 };
                indices * 5 + nacks.iter().map(|(_, nack)| nack.len()).sum::<usize>()
            }
            Self::Read { held, .. } => held.len(),
            Self::ReadAnswer { context, entry, .. } => {
                context.as_ref().map_or(0, ContextBytes::len)
                    + entry.as_deref().map_or(0, Entry::len)
            }
            Self::Promised { differing, entries: all, .. } => held(differing) + entries(all),
            Self::Fence { held: all, .. } | Self::Compare { query: Query::Want(all), .. } => {
                held(all)
            }
            Self::Compare { .. } | Self::NotPromised { .. } => 1_024,
            Self::Compared { answer, promises, .. } => {
                promises.len() * 64
                    + match &**answer {
                        Answer::Same | Answer::Gone => 0,
                        Answer::Tops(_) => 256 * 9,
                        Answer::Leaves(tops) => tops.len() * 256 * 9,
                        Answer::Keys { held: all, .. } => held(all),
                        Answer::Entries { entries: all, .. } => entries(all),
                    }
            }
            Self::Epoch(_) => MEASURED, // rare, and as long as its list of members
            Self::Used(keys) | Self::Known(keys) => {
                keys.iter().map(|(key, _)| key.as_str().len() + 16).sum()
            }
            Self::Part { bytes, .. } => bytes.len(),
        }
    }
}

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Body::Write { push, whole, entries } = &self.body else { return encode(self) };
        // The same bytes as from the one pass: the entries come last, and a list of none is a byte.
        let none = Body::Write { push: *push, whole: *whole, entries: Entries::default() };
        let mut bytes = encode(&Self { epoch: self.epoch, body: none });
        assert_eq!(bytes.pop(), Some(NO_ENTRIES), "a message ends with its entries");
        bytes.extend_from_slice(entries.encoded());
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`DecodeError::Message`] if it is no message of this protocol. Never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::quick::write(bytes).map_or_else(|| decode(bytes), Ok)
    }
}

pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    value.serialize(&mut serializer).expect("messages hold nothing that MessagePack can't say");
    bytes
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    from_peer_within(bytes, MESSAGE_FACTOR)
        .map_err(|error| DecodeError::Message(error.source.to_string()))
}
