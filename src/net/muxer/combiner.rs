//! Shared access to the session: the connection's task uses it, or a writer inline. Neither blocks;
//! only [`SessionCombiner::remove`] does.
//!
//! Only the synchronisation is here. Tests compile this file a second time with loom's types, like
//! the `combiner` of [`lane`](crate::net::lane).

use std::sync::{PoisonError, TryLockError};

use super::sync::{AtomicBool, Mutex, Ordering, fence};

/// Holds the session for the task and the writers. A task that found the session in use is woken by
/// the writer that used it, so the task misses no work.
#[derive(Debug)]
pub(super) struct SessionCombiner<S> {
    session: Mutex<Option<S>>, // `None` after `remove`
    missed: AtomicBool,        // the task found it in use, and has not worked since
}

/// Result of an attempt of the task to use the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionAccess<T> {
    /// The session was free; the result of the call.
    Free(T),
    /// A writer uses the session, and will have the task woken.
    Busy,
    /// The session was removed, or a user of it has panicked.
    Gone,
}

impl<S> SessionCombiner<S> {
    pub(super) fn new(session: S) -> Self {
        Self { session: Mutex::new(Some(session)), missed: AtomicBool::new(false) }
    }

    /// Runs all pending work, for the task. If it gets the session, writers may write inline again.
    pub(super) fn work<T>(&self, work: impl FnOnce(&mut S) -> T) -> SessionAccess<T> {
        self.ask(|session| {
            self.missed.store(false, Ordering::Relaxed);
            work(session)
        })
    }

    /// Runs a query for the task, which does not count as its work. Runs nothing if it returns
    /// [`SessionAccess::Busy`] or [`SessionAccess::Gone`]. Once it has found the session in use, no
    /// writer writes inline until the next [`work`](Self::work).
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&mut S) -> T) -> SessionAccess<T> {
        let mut session = self.session.try_lock();
        if matches!(session, Err(TryLockError::WouldBlock)) {
            self.missed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            session = self.session.try_lock();
        }
        match session {
            Ok(mut session) => {
                session.as_mut().map_or(SessionAccess::Gone, |it| SessionAccess::Free(ask(it)))
            }
            Err(TryLockError::WouldBlock) => SessionAccess::Busy,
            Err(TryLockError::Poisoned(_)) => SessionAccess::Gone,
        }
    }

    /// Runs an inline write, if the session is not in use and the task does not wait for it.
    /// Returns whether the task must be woken: the write did not run for one of these reasons, a
    /// user of the session has panicked, or the task wanted the session meanwhile. After the
    /// session was removed, it runs nothing, which is no reason to wake the task.
    #[must_use]
    pub(super) fn write_inline(&self, write: impl FnOnce(&mut S)) -> bool {
        if self.missed.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(mut session) = self.session.try_lock() else { return true };
        if let Some(session) = &mut *session {
            write(session);
        }
        drop(session);
        fence(Ordering::SeqCst); // either the task gets the lock, or its `missed` is seen here
        self.missed.load(Ordering::Relaxed)
    }

    /// Removes the session, because the connection has ended. Blocks while it is in use. `None` if
    /// it was removed before.
    pub(super) fn remove(&self) -> Option<S> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
