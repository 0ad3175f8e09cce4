//! Tests of the combiner with loom: the production file, compiled a second time against loom's
//! types, is run in every interleaving. A lost wake-up shows as a deadlock, which loom reports.

use std::panic::catch_unwind;
use std::sync::Arc;

use loom::model::Builder;
use loom::sync::Notify;
use loom::sync::atomic::AtomicBool;
use loom::thread;

use combiner::{SessionAccess, SessionCombiner};

#[path = "combiner.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "with other types, and not all of it")]
mod combiner;

mod sync {
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

/// The fault that a run of the model injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MuxerFault {
    None,
    /// An inline writer does not wake the task.
    TaskNotWoken,
    /// A query is counted as work.
    QueryAsWork,
}

/// Lets data arrive while `writers` threads write inline: the task must read it eventually, in
/// every interleaving. Panics, because loom finds a deadlock, if the task sleeps for ever in one of
/// them. The task asks a query after each attempt to work, as `Muxer` does.
fn data_arrives(fault: MuxerFault, writers: usize) {
    let mut model = Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (combiner, wakes) = (Arc::new(SessionCombiner::new(())), Arc::new(Notify::new()));
        let arrived = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..writers {
            let (combiner, looks, rings) =
                (Arc::clone(&combiner), Arc::clone(&arrived), Arc::clone(&wakes));
            threads.push(thread::spawn(move || {
                // loom switches threads only at shared accesses, so access one while the session is
                // in use.
                let writes = |(): &mut ()| {
                    looks.load(sync::Ordering::SeqCst);
                };
                if combiner.write_inline(writes) && fault != MuxerFault::TaskNotWoken {
                    rings.notify();
                }
            }));
        }
        let (reads, rings) = (Arc::clone(&arrived), Arc::clone(&wakes));
        threads.push(thread::spawn(move || {
            reads.store(true, sync::Ordering::SeqCst);
            rings.notify();
        }));
        loop {
            wakes.wait();
            let has_read = combiner.work(|()| arrived.load(sync::Ordering::SeqCst));
            if has_read == SessionAccess::Free(true) {
                break;
            }
            let asked = match fault {
                MuxerFault::QueryAsWork => combiner.work(|()| ()),
                _ => combiner.ask(|()| ()),
            };
            assert_ne!(asked, SessionAccess::Gone);
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn task_is_woken_for_data_during_an_inline_write() {
    data_arrives(MuxerFault::None, 1);
    data_arrives(MuxerFault::None, 2);
}

#[test]
fn injected_faults_are_detected() {
    for fault in [MuxerFault::TaskNotWoken, MuxerFault::QueryAsWork] {
        assert!(catch_unwind(|| data_arrives(fault, 1)).is_err(), "{fault:?}");
    }
}
