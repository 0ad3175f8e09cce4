//! Tests of the lanes' synchronisation with loom: the production files, compiled a second time
//! against loom's types, are run in every interleaving of their locks and wake-ups with at most two
//! preemptions. A lost wake-up shows as a deadlock, which loom reports.
//!
//! `super` of those files is this module. So their `super::sync` is the [`sync`] below, and this
//! module imports the other modules that they use.
//!
//! The replaced primitives can inject a fault; each fault must be detected.

use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::model::Builder;
use loom::thread;

use super::outbound::{OutboundQueue, WriterStep};
use super::{LaneStats, SendError, names, outbound};
use crate::net::TrafficClass;
use crate::net::config::NetLimits;
use crate::net::frame::{self, FRAME_BYTES, FrameParseResult};

use combiner::Combiner;
use inbound::InboundLane;
use shared_outbound::SharedOutboundQueue;

#[path = "../../combiner.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "with other types, and not all of it")]
mod combiner;
#[path = "inbound.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    clippy::duplicate_mod,
    reason = "with other types, and not all of it"
)]
mod inbound;
#[path = "shared_outbound.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "with other types, and not all of it")]
mod shared_outbound;

/// Fault that the replaced primitives inject while [`is_noticed`] runs; otherwise `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneFault {
    None,
    /// Waking the writer's waker does nothing.
    WakeLost,
    /// Tasks that wait for room, or for the turn to read, are not notified.
    NotifyLost,
    /// A task that waits for room, or for the turn to read, registers only after its check.
    RegisteredLate,
    /// A reader is not told of its successor.
    SuccessorLost,
    /// A sender that could not write inline assumes nevertheless that its message is written, and
    /// does not wake the writer.
    CombinerTrusted,
}

thread_local! {
    // loom runs all threads of a model on one OS thread.
    static FAULT: Cell<LaneFault> = const { Cell::new(LaneFault::None) };
}

fn has(fault: LaneFault) -> bool {
    FAULT.with(Cell::get) == fault
}

/// Replacements with the documented behaviour of the primitives in [`super::sync`].
mod sync {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    pub(super) use loom::sync::atomic::{AtomicBool, Ordering, fence};
    pub(super) use loom::sync::{Mutex, MutexGuard, MutexGuard as ShortGuard};

    use super::{LaneFault, has};

    /// Lock whose `lock` panics if it is poisoned, unlike the real one. A panic ends the model, so
    /// that poisoning need not be modelled.
    #[derive(Debug)]
    pub(super) struct ShortMutex<T>(Mutex<T>);

