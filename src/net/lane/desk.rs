//! Who writes a lane: its task, or, while that rests, whoever sends.
//!
//! What synchronises the two, and nothing else; its tests compile this file a second time, with loom's
//! types, as those of [`handoff`](super::handoff).

use std::sync::{Arc, PoisonError};

use super::sync::{Mutex, MutexGuard};

/// Where the writer is. It goes with its task, which has this.
pub(super) struct Desk<W>(Arc<Mutex<Option<W>>>);

/// A place beside the desk, for who stands in.
pub(super) struct Beside<W>(Arc<Mutex<Option<W>>>);

impl<W> Desk<W> {
    pub(super) fn new(writer: W) -> Self {
        Self(Arc::new(Mutex::new(Some(writer))))
    }

    pub(super) fn beside(&self) -> Beside<W> {
        Beside(Arc::clone(&self.0))
    }

    /// The writer, for its task, once nobody stands in any more.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(&mut W) -> T) -> T {
        use_it(self.lock().as_mut().expect("taken out when the desk goes"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> Drop for Desk<W> {
    /// The substream ends here, also if somebody has just looked whether to stand in.
    fn drop(&mut self) {
        let writer = self.lock().take();
        drop(writer);
    }
}

impl<W> Beside<W> {
    /// What `write` says, where nobody is at the desk; else `false`. Never waits: whoever is there, the
    /// task or another sender, finds what was appended, or the task is woken and does.
    pub(super) fn write(&self, write: impl FnOnce(&mut W) -> bool) -> bool {
        self.0.try_lock().is_ok_and(|mut desk| desk.as_mut().is_some_and(write))
    }
}
