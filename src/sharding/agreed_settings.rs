//! The settings of an entity type on which all nodes must agree. If they differed, each node would
//! look for an entity in another shard, and it could live twice
//! (docs/protocol/sharding.md#settings-must-agree).

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::config::ShardingConfig as Settings;
use crate::cluster::member::NAME_BYTES_MAX;

/// Settings on which all nodes must agree. The default matches no type that can run, so a message
/// that leaves this field out agrees with no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgreedSettings {
    /// `number-of-shards`, as the extractor reports it.
    #[serde(rename = "n")]
    pub shards: u32,
    /// Name of the extractor, at most [`NAME_BYTES_MAX`] bytes.
    #[serde(rename = "x", deserialize_with = "name")]
    pub extractor: String,
    /// Whether `remember-entities` is set.
    #[serde(rename = "e", default)]
    pub remember: bool,
    /// `coordinator-role`: with two roles, two nodes would run the coordinator and refuse each
    /// other's terms for ever. At most [`NAME_BYTES_MAX`] bytes, as each role.
    #[serde(rename = "c", default, deserialize_with = "role")]
    pub coordinator_role: Option<String>,
}

impl AgreedSettings {
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

impl AgreedSettings {
    /// Returns whether homes that were allocated by one of the settings are valid with the other:
    /// all but `coordinator_role` must be equal.
    #[must_use]
    pub fn has_same_homes(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.shards, it.extractor.clone(), it.remember);
        of(self) == of(other)
    }
}

/// Decodes a name. A coordinator keeps and logs the names of other nodes, so a name of more than
/// [`NAME_BYTES_MAX`] bytes is an error, which does not repeat the name.
fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    short(String::deserialize(from)?)
}

/// Decodes an optional role with the limit of [`name`].
fn role<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Option::<String>::deserialize(from)?.map(short).transpose()
}

/// Returns the name, or an error if it has more than [`NAME_BYTES_MAX`] bytes.
fn short<E: Error>(name: String) -> Result<String, E> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(name);
    }
    let len = name.len();
    Err(E::custom(format_args!("a name of {len} bytes, at most {NAME_BYTES_MAX} are allowed")))
}

/// Names each setting as in the configuration, for logs of a difference.
impl fmt::Display for AgreedSettings {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_above_128_bytes_are_not_decoded() {
        let of = |extractor: usize, role: usize| AgreedSettings {
            shards: 100,
            extractor: "x".repeat(extractor),
            remember: false,
            coordinator_role: Some("r".repeat(role)),
        };
        let again = |agreed: &AgreedSettings| {
            let bytes = rmp_serde::to_vec_named(agreed).expect("plain data");
            rmp_serde::from_slice::<AgreedSettings>(&bytes).map_err(|error| error.to_string())
        };
        let longest = of(NAME_BYTES_MAX, NAME_BYTES_MAX);
        assert_eq!(again(&longest), Ok(longest));
        for long in [of(NAME_BYTES_MAX + 1, 1), of(1, NAME_BYTES_MAX + 1)] {
            let error = again(&long).expect_err("too long");
            assert!(error.contains("a name of 129 bytes, at most 128 are allowed"), "{error}");
        }
    }
}
