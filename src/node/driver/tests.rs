//! Tests of the driver: turns of its loop, and turns that callers run.

use std::collections::BTreeMap;
use std::thread;

use futures::FutureExt;
use ostraca_ddata::clock::Now;

use super::super::inbox::{InboxLimits, Urgency};
use super::*;

/// Says what it hears, and asks for a tick after each batch, or at a given time.
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
                assert!(self.due.take().is_some_and(|at| at <= now.mono), "not yet");
                out.push(u32::MAX);
            }
            Heard::Panic => panic!("as ordered"),
            Heard::Hold(until) => until.recv().expect("its end is told"),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.due
    }
}

/// Keeps what it is told by batches; whether callers run the machine is a parameter.
#[derive(Clone, Debug, Default)]
struct Seen<const ON_CALLERS: bool>(Arc<Mutex<Vec<Vec<u32>>>>, Vec<u32>, bool);

impl<const ON_CALLERS: bool> World<Echo> for Seen<ON_CALLERS> {
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

    fn is_behind(&self) -> bool {
        self.2
    }
}

fn driver(behind: bool) -> (Driver<Echo, Seen<false>>, Inbox<Echo>) {
    driver_of(behind)
}

fn driver_of<const ON_CALLERS: bool>(
    behind: bool,
) -> (Driver<Echo, Seen<ON_CALLERS>>, Inbox<Echo>) {
    let inbox = Inbox::new(InboxLimits::default());
    let world = Seen(Arc::default(), Vec::new(), behind);
    (Driver::new(Echo::default(), world, inbox.clone(), Clock::start()), inbox)
}

fn batches<const ON_CALLERS: bool>(world: &Seen<ON_CALLERS>) -> Vec<Vec<u32>> {
    world.0.lock().expect("no test panics under it").clone()
}

