//! Wakers of tasks: a place for one, and a yield.

use std::future::poll_fn;
use std::task::{Poll, Waker};

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

/// Yields to other tasks once, on any executor: wakes the task and is pending once.
///
/// On tokio the task goes to the end of the queue at once, from which any thread may take it.
/// `tokio::task::yield_now` wakes it only after this thread has run its other tasks, or has polled
/// its events; the executor would also take an activation that yields so for one that awaits.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
