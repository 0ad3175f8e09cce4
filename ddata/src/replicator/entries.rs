//! The entries of a write message, shared by every message that brings the same: a push is held
//! once and encoded once, however many peers it goes to and however often it is sent again.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::wire::{Entry, encode};

/// Entries that many messages share. See the module's page.
#[derive(Clone, Default)]
pub struct Entries(Arc<Shared>);

#[derive(Default)]
struct Shared {
    all: Vec<Entry>,
    encoded: OnceLock<Vec<u8>>, // of the list, as it stands in a message
}

impl Entries {
    /// The list as it stands in a message.
    pub(super) fn encoded(&self) -> &[u8] {
        self.0.encoded.get_or_init(|| encode(&self.0.all))
    }
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.0.all
    }
}

impl From<Vec<Entry>> for Entries {
    fn from(all: Vec<Entry>) -> Self {
        Self(Arc::new(Shared { all, encoded: OnceLock::new() }))
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(all: I) -> Self {
        all.into_iter().collect::<Vec<_>>().into()
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.0.all == other.0.all
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.all.hash(hasher);
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.all.fmt(f)
    }
}

impl Serialize for Entries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Self::from)
    }
}
