//! Timeouts of asks.
//!
//! One timer of the tokio runtime per ask would cost more than the rest of waiting, because tokio
//! keeps timers under one lock. So an ask with a timeout of a second or more is put into a [table],
//! which a task (the sweeper) checks every [`SWEEP_EVERY`] while there are asks.
//!
//! The sweeper runs on the runtime of its node, also for asks of other runtimes, and may be dropped
//! with it at any time. Then the asks in the table are woken, and each continues with its own
//! timer.

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

use super::region_handle::RegionEnvironment;
use table::{Sweeper, TimeoutPlace};

pub(super) use table::Timeouts;

/// Asks with a shorter timeout have their own timer, because 50 ms would be a large part of it.
const EXACT_BELOW: Duration = Duration::from_secs(1);

/// Interval between two sweeps: the longest delay with which an ask learns of its timeout.
const SWEEP_EVERY: Duration = Duration::from_millis(50);

/// Sweeps without asks, in a row, after which the sweeper ends, a second together. Occasional asks
/// thus do not start a sweeper each.
const IDLE_SWEEPS: u32 = 20;

/// Synchronisation primitives of [`table`], and its size. The loom tests replace them.
mod sync {
    pub(super) use std::sync::atomic::AtomicBool;
    pub(super) use std::sync::{Mutex, MutexGuard};

    pub(super) const STRIPES: usize = 16;
}

/// The timeout of one ask. Must be [ended](Self::end) when its asker no longer waits, also after
/// it has expired, because it may have an entry in the table.
pub(super) enum AskTimer {
    /// The timeout was never polled.
    Unset,
    /// With a timer of its own: a short timeout, or one whose sweeper has ended.
    Exact(BoxFuture<'static, ()>),
    /// With an entry in the table, which a sweeper checks.
    Swept { until: Instant, place: TimeoutPlace },
    /// The timeout was ended; it counts as expired.
    Over,
}

impl AskTimer {
    /// Returns `Ready` when the time is over: `timeout` after `since`, and up to [`SWEEP_EVERY`]
    /// later for swept timeouts, unless another wake-up polls them before. The first poll of a
    /// timeout of [`EXACT_BELOW`] or more enters the table, starts a sweeper in `world` if none
    /// runs, and is always `Pending`, also if the time is over. If the sweeper has ended, a later
    /// poll leaves the table and goes on with a timer of its own.
    ///
    /// `since` and `timeout` are used by the first poll only. After `Ready` an exact timeout must
    /// not be polled again, and a swept one keeps its entry until [`end`](Self::end).
    pub(super) fn poll(
        &mut self,
        (timeouts, world): (&Arc<Timeouts>, &Arc<dyn RegionEnvironment>),
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
                if let Some(sweeper) = timeouts.claim_sweeper() {
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

    /// Goes on with this timer, and polls it. An entry in the table must have been freed before.
    fn sleep(&mut self, mut sleep: BoxFuture<'static, ()>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = sleep.as_mut().poll(cx);
        *self = Self::Exact(sleep);
        polled
    }

    /// Ends the timeout, because the asker no longer waits, and frees its entry in the table. From
    /// then on `poll` returns `Ready`. A second call does nothing. `timeouts` must be the table
    /// that `poll` got.
    pub(super) fn end(&mut self, timeouts: &Timeouts) {
        if let Self::Swept { place, .. } = std::mem::replace(self, Self::Over) {
            timeouts.leave(place);
        }
    }
}

/// Task of the sweeper. Ends with the table, or after [`IDLE_SWEEPS`] sweeps in a row that found no
/// entry; entries whose ask was woken and has not left count. An ask that enters meanwhile is woken
/// by the drop of `sweeper`.
async fn sweep(sweeper: Sweeper, world: Arc<dyn RegionEnvironment>) {
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
