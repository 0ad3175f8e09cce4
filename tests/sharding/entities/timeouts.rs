//! Timeouts of asks. A long ask (1 s or more) is ended by a shared sweeper task that runs every 50
//! ms, a shorter one by a timer of its own. The sweeper ends some time after the last ask.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use ostraca::sharding::context::Context;
use ostraca::sharding::entity::Entity;
use ostraca::sharding::entity_ref::{AskError, AskFuture};
use ostraca::sharding::ids::EntityId;
use ostraca::sharding::reply::Reply;
use serde::{Deserialize, Serialize};

use super::nodes::{Nodes, Plan};

struct Oracle;

#[derive(Serialize, Deserialize)]
enum Question {
    Easy(Reply<u64>),
    /// Its handler never ends.
    Hard(Reply<u64>),
}

impl Entity for Oracle {
    type Message = Question;

    async fn handle(&mut self, question: Question, _: &mut Context<'_, Self>) {
        match question {
            Question::Easy(reply) => reply.send(42),
            Question::Hard(_reply) => std::future::pending().await,
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_millis(50);

type Answer = Arc<Mutex<Option<Result<u64, AskError>>>>;

/// Two nodes; the shard is hosted on node 0.
struct Temple {
    nodes: Nodes<Oracle>,
}

impl Temple {
    fn new() -> Self {
        let mut nodes = Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Oracle);
        nodes.host(0, 0);
        Self { nodes }
    }

    /// An ask from the other node that is never answered.
    fn hard(&self, timeout: Duration) -> AskFuture<Oracle, u64> {
        self.nodes.nodes[1].region.entity("pythia").ask_within(timeout, Question::Hard)
    }

    /// Awaits the ask in a task.
    fn wait(&mut self, asked: AskFuture<Oracle, u64>) -> Answer {
        let answer = Answer::default();
        let kept = Arc::clone(&answer);
        self.nodes.executor.spawn(Box::pin(async move {
            let said = asked.await;
            *kept.lock().expect("nobody panicked") = Some(said);
        }));
        self.nodes.settle();
        answer
    }

    fn pass(&mut self, time: Duration) {
        self.nodes.advance(time);
        self.nodes.settle();
    }

    /// Number of milliseconds from now until the ask times out.
    fn over_after(&mut self, answer: &Answer) -> u64 {
        for millis in 0..10_000 {
            if let Some(said) = answer.lock().expect("nobody panicked").take() {
                let why = said.expect_err("the handler never ends");
                assert!(matches!(why, AskError::Timeout { .. }), "{why}");
                return millis;
            }
            self.pass(Duration::from_millis(1));
        }
        panic!("the ask never times out");
    }

    fn swept(&self) -> usize {
        self.nodes.nodes.iter().map(|node| node.region.swept_asks()).sum()
    }

    /// Number of tasks besides that of the oracle's handler.
    fn tasks(&self) -> usize {
        self.nodes.executor.tasks() - 1
    }
}

#[test]
fn timeout_counts_from_the_call_even_if_awaited_late() {
    for timeout in [SECOND / 2, 4 * SECOND] {
        let mut temple = Temple::new();
        for (waits_after, most) in [(timeout / 2, timeout / 2 + SWEEP), (2 * timeout, SWEEP)] {
            let asked = temple.hard(timeout);
            temple.pass(waits_after);
            let answer = temple.wait(asked);
            let over = Duration::from_millis(temple.over_after(&answer));
            assert!(over <= most, "{timeout:?}, {waits_after:?}: {over:?}");
            assert!(over >= timeout.saturating_sub(waits_after), "{timeout:?}: {over:?}");
        }
    }
}

#[test]
fn long_ask_times_out_at_the_first_sweep_after_its_deadline() {
    let mut temple = Temple::new();
    let first = temple.hard(2 * SECOND);
    let first = temple.wait(first); // starts the sweeper
    temple.pass(Duration::from_millis(20));
    let second = temple.hard(SECOND);
    let second = temple.wait(second);
    assert_eq!((temple.swept(), temple.tasks()), (2, 3), "two asks and a sweeper");
    assert_eq!(temple.over_after(&second), 1_030, "1,050 ms after the sweeper's start");
    assert_eq!(temple.over_after(&first), 950, "2,000 ms after the sweeper's start");
    assert_eq!((temple.swept(), temple.tasks()), (0, 1));
}

#[test]
fn short_ask_times_out_exactly_without_a_sweep() {
    let mut temple = Temple::new();
    let asked = temple.hard(Duration::from_millis(999));
    let answer = temple.wait(asked);
    assert_eq!((temple.swept(), temple.tasks()), (0, 1));
    assert_eq!(temple.over_after(&answer), 999);
    assert_eq!(temple.tasks(), 0);
}

#[test]
fn timeout_error_reports_the_requested_time() {
    let mut temple = Temple::new();
    let asked = temple.hard(SECOND);
    let answer = temple.wait(asked);
    temple.pass(3 * SECOND);
    match answer.lock().expect("nobody panicked").take() {
        Some(Err(AskError::Timeout { waited, .. })) => assert_eq!(waited, SECOND),
        other => panic!("{other:?}"),
    }
}

#[test]
fn answered_and_dropped_asks_leave_no_state() {
    let mut temple = Temple::new();
    let mut easy = temple.nodes.nodes[1].region.entity("sibyl").ask(Question::Easy);
    assert!(poll(&mut easy, Waker::noop()).is_pending());
    assert_eq!(temple.swept(), 1);
    temple.nodes.settle();
    assert!(poll(&mut easy, Waker::noop()).is_ready());
    assert_eq!(temple.swept(), 0, "the answered ask is removed before its drop");
    drop(easy);
    let mut hard = temple.hard(SECOND);
    assert!(poll(&mut hard, Waker::noop()).is_pending());
    assert_eq!(temple.swept(), 1);
    drop(hard);
    assert_eq!(temple.swept(), 0);
}

#[test]
fn answer_after_the_timeout_is_late_before_the_drop() {
    let mut temple = Temple::new();
    let (asker, timeout) = (&temple.nodes.nodes[1], SECOND / 2);
    let mut asked = asker.region.entity("sibyl").ask_within(timeout, Question::Easy);
    assert!(poll(&mut asked, Waker::noop()).is_pending());
    temple.nodes.advance(timeout); // the message is still on its lane
    let over = poll(&mut asked, Waker::noop());
    assert!(matches!(over, Poll::Ready(Err(AskError::Timeout { .. }))), "{over:?}");
    temple.nodes.settle();
    let asks = &temple.nodes.nodes[1].asks;
    assert_eq!((asks.waiting(), asks.late()), (0, 1), "the answer arrived after the timeout");
    drop(asked);
    assert_eq!((asks.waiting(), asks.late()), (0, 1));
}

#[test]
fn ask_polled_by_another_task_wakes_that_task() {
    let mut temple = Temple::new();
    let (bell, mut asked) = (Arc::<Bell>::default(), temple.hard(SECOND));
    assert!(poll(&mut asked, &Waker::from(Arc::clone(&bell))).is_pending());
    let answer = temple.wait(asked);
    assert_eq!(temple.over_after(&answer), 1_000);
    assert_eq!(bell.rung(), 0);
}

#[test]
fn sweeper_ends_after_the_last_ask_and_starts_again() {
    let mut temple = Temple::new();
    for _ in 0..3 {
        let asked = temple.hard(SECOND);
        let answer = temple.wait(asked);
        assert_eq!(temple.tasks(), 2, "an ask and a sweeper");
        assert_eq!(temple.over_after(&answer), 1_000);
        assert_eq!(temple.tasks(), 1, "the sweeper waits for further asks");
        assert_eq!(temple.nodes.tasks_at_rest(), 1, "the oracle");
        assert_eq!(temple.nodes.executor.next_wake(), None);
    }
}

#[test]
fn ask_around_the_end_of_a_sweeper_times_out_in_time() {
    // The sweeper ends 20 sweeps after the last ask.
    for sweeps in 18..22 {
        let mut temple = Temple::new();
        let asked = temple.hard(SECOND);
        let answer = temple.wait(asked);
        assert_eq!(temple.over_after(&answer), 1_000);
        for _ in 0..sweeps {
            temple.pass(SWEEP);
        }
        assert_eq!(temple.tasks(), usize::from(sweeps < 20), "{sweeps}");
        let asked = temple.hard(SECOND);
        let answer = temple.wait(asked);
        assert_eq!(temple.tasks(), 2, "{sweeps}");
        assert_eq!(temple.over_after(&answer), 1_000, "{sweeps}");
    }
}

#[test]
fn ask_and_last_sweep_may_come_in_either_order() {
    for asks_first in [true, false] {
        let mut temple = Temple::new();
        let asked = temple.hard(SECOND);
        let answer = temple.wait(asked);
        assert_eq!(temple.over_after(&answer), 1_000);
        for _ in 0..19 {
            temple.pass(SWEEP);
        }
        temple.nodes.advance(SWEEP); // the sweeper's task is ready
        let mut asked = temple.hard(SECOND);
        if asks_first {
            assert!(poll(&mut asked, Waker::noop()).is_pending());
        }
        temple.nodes.settle();
        assert_eq!(temple.tasks(), usize::from(asks_first), "without an ask the sweeper ends");
        let answer = temple.wait(asked);
        assert_eq!(temple.tasks(), 2);
        assert_eq!(temple.over_after(&answer), 1_000);
    }
}

#[test]
fn ask_whose_sweeper_is_dropped_uses_its_own_timer() {
    for has_begun in [false, true] {
        let mut temple = Temple::new();
        let (bell, mut asked) = (Arc::<Bell>::default(), temple.hard(SECOND));
        assert!(poll(&mut asked, &Waker::from(Arc::clone(&bell))).is_pending());
        if has_begun {
            temple.nodes.executor.step(0);
        }
        temple.nodes.advance(Duration::from_millis(10));
        assert_eq!((temple.nodes.executor.tasks(), bell.rung()), (1, 0));
        temple.nodes.executor.end();
        assert_eq!((temple.nodes.executor.tasks(), bell.rung()), (0, 1));
        let answer = temple.wait(asked);
        assert_eq!((temple.swept(), temple.tasks()), (0, 1));
        assert_eq!(temple.over_after(&answer), 990);
        let next = temple.hard(SECOND);
        let next = temple.wait(next);
        assert_eq!((temple.swept(), temple.tasks()), (1, 2));
        assert_eq!(temple.over_after(&next), 1_000);
    }
}

#[test]
fn ask_times_out_though_the_executor_takes_no_task() {
    let temple = Temple::new();
    temple.nodes.executor.shut_down();
    let (bell, mut asked) = (Arc::<Bell>::default(), temple.hard(SECOND));
    let waker = Waker::from(Arc::clone(&bell));
    assert!(poll(&mut asked, &waker).is_pending());
    assert_eq!(bell.rung(), 1, "there is no sweeper");
    assert!(poll(&mut asked, &waker).is_pending());
    assert_eq!((bell.rung(), temple.swept()), (1, 0), "no second attempt to start a sweeper");
    temple.nodes.executor.advance(SECOND - Duration::from_nanos(1));
    assert!(poll(&mut asked, &waker).is_pending());
    temple.nodes.executor.advance(Duration::from_nanos(1));
    assert!(poll(&mut asked, &waker).is_ready());
}

#[test]
fn ask_from_a_removed_node_times_out_in_time() {
    let mut temple = Temple::new();
    let asked = temple.hard(SECOND);
    let answer = temple.wait(asked);
    temple.nodes.crash(1);
    temple.nodes.settle();
    assert_eq!((temple.swept(), temple.over_after(&answer)), (1, 1_000));
}

/// A waker that panics.
struct Cracked;

impl Wake for Cracked {
    fn wake(self: Arc<Self>) {
        panic!("planned by the test");
    }
}

#[test]
fn panicking_waker_harms_no_other_ask() {
    let mut temple = Temple::new();
    let (mut cracked, asked) = (temple.hard(SECOND), temple.hard(SECOND));
    let waker = Waker::from(Arc::new(Cracked));
    assert!(poll(&mut cracked, &waker).is_pending());
    let answer = temple.wait(asked);
    assert_eq!(temple.over_after(&answer), 1_000);
    assert!(poll(&mut cracked, &waker).is_ready(), "a poll finds that it timed out");
    let asked = temple.hard(SECOND);
    let answer = temple.wait(asked);
    assert_eq!((temple.swept(), temple.tasks()), (1, 2), "the same sweeper");
    assert_eq!(temple.over_after(&answer), 1_000);
}

fn poll<T>(asked: &mut AskFuture<Oracle, T>, waker: &Waker) -> Poll<Result<T, AskError>> {
    Pin::new(asked).poll(&mut TaskContext::from_waker(waker))
}

/// A waker that counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
