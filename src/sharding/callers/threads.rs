//! Loom models of callers that wait for room and of the tasks that make it. They compile
//! `waiters.rs` with loom's types, and use the real mailbox under a lock as in a shard. A caller
//! that is never woken is a deadlock, which loom reports.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::model::Builder;
use loom::sync::Mutex;
use loom::thread;

use crate::sharding::batch::{MessageBatch, MessageInTransit};
use crate::sharding::mailbox::{Mailbox, MailboxLimits};
use waiters::Callers;

#[path = "waiters.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "a second copy, partly used")]
mod waiters;

/// Imported by `waiters.rs` as `super::sync`.
mod sync {
    pub(super) use loom::sync::atomic::AtomicBool;
    pub(super) use loom::sync::{Mutex, MutexGuard};
}

const ROOM: MailboxLimits = MailboxLimits { messages: 1, bytes: 1_000 };

/// A step that the test leaves out, to show that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallerFault {
    Nothing,
    /// A caller does not check again after it registered.
    SecondLook,
    /// The task that makes room wakes no caller.
    Wake,
}

#[derive(Default)]
struct CallerWaker(loom::sync::Notify);

impl Wake for CallerWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

struct ModelShard {
    mailbox: Mutex<Mailbox<u8>>,
    callers: Callers,
}

impl ModelShard {
    /// Puts a message into the mailbox. Returns `false` if the mailbox is full, which it remembers
    /// for `take_refused`.
    fn offer(&self, message: u8) -> bool {
        let mut mailbox = self.mailbox.lock().expect("no thread panicked");
        let fits = mailbox.check(ROOM, 1).is_ok(); // a refusal is noted for `take_refused`
        if fits {
            mailbox.push(MessageInTransit::Typed(message));
        }
        fits
    }

    /// Does the same as `EntityRef::tell_wait`: it registers between two offers, because the
    /// mailbox may get room between a refusal and the registration.
    fn tell(&self, message: u8, fault: CallerFault) {
        let caller_waker = Arc::<CallerWaker>::default();
        let mut registration = self.callers.registration();
        let waker = Waker::from(Arc::clone(&caller_waker));
        while !self.offer(message) {
            registration.register(&waker);
            if fault != CallerFault::SecondLook && self.offer(message) {
                return;
            }
            caller_waker.0.wait();
        }
    }

    /// Takes all messages, as `ActivationTask` does, and wakes the callers if one was refused since
    /// the last call. Returns the number of messages. With [`CallerFault::Wake`] wakes none.
    fn take(&self, fault: CallerFault) -> usize {
        let (taken, made_room) = {
            let mut mailbox = self.mailbox.lock().expect("no thread panicked");
            let taken = mailbox.take(usize::MAX, &mut MessageBatch::default());
            (taken, taken > 0 && mailbox.take_refused())
        };
        if made_room && fault != CallerFault::Wake {
            self.callers.wake();
        }
        taken
    }
}

/// Explores the interleavings of `callers` threads, each of which sends one message to a mailbox
/// for one message that is full at first, and of this thread, which takes messages until all have
/// come. Panics if a caller is never woken.
fn explore(callers: u8, fault: CallerFault) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3); // unbounded, the exploration takes too long
    builder.check(move || {
        let shard = ModelShard { mailbox: Mutex::new(Mailbox::default()), callers: Callers::new() };
        let shard = Arc::new(shard);
        assert!(shard.offer(0), "the mailbox is empty");
        let tellers = (1..=callers).map(|message| {
            let shard = Arc::clone(&shard);
            thread::spawn(move || shard.tell(message, fault))
        });
        let tellers: Vec<_> = tellers.collect();
        let mut taken = 0;
        while taken < usize::from(callers) + 1 {
            match shard.take(fault) {
                0 => thread::yield_now(),
                some => taken += some,
            }
        }
        tellers.into_iter().for_each(|teller| teller.join().expect("no thread panicked"));
    });
}

#[test]
fn every_caller_that_waits_for_room_gets_it() {
    explore(1, CallerFault::Nothing);
    explore(2, CallerFault::Nothing);
}

#[test]
fn a_step_that_is_left_out_is_noticed() {
    for fault in [CallerFault::SecondLook, CallerFault::Wake] {
        let explored = catch_unwind(AssertUnwindSafe(|| explore(1, fault)));
        assert!(explored.is_err(), "{fault:?}");
    }
}
