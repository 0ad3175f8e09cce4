//! The messages between Replicators and their encoding (docs/protocol/replication.md#messages).
//!
//! Messages are MessagePack maps with short field names, so that the previous and the next release
//! can decode them although a field was added or removed. Deltas, states and contexts inside have a
//! binary form of their own ([`crate::encoded`]) and are encoded once for all peers. Received bytes
//! are not trusted: a message that does not decode is counted and dropped.

use std::fmt;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use super::entries::Entries;
use super::epoch::{EpochId, EpochMessage};
use crate::causal::CausalContext;
use crate::encoded::{DecodeError, LayoutReader, LayoutWriter, converted_list, from_peer, list};
use crate::key::{Group, KeyName};
use crate::types::Term;

/// Immutable bytes that many messages share. Cloning copies a pointer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SharedBytes(Arc<[u8]>);

impl SharedBytes {
    /// Returns the bytes as a slice.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

/// Shows the number of bytes and a hash of them, never the bytes.
impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B#{:016x}", self.0.len(), crate::encoded::hash_of(&self.0))
    }
}

impl Serialize for SharedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

/// Accepts a byte string only: a list of numbers or a text is an error.
impl<'de> Deserialize<'de> for SharedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Slice;
        impl<'de> Visitor<'de> for Slice {
            type Value = SharedBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<SharedBytes, E> {
                Ok(bytes.into())
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<SharedBytes, E> {
                Ok(bytes.into())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _seq: A) -> Result<SharedBytes, A::Error> {
                Err(A::Error::custom("a list where bytes are expected"))
            }
        }
        deserializer.deserialize_bytes(Slice)
    }
}

/// A causal context in its binary form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ContextBytes(SharedBytes);

impl ContextBytes {
    /// Encodes a causal context.
    #[must_use]
    pub fn new(context: &CausalContext) -> Self {
        let mut writer = LayoutWriter::new();
        context.encode(&mut writer);
        Self(writer.finish().into())
    }

    /// Decodes the causal context.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a context in canonical form, or bytes are left over at
    /// the end. Only the table of replicas may have another order, and replicas that are not used.
    pub fn decode(&self) -> Result<CausalContext, DecodeError> {
        let mut reader = LayoutReader::new(self.0.as_slice())?;
        let context = CausalContext::decode(&mut reader)?;
        reader.end()?;
        Ok(context)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The guard of an entry: group and, for a guarded write, term.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WireGuard {
    /// The guarded group that the key belongs to.
    #[serde(rename = "g")]
    pub group: Group,
    /// The term of a guarded write. Absent in entries that merely spread guarded data, which every
    /// replica merges whatever it has promised.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub term: Option<Term>,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EntryContent {
    /// A delta of a change, or a repair in the form of a delta.
    #[serde(rename = "d")]
    Delta(SharedBytes),
    /// The full state of the key.
    #[serde(rename = "f")]
    Full(SharedBytes),
    /// A context without data. It asks whether the receiver holds all of it.
    #[serde(rename = "p")]
    Probe(ContextBytes),
}

impl EntryContent {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Delta(bytes) | Self::Full(bytes) => bytes.len(),
            Self::Probe(context) => context.len(),
        }
    }
}

/// One key's part of a message: its name, shape, guard and content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// The index of the entry in its push. Acknowledgements name it.
    #[serde(rename = "i")]
    pub index: u32,
    /// The name of the key.
    #[serde(rename = "k")]
    pub key: KeyName,
    /// The name of its shape, for example `or-set`.
    #[serde(rename = "s", deserialize_with = "crate::key::shared_text")]
    pub shape: Arc<str>,
    /// The guard of the key, if it is known to belong to a guarded group.
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<WireGuard>,
    /// The delta, state or probe.
    #[serde(rename = "c")]
    pub content: EntryContent,
}

impl Entry {
    /// Estimates the encoded size in bytes.
    pub(super) fn len(&self) -> usize {
        let guard = self.guard.as_ref().map_or(0, |guard| 40 + guard.group.as_str().len());
        40 + guard + self.key.as_str().len() + self.shape.len() + self.content.len()
    }
}

/// A key with the context that a replica has of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyContext {
    /// The name of the key.
    #[serde(rename = "k")]
    pub key: KeyName,
    /// The dots that the replica has seen of the key.
    #[serde(rename = "c")]
    pub context: ContextBytes,
}

impl KeyContext {
    pub(super) fn new(key: &KeyName, context: &CausalContext) -> Self {
        Self { key: key.clone(), context: ContextBytes::new(context) }
    }

