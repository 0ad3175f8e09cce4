//! The management protocol between a tool and a node: requests, answers and their encoding.
//!
//! A frame is a length (`u32`, big-endian, of the body) and a body, which is a MessagePack value
//! with named fields. The caller sends a request and the node sends one answer, except for
//! [`AdminRequest::Watch`]: its answers continue until either side closes the connection, which the
//! node also does after it refused the watch. A reader ignores unknown fields and uses the default
//! for missing ones. A node refuses an unknown request and reads the next one. The module knows
//! neither sockets nor nodes.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use ostraca_ddata::encoded::{Encoded, ValueError, from_msgpack, from_peer, list};
use ostraca_ddata::types::content;
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::verbatim::Verbatim;

/// Upper limit of the times that a caller may set in a request. A higher one counts as this one,
/// without an error; 0 is allowed.
pub const WITHIN_MAX: Duration = Duration::from_secs(60);

/// Maximum length of the body of a request, in bytes. The node refuses a longer one and then closes
/// the connection.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Maximum length of the body of an answer, in bytes: the largest value that the default settings
/// allow, with room for its encoding. The node sends a refusal in place of a longer one.
pub const ANSWER_BYTES_MAX: usize = 20 << 20;

/// Maximum number of keys in one answer. A higher limit of the request counts as this one.
pub const KEYS_MAX: u32 = 1_000;

/// A request of a tool. Every time limit in it is at most [`WITHIN_MAX`], which the node puts in
/// place of a longer one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AdminRequest {
    /// Lists the members of the cluster.
    Members,
    /// Lists the regions of an entity type with their shards. The type must be started on the node
    /// that receives the request.
    Shards {
        /// Name of the entity type.
        entity_type: String,
        /// Time limit for the answers of regions, in milliseconds.
        within_ms: u64,
    },
    /// Explains the location of a shard or an entity, or the moves of a node.
    Explain {
        /// Name of the entity type.
        entity_type: String,
        /// The subject of the explanation.
        about: ExplainSubject,
        /// Time limit for the answers of other nodes, in milliseconds.
        within_ms: u64,
    },
    /// Reads the value of a key.
    Get {
        /// Name of the key.
        key: String,
        /// The replicas to read from.
        level: ConsistencyLevel,
    },
    /// Sets the last-writer-wins register at a key.
    Set {
        /// Name of the key.
        key: String,
        /// The value that replaces the current one.
        value: Packed,
        /// The replicas that must have stored it.
        level: ConsistencyLevel,
    },
    /// Reads the value of a key now and after each change, from the node that receives the request.
    /// The connection takes no further request: any byte that the caller sends ends the watch.
    Watch {
        /// Name of the key.
        key: String,
    },
    /// Deletes a key of any type.
    Delete {
        /// Name of the key.
        key: String,
        /// The replicas that must have deleted it.
        level: ConsistencyLevel,
    },
    /// Asks a member to leave the cluster.
    Leave {
        /// The member's name, address or incarnation; `None`: the node that receives the request.
        /// A name is the one in logs, an address may have the form `HOST:PORT`.
        node: Option<String>,
    },
    /// Declares a member `Down`.
    Down {
        /// The member's name, address or incarnation.
        node: String,
    },
    /// Freezes members and shards of the whole cluster before all nodes stop.
    PrepareForShutdown,
    /// Moves all shards away from the node that receives the request. It remains a member.
    Drain {
        /// Ends draining, so that the node hosts shards again.
        undo: bool,
        /// Time limit of the answer, in milliseconds. Draining continues after it. Not used with
        /// `undo`.
        within_ms: u64,
    },
    /// Stops shards of an entity type on all nodes. They start again when a message needs them.
    StopShards {
        /// Name of the entity type.
        entity_type: String,
        /// Numbers of the shards; empty: all shards of the type.
        shards: Vec<u32>,
        /// Time limit for stopping, in milliseconds.
        within_ms: u64,
    },
    /// Makes the coordinator of an entity type check the balance now. It must run on the node that
    /// receives the request.
    Rebalance {
        /// Name of the entity type.
        entity_type: String,
    },
    /// Reports whether the node is alive and ready.
    Health {
        /// Time limit for becoming ready, in milliseconds; 0: readiness is not checked.
        within_ms: u64,
    },
    /// Continues without a majority that is lost for good. Accepted over the control socket only.
    Recover {
        /// Executes the recovery. Without it the node only reports which members it would keep and
        /// which it would give up.
        force: bool,
    },
    /// Lists the keys that hold a value on the node that receives the request.
    Keys {
        /// Prefix of the keys; empty: all keys.
        prefix: String,
        /// The last key of the previous page; only later keys are listed. It need not exist.
        after: Option<String>,
        /// Maximum number of keys; a higher one than [`KEYS_MAX`] counts as that. 0: none.
        limit: u32,
    },
}

