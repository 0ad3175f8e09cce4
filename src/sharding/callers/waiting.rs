//! Who waits for room: registered before the last look at it, and woken after some was made. A look,
//! and making room, are under a lock that both take; so one of the two sees the other.
//!
//! Its tests compile this file a second time, with loom's types under the names of
//! [`sync`](super::sync).

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::task::Waker;

use super::sync::{AtomicBool, Mutex, MutexGuard};

/// Those of one entity type on one node.
pub(in crate::sharding) struct Callers {
    waiting: Mutex<Waiting>,
    any: AtomicBool, // read for each batch of messages
}

#[derive(Default)]
struct Waiting {
    wakers: BTreeMap<u64, Waker>, // by seat; ≤ those that wait
    last: u64,
}

/// The place of one caller: it has one waker at a time, and none once it has gone.
pub(in crate::sharding) struct Seat<'a> {
    callers: &'a Callers,
    number: u64, // 0: not taken yet
}

impl Callers {
    pub(in crate::sharding) fn new() -> Self {
        Self { waiting: Mutex::default(), any: AtomicBool::new(false) }
    }

    /// For somebody who may have to wait.
    pub(in crate::sharding) const fn seat(&self) -> Seat<'_> {
        Seat { callers: self, number: 0 }
    }

    /// How many wait.
    pub(in crate::sharding) fn len(&self) -> usize {
        self.lock().wakers.len()
    }

    /// A buffer or a mailbox has room again.
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

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat<'_> {
    /// Is woken when there is room somewhere, once. Look again after it.
    pub(in crate::sharding) fn wait(&mut self, waker: &Waker) {
        let mut waiting = self.callers.lock();
        if self.number == 0 {
            waiting.last += 1;
            self.number = waiting.last;
        }
        if !waiting.wakers.get(&self.number).is_some_and(|known| known.will_wake(waker)) {
            waiting.wakers.insert(self.number, waker.clone());
        }
        self.callers.any.store(true, Ordering::SeqCst);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.number > 0 {
            self.callers.lock().wakers.remove(&self.number);
        }
    }
}
