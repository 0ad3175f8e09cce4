//! Errors of starting an entity type and of the readiness check.

use std::collections::BTreeSet;

use crate::cluster::member::{ENTITY_TYPES_MAX, NAME_BYTES_MAX};
use crate::node::shutdown::Reason;
use crate::sharding::config::ShardingConfigError;
use crate::sharding::ids::{EntityType, InvalidName};

/// Why an entity type was not started. The call has started nothing; a type that an earlier call
/// started continues to run. Of several causes the first in this order is reported: `Name`,
/// `LongExtractor`, `OtherEntity`, `OnlyRoutes`, `LongName`, `Settings`, `TooMany`, `Stopped`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotStarted {
    /// The name is not valid for an entity type.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The name is too long for the gossip in which members announce the types that they host.
    #[error("the entity type's name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    LongName {
        /// Length of the name in bytes.
        bytes: usize,
    },
    /// The name of the extractor is too long: other nodes would refuse it.
    #[error("the extractor's name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    LongExtractor {
        /// Length of the name in bytes.
        bytes: usize,
    },
    /// The type was started on this node with another Rust type as its entity.
    #[error("{entity_type} was started on this node with another entity: choose another name")]
    OtherEntity {
        /// Name of the entity type.
        entity_type: EntityType,
    },
    /// The type was started on this node as a proxy, which would never host it.
    #[error(
        "{entity_type} was started on this node by start_proxy, which hosts nothing: call start \
         alone, whose handle routes as well"
    )]
    OnlyRoutes {
        /// Name of the entity type.
        entity_type: EntityType,
    },
    /// The settings of the type are invalid or contradict each other. Not checked for a type that
    /// was started before, whose first settings stay in force.
    #[error(transparent)]
    Settings(#[from] ShardingConfigError),
    /// This node has started as many entity types as a member can announce, proxies included.
    #[error("this node has started {ENTITY_TYPES_MAX} entity types, which is the maximum")]
    TooMany,
    /// The node has stopped, or was started without membership. Also reported if membership ends
    /// while the call waits, and for a type that was started before.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

/// The node has stopped, or was started without membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped, or was started without membership")]
pub struct ShardingUnavailable;

/// Why a node is not ready to serve. Once ready, a node stays ready until its shutdown begins, or
/// until it starts a further type, if `healthcheck.names` is empty. Of several causes `Stopped` is
/// reported first, then `Stopping`, then `Unregistered`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// Regions of this node were never registered, among them types in `healthcheck.names` that
    /// this node has not started. Messages are buffered until homes are known.
    #[error("no coordinator has registered the region of {} on this node yet", list(.types))]
    Unregistered {
        /// The entity types of these regions.
        types: BTreeSet<EntityType>, // ≤ ENTITY_TYPES_MAX, and names in the settings
    },
    /// The shutdown of the node has begun: it hands its shards over and leaves.
    #[error("the node is stopping: {reason}")]
    Stopping {
        /// Reason of the shutdown.
        reason: Reason,
    },
    /// The node has stopped, or was started without membership. Reported instead of
    /// [`Stopping`](Self::Stopping) once membership has ended.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

fn list(types: &BTreeSet<EntityType>) -> String {
    types.iter().map(EntityType::as_str).collect::<Vec<_>>().join(", ")
}
