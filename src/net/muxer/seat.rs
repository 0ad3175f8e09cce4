//! Who has the session: the connection's task, or somebody who writes in its place. Nobody waits.
//!
//! What synchronises the two, and nothing else; its tests compile this file a second time, with loom's
//! types, as those of the lanes' [`desk`](crate::net::lane) do.

use std::sync::{PoisonError, TryLockError};

use super::sync::{AtomicBool, Mutex, Ordering, fence};

#[derive(Debug)]
pub(super) struct Seat<S> {
    session: Mutex<Option<S>>, // none: it is gone
    missed: AtomicBool, // the task has found somebody there, and has not worked since; its own
}

/// What the task has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// Nobody, and this is what came of it.
    Free(T),
    /// Somebody, who has the task woken.
    Busy,
    /// No session, or one that somebody has panicked with.
    Gone,
}

impl<S> Seat<S> {
    pub(super) fn new(session: S) -> Self {
        Self { session: Mutex::new(Some(session)), missed: AtomicBool::new(false) }
    }

    /// The task does all that there is to do.
    pub(super) fn work<T>(&self, work: impl FnOnce(&mut S) -> T) -> Found<T> {
        self.ask(|session| {
            self.missed.store(false, Ordering::Relaxed);
            work(session)
        })
    }

    /// The task wants to know something, and leaves its work where it is.
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&mut S) -> T) -> Found<T> {
        let mut session = self.session.try_lock();
        if matches!(session, Err(TryLockError::WouldBlock)) {
            self.missed.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            session = self.session.try_lock();
        }
        match session {
            Ok(mut session) => session.as_mut().map_or(Found::Gone, |it| Found::Free(ask(it))),
            Err(TryLockError::WouldBlock) => Found::Busy,
            Err(TryLockError::Poisoned(_)) => Found::Gone,
        }
    }

    /// Somebody writes in the task's place, unless it is there or wants to be. `true`: the task is to
    /// be woken.
    #[must_use]
    pub(super) fn stand_in(&self, write: impl FnOnce(&mut S)) -> bool {
        if self.missed.load(Ordering::Relaxed) {
            return true;
        }
        let Ok(mut session) = self.session.try_lock() else { return true };
        if let Some(session) = &mut *session {
            write(session);
        }
        drop(session);
        fence(Ordering::SeqCst); // either the task finds nobody here, or it is found to have looked
        self.missed.load(Ordering::Relaxed)
    }

    /// The connection is gone: there is nothing to do any more.
    pub(super) fn leave(&self) -> Option<S> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
