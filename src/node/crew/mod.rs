//! The crew: workers that poll what entities do, many in one task of the program's runtime.
//!
//! An entity's burst (its messages, up to the moment at which none waits) is mostly over within a
//! microsecond. A task of tokio for each made its queues overflow where a thousand entities were busy
//! at once: of asks in flight one of a hundred took 40 ms. A worker is one task, and polls one
//! burst after the other. A burst that is not over at its first poll, for its code awaits something,
//! becomes a task of its own and is the runtime's: so a worker never waits for anything, and
//! there is no second place that knows wakers.
//!
//! A burst may block its thread, though, and a worker that was called may stand behind a task that
//! does. There are as many workers as the runtime has threads, each takes one burst at a time out
//! of a queue that all share, and a watch writes off those that do not come between two of its looks
//! while something waits.

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
use queue::{Added, Call, Next, Pace, Place, Queue, Seen, Settings};

/// Bursts that a worker polls before it lets other tasks have their turn, and the time after which it
/// does so in any case.
const POLLS: usize = 64;
const SPAN: Duration = Duration::from_micros(50);

/// Bursts that wait for each worker before another one is called, as long as all are quick; and turns of
/// others that a worker which finds nothing stays for. Measured: fewer workers wake threads
/// for little, and one that ends at once is started anew for the next message.
const CROWD: usize = 16;
const RESTS: u8 = 8;

/// Bursts that are over, whose memory a worker keeps for others. One would do if each were over at its
/// first poll: those that let others have a turn have their own meanwhile, and leave it as well.
const OVER_MAX: usize = 64;

/// How often the watch looks: while nothing waits, and while something does.
const LOOK: Duration = Duration::from_millis(10);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Looks that find nobody at work before the watch ends.
const LOOKS: usize = 10;

/// The workers of a node, for all its entity types.
pub struct Crew {
    queue: Queue<Burst>,
    runtime: Handle,
}

impl Crew {
    /// Works on that runtime. Its bursts are dropped with it.
    #[must_use]
    pub fn new(runtime: Handle) -> Arc<Self> {
        let workers_max = runtime.metrics().num_workers();
        let queue = Queue::new(Settings { workers_max, crowd: CROWD, rests: RESTS });
        Arc::new(Self { queue, runtime })
    }

    /// Polls the burst until it is over. If the runtime has ended, drops it.
    pub fn run(self: &Arc<Self>, burst: Burst) {
        match self.queue.add(SEAT.get(), burst) {
            Ok(Added { call, watch }) => {
                if watch {
                    // Before the worker: what is spawned last runs first, on this thread only.
                    self.runtime.spawn(Watch { crew: Arc::clone(self), has_ended: false }.run());
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

    /// Polls it once. What its panic leaves is dropped while that goes on, as in a task.
    fn poll(&self, burst: Burst, over: &mut Vec<Running>) -> Polled {
        let polled = catch_unwind(AssertUnwindSafe(move || {
            let mut future = burst.begin(|| over.pop());
            HINT.with(|(hint, waker)| {
                hint.0.store(false, Ordering::Relaxed);
                match future.poll_unpin(&mut Context::from_waker(waker)) {
                    Poll::Ready(()) => Polled::Done(future),
                    Poll::Pending if hint.0.load(Ordering::Relaxed) => Polled::Again(future.into()),
                    Poll::Pending => {
                        // Its first poll there registers a waker that lasts.
                        self.runtime.spawn(future);
                        Polled::Awaits
                    }
                }
            })
        }));
        polled.unwrap_or_else(|panic| {
            forget_panic(panic); // it was reported by its hook
            Polled::Failed
        })
    }

    /// The runtime has ended.
    fn end(&self) {
        self.queue.close().into_iter().for_each(discard);
    }
}

/// The user's own `Drop` may panic: that concerns nobody else.
fn discard(burst: Burst) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(burst))) {
        forget_panic(panic);
    }
}

/// What came of a burst's poll.
enum Polled {
    /// It is over, and leaves its memory.
    Done(Running),
    Failed,
    /// It waits for its next.
    Again(Burst),
    /// It is a task now, the next one of this thread.
    Awaits,
}

/// Whether a burst that is not over has asked to be polled again at once. A hint: who gives none is
/// polled again as a task, so it may be another's, or come too late.
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
    /// Where the worker sits that came by last: what it woke runs on this thread next, and what that
    /// adds is best polled here as well.
    static SEAT: Cell<usize> = const { Cell::new(0) };
    static HINT: (Arc<Hint>, Waker) = {
        let hint = Arc::<Hint>::default();
        (Arc::clone(&hint), Waker::from(hint))
    };
}

struct Worker {
    crew: Arc<Crew>,
    place: Place,
    pace: Pace,         // of its last poll
    over: Vec<Running>, // of bursts that are over; ≤ OVER_MAX
    has_ended: bool,
}

impl Worker {
    async fn work(mut self) {
        while self.work_on() {
            yield_now().await; // to the runtime's queue, where any thread may take it
        }
    }

    /// `false`: it has ended. Else it is others' turn.
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
            // What awaits is polled again first: no burst that is long, or blocks, comes before it.
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
    /// Dropped before it has ended: so the runtime has.
    fn drop(&mut self) {
        if !self.has_ended {
            self.crew.end();
        }
    }
}

/// Looks after the workers until nobody works any more. While anything waits there is one.
struct Watch {
    crew: Arc<Crew>,
    has_ended: bool,
}

impl Watch {
    async fn run(mut self) {
        let (mut waited, mut idle) = (false, 0);
        loop {
            tokio::time::sleep(if waited { LOOK_AGAIN } else { LOOK }).await;
            let seen = self.crew.queue.look(&mut waited);
            idle = if seen == Seen::Idle { idle + 1 } else { 0 };
            if let Seen::Stuck(call) = seen {
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

impl Drop for Watch {
    /// Dropped before it has ended: so the runtime has, while all workers may be in handlers. Or it
    /// has failed, as where the runtime has no timers.
    fn drop(&mut self) {
        if self.has_ended {
        } else if std::thread::panicking() {
            self.crew.queue.lose_watch();
        } else {
            self.crew.end();
        }
    }
}

/// A subscriber may panic: the looks go on, for who waits behind those that block has nothing else.
fn say_held_up() {
    let say = || tracing::debug!("sharding.workers_held_up: a handler or a task keeps its thread");
    if let Err(panic) = catch_unwind(say) {
        forget_panic(panic);
    }
}