/// The subject of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExplainSubject {
    /// The location of a shard.
    Shard(u32),
    /// The location of an entity.
    Entity(String),
    /// The shards that moved to and from a node, given by its name, address or incarnation.
    Node(String),
}

/// The replicas that take part in a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ConsistencyLevel {
    /// Only the node that receives the request. A write spreads to the others later.
    Local,
    /// A majority of the replicas.
    Majority {
        /// Time limit for their answers, in milliseconds.
        within_ms: u64,
    },
}

/// An answer of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AdminResponse {
    /// Answers [`AdminRequest::Members`] with the members of the cluster.
    Members(Members),
    /// Answers [`AdminRequest::Shards`] with the regions of the type.
    Shards(Shards),
    /// Answers [`AdminRequest::Explain`] with the explanation.
    Explained(ExplainAnswer),
    /// Answers [`AdminRequest::Get`] and, repeatedly, [`AdminRequest::Watch`]; `None`: the key
    /// holds nothing.
    Value(Option<Data>),
    /// Answers [`AdminRequest::Set`] and [`AdminRequest::Delete`]: the requested replicas have
    /// executed it. Answers [`AdminRequest::PrepareForShutdown`] and [`AdminRequest::Rebalance`]:
    /// the node has started it.
    Done,
    /// Answers [`AdminRequest::Leave`] and [`AdminRequest::Down`] with the member concerned.
    Ordered(MemberName),
    /// Answers [`AdminRequest::Drain`] with the shards that are left, also if that is after the
    /// time limit.
    Drained(DrainReport),
    /// Answers [`AdminRequest::StopShards`] with the number of shards that the request names,
    /// counted once each, also those that did not run.
    ShardsStopped(u64),
    /// Answers [`AdminRequest::Health`] with the node's state.
    Health(Health),
    /// Answers [`AdminRequest::Recover`] with the kept and given-up members.
    Recovery(RecoveryReport),
    /// Answers [`AdminRequest::Keys`], in ascending order.
    #[serde(deserialize_with = "list")]
    Keys(Vec<String>),
    /// Answers any request that was not executed, with the reason.
    Refused(RequestRefusal),
}

/// Why a node refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct RequestRefusal {
    /// The kind of the reason, for programs.
    pub why: RefusalReason,
    /// The true state and the remedy, for people.
    pub text: String,
}

/// The kind of a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RefusalReason {
    /// The node has reached its limit of connections, of watches or of pending work.
    Busy,
    /// The node does not know the request, its bytes are malformed, or its arguments are invalid.
    NotUnderstood,
    /// No member has this name, address or incarnation, or it was removed meanwhile.
    UnknownMember,
    /// The coordinator of the type runs on another node.
    NotCoordinator,
    /// Shards have not stopped in time; they may still stop.
    NotStopped,
    /// The request, the value or the answer is too long.
    TooLong,
    /// The entity type was not started on the node, or a query about it failed for another reason
    /// without a kind of its own.
    UnknownType,
    /// The key holds another type of data.
    WrongType,
    /// Only the cluster itself, or another owner that guards or has fenced the key, may write it.
    Guarded,
    /// A forced recovery is impossible or not needed, or this node can't execute it.
    NotRecovered,
    /// The request is accepted over the control socket only.
    OnlyHere,
    /// The node's setting `management.remote` forbids the request over the network.
    Forbidden,
    /// Too few replicas answered in time. A write may still reach them later.
    TooFew,
    /// The node has not joined a cluster.
    NotJoined,
    /// The node is stopping, or is stuck: it had no answer in time. It may still execute the
    /// request.
    Stopped,
    /// Another reason, or one that a later release defines.
    #[serde(other)]
    Other,
}