#[tokio::test]
async fn what_waits_is_one_batch_and_its_end_is_told_in_the_same_turn() {
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
async fn a_turn_is_bounded_and_nothing_that_was_queued_is_lost_at_the_stop() {
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

#[tokio::test]
async fn a_deadline_wakes_a_machine_that_hears_nothing() {
    let (driver, inbox) = driver(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    inbox.fact(Heard::WakeIn(Duration::from_millis(2))).expect("open");
    for _ in 0..1_000 {
        if batches(&world).concat() == [u32::MAX] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(batches(&world).concat(), [u32::MAX]);
    inbox.close();
    running.await.expect("it ended");
}

#[tokio::test]
async fn a_world_that_is_behind_gets_facts_only_until_the_end() {
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
    running.await.expect("it ended");
    assert_eq!(batches(&world)[1], [2, u32::MAX], "what was queued is handled at the end");
}

#[tokio::test]
async fn a_machine_that_panics_leaves_nobody_waiting() {
    let (driver, inbox) = driver(false);
    let running = tokio::spawn(driver.run());
    inbox.fact(Heard::Panic).expect("open");
    assert!(running.await.expect_err("it panicked").is_panic());
    assert!(inbox.fact(Heard::Tick).is_err());
    assert!(inbox.place().await.is_err());
    assert_eq!(inbox.waiting(), super::super::inbox::Waiting::default());
}

// ── Who goes first ──

/// On the only thread of a runtime that runs first what was woken last.
fn on_one_worker<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().expect("a runtime");
    runtime.block_on(runtime.spawn(test)).expect("it did not panic")
}

#[test]
fn the_requests_of_all_who_are_ready_are_one_batch() {
    let batches = on_one_worker(async {
        let (driver, inbox) = driver(false);
        let world = driver.core.world.clone();
        let running = tokio::spawn(driver.run());
        tokio::task::yield_now().await; // the loop is at rest
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
        running.await.expect("it ended");
        batches(&world)
    });
    assert_eq!(batches[0].len(), 11, "ten words and the tick, not {batches:?}");
}

#[test]
fn nothing_that_is_due_and_no_fact_waits_for_requests() {
    let (_driver, inbox) = driver(false);
    let now = tokio::time::Instant::now();
    let gives_way = |until| give_way(&inbox, until).now_or_never().is_none();
    assert!(!gives_way(None), "to nobody, as no request waits");
    inbox.request_now(Heard::Word(1)).expect("open");
    assert!(gives_way(None) && gives_way(Some(now + Duration::from_secs(3_600))));
    assert!(!gives_way(Some(now)), "a deadline has passed");
    inbox.offer(Heard::Word(2), 1, Urgency::Ordinary).expect("room");
    assert!(gives_way(None));
    inbox.offer(Heard::Word(3), 1, Urgency::Urgent).expect("room");
    assert!(!gives_way(None), "an urgent message waits");
}

#[test]
fn a_fact_waits_for_no_requests() {
    let (_driver, inbox) = driver(false);
    inbox.request_now(Heard::Word(1)).expect("open");
    inbox.fact(Heard::Word(2)).expect("open");
    assert!(give_way(&inbox, None).now_or_never().is_some());
}

#[test]
fn requests_without_end_do_not_hold_the_loop_up() {
    let all = 100;
    let batches = on_one_worker(async move {
        let (driver, inbox) = driver(false);
        let world = driver.core.world.clone();
        let running = tokio::spawn(driver.run());
        tokio::task::yield_now().await; // the loop is at rest
        for n in 0..all {
            inbox.place().await.expect("open").request(Heard::Word(n)).expect("open");
            yield_now().await; // behind the loop
        }
        inbox.close();
        running.await.expect("it ended");
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
    let place = inbox.place().now_or_never().expect("a free place, or none any more");
    place.is_ok_and(|place| place.request_here(input).is_ok())
}

#[tokio::test(flavor = "current_thread")]
async fn who_finds_the_machine_at_rest_runs_it_and_wakes_nobody() {
    let (driver, inbox) = driver_of::<true>(false);
    let (world, counters) = (driver.core.world.clone(), driver.counters());
    let running = tokio::spawn(driver.run());
    ask(&inbox, Heard::Word(1));
    assert_eq!(batches(&world), [[0; 0]; 0], "before its loop has begun, a push waits for it");
    while counters.read().turns < 1 {
        tokio::task::yield_now().await;
    }
    tokio::task::yield_now().await; // the loop is at rest
    ask(&inbox, Heard::Word(2));
    assert_eq!(batches(&world)[1..], [vec![2, u32::MAX]], "this thread has done it");
    inbox.offer(Heard::Word(3), 1, Urgency::Ordinary).expect("room");
    inbox.offer(Heard::Word(4), 1, Urgency::Ordinary).expect("room");
    assert_eq!(batches(&world).len(), 2, "a message waits until no more are at hand");
    inbox.run();
    assert_eq!(batches(&world)[2..], [vec![3, 4, u32::MAX]]);
    inbox.run();
    assert_eq!(counters.read().turns, 3, "where nothing waits, nothing runs");
    inbox.close();
    running.await.expect("it ended");
}

#[tokio::test(flavor = "current_thread")]
async fn a_long_turn_is_left_to_the_loop() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await; // the loop is at rest
    inbox.offer(Heard::Word(1), 64 * 1024 + 1, Urgency::Ordinary).expect("room");
    inbox.run();
    assert!(batches(&world).is_empty(), "so many bytes are no caller's");
    tokio::task::yield_now().await;
    assert_eq!(batches(&world), [vec![1, u32::MAX]]);
    inbox.close();
    running.await.expect("it ended");
}

#[tokio::test(flavor = "current_thread")]
async fn a_deadline_that_a_callers_turn_brings_forward_is_kept_by_the_loop() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    ask(&inbox, Heard::WakeIn(Duration::from_secs(3_600)));
    tokio::task::yield_now().await;
    ask(&inbox, Heard::WakeIn(Duration::from_millis(2)));
    let told = async {
        while batches(&world).concat() != [u32::MAX] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("the tick came");
    inbox.close();
    running.await.expect("it ended");
}

#[tokio::test(flavor = "current_thread")]
async fn a_machine_that_panics_on_a_callers_thread_ends_its_loop_and_not_the_caller() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await;
    ask(&inbox, Heard::Panic);
    ask(&inbox, Heard::Word(1)); // finds the token again
    assert!(running.await.expect_err("it panicked").is_panic());
    ask_if_open(&inbox, Heard::Word(2));
    assert_eq!(batches(&world).concat(), [0; 0], "nothing is run by a machine that has failed");
    assert!(inbox.fact(Heard::Tick).is_err(), "nobody is left waiting");
}

#[tokio::test(flavor = "current_thread")]
async fn a_caller_at_its_turn_blocks_no_runtime_and_what_came_meanwhile_is_done_afterwards() {
    let (driver, inbox) = driver_of::<true>(false);
    let world = driver.core.world.clone();
    let running = tokio::spawn(driver.run());
    tokio::task::yield_now().await;
    let (release, until) = std::sync::mpsc::channel();
    let caller = thread::spawn({
        let inbox = inbox.clone();
        move || ask(&inbox, Heard::Hold(until))
    });
    while inbox.rests() {
        tokio::task::yield_now().await;
    }
    inbox.fact(Heard::Word(1)).expect("open");
    inbox.notify(); // the loop finds a caller at it, as it would at a deadline
    for _ in 0..10 {
        tokio::task::yield_now().await; // this thread goes on
    }
    release.send(()).expect("the caller waits");
    let done = async {
        while batches(&world).concat() != [1, u32::MAX] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("nothing is forgotten");
    caller.join().expect("no panic");
    inbox.close();
    running.await.expect("it ended");
}

/// Every way to push, from several threads at once, against the loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_runs_it_each_input_is_handled_once_and_in_its_senders_order() {
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
                        inbox.offer(word, 1, Urgency::Ordinary).expect("its only sender");
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
    let all_handled = async {
        while inbox.waiting() != super::super::inbox::Waiting::default() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_handled).await.expect("no push is forgotten");
    inbox.close();
    let (_, world) = running.await.expect("it ended");
    let mut said: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for word in batches(&world).concat().into_iter().filter(|word| *word != u32::MAX) {
        said.entry(word / EACH).or_default().push(word % EACH);
    }
    for sender in 0..3 {
        assert!(said[&sender].iter().copied().eq(0..EACH), "of sender {sender}");
    }
}