    impl<T> ShortMutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(super) fn lock(&self) -> ShortGuard<'_, T> {
            self.0.lock().expect("no thread panicked")
        }
    }

    /// Holds one waker: the last one registered. Waking it removes it.
    #[derive(Debug)]
    pub(super) struct AtomicWaker(Mutex<Option<Waker>>);

    impl AtomicWaker {
        pub(super) fn new() -> Self {
            Self(Mutex::new(None))
        }

        pub(super) fn register(&self, waker: &Waker) {
            *self.0.lock().expect("no thread panicked") = Some(waker.clone());
        }

        pub(super) fn wake(&self) {
            let waker = self.0.lock().expect("no thread panicked").take();
            if let Some(waker) = waker.filter(|_| !has(LaneFault::WakeLost)) {
                waker.wake();
            }
        }
    }

    /// Wakes the tasks that are registered when it is notified, but none that registers later. A
    /// notification without a registered task is not kept.
    #[derive(Debug)]
    pub(super) struct Notify(Mutex<Registered>);

    #[derive(Debug, Default)]
    struct Registered {
        times: u64,         // notifications so far
        wakers: Vec<Waker>, // of polls since the last one
    }

    impl Notify {
        pub(super) fn new() -> Self {
            Self(Mutex::default())
        }

        pub(super) const fn notified(&self) -> Notified<'_> {
            Notified { notify: self, since: None }
        }

        pub(super) fn notify_waiters(&self) {
            if !has(LaneFault::NotifyLost) {
                self.wake_all();
            }
        }

        /// Notifies, unaffected by [`LaneFault::NotifyLost`]: [`watch`] has a fault of its own.
        fn wake_all(&self) {
            let mut registered = self.0.lock().expect("no thread panicked");
            registered.times += 1;
            let wakers = std::mem::take(&mut registered.wakers);
            drop(registered);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    pub(super) struct Notified<'a> {
        notify: &'a Notify,
        since: Option<u64>, // `times` when it was registered; `None` before
    }

    impl Notified<'_> {
        /// Registers for notifications from now on, unless [`LaneFault::RegisteredLate`] is
        /// injected. Always returns `false`.
        pub(super) fn enable(mut self: Pin<&mut Self>) -> bool {
            if !has(LaneFault::RegisteredLate) {
                self.since = Some(self.notify.0.lock().expect("no thread panicked").times);
            }
            false
        }
    }

    impl Future for Notified<'_> {
        type Output = ();

        /// Ready if there was a notification since `enable`, or since the last poll; otherwise
        /// registers the task. Never ready at the first poll without `enable`.
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            let mut registered = self.notify.0.lock().expect("no thread panicked");
            let times = registered.times;
            if self.since.is_some_and(|since| since < times) {
                return Poll::Ready(());
            }
            registered.wakers.push(cx.waker().clone());
            drop(registered);
            self.since = Some(times);
            Poll::Pending
        }
    }

    /// A value, and tasks that wait for it to change.
    pub(super) mod watch {
        use std::pin::pin;
        use std::sync::Arc;

        use super::{LaneFault, Mutex, MutexGuard, Notify, has};

        #[derive(Debug)]
        pub(in super::super) struct Sender<T>(Arc<WatchShared<T>>);

        #[derive(Debug)]
        struct WatchShared<T> {
            value: Mutex<T>,
            changed: Notify,
        }

        pub(in super::super) struct WatchReceiver<T>(Arc<WatchShared<T>>);

        impl<T> Sender<T> {
            pub(in super::super) fn new(value: T) -> Self {
                Self(Arc::new(WatchShared { value: Mutex::new(value), changed: Notify::new() }))
            }

            /// Modifies the value, and wakes the waiting tasks, outside the lock, if `modify`
            /// returns `true` and [`LaneFault::SuccessorLost`] is not injected. Returns the result
            /// of `modify`.
            pub(in super::super) fn send_if_modified(
                &self,
                modify: impl FnOnce(&mut T) -> bool,
            ) -> bool {
                let modified = modify(&mut self.borrow_mut());
                if modified && !has(LaneFault::SuccessorLost) {
                    self.0.changed.wake_all();
                }
                modified
            }

            fn borrow_mut(&self) -> MutexGuard<'_, T> {
                self.0.value.lock().expect("no thread panicked")
            }

            pub(in super::super) fn borrow(&self) -> MutexGuard<'_, T> {
                self.borrow_mut()
            }

            pub(in super::super) fn subscribe(&self) -> WatchReceiver<T> {
                WatchReceiver(Arc::clone(&self.0))
            }
        }

        impl<T> WatchReceiver<T> {
            /// Waits until the value meets the condition; returns at once if it does. Never fails:
            /// without a sender it waits for ever.
            pub(in super::super) async fn wait_for(
                &mut self,
                condition: impl Fn(&T) -> bool,
            ) -> Result<(), ()> {
                loop {
                    let mut changed = pin!(self.0.changed.notified());
                    changed.as_mut().enable();
                    if condition(&self.0.value.lock().expect("no thread panicked")) {
                        return Ok(());
                    }
                    changed.await;
                }
            }
        }
    }
}

/// Wakes a thread of the model.
#[derive(Default)]
struct ThreadWaker(loom::sync::Notify);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Polls a future on this thread of the model until it is ready, once more after each wake-up.
/// Without a wake-up, loom reports a deadlock.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (mut future, wake_up) = (pin!(future), Arc::<ThreadWaker>::default());
    let waker = Waker::from(Arc::clone(&wake_up));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        wake_up.0.wait();
    }
}

