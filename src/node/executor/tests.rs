//! Tests of the workers on a real runtime. They use no sleeps: each waits for an expected event.

use std::future::poll_fn;
use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Level, dispatcher};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn executor(threads: usize) -> (Runtime, Arc<Executor>) {
    executor_of(Builder::new_multi_thread().worker_threads(threads))
}

fn executor_of(runtime: &mut Builder) -> (Runtime, Arc<Executor>) {
    let runtime = runtime.enable_time().build().expect("a runtime");
    let executor = Executor::new(runtime.handle().clone());
    (runtime, executor)
}

fn says<T: Send + 'static>(to: &Sender<T>, word: T) -> Activation {
    let to = to.clone();
    Activation::of(async move { to.send(word).expect("the test waits for it") })
}

/// Creates an activation that reports when it blocks its thread, and blocks until the test ends it.
fn blocks(in_place: bool) -> (Activation, Receiver<()>, Sender<()>) {
    let (say, said) = channel();
    let (end, ended) = channel();
    let wait = move || {
        say.send(()).expect("the test waits for it");
        ended.recv_timeout(DEADLINE).expect("the test ends it");
    };
    let activation = async move {
        if in_place {
            tokio::task::block_in_place(wait);
        } else {
            wait();
        }
    };
    (Activation::of(activation), said, end)
}

#[test]
fn all_of_many_activations_are_run() {
    let (_runtime, executor) = executor(2);
    let (say, said) = channel();
    for number in 0..10_000_u32 {
        executor.run(says(&say, number));
    }
    let mut all: Vec<_> =
        (0..10_000).map(|_| said.recv_timeout(DEADLINE).expect("all are run")).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..10_000));
}

/// A single further activation starts no second worker; the watch detects that the first is
/// blocked.
#[test]
fn blocking_activation_does_not_delay_others() {
    for others in [1, 1_000] {
        let (_runtime, executor) = executor(2);
        let (blocker, blocked, end) = blocks(false);
        executor.run(blocker);
        blocked.recv_timeout(DEADLINE).expect("the activation runs");
        let (say, said) = channel();
        for word in 0..others {
            executor.run(says(&say, word));
        }
        for _ in 0..others {
            said.recv_timeout(DEADLINE).expect("the other thread runs it");
        }
        end.send(()).expect("the activation waits");
    }
}

/// The new task is the next one of its thread, and other threads cannot take it. If the next
/// activation blocked the thread before the task is polled, the task would not be woken by the
/// event that it awaits. With one thread the order depends on the worker alone.
#[test]
fn pending_activation_is_polled_as_a_task_before_the_next_one() {
    let (runtime, executor) = executor(1);
    // Repeated, because after a poll that happens to take long the worker yields in any case.
    for _ in 0..20 {
        let (say, said) = channel();
        let next = says(&say, ("next", 1));
        let mut polls = 0;
        let awaits = poll_fn(move |_| {
            polls += 1;
            say.send(("awaits", polls)).expect("the test waits for it");
            if polls == 1 { Poll::Pending } else { Poll::Ready(()) }
        });
        let there = Arc::clone(&executor);
        let adds = runtime.spawn(async move {
            there.run(Activation::of(awaits));
            there.run(next);
        });
        runtime.block_on(adds).expect("it ends");
        let heard = [(); 3].map(|()| said.recv_timeout(DEADLINE).expect("both are run"));
        assert_eq!(heard, [("awaits", 1), ("awaits", 2), ("next", 1)]);
    }
}

#[test]
fn block_in_place_activations_do_not_use_up_the_workers() {
    let (_runtime, executor) = executor(2);
    let mut ends = Vec::new();
    for _ in 0..6 {
        let (blocker, blocked, end) = blocks(true);
        executor.run(blocker);
        blocked.recv_timeout(DEADLINE).expect("workers that block are written off");
        ends.push(end);
    }
    let (say, said) = channel();
    executor.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("somebody runs it");
    ends.into_iter().for_each(|end| end.send(()).expect("the activation waits"));
}

/// A tracing subscriber that counts events and panics at each.
fn rude() -> (Dispatch, Arc<AtomicUsize>) {
    let events = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&events);
    let panics = move || -> io::Sink {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("as the test wants it");
    };
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::DEBUG).with_writer(panics);
    (Dispatch::new(subscriber.finish()), events)
}

/// Six activations block and two workers are started at a time, so the watch must detect it twice.
/// No activation is added meanwhile, because that would start another watch.
#[test]
fn panicking_subscriber_does_not_end_the_watch() {
    let (rude, events) = rude();
    // With a single dispatcher, tracing may cache for all threads that one without it is interested
    // in no event.
    let _other = Dispatch::new(NoSubscriber::default());
    let mut runtime = Builder::new_multi_thread();
    // The guard is forgotten, so that the subscriber stays as long as the thread lives.
    let hear = move || std::mem::forget(dispatcher::set_default(&rude));
    let (_runtime, executor) = executor_of(runtime.worker_threads(2).on_thread_start(hear));
    let blockers: Vec<_> = (0..6).map(|_| blocks(true)).collect();
    let (activations, signs): (Vec<_>, Vec<_>) =
        blockers.into_iter().map(|(activation, said, end)| (activation, (said, end))).unzip();
    activations.into_iter().for_each(|activation| executor.run(activation));
    for (blocked, _) in &signs {
        blocked.recv_timeout(DEADLINE).expect("workers that block are written off");
    }
    assert!(events.load(Ordering::SeqCst) > 0, "it has panicked");
    signs.into_iter().for_each(|(_, end)| end.send(()).expect("the activation waits"));
}

