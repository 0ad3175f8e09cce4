//! Wakers of callers that wait for room. A caller registers before its last check, and the task
//! that makes room wakes afterwards. Check and making room happen under a common lock, so one of
//! the two sees the other, and no wake-up is lost.
//!
//! The loom tests compile this file a second time with loom's types under the names of
//! [`sync`](super::sync).

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::sync::{AtomicBool, Mutex, MutexGuard};

/// The waiting callers of one entity type on one node.
pub(in crate::sharding) struct Callers {
    waiting: Mutex<CallerWakers>,
    /// Whether a waker may be registered: set with each registration, cleared when all are woken.
    /// Checked for each batch of messages, without the lock.
    any: AtomicBool,
}

#[derive(Default)]
struct CallerWakers {
    wakers: BTreeMap<u64, Waker>, // by registration; ≤ waiting callers
    last: u64,                    // number of the last registration
}

/// Registration of one caller: at most one waker, which is removed when this is dropped.
pub(in crate::sharding) struct CallerRegistration<'a> {
    callers: &'a Callers,
    number: u64, // 0: never registered a waker
}

impl Callers {
    pub(in crate::sharding) fn new() -> Self {
        Self { waiting: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// Makes the registration of a caller that may have to wait; it has no waker yet.
    pub(in crate::sharding) const fn registration(&self) -> CallerRegistration<'_> {
        CallerRegistration { callers: self, number: 0 }
    }

    /// Returns the number of waiting callers. A caller that was woken does not count until it
    /// registers again.
    pub(in crate::sharding) fn len(&self) -> usize {
        self.lock().wakers.len()
    }

    /// Wakes all waiting callers, because a buffer or a mailbox has room again, and forgets their
    /// wakers: a caller that must wait on registers again. Wakes outside the lock, in the order of
    /// the registrations. Takes no lock if no waker can be registered.
    pub(in crate::sharding) fn wake(&self) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let wakers = {
            let mut waiting = self.lock();
            self.any.store(false, Ordering::SeqCst);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, CallerWakers> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallerRegistration<'_> {
    /// Registers a waker that is woken once, when there is room in any mailbox or buffer of the
    /// type. Replaces a waker that this registration still has. The caller must check for room
    /// again afterwards: room that was made before is not reported.
    pub(in crate::sharding) fn register(&mut self, waker: &Waker) {
        let mut waiting = self.callers.lock();
        if self.number == 0 {
            waiting.last += 1;
            self.number = waiting.last;
        }
        let known = waiting.wakers.get(&self.number);
        let replaced = match known.is_some_and(|known| known.will_wake(waker)) {
            true => None,
            false => waiting.wakers.insert(self.number, waker.clone()),
        };
        self.callers.any.store(true, Ordering::SeqCst);
        drop(waiting);
        // After the lock: it may be the last owner of a task, with a registration that ends with it.
        drop(replaced);
    }
}

impl Drop for CallerRegistration<'_> {
    fn drop(&mut self) {
        if self.number > 0 {
            let mut waiting = self.callers.lock();
            let removed = waiting.wakers.remove(&self.number);
            drop(waiting);
            drop(removed); // after the lock, as in `register`
        }
    }
}