/// Runs a model in every interleaving with at most two preemptions. Panics if one of them fails.
fn every_interleaving(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2); // detects every fault; 3 takes ten times as long
    builder.check(check);
}

/// Whether a model panics in some interleaving when this fault is injected, for the time of the
/// call. Catches the panic.
fn is_noticed(fault: LaneFault, check: fn()) -> bool {
    FAULT.with(|injected| injected.set(fault));
    let explored = catch_unwind(AssertUnwindSafe(|| every_interleaving(check)));
    FAULT.with(|injected| injected.set(LaneFault::None));
    explored.is_err()
}

/// How a writer ended.
#[derive(Debug, PartialEq, Eq)]
enum WriterEnd {
    Finished,
    Superseded,
}

/// Whether the peer acknowledges the messages of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerMode {
    Acknowledges,
    /// It acknowledges nothing, as after a cut of the connection.
    Silent,
}

/// Writes the lane from its first message on, like [`writer`](super::writer), and sleeps in
/// between. Returns how it ended and how many messages it sent. Panics if any message was
/// acknowledged before. A silent peer's writer ends only when it is superseded, or the lane is
/// abandoned.
fn write(lane: &SharedOutboundQueue, peer: PeerMode) -> (WriterEnd, u64) {
    let wake_up = Arc::<ThreadWaker>::default();
    let (waker, mut copy) = (Waker::from(Arc::clone(&wake_up)), Vec::new());
    let turn = lane.resume(0).expect("nothing was acknowledged"); // from the first message on
    let mut sent = 0;
    loop {
        if !lane.register(turn, &waker) {
            return (WriterEnd::Superseded, sent);
        }
        loop {
            match lane.take(turn, &mut copy) {
                WriterStep::Copied => sent += messages(&copy),
                WriterStep::Chunk(bytes, from) => sent += messages(&bytes[from..]),
                WriterStep::Nothing => break,
                WriterStep::Finished => return (WriterEnd::Finished, sent),
                WriterStep::Superseded => return (WriterEnd::Superseded, sent),
            }
            if peer == PeerMode::Acknowledges {
                lane.acknowledge(turn, sent).expect("so many were sent");
            }
        }
        wake_up.0.wait();
    }
}

/// A writer behind a [`Combiner`], like that of [`writer`](super::writer), so that senders
/// can write inline.
struct ModelWriter {
    lane: Arc<SharedOutboundQueue>,
    turn: u64,
    copy: Vec<u8>,
    sent: u64,
    idle: bool,
    ended: bool, // whether an inline write found the end, which the task reports
    waker: Waker,
}

impl ModelWriter {
    /// Registers and writes. Returns whether the lane was finished, now or by an inline write;
    /// after the latter it writes nothing. Panics if a later writer has the lane.
    fn poll(&mut self) -> bool {
        assert!(self.lane.register(self.turn, &self.waker), "it is the only one");
        self.ended || self.write()
    }

    /// Writes if the writer is idle. Wakes the task if that finds the end. Returns `false` then,
    /// and if it is not idle: the sender must wake the lane's latest writer. Here that is this one;
    /// in production this one may be superseded.
    fn write_inline(&mut self) -> bool {
        if !self.idle {
            return false;
        }
        self.ended = self.write();
        if self.ended {
            self.waker.wake_by_ref();
        }
        !self.ended
    }

    /// Takes and acknowledges all messages. Returns whether the lane was finished; otherwise the
    /// writer is idle.
    fn write(&mut self) -> bool {
        self.idle = false;
        loop {
            match self.lane.take(self.turn, &mut self.copy) {
                WriterStep::Copied => self.sent += messages(&self.copy),
                WriterStep::Chunk(bytes, from) => self.sent += messages(&bytes[from..]),
                WriterStep::Nothing => break,
                WriterStep::Finished => return true,
                WriterStep::Superseded => panic!("it is the only one"),
            }
            self.lane.acknowledge(self.turn, self.sent).expect("so many were sent");
        }
        // The writer flushes here. Taking the lock lets loom switch to another thread meanwhile.
        let _appended = self.lane.appended();
        self.idle = true;
        false
    }
}

