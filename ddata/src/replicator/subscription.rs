//! The subscriptions of this replica and the changes gathered for their next notice.
//!
//! Changes are *gathered* per key and reported once, when the batch (or the configured interval)
//! ends, with the value at that time; then gathering begins anew. Every matching subscription is
//! notified, overlapping prefixes included
//! (docs/protocol/replication.md#subscribers-see-the-latest-value).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::request::SubscriptionId;
use crate::clock::Instant;
use crate::data::Value;
use crate::key::{KeyName, Pattern};

/// Subscriptions, indexed by key and by prefix, and the gathered changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscriptions {
    patterns: BTreeMap<SubscriptionId, Pattern>, // as many as the program opens
    exact: BTreeMap<KeyName, BTreeSet<SubscriptionId>>,
    prefixes: BTreeMap<Arc<str>, BTreeSet<SubscriptionId>>,
    lengths: BTreeMap<usize, usize>, // prefix length → prefixes of that length
    changed: BTreeMap<KeyName, Option<Value>>, // gathered key → value before; ≤ keys
    due: Option<Instant>,            // when `changed` must be reported; `None` without changes
}

impl Subscriptions {
    /// Opens a subscription, which replaces one with the same id. It will also get the changes of
    /// its keys that are gathered already; the caller sends the present values.
    pub(super) fn add(&mut self, id: SubscriptionId, pattern: Pattern) {
        self.remove(id);
        match &pattern {
            Pattern::Exact(key) => {
                self.exact.entry(key.clone()).or_default().insert(id);
            }
            Pattern::Prefix(prefix) => {
                let subscribers = self.prefixes.entry(prefix.clone()).or_default();
                if subscribers.is_empty() {
                    *self.lengths.entry(prefix.len()).or_default() += 1;
                }
                subscribers.insert(id);
            }
        }
        self.patterns.insert(id, pattern);
    }

    /// Ends a subscription; does nothing if it is not open. Changes that were gathered for it stay
    /// gathered, and the time of their notice stays, even if no subscription is left.
    pub(super) fn remove(&mut self, id: SubscriptionId) {
        match self.patterns.remove(&id) {
            Some(Pattern::Exact(key)) => {
                if let Some(subscribers) = self.exact.get_mut(&key) {
                    subscribers.remove(&id);
                    if subscribers.is_empty() {
                        self.exact.remove(&key);
                    }
                }
            }
            Some(Pattern::Prefix(prefix)) => self.remove_prefix(id, &prefix),
            None => {}
        }
    }

    /// Removes a subscription from the index of a prefix, and frees the prefix and its length if no
    /// other subscription needs them.
    fn remove_prefix(&mut self, id: SubscriptionId, prefix: &Arc<str>) {
        let Some(subscribers) = self.prefixes.get_mut(prefix) else { return };
        subscribers.remove(&id);
        if !subscribers.is_empty() {
            return;
        }
        self.prefixes.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// Whether a subscription matches a key, exactly or by a prefix of it. The empty prefix matches
    /// every key.
    pub(super) fn has(&self, key: &KeyName) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let text = key.as_str();
        let mut lengths = self.lengths.keys().take_while(|length| **length <= text.len());
        self.exact.contains_key(key)
            || lengths.any(|l| text.get(..*l).is_some_and(|p| self.prefixes.contains_key(p)))
    }

    /// All subscriptions that match a key, each once, by their patterns now; empty if there are
    /// none.
    pub(super) fn of(&self, key: &KeyName) -> BTreeSet<SubscriptionId> {
        let mut all = self.exact.get(key).cloned().unwrap_or_default();
        let text = key.as_str();
        for &length in self.lengths.keys().take_while(|length| **length <= text.len()) {
            if let Some(subscribers) = text.get(..length).and_then(|p| self.prefixes.get(p)) {
                all.extend(subscribers);
            }
        }
        all
    }

    /// Gathers a changed key; ignored if no subscription matches it, or it is gathered already.
    /// `before` gives its previous value; it is called only for the first change of a key since the
    /// last notice. The first gathered change sets the time of the notice, `interval` from now;
    /// later ones, of whatever key, do not move it.
    pub(super) fn changed(
        &mut self,
        now: Instant,
        interval: Duration,
        key: &KeyName,
        before: impl FnOnce() -> Option<Value>,
    ) {
        if !self.has(key) || self.changed.contains_key(key) {
            return;
        }
        self.changed.insert(key.clone(), before());
        self.due.get_or_insert(now + interval);
    }

    /// When the gathered changes must be reported; `None` if there are none.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes the gathered changes and clears the time of their notice: each key with its value
    /// before the first gathered change, `None` if it had none. Some keys may match no subscription
    /// any longer.
    pub(super) fn take(&mut self) -> BTreeMap<KeyName, Option<Value>> {
        self.due = None;
        std::mem::take(&mut self.changed)
    }

    /// The sizes of all indexes; all zero without subscriptions.
    #[cfg(test)]
    fn sizes(&self) -> [usize; 4] {
        [self.patterns.len(), self.exact.len(), self.prefixes.len(), self.lengths.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[u64]) -> BTreeSet<SubscriptionId> {
        ids.iter().copied().map(SubscriptionId).collect()
    }

    #[test]
    fn known_failure_36_overlapping_prefixes_all_match() {
        let mut subscriptions = Subscriptions::default();
        for (id, pattern) in [(1, "a*"), (2, "ab*"), (3, "abc"), (4, "*"), (5, "b*"), (6, "ab*")] {
            subscriptions.add(SubscriptionId(id), Pattern::new(pattern));
        }
        assert_eq!(subscriptions.of(&"abc".into()), ids(&[1, 2, 3, 4, 6]));
        assert_eq!(subscriptions.of(&"ä".into()), ids(&[4]));
    }

    #[test]
    fn has_agrees_with_of() {
        let mut subscriptions = Subscriptions::default();
        for (id, pattern) in [(1, "ab*"), (2, "abc"), (3, "ä*")] {
            subscriptions.add(SubscriptionId(id), Pattern::new(pattern));
        }
        for key in ["", "a", "ab", "abc", "abd", "b", "ä", "äb"] {
            let key = key.into();
            assert_eq!(subscriptions.has(&key), !subscriptions.of(&key).is_empty(), "{key}");
        }
    }

    #[test]
    fn removed_subscriptions_free_all_state() {
        let mut subscriptions = Subscriptions::default();
        for (id, pattern) in [(1, "a*"), (2, "a*"), (3, "abc")] {
            subscriptions.add(SubscriptionId(id), Pattern::new(pattern));
        }
        for id in 1..=3 {
            subscriptions.remove(SubscriptionId(id));
        }
        assert_eq!(subscriptions.sizes(), [0; 4]);
        assert!(subscriptions.of(&"abc".into()).is_empty());
    }
}
