//! Workers on a real runtime. Nothing here lets time pass: each test waits for what must happen.

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

fn crew(threads: usize) -> (Runtime, Arc<Crew>) {
    crew_of(Builder::new_multi_thread().worker_threads(threads))
}

fn crew_of(runtime: &mut Builder) -> (Runtime, Arc<Crew>) {
    let runtime = runtime.enable_time().build().expect("a runtime");
    let crew = Crew::new(runtime.handle().clone());
    (runtime, crew)
}

fn says<T: Send + 'static>(to: &Sender<T>, word: T) -> Burst {
    let to = to.clone();
    Burst::of(async move { to.send(word).expect("the test waits for it") })
}

/// Says when it blocks, and does until it is told.
fn blocks(in_place: bool) -> (Burst, Receiver<()>, Sender<()>) {
    let (say, said) = channel();
    let (end, ended) = channel();
    let wait = move || {
        say.send(()).expect("the test waits for it");
        ended.recv_timeout(DEADLINE).expect("the test ends it");
    };
    let burst = async move {
        if in_place {
            tokio::task::block_in_place(wait);
        } else {
            wait();
        }
    };
    (Burst::of(burst), said, end)
}

#[test]
fn every_burst_is_run_however_many_there_are() {
    let (_runtime, crew) = crew(2);
    let (say, said) = channel();
    for number in 0..10_000_u32 {
        crew.run(says(&say, number));
    }
    let mut all: Vec<_> =
        (0..10_000).map(|_| said.recv_timeout(DEADLINE).expect("all are run")).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..10_000));
}

/// For one a second worker is not even called: the watch finds that the first is held up.
#[test]
fn a_burst_that_blocks_its_thread_holds_up_no_other() {
    for others in [1, 1_000] {
        let (_runtime, crew) = crew(2);
        let (blocker, blocked, end) = blocks(false);
        crew.run(blocker);
        blocked.recv_timeout(DEADLINE).expect("it runs");
        let (say, said) = channel();
        for word in 0..others {
            crew.run(says(&say, word));
        }
        for _ in 0..others {
            said.recv_timeout(DEADLINE).expect("the other thread runs it");
        }
        end.send(()).expect("it waits");
    }
}

/// As a task it is the next one of its thread, where no other finds it: if the next burst blocked that
/// thread before it is polled, it would not hear of what it awaits. There is one thread here, so the
/// order is what the worker makes of it.
#[test]
fn a_burst_that_awaits_is_polled_as_a_task_before_the_next_one() {
    let (runtime, crew) = crew(1);
    // Often, for after a poll that happens to take long its worker lets others run in any case.
    for _ in 0..20 {
        let (say, said) = channel();
        let next = says(&say, ("next", 1));
        let mut polls = 0;
        let awaits = poll_fn(move |_| {
            polls += 1;
            say.send(("awaits", polls)).expect("the test waits for it");
            if polls == 1 { Poll::Pending } else { Poll::Ready(()) }
        });
        let there = Arc::clone(&crew);
        let adds = runtime.spawn(async move {
            there.run(Burst::of(awaits));
            there.run(next);
        });
        runtime.block_on(adds).expect("it ends");
        let heard = [(); 3].map(|()| said.recv_timeout(DEADLINE).expect("both are run"));
        assert_eq!(heard, [("awaits", 1), ("awaits", 2), ("next", 1)]);
    }
}

#[test]
fn nor_do_as_many_as_there_are_workers_if_the_runtime_knows_that_they_block() {
    let (_runtime, crew) = crew(2);
    let mut ends = Vec::new();
    for _ in 0..6 {
        let (blocker, blocked, end) = blocks(true);
        crew.run(blocker);
        blocked.recv_timeout(DEADLINE).expect("workers that block are written off");
        ends.push(end);
    }
    let (say, said) = channel();
    crew.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("somebody runs it");
    ends.into_iter().for_each(|end| end.send(()).expect("it waits"));
}

/// A subscriber that panics at each event that it hears of, and counts them.
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

/// Six block, and workers are called for two at a time: so the watch is to find it twice, while nobody adds
/// anything, which would bring another watch.
#[test]
fn a_subscriber_that_panics_ends_no_watch() {
    let (rude, events) = rude();
    // Where there is one alone, tracing may take the word of a thread that has none for all.
    let _other = Dispatch::new(NoSubscriber::default());
    let mut runtime = Builder::new_multi_thread();
    // For as long as the thread lives.
    let hear = move || std::mem::forget(dispatcher::set_default(&rude));
    let (_runtime, crew) = crew_of(runtime.worker_threads(2).on_thread_start(hear));
    let blockers: Vec<_> = (0..6).map(|_| blocks(true)).collect();
    let (bursts, signs): (Vec<_>, Vec<_>) =
        blockers.into_iter().map(|(burst, said, end)| (burst, (said, end))).unzip();
    bursts.into_iter().for_each(|burst| crew.run(burst));
    for (blocked, _) in &signs {
        blocked.recv_timeout(DEADLINE).expect("workers that block are written off");
    }
    assert!(events.load(Ordering::SeqCst) > 0, "it has panicked");
    signs.into_iter().for_each(|(_, end)| end.send(()).expect("it waits"));
}

