//! Wakers of tasks.

use std::task::Waker;

/// Stores the waker of the task that waits for something, in place of the one before. Clones it
/// only if that would wake another task.
///
/// A waker that is replaced here is dropped at once, under any lock of the slot. Dropping the last
/// waker of a task may drop the task.
#[inline]
pub(crate) fn store_waker(slot: &mut Option<Waker>, waker: &Waker) {
    match slot {
        Some(kept) => kept.clone_from(waker),
        None => *slot = Some(waker.clone()),
    }
}
