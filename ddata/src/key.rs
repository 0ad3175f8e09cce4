//! Keys of replicated data: a name, with or without the type of what it holds.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1_024;

/// The name of a key: any text up to [`KEY_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyName(#[serde(deserialize_with = "shared_text")] Arc<str>);

impl KeyName {
    /// The key called `name`. Its length, 1 to [`KEY_BYTES_MAX`] bytes, is checked by updates and
    /// deletions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
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

/// Reads shared text without a `String` on the way, as serde's own implementation has: names stand
/// in every entry of every message.
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

/// A key and the type of data it holds: `Key::<ORSet<String>>::new("online")`.
pub struct Key<T> {
    name: KeyName,
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The key called `name`. Its length, 1 to [`KEY_BYTES_MAX`] bytes, is checked by updates and
    /// deletions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: KeyName::new(name), kind: PhantomData }
    }

    /// The name.
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

/// One key, or all keys that begin with a prefix: `"online"`, `"shard-*"`.
///
/// In settings it is written like that.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// Exactly this key.
    Exact(KeyName),
    /// Every key that begins so.
    Prefix(Arc<str>),
}

impl Pattern {
    /// Reads `"shard-*"` as a prefix and anything without a final `*` as one key.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Exact(text.into()),
        }
    }

    /// Whether it means this key.
    #[must_use]
    pub fn matches(&self, key: &KeyName) -> bool {
        match self {
            Self::Exact(name) => name == key,
            Self::Prefix(prefix) => key.as_str().starts_with(&**prefix),
        }
    }
}

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
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        shared_text(from).map(|text| Self::new(&text))
    }
}

/// A guarded key group: every key that begins with this prefix (spec/safety.md §2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Group(#[serde(deserialize_with = "shared_text")] Arc<str>);

impl Group {
    /// The group of all keys that begin with `prefix`.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self(prefix.into())
    }

    /// The prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the key belongs to it.
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