    /// Estimates the encoded size in bytes.
    pub(super) fn len(&self) -> usize {
        8 + self.key.as_str().len() + self.context.len()
    }
}

/// Why a replica refused an entry. The sender sends it again only after `Lack`, as a repair, and
/// after `Guarded` if a read writes it back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Nack {
    /// The entry builds on dots that the replica has not seen. The context is what it has seen; the
    /// sender answers with a repair (docs/protocol/replication.md#causal-delta-rule).
    #[serde(rename = "l")]
    Lack(ContextBytes),
    /// The replica has promised this higher term.
    #[serde(rename = "f")]
    Fenced(Term),
    /// As `Fenced`, but the replica had accepted the entry before, so the write may be on a
    /// majority.
    #[serde(rename = "h")]
    FencedYetHeld(Term),
    /// The durable store of the replica failed.
    #[serde(rename = "s")]
    StoreFailed,
    /// The replica holds data of another type under the key.
    #[serde(rename = "w")]
    WrongType,
    /// The entry does not decode, or its type is not registered there.
    #[serde(rename = "u")]
    Undecodable,
    /// The key belongs to this guarded group, and the entry of an awaited write does not carry its
    /// guard (docs/protocol/replication.md#unguarded-writes-are-refused).
    #[serde(rename = "g")]
    Guarded(Group),
}

/// The entries of a push that an acknowledgement covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AckScope {
    /// All entries of the push, which was sent whole.
    #[serde(rename = "a")]
    All,
    /// Only the entries with these indices.
    #[serde(rename = "o", deserialize_with = "list")]
    Only(Vec<u32>),
}

impl AckScope {
    /// Whether the acknowledgement covers this entry. `All` covers every index, even one that the
    /// push does not have.
    pub(super) fn contains(&self, index: u32) -> bool {
        match self {
            Self::All => true,
            Self::Only(some) => some.contains(&index),
        }
    }
}

/// The state from which the answering side of a comparison answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum At {
    /// The state that it holds now.
    #[serde(rename = "l")]
    Live,
    /// The snapshot that it froze when it sealed this epoch.
    #[serde(rename = "z")]
    Sealed(EpochId),
    /// Its present state, provided that it is synced for this epoch.
    #[serde(rename = "s")]
    Synced(EpochId),
}

/// A question of a comparison. Only the asker keeps state; the answerer keeps none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Query {
    /// Asks whether the root sums are equal and, if not, for the 256 tops.
    #[serde(rename = "r")]
    Root {
        /// The asker's sum over all keys.
        #[serde(rename = "s")]
        sum: u64,
        /// The seed under which the sum was computed.
        #[serde(rename = "k")]
        seed: u64,
    },
    /// Asks for the 256 leaves under each of these tops.
    #[serde(rename = "m")]
    Leaves(Vec<u8>),
    /// Asks for the keys and contexts in the buckets of these ranges, both ends included.
    #[serde(rename = "k", deserialize_with = "list")]
    Keys(Vec<(u16, u16)>),
    /// Asks for repairs of these keys; each has the context that the asker holds.
    #[serde(rename = "w", deserialize_with = "list")]
    Want(Vec<KeyContext>),
}

/// The answer to a [`Query`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum QueryAnswer {
    /// The sums are equal.
    #[serde(rename = "e")]
    Same,
    /// The 256 tops of the answerer.
    #[serde(rename = "t", deserialize_with = "list")]
    Tops(Vec<u64>),
    /// The 256 leaves under each top that was asked for.
    #[serde(rename = "m", deserialize_with = "leaf_list")]
    Leaves(Vec<(u8, Vec<u64>)>),
    /// Keys with contexts, possibly not of all buckets that were asked for.
    #[serde(rename = "k")]
    Keys {
        /// The keys that the answerer holds, with their contexts.
        #[serde(rename = "h", deserialize_with = "list")]
        held: Vec<KeyContext>,
        /// The last bucket whose keys are complete in `held`.
        #[serde(rename = "u")]
        upto: u16,
    },
    /// Repairs of the keys that were asked for.
    #[serde(rename = "w")]
    Entries {
        /// How many of the wanted keys, from the first on, are answered; ask again for the rest.
        #[serde(rename = "d")]
        done: u32,
        /// The repairs of these keys.
        #[serde(rename = "e", deserialize_with = "list")]
        entries: Vec<Entry>,
    },
    /// The state that was asked for does not exist here, or no longer.
    #[serde(rename = "n")]
    Gone,
}

