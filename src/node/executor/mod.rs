//! [`Executor`]: executor that polls the entities of a node with a few worker tasks on the
//! program's runtime.
//!
//! An activation ([`Activation`]) is one run of an entity's message loop, until no message is
//! buffered. It mostly ends within a microsecond. With a tokio task for each activation, tokio's
//! queues overflowed when a thousand entities were busy: the 99th percentile of asks was 40 ms. A
//! worker is one task that polls one activation after the other. An activation that is pending
//! after a poll, because its code awaits something, becomes a tokio task of its own; one that has
//! only yielded is queued again. A worker therefore never waits, and only the runtime handles
//! wakers.
//!
//! An activation may block its thread, and a new worker may be scheduled behind a task that does.
//! There are at most as many workers as the runtime has threads, without those that are written
//! off. Each takes one activation at a time from a shared queue. A watch (`WorkerMonitor`) checks
//! the queue periodically: if activations have waited since the last check and some workers have
//! not come to the queue since, it writes all of them off and starts others. A worker that was
//! written off and comes later is counted again if it is needed, and otherwise ends.
//!
//! A worker or watch that the runtime drops before its end closes the queue: all waiting
//! activations are dropped, and so is each that is added later.

mod queue;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::task::coop;

use crate::sharding::activation::{Activation, ActivationFuture};
use crate::sharding::forget_panic;
use crate::wakers::yield_now;
use queue::{
    AddResult, PollSpeed, Queue, QueueCheck, QueueSettings, WorkerSpawnRequest, WorkerState,
    WorkerStep,
};

/// Maximum number of activations that a worker polls before it yields to other tasks.
const POLLS: usize = 64;
/// Time after which a worker yields to other tasks in any case.
const SPAN: Duration = Duration::from_micros(50);

/// Spawn threshold: waiting activations for each worker above which another worker is started,
/// while polls are quick. A lower one wakes threads for little work (measured).
const SPAWN_THRESHOLD: usize = 16;
/// Spin budget: how often a worker that finds no work yields and looks again before it ends. A
/// worker that ended at once would be started again for the next message (measured).
const SPIN_BUDGET: u8 = 8;

/// Maximum number of finished activations whose memory a worker keeps for reuse. One would suffice
/// if each ended at its first poll, but activations that yield keep their own memory meanwhile, and
/// leave it to the worker as well.
const OVER_MAX: usize = 64;

/// Interval of the watch's checks while no activation waits.
const LOOK: Duration = Duration::from_millis(10);
/// Interval of the watch's checks while activations wait.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Number of successive checks without workers and activations after which the watch ends.
const LOOKS: usize = 10;

/// The executor of a node, shared by all its entity types.
pub struct Executor {
    queue: Queue<Activation>,
    runtime: Handle,
}

impl Executor {
    /// Creates an executor on a runtime, without any task until the first activation is added. It
    /// has at most as many workers as the runtime has worker threads. When the runtime ends, its
    /// activations are dropped. The runtime must have timers; without them a blocked worker is
    /// never replaced.
    #[must_use]
    pub fn new(runtime: Handle) -> Arc<Self> {
        let workers_max = runtime.metrics().num_workers();
        let queue = Queue::new(QueueSettings {
            workers_max,
            spawn_threshold: SPAWN_THRESHOLD,
            spin_budget: SPIN_BUDGET,
        });
        Arc::new(Self { queue, runtime })
    }

    /// Queues an activation, which then runs to its end, and returns at once, without polling it.
    /// Starts a worker if too few run, and the watch if there is none. Drops the activation if the
    /// queue is closed, because the runtime has ended. May be called on any thread.
    pub fn run(self: &Arc<Self>, activation: Activation) {
        match self.queue.add(WORKER_SLOT.get(), activation) {
            Ok(AddResult { call, watch }) => {
                if watch {
                    // Before the worker: the task that is spawned last runs first, and only on this
                    // thread.
                    self.runtime.spawn(
                        WorkerMonitor { executor: Arc::clone(self), has_ended: false }.run(),
                    );
                }
                if let Some(call) = call {
                    self.call(call);
                }
            }
            Err(activation) => discard(activation),
        }
    }

