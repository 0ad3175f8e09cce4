//! What a tool and a node say to each other: a question, its answer, and how they stand in bytes.
//!
//! A frame is a length (`u32`, big-endian, of what follows) and a MessagePack value with named
//! fields. The caller speaks first; each request gets one answer, but [`Request::Watch`], whose
//! answers go on until either side hangs up. A field that a reader does not know is skipped, one
//! that a writer does not know has its default; a request that a node does not know is refused and
//! what follows is heard. Knows no socket and no node.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use ostraca_ddata::encoded::{Encoded, ValueError, from_msgpack, from_peer, list};
use ostraca_ddata::types::content;
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::item::Item;
use super::verbatim::Verbatim;

/// How long a caller may have a request wait, at most.
pub const WITHIN_MAX: Duration = Duration::from_secs(60);

/// Longest request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Longest answer, in bytes: the largest value that the default settings allow, and some more.
pub const ANSWER_BYTES_MAX: usize = 20 << 20;

/// Keys in one answer, at most.
pub const KEYS_MAX: u32 = 1_000;

/// What a tool asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// Who belongs to the cluster?
    Members,
    /// Where do the shards of a type live?
    Shards {
        /// The type.
        entity_type: String,
        /// How long regions may take to answer, in milliseconds.
        within_ms: u64,
    },
    /// Why does something live where it lives?
    Explain {
        /// The entity type.
        entity_type: String,
        /// What.
        about: About,
        /// How long nodes may take to tell what they remember, in milliseconds.
        within_ms: u64,
    },
    /// What does a key hold?
    Get {
        /// The key.
        key: String,
        /// Who is asked.
        level: Level,
    },
    /// Sets the last-writer-wins register under a key.
    Set {
        /// The key.
        key: String,
        /// What it is to hold.
        value: Packed,
        /// Who must have it.
        level: Level,
    },
    /// Tell what a key holds, now and whenever that changes.
    Watch {
        /// The key.
        key: String,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
        /// Replicas that must have deleted it.
        level: Level,
    },
    /// Ask a member to leave in order.
    Leave {
        /// Its name, its address or its incarnation; `None`: the node that is asked.
        node: Option<String>,
    },
    /// Declare a member dead.
    Down {
        /// Its name, its address or its incarnation.
        node: String,
    },
    /// Freeze members and shards of the whole cluster, which is about to stop.
    PrepareForShutdown,
    /// Give away all shards of the node that is asked, which stays a member.
    Drain {
        /// Take shards again instead.
        undo: bool,
        /// Time until the answer, in milliseconds; draining goes on after it.
        within_ms: u64,
    },
    /// Stop shards of a type wherever they live.
    StopShards {
        /// The type.
        entity_type: String,
        /// Their numbers; none: all shards of the type.
        shards: Vec<u32>,
        /// Time that they may take, in milliseconds.
        within_ms: u64,
    },
    /// Have the coordinator of a type look at the balance now.
    Rebalance {
        /// The type.
        entity_type: String,
    },
    /// Whether the node lives, and whether it is ready to serve.
    Health {
        /// Time until it must be ready, in milliseconds; 0: readiness is not looked at.
        within_ms: u64,
    },
    /// Go on without a majority that is lost for good. Over the control socket only.
    Recover {
        /// Do it; without this only tell who would be kept and who given up.
        force: bool,
    },
    /// Which keys hold something?
    Keys {
        /// Only those that begin so.
        prefix: String,
        /// Only those after this one.
        after: Option<String>,
        /// At most so many, and at most [`KEYS_MAX`].
        limit: u32,
    },
}

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum About {
    /// Where a shard lives.
    Shard(u32),
    /// Where an entity lives.
    Entity(String),
    /// What came to a node and left it: its name, its address, or its incarnation.
    Node(String),
}

