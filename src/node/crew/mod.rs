//! [`Crew`]: executor that polls the entities of a node with a few worker tasks on the program's
//! runtime.
//!
//! An activation ([`Burst`]) is one run of an entity's message loop, until no message is buffered.
//! It mostly ends within a microsecond. With a tokio task for each activation, tokio's queues
//! overflowed when a thousand entities were busy: the 99th percentile of asks was 40 ms. A worker
//! is one task that polls one activation after the other. An activation that is pending after its
//! first poll, because its code awaits something, becomes a tokio task of its own. A worker
//! therefore never waits, and only the runtime handles wakers.
//!
//! An activation may block its thread, and a new worker may be scheduled behind a task that does.
//! There are as many workers as the runtime has threads. Each takes one activation at a time from a
//! shared queue. A watch (`WorkerMonitor`) checks the queue periodically: if activations wait and
//! some workers have not come to the queue since the last check, it writes them off and starts
//! others.

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

use crate::sharding::burst::{Burst, Running};
use crate::sharding::{forget_panic, yield_now};
use queue::{Added, Call, Next, Pace, Queue, QueueCheck, QueueSettings, WorkerState};

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
pub struct Crew {
    queue: Queue<Burst>,
    runtime: Handle,
}

impl Crew {
    /// Creates an executor on a runtime. When the runtime ends, its activations are dropped.
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

    /// Runs an activation to its end. Drops it if the runtime has ended.
    pub fn run(self: &Arc<Self>, burst: Burst) {
        match self.queue.add(SEAT.get(), burst) {
            Ok(Added { call, watch }) => {
                if watch {
                    // Before the worker: the task that is spawned last runs first, and only on this
                    // thread.
                    self.runtime
                        .spawn(WorkerMonitor { crew: Arc::clone(self), has_ended: false }.run());
                }
                if let Some(call) = call {
                    self.call(call);
                }
            }
            Err(burst) => discard(burst),
        }
    }

    fn call(self: &Arc<Self>, call: Call) {
        for place in call.places() {
            let (crew, over) = (Arc::clone(self), Vec::new());
            let worker = Worker { crew, place, pace: Pace::Quick, over, has_ended: false };
            self.runtime.spawn(worker.work());
        }
    }

    /// Polls an activation once. If it panics, it is dropped during the unwinding, as in a task.
    fn poll(&self, burst: Burst, over: &mut Vec<Running>) -> Polled {
        let polled = catch_unwind(AssertUnwindSafe(move || {
            let mut future = burst.begin(|| over.pop());
            HINT.with(|(hint, waker)| {
                hint.0.store(false, Ordering::Relaxed);
                match future.poll_unpin(&mut Context::from_waker(waker)) {
                    Poll::Ready(()) => Polled::Done(future),
                    Poll::Pending if hint.0.load(Ordering::Relaxed) => Polled::Again(future.into()),
                    Poll::Pending => {
                        // The task's first poll registers its own waker, which replaces the hint.
                        self.runtime.spawn(future);
                        Polled::Awaits
                    }
                }
            })
        }));
        polled.unwrap_or_else(|panic| {
            forget_panic(panic); // the panic hook has reported it
            Polled::Failed
        })
    }

    /// Closes the queue and drops all waiting activations, because the runtime has ended.
    fn end(&self) {
        self.queue.close().into_iter().for_each(discard);
    }
}

/// Drops an activation. A panic of the program's `Drop` code is caught.
fn discard(burst: Burst) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(burst))) {
        forget_panic(panic);
    }
}

/// Result of polling an activation.
enum Polled {
    /// The activation has ended, and leaves its memory.
    Done(Running),
    /// The activation has panicked.
    Failed,
    /// The activation has yielded and must be polled again.
    Again(Burst),
    /// The activation awaits something and became a task, the next one of this thread.
    Awaits,
}

/// Records whether a pending activation has woken its waker during the poll, that is, has yielded.
/// It is only a hint, which may come from another activation or too late: without it the activation
/// becomes a task, which polls it again as well.
#[derive(Default)]
struct Hint(AtomicBool);