/// A top with its leaves, as it is decoded: the list of leaves is allocated at its length.
#[derive(Deserialize)]
struct LeafRow(u8, #[serde(deserialize_with = "list")] Vec<u64>);

impl From<LeafRow> for (u8, Vec<u64>) {
    fn from(LeafRow(top, leaves): LeafRow) -> Self {
        (top, leaves)
    }
}

fn leaf_list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(u8, Vec<u64>)>, D::Error> {
    converted_list::<LeafRow, _, _>(from)
}

/// The body of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Body {
    /// A push: changes, which are resent until they are acknowledged, or repairs and probes. A push
    /// number of 0 asks for no answer.
    #[serde(rename = "w")]
    Write {
        /// The push number times 16, plus the number of this sending (at most 15).
        #[serde(rename = "n")]
        push: u64,
        /// Whether the message contains all entries of the push.
        #[serde(rename = "a")]
        whole: bool,
        /// The entries of the push, or some of them.
        #[serde(rename = "e")]
        entries: Entries,
    },
    /// The answer to `Write`: the sender's contexts contain the entries in `scope`, except for
    /// those in `nacks`.
    #[serde(rename = "a")]
    Ack {
        /// The number from the `Write`.
        #[serde(rename = "n")]
        push: u64,
        /// The entries that were processed.
        #[serde(rename = "o")]
        scope: AckScope,
        /// Whether it counts: the answering replica is eligible in the message's epoch.
        #[serde(rename = "c")]
        counts: bool,
        /// The refused entries, by index, each with the reason.
        #[serde(
            rename = "x",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        nacks: Vec<(u32, Nack)>,
    },
    /// A read above `Local`.
    #[serde(rename = "r")]
    Read {
        /// The id of the request.
        #[serde(rename = "n")]
        request: u64,
        /// The key and the context that the reader holds of it.
        #[serde(rename = "k")]
        held: KeyContext,
    },
    /// The answer to a read.
    #[serde(rename = "v")]
    ReadAnswer {
        /// The id of the request, from the question.
        #[serde(rename = "n")]
        request: u64,
        /// Whether it counts: the answering replica is eligible in the message's epoch.
        #[serde(rename = "c")]
        counts: bool,
        /// The context that the answerer vouches for; absent if it equals the reader's.
        #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
        context: Option<ContextBytes>,
        /// A repair of what the reader lacks.
        #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
        entry: Option<Box<Entry>>, // boxed to keep messages small: they are moved often
    },
    /// Asks for the promise to refuse guarded writes of this group below this term.
    #[serde(rename = "f")]
    Fence {
        /// The id of the request.
        #[serde(rename = "n")]
        request: u64,
        /// The guarded group whose term is taken.
        #[serde(rename = "g")]
        group: Group,
        /// The term that the asker takes.
        #[serde(rename = "t")]
        term: Term,
        /// The keys of the group that the asker holds, with their contexts.
        #[serde(rename = "h", deserialize_with = "list")]
        held: Vec<KeyContext>,
    },
    /// The promise, with what the asker lacks of the group.
    #[serde(rename = "p")]
    Promised {
        /// The id of the request, from the question.
        #[serde(rename = "n")]
        request: u64,
        /// Whether it counts: the answering replica is eligible in the message's epoch.
        #[serde(rename = "c")]
        counts: bool,
        /// Keys of the group whose contexts differ from the asker's, with the contexts held here.
        #[serde(rename = "h", deserialize_with = "list")]
        differing: Vec<KeyContext>,
        /// Repairs of what the asker lacks.
        #[serde(rename = "e", deserialize_with = "list")]
        entries: Vec<Entry>,
    },
    /// The refusal of a promise, because a higher term was promised before.
    #[serde(rename = "q")]
    NotPromised {
        /// The id of the request, from the question.
        #[serde(rename = "n")]
        request: u64,
        /// The highest term that the answerer has promised.
        #[serde(rename = "t")]
        current: Term,
    },
    /// A question of a comparison.
    #[serde(rename = "c")]
    Compare {
        /// The number of the question. Each question of a comparison has its own.
        #[serde(rename = "n")]
        session: u64,
        /// The state from which the receiver must answer.
        #[serde(rename = "a")]
        at: At,
        /// The part of the state that is asked for.
        #[serde(rename = "q")]
        query: Query,
    },
    /// The answer to `Compare`.
    #[serde(rename = "d")]
    Compared {
        /// The number of the question.
        #[serde(rename = "n")]
        session: u64,
        /// The state from which it is answered, as asked.
        #[serde(rename = "a")]
        at: At,
        /// The part of the state that was asked for.
        #[serde(rename = "r")]
        answer: Box<QueryAnswer>,
        /// The answerer's promised terms. The asker of a sealed or synced state promises them, too.
        #[serde(
            rename = "p",
            default,
            skip_serializing_if = "Vec::is_empty",
            deserialize_with = "list"
        )]
        promises: Vec<(Group, Term)>,
    },
    /// A message of the configuration machine.
    #[serde(rename = "e")]
    Epoch(EpochMessage),
    /// Reports to the owner of expiring keys how long ago the sender used them, in milliseconds.
    #[serde(rename = "u", deserialize_with = "list")]
    Used(Vec<(KeyName, u64)>),
    /// The owner's answer to `Used`: the ages of the latest uses that it knows. Later uses are
    /// reported again.
    #[serde(rename = "k", deserialize_with = "list")]
    Known(Vec<(KeyName, u64)>),
    /// A piece of a message that is longer than a frame.
    #[serde(rename = "b")]
    Part {
        /// The number of the cut message, unique per sender.
        #[serde(rename = "n")]
        transfer: u64,
        /// The length of the whole message in bytes.
        #[serde(rename = "t")]
        total: u32,
        /// The offset of this piece in the message.
        #[serde(rename = "o")]
        offset: u32,
        /// The bytes of the piece.
        #[serde(rename = "b")]
        bytes: SharedBytes,
    },
}

