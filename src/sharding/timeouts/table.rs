//! Asks that wait, each with its deadline and who is to be woken then; and who wakes them.
//!
//! There is at most one [`Sweeper`]. Who enters looks for it after that; a sweeper that ends says so
//! first, and then wakes whoever is in. Both are in the table by a stripe's lock; so if the sweeper
//! came too early to see who entered, that one sees that there is none, and begins the next.
//!
//! Its tests compile this file a second time, with loom's types under the names of
//! [`sync`](super::sync).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::task::Waker;

use ostraca_ddata::clock::Instant;
use slab::Slab;

use super::sync::{AtomicBool, Mutex, MutexGuard, STRIPES};
use crate::sharding::forget_panic;
use crate::threads;

/// The asks of one entity type on one node that have no timer of their own.
pub(in crate::sharding) struct Timeouts {
    stripes: [Stripe; STRIPES],
    swept: AtomicBool,
}

/// Those that began to wait on some of the threads. In cache lines of its own, with its lock.
#[repr(align(128))]
struct Stripe(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    /// By key. Room for as many as ever waited at once; given back when a sweeper ends.
    entries: Slab<Entry>,
    /// Nobody is to be woken before that: a sweep that comes earlier looks at no entry.
    next: Option<Instant>,
}

struct Entry {
    deadline: Instant,
    waker: Option<Waker>, // `None`: woken
}

/// The place of one ask. Its key is somebody else's only once it has [left](Timeouts::leave).
#[derive(Debug)]
pub(in crate::sharding) struct Place {
    stripe: usize,
    key: usize,
}

/// Wakes those whose time is over. Dropped, it wakes all the others, for nobody else will.
pub(in crate::sharding) struct Sweeper(Weak<Timeouts>);

impl Timeouts {
    pub(in crate::sharding) fn new() -> Arc<Self> {
        let stripes = std::array::from_fn(|_| Stripe(Mutex::new(Inside::default())));
        Arc::new(Self { stripes, swept: AtomicBool::new(false) })
    }

    /// How many are in.
    #[cfg(any(test, feature = "canaries"))]
    pub(in crate::sharding) fn len(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).entries.len()).sum()
    }

    /// Entries that there is memory for.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        (0..STRIPES).map(|stripe| self.lock(stripe).entries.capacity()).sum()
    }

    fn lock(&self, stripe: usize) -> MutexGuard<'_, Inside> {
        self.stripes[stripe].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ── For those who wait ──

    /// Is woken, once, when a sweep finds that it is so late. Look for a [`sweeper`](Self::sweeper)
    /// after it.
    pub(super) fn enter(&self, deadline: Instant, waker: &Waker) -> Place {
        let stripe = threads::number() % STRIPES; // so those who ask at once mostly have one each
        let entry = Entry { deadline, waker: Some(waker.clone()) };
        let mut inside = self.lock(stripe);
        inside.expect(deadline);
        Place { stripe, key: inside.entries.insert(entry) }
    }

    /// To be run by the caller if there is one: there was none.
    pub(super) fn sweeper(self: &Arc<Self>) -> Option<Sweeper> {
        // Loaded first, for nearly always there is one, and a load leaves the cache line shared.
        let begins = !self.swept.load(Ordering::SeqCst) && !self.swept.swap(true, Ordering::SeqCst);
        begins.then(|| Sweeper(Arc::downgrade(self)))
    }

    /// It is this one that is to be woken from now on. `false`: somebody was, and nobody will be.
    pub(super) fn stay(&self, place: &Place, waker: &Waker) -> bool {
        let mut inside = self.lock(place.stripe);
        let known = &mut inside.entries[place.key].waker;
        let former = match known {
            None => return false,
            Some(known) if known.will_wake(waker) => return true,
            Some(known) => std::mem::replace(known, waker.clone()),
        };
        drop(inside);
        drop(former); // may be the last of its task, and that may hold asks
        true
    }

    /// Waits no longer.
    pub(super) fn leave(&self, Place { stripe, key }: Place) {
        let entry = self.lock(stripe).entries.remove(key);
        drop(entry); // its waker as above: not under the lock
    }

    // ── For the sweeper ──

    /// Nobody sweeps any more.
    pub(super) fn end(&self) {
        self.swept.store(false, Ordering::SeqCst);
    }

    /// Wakes everybody, and keeps no memory for those that will come.
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

impl Inside {
    fn expect(&mut self, deadline: Instant) {
        self.next = Some(self.next.map_or(deadline, |next| next.min(deadline)));
    }

    /// The wakers of those whose time is over.
    fn due(&mut self, now: Instant) -> Vec<Waker> {
        let mut due = Vec::new();
        if self.next.is_none_or(|next| now < next) {
            return due;
        }
        let mut next = None;
        for (_, Entry { deadline, waker }) in &mut self.entries {
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
    /// Wakes whoever waits until now, or less; how many are in. `None`: there is no table any more.
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
    fn drop(&mut self) {
        if let Some(timeouts) = self.0.upgrade() {
            timeouts.end();
            timeouts.wake_all();
        }
    }
}

/// Each of them, also where one panics: they are of the askers' executors, and whoever is left out here
/// never hears that its time is over.
fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            forget_panic(panic); // it was reported by its hook
        }
    }
}
