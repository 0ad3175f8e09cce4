//! Shared access to a lane's writer: the writer's task owns it, and while the task is idle a sender
//! may write inline.
//!
//! Only the synchronisation of the two is here. Tests compile this file a second time with loom's
//! types, like [`shared_outbound`](super::shared_outbound).

use std::sync::{Arc, PoisonError};

use super::sync::{Mutex, MutexGuard};

/// Owner of the writer, held by the writer's task. The writer is dropped with it.
pub(super) struct WriterCombiner<W>(Arc<Mutex<Option<W>>>);

/// Access of senders to the writer.
pub(super) struct CombinerHandle<W>(Arc<Mutex<Option<W>>>);

impl<W> WriterCombiner<W> {
    pub(super) fn new(writer: W) -> Self {
        Self(Arc::new(Mutex::new(Some(writer))))
    }

    pub(super) fn handle(&self) -> CombinerHandle<W> {
        CombinerHandle(Arc::clone(&self.0))
    }

    /// Runs a function on the writer for its task; blocks while a sender writes inline.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(&mut W) -> T) -> T {
        use_it(self.lock().as_mut().expect("present until the combiner is dropped"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> Drop for WriterCombiner<W> {
    /// Drops the writer, also while senders still have access to it.
    fn drop(&mut self) {
        let writer = self.lock().take();
        drop(writer);
    }
}

impl<W> CombinerHandle<W> {
    /// Runs `write` if nobody else has the writer, and returns its result; otherwise `false`. Never
    /// blocks: either the task or sender that has the writer finds the appended message, or the
    /// caller wakes the task.
    pub(super) fn write_inline(&self, write: impl FnOnce(&mut W) -> bool) -> bool {
        self.0.try_lock().is_ok_and(|mut writer| writer.as_mut().is_some_and(write))
    }
}
