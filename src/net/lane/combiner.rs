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

    /// Runs a function on the writer for its task; blocks while a sender writes inline. Works also
    /// after a sender has panicked while it wrote.
    pub(super) fn with<T>(&self, use_it: impl FnOnce(&mut W) -> T) -> T {
        use_it(self.lock().as_mut().expect("present until the combiner is dropped"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> Drop for WriterCombiner<W> {
    /// Drops the writer, although senders keep their handles. Waits for a sender that is writing.
    fn drop(&mut self) {
        let writer = self.lock().take();
        drop(writer);
    }
}

impl<W> CombinerHandle<W> {
    /// Runs `write` if no task or sender uses the writer, and returns its result; otherwise
    /// `false`, also if the writer was dropped or a user of it has panicked. On `false` the caller
    /// must wake the task. Never blocks: the task finds the appended message, once it is woken.
    pub(super) fn write_inline(&self, write: impl FnOnce(&mut W) -> bool) -> bool {
        self.0.try_lock().is_ok_and(|mut writer| writer.as_mut().is_some_and(write))
    }
}
