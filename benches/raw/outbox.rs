//! Queue in front of raw TCP, like that of a lane: waiting messages are written together.

use std::sync::Mutex;

use tokio::sync::Notify;

const KEPT_MAX: usize = 4 * 1024 * 1024; // bytes

/// Bytes that wait to be written, and notifications for both sides.
#[derive(Default)]
pub(crate) struct Outbox {
    bytes: Mutex<Vec<u8>>, // ≤ KEPT_MAX and a message
    more: Notify,
    less: Notify,
}

impl Outbox {
    /// Appends a message with its length. Completes once there was room for it.
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

    /// Moves the waiting bytes into `taken`, which must be empty. Completes once there are some.
    pub(crate) async fn take(&self, taken: &mut Vec<u8>) {
        loop {
            std::mem::swap(taken, &mut *self.bytes.lock().expect("no panic inside"));
            self.less.notify_waiters();
            if !taken.is_empty() {
                return;
            }
            self.more.notified().await;
            // A woken task runs first, even if other tasks are about to push more. Without the
            // yield, each message would be written alone, and the result would be no upper limit.
            tokio::task::yield_now().await;
        }
    }
}
