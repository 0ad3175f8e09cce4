//! When the time of an ask is over.
//!
//! A timer of the program's runtime for each ask costs more than the rest of waiting: tokio's are
//! kept under one lock. So an ask that may wait for a second or more stands in a [table]
//! instead, and a task looks at that every [`SWEEP_EVERY`], for as long as anybody asks.
//!
//! The task is the runtime's of the node, also for asks on another one, and may be dropped with it
//! at any time. Whoever stands in the table then is woken, and has a timer from there on.

mod table;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca_ddata::clock::Instant;

use super::hosting::World;
use table::{Place, Sweeper};

pub(super) use table::Timeouts;

/// Who waits for less has a timer: 50 ms would be much of it.
const EXACT_BELOW: Duration = Duration::from_secs(1);

/// How much later than its time an ask may hear that it is over.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// So often nobody waits before the sweeper ends: a second. Who asks now and then does not begin
/// one with each ask.
const IDLE_SWEEPS: u32 = 20;

/// What [`table`] synchronises with, and its size. Its tests under loom have others of these names.
mod sync {
    pub(super) use std::sync::atomic::AtomicBool;
    pub(super) use std::sync::{Mutex, MutexGuard};

    pub(super) const STRIPES: usize = 16;
}

/// The time of one ask. To be [ended](Self::end) when its asker waits no longer.
pub(super) enum Timer {
    /// It has not begun.
    Unset,
    Exact(BoxFuture<'static, ()>),
    Swept {
        until: Instant,
        place: Place,
    },
    Over,
}

impl Timer {
    /// Whether it is over: `timeout` after `since`, and up to [`SWEEP_EVERY`] later if that is long.
    pub(super) fn poll(
        &mut self,
        (timeouts, world): (&Arc<Timeouts>, &Arc<dyn World>),
        (since, timeout): (Instant, Duration),
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        match self {
            Self::Over => Poll::Ready(()),
            Self::Exact(sleep) => sleep.as_mut().poll(cx),
            Self::Unset if timeout < EXACT_BELOW => {
                let left = since + timeout - world.now();
                self.sleep(world.sleep(left), cx)
            }
            Self::Unset => {
                let until = since + timeout;
                let place = timeouts.enter(until, cx.waker());
                *self = Self::Swept { until, place };
                if let Some(sweeper) = timeouts.sweeper() {
                    world.spawn(Box::pin(sweep(sweeper, Arc::clone(world))));
                }
                Poll::Pending
            }
            Self::Swept { until, place } => {
                let left = *until - world.now();
                if left.is_zero() {
                    return Poll::Ready(());
                }
                if timeouts.stay(place, cx.waker()) {
                    return Poll::Pending;
                }
                self.end(timeouts);
                self.sleep(world.sleep(left), cx)
            }
        }
    }

    fn sleep(&mut self, mut sleep: BoxFuture<'static, ()>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = sleep.as_mut().poll(cx);
        *self = Self::Exact(sleep);
        polled
    }

    /// Nobody waits for it any more.
    pub(super) fn end(&mut self, timeouts: &Timeouts) {
        if let Self::Swept { place, .. } = std::mem::replace(self, Self::Over) {
            timeouts.leave(place);
        }
    }
}

/// Ends with the table, or some time after the last ask.
async fn sweep(sweeper: Sweeper, world: Arc<dyn World>) {
    let mut idle = 0;
    while idle < IDLE_SWEEPS {
        world.sleep(SWEEP_EVERY).await;
        match sweeper.sweep(world.now()) {
            Some(0) => idle += 1,
            Some(_) => idle = 0,
            None => return,
        }
    }
}
