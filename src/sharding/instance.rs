//! An instance of an entity: its value, and the timers and tasks that end with it.
//!
//! Three kinds of tasks exist. Tasks that the entity has spawned are tracked, and the shard's drain
//! waits for them. Tasks of [`Extras::after`] are tracked, but no drain waits for them. The task of
//! an idle period is not tracked.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::entity::Entity;
use super::entity_ref::EntityRef;
use super::region_handle::RegionEnvironment;
use super::runtime::Runtime;
use super::timers::{PendingTimer, Timer, Timers};
use super::tracked::{TaskControl, Tracked, UnfinishedTasks};

/// The value of an entity with its timers and tasks. Most instances have none.
pub(super) struct Instance<E: Entity> {
    pub(super) value: E,
    pub(super) extras: Option<Box<Extras<E>>>,
}

/// Timers, receive timeout and tasks of an instance. Dropping it asks them to stop, without a wait
/// for their end.
pub(super) struct Extras<E: Entity> {
    receive: Option<Receive<E>>,
    timers: Arc<Timers>,
    pub(super) tracked: Tracked,
}

/// A receive timeout. It counts as a pending timer, so the instance does not stop for being idle.
struct Receive<E: Entity> {
    pause: Duration,
    message: Arc<dyn Fn() -> E::Message + Send + Sync>,
    idle: Option<IdleTask>, // set while the entity is idle
    _pending: PendingTimer,
}

/// The task that waits for the end of one idle period. Dropping this wakes the task, which then
/// ends without a message; otherwise an entity that gets messages often would own one task for each
/// message of the last `pause`.
struct IdleTask(Arc<TaskControl>);

impl Drop for IdleTask {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl<E: Entity> Instance<E> {
    pub(super) const fn new(value: E) -> Self {
        Self { value, extras: None }
    }

    /// A task of the entity takes the instance, because messages came or it stops: ends the current
    /// idle period and stops its timeout's task. The timeout stays set, and its message is not
    /// taken back if it was told already. Does nothing without a receive timeout.
    pub(super) fn end_idle(&mut self) {
        if let Some(receive) = self.receive() {
            receive.idle = None;
        }
    }

    fn receive(&mut self) -> Option<&mut Receive<E>> {
        self.extras.as_mut()?.receive.as_mut()
    }

    /// Returns its timers, if it ever had one.
    pub(super) fn timers(&self) -> Option<&Arc<Timers>> {
        self.extras.as_ref().map(|extras| &extras.timers)
    }

    /// Returns whether a timer is pending or a receive timeout is set.
    pub(super) fn has_timers(&self) -> bool {
        self.timers().is_some_and(|timers| timers.pending() > 0)
    }

    /// Returns the number of pending [`Context::after`](super::context::Context::after) messages,
    /// cancelled ones included until their task has ended. A receive timeout does not count.
    pub(super) fn unsent(&self) -> usize {
        let Some(extras) = &self.extras else { return 0 };
        extras.timers.pending().saturating_sub(usize::from(extras.receive.is_some()))
    }

    /// Asks its tasks and its pending `after` messages to stop, and returns those that have not
    /// ended; the next instance must wait for them. A second call returns none. A receive timeout
    /// is not stopped: it ends when the instance is dropped.
    pub(super) fn stop_tasks(&mut self) -> UnfinishedTasks {
        self.extras.as_mut().map(|extras| extras.tracked.stop()).unwrap_or_default()
    }

    /// Starts the receive timeout, if one is set, because no message waits. Ends an earlier idle
    /// period. Called under the shard's lock.
    ///
    /// A task of its own makes the message and tells it to the entity after `pause`, unless the
    /// idle period ends before. The message is told once per idle period, without waiting for room;
    /// if it is refused, it is dropped and not repeated. `id` is that of the entity.
    pub(super) fn begin_idle(&mut self, runtime: &Arc<Runtime<E>>, id: &str) {
        let Some(receive) = self.receive() else { return };
        let control = Arc::<TaskControl>::default();
        receive.idle = Some(IdleTask(Arc::clone(&control)));
        let (message, mut sleep) =
            (Arc::clone(&receive.message), runtime.world.sleep(receive.pause));
        let to = EntityRef::new(runtime, id);
        runtime.world.spawn(Box::pin(async move {
            let is_over = poll_fn(|cx| {
                if control.must_stop(cx) {
                    return Poll::Ready(false);
                }
                sleep.as_mut().poll(cx).map(|()| true)
            });
            if is_over.await {
                // If the message is refused, the entity is busy or gone.
                let _told = to.tell(message());
            }
        }));
    }
}

impl<E: Entity> Extras<E> {
    /// Returns the extras of an instance, and makes empty ones if it has none.
    pub(super) fn of(extras: &mut Option<Box<Self>>) -> &mut Self {
        extras.get_or_insert_with(|| {
            Box::new(Self { receive: None, timers: Arc::default(), tracked: Tracked::default() })
        })
    }

    /// Starts a timer that sends `message` to `to` after `pause`, waiting for room if necessary.
    /// Stopping the instance or cancelling the timer ends it before, also while it waits for room;
    /// a message that is refused otherwise is dropped without a trace. Dropping the handle does not
    /// end the timer.
    ///
    /// The timer counts as pending until its task has ended, and is one of the instance's tracked
    /// tasks, but a drain of the shard does not wait for it.
    pub(super) fn after(
        &mut self,
        world: &Arc<dyn RegionEnvironment>,
        to: EntityRef<E>,
        pause: Duration,
        message: E::Message,
    ) -> Timer {
        let (end, pending, sleep) = (self.tracked.add(), self.timers.add(), world.sleep(pause));
        let control = Arc::clone(end.control());
        let timer = Timer::new(Arc::clone(&control));
        world.spawn(Box::pin(async move {
            // Dropped after the sending future; the end mark last.
            let (_end, _pending) = (end, pending);
            let mut sends = pin!(async move {
                sleep.await;
                // If the message is refused, the node stopped or the id is invalid.
                let _told = to.tell_wait(message).await;
            });
            poll_fn(
                |cx| {
                    if control.must_stop(cx) { Poll::Ready(()) } else { sends.as_mut().poll(cx) }
                },
            )
            .await;
        }));
        timer
    }

    /// Sets the receive timeout, and replaces an earlier one, whose idle period ends. It counts as
    /// one pending timer from now on. Its time runs from the next [`Instance::begin_idle`].
    pub(super) fn set_receive_timeout(
        &mut self,
        pause: Duration,
        message: Arc<dyn Fn() -> E::Message + Send + Sync>,
    ) {
        self.receive = Some(Receive { pause, message, idle: None, _pending: self.timers.add() });
    }

    /// Removes the receive timeout, if one is set, and stops the current idle period. It no longer
    /// counts as a pending timer.
    pub(super) fn cancel_receive_timeout(&mut self) {
        self.receive = None;
    }
}
