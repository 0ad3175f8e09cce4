//! The settings of an entity type on which all nodes must agree. If they differed, each node would
//! look for an entity in another shard, and it could live twice
//! (docs/protocol/sharding.md#settings-must-agree).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::config::Sharding as Settings;

/// Settings on which all nodes must agree. The default matches no type that can run, so a message
/// that leaves this field out agrees with no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreed {
    /// `number-of-shards`, as the extractor reports it.
    #[serde(rename = "n")]
    pub shards: u32,
    /// Name of the extractor.
    #[serde(rename = "x")]
    pub extractor: String,
    /// Whether `remember-entities` is set.
    #[serde(rename = "e", default)]
    pub remember: bool,
    /// `coordinator-role`: with two roles, two nodes would run the coordinator and refuse each
    /// other's terms for ever.
    #[serde(rename = "c", default)]
    pub coordinator_role: Option<String>,
}

impl Agreed {
    /// Makes the value for a type with these settings and an extractor of this name.
    #[must_use]
    pub fn new(settings: &Settings, extractor: &str) -> Self {
        Self {
            shards: settings.number_of_shards,
            extractor: extractor.to_owned(),
            remember: settings.remember_entities,
            coordinator_role: settings.coordinator_role.clone(),
        }
    }
}

impl Agreed {
    /// Returns whether homes that were allocated by one of the settings are valid with the other.
    #[must_use]
    pub fn has_same_homes(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.shards, it.extractor.clone(), it.remember);
        of(self) == of(other)
    }
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, extractor, remember, coordinator_role } = self;
        write!(f, "number-of-shards {shards}, extractor {extractor:?}, ")?;
        write!(f, "remember-entities {remember}, ")?;
        match coordinator_role {
            Some(role) => write!(f, "coordinator-role {role:?}"),
            None => f.write_str("no coordinator-role"),
        }
    }
}
