//! A queue in front of raw TCP, as a lane has one: what waits leaves in large writes.

use std::sync::Mutex;

use tokio::sync::Notify;

const KEPT_MAX: usize = 4 * 1024 * 1024; // bytes

/// What waits to be written, and who waits for it.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Mutex<Vec<u8>>, // ≤ KEPT_MAX and a message
    more: Notify,
    less: Notify,
}

impl Outbox {
    /// Appends a message behind its length; ends when there was room for it.
    pub(crate) async fn push(&self, message: &[u8]) {
        loop {
            let less = self.less.notified();
            {
                let mut bytes = self.bytes.lock().expect("no panic inside");
                if bytes.len() < KEPT_MAX {
                    let was_empty = bytes.is_empty();
                    bytes.extend_from_slice(&(message.len() as u32).to_be_bytes());
                    bytes.extend_from_slice(message);
                    if was_empty {
                        self.more.notify_one();
                    }
                    return;
                }
            }
            less.await;
        }
    }

    /// Puts what waits into `taken`, which is empty; ends when that is something.
    pub(crate) async fn take(&self, taken: &mut Vec<u8>) {
        loop {
            std::mem::swap(taken, &mut *self.bytes.lock().expect("no panic inside"));
            self.less.notify_waiters();
            if !taken.is_empty() {
                return;
            }
            self.more.notified().await;
            // Who is woken runs first, also where others are about to push more: a write for each
            // message would be no limit of anything.
            tokio::task::yield_now().await;
        }
    }
}
