//! What entities did, all nodes together: checked as it happens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use ostraca::sharding::ids::RegionId;

/// Shared by all instances of a test.
#[derive(Default)]
pub(crate) struct Journal(Mutex<Pages>);

#[derive(Default)]
pub(crate) struct Pages {
    /// Of each entity: where its instance lives.
    pub(crate) alive: BTreeMap<String, RegionId>,
    /// By sender and entity: the numbers handled, in order.
    pub(crate) handled: BTreeMap<(u64, String), Vec<u64>>,
    /// What went wrong.
    pub(crate) violations: Vec<String>,
    pub(crate) started: usize,
    pub(crate) timeouts: usize,
    /// What entities count goes with them, unless a policy may have passivated them.
    pub(crate) policy: bool,
    pub(crate) taken: usize,
    /// Whose lease has lapsed for long: what their instances count may go at any time.
    pub(crate) lapsed: BTreeSet<RegionId>,
    counts: BTreeMap<String, u64>,
    handed: BTreeMap<String, u64>, // on its way
}

impl Journal {
    pub(crate) fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().expect("nobody panicked")
    }

    /// I4: an instance begins.
    pub(crate) fn begins(self: &Arc<Self>, id: &str, node: RegionId) -> Alive {
        let mut pages = self.pages();
        pages.started += 1;
        if let Some(other) = pages.alive.insert(id.to_owned(), node) {
            let what = format!("I4: {id} begins on {node} while it lives on {other}");
            pages.violations.push(what);
        }
        drop(pages);
        Alive { journal: Arc::clone(self), id: id.to_owned() }
    }

    /// I5, I6: a message of a sender is handled.
    pub(crate) fn handles(&self, sender: u64, id: &str, number: u64) {
        let mut pages = self.pages();
        let numbers = pages.handled.entry((sender, id.to_owned())).or_default();
        let last = numbers.last().copied();
        numbers.push(number);
        if last.is_some_and(|last| number <= last) {
            let what = format!("I5: {id} handles {number} of {sender} after {last:?}");
            pages.violations.push(what);
        }
    }

    /// S: an entity counts a message, as the one after those that it has counted anywhere.
    pub(crate) fn counts(&self, id: &str, count: u64) {
        let mut pages = self.pages();
        let expected = pages.counts.get(id).copied().unwrap_or(0) + 1;
        if count != expected && !(pages.policy && count == 1) {
            pages.violations.push(format!("S: {id} counts {count}, not {expected}"));
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
            pages.violations.push(format!("S: {id} takes {count} over, handed were {handed:?}"));
        }
    }

    /// An instance ends. If it may, what it had counted is gone.
    pub(crate) fn ends(&self, id: &str, may_go: bool) {
        let Ok(mut pages) = self.0.lock() else { return };
        if pages.handed.contains_key(id) {
            return;
        }
        let may_go = may_go || pages.alive.get(id).is_some_and(|at| pages.lapsed.contains(at));
        if !may_go && !pages.policy {
            pages.violations.push(format!("S: {id} ends and hands nothing over"));
        }
        pages.counts.remove(id);
    }

    pub(crate) fn violates(&self, what: String) {
        self.pages().violations.push(what);
    }
}

/// An instance lives as long as this.
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
