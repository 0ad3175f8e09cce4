//! Tests of the driver: turns of its loop, and turns that callers run.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use futures::FutureExt;
use ostraca_ddata::clock::Now;

use super::super::inbox::{InboxLimits, QueueLengths, Urgency};
use super::*;
use crate::waits::until;

/// A machine that outputs each word it gets, and requests a tick after each batch or at a given
/// time.
#[derive(Debug, Default)]
struct Echo {
    due: Option<Instant>,
}

enum Heard {
    Tick,
    Word(u32),
    WakeIn(Duration),
    Panic,
    Hold(std::sync::mpsc::Receiver<()>),
    /// Takes as long as a turn may last, and outputs this number.
    Long(u32),
}

impl Machine for Echo {
    type Input = Heard;
    type Output = u32;

    fn handle(&mut self, now: Now, input: Heard, out: &mut Outbox<u32>) {
        match input {
            Heard::Word(word) => {
                out.push(word);
                self.due.get_or_insert(now.mono);
            }
            Heard::WakeIn(span) => self.due = Some(now.mono + span),
            Heard::Tick => {
                assert!(
                    self.due.take().is_some_and(|at| at <= now.mono),
                    "the tick came too early"
                );
                out.push(u32::MAX);
            }
            Heard::Panic => panic!("as ordered"),
            Heard::Hold(until) => until.recv().expect("the test ends it"),
            Heard::Long(word) => {
                thread::sleep(TURN_SPAN);
                out.push(word);
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}

/// A world that records outputs by batch. A parameter sets whether callers run the machine.
#[derive(Clone, Debug, Default)]
struct RecordingWorld<const ON_CALLERS: bool>(Arc<Mutex<Vec<Vec<u32>>>>, Vec<u32>, bool);

impl<const ON_CALLERS: bool> MachineEnvironment<Echo> for RecordingWorld<ON_CALLERS> {
    const NAME: &'static str = "echo";
    const ON_CALLERS: bool = ON_CALLERS;

    fn tick() -> Heard {
        Heard::Tick
    }

    fn perform(&mut self, output: u32) {
        self.1.push(output);
    }

    fn flush(&mut self) {
        let batch = std::mem::take(&mut self.1);
        self.0.lock().expect("no test panics under it").push(batch);
    }

    fn defers_requests(&self) -> bool {
        self.2
    }
}

fn driver(behind: bool) -> (Driver<Echo, RecordingWorld<false>>, Inbox<Echo>) {
    driver_of(behind)
}

/// A driver whose turns have no bound in time, so that a busy host cannot split a batch.
fn driver_of<const ON_CALLERS: bool>(
    behind: bool,
) -> (Driver<Echo, RecordingWorld<ON_CALLERS>>, Inbox<Echo>) {
    let inbox = Inbox::new(InboxLimits::default());
    let world = RecordingWorld(Arc::default(), Vec::new(), behind);
    let mut driver = Driver::new(Echo::default(), world, inbox.clone(), Clock::start());
    driver.core.turn_span = Duration::MAX;
    (driver, inbox)
}

fn batches<const ON_CALLERS: bool>(world: &RecordingWorld<ON_CALLERS>) -> Vec<Vec<u32>> {
    world.0.lock().expect("no test panics under it").clone()
}

#[tokio::test]
async fn queued_inputs_are_one_batch_with_its_tick_in_the_same_turn() {
    let (driver, inbox) = driver(false);
    let counters = driver.counters();
    (0..3).for_each(|n| inbox.fact(Heard::Word(n)).expect("open"));
    inbox.close();
    let (_, world) = driver.run().await;
    assert_eq!(batches(&world), [vec![0, 1, 2, u32::MAX]]);
    let turns = counters.read();
    assert_eq!((turns.turns, turns.inputs, turns.ticks, turns.outputs), (1, 3, 1, 4));
    assert_eq!(turns.batch_max, 3);
    assert!(turns.turn_max > Duration::ZERO && turns.busy >= turns.turn_max);
}

#[tokio::test]
async fn turn_is_bounded_and_stop_handles_all_queued_inputs() {
    let (driver, inbox) = driver(false);
    let many = u32::try_from(TURN_MAX).expect("small") * 2 + 1;
    (0..many).for_each(|n| inbox.fact(Heard::Word(n)).expect("open"));
    inbox.close();
    let (_, world) = driver.run().await;
    let sizes: Vec<usize> = batches(&world).iter().map(Vec::len).collect();
    assert_eq!(sizes, [TURN_MAX + 1, TURN_MAX + 1, 2]);
    let words: Vec<u32> = batches(&world).concat();
    let words: Vec<u32> = words.into_iter().filter(|word| *word != u32::MAX).collect();
    assert_eq!(words, (0..many).collect::<Vec<_>>());
}

/// All inputs are taken from the inbox at once; the turns end because of their duration.
#[tokio::test]
async fn turn_begins_no_input_after_its_span() {
    let inbox = Inbox::new(InboxLimits::default());
    let world = RecordingWorld::<false>(Arc::default(), Vec::new(), false);
    let driver = Driver::new(Echo::default(), world, inbox.clone(), Clock::start());
    let counters = driver.counters();
    (0..8).for_each(|n| inbox.fact(Heard::Long(n)).expect("open"));
    inbox.fact(Heard::Word(8)).expect("open");
    inbox.close();
    let (_, world) = driver.run().await;
    let mut each_alone: Vec<Vec<u32>> = (0..8).map(|n| vec![n]).collect();
    each_alone.push(vec![8, u32::MAX]);
    assert_eq!(batches(&world), each_alone);
    let turns = counters.read();
    assert_eq!((turns.turns, turns.inputs, turns.batch_max), (9, 9, 1));
    assert!(turns.turn_max >= TURN_SPAN, "{turns:?}");
}

#[tokio::test]
async fn deadline_wakes_an_idle_machine() {
    let (driver, inbox) = driver(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    inbox.fact(Heard::WakeIn(Duration::from_millis(2))).expect("open");
    let words = async || batches(&world).concat();
    until("the tick comes", words, |words| *words == [u32::MAX]).await;
    inbox.close();
    running.await.expect("the loop ended");
}

#[tokio::test]
async fn world_that_is_behind_gets_only_facts_until_the_end() {
    let (driver, inbox) = driver(true);
    let world = driver.core.world.clone();
    inbox.request_now(Heard::Word(2)).expect("open");
    inbox.fact(Heard::Word(1)).expect("open");
    let running = tokio::spawn(driver.run());
    while batches(&world).is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(batches(&world), [vec![1, u32::MAX]]);
    inbox.close();
    running.await.expect("the loop ended");
    assert_eq!(batches(&world)[1], [2, u32::MAX], "queued requests are handled at the end");
}

#[tokio::test]
async fn panic_of_a_machine_releases_all_callers() {
    let (driver, inbox) = driver(false);
    let running = tokio::spawn(driver.run());
    inbox.fact(Heard::Panic).expect("open");
    assert!(running.await.expect_err("it panicked").is_panic());
    assert!(inbox.fact(Heard::Tick).is_err());
    assert!(inbox.place().await.is_err());
    assert_eq!(inbox.waiting(), super::super::inbox::QueueLengths::default());
}

// ── Yielding to other tasks ──

/// Runs a test on a runtime with one thread, which runs the task first that was woken last.
fn on_one_worker<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(runtime.spawn(test)).expect("the test did not panic")
}

#[test]
fn requests_of_all_ready_tasks_form_one_batch() {
    let batches = on_one_worker(async {
        let (driver, inbox) = driver(false);
        let world = driver.core.world.clone();
        let running = tokio::spawn(driver.run());
        tokio::task::yield_now().await; // the loop sleeps
        for n in 0..10 {
            let inbox = inbox.clone();
            tokio::spawn(async move {
                let place = inbox.place().await.expect("open");
                place.request(Heard::Word(n)).expect("open");
            });
        }
        while batches(&world).is_empty() {
            tokio::task::yield_now().await;
        }
        inbox.close();
        running.await.expect("the loop ended");
        batches(&world)
    });
    assert_eq!(batches[0].len(), 11, "ten words and the tick, not {batches:?}");
}

#[test]
fn deadlines_and_urgent_messages_do_not_wait_for_requests() {
    let (_driver, inbox) = driver(false);
    let now = tokio::time::Instant::now();
    let gives_way = |until| give_way(&inbox, until).now_or_never().is_none();
    assert!(!gives_way(None), "no request is queued");
    inbox.request_now(Heard::Word(1)).expect("open");
    assert!(gives_way(None) && gives_way(Some(now + Duration::from_secs(3_600))));
    assert!(!gives_way(Some(now)), "a deadline has passed");
    inbox.offer(Heard::Word(2), 1, Urgency::Ordinary).expect("room");
    assert!(gives_way(None));
    inbox.offer(Heard::Word(3), 1, Urgency::Urgent).expect("room");
    assert!(!gives_way(None), "an urgent message is queued");
}

#[test]
fn facts_do_not_wait_for_requests() {
    let (_driver, inbox) = driver(false);
    inbox.request_now(Heard::Word(1)).expect("open");
    inbox.fact(Heard::Word(2)).expect("open");
    assert!(give_way(&inbox, None).now_or_never().is_some());
}

#[test]
fn endless_requests_do_not_starve_the_loop() {
    let all = 100;
    let batches = on_one_worker(async move {
        let (driver, inbox) = driver(false);
        let world = driver.core.world.clone();
        let running = tokio::spawn(driver.run());
        tokio::task::yield_now().await; // the loop sleeps
        for n in 0..all {
            inbox.place().await.expect("open").request(Heard::Word(n)).expect("open");
            yield_now().await; // lets the loop run
        }
        inbox.close();
        running.await.expect("the loop ended");
        batches(&world)
    });
    let words = batches[0].iter().filter(|word| **word < all).count();
    assert!((2..=GIVES_WAY_MAX + 1).contains(&words), "{batches:?}");
}

// ── Turns that callers run ──

fn ask(inbox: &Inbox<Echo>, input: Heard) {
    assert!(ask_if_open(inbox, input), "open");
}

fn ask_if_open(inbox: &Inbox<Echo>, input: Heard) -> bool {
    let place = inbox.place().now_or_never().expect("a free place, or a closed inbox");
    place.is_ok_and(|place| place.request_here(input).is_ok())
}

#[tokio::test(flavor = "current_thread")]
async fn caller_runs_a_sleeping_machine_without_waking_the_loop() {
    let (driver, inbox) = driver_of::<true>(false);
    let (world, counters) = (driver.core.world.clone(), driver.counters());
    let running = tokio::spawn(driver.run());
    ask(&inbox, Heard::Word(1));
    assert_eq!(batches(&world), [[0; 0]; 0], "a push before the loop's begin waits for the loop");
    while counters.read().turns < 1 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await; // the loop sleeps
    ask(&inbox, Heard::Word(2));
    assert_eq!(batches(&world)[1..], [vec![2, u32::MAX]], "this thread has run the turn");
    inbox.offer(Heard::Word(3), 1, Urgency::Ordinary).expect("room");
    inbox.offer(Heard::Word(4), 1, Urgency::Ordinary).expect("room");
    assert_eq!(batches(&world).len(), 2, "messages wait for the call of `run`");
    inbox.run();
    assert_eq!(batches(&world)[2..], [vec![3, 4, u32::MAX]]);
    inbox.run();
    assert_eq!(counters.read().turns, 3, "an empty inbox causes no turn");
    inbox.close();
    running.await.expect("the loop ended");
}

#[tokio::test(flavor = "current_thread")]
async fn long_turn_is_left_to_the_loop() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await; // the loop sleeps
    inbox.offer(Heard::Word(1), 64 * 1024 + 1, Urgency::Ordinary).expect("room");
    inbox.run();
    assert!(batches(&world).is_empty(), "a caller does not handle so many bytes");
    tokio::task::yield_now().await;
    assert_eq!(batches(&world), [vec![1, u32::MAX]]);
    inbox.close();
    running.await.expect("the loop ended");
}

#[tokio::test(flavor = "current_thread")]
async fn loop_keeps_a_deadline_that_a_callers_turn_brings_forward() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    ask(&inbox, Heard::WakeIn(Duration::from_secs(3_600)));
    tokio::task::yield_now().await;
    ask(&inbox, Heard::WakeIn(Duration::from_millis(2)));
    let words = async || batches(&world).concat();
    until("the tick comes", words, |words| *words == [u32::MAX]).await;
    inbox.close();
    running.await.expect("the loop ended");
}

#[tokio::test(flavor = "current_thread")]
async fn panic_on_a_callers_thread_ends_the_loop_not_the_caller() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await;
    ask(&inbox, Heard::Panic);
    ask(&inbox, Heard::Word(1)); // finds the lock free again
    assert!(running.await.expect_err("it panicked").is_panic());
    ask_if_open(&inbox, Heard::Word(2));
    assert_eq!(batches(&world).concat(), [0; 0], "a failed machine does not run again");
    assert!(inbox.fact(Heard::Tick).is_err(), "the inbox is closed");
}

