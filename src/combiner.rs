//! [`Combiner`]: a value that a task owns, and that other threads use in its place while it is free
//! (flat combining: Hendler, Incze, Shavit, Tzafrir, "Flat Combining and the
//! Synchronization-Parallelism Tradeoff", SPAA 2010).
//!
//! A helper first queues its work where the owner finds it, and then tries to use the value. If
//! that fails, it wakes the owner, which does the work; so no helper waits.
//!
//! An owner that may block calls [`work_blocking`](Combiner::work_blocking), and its helpers
//! [`try_help`](Combiner::try_help). An owner that must not block calls [`work`](Combiner::work),
//! and its helpers [`help`](Combiner::help): an owner that found the value in use is woken by the
//! helper that used it, so it misses no work.
//!
//! Only the synchronisation is here. Tests compile this file again with loom's types under the
//! names of [`sync`](super::sync).

use std::sync::{PoisonError, TryLockError};

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, fence};

/// Holds a value for its owner and its helpers.
#[derive(Debug)]
pub(crate) struct Combiner<T> {
    value: Mutex<Option<T>>, // `None` after `remove`
    missed: AtomicBool,      // the owner found it in use, and has not worked since
}

/// Result of an attempt of the owner to use the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnerAccess<R> {
    /// The value was free; the result of the call.
    Free(R),
    /// A helper uses the value, and will have the owner woken.
    Busy,
    /// The value was removed, or a user of it has panicked.
    Gone,
}

impl<T> Combiner<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(Some(value)), missed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ── Owner ──

    /// Runs the owner's work, without blocking.
    pub(crate) fn work<R>(&self, work: impl FnOnce(&mut T) -> R) -> OwnerAccess<R> {
        self.query(|value| {
            self.missed.store(false, Ordering::Relaxed);
            work(value)
        })
    }

    /// Runs a query of the owner, without blocking. It does not count as its work: once this has
    /// found the value in use, [`owner_waits`](Self::owner_waits) until the next
    /// [`work`](Self::work).
    pub(crate) fn query<R>(&self, query: impl FnOnce(&mut T) -> R) -> OwnerAccess<R> {
        let mut value = self.value.try_lock();
        if matches!(value, Err(TryLockError::WouldBlock)) {
            self.missed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst); // either the value is free here, or its user sees `missed`
            value = self.value.try_lock();
        }
        match value {
            Ok(mut value) => {
                value.as_mut().map_or(OwnerAccess::Gone, |it| OwnerAccess::Free(query(it)))
            }
            Err(TryLockError::WouldBlock) => OwnerAccess::Busy,
            Err(TryLockError::Poisoned(_)) => OwnerAccess::Gone,
        }
    }

    /// Runs the owner's work; blocks while a helper uses the value. Also works after a user of the
    /// value has panicked.
    ///
    /// # Panics
    /// After [`remove`](Self::remove).
    pub(crate) fn work_blocking<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        work(self.lock().as_mut().expect("only its owner removes it, at its end"))
    }

    /// Removes the value, because its owner ends. Blocks while it is in use; also works after a
    /// user of it has panicked. `None` if it was removed before.
    pub(crate) fn remove(&self) -> Option<T> {
        self.lock().take()
    }

    // ── Helpers ──

    /// Whether the owner has found the value in use, and has not worked since. A helper may leave
    /// its work to the owner then.
    pub(crate) fn owner_waits(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// Runs `help` if nobody uses the value, and returns its result. Otherwise returns `false`,
    /// also if the value was removed or a user of it has panicked. On `false` the caller must wake
    /// the owner. Never blocks. For owners that block.
    #[must_use = "the owner must be woken on `false`"]
    pub(crate) fn try_help(&self, help: impl FnOnce(&mut T) -> bool) -> bool {
        self.value.try_lock().is_ok_and(|mut value| value.as_mut().is_some_and(help))
    }

    /// Like [`try_help`](Self::try_help), for owners that do not block: also returns `false` if the
    /// owner has found the value in use meanwhile.
    #[must_use = "the owner must be woken on `false`"]
    pub(crate) fn help(&self, help: impl FnOnce(&mut T) -> bool) -> bool {
        self.try_help(help) && {
            fence(Ordering::SeqCst); // as in `query`
            !self.owner_waits()
        }
    }
}

/// Removes and drops the value when its owner ends in any way, although helpers keep the combiner.
/// Blocks while a helper uses the value.
pub(crate) struct RemoveOnDrop<'a, T>(pub(crate) &'a Combiner<T>);

impl<T> Drop for RemoveOnDrop<'_, T> {
    fn drop(&mut self) {
        drop(self.0.remove());
    }
}
