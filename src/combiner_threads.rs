//! Tests of the combiner with loom: the production file, compiled again with loom's types, is run
//! in every interleaving of a few threads. A lost wake-up shows as a deadlock, which loom reports.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::model::Builder;
use loom::sync::atomic::AtomicBool;
use loom::sync::{Mutex, MutexGuard, Notify};
use loom::thread;

use crate::combiner as production;
use combiner::{Combiner, OwnerAccess, RemoveOnDrop};
use sync::Ordering;

#[path = "combiner.rs"]
#[expect(clippy::duplicate_mod, reason = "with other types")]
mod combiner;

/// Imported by `combiner.rs` as `super::sync`.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(super) use loom::sync::{Mutex, MutexGuard};

    use super::{CombinerFault, has};

    pub(super) fn fence(order: Ordering) {
        if !has(CombinerFault::FenceLost) {
            loom::sync::atomic::fence(order);
        }
    }
}

/// The fault that a run of a model injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CombinerFault {
    None,
    /// The fences of the combiner do nothing.
    FenceLost,
    /// A helper does not wake the owner.
    OwnerNotWoken,
    /// A query is counted as work.
    QueryAsWork,
    /// A helper does not report that it leaves work.
    LeftWorkHidden,
}

thread_local! {
    // loom runs all threads of a model on one OS thread.
    static FAULT: Cell<CombinerFault> = const { Cell::new(CombinerFault::None) };
}

fn has(fault: CombinerFault) -> bool {
    FAULT.with(Cell::get) == fault
}

