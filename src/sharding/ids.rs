//! Identifiers of sharding: types, entities, shards and regions, and the generations that order all
//! decisions about a shard.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// Longest name of an entity type, in bytes; it is part of keys of replicated data.
pub const TYPE_BYTES_MAX: usize = 200;

/// Longest entity id, in bytes.
pub const ENTITY_BYTES_MAX: usize = 4_096;

/// Most shards of one entity type. Neither [`ShardId`] nor its decoder checks it.
pub const SHARDS_MAX: u32 = 1_000_000;

/// Reason why the name of an entity type or an entity id is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The name is empty.
    #[error("the {what} is empty: give it at least one byte")]
    Empty {
        /// Kind of the invalid name.
        what: &'static str,
    },
    /// The name is longer than its limit.
    #[error("the {what} has {bytes} bytes, at most {limit} are allowed: hash it, or shorten it")]
    TooLong {
        /// Kind of the invalid name.
        what: &'static str,
        /// Length of the name in bytes.
        bytes: usize,
        /// Most bytes that are allowed.
        limit: usize,
    },
    /// The name of a type contains a slash, which separates parts of keys of replicated data.
    #[error("an entity type's name must not contain a slash: choose another name")]
    Slash,
}

/// Checks that a name has 1 to `limit` bytes; `what` names it in the error.
fn check(what: &'static str, name: &str, limit: usize) -> Result<(), InvalidName> {
    match name.len() {
        0 => Err(InvalidName::Empty { what }),
        bytes if bytes > limit => Err(InvalidName::TooLong { what, bytes, limit }),
        _ => Ok(()),
    }
}

/// Name of an entity type: 1 to [`TYPE_BYTES_MAX`] bytes without a slash, equal on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntityType(Arc<str>);

impl EntityType {
    /// Makes the type with this name.
    ///
    /// # Errors
    /// [`InvalidName`], the first that applies: it has a slash, is empty, or has more than
    /// [`TYPE_BYTES_MAX`] bytes. No other character is forbidden.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        if name.contains('/') {
            return Err(InvalidName::Slash);
        }
        check("entity type's name", name, TYPE_BYTES_MAX)?;
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for EntityType {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(&name)
    }
}

impl From<EntityType> for String {
    fn from(name: EntityType) -> Self {
        name.0.as_ref().into()
    }
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id of an entity, unique within its type: 1 to [`ENTITY_BYTES_MAX`] bytes. Cheap to clone. Up to
/// 23 bytes need no allocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntityId(SmolStr);

impl EntityId {
    /// Makes the entity id with this text.
    ///
    /// # Errors
    /// [`InvalidName`] if it is empty or has more than [`ENTITY_BYTES_MAX`] bytes. Any character is
    /// allowed.
    pub fn new(id: &str) -> Result<Self, InvalidName> {
        check("entity id", id, ENTITY_BYTES_MAX)?;
        Ok(Self(id.into()))
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl Borrow<str> for EntityId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for EntityId {
    type Error = InvalidName;

    fn try_from(id: String) -> Result<Self, InvalidName> {
        Self::new(&id)
    }
}

impl From<EntityId> for String {
    fn from(id: EntityId) -> Self {
        id.0.into()
    }
}

impl fmt::Display for EntityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A shard of an entity type: a number below `number-of-shards`, which is not checked here, because
/// the type decides it. One of a peer may be any `u32`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ShardId(u32);

impl ShardId {
    /// Makes the id of the shard with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Returns the number of the shard.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The region of one entity type on one incarnation of a node. A restarted node is another region
/// (docs/protocol/sharding.md#a-region-is-one-incarnation).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RegionId(ReplicaId);

impl RegionId {
    /// The smallest region id.
    pub(super) const MIN: Self = Self(ReplicaId::new(0));
    /// The greatest region id.
    pub(super) const MAX: Self = Self(ReplicaId::new(u64::MAX));

    /// Makes the id of the region of this incarnation.
    #[must_use]
    pub const fn new(node: ReplicaId) -> Self {
        Self(node)
    }

    /// Returns the incarnation of the node.
    #[must_use]
    pub const fn replica(self) -> ReplicaId {
        self.0
    }
}

impl From<ReplicaId> for RegionId {
    fn from(node: ReplicaId) -> Self {
        Self(node)
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Orders the decisions about a shard, and messages that refer to them: first by the term of the
/// coordinator that decided (its number, then its owner), then by `seq`. The default, `NEVER`, is
/// below all of them. Decisions about different shards in one write have the same generation.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation {
    /// Term of the coordinator that decided.
    #[serde(rename = "t")]
    pub term: Term,
    /// Number, from 1, of the coordinator's write under this term that brought the decision first.
    /// Writes of other data count as well, and so do repetitions.
    #[serde(rename = "s")]
    pub seq: u64,
}

impl Generation {
    /// The generation below every decision.
    pub const NEVER: Self = Self { term: Term { number: 0, owner: ReplicaId::new(0) }, seq: 0 };

    /// Makes the generation of the decisions that write `seq` of a term brings first.
    #[must_use]
    pub const fn new(term: Term, seq: u64) -> Self {
        Self { term, seq }
    }
}

/// For example `7.3`: the third write of term 7. The owner of the term is left out, so two
/// different generations may look the same.
impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term.number, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_at_least_one_byte_and_at_most_its_limit() {
        assert_eq!(EntityId::new(""), Err(InvalidName::Empty { what: "entity id" }));
        assert!(EntityId::new(&"x".repeat(ENTITY_BYTES_MAX)).is_ok());
        let long = EntityType::new(&"x".repeat(TYPE_BYTES_MAX + 1));
        let limit = TYPE_BYTES_MAX;
        let expected = InvalidName::TooLong { what: "entity type's name", bytes: 201, limit };
        assert_eq!(long, Err(expected));
        assert_eq!(
            EntityType::new("a/homes"),
            Err(InvalidName::Slash),
            "it would be a key of another type"
        );
    }

    #[test]
    fn generations_order_by_term_then_owner_then_sequence() {
        let g = |number, owner, seq| {
            Generation::new(Term { number, owner: ReplicaId::new(owner) }, seq)
        };
        let sorted = [Generation::NEVER, g(1, 1, 9), g(1, 2, 1), g(2, 0, 1), g(2, 0, 2)];
        assert!(sorted.is_sorted());
        assert_eq!(Generation::default(), Generation::NEVER);
    }
}
