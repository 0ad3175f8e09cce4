//! Tasks and timers that an instance starts and that end with it: they are dropped at their next
//! await, before the entity's next instance begins, here or on another node
//! (docs/protocol/sharding.md#an-instance-ends-before-its-successor).

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};

use futures::task::AtomicWaker;

use super::entity::Entity;
use super::gate::MailboxLimitCheck;
use super::handler_guard::wait;
use super::ids::EntityId;
use super::panics;
use super::runtime::Runtime;
use super::scope::{self, CurrentEntity};
use super::shard::Shard;

/// The tasks and timers of one instance. Dropping it stops them, without a wait for their end.
#[derive(Default)]
pub(super) struct Tracked(Vec<Arc<TaskControl>>); // ≤ twice the tasks that run, plus 8

/// Control block of one task: a request to stop, and whether it has ended.
#[derive(Default)]
pub(super) struct TaskControl {
    stops: AtomicBool,
    task: AtomicWaker, // of the task, which checks `stops` before each poll
    ended: AtomicBool,
    waiter: AtomicWaker, // of the entity's activation, once it waits for the end
}

impl TaskControl {
    /// Asks the task to stop, for good, and wakes it. Its future is dropped at its next await. A
    /// task that has ended only counts as stopped afterwards.
    pub(super) fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.task.wake();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns whether the task must stop now. A later request wakes the task by the waker of `cx`.
    /// Called before each poll.
    pub(super) fn must_stop(&self, cx: &TaskContext<'_>) -> bool {
        self.task.register(cx.waker());
        self.is_stopped()
    }
}

/// Marks the task as ended when dropped. Keep it until the task's future is dropped.
pub(super) struct EndMark(Arc<TaskControl>);

impl EndMark {
    pub(super) fn control(&self) -> &Arc<TaskControl> {
        &self.0
    }
}

impl Drop for EndMark {
    /// Marks the end, and wakes the activation that waits for it.
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.waiter.wake();
    }
}

/// Tasks of ended instances whose futures may still exist. The entity's next instance begins after
/// they are dropped, because they may hold a lock, a file or a socket that it needs.
#[derive(Default)]
pub(super) struct UnfinishedTasks(Vec<Arc<TaskControl>>);

impl UnfinishedTasks {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, Self(tasks): Self) {
        self.0.extend(tasks);
    }

    /// Waits until all these futures are dropped; does not ask them to stop. This takes at most one
    /// poll of each, unless the executor is busy or a task blocks in its poll; there is no timeout.
    /// If this future is dropped before, a second call goes on waiting. Without tasks it is ready
    /// at its first poll.
    pub(super) async fn end(&mut self) {
        poll_fn(|cx| {
            while let Some(task) = self.0.last() {
                task.waiter.register(cx.waker());
                if !task.has_ended() {
                    return Poll::Pending;
                }
                self.0.pop();
            }
            Poll::Ready(())
        })
        .await;
    }
}

/// A task that is counted among those that the shard's drain waits for. Its drop first uncounts the
/// task, which may end the drain, and then marks it as ended (field `_end`). The future of the task
/// must be dropped before.
struct RunningTask<E: Entity> {
    _end: EndMark,
    runtime: Arc<Runtime<E>>,
    shard: Arc<Shard<E>>,
}

impl Tracked {
    /// Runs a task of an entity that is handling a message. Takes the shard's lock to count the
    /// task, so that a drain waits for it. The stage is not checked: the entity itself still counts
    /// as running. The first poll is the executor's.
    pub(super) fn spawn<E: Entity>(
        &mut self,
        (runtime, shard): (&Arc<Runtime<E>>, &Arc<Shard<E>>),
        id: &EntityId,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let end = self.add();
        let control = Arc::clone(end.control());
        shard.lock().shard_entities.running += 1;
        let running =
            RunningTask { _end: end, runtime: Arc::clone(runtime), shard: Arc::clone(shard) };
        runtime.world.spawn(Box::pin(run(running, id.clone(), control, task)));
    }

    /// Makes the control block of one more task; the task must own the returned mark until it ends.
    /// Forgets tasks that have ended when the list would grow. Counts nothing in the shard.
    pub(super) fn add(&mut self) -> EndMark {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|task| !task.has_ended());
        }
        let control = Arc::<TaskControl>::default();
        self.0.push(Arc::clone(&control));
        EndMark(control)
    }

    /// Asks all tasks to stop, and returns those that have not ended, without a wait. A second call
    /// returns only tasks that were added since.
    pub(super) fn stop(&mut self) -> UnfinishedTasks {
        let mut tasks = std::mem::take(&mut self.0);
        tasks.iter().for_each(|task| task.stop());
        tasks.retain(|task| !task.has_ended());
        UnfinishedTasks(tasks)
    }
}

/// Polls a task until it ends, must stop, or panics; a panic is logged and counted as a failure,
/// and the entity goes on. While the lease has lapsed, or the stop is requested, the task is not
/// polled. A drain does not stop it: the end of its instance does. Then drops the task, and
/// `running` last.
async fn run<E: Entity>(
    running: RunningTask<E>,
    id: EntityId,
    control: Arc<TaskControl>,
    task: impl Future<Output = ()> + Send,
) {
    let runtime = &*running.runtime;
    let mut task = pin!(task); // dropped before `running`
    let mut pause = None;
    let phase = Arc::clone(&running.shard.phase);
    let mut at_work = Some(CurrentEntity { phase, handler: None });
    poll_fn(|cx| {
        loop {
            if control.must_stop(cx) {
                return Poll::Ready(());
            }
            if runtime.serves() {
                break;
            }
            if wait(&mut pause, runtime, cx).is_pending() {
                return Poll::Pending;
            }
        }
        // The shard's drain waits for the task, and thus for the entities that it asks.
        let poll = || scope::at_work(&mut at_work, || task.as_mut().poll(cx));
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|panic| {
            runtime.failures.fetch_add(1, Ordering::Relaxed);
            let (entity_type, shard) = (&runtime.entity_type, running.shard.id);
            let why = panics::message(panic);
            tracing::error!(
                %entity_type, entity = %id, %shard, why = &*why,
                "sharding.task_failed: a task of the entity panicked; the entity continues"
            );
            Poll::Ready(())
        })
    })
    .await;
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let _unfinished = self.stop();
    }
}

impl<E: Entity> Drop for RunningTask<E> {
    /// Uncounts the task under the shard's lock, and seals the payload if the drain ends with it.
    /// So it must not be dropped under that lock.
    fn drop(&mut self) {
        let Self { runtime, shard, .. } = self;
        shard.pass(runtime, MailboxLimitCheck::Exempt, |gate, gate_effects| {
            gate_effects.ended(gate);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_tasks_are_forgotten_and_running_ones_are_not() {
        let mut tracked = Tracked::default();
        let running: Vec<_> = (0..3).map(|_| tracked.add()).collect();
        for _ in 0..100 {
            drop(tracked.add());
        }
        assert!(tracked.0.len() <= 8, "{} are remembered", tracked.0.len());
        let mut unfinished = tracked.stop();
        assert_eq!(unfinished.0.len(), 3);
        assert!(running.iter().all(|task| task.control().is_stopped()));
        let mut end = pin!(unfinished.end());
        let mut cx = TaskContext::from_waker(std::task::Waker::noop());
        for task in running {
            assert!(end.as_mut().poll(&mut cx).is_pending());
            drop(task);
        }
        assert!(end.poll(&mut cx).is_ready());
    }
}
