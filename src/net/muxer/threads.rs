//! Tests of the seat with loom: the production file, compiled a second time against loom's types,
//! is run in every interleaving. A lost wake-up shows as a deadlock, which loom reports.

use std::panic::catch_unwind;
use std::sync::Arc;

use loom::model::Builder;
use loom::sync::Notify;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use seat::{Found, Seat};

#[path = "seat.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "with other types, and not all of it")]
mod seat;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

/// Injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// An inline writer does not wake the task.
    NobodyWoken,
    /// A query is counted as work.
    AskedAsWork,
}

/// Data arrives during an inline write: the task must read it eventually.
fn something_arrives(fault: Fault, writers: usize) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (seat, bell) = (Arc::new(Seat::new(())), Arc::new(Notify::new()));
        let arrived = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..writers {
            let (seat, looks, rings) = (Arc::clone(&seat), Arc::clone(&arrived), Arc::clone(&bell));
            threads.push(thread::spawn(move || {
                // loom switches threads only at shared accesses, so access one while the seat is
                // taken.
                let writes = |(): &mut ()| {
                    looks.load(sync::Ordering::SeqCst);
                };
                if seat.stand_in(writes) && fault != Fault::NobodyWoken {
                    rings.notify();
                }
            }));
        }
        let (reads, rings) = (Arc::clone(&arrived), Arc::clone(&bell));
        threads.push(thread::spawn(move || {
            reads.store(true, sync::Ordering::SeqCst);
            rings.notify();
        }));
        loop {
            bell.wait();
            let has_read = seat.work(|()| arrived.load(sync::Ordering::SeqCst));
            if has_read == Found::Free(true) {
                break;
            }
            let asked = match fault {
                Fault::AskedAsWork => seat.work(|()| ()),
                _ => seat.ask(|()| ()),
            };
            assert_ne!(asked, Found::Gone);
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn task_is_woken_for_data_during_an_inline_write() {
    something_arrives(Fault::None, 1);
    something_arrives(Fault::None, 2);
}

#[test]
fn injected_faults_are_detected() {
    for fault in [Fault::NobodyWoken, Fault::AskedAsWork] {
        assert!(catch_unwind(|| something_arrives(fault, 1)).is_err(), "{fault:?}");
    }
}