/// The cluster as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Members {
    /// The node that answered.
    pub me: String,
    /// Id of the cluster; `None` before the node has joined one.
    pub cluster: Option<String>,
    /// The leader, if the node sees one.
    pub leader: Option<String>,
    /// Whether all members, apart from Exiting and Down ones, are reachable and have seen this
    /// state, as far as the node knows.
    pub converged: bool,
    /// Whether the whole cluster prepares to stop.
    pub preparing_for_shutdown: bool,
    /// The current configuration of replicated data; `None` until the node has installed one.
    pub configuration: Option<Configuration>,
    /// The members of any status, ordered by address; empty before the node has joined.
    pub members: Vec<MemberInfo>,
    /// Why a node that has not joined, or is orphaned, waits, and what to do. Otherwise `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// The nodes that hold replicated data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// Increases when a cluster is founded anew.
    pub generation: u64,
    /// Increases with each change of the members.
    pub number: u64,
    /// Number of nodes that hold replicated data.
    pub members: u64,
    /// Number of these nodes that vote in majorities.
    pub voters: u64,
}

/// A member of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberInfo {
    /// Name in logs: the beginning of the peer id and the incarnation.
    pub node: String,
    /// Peer id, as in `net.allowed-peers`.
    pub peer: String,
    /// Address that other nodes dial.
    pub address: String,
    /// Status: `Joining`, `WeaklyUp`, `Up`, `Leaving`, `Exiting` or `Down`.
    pub status: String,
    /// Roles of the member.
    pub roles: Vec<String>,
    /// Members that can't reach this one; empty if it counts as reachable.
    pub unreachable_by: Vec<String>,
    /// Entity types that the member hosts.
    pub entity_types: Vec<String>,
    /// Whether the member is draining: its shards move away.
    pub draining: bool,
    /// Version of the member's application.
    pub app_version: String,
    /// Order of becoming `Up`: lower is older; `None` before the member is `Up`.
    pub up_number: Option<u64>,
}

/// Name and address of a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberName {
    /// Name of the node in logs.
    pub node: String,
    /// Address that other nodes dial.
    pub address: String,
}

/// Progress of draining a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainReport {
    /// The node that answered.
    pub node: String,
    /// Whether the node drains now, by a request or by its shutdown; `false` after `undo`.
    pub draining: bool,
    /// Number of shards left on the node, by entity type; types without such shards are left out.
    pub shards: Vec<(String, u64)>,
}

/// Health of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// The node that answered.
    pub node: String,
    /// Id of its cluster; `None` before it has joined one.
    pub cluster: Option<String>,
    /// Its status as a member; `None` if it is no member.
    pub status: Option<String>,
    /// Whether the node is `Up`, has registered all its entity types and is not stopping; `None` if
    /// the request did not ask.
    pub ready: Option<bool>,
    /// Why the node is not ready, for example which entity types are not registered; `None` if it
    /// is ready or the request did not ask.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Result or preview of continuing without a lost majority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryReport {
    /// Whether the recovery was executed; `false` for a preview.
    pub forced: bool,
    /// The node that answered.
    pub me: String,
    /// The forced configuration; `None` for a preview.
    pub configuration: Option<Configuration>,
    /// Members that are kept, oldest first.
    pub kept: Vec<Survivor>,
    /// Members that are given up for ever, oldest first.
    pub given_up: Vec<Survivor>,
}