/// How many replicas take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Level {
    /// The node that is asked.
    Local,
    /// A majority.
    Majority {
        /// How long they may take, in milliseconds.
        within_ms: u64,
    },
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Members`].
    Members(Members),
    /// To [`Request::Shards`].
    Shards(Shards),
    /// To [`Request::Explain`].
    Explained(Explained),
    /// To [`Request::Get`], and every answer to [`Request::Watch`]; `None`: nothing is there.
    Value(Option<Data>),
    /// To [`Request::Set`] and [`Request::Delete`]: as many replicas as were asked for have it. To
    /// [`Request::PrepareForShutdown`] and [`Request::Rebalance`]: it was ordered.
    Done,
    /// To [`Request::Leave`] and [`Request::Down`]: the member that it was ordered for.
    Ordered(MemberName),
    /// To [`Request::Drain`].
    Drained(Drained),
    /// To [`Request::StopShards`]: how many have stopped.
    ShardsStopped(u64),
    /// To [`Request::Health`].
    Health(Health),
    /// To [`Request::Recover`].
    Recovery(Recovery),
    /// To [`Request::Keys`], in the order of their names.
    #[serde(deserialize_with = "list")]
    Keys(Vec<String>),
    /// To any request: why it was not done.
    Refused(Refusal),
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// What kind of reason.
    pub why: Why,
    /// What is true, and what to do.
    pub text: String,
}

/// Kinds of reasons, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// The node has as many connections as it takes, and all of them wait for answers.
    Busy,
    /// The node does not know such a request, or it makes no sense.
    NotUnderstood,
    /// No member has this name, address or incarnation.
    UnknownMember,
    /// The coordinator of the type runs on another node.
    NotCoordinator,
    /// Shards have not stopped in time; they may yet stop.
    NotStopped,
    /// It, or its answer, is too long.
    TooLong,
    /// The entity type was not started on the node.
    UnknownType,
    /// The key holds another type of data.
    WrongType,
    /// The key is the cluster's own.
    Guarded,
    /// There is nothing that could be recovered by force, or not by this node.
    NotRecovered,
    /// It is done over the control socket only, on the node's own host.
    OnlyHere,
    /// `management.remote` of the node does not allow it over the network.
    Forbidden,
    /// Too few replicas answered in time. A write stays and spreads.
    TooFew,
    /// The node belongs to no cluster (yet).
    NotJoined,
    /// The node is about to end.
    Stopped,
    /// Something else; also what a later release has a name for.
    #[serde(other)]
    Other,
}

/// The cluster, as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Members {
    /// Who sees it so.
    pub me: String,
    /// Which cluster; none before the node has joined one.
    pub cluster: Option<String>,
    /// Who leads.
    pub leader: Option<String>,
    /// Whether all members have seen this state.
    pub converged: bool,
    /// Whether all are about to stop.
    pub preparing_for_shutdown: bool,
    /// Who counts for replicated data.
    pub configuration: Option<Configuration>,
    /// Its members, in the order of their addresses.
    pub members: Vec<Member>,
    /// What a node that takes part in no cluster waits for, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// Who counts for replicated data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// Rises when a cluster is founded anew.
    pub generation: u64,
    /// Rises with each change of members.
    pub number: u64,
    /// Nodes that hold replicated data.
    pub members: u64,
    /// Of these, nodes whose majorities decide.
    pub voters: u64,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Member {
    /// Its name in logs: the beginning of its key, and its incarnation.
    pub node: String,
    /// Its peer id, as `net.allowed-peers` names it.
    pub peer: String,
    /// Where others dial it.
    pub address: String,
    /// Where it stands: `Joining`, `WeaklyUp`, `Up`, `Leaving`, `Exiting` or `Down`.
    pub status: String,
    /// What it is for.
    pub roles: Vec<String>,
    /// Who does not reach it.
    pub unreachable_by: Vec<String>,
    /// What it hosts.
    pub entity_types: Vec<String>,
    /// Whether it gives away what it hosts.
    pub draining: bool,
    /// Its application's version.
    pub app_version: String,
    /// Its age: the lower, the older; none before it is Up.
    pub up_number: Option<u64>,
}

/// A member, as an answer names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberName {
    /// Its name in logs.
    pub node: String,
    /// Where others dial it.
    pub address: String,
}

/// How far a node has drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drained {
    /// The node that was asked.
    pub node: String,
    /// Whether it gives its shards away now.
    pub draining: bool,
    /// Shards that live on it, in number, by type.
    pub shards: Vec<(String, u64)>,
}

/// How a node is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// The node that was asked.
    pub node: String,
    /// Its cluster; none before it has joined one.
    pub cluster: Option<String>,
    /// Its status as a member; none before it has joined a cluster.
    pub status: Option<String>,
    /// Whether it is Up and all its entity types are registered; `None`: it was not asked for.
    pub ready: Option<bool>,
    /// Why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who goes on without a majority that is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recovery {
    /// Whether it was done, or would be with `force`.
    pub forced: bool,
    /// Who was asked.
    pub me: String,
    /// The forced configuration, if it was done.
    pub configuration: Option<Configuration>,
    /// Who goes on, oldest first.
    pub kept: Vec<Survivor>,
    /// Who is given up for ever, oldest first.
    pub given_up: Vec<Survivor>,
}

/// A member of the configuration that is replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Survivor {
    /// Its name in logs.
    pub node: String,
    /// Where others dial it; empty if that is not known.
    pub address: String,
}

/// Where the shards of a type live.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shards {
    /// The type.
    pub entity_type: String,
    /// The node that decides about them, as far as is known.
    pub coordinator: Option<String>,
    /// Regions that have answered.
    pub regions: Vec<Region>,
    /// Regions that have not; what they host is not known.
    pub unanswered: Vec<Region>,
}

/// What hosts a type on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Region {
    /// The node.
    pub node: String,
    /// Where others dial it; empty if it is no member any more.
    pub address: String,
    /// Its shards, and how many entities live in each.
    #[serde(deserialize_with = "list")]
    pub shards: Vec<(u32, u64)>,
}

/// Why something lives where it lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explained {
    /// For people.
    pub text: String,
    /// For programs: a `node::sharding::Explanation`, as the node's release has it.
    pub detail: Packed,
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    /// The name of its type: `or-set`, `or-map/or-set`, `user/score-board`.
    #[serde(rename = "type")]
    pub shape: String,
    /// What is in it: a [`Content`].
    pub content: Verbatim,
}

impl Data {
    /// Decodes what is in it.
    ///
    /// # Errors
    /// [`ValueError`] if a later release wrote it.
    pub fn content(&self) -> Result<Content, ValueError> {
        self.content.decode()
    }
}

/// What is in a value, as [`content::Content`] has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Whether a flag is on.
    Flag(bool),
    /// A counter's value, in decimal digits.
    Count(String),
    /// A set's elements.
    Elements(Vec<Packed>),
    /// What a register holds.
    Register(Option<Packed>),
    /// What was written to a register, with all that was written at the same time.
    Siblings(Vec<Packed>),
    /// A map's entries.
    Map(Vec<(Packed, Self)>),
    /// A user type, which only its own code can read.
    User {
        /// Its length, in bytes.
        bytes: u64,
    },
}

impl From<content::Content> for Content {
    fn from(content: content::Content) -> Self {
        use content::Content as Held;
        let all = |items: &[Encoded]| items.iter().map(Packed::from).collect();
        match content {
            Held::Flag(is_on) => Self::Flag(is_on),
            Held::Total(count) => Self::Count(count.to_string()),
            Held::Net(count) => Self::Count(count.to_string()),
            Held::Elements(elements) => Self::Elements(all(&elements)),
            Held::Register(value) => Self::Register(value.as_ref().map(Packed::from)),
            Held::Siblings(values) => Self::Siblings(all(&values)),
            Held::Map(entries) => {
                let entry = |(key, value): (Encoded, Held)| (Packed::from(&key), value.into());
                Self::Map(entries.into_iter().map(entry).collect())
            }
            Held::User { bytes, .. } => Self::User { bytes: bytes as u64 },
            other => unreachable!("{other:?} has no name on this wire"),
        }
    }
}

/// A value of whatever type, as MessagePack.
#[derive(Clone, PartialEq, Eq)]
pub struct Packed(Vec<u8>);

impl Packed {
    /// Packs a value.
    ///
    /// # Errors
    /// It nests deeper than MessagePack's encoder follows, 1,024 levels. Integers that MessagePack
    /// does not have become their 16 bytes.
    pub fn new(item: &Item) -> Result<Self, ostraca_ddata::encoded::EncodeError> {
        Ok(Self::from(&Encoded::new(item)?))
    }

    /// Unpacks it.
    ///
    /// # Errors
    /// [`ValueError`] if it is no MessagePack value.
    pub fn item(&self) -> Result<Item, ValueError> {
        from_msgpack(&self.0)
    }

    /// Its bytes, as one value of whatever type.
    ///
    /// # Errors
    /// [`ValueError`] if it is no MessagePack value.
    pub fn verbatim(self) -> Result<Verbatim, ValueError> {
        Verbatim::new(self.0)
    }

    /// Its length, in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes, which are no value.
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
        match self.item() {
            Ok(item) => write!(f, "{item:?}"),
            Err(_) => write!(f, "Packed({} bytes)", self.0.len()),
        }
    }
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Packed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value as bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Packed, E> {
                Ok(Packed(bytes.to_vec()))
            }
        }
        from.deserialize_bytes(Bytes)
    }
}

/// What follows the length in a frame.
///
/// # Panics
/// Never: what is said here always has a form in MessagePack.
pub(super) fn encode(said: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(said).expect("plain data")
}

/// What somebody said.
///
/// # Errors
/// [`ValueError`] if this release does not understand it.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ValueError> {
    from_peer(bytes)
}

/// Why there is no further frame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Nobody waits for that many bytes.
    #[error("a frame of {len} bytes is announced, at most {limit} are taken")]
    TooLong {
        /// Bytes announced.
        len: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The other side hung up in the middle of a frame.
    #[error("the connection ended in the middle of a frame")]
    Short,
    /// The connection failed.
    #[error("the connection failed")]
    Io(#[from] io::Error),
}

/// Writes a frame.
///
/// # Errors
/// What the connection says.
pub(super) async fn write_frame<S: AsyncWrite + Unpin>(to: &mut S, body: &[u8]) -> io::Result<()> {
    let len = u32::try_from(body.len()).expect("a frame's length was checked");
    to.write_all(&len.to_be_bytes()).await?;
    to.write_all(body).await?;
    to.flush().await
}

/// Reads a frame; `None`: the other side has hung up in between. Memory is taken as bytes come,
/// not as they are announced. Not cancel-safe.
///
/// # Errors
/// [`FrameError`]; the connection is of no further use.
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
