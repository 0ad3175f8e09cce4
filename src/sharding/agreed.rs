//! What all nodes must say alike of an entity type. Where they differ, an entity could live twice:
//! each node would look for it in another shard.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::config::Sharding as Settings;

/// See the module's page. The default is of no type that can run: nobody agrees with a word that
/// leaves it out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Agreed {
    /// `number-of-shards`, or what the extractor says.
    #[serde(rename = "n")]
    pub shards: u32,
    /// The extractor's name.
    #[serde(rename = "x")]
    pub extractor: String,
    /// `remember-entities`.
    #[serde(rename = "e", default)]
    pub remember: bool,
    /// `coordinator-role`: with two of them two nodes would run the coordinator, and refuse each
    /// other's terms for ever.
    #[serde(rename = "c", default)]
    pub coordinator_role: Option<String>,
}

impl Agreed {
    /// What these settings say, of a type whose extractor has this name.
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
    /// Whether homes that were given by these settings are of use by those.
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