/// A message between two Replicators.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReplicatorMessage {
    /// The sender's installed configuration.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochId>,
    /// The content of the message.
    #[serde(rename = "m")]
    pub body: Body,
}

/// Maximum number of entries in a message, also with a larger `max_delta_elements`. The memory
/// budget of the decoder has room for so many of the smallest entries, and for refusals of all.
pub const ENTRIES_MAX: usize = 2_000;

/// The MessagePack encoding of an empty list.
const NO_ENTRIES: u8 = 0x90;

/// A length above every frame, for bodies whose real length must be measured by encoding.
const MEASURED: usize = 1 << 30;

impl Nack {
    /// Estimates the encoded size in bytes, with its index.
    fn len(&self) -> usize {
        64 + match self {
            Self::Lack(context) => context.len(),
            Self::Guarded(group) => group.as_str().len(),
            _ => 0,
        }
    }
}

impl Body {
    /// Estimates the encoded size in bytes, so that most messages need not be encoded to know that
    /// they fit a frame. The estimate is at most slightly below the real size. A message of the
    /// configuration machine counts as longer than any frame, so that its real length is measured.
    pub(super) fn len(&self) -> usize {
        let entries = |entries: &[Entry]| entries.iter().map(Entry::len).sum::<usize>();
        let held = |held: &[KeyContext]| held.iter().map(|one| one.len() + 8).sum::<usize>();
        64 + match self {
            Self::Write { entries: all, .. } => entries(all),
            Self::Ack { nacks, scope, .. } => {
                let indices = if let AckScope::Only(indices) = scope { indices.len() } else { 0 };
                indices * 5 + nacks.iter().map(|(_, nack)| nack.len()).sum::<usize>()
            }
            Self::Read { held, .. } => held.len(),
            Self::ReadAnswer { context, entry, .. } => {
                context.as_ref().map_or(0, ContextBytes::len)
                    + entry.as_deref().map_or(0, Entry::len)
            }
            Self::Promised { differing, entries: all, .. } => held(differing) + entries(all),
            Self::Fence { group, held: all, .. } => 32 + group.as_str().len() + held(all),
            Self::Compare { query: Query::Want(all), .. } => held(all),
            Self::Compare { .. } | Self::NotPromised { .. } => 1_024,
            Self::Compared { answer, promises, .. } => {
                promises.iter().map(|(group, _)| 32 + group.as_str().len()).sum::<usize>()
                    + match &**answer {
                        QueryAnswer::Same | QueryAnswer::Gone => 0,
                        QueryAnswer::Tops(_) => 256 * 9,
                        QueryAnswer::Leaves(tops) => tops.len() * (256 * 9 + 8),
                        QueryAnswer::Keys { held: all, .. } => held(all),
                        QueryAnswer::Entries { entries: all, .. } => entries(all),
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

impl ReplicatorMessage {
    /// Encodes the message as MessagePack. The entries of a `Write` are encoded at the first call
    /// only, for all messages that share them. No length is refused; the caller cuts long messages.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Body::Write { push, whole, entries } = &self.body else { return encode(self) };
        // Appends the cached encoding of the entries. The bytes equal those of encoding the whole
        // message, because the entries come last and an empty list is one byte.
        let none = Body::Write { push: *push, whole: *whole, entries: Entries::default() };
        let mut bytes = encode(&Self { epoch: self.epoch, body: none });
        assert_eq!(bytes.pop(), Some(NO_ENTRIES), "entries must be the last field of a write");
        bytes.extend_from_slice(entries.encoded());
        bytes
    }

    /// Decodes a message that [`encode`](Self::encode) encoded, also one of the previous or the
    /// next release: unknown fields are ignored, an unknown kind of message is an error. The
    /// contexts, deltas and states inside are not decoded.
    ///
    /// # Errors
    /// [`DecodeError::Message`] if the bytes are not a message of this protocol, bytes are left
    /// over at the end, or decoding would allocate more than
    /// [`BUDGET_FACTOR`](crate::encoded::BUDGET_FACTOR) allows. Never panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        super::quick::write(bytes).map_or_else(|| decode(bytes), Ok)
    }
}

/// Encodes a value as a MessagePack map with field names.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    value.serialize(&mut serializer).expect("MessagePack can encode every message");
    bytes
}

/// Decodes a value that a peer has sent, within the memory that
/// [`BUDGET_FACTOR`](crate::encoded::BUDGET_FACTOR) allows. Bytes left over at the end are an
/// error. Every error is a [`DecodeError::Message`].
pub(super) fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    from_peer(bytes).map_err(|error| DecodeError::Message(error.source.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::ReplicaId;
    use crate::key::KEY_BYTES_MAX;

    const EPOCH: EpochId = EpochId { generation: u64::MAX, number: u64::MAX };
    const TERM: Term = Term { number: u64::MAX, owner: ReplicaId::new(u64::MAX) };
    const AT: At = At::Sealed(EPOCH);

    fn long_name() -> String {
        "n".repeat(KEY_BYTES_MAX)
    }

    fn held() -> Vec<KeyContext> {
        vec![KeyContext::new(&KeyName::new(&long_name()), &CausalContext::new()); 1_000]
    }

    fn entries() -> Vec<Entry> {
        let entry = |content| Entry {
            index: u32::MAX,
            key: KeyName::new(&long_name()),
            shape: "pn-counter-map".into(),
            guard: Some(WireGuard { group: Group::new(&long_name()), term: Some(TERM) }),
            content,
        };
        let probe = EntryContent::Probe(ContextBytes::new(&CausalContext::new()));
        vec![entry(EntryContent::Full(vec![7; 70_000].into())), entry(probe)]
    }

    fn compared(answer: QueryAnswer) -> Body {
        let promises = vec![(Group::new(&long_name()), TERM); 500];
        Body::Compared { session: u64::MAX, at: AT, answer: Box::new(answer), promises }
    }

    /// The bodies whose length depends on their content, except for those that are always measured.
    fn long_bodies() -> Vec<Body> {
        let (request, session, counts) = (u64::MAX, u64::MAX, true);
        let refusals = [Nack::Guarded(Group::new(&long_name())), Nack::FencedYetHeld(TERM)];
        let nacks = refusals.map(|nack| (u32::MAX, nack)).to_vec();
        let scope = AckScope::Only(vec![u32::MAX; 1_000]);
        let used = vec![(KeyName::new(&long_name()), u64::MAX); 1_000];
        let (group, leaves) = (Group::new(&long_name()), vec![u64::MAX; 256]);
        let leaves = (0..64).map(|top| (top, leaves.clone())).collect();
        vec![
            Body::Write { push: u64::MAX, whole: true, entries: entries().into() },
            Body::Ack { push: u64::MAX, scope, counts, nacks },
            Body::Fence { request, group, term: TERM, held: held() },
            Body::Promised { request, counts, differing: held(), entries: entries() },
            Body::Compare { session, at: AT, query: Query::Want(held()) },
            Body::Compare { session, at: AT, query: Query::Keys(vec![(0, u16::MAX); 64]) },
            compared(QueryAnswer::Same),
            compared(QueryAnswer::Tops(vec![u64::MAX; 256])),
            compared(QueryAnswer::Leaves(leaves)),
            compared(QueryAnswer::Keys { held: held(), upto: u16::MAX }),
            compared(QueryAnswer::Entries { done: u32::MAX, entries: entries() }),
            Body::Used(used.clone()),
            Body::Known(used),
        ]
    }

    #[test]
    fn estimate_with_margin_covers_every_message() {
        for body in long_bodies() {
            let estimate = body.len() + 64;
            let encoded = ReplicatorMessage { epoch: Some(EPOCH), body }.encode().len();
            assert!(estimate >= encoded, "{estimate} bytes estimated, {encoded} encoded");
        }
    }
}