/// A member of the configuration that is replaced, kept or given up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Survivor {
    /// Name of the node in logs.
    pub node: String,
    /// Address that other nodes dial; empty if unknown.
    pub address: String,
}

/// Placement of the shards of an entity type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shards {
    /// Name of the entity type.
    pub entity_type: String,
    /// The node of the coordinator, if known.
    pub coordinator: Option<String>,
    /// The regions that have answered.
    pub regions: Vec<RegionInfo>,
    /// Regions that did not answer; their shards are unknown.
    pub unanswered: Vec<RegionInfo>,
}

/// The region of an entity type on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionInfo {
    /// Name of the node in logs.
    pub node: String,
    /// Address that other nodes dial; empty if the node is no longer a member.
    pub address: String,
    /// Number of each shard and its number of live entities.
    #[serde(deserialize_with = "list")]
    pub shards: Vec<(u32, u64)>,
}

/// An explanation of a location or of moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainAnswer {
    /// The explanation as text for people.
    pub text: String,
    /// The explanation for programs: a `node::sharding::Explanation` of the node's release.
    pub detail: Packed,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// Name of its type: `or-set`, `or-map/or-set`, `user/score-board`.
    #[serde(rename = "type")]
    pub shape: String,
    /// The content: an encoded [`ValueContent`].
    pub content: Verbatim,
}

impl Data {
    /// Decodes the content.
    ///
    /// # Errors
    /// [`ValueError`] if it has a form of a later release, or nests too deep.
    pub fn content(&self) -> Result<ValueContent, ValueError> {
        self.content.decode()
    }
}

/// The content of a value; the wire form of [`content::Content`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ValueContent {
    /// State of a flag.
    Flag(bool),
    /// Value of a counter, in decimal digits.
    Count(String),
    /// Elements of a set.
    Elements(Vec<Packed>),
    /// Value of a last-writer-wins register; `None` if it was never written.
    Register(Option<Packed>),
    /// Concurrent values of a multi-value register.
    Siblings(Vec<Packed>),
    /// Entries of a map.
    Map(Vec<(Packed, Self)>),
    /// A user type, which only its own code can decode.
    User {
        /// Length of its encoding, in bytes.
        bytes: u64,
    },
}

impl From<content::Content> for ValueContent {
    /// Converts a content, recursively for maps. Both kinds of counters become `Count`, a negative
    /// one with its sign. Panics on a kind of data that this protocol does not name: every new kind
    /// must be added here.
    fn from(content: content::Content) -> Self {
        use content::Content;
        let all = |items: &[Encoded]| items.iter().map(Packed::from).collect();
        match content {
            Content::Flag(is_on) => Self::Flag(is_on),
            Content::Total(count) => Self::Count(count.to_string()),
            Content::Net(count) => Self::Count(count.to_string()),
            Content::Elements(elements) => Self::Elements(all(&elements)),
            Content::Register(value) => Self::Register(value.as_ref().map(Packed::from)),
            Content::Siblings(values) => Self::Siblings(all(&values)),
            Content::Map(entries) => {
                let entry = |(key, value): (Encoded, Content)| (Packed::from(&key), value.into());
                Self::Map(entries.into_iter().map(entry).collect())
            }
            Content::User { bytes, .. } => Self::User { bytes: bytes as u64 },
            other => unreachable!("{other:?} has no name on this wire"),
        }
    }
}

/// A MessagePack value of any type, serialized as bytes, unlike a [`Verbatim`]. Received bytes are
/// not checked until they are decoded or converted. Equality compares bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Packed(Vec<u8>);

impl Packed {
    /// Encodes a value, with named fields.
    ///
    /// # Errors
    /// If its `Serialize` fails, or it nests deeper than the encoder's limit of 1,024 levels.
    pub fn new(value: &impl Serialize) -> Result<Self, ostraca_ddata::encoded::EncodeError> {
        Ok(Self::from(&Encoded::new(value)?))
    }