#[tokio::test(flavor = "current_thread")]
async fn loop_handles_inputs_that_came_during_a_callers_turn() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await;
    let (release, released) = std::sync::mpsc::channel();
    let caller = thread::spawn({
        let inbox = inbox.clone();
        move || ask(&inbox, Heard::Hold(released))
    });
    while inbox.rests() {
        tokio::task::yield_now().await;
    }
    inbox.fact(Heard::Word(1)).expect("open");
    inbox.notify(); // the loop finds the lock held, as it could at a deadline
    for _ in 0..10 {
        tokio::task::yield_now().await; // the caller's turn does not block this thread
    }
    release.send(()).expect("the caller waits");
    let words = async || batches(&world).concat();
    until("the input is handled", words, |words| *words == [1, u32::MAX]).await;
    caller.join().expect("no panic");
    inbox.close();
    running.await.expect("the loop ended");
}

/// Pushes facts, requests and messages from several threads, while the loop runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_input_is_handled_once_and_in_order_per_sender() {
    const EACH: u32 = 20_000;
    let (driver, inbox) = driver_of::<true>(false);
    let running = tokio::spawn(driver.run());
    let push = |sender: u32| {
        let inbox = inbox.clone();
        move || {
            for n in 0..EACH {
                let word = Heard::Word(sender * EACH + n);
                match sender {
                    0 => inbox.fact(word).expect("open"),
                    1 => ask(&inbox, word),
                    _ => {
                        let mut word = Some(word);
                        while !inbox.has_room(Urgency::Ordinary) {
                            thread::yield_now();
                        }
                        let word = word.take().expect("once");
                        inbox.offer(word, 1, Urgency::Ordinary).expect("no other sender fills it");
                        if n % 3 == 0 || n + 1 == EACH {
                            inbox.run();
                        }
                    }
                }
                while inbox.waiting().requests + inbox.waiting().facts > 1_000 {
                    thread::yield_now();
                }
            }
        }
    };
    let senders: Vec<_> = (0..3).map(|sender| thread::spawn(push(sender))).collect();
    for sender in senders {
        tokio::task::spawn_blocking(move || sender.join())
            .await
            .expect("joined")
            .expect("no panic");
    }
    let waiting = async || inbox.waiting();
    until("no push is lost", waiting, |waiting| *waiting == QueueLengths::default()).await;
    inbox.close();
    let (_, world) = running.await.expect("the loop ended");
    let mut said: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for word in batches(&world).concat().into_iter().filter(|word| *word != u32::MAX) {
        said.entry(word / EACH).or_default().push(word % EACH);
    }
    for sender in 0..3 {
        assert!(said[&sender].iter().copied().eq(0..EACH), "of sender {sender}");
    }
}
