//! The table of pending asks with their deadlines and wakers, and the sweeper that wakes them.
//!
//! There is at most one [`Sweeper`]. An ask enters the table first and looks for a sweeper
//! afterwards; a sweeper that ends first clears the flag `swept` and then wakes all entries. Both
//! hold the lock of the stripe for the entry. So either the ending sweeper sees the new entry, or
//! the ask sees that there is no sweeper and starts the next one.
//!
//! The loom tests compile this file a second time with loom's types under the names of
//! [`sync`](super::sync).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use crossbeam_utils::CachePadded;
use ostraca_ddata::clock::Instant;
use slab::Slab;

use super::sync::{AtomicBool, Mutex, MutexGuard, STRIPES};
use crate::sharding::forget_panic;
use crate::threads;

/// The asks of one entity type on one node that have no timer of their own.
pub(in crate::sharding) struct Timeouts {
    /// Each has the asks that began on some of the threads, with their lock in its own cache lines.
    stripes: [CachePadded<Mutex<StripeState>>; STRIPES],
    swept: AtomicBool, // a sweeper exists
}

#[derive(Default)]
struct StripeState {
    /// By key. Grows to the most asks that ever waited at once; freed when a sweeper ends.
    entries: Slab<TimeoutEntry>,
    /// No entry is due before this time, so an earlier sweep checks none.
    next: Option<Instant>,
}

struct TimeoutEntry {
    deadline: Instant,
    waker: Option<Waker>, // `None`: woken
}

/// Position of one ask. Its key is reused only after it has [left](Timeouts::leave).
#[derive(Debug)]
pub(in crate::sharding) struct TimeoutPlace {
    stripe: usize,
    key: usize,
}

/// Wakes the asks whose time is over. When dropped it wakes all others, because nothing else will,
/// and lets an ask claim the next sweeper.
pub(in crate::sharding) struct Sweeper(Weak<Timeouts>);

impl Timeouts {
    pub(in crate::sharding) fn new() -> Arc<Self> {
        let stripes = std::array::from_fn(|_| CachePadded::new(Mutex::new(StripeState::default())));
        Arc::new(Self { stripes, swept: AtomicBool::new(false) })
    }

    /// Returns the number of entries.
    #[cfg(any(test, feature = "canaries"))]
    pub(in crate::sharding) fn len(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).entries.len()).sum()
    }

    /// Returns the number of entries for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).entries.capacity()).sum()
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, StripeState> {
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ── Called by asks ──

    /// Adds an ask, which is woken once: when a sweep finds that its deadline has passed, or when
    /// the sweeper ends. A deadline in the past also waits for the next sweep. Look for a
    /// [`claim_sweeper`](Self::claim_sweeper) afterwards.
    pub(super) fn enter(&self, deadline: Instant, waker: &Waker) -> TimeoutPlace {
        let stripe = threads::number() % STRIPES; // mostly another one per asker
        let entry = TimeoutEntry { deadline, waker: Some(waker.clone()) };
        let mut inside = self.lock(stripe);
        inside.expect(deadline);
        TimeoutPlace { stripe, key: inside.entries.insert(entry) }
    }

    /// Returns a sweeper that the caller must run, if there is none; `None` if there is one, also
    /// if nobody runs it. Dropping it lets the next ask claim one.
    pub(super) fn claim_sweeper(self: &Arc<Self>) -> Option<Sweeper> {
        // Loaded first, because nearly always there is a sweeper, and a load keeps the cache line
        // shared.
        let begins = !self.swept.load(Ordering::SeqCst) && !self.swept.swap(true, Ordering::SeqCst);
        begins.then(|| Sweeper(Arc::downgrade(self)))
    }

    /// Replaces the waker. Returns false if the ask was woken, and will not be woken again: its
    /// deadline has passed, or its sweeper has ended. The former waker is dropped without the
    /// lock.
    pub(super) fn stay(&self, place: &TimeoutPlace, waker: &Waker) -> bool {
        let mut inside = self.lock(place.stripe);
        let known = &mut inside.entries[place.key].waker;
        let former = match known {
            None => return false,
            Some(known) if known.will_wake(waker) => return true,
            Some(known) => std::mem::replace(known, waker.clone()),
        };
        drop(inside);
        drop(former); // may be the last reference to its task, which may own asks
        true
    }

    /// Removes an ask that no longer waits, woken or not, without waking it.
    pub(super) fn leave(&self, TimeoutPlace { stripe, key }: TimeoutPlace) {
        let entry = self.lock(stripe).entries.remove(key);
        drop(entry); // its waker as above: not under the lock
    }

    // ── Called by the sweeper ──

    /// Records that no sweeper runs. Must be followed by [`wake_all`](Self::wake_all), for the asks
    /// that entered before and found a sweeper.
    pub(super) fn end(&self) {
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Wakes all asks that were not woken yet, whatever their deadlines, and frees the memory of
    /// empty stripes. The entries stay until their asks [leave](Self::leave), and no sweep wakes
    /// them again. Wakes without the lock, one stripe after the other.
    pub(super) fn wake_all(&self) {
        for stripe in 0..STRIPES {
            let mut wakers = Vec::new();
            {
                let mut inside = self.lock(stripe);
                let entries = inside.entries.iter_mut();
                wakers.extend(entries.filter_map(|(_, entry)| entry.waker.take()));
                inside.next = None;
                if inside.entries.is_empty() {
                    inside.entries = Slab::new();
                }
            }
            wake(wakers);
        }
    }
}

impl StripeState {
    /// Lets sweeps check this stripe from `deadline` on, unless an earlier one is expected.
    fn expect(&mut self, deadline: Instant) {
        self.next = Some(self.next.map_or(deadline, |next| next.min(deadline)));
    }

    /// Takes the wakers of the asks whose deadline is at or before `now`, so that each is woken
    /// once; their entries stay. Looks at no entry before the earliest expected deadline, which may
    /// be the one of an ask that has left. Sets it to the earliest among the asks that were not
    /// woken.
    fn due(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        if self.next.is_none_or(|next| now < next) {
            return due;
        }
        let mut next = None;
        for (_, TimeoutEntry { deadline, waker }) in &mut self.entries {
            if *deadline <= now {
                due.extend(waker.take());
            } else if waker.is_some() {
                next = Some(next.map_or(*deadline, |next: Instant| next.min(*deadline)));
            }
        }
        self.next = next;
        due
    }
}

impl Sweeper {
    /// Wakes the asks whose deadline is at or before `now`. Returns the number of entries, with
    /// those that were woken and have not left yet; `None` if the table was dropped.
    pub(super) fn sweep(&self, now: Instant) -> Option<usize> {
        let timeouts = self.0.upgrade()?;
        let sweep = |stripe| {
            let (due, waiting) = {
                let mut inside = timeouts.lock(stripe);
                (inside.due(now), inside.entries.len())
            };
            wake(due);
            waiting
        };
        Some((0..STRIPES).map(sweep).sum())
    }
}

impl Drop for Sweeper {
    /// Ends the sweeper, and wakes all asks. Does nothing if the table was dropped.
    fn drop(&mut self) {
        if let Some(timeouts) = self.0.upgrade() {
            timeouts.end();
            timeouts.wake_all();
        }
    }
}

/// Wakes each of them, also if one panics: they belong to the executors of the askers, and a
/// skipped one would never learn of its timeout.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            forget_panic(panic); // its panic hook has reported it
        }
    }
}