    /// Decodes the value. The crate `rmpv` has a type for values whose Rust types this program does
    /// not have.
    ///
    /// # Errors
    /// [`ValueError`] if the bytes are not a `T`, or nest deeper than 64 levels.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        from_msgpack(&self.0)
    }

    /// Converts to a [`Verbatim`], which is serialized as the value itself.
    ///
    /// # Errors
    /// [`ValueError`] if the bytes are not exactly one MessagePack value of at most 64 levels.
    pub fn verbatim(self) -> Result<Verbatim, ValueError> {
        Verbatim::new(self.0)
    }

    /// Length of the encoding, in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes; such a value is invalid.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&Encoded> for Packed {
    fn from(encoded: &Encoded) -> Self {
        Self(encoded.as_bytes().to_vec())
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} bytes)", self.0.len())
    }
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Packed {
    /// Reads bytes, without checking that they are a value; they may be empty. A MessagePack string
    /// or list is refused.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Packed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value as bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Packed, E> {
                Ok(Packed(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(BytesVisitor)
    }
}

/// Encodes the body of a frame. The caller must check its length.
///
/// # Panics
/// If the value has no encoding, which happens to no request or answer of a node and a tool.
pub(super) fn encode(said: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(said).expect("plain data")
}

/// Decodes the body of a frame.
///
/// # Errors
/// [`ValueError`] if this release does not know the request or answer, or if the bytes are not
/// exactly one MessagePack value within the limits of nesting and memory.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    from_peer(bytes)
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The announced length exceeds the limit.
    #[error("the announced frame has {len} bytes, at most {limit} are allowed")]
    TooLong {
        /// Announced length, in bytes.
        len: usize,
        /// Maximum length, in bytes.
        limit: usize,
    },
    /// The connection ended within a frame.
    #[error("the connection ended in the middle of a frame")]
    Short,
    /// Reading from the stream failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// Writes a frame and flushes the stream. The caller must have checked the length of the body, for
/// which each kind of frame has its own limit. No time limit; not cancel-safe.
///
/// # Errors
/// An error of the stream; a part of the frame may have been written.
///
/// # Panics
/// If the body has more than `u32::MAX` bytes.
pub(super) async fn write_frame<S: AsyncWrite + Unpin>(to: &mut S, body: &[u8]) -> io::Result<()> {
    let len = u32::try_from(body.len()).expect("a frame's length was checked");
    to.write_all(&len.to_be_bytes()).await?;
    to.write_all(body).await?;
    to.flush().await
}

/// Reads a frame and returns its body, which may be empty; `None` if the connection was closed,
/// reset or aborted before the first byte of a frame. Memory grows with the received bytes, not
/// with the announced length. No time limit; not cancel-safe.
///
/// # Errors
/// [`FrameError`]; the stream must not be read again. A body longer than `limit` fails before any
/// byte of it is read, so that the caller can still answer. A stream that is closed within a frame
/// is `Short`; one that is reset there is `Io`.
pub(super) async fn read_frame<S: AsyncRead + Unpin>(
    from: &mut S,
    limit: usize,
) -> Result<Option<Vec<u8>>, FrameError> {
    let mut length = Vec::with_capacity(4);
    if let Err(error) = from.take(4).read_to_end(&mut length).await {
        let gone = [ErrorKind::ConnectionReset, ErrorKind::ConnectionAborted];
        let has_hung_up = length.is_empty() && gone.contains(&error.kind());
        return if has_hung_up { Ok(None) } else { Err(error.into()) };
    }
    let Ok(length) = <[u8; 4]>::try_from(length.as_slice()) else {
        return if length.is_empty() { Ok(None) } else { Err(FrameError::Short) };
    };
    let len = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if len > limit {
        return Err(FrameError::TooLong { len, limit });
    }
    let mut body = Vec::new(); // ≤ len
    from.take(len as u64).read_to_end(&mut body).await?;
    if body.len() < len { Err(FrameError::Short) } else { Ok(Some(body)) }
}

#[cfg(test)]
mod tests;
