//! Loom models of asks and a sweeper that ends. They compile the production file with loom's types.
//! An ask that is never woken is a deadlock, which loom reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::model::Builder;
use loom::thread;
use ostraca_ddata::clock::Instant;

use table::{Sweeper, Timeouts};

#[path = "table.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "with other types, and not all of it")]
mod table;

mod sync {
    pub(super) use loom::sync::atomic::AtomicBool;
    pub(super) use loom::sync::{Mutex, MutexGuard};

    pub(super) const STRIPES: usize = 2; // one is used: loom's threads are one thread
}

/// A step that the test leaves out, to show that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SweeperFault {
    Nothing,
    /// An ask looks for a sweeper before it enters, and not afterwards.
    LookAfter,
    /// An ending sweeper does not clear the flag.
    End,
    /// An ending sweeper wakes no ask.
    WakeAll,
}

#[derive(Default)]
struct AskWaker(loom::sync::Notify);

impl Wake for AskWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Does the same as an ask without an answer. The cause of the wake-up does not matter: if the time
/// is not over, the ask continues with its own timer.
fn ask(timeouts: &Arc<Timeouts>, fault: SweeperFault) {
    let bell = Arc::<AskWaker>::default();
    let early = (fault == SweeperFault::LookAfter).then(|| timeouts.sweeper()).flatten();
    let place = timeouts.enter(Instant::from_nanos(1), &Waker::from(Arc::clone(&bell)));
    let late = (fault != SweeperFault::LookAfter).then(|| timeouts.sweeper()).flatten();
    if let Some(sweeper) = early.or(late) {
        let table = Arc::clone(timeouts);
        thread::spawn(move || sweep(&table, sweeper, fault));
    }
    bell.0.wait();
    timeouts.leave(place);
}

/// Does the same as the sweeper's task, but ends as soon as no ask waits.
fn sweep(timeouts: &Timeouts, sweeper: Sweeper, fault: SweeperFault) {
    while sweeper.sweep(Instant::from_nanos(1)).is_some_and(|waiting| waiting > 0) {
        thread::yield_now();
    }
    match fault {
        SweeperFault::End => std::mem::forget(sweeper),
        SweeperFault::WakeAll => {
            timeouts.end();
            std::mem::forget(sweeper);
        }
        SweeperFault::Nothing | SweeperFault::LookAfter => drop(sweeper),
    }
}

fn explore(fault: SweeperFault) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
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