    /// Spawns the workers that the queue has ordered, each as a task.
    fn call(self: &Arc<Self>, call: WorkerSpawnRequest) {
        for place in call.places() {
            let (executor, over) = (Arc::clone(self), Vec::new());
            let worker = Worker { executor, place, pace: PollSpeed::Quick, over, has_ended: false };
            self.runtime.spawn(worker.work());
        }
    }

    /// Polls an activation once. If that is its first poll, its future is made in memory taken from
    /// `over`, if there is any. A pending activation that has not yielded is spawned as a task of
    /// its own, and the executor no longer knows it. If an activation panics, it is dropped during
    /// the unwinding, as in a task; the panic is caught here, and its memory is not kept.
    fn poll(&self, activation: Activation, over: &mut Vec<ActivationFuture>) -> PollResult {
        let polled = catch_unwind(AssertUnwindSafe(move || {
            let mut future = activation.begin(|| over.pop());
            HINT.with(|(hint, waker)| {
                hint.0.store(false, Ordering::Relaxed);
                match future.poll_unpin(&mut Context::from_waker(waker)) {
                    Poll::Ready(()) => PollResult::Done(future),
                    Poll::Pending if hint.0.load(Ordering::Relaxed) => {
                        PollResult::Again(future.into())
                    }
                    Poll::Pending => {
                        // The task's first poll registers its own waker, which replaces the hint.
                        self.runtime.spawn(future);
                        PollResult::Awaits
                    }
                }
            })
        }));
        polled.unwrap_or_else(|panic| {
            forget_panic(panic); // the panic hook has reported it
            PollResult::Failed
        })
    }

    /// Closes the queue and drops all waiting activations, because the runtime has ended. May be
    /// called more than once.
    fn end(&self) {
        self.queue.close().into_iter().for_each(discard);
    }
}

/// Drops an activation. A panic of the program's `Drop` code is caught.
fn discard(activation: Activation) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(activation))) {
        forget_panic(panic);
    }
}

/// Result of polling an activation.
enum PollResult {
    /// The activation has ended, and leaves its memory.
    Done(ActivationFuture),
    /// The activation has panicked and was dropped.
    Failed,
    /// The activation has yielded and must be polled again.
    Again(Activation),
    /// The activation awaits something and became a task, the next one of this thread.
    Awaits,
}

/// Records whether a pending activation has woken its waker during the poll, that is, has yielded.
/// It is only a hint, which may come from another activation or too late: without it the activation
/// becomes a task, which polls it again as well.
#[derive(Default)]
struct WakeHint(AtomicBool);

impl Wake for WakeHint {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    /// Slot (index of the line) of the worker that last ran on this thread. Tasks that it woke run
    /// on this thread next, and the activations that they add are best polled here as well.
    static WORKER_SLOT: Cell<usize> = const { Cell::new(0) };
    static HINT: (Arc<WakeHint>, Waker) = {
        let hint = Arc::<WakeHint>::default();
        (Arc::clone(&hint), Waker::from(hint))
    };
}

/// A task that polls activations of the queue. It ends when it has found no work for its spin
/// budget, or when it was written off and is not needed.
struct Worker {
    executor: Arc<Executor>,
    place: WorkerState,
    pace: PollSpeed,             // of the last poll
    over: Vec<ActivationFuture>, // memory of finished activations; ≤ OVER_MAX
    has_ended: bool,
}

impl Worker {
    /// Alternates between polling activations and yielding to other tasks, until the queue ends
    /// the worker.
    async fn work(mut self) {
        while self.work_on() {
            yield_now().await; // into the runtime's queue, from which any thread may take it
        }
    }

