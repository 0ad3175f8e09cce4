//! A journal of all instances of a test's nodes. Entities report what they do, and the journal
//! checks the invariants at once. A violation starts with the invariant's name: `instance` (one
//! instance of an entity, only under a lease), `order` (each sender's messages are handled once and
//! in order), `loss` (no message is lost without being counted), `state` (exported state arrives
//! once and unchanged).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use ostraca::sharding::ids::RegionId;

/// The journal that all instances of a test share.
#[derive(Default)]
pub(crate) struct Journal(Mutex<Pages>);

#[derive(Default)]
pub(crate) struct Pages {
    /// The region of each entity's live instance.
    pub(crate) alive: BTreeMap<String, RegionId>,
    /// The message numbers handled, in order, by sender and entity.
    pub(crate) handled: BTreeMap<(u64, String), Vec<u64>>,
    /// Violated invariants, in the order in which they were found.
    pub(crate) violations: Vec<String>,
    pub(crate) started: usize,
    pub(crate) timeouts: usize,
    /// Whether a passivation policy is on, so that an entity may lose its count at any time.
    pub(crate) policy: bool,
    pub(crate) taken: usize,
    /// Regions with a long lapse of their lease, so that their instances may lose their counts.
    pub(crate) lapsed: BTreeSet<RegionId>,
    counts: BTreeMap<String, u64>,
    handed: BTreeMap<String, u64>, // exported and not yet imported
}

impl Journal {
    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("nobody panicked")
    }

    /// An instance begins. No other instance of the entity may be alive.
    pub(crate) fn begins(self: &Arc<Self>, id: &str, node: RegionId) -> Alive {
        let mut pages = self.pages();
        pages.started += 1;
        if let Some(other) = pages.alive.insert(id.to_owned(), node) {
            let what = format!("instance: {id} begins on {node} while it lives on {other}");
            pages.violations.push(what);
        }
        drop(pages);
        Alive { journal: Arc::clone(self), id: id.to_owned() }
    }

    /// A message is handled. The numbers of a sender must rise.
    pub(crate) fn handles(&self, sender: u64, id: &str, number: u64) {
        let mut pages = self.pages();
        let numbers = pages.handled.entry((sender, id.to_owned())).or_default();
        let last = numbers.last().copied();
        numbers.push(number);
        if last.is_some_and(|last| number <= last) {
            let what = format!("order: {id} handles {number} of {sender} after {last:?}");
            pages.violations.push(what);
        }
    }

    /// An entity has counted a message. The count must continue that of its former instance.
    pub(crate) fn counts(&self, id: &str, count: u64) {
        let mut pages = self.pages();
        let expected = pages.counts.get(id).copied().unwrap_or(0) + 1;
        if count != expected && !(pages.policy && count == 1) {
            pages.violations.push(format!("state: {id} counts {count}, not {expected}"));
        }
        pages.counts.insert(id.to_owned(), count);
    }

    pub(crate) fn hands_over(&self, id: &str, count: u64) {
        self.pages().handed.insert(id.to_owned(), count);
    }

    pub(crate) fn takes_over(&self, id: &str, count: u64) {
        let mut pages = self.pages();
        pages.taken += 1;
        let handed = pages.handed.remove(id);
        if handed != Some(count) {
            let what = format!("state: {id} takes {count} over, exported was {handed:?}");
            pages.violations.push(what);
        }
    }

    /// An instance ends. Unless `may_go`, it must have exported its count before.
    pub(crate) fn ends(&self, id: &str, may_go: bool) {
        let Ok(mut pages) = self.0.lock() else { return };
        if pages.handed.contains_key(id) {
            return;
        }
        let may_go = may_go || pages.alive.get(id).is_some_and(|at| pages.lapsed.contains(at));
        if !may_go && !pages.policy {
            pages.violations.push(format!("state: {id} ends without exporting its count"));
        }
        pages.counts.remove(id);
    }

    pub(crate) fn violates(&self, what: String) {
        self.pages().violations.push(what);
    }
}

/// Marks an instance as alive until it is dropped.
pub(crate) struct Alive {
    journal: Arc<Journal>,
    id: String,
}

impl Drop for Alive {
    fn drop(&mut self) {
        if let Ok(mut pages) = self.journal.0.lock() {
            pages.alive.remove(&self.id);
        }
    }
}
