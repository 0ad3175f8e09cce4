//! Subscriptions: who is told of which keys, and of what changed in this batch.
//!
//! Changes are gathered and told once, when the batch (or the configured interval) ends, with the
//! value as it is then. Every matching subscription hears, overlapping prefixes included (known
//! failure 36).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::request::SubscriptionId;
use crate::clock::Instant;
use crate::data::Value;
use crate::key::{KeyName, Pattern};

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Subscriptions {
    patterns: BTreeMap<SubscriptionId, Pattern>, // as many as the program opens
    exact: BTreeMap<KeyName, BTreeSet<SubscriptionId>>,
    prefixes: BTreeMap<Arc<str>, BTreeSet<SubscriptionId>>,
    lengths: BTreeMap<usize, usize>, // prefix length → prefixes of that length
    changed: BTreeMap<KeyName, Option<Value>>, // key → what it held before; ≤ keys
    due: Option<Instant>,
}

impl Subscriptions {
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

    /// Whether anybody is to hear of a key.
    pub(super) fn has(&self, key: &KeyName) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let text = key.as_str();
        let mut lengths = self.lengths.keys().take_while(|length| **length <= text.len());
        self.exact.contains_key(key)
            || lengths.any(|l| text.get(..*l).is_some_and(|p| self.prefixes.contains_key(p)))
    }

    /// Everybody who is to hear of a key.
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

    /// Notes that a key changed, and what it held before.
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

    /// When gathered changes are to be told.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes the gathered changes.
    pub(super) fn take(&mut self) -> BTreeMap<KeyName, Option<Value>> {
        self.due = None;
        std::mem::take(&mut self.changed)
    }

    /// Subscriptions and names they are kept under: all zero when everybody has left.
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
    fn known_failure_36_every_overlapping_prefix_hears() {
        let mut subscriptions = Subscriptions::default();
        for (id, pattern) in [(1, "a*"), (2, "ab*"), (3, "abc"), (4, "*"), (5, "b*"), (6, "ab*")] {
            subscriptions.add(SubscriptionId(id), Pattern::new(pattern));
        }
        assert_eq!(subscriptions.of(&"abc".into()), ids(&[1, 2, 3, 4, 6]));
        assert_eq!(subscriptions.of(&"ä".into()), ids(&[4]));
    }

    #[test]
    fn somebody_hears_where_there_is_somebody_to_hear() {
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
    fn who_leaves_leaves_nothing_behind() {
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
