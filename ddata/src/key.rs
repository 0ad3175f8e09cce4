//! Keys of replicated data: a name, with or without the static type of the data.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;

/// The name of a key: text of 1 to [`KEY_BYTES_MAX`] bytes. Neither [`new`](Self::new) nor
/// deserialization checks the length.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyName(#[serde(deserialize_with = "shared_text")] Arc<str>);

impl KeyName {
    /// Creates a key name. Its length, 1 to [`KEY_BYTES_MAX`] bytes, is checked by updates and
    /// deletions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for KeyName {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

/// Deserializes shared text directly, without the intermediate `String` of serde's own
/// implementation. Every entry of every message contains names, so this matters. Fails for anything
/// but text; any length is accepted.
pub(crate) fn shared_text<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = Arc<str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("text")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Arc<str>, E> {
            Ok(text.into())
        }
    }
    from.deserialize_str(Text)
}

/// A key with the type of its data: `Key::<ORSet<String>>::new("online")`.
pub struct Key<T> {
    name: KeyName,
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// Creates a key. The length of its name, 1 to [`KEY_BYTES_MAX`] bytes, is checked by updates
    /// and deletions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: KeyName::new(name), kind: PhantomData }
    }

    /// Returns the name without the type.
    #[must_use]
    pub const fn name(&self) -> &KeyName {
        &self.name
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), kind: PhantomData }
    }
}

impl<T> fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

/// One key, or all keys with a prefix: `"online"`, `"shard-*"`.
///
/// Settings use the same text form. A single key whose name ends in `*` has none, because its text
/// would mean a prefix: serializing its pattern fails.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Exactly the named key.
    Exact(KeyName),
    /// Every key with this prefix.
    Prefix(Arc<str>),
}

impl Pattern {
    /// Parses `"shard-*"` as a prefix, and text without a final `*` as one key. `"*"` matches every
    /// key; a `*` elsewhere has no special meaning.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Exact(text.into()),
        }
    }

    /// Whether the key matches.
    #[must_use]
    pub fn matches(&self, key: &KeyName) -> bool {
        match self {
            Self::Exact(name) => name == key,
            Self::Prefix(prefix) => key.as_str().starts_with(&**prefix),
        }
    }
}

/// Writes the text form. An exact key whose name ends in `*` reads like a prefix.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) => write!(f, "{name}"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Exact(name) if name.as_str().ends_with('*') => {
                let why = format!("the key `{name}` ends in `*`: its text would mean a prefix");
                Err(serde::ser::Error::custom(why))
            }
            _ => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        shared_text(from).map(|text| Self::new(&text))
    }
}

/// A guarded key group: every key with this prefix (docs/protocol/replication.md#guarded-groups).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Group(#[serde(deserialize_with = "shared_text")] Arc<str>);

impl Group {
    /// Creates the group of all keys with the prefix `prefix`. The empty prefix is not checked
    /// here; requests and messages with it are refused, because it would guard every key.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// Returns the prefix of the group.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key belongs to the group: it starts with the prefix, or equals it.
    #[must_use]
    pub fn contains(&self, key: &KeyName) -> bool {
        key.as_str().starts_with(&*self.0)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_reads_back_as_it_was_or_is_not_written() {
        for pattern in [Pattern::new("online"), Pattern::new("shard-*"), Pattern::new("*")] {
            let bytes = rmp_serde::to_vec(&pattern).unwrap();
            assert_eq!(rmp_serde::from_slice::<Pattern>(&bytes).unwrap(), pattern);
        }
        let error = rmp_serde::to_vec(&Pattern::Exact("shard-*".into())).unwrap_err();
        assert!(error.to_string().contains("`shard-*` ends in `*`"), "{error}");
    }
}
