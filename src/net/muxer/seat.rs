//! Who has the session: the connection's task, or somebody who writes in its place. Nobody waits.
//!
//! What synchronises the two, and nothing else; its tests compile this file a second time, with loom's
//! types, as those of the lanes' [`desk`](crate::net::lane) do.

use super::sync::{AtomicBool, Mutex, Ordering, fence};

#[derive(Debug)]
pub(super) struct Seat<S> {
    session: Mutex<Option<S>>, // none: it is gone
    missed: AtomicBool,        // the task has found somebody there, and has not worked since
}

/// What the task has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    /// Nobody, and this is what came of it.
    Free(T),
    /// Somebody, who has the task woken.
    Busy,
    /// No session.
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
        let session = self.session.try_lock().or_else(|_somebody| {
            self.missed.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            self.session.try_lock()
        });
        match session {
            Ok(mut session) => session.as_mut().map_or(Found::Gone, |it| Found::Free(ask(it))),
            Err(_somebody) => Found::Busy,
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
        self.missed.swap(false, Ordering::SeqCst)
    }

    /// The connection is gone: there is nothing to do any more.
    pub(super) fn leave(&self) -> Option<S> {
        self.session.lock().map_or(None, |mut session| session.take())
    }
}