/// The new worker is the next task of the blocked thread, and other threads cannot take it.
#[test]
fn caller_that_starts_a_worker_and_blocks_delays_no_activation() {
    let (runtime, executor) = executor(2);
    let (say, said) = channel();
    let there = Arc::clone(&executor);
    let caller = runtime.spawn(async move {
        there.run(says(&say, ()));
        said.recv_timeout(DEADLINE).is_ok()
    });
    assert!(runtime.block_on(caller).expect("it ends"), "the watch has called another worker");
}

#[test]
fn pending_activation_continues_when_woken_and_delays_no_others() {
    let (_runtime, executor) = executor(1);
    let (wake, woken) = oneshot::channel();
    let (say, said) = channel();
    let awaits = says(&say, "after");
    executor.run(Activation::of(async move {
        woken.await.expect("the test wakes it");
        awaits.begin(|| None).await;
    }));
    executor.run(says(&say, "before"));
    assert_eq!(said.recv_timeout(DEADLINE), Ok("before"));
    wake.send(()).expect("the activation waits");
    assert_eq!(said.recv_timeout(DEADLINE), Ok("after"));
}

#[test]
fn yielding_activation_is_polled_again_after_the_others() {
    let (runtime, executor) = executor(1);
    let (say, said) = channel();
    let order = ["first", "second", "third"].map(|name| (name, says(&say, (name, 2))));
    let there = Arc::clone(&executor);
    // Added from the runtime's only thread, so that no worker runs before.
    let adds = runtime.spawn(async move {
        for (name, again) in order {
            let once = says(&say, (name, 1));
            there.run(Activation::of(async move {
                once.begin(|| None).await;
                yield_now().await;
                again.begin(|| None).await;
            }));
        }
    });
    runtime.block_on(adds).expect("it ends");
    let heard: Vec<_> = (0..6).map(|_| said.recv_timeout(DEADLINE).expect("all go on")).collect();
    let [a, b, c] = ["first", "second", "third"];
    assert_eq!(heard, [(a, 1), (b, 1), (c, 1), (a, 2), (b, 2), (c, 2)]);
}

/// Reports when it is dropped, and whether its thread is panicking.
struct Dropped(Sender<bool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::panicking());
    }
}

#[test]
fn panic_ends_one_activation_and_drops_it_while_unwinding() {
    let (_runtime, executor) = executor(1);
    let (drops, dropped) = channel();
    let (say, said) = channel();
    let held = Dropped(drops);
    executor.run(Activation::of(async move {
        let _held = held;
        panic!("as the test wants it");
    }));
    executor.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("the worker continues");
    assert_eq!(dropped.recv_timeout(DEADLINE), Ok(true));
}

#[test]
fn ended_activation_is_dropped_before_the_next_one_runs() {
    let (_runtime, executor) = executor(1);
    let (drops, dropped) = channel();
    let held = Dropped(drops);
    executor.run(Activation::of(poll_fn(move |_| {
        let _held = &held;
        Poll::Ready(())
    })));
    let (blocker, blocked, end) = blocks(false);
    executor.run(blocker);
    blocked.recv_timeout(DEADLINE).expect("the activation runs");
    assert_eq!(dropped.recv_timeout(DEADLINE), Ok(false));
    end.send(()).expect("the activation waits");
}

/// A value whose `drop` panics.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

#[test]
fn panic_payload_that_panics_on_drop_does_not_end_the_worker() {
    let (_runtime, executor) = executor(1);
    executor.run(Activation::of(async { std::panic::panic_any(Spiteful) }));
    let (say, said) = channel();
    executor.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("the worker continues");
}

#[test]
fn end_of_runtime_drops_waiting_and_later_activations() {
    let (runtime, executor) = executor(2);
    let (blocker, blocked, end) = blocks(false);
    executor.run(blocker);
    blocked.recv_timeout(DEADLINE).expect("the activation runs");
    let (drops, dropped) = channel();
    let polls = Arc::new(AtomicUsize::new(0));
    let never_polled = |held: Dropped| {
        let polls = Arc::clone(&polls);
        async move {
            let _held = held;
            polls.fetch_add(1, Ordering::SeqCst);
        }
    };
    for _ in 0..3 {
        executor.run(Activation::of(never_polled(Dropped(drops.clone()))));
    }
    runtime.shutdown_background(); // one of its threads still blocks
    for _ in 0..3 {
        dropped.recv_timeout(DEADLINE).expect("dropped with the runtime, or run before its end");
    }
    end.send(()).expect("the activation waits");
    let run = || {
        let before = polls.load(Ordering::SeqCst);
        executor.run(Activation::of(never_polled(Dropped(drops.clone()))));
        dropped.recv_timeout(DEADLINE).expect("dropped, whether polled or not");
        polls.load(Ordering::SeqCst) > before
    };
    let begun = Instant::now();
    while run() {
        assert!(begun.elapsed() < DEADLINE, "the runtime must drop its worker at last");
    }
    assert!(!run(), "no later activation is polled");
}

#[test]
fn watch_ends_when_idle_and_restarts_with_next_activation() {
    let (_runtime, executor) = executor(1);
    let (say, said) = channel();
    for round in 0..2 {
        executor.run(says(&say, round));
        assert_eq!(said.recv_timeout(DEADLINE), Ok(round));
        let begun = Instant::now();
        while Arc::strong_count(&executor) > 1 {
            assert!(begun.elapsed() < DEADLINE, "workers and watch must end");
            thread::yield_now();
        }
    }
}
