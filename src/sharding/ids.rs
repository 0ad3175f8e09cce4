//! Who is who in sharding: types, entities, shards, regions, and the generations that order every
//! word about a shard.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// Longest name of an entity type, in bytes: it stands in keys of replicated data.
pub const TYPE_BYTES_MAX: usize = 200;

/// Longest entity id, in bytes.
pub const ENTITY_BYTES_MAX: usize = 4_096;

/// Most shards of one entity type.
pub const SHARDS_MAX: u32 = 1_000_000;

/// Why a name can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Every entity and every type has a name.
    #[error("the {what} is empty: give it at least one byte")]
    Empty {
        /// What was to be named.
        what: &'static str,
    },
    /// It would not fit where it is kept.
    #[error("the {what} has {bytes} bytes, at most {limit} are allowed: hash it, or shorten it")]
    TooLong {
        /// What was to be named.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Names of types stand between slashes in keys of replicated data.
    #[error("an entity type's name has no slash: choose another one")]
    Slash,
}

fn check(what: &'static str, name: &str, limit: usize) -> Result<(), InvalidName> {
    match name.len() {
        0 => Err(InvalidName::Empty { what }),
        bytes if bytes > limit => Err(InvalidName::TooLong { what, bytes, limit }),
        _ => Ok(()),
    }
}

/// The name of an entity type: 1 to [`TYPE_BYTES_MAX`] bytes without a slash, equal on all nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntityType(Arc<str>);

impl EntityType {
    /// The type called `name`.
    ///
    /// # Errors
    /// [`InvalidName`] if it is empty, longer than [`TYPE_BYTES_MAX`], or has a slash.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        if name.contains('/') {
            return Err(InvalidName::Slash);
        }
        check("entity type's name", name, TYPE_BYTES_MAX)?;
        Ok(Self(name.into()))
    }

    /// The name.
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

/// An entity's id, unique within its type: 1 to [`ENTITY_BYTES_MAX`] bytes. Cheap to clone. Up to 23
/// bytes need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EntityId(SmolStr);

impl EntityId {
    /// The entity called `id`.
    ///
    /// # Errors
    /// [`InvalidName`] if it is empty or longer than [`ENTITY_BYTES_MAX`].
    pub fn new(id: &str) -> Result<Self, InvalidName> {
        check("entity id", id, ENTITY_BYTES_MAX)?;
        Ok(Self(id.into()))
    }

    /// The id.
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

/// A shard of an entity type: a number below `number-of-shards`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ShardId(u32);

impl ShardId {
    /// The shard with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
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

/// A region: of one entity type, on one incarnation of a node. A restart is another region.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RegionId(ReplicaId);

impl RegionId {
    /// The least of all.
    pub(super) const MIN: Self = Self(ReplicaId::new(0));
    /// The greatest of all.
    pub(super) const MAX: Self = Self(ReplicaId::new(u64::MAX));

    /// The region of this incarnation.
    #[must_use]
    pub const fn new(node: ReplicaId) -> Self {
        Self(node)
    }

    /// The incarnation.
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

/// Orders the decisions about a shard, and every message that quotes one: first by the term under
/// which the coordinator decided, then by its own count. The default is below all: "never".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation {
    /// The coordinator's term.
    #[serde(rename = "t")]
    pub term: Term,
    /// Counts this coordinator's writes, from 1.
    #[serde(rename = "s")]
    pub seq: u64,
}

impl Generation {
    /// Below every decision.
    pub const NEVER: Self = Self { term: Term { number: 0, owner: ReplicaId::new(0) }, seq: 0 };

    /// The decision that counts `seq` in a term.
    #[must_use]
    pub const fn new(term: Term, seq: u64) -> Self {
        Self { term, seq }
    }
}

/// `7.3`: the third write of the seventh term.
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
        assert_eq!(EntityType::new("a/homes"), Err(InvalidName::Slash), "another type's keys");
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
