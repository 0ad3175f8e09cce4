//! Polls of a handler: only while the lease is valid and the entity's shard is not aborted, and
//! with its panics caught. The activation of an entity decides which handler runs.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use futures::future::BoxFuture;

use super::dead_letters::DeadLetterReason;
use super::entity::Entity;
use super::panics;
use super::runtime::Runtime;
use super::scope;
use super::shard::Shard;
use super::shard_stage::ShardStage;
use super::slow_handlers::Handling;

/// Time until a lapsed lease is checked again.
const LEASE_PAUSE: Duration = Duration::from_millis(10);

/// Whether the lease was checked immediately before a handler's first poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseCheck {
    /// It was: the first poll does not check it again. Later polls do.
    Done,
    /// It was not: each poll checks it.
    Due,
}

/// How a handler has ended. The caller counts and logs failures.
#[derive(Debug)]
pub(super) enum HandlerOutcome {
    /// It completed, and its drop did not panic.
    Handled,
    /// With the message of the panic.
    Panicked(Box<str>),
    /// The handler was dropped before its end, for this reason.
    Aborted(DeadLetterReason),
}

/// The waker of an activation that waits, woken when its shard drains. It is created on first use,
/// because most activations never wait.
pub(super) struct WakerSlot(pub(super) Option<Arc<Handling>>);

impl WakerSlot {
    /// Registers the waker of the activation. The caller then checks its condition again, so that
    /// no later wake is missed.
    ///
    /// The first call takes the shard's lock, which the caller must not hold, and the waker of the
    /// entity's busy part, which a former activation may have used; it makes both if they are
    /// missing. Later calls need no lock.
    pub(super) fn register<E: Entity>(&mut self, shard: &Shard<E>, row: u32, cx: &TaskContext<'_>) {
        let handling = self.0.get_or_insert_with(|| {
            let mut inside = shard.lock();
            let busy = inside.shard_entities.entity_table.busy(row);
            Arc::clone(busy.handling.get_or_insert_default())
        });
        handling.waker.register(cx.waker());
    }

    /// The handler awaits: records the time of its first await, to report slow handlers, and starts
    /// the task that watches them, unless it runs or `slow-handler-after` is 0. Later awaits of the
    /// same handler keep the first time. Does nothing before [`register`](Self::register). Handlers
    /// that never await do not read the clock.
    fn awaits<E: Entity>(&self, runtime: &Arc<Runtime<E>>) {
        if let Some(handling) = &self.0 {
            handling.begin(|| runtime.world.now());
            runtime.watch_handlers();
        }
    }

    /// The handler has ended, so it no longer counts as awaiting.
    pub(super) fn has_ended(&self) {
        self.0.iter().for_each(|handling| handling.end());
    }
}

/// The conditions under which a handler may continue: its shard is not aborted, and no long lapse
/// of the lease came since the activation began with this number of `lapses`.
pub(super) struct ContinueConditions<'a, E: Entity> {
    pub(super) runtime: &'a Arc<Runtime<E>>,
    pub(super) shard: &'a Shard<E>,
    pub(super) row: u32,
    pub(super) lapses: u64,
}

impl<E: Entity> ContinueConditions<'_, E> {
    /// Returns the reason to abort, if the handler may not continue. Aborts if the shard's stage is
    /// `Aborted`, or if it is `Open` and the lease lapsed for long since the activation began. In
    /// the stages `Draining` and `Empty` the handler continues, whatever the lapses. The reason is
    /// `HandlerStopped` once the node has stopped for good, else `NotLeased` in an open shard, else
    /// `Aborted`.
    fn aborted(&self) -> Option<DeadLetterReason> {
        let stage = self.shard.phase.get();
        let aborts = match stage {
            ShardStage::Aborted => true,
            ShardStage::Open => self.shard.lapses() != self.lapses,
            ShardStage::Empty | ShardStage::Draining => false,
        };
        aborts.then(|| self.runtime.why_aborted(stage))
    }

    /// Returns `Aborted` for an abort that came before the waker was registered, otherwise
    /// `Pending`.
    fn poll(&self) -> Poll<HandlerOutcome> {
        self.aborted().map_or(Poll::Pending, |why| Poll::Ready(HandlerOutcome::Aborted(why)))
    }
}

/// Polls a handler to its end, but only while the lease is valid and no abort came, and catches its
/// panics. Before each poll an abort is checked first, then the lease; after a pending poll an
/// abort is checked again. While the lease has lapsed, the handler is not polled and the lease is
/// checked again after each [`LEASE_PAUSE`]; an abort ends the handler also then.
///
/// The handler is dropped before this returns, and no longer counts as awaiting. After an abort,
/// replies that it still owes tell their askers the reason. If that drop panics, a handled message
/// counts as `Panicked`; any other outcome stays. Panics if `handling` is `None`.
pub(super) async fn guarded<E: Entity>(
    mut handling: Pin<&mut Option<impl Future<Output = ()> + Send>>,
    mut lease: LeaseCheck,
    stays: ContinueConditions<'_, E>,
    waker_slot: &mut WakerSlot,
) -> HandlerOutcome {
    let runtime = stays.runtime;
    let mut pause: Option<BoxFuture<'static, ()>> = None;
    let outcome = poll_fn(|cx| {
        loop {
            if let Some(why) = stays.aborted() {
                return Poll::Ready(HandlerOutcome::Aborted(why));
            }
            if std::mem::replace(&mut lease, LeaseCheck::Due) == LeaseCheck::Done
                || runtime.serves()
            {
                break;
            }
            waker_slot.register(stays.shard, stays.row, cx);
            if wait(&mut pause, runtime, cx).is_pending() {
                return stays.poll();
            }
        }
        let running = handling.as_mut().as_pin_mut().expect("it is dropped at the end");
        let poll = || catch_unwind(AssertUnwindSafe(|| running.poll(cx)));
        match runtime.polls.poll(stays.shard.id, stays.row, poll) {
            Ok(Poll::Pending) => {
                waker_slot.register(stays.shard, stays.row, cx);
                waker_slot.awaits(runtime);
                stays.poll()
            }
            Ok(Poll::Ready(())) => Poll::Ready(HandlerOutcome::Handled),
            Err(panic) => Poll::Ready(HandlerOutcome::Panicked(panics::message(panic))),
        }
    })
    .await;
    waker_slot.has_ended();
    // A reply that the dropped handler still owes will not come; the asker gets this reason.
    let mut drop = || handling.set(None);
    let dropped = catch_unwind(AssertUnwindSafe(|| match &outcome {
        HandlerOutcome::Aborted(why) => scope::dropping(*why, drop),
        HandlerOutcome::Handled | HandlerOutcome::Panicked(_) => drop(),
    }));
    match (dropped.map_err(panics::message), outcome) {
        (Err(why), HandlerOutcome::Handled) => HandlerOutcome::Panicked(why),
        (_, outcome) => outcome,
    }
}

/// Waits for one [`LEASE_PAUSE`], after which the caller checks the lease again. A lease that is
/// renewed meanwhile does not end the wait. `pause` keeps the wait between two polls; it is `None`
/// before the first poll and again after the end.
pub(super) fn wait<E: Entity>(
    pause: &mut Option<BoxFuture<'static, ()>>,
    runtime: &Runtime<E>,
    cx: &mut TaskContext<'_>,
) -> Poll<()> {
    let sleep = pause.get_or_insert_with(|| runtime.world.sleep(LEASE_PAUSE));
    let polled = sleep.as_mut().poll(cx);
    if polled.is_ready() {
        *pause = None;
    }
    polled
}
