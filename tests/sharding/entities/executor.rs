//! A deterministic executor: each step polls one ready task that the test chooses, and the clock
//! moves only when the test advances it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use ostraca::sharding::activation::Activation;
use ostraca_ddata::clock::Instant;

/// The executor and clock that all nodes of a test share.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: Mutex<BTreeMap<u64, BoxFuture<'static, ()>>>,
    ready: Mutex<VecDeque<u64>>,
    unpolled: Mutex<BTreeSet<u64>>, // activations before their first poll
    last: AtomicU64,
    nanos: AtomicU64,
    sleepers: Mutex<Vec<(u64, Arc<Sleeper>)>>,
    over: AtomicBool,
    me: Weak<Self>,
}

struct Named {
    id: u64,
    queued: AtomicBool,
    executor: Weak<Executor>,
}

impl Wake for Named {
    fn wake(self: Arc<Self>) {
        if let Some(executor) = self.executor.upgrade()
            && !self.queued.swap(true, Ordering::SeqCst)
        {
            executor.ready.lock().expect("nobody panicked").push_back(self.id);
        }
    }
}

#[derive(Default)]
struct Sleeper {
    over: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Executor {
    pub(crate) fn new() -> Arc<Self> {
        // Not zero, which stands for a time that never was.
        let nanos = AtomicU64::new(1_000_000_000);
        Arc::new_cyclic(|me| Self { me: me.clone(), nanos, ..Self::default() })
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    pub(crate) fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.take(task);
    }

    /// Runs an activation as a worker of the library does: its first poll has a waker that does
    /// nothing, and a second poll follows without a wake-up.
    pub(crate) fn run(&self, burst: Activation) {
        if let Some(id) = self.take(Box::pin(async move { burst.begin(|| None).await })) {
            self.unpolled.lock().expect("nobody panicked").insert(id);
        }
    }

    fn take(&self, task: BoxFuture<'static, ()>) -> Option<u64> {
        if self.over.load(Ordering::SeqCst) {
            return None; // like a runtime that was shut down
        }
        let id = self.last.fetch_add(1, Ordering::SeqCst);
        self.tasks.lock().expect("nobody panicked").insert(id, task);
        self.ready.lock().expect("nobody panicked").push_back(id);
        Some(id)
    }

    pub(crate) fn sleep(&self, pause: Duration) -> BoxFuture<'static, ()> {
        let sleeper = Arc::new(Sleeper::default());
        let at = (self.now() + pause).as_nanos();
        self.sleepers.lock().expect("nobody panicked").push((at, Arc::clone(&sleeper)));
        Box::pin(std::future::poll_fn(move |cx| {
            *sleeper.waker.lock().expect("nobody panicked") = Some(cx.waker().clone());
            if sleeper.over.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    pub(crate) fn ready(&self) -> usize {
        self.ready.lock().expect("nobody panicked").len()
    }

    pub(crate) fn tasks(&self) -> usize {
        self.tasks.lock().expect("nobody panicked").len()
    }

    /// Polls the `pick`th ready task, modulo their number.
    pub(crate) fn step(&self, pick: usize) {
        let id = {
            let mut ready = self.ready.lock().expect("nobody panicked");
            let pick = pick % ready.len();
            ready.remove(pick).expect("it is ready")
        };
        let Some(mut task) = self.tasks.lock().expect("nobody panicked").remove(&id) else {
            return;
        };
        let first = self.unpolled.lock().expect("nobody panicked").remove(&id);
        let waker = if first {
            Waker::noop().clone()
        } else {
            let named = Named { id, queued: AtomicBool::new(false), executor: self.me.clone() };
            Waker::from(Arc::new(named))
        };
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks.lock().expect("nobody panicked").insert(id, task);
            if first {
                self.ready.lock().expect("nobody panicked").push_back(id);
            }
        }
    }

    /// Earliest deadline of the sleeping tasks.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let sleepers = self.sleepers.lock().expect("nobody panicked");
        sleepers.iter().map(|(at, _)| Instant::from_nanos(*at)).min()
    }

    /// Advances the clock and wakes the sleepers that are due.
    pub(crate) fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Sets the clock and wakes the sleepers that are due.
    pub(crate) fn set(&self, now: Instant) {
        let now = now.as_nanos();
        self.nanos.store(now, Ordering::SeqCst);
        let mut due = Vec::new();
        self.sleepers.lock().expect("nobody panicked").retain(|(at, sleeper)| {
            let is_due = *at <= now;
            if is_due {
                due.push(Arc::clone(sleeper));
            }
            !is_due && Arc::strong_count(sleeper) > 1
        });
        for sleeper in due {
            sleeper.over.store(true, Ordering::SeqCst);
            if let Some(waker) = sleeper.waker.lock().expect("nobody panicked").take() {
                waker.wake();
            }
        }
    }

    /// Drops every task, like an executor that ends.
    pub(crate) fn end(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("nobody panicked"));
        drop(tasks);
    }

    /// As [`end`](Self::end), and rejects further tasks.
    pub(crate) fn shut_down(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.end();
    }
}
