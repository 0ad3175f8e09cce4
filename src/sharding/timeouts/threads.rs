//! Loom models of asks and a sweeper that ends. The sweeper is the task that wakes all asks whose
//! deadlines have passed; an ask that finds none starts it. They compile `table.rs` with loom's
//! types. An ask that is never woken is a deadlock, which loom reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::model::Builder;
use loom::thread;
use ostraca_ddata::clock::Instant;

use table::{Sweeper, Timeouts};

#[path = "table.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "a second copy, partly used")]
mod table;

/// Imported by `table.rs` as `super::sync`.
mod sync {
    pub(super) use loom::sync::atomic::AtomicBool;
    pub(super) use loom::sync::{Mutex, MutexGuard};

    /// An ask uses the stripe of its OS thread. Loom runs all its threads on one, so all asks share
    /// a stripe; the sweeper must also pass over an empty one.
    pub(super) const STRIPES: usize = 2;
}

/// A step that the test leaves out, to show that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweeperFault {
    Nothing,
    /// An ask looks for a sweeper before it enters the table, and not afterwards.
    LookAfter,
    /// An ending sweeper does not clear `Timeouts::swept`, so no ask starts the next one.
    End,
    /// An ending sweeper wakes no ask.
    WakeAll,
}

/// Wakes the thread of an ask.
#[derive(Default)]
struct AskWaker(loom::sync::Notify);

impl Wake for AskWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Does the same as an ask without an answer, up to its first wake-up. A production ask that is
/// woken before its deadline, by the end of the sweeper, continues with a timer of its own; so any
/// wake-up ends the model. Blocks its thread until then; never woken, it is a deadlock.
fn ask(timeouts: &Arc<Timeouts>, fault: SweeperFault) {
    let ask_waker = Arc::<AskWaker>::default();
    let early = (fault == SweeperFault::LookAfter).then(|| timeouts.claim_sweeper()).flatten();
    let place = timeouts.enter(Instant::from_nanos(1), &Waker::from(Arc::clone(&ask_waker)));
    let late = (fault != SweeperFault::LookAfter).then(|| timeouts.claim_sweeper()).flatten();
    if let Some(sweeper) = early.or(late) {
        let table = Arc::clone(timeouts);
        thread::spawn(move || sweep(&table, sweeper, fault));
    }
    ask_waker.0.wait();
    timeouts.leave(place);
}

/// Does the same as the sweeper's task, but ends as soon as a sweep finds no entry. Every deadline
/// is due at the first sweep; the asks that enter after it are the subject of the test. With the
/// faults `End` and `WakeAll` leaves out that step of the sweeper's drop, `End` both.
fn sweep(timeouts: &Timeouts, sweeper: Sweeper, fault: SweeperFault) {
    while sweeper.sweep(Instant::from_nanos(1)).is_some_and(|waiting| waiting > 0) {
        thread::yield_now();
    }
    match fault {
        // Dropping a sweeper calls `end`, which clears `swept`, and `wake_all`.
        SweeperFault::End => std::mem::forget(sweeper),
        SweeperFault::WakeAll => {
            timeouts.end();
            std::mem::forget(sweeper);
        }
        SweeperFault::Nothing | SweeperFault::LookAfter => drop(sweeper),
    }
}

/// Runs two asks on two threads, with each order of their steps that the bound allows, and the
/// sweepers that they start on further ones. Panics if an ask is never woken.
fn explore(fault: SweeperFault) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3); // unbounded, the exploration takes too long
    builder.check(move || {
        let timeouts = Timeouts::new();
        let other = Arc::clone(&timeouts);
        let asks = thread::spawn(move || ask(&other, fault));
        ask(&timeouts, fault);
        asks.join().expect("no thread panicked");
    });
}

#[test]
fn entering_ask_is_woken_while_a_sweeper_ends() {
    explore(SweeperFault::Nothing);
}

#[test]
fn a_step_that_is_left_out_is_noticed() {
    for fault in [SweeperFault::LookAfter, SweeperFault::End, SweeperFault::WakeAll] {
        let explored = catch_unwind(AssertUnwindSafe(|| explore(fault)));
        assert!(explored.is_err(), "{fault:?}");
    }
}