/// Sends like a lane whose senders may write inline. Waits for room while the lane is full. Panics
/// at any other rejection.
fn send(lane: &SharedOutboundQueue, combiner: &Combiner<ModelWriter>, body: &[u8]) {
    while let Err(full) = lane.send(&[], body, || {
        combiner.try_help(ModelWriter::write_inline) || has(LaneFault::CombinerTrusted)
    }) {
        assert!(matches!(full, SendError::Full { .. }), "{full}");
        block_on(lane.room());
    }
}

/// Number of frames in these bytes, up to the first that is incomplete or malformed. A writer takes
/// whole frames, each of which is a message here.
fn messages(mut bytes: &[u8]) -> u64 {
    let mut found = 0;
    while let Ok(FrameParseResult::Frame(_, length)) = frame::cut(bytes, FRAME_BYTES) {
        (found, bytes) = (found + 1, &bytes[length..]);
    }
    found
}

/// Creates a lane that buffers this many bytes. With 1, that is one message at a time, because an
/// empty lane accepts a message of any length.
fn lane(bytes_max: usize) -> Arc<SharedOutboundQueue> {
    let limits = NetLimits { lane_bytes_max: [bytes_max; 4], ..NetLimits::default() };
    Arc::new(SharedOutboundQueue::new(OutboundQueue::new(TrafficClass::User, &limits)))
}

/// Two senders, and a writer that sleeps in between.
fn messages_are_sent() {
    let lane = lane(1_000);
    let writer = Arc::clone(&lane);
    let writer = thread::spawn(move || write(&writer, PeerMode::Acknowledges));
    let other = Arc::clone(&lane);
    let other = thread::spawn(move || other.send(&[], b"1", || false).expect("there is room"));
    lane.send(&[], b"2", || false).expect("there is room");
    other.join().expect("no thread panicked");
    lane.finish();
    assert_eq!(writer.join().expect("no thread panicked"), (WriterEnd::Finished, 2));
}

/// A sender that waits for room in a lane for one message at a time.
fn room_is_found() {
    let lane = lane(1);
    let writer = Arc::clone(&lane);
    let writer = thread::spawn(move || write(&writer, PeerMode::Acknowledges));
    for body in [b"1", b"2"] {
        while let Err(full) = lane.send(&[], body, || false) {
            assert!(matches!(full, SendError::Full { .. }), "{full}");
            block_on(lane.room());
        }
    }
    lane.finish();
    assert_eq!(writer.join().expect("no thread panicked"), (WriterEnd::Finished, 2));
}

/// Two senders that write inline for an idle writer, in a lane for one message at a time.
fn task_or_sender_writes() {
    let lane = lane(1);
    let wake_up = Arc::<ThreadWaker>::default();
    let combiner = Arc::new(Combiner::new(ModelWriter {
        turn: lane.resume(0).expect("nothing was acknowledged"),
        lane: Arc::clone(&lane),
        copy: Vec::new(),
        sent: 0,
        idle: false,
        ended: false,
        waker: Waker::from(Arc::clone(&wake_up)),
    }));
    let (owner, helper) = (Arc::clone(&combiner), Arc::clone(&combiner));
    let task = thread::spawn(move || {
        while !owner.work_blocking(ModelWriter::poll) {
            wake_up.0.wait();
        }
        owner.remove().expect("it is removed once").sent
    });
    let other = Arc::clone(&lane);
    let other = thread::spawn(move || send(&other, &helper, b"1"));
    send(&lane, &combiner, b"2");
    send(&lane, &combiner, b"3");
    other.join().expect("no thread panicked");
    lane.finish();
    assert_eq!(task.join().expect("no thread panicked"), 3);
}

