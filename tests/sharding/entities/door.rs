//! A latch that lets a test decide when a handler continues.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Handlers wait in [`pass`](Self::pass) until the test opens the door.
#[derive(Default)]
pub(crate) struct Door {
    open: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Door {
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.wakers.lock().expect("nobody panicked").drain(..).for_each(Waker::wake);
    }

    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
    }

    /// Blocks the thread until it is open, for a minute at most.
    pub(crate) fn block(&self) {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !self.open.load(Ordering::SeqCst) && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) async fn pass(&self) {
        poll_fn(|cx| {
            if self.open.load(Ordering::SeqCst) {
                return Poll::Ready(());
            }
            self.wakers.lock().expect("nobody panicked").push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
