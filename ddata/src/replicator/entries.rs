//! The entries of a write message, shared by all messages with the same entries. A push is stored
//! once and encoded once, whatever the number of peers and resends.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::wire::{Entry, encode};

/// A list of entries that many messages share. Cloning copies a pointer; the encoding is cached.
#[derive(Clone, Default)]
pub struct Entries(Arc<SharedEntries>);

#[derive(Default)]
struct SharedEntries {
    all: Vec<Entry>,
    encoded: OnceLock<Vec<u8>>, // the list as it is encoded in a message
}

impl Entries {
    /// The list as it is encoded in a message. Encoded at the first call and kept, for all copies.
    /// `Serialize` does not use it.
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
        Self(Arc::new(SharedEntries { all, encoded: OnceLock::new() }))
    }
}

impl FromIterator<Entry> for Entries {
    fn from_iter<I: IntoIterator<Item = Entry>>(all: I) -> Self {
        all.into_iter().collect::<Vec<_>>().into()
    }
}

/// Compares the lists; copies of one list are equal without a look at the entries.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.all == other.0.all
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
        crate::encoded::list(deserializer).map(|all: Vec<Entry>| Self::from(all))
    }
}

#[cfg(test)]
mod tests {
    use super::super::epoch::EpochId;
    use super::super::wire::{Body, EntryContent, ReplicatorMessage};
    use super::*;

    fn message(count: u32, epoch: Option<EpochId>) -> ReplicatorMessage {
        let entry = |index| {
            let content = EntryContent::Delta(vec![7; 40].into());
            Entry { index, key: "k".into(), shape: "or-set".into(), guard: None, content }
        };
        let entries = (0..count).map(entry).collect();
        ReplicatorMessage {
            epoch,
            body: Body::Write { push: 1 << 40, whole: count.is_multiple_of(2), entries },
        }
    }

    #[test]
    fn cached_entries_encode_like_the_whole_message() {
        for count in [0, 1, 15, 16, 70_000] {
            for epoch in [None, Some(EpochId { generation: 1, number: 300 })] {
                let message = message(count, epoch);
                assert_eq!(message.encode(), encode(&message), "{count} entries");
            }
        }
    }

    #[test]
    fn shared_entries_are_encoded_once() {
        let entries: Entries = match message(3, None).body {
            Body::Write { entries, .. } => entries,
            body => panic!("{body:?}"),
        };
        let again = entries.clone();
        assert!(std::ptr::eq(entries.encoded(), again.encoded()));
    }
}