/// The worker that it calls is the next task of its own thread, where nobody else can take it.
#[test]
fn who_calls_a_worker_and_blocks_holds_up_nobody() {
    let (runtime, crew) = crew(2);
    let (say, said) = channel();
    let there = Arc::clone(&crew);
    let caller = runtime.spawn(async move {
        there.run(says(&say, ()));
        said.recv_timeout(DEADLINE).is_ok()
    });
    assert!(runtime.block_on(caller).expect("it ends"), "the watch has called another worker");
}

#[test]
fn a_burst_that_awaits_goes_on_when_it_is_woken_and_holds_up_nobody() {
    let (_runtime, crew) = crew(1);
    let (wake, woken) = oneshot::channel();
    let (say, said) = channel();
    let awaits = says(&say, "after");
    crew.run(Burst::of(async move {
        woken.await.expect("the test wakes it");
        awaits.begin(|| None).await;
    }));
    crew.run(says(&say, "before"));
    assert_eq!(said.recv_timeout(DEADLINE), Ok("before"));
    wake.send(()).expect("it waits");
    assert_eq!(said.recv_timeout(DEADLINE), Ok("after"));
}

#[test]
fn who_lets_others_go_first_is_polled_again_after_them() {
    let (runtime, crew) = crew(1);
    let (say, said) = channel();
    let order = ["first", "second", "third"].map(|name| (name, says(&say, (name, 2))));
    let there = Arc::clone(&crew);
    // From its one thread: no worker runs before all have been added.
    let adds = runtime.spawn(async move {
        for (name, again) in order {
            let once = says(&say, (name, 1));
            there.run(Burst::of(async move {
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

/// Says, when it is dropped, whether a panic goes on.
struct Dropped(Sender<bool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::panicking());
    }
}

#[test]
fn a_panic_ends_one_burst_and_drops_it_as_it_goes() {
    let (_runtime, crew) = crew(1);
    let (drops, dropped) = channel();
    let (say, said) = channel();
    let held = Dropped(drops);
    crew.run(Burst::of(async move {
        let _held = held;
        panic!("as the test wants it");
    }));
    crew.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("its worker goes on");
    assert_eq!(dropped.recv_timeout(DEADLINE), Ok(true));
}

#[test]
fn what_a_burst_held_is_gone_with_it_while_its_worker_goes_on() {
    let (_runtime, crew) = crew(1);
    let (drops, dropped) = channel();
    let held = Dropped(drops);
    crew.run(Burst::of(poll_fn(move |_| {
        let _held = &held;
        Poll::Ready(())
    })));
    let (blocker, blocked, end) = blocks(false);
    crew.run(blocker);
    blocked.recv_timeout(DEADLINE).expect("it runs");
    assert_eq!(dropped.recv_timeout(DEADLINE), Ok(false));
    end.send(()).expect("it waits");
}

/// Panics as often as it is dropped.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

#[test]
fn nor_does_what_a_panic_says_end_the_crew() {
    let (_runtime, crew) = crew(1);
    crew.run(Burst::of(async { std::panic::panic_any(Spiteful) }));
    let (say, said) = channel();
    crew.run(says(&say, ()));
    said.recv_timeout(DEADLINE).expect("its worker goes on");
}

#[test]
fn what_the_runtime_leaves_is_dropped_with_it_and_what_comes_later_at_once() {
    let (runtime, crew) = crew(2);
    let (blocker, blocked, end) = blocks(false);
    crew.run(blocker);
    blocked.recv_timeout(DEADLINE).expect("it runs");
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
        crew.run(Burst::of(never_polled(Dropped(drops.clone()))));
    }
    runtime.shutdown_background(); // its thread is still in there
    for _ in 0..3 {
        dropped.recv_timeout(DEADLINE).expect("dropped, or run before that: nobody else is left");
    }
    end.send(()).expect("it waits");
    let run = || {
        let before = polls.load(Ordering::SeqCst);
        crew.run(Burst::of(never_polled(Dropped(drops.clone()))));
        dropped.recv_timeout(DEADLINE).expect("whether polled or not");
        polls.load(Ordering::SeqCst) > before
    };
    let begun = Instant::now();
    while run() {
        assert!(begun.elapsed() < DEADLINE, "its worker is about to be dropped");
    }
    assert!(!run(), "nor is any later one polled");
}

#[test]
fn the_watch_ends_when_nobody_works_and_another_begins_with_the_next_burst() {
    let (_runtime, crew) = crew(1);
    let (say, said) = channel();
    for round in 0..2 {
        crew.run(says(&say, round));
        assert_eq!(said.recv_timeout(DEADLINE), Ok(round));
        let begun = Instant::now();
        while Arc::strong_count(&crew) > 1 {
            assert!(begun.elapsed() < DEADLINE, "its workers and its watch end");
            thread::yield_now();
        }
    }
}