/// A writer whose connection is cut, and the next one, which starts after the first has sent the
/// message.
fn later_writer_continues() {
    let lane = lane(1_000);
    lane.send(&[], b"1", || false).expect("there is room");
    let first = Arc::clone(&lane);
    let first = thread::spawn(move || write(&first, PeerMode::Silent));
    let second = Arc::clone(&lane);
    let second = thread::spawn(move || {
        while second.stats().sent == 0 {
            thread::yield_now(); // until the first one has begun
        }
        write(&second, PeerMode::Acknowledges)
    });
    lane.finish();
    assert_eq!(first.join().expect("no thread panicked").0, WriterEnd::Superseded);
    assert_eq!(second.join().expect("no thread panicked"), (WriterEnd::Finished, 1));
}

/// A lane is abandoned while a sender waits for room and the writer for an acknowledgement. Both
/// must end; the abandoned message counts as lost.
fn abandoned_lane_releases_waiters() {
    let lane = lane(1);
    lane.send(&[], b"1", || false).expect("there is room");
    let (writer, sender) = (Arc::clone(&lane), Arc::clone(&lane));
    let writer = thread::spawn(move || write(&writer, PeerMode::Silent));
    let sender = thread::spawn(move || {
        while let Err(SendError::Full { .. }) = sender.send(&[], b"2", || false) {
            block_on(sender.room());
        }
    });
    assert_eq!(lane.break_off(), 1);
    assert_eq!(writer.join().expect("no thread panicked").0, WriterEnd::Superseded);
    sender.join().expect("no thread panicked");
}

/// A reader, and two later connections. The latest must have a turn, the one in between may.
fn turns_are_passed_on() {
    let lane = InboundLane::new();
    let first = 1; // first unacknowledged message
    let turn = block_on(lane.take_over(1, first)).expect("it is the first");
    let reader = thread::spawn(move || {
        block_on(turn.superseded());
        drop(turn);
    });
    let next = [2, 3].map(|generation| {
        let lane = lane.clone();
        thread::spawn(move || block_on(lane.take_over(generation, first)).map(drop).is_ok())
    });
    reader.join().expect("no thread panicked");
    // The second generation has a turn only if it comes before the third one.
    let [_, last] = next.map(|next| next.join().expect("no thread panicked"));
    assert!(last, "it is the latest");
}

#[test]
fn no_message_waits_for_a_writer_that_sleeps() {
    every_interleaving(messages_are_sent);
    assert!(is_noticed(LaneFault::WakeLost, messages_are_sent));
}

#[test]
fn waiting_sender_gets_room() {
    every_interleaving(room_is_found);
    for fault in [LaneFault::NotifyLost, LaneFault::RegisteredLate] {
        assert!(is_noticed(fault, room_is_found), "{fault:?}");
    }
}

#[test]
fn message_is_written_once_by_task_or_sender() {
    every_interleaving(task_or_sender_writes);
    assert!(is_noticed(LaneFault::CombinerTrusted, task_or_sender_writes));
}

#[test]
fn superseded_writer_ends_and_successor_sends_all() {
    every_interleaving(later_writer_continues);
    assert!(is_noticed(LaneFault::WakeLost, later_writer_continues));
}

#[test]
fn abandoned_lane_releases_all_waiters() {
    every_interleaving(abandoned_lane_releases_waiters);
    for fault in [LaneFault::WakeLost, LaneFault::NotifyLost] {
        assert!(is_noticed(fault, abandoned_lane_releases_waiters), "{fault:?}");
    }
}

#[test]
fn reader_passes_its_turn_to_the_latest_generation() {
    every_interleaving(turns_are_passed_on);
    for fault in [LaneFault::NotifyLost, LaneFault::RegisteredLate, LaneFault::SuccessorLost] {
        assert!(is_noticed(fault, turns_are_passed_on), "{fault:?}");
    }
}
