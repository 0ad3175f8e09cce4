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
    use super::super::wire::{Body, Content, Message};
    use super::*;

    fn message(count: u32, epoch: Option<EpochId>) -> Message {
        let entry = |index| {
            let content = Content::Delta(vec![7; 40].into());
            Entry { index, key: "k".into(), shape: "or-set".into(), guard: None, content }
        };
        let entries = (0..count).map(entry).collect();
        Message {
            epoch,
            body: Body::Write { push: 1 << 40, whole: count.is_multiple_of(2), entries },
        }
    }

    #[test]
    fn a_write_has_the_bytes_that_one_pass_over_it_gives() {
        for count in [0, 1, 15, 16, 70_000] {
            for epoch in [None, Some(EpochId { generation: 1, number: 300 })] {
                let message = message(count, epoch);
                assert_eq!(message.encode(), encode(&message), "{count} entries");
            }
        }
    }

    #[test]
    fn what_many_messages_share_is_encoded_once() {
        let entries: Entries = match message(3, None).body {
            Body::Write { entries, .. } => entries,
            body => panic!("{body:?}"),
        };
        let again = entries.clone();
        assert!(std::ptr::eq(entries.encoded(), again.encoded()));
    }
}