impl Wake for Hint {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    /// Seat (queue index) of the worker that last ran on this thread. Tasks that it woke run on
    /// this thread next, and the activations that they add are best polled here as well.
    static SEAT: Cell<usize> = const { Cell::new(0) };
    static HINT: (Arc<Hint>, Waker) = {
        let hint = Arc::<Hint>::default();
        (Arc::clone(&hint), Waker::from(hint))
    };
}

struct Worker {
    crew: Arc<Crew>,
    place: WorkerState,
    pace: Pace,         // of the last poll
    over: Vec<Running>, // memory of finished activations; ≤ OVER_MAX
    has_ended: bool,
}

impl Worker {
    async fn work(mut self) {
        while self.work_on() {
            yield_now().await; // into the runtime's queue, from which any thread may take it
        }
    }

    /// Polls activations until it is time to yield. Returns `false` if the worker has ended.
    fn work_on(&mut self) -> bool {
        let (mut begun, mut pace) = (Instant::now(), self.pace);
        let (since, mut again) = (begun, None);
        SEAT.set(self.place.seat());
        for _ in 0..POLLS {
            let burst = match self.crew.queue.take(&mut self.place, pace, again.take()) {
                Next::Work(burst) => burst,
                Next::Back(burst) => {
                    self.crew.run(burst);
                    continue;
                }
                Next::Call(call) => {
                    self.crew.call(call);
                    break;
                }
                Next::Rest => break,
                Next::End => {
                    self.has_ended = true;
                    return false;
                }
            };
            let polled = self.crew.poll(burst, &mut self.over);
            let now = Instant::now();
            pace = if now - begun > SPAN { Pace::Slow } else { Pace::Quick };
            begun = now;
            let awaits = matches!(polled, Polled::Awaits);
            match polled {
                Polled::Done(mut future) => {
                    if self.over.len() < OVER_MAX && future.is_small() {
                        self.over.push(future);
                    }
                }
                Polled::Again(burst) => again = Some(burst),
                Polled::Awaits | Polled::Failed => {}
            }
            // Yield, so that the new task is polled before another activation that may be long or
            // block.
            if awaits || now - since > SPAN || !coop::has_budget_remaining() {
                break;
            }
        }
        if let Some(burst) = again {
            self.crew.run(burst);
        }
        self.pace = pace;
        true
    }
}

impl Drop for Worker {
    /// A worker that is dropped before its end shows that the runtime has ended.
    fn drop(&mut self) {
        if !self.has_ended {
            self.crew.end();
        }
    }
}

/// Stall detector of the workers: starts others in place of those that are blocked. There is one
/// while activations wait or workers exist.
struct WorkerMonitor {
    crew: Arc<Crew>,
    has_ended: bool,
}

impl WorkerMonitor {
    async fn run(mut self) {
        let (mut waited, mut idle) = (false, 0);
        loop {
            tokio::time::sleep(if waited { LOOK_AGAIN } else { LOOK }).await;
            let seen = self.crew.queue.look(&mut waited);
            idle = if seen == QueueCheck::Idle { idle + 1 } else { 0 };
            if let QueueCheck::Stuck(call) = seen {
                self.crew.call(call);
                say_held_up();
            }
            if idle >= LOOKS && self.crew.queue.unwatch() {
                self.has_ended = true;
                return;
            }
        }
    }
}

impl Drop for WorkerMonitor {
    /// A watch that is dropped before its end shows that the runtime has ended, perhaps while all
    /// workers are inside handlers; or it has panicked, for example because the runtime has no
    /// timers.
    fn drop(&mut self) {
        if self.has_ended {
        } else if std::thread::panicking() {
            self.crew.queue.lose_watch();
        } else {
            self.crew.end();
        }
    }
}

/// Logs that workers are blocked. A panic of the tracing subscriber is caught, because the watch
/// must continue its checks.
fn say_held_up() {
    let say = || tracing::debug!("sharding.workers_held_up: a handler or a task blocks its thread");
    if let Err(panic) = catch_unwind(say) {
        forget_panic(panic);
    }
}