/// Runs a model in every interleaving with at most this number of preemptions. Panics if one of
/// them fails.
fn every_interleaving(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

/// Whether a model fails when this fault is injected.
fn is_noticed(fault: CombinerFault, explore: fn()) -> bool {
    FAULT.with(|injected| injected.set(fault));
    let explored = catch_unwind(explore);
    FAULT.with(|injected| injected.set(CombinerFault::None));
    explored.is_err()
}

// ── An owner that must not miss what arrives (connections) ──

/// Lets data arrive while `helpers` threads help: the owner must read it eventually. It makes a
/// query after each attempt to work, as `Muxer` does.
fn data_arrives(helpers: usize) {
    every_interleaving(3, move || {
        let (combiner, wakes) = (Arc::new(Combiner::new(())), Arc::new(Notify::new()));
        let arrived = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..helpers {
            let (combiner, looks, rings) =
                (Arc::clone(&combiner), Arc::clone(&arrived), Arc::clone(&wakes));
            threads.push(thread::spawn(move || {
                // loom switches threads only at shared accesses, so access one while the value is
                // in use.
                let helps = |(): &mut ()| {
                    looks.load(Ordering::SeqCst);
                    true
                };
                let is_done = !combiner.owner_waits() && combiner.help(helps);
                if !is_done && !has(CombinerFault::OwnerNotWoken) {
                    rings.notify();
                }
            }));
        }
        let (reads, rings) = (Arc::clone(&arrived), Arc::clone(&wakes));
        threads.push(thread::spawn(move || {
            reads.store(true, Ordering::SeqCst);
            rings.notify();
        }));
        loop {
            wakes.wait();
            let has_read = combiner.work(|()| arrived.load(Ordering::SeqCst));
            if has_read == OwnerAccess::Free(true) {
                break;
            }
            let queried = match has(CombinerFault::QueryAsWork) {
                true => combiner.work(|()| ()),
                false => combiner.query(|()| ()),
            };
            assert_ne!(queried, OwnerAccess::Gone);
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

fn data_arrives_beside_one_helper() {
    data_arrives(1);
}

#[test]
fn owner_is_woken_for_data_that_arrives_while_a_helper_works() {
    data_arrives(1);
    data_arrives(2);
    for fault in
        [CombinerFault::FenceLost, CombinerFault::OwnerNotWoken, CombinerFault::QueryAsWork]
    {
        assert!(is_noticed(fault, data_arrives_beside_one_helper), "{fault:?}");
    }
}

// ── An owner and helpers that share a queue (the driver of a machine) ──

/// A machine that counts its inputs, with the inbox and the loop of a driver.
struct ModelDriver {
    handled: Combiner<usize>,
    inbox: Mutex<ModelInbox>,
    wakes: Notify, // the loop
}

/// An input, for which its caller waits.
struct ModelInput {
    is_handled: AtomicBool,
    notify: Notify, // may also end a wait without reason
}

impl ModelInput {
    fn handled(&self) {
        self.is_handled.store(true, Ordering::Release);
        self.notify.notify();
    }

    fn wait(&self) {
        while !self.is_handled.load(Ordering::Acquire) {
            self.notify.wait();
        }
    }
}

/// Queued inputs, and the state of the machine.
#[derive(Default)]
struct ModelInbox {
    inputs: Vec<Arc<ModelInput>>,
    asleep: bool,
    closed: bool,
}

impl ModelDriver {
    fn lock(&self) -> MutexGuard<'_, ModelInbox> {
        self.inbox.lock().expect("no thread panicked")
    }

    /// Handles the queued inputs. Returns whether there were any; otherwise the machine sleeps.
    fn turn(&self, handled: &mut usize) -> bool {
        let inputs = {
            let mut inbox = self.lock();
            inbox.asleep = inbox.inputs.is_empty();
            std::mem::take(&mut inbox.inputs)
        };
        *handled += inputs.len();
        inputs.iter().for_each(|input| input.handled());
        !inputs.is_empty()
    }

    /// Ends the turn of a caller: the machine sleeps. Returns whether the queue is empty.
    fn try_sleep(&self) -> bool {
        let mut inbox = self.lock();
        inbox.asleep = true;
        inbox.inputs.is_empty()
    }

    /// Pushes an input, runs a turn if the machine sleeps, and waits until the input is handled.
    fn push(&self) {
        let input = ModelInput { is_handled: AtomicBool::new(false), notify: Notify::new() };
        let input = Arc::new(input);
        let sleeps = {
            let mut inbox = self.lock();
            inbox.inputs.push(Arc::clone(&input));
            std::mem::take(&mut inbox.asleep)
        };
        let helps = |handled: &mut usize| {
            self.turn(handled);
            self.try_sleep() || has(CombinerFault::LeftWorkHidden)
        };
        if sleeps && !self.handled.help(helps) && !has(CombinerFault::OwnerNotWoken) {
            self.wakes.notify();
        }
        input.wait();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wakes.notify();
    }

    /// Runs turns until the inbox is closed and empty. Returns the number of inputs.
    fn run(&self) -> usize {
        loop {
            let ended = self.handled.work(|handled| {
                while self.turn(handled) {}
                self.lock().closed
            });
            if ended == OwnerAccess::Free(true) {
                return self.handled.remove().expect("only the loop removes it");
            }
            self.wakes.wait();
        }
    }
}

/// Two callers, each of which pushes an input and waits for it, beside the loop.
fn inputs_are_pushed() {
    every_interleaving(2, || {
        let driver = Arc::new(ModelDriver {
            handled: Combiner::new(0),
            inbox: Mutex::new(ModelInbox::default()),
            wakes: Notify::new(),
        });
        let (looping, other) = (Arc::clone(&driver), Arc::clone(&driver));
        let looping = thread::spawn(move || looping.run());
        let other = thread::spawn(move || other.push());
        driver.push();
        other.join().expect("no panic");
        driver.close();
        assert_eq!(looping.join().expect("no panic"), 2);
    });
}

#[test]
fn every_input_is_handled_by_a_caller_or_the_loop() {
    inputs_are_pushed();
    for fault in [CombinerFault::OwnerNotWoken, CombinerFault::LeftWorkHidden] {
        assert!(is_noticed(fault, inputs_are_pushed), "{fault:?}");
    }
}

// ── An owner that blocks (the writer of a lane) ──

#[test]
fn helper_works_before_the_removal_or_not_at_all() {
    every_interleaving(3, || {
        let combiner = Arc::new(Combiner::new(0_usize));
        let helper = Arc::clone(&combiner);
        let helper = thread::spawn(move || {
            helper.try_help(|value| {
                *value += 1;
                true
            })
        });
        combiner.work_blocking(|value| *value += 1);
        let value = combiner.remove().expect("it is removed once");
        let has_helped = helper.join().expect("no panic");
        assert_eq!(value, 1 + usize::from(has_helped));
    });
}

#[test]
fn value_is_dropped_with_its_owner_not_with_its_helpers() {
    every_interleaving(3, || {
        let value = Arc::new(());
        let combiner = Arc::new(Combiner::new(Arc::clone(&value)));
        let helper = Arc::clone(&combiner);
        let helper = thread::spawn(move || {
            let _helped = helper.try_help(|_| true);
            helper
        });
        drop(RemoveOnDrop(&combiner));
        assert_eq!(Arc::strong_count(&value), 1);
        let helper = helper.join().expect("no panic");
        assert!(!helper.try_help(|_| true));
        assert_eq!(helper.work(|_| ()), OwnerAccess::Gone);
    });
}

// ── Panics ──

#[test]
fn after_a_panic_only_a_blocking_owner_works_on() {
    let combiner = production::Combiner::new(1);
    let panics = || combiner.try_help(|_| panic!("as ordered"));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(!combiner.try_help(|_| true) && !combiner.help(|_| true));
    assert_eq!(combiner.work(|value| *value), production::OwnerAccess::Gone);
    assert_eq!(combiner.query(|value| *value), production::OwnerAccess::Gone);
    assert_eq!(combiner.work_blocking(|value| *value), 1);
    assert_eq!(combiner.remove(), Some(1));
}
