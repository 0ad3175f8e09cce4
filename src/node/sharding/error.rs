//! Why an entity type was not started, or not served yet.

use std::collections::BTreeSet;

use crate::cluster::member::{ENTITY_TYPES_MAX, NAME_BYTES_MAX};
use crate::sharding::config::ConfigError;
use crate::sharding::ids::{EntityType, InvalidName};

/// Why an entity type was not started. Nothing runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotStarted {
    /// No type can be called that.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Members tell each other what they host, and names there are shorter.
    #[error("the entity type's name has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    LongName {
        /// Its length.
        bytes: usize,
    },
    /// It runs here, with another entity behind it.
    #[error("{entity_type} was started on this node with another entity: choose another name")]
    OtherEntity {
        /// Which.
        entity_type: EntityType,
    },
    /// It was started to route only, and what is to host it would never do.
    #[error(
        "{entity_type} was started on this node by start_proxy, which hosts nothing: call start \
         alone, whose handle routes as well"
    )]
    OnlyRoutes {
        /// Which.
        entity_type: EntityType,
    },
    /// Its settings do not fit together.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// More than a member tells others of.
    #[error("this node has started {ENTITY_TYPES_MAX} entity types, and no more are allowed")]
    TooMany,
    /// Nobody is there to be asked.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

/// The node has stopped, or was started without membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped, or was started without membership")]
pub struct Unanswered;

/// Why a node is not ready to serve. It becomes ready once, and stays so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReady {
    /// Messages wait until it is known where shards live.
    #[error("no coordinator has known the region of {} here yet", list(.types))]
    Unregistered {
        /// Of which types.
        types: BTreeSet<EntityType>, // ≤ ENTITY_TYPES_MAX, and names in the settings
    },
    /// Nothing runs here any more.
    #[error("the node has stopped, or was started without membership")]
    Stopped,
}

fn list(types: &BTreeSet<EntityType>) -> String {
    types.iter().map(EntityType::as_str).collect::<Vec<_>>().join(", ")
}