    /// Polls activations until it is time to yield: after [`POLLS`] steps or [`SPAN`], when the
    /// budget of the runtime is used up, when the queue has no work or orders another worker, which
    /// is spawned first, or when an activation became a task, which is polled before another
    /// activation may block the thread. After a panicked activation it continues with the next one.
    ///
    /// An activation that has yielded is queued again behind the others, by the next step of the
    /// queue, or like a new one ([`Executor::run`]) if there is no next step or the queue hands it
    /// back. Returns `false` if the worker has ended.
    fn work_on(&mut self) -> bool {
        let (mut begun, mut pace) = (Instant::now(), self.pace);
        let (since, mut again) = (begun, None);
        WORKER_SLOT.set(self.place.worker_slot());
        for _ in 0..POLLS {
            let activation = match self.executor.queue.take(&mut self.place, pace, again.take()) {
                WorkerStep::Work(activation) => activation,
                WorkerStep::Back(activation) => {
                    self.executor.run(activation);
                    continue;
                }
                WorkerStep::Call(call) => {
                    self.executor.call(call);
                    break;
                }
                WorkerStep::Rest => break,
                WorkerStep::End => {
                    self.has_ended = true;
                    return false;
                }
            };
            let polled = self.executor.poll(activation, &mut self.over);
            let now = Instant::now();
            pace = if now - begun > SPAN { PollSpeed::Slow } else { PollSpeed::Quick };
            begun = now;
            let awaits = matches!(polled, PollResult::Awaits);
            match polled {
                PollResult::Done(mut future) => {
                    if self.over.len() < OVER_MAX && future.is_small() {
                        self.over.push(future);
                    }
                }
                PollResult::Again(activation) => again = Some(activation),
                PollResult::Awaits | PollResult::Failed => {}
            }
            // Yield, so that the new task is polled before another activation that may be long or
            // block.
            if awaits || now - since > SPAN || !coop::has_budget_remaining() {
                break;
            }
        }
        if let Some(activation) = again {
            self.executor.run(activation);
        }
        self.pace = pace;
        true
    }
}

impl Drop for Worker {
    /// Closes the queue if the worker is dropped before its end, because that shows that the
    /// runtime has ended. A panic of the worker itself closes it as well, unlike one of an
    /// activation.
    fn drop(&mut self) {
        if !self.has_ended {
            self.executor.end();
        }
    }
}

/// Stall detector of the workers, also called the watch: starts others in place of those that are
/// blocked. There is one while activations wait or workers exist, and for [`LOOKS`] checks longer.
struct WorkerMonitor {
    executor: Arc<Executor>,
    has_ended: bool,
}

impl WorkerMonitor {
    /// Checks the queue, first after [`LOOK`], then every [`LOOK_AGAIN`] if activations waited at
    /// the last check, else every [`LOOK`], and starts and logs other workers for blocked ones.
    /// Ends after [`LOOKS`] successive checks that found neither workers nor activations, unless
    /// some have come since.
    async fn run(mut self) {
        let (mut waited, mut idle) = (false, 0);
        loop {
            tokio::time::sleep(if waited { LOOK_AGAIN } else { LOOK }).await;
            let seen = self.executor.queue.look(&mut waited);
            idle = if seen == QueueCheck::Idle { idle + 1 } else { 0 };
            if let QueueCheck::Stuck(call) = seen {
                self.executor.call(call);
                say_held_up();
            }
            if idle >= LOOKS && self.executor.queue.unwatch() {
                self.has_ended = true;
                return;
            }
        }
    }
}

impl Drop for WorkerMonitor {
    /// A watch that is dropped before its end shows that the runtime has ended, perhaps while all
    /// workers are inside handlers: closes the queue. If the watch has panicked, for example
    /// because the runtime has no timers, the queue stays open, and the next activation that is
    /// added starts another watch.
    fn drop(&mut self) {
        if self.has_ended {
        } else if std::thread::panicking() {
            self.executor.queue.lose_watch();
        } else {
            self.executor.end();
        }
    }
}

/// Logs at level debug, without a throttle, that workers are blocked. A panic of the tracing
/// subscriber is caught, because the watch must continue its checks.
fn say_held_up() {
    let say = || tracing::debug!("sharding.workers_held_up: a handler or a task blocks its thread");
    if let Err(panic) = catch_unwind(say) {
        forget_panic(panic);
    }
}
