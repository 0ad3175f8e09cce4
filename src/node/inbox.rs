//! [`Inbox`]: queue of the inputs of a machine, each kind with its own bound.
//!
//! Facts of other parts of the node are always accepted. Requests of programs wait for a place when
//! their bound is reached, and messages of peers are refused, so that the lane waits. A push and a
//! turn each take one short lock. The driver is woken only if the machine sleeps, which means that
//! the driver has found nothing to take since the last push.
//!
//! A closed inbox accepts nothing further: facts and requests fail with [`Closed`] and are dropped,
//! messages are dropped as if they were accepted. Its queued inputs are still handled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ostraca_ddata::machine::Machine;
use tokio::sync::{Notify, Semaphore};

use crate::net::Busy;

/// Bytes of queued messages above which a caller leaves the turn to the driver's loop.
const TURN_NOW_BYTES: usize = 64 * 1024;

/// Bounds of the queues of a machine. Each must be at least 1, which is not checked: with 0, no
/// caller gets a place, or every message is refused. The start panics if `requests` exceeds tokio's
/// `Semaphore::MAX_PERMITS`; the other bounds have no maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Maximum number of queued requests of programs; 4,096 by default. Further callers wait for a
    /// place, in order. The begin and the end of a subscription need no place.
    pub requests: usize,
    /// Maximum number of queued messages of peers. Further messages are refused, so that their lane
    /// waits. Urgent messages have a separate queue with the same two bounds. 16,384 by default.
    pub messages: usize,
    /// Maximum bytes of queued messages of peers, 16 MiB by default. The message that exceeds it is
    /// still accepted.
    pub message_bytes: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { requests: 4_096, messages: 16_384, message_bytes: 16 << 20 }
    }
}

/// The inbox is closed: the machine takes no further inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// A function that reads the machine, called between two inputs.
type Look<M> = Box<dyn FnOnce(&M) + Send>;

/// An entry of the inbox, as [`Inbox::take`] returns it.
pub(super) enum InboxEntry<M: Machine> {
    Input(M::Input),
    Look(Look<M>),
}

/// A request, and whether it occupies a place of the bounded queue.
struct QueuedRequest<M: Machine> {
    item: InboxEntry<M>,
    counted: bool,
}

struct Queues<M: Machine> {
    facts: VecDeque<M::Input>, // few by nature: links, members, results of the disk
    requests: VecDeque<QueuedRequest<M>>, // ≤ limits.requests, plus begins and ends of subscriptions
    /// Messages of peers. The urgent ones have their own queue, so that they do not wait for data.
    urgent: MessageQueue<M::Input>,
    messages: MessageQueue<M::Input>,
    /// The machine sleeps: its driver has found nothing to take, and the next push runs a turn or
    /// wakes the loop, and clears this. An ordinary message with a runner does neither. Never set
    /// once the inbox is closed.
    asleep: bool,
    closed: bool,
}

/// Messages in order, with their total size.
struct MessageQueue<I> {
    waiting: VecDeque<(I, usize)>, // ≤ limits.messages
    bytes: usize,                  // ≤ limits.message_bytes, plus one message
}

impl<I> MessageQueue<I> {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0 }
    }

    /// Whether a message of any size may be put: both bounds are not reached yet.
    fn has_room(&self, limits: &InboxLimits) -> bool {
        self.waiting.len() < limits.messages && self.bytes < limits.message_bytes
    }

    /// Appends a message. The caller has checked that there is room.
    fn put(&mut self, input: I, bytes: usize) {
        self.bytes += bytes;
        self.waiting.push_back((input, bytes));
    }

    /// Removes the first `count` messages, which must be queued. The caller must consume the
    /// iterator, which subtracts the size of each message.
    fn take(&mut self, count: usize) -> impl Iterator<Item = I> + '_ {
        let all = &mut self.bytes;
        self.waiting.drain(..count).map(move |(input, bytes)| {
            *all -= bytes;
            input
        })
    }
}

/// Priority of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A message of a control lane: few, and others depend on them.
    Urgent,
    /// Any message of another lane.
    Ordinary,
}

/// Runs a turn of the machine on the caller's thread.
pub(super) trait InlineRunner: Send + Sync {
    /// Runs a turn, unless another thread runs one already. Wakes the loop for remaining work.
    /// Called without the lock of the inbox.
    fn run_inline(&self);
}

struct InboxState<M: Machine> {
    limits: InboxLimits,
    queues: Mutex<Queues<M>>,
    wake: Notify, // the driver's loop; keeps one notification if the loop does not wait yet
    places: Semaphore, // places for requests; fair, and cancel-safe for waiting callers
    callers: AtomicUsize,
    room: Notify,                             // for messages
    runner: OnceLock<Weak<dyn InlineRunner>>, // empty if only the loop runs turns
}

/// The inbox of one machine. All clones refer to the same inbox.
pub(crate) struct Inbox<M: Machine>(Arc<InboxState<M>>);

impl<M: Machine> Clone for Inbox<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Number of queued inputs of a machine, without those that a turn has taken already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    /// Queued facts of other parts of the node.
    pub facts: usize,
    /// Queued requests of programs, including those that need no place, and functions that read the
    /// machine.
    pub requests: usize,
    /// Callers that wait for a place in the queue.
    pub callers: usize,
    /// Queued messages of peers.
    pub messages: usize,
    /// Total size of the queued messages in bytes, as they arrived.
    pub message_bytes: usize,
}

/// Kinds of inputs that a turn may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakePolicy {
    /// Inputs of every kind.
    All,
    /// Only facts and urgent messages, because earlier orders must be completed first. Counts as
    /// [`All`](Self::All) once the inbox is closed.
    Little,
}

/// The thread that handles a push to a sleeping machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnThread {
    /// The loop's thread, which is woken.
    Loop,
    /// The pushing thread, if the driver lets callers run the machine.
    Here,
}

/// Result of taking inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeResult {
    /// At least one input was taken.
    Some,
    /// No input is queued that the policy permits. The machine sleeps: the next push runs a turn or
    /// wakes the loop.
    Nothing,
    /// The inbox is empty and closed.
    TheLast,
}

impl<M: Machine> Queues<M> {
    fn line(&mut self, urgency: Urgency) -> &mut MessageQueue<M::Input> {
        match urgency {
            Urgency::Urgent => &mut self.urgent,
            Urgency::Ordinary => &mut self.messages,
        }
    }

    fn message_bytes(&self) -> usize {
        self.urgent.bytes + self.messages.bytes
    }

    fn has_any(&self) -> bool {
        let lines = [&self.urgent, &self.messages];
        !(self.facts.is_empty() && self.requests.is_empty())
            || lines.iter().any(|line| !line.waiting.is_empty())
    }
}

impl<M: Machine> Inbox<M> {
    /// Creates an open inbox. Inputs may be pushed before a driver takes any; they wake nothing,
    /// because the machine does not sleep before the first take.
    ///
    /// # Panics
    /// If `limits.requests` exceeds the permits of a semaphore ([`Semaphore::MAX_PERMITS`]).
    pub(crate) fn new(limits: InboxLimits) -> Self {
        let queues = Queues {
            facts: VecDeque::new(),
            requests: VecDeque::new(),
            urgent: MessageQueue::new(),
            messages: MessageQueue::new(),
            asleep: false,
            closed: false,
        };
        Self(Arc::new(InboxState {
            queues: Mutex::new(queues),
            wake: Notify::new(),
            places: Semaphore::new(limits.requests),
            callers: AtomicUsize::new(0),
            room: Notify::new(),
            runner: OnceLock::new(),
            limits,
        }))
    }

    pub(crate) fn limits(&self) -> &InboxLimits {
        &self.0.limits
    }

    /// Pushes a fact, which is always accepted until the inbox is closed. Wakes the loop of a
    /// sleeping machine; never runs a turn here.
    pub(crate) fn fact(&self, input: M::Input) -> Result<(), Closed> {
        self.push(TurnThread::Loop, |queues| queues.facts.push_back(input))
    }

    /// Waits for a place for a request, without a time limit. Cancel-safe and fair. Fails when the
    /// inbox is closed, also during the wait.
    pub(crate) async fn place(&self) -> Result<QueuePermit<'_, M>, Closed> {
        let _counted = Counted::new(&self.0.callers);
        let permit = self.0.places.acquire().await.map_err(|_| Closed)?;
        Ok(QueuePermit { inbox: self, permit })
    }

    /// Returns a place for a request, if one is free and no caller waits for it; `None` also if the
    /// inbox is closed.
    pub(crate) fn place_now(&self) -> Option<QueuePermit<'_, M>> {
        let permit = self.0.places.try_acquire().ok()?;
        Some(QueuePermit { inbox: self, permit })
    }

    /// Pushes a request without a place, behind all queued ones: the begin or end of a
    /// subscription, which cannot wait. Wakes the loop of a sleeping machine; never runs a turn
    /// here.
    pub(crate) fn request_now(&self, input: M::Input) -> Result<(), Closed> {
        let asked = QueuedRequest { item: InboxEntry::Input(input), counted: false };
        self.push(TurnThread::Loop, |queues| queues.requests.push_back(asked))
    }

    /// Pushes a peer's message of `bytes` bytes. Once the inbox is closed, messages are accepted
    /// and dropped, also if there is no room, so that no lane waits for a machine that ends.
    ///
    /// If callers run the machine, an ordinary message does not wake the driver: the lane reader
    /// calls [`run`](Self::run) when it has no further messages at hand. An urgent message, or any
    /// without such callers, wakes the loop; the caller never runs a turn here.
    ///
    /// # Errors
    /// [`Busy`] if there is no room; the message is dropped, and must be decoded again.
    pub(crate) fn offer(
        &self,
        input: M::Input,
        bytes: usize,
        urgency: Urgency,
    ) -> Result<(), Busy> {
        let mut queues = self.lock();
        if queues.closed {
            return Ok(());
        }
        let line = queues.line(urgency);
        if !line.has_room(&self.0.limits) {
            return Err(Busy);
        }
        line.put(input, bytes);
        if urgency == Urgency::Urgent || self.0.runner.get().is_none() {
            self.wake(queues, TurnThread::Loop);
        }
        Ok(())
    }

    /// Sets the runner by which callers run turns of a sleeping machine. Only the first call has an
    /// effect.
    pub(super) fn run_by(&self, runner: Weak<dyn InlineRunner>) {
        let _ = self.0.runner.set(runner); // an inbox has one driver
    }

    /// Runs a turn on this thread if inputs are queued and the machine sleeps; does nothing if it
    /// is awake. Wakes the loop instead if no runner is set or it was dropped, or the queued
    /// messages of both urgencies have more than [`TURN_NOW_BYTES`].
    pub(crate) fn run(&self) {
        let queues = self.lock();
        if queues.has_any() {
            self.wake(queues, TurnThread::Here);
        }
    }

    /// Whether a message would be accepted now; true as well if the inbox is closed.
    pub(crate) fn has_room(&self, urgency: Urgency) -> bool {
        let mut queues = self.lock();
        queues.closed || queues.line(urgency).has_room(&self.0.limits)
    }

    /// Waits until there is room for a message, or the inbox is closed. Another sender may take the
    /// room first.
    pub(crate) async fn room(&self, urgency: Urgency) {
        loop {
            let mut freed = std::pin::pin!(self.0.room.notified());
            freed.as_mut().enable(); // before the check, so that no notification is missed
            if self.has_room(urgency) {
                return;
            }
            freed.await;
        }
    }

    /// Closes the inbox. Queued inputs are still handled. Callers that wait for a place fail, and
    /// senders that wait for room continue. The loop of a sleeping machine is woken. May be called
    /// again. A place that was given out before remains, but its request then fails.
    pub(crate) fn close(&self) {
        let mut queues = self.lock();
        queues.closed = true;
        self.0.places.close();
        self.wake(queues, TurnThread::Loop);
        self.0.room.notify_waiters();
    }

    /// Closes the inbox and drops all queued inputs, outside the lock. Inputs that a turn has taken
    /// already are not affected.
    pub(super) fn clear(&self) {
        self.close();
        let mut queues = self.lock();
        let facts = std::mem::take(&mut queues.facts);
        let requests = std::mem::take(&mut queues.requests);
        let urgent = std::mem::replace(&mut queues.urgent, MessageQueue::new());
        let messages = std::mem::replace(&mut queues.messages, MessageQueue::new());
        drop(queues); // before the inputs, because dropping a caller's function may run any code
        drop((facts, requests, urgent.waiting, messages.waiting));
    }

    /// Number of queued inputs now. Urgent messages count as messages.
    pub(crate) fn waiting(&self) -> QueueLengths {
        let queues = self.lock();
        QueueLengths {
            facts: queues.facts.len(),
            requests: queues.requests.len(),
            callers: self.0.callers.load(Ordering::Relaxed),
            messages: queues.urgent.waiting.len() + queues.messages.waiting.len(),
            message_bytes: queues.message_bytes(),
        }
    }

    /// Whether any input is queued.
    pub(super) fn has_any(&self) -> bool {
        self.lock().has_any()
    }

    /// Number of queued requests; `None` if facts or urgent messages are queued, which must not be
    /// delayed for further requests.
    pub(super) fn patient_requests(&self) -> Option<usize> {
        let queues = self.lock();
        let is_patient = queues.facts.is_empty() && queues.urgent.waiting.is_empty();
        is_patient.then_some(queues.requests.len())
    }

    /// Ends a turn on a caller's thread: puts the machine to sleep, so that the next push runs the
    /// next turn, unless the inbox is closed. Returns `false` if the caller must wake the loop: the
    /// inbox is closed, or inputs are queued, with which the machine sleeps as well.
    pub(super) fn try_sleep(&self) -> bool {
        let mut queues = self.lock();
        queues.asleep = !queues.closed;
        queues.asleep && !queues.has_any()
    }

    /// Whether the machine sleeps, so that the next push runs a turn or wakes the loop.
    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.lock().asleep
    }

    /// Appends at most `most` items to `batch`, which must be empty: facts first, then urgent
    /// messages, then, if `policy` permits, messages and after them requests. Each of these two
    /// gets half of the rest, or more if the other does not use its half, so that neither starves
    /// the other. If the result is [`TakeResult::Nothing`], the machine sleeps, otherwise it is
    /// awake. After the lock, frees the places of the taken requests, and wakes all senders that
    /// wait for room if any message was taken.
    pub(super) fn take(
        &self,
        batch: &mut VecDeque<InboxEntry<M>>,
        most: usize,
        policy: TakePolicy,
    ) -> TakeResult {
        let mut guard = self.lock();
        let queues = &mut *guard;
        let facts = queues.facts.len().min(most);
        batch.extend(queues.facts.drain(..facts).map(InboxEntry::Input));
        let urgent = queues.urgent.waiting.len().min(most - facts);
        batch.extend(queues.urgent.take(urgent).map(InboxEntry::Input));
        let (mut places, mut freed) = (0, urgent > 0);
        if policy == TakePolicy::All || queues.closed {
            let left = most - facts - urgent;
            let (asked, said) = (queues.requests.len(), queues.messages.waiting.len());
            let messages = said.min(left - asked.min(left / 2));
            let requests = asked.min(left - messages);
            batch.extend(queues.messages.take(messages).map(InboxEntry::Input));
            for asked in queues.requests.drain(..requests) {
                places += usize::from(asked.counted);
                batch.push_back(asked.item);
            }
            freed |= messages > 0;
        }
        let took = match (batch.is_empty(), queues.closed) {
            (false, _) => TakeResult::Some,
            (true, false) => TakeResult::Nothing,
            (true, true) => TakeResult::TheLast,
        };
        queues.asleep = took == TakeResult::Nothing;
        drop(guard);
        self.0.places.add_permits(places);
        if freed {
            self.0.room.notify_waiters();
        }
        took
    }

    /// Waits until the loop is woken, after [`take`](Self::take) found nothing. Returns at once if
    /// it was woken since the last wait; perhaps without an input. Only one loop may wait.
    pub(super) async fn pushed(&self) {
        self.0.wake.notified().await;
    }

    /// Puts an input into its queue, and wakes the machine if it sleeps. If the inbox is closed,
    /// drops `put` outside the lock.
    fn push(&self, turn: TurnThread, put: impl FnOnce(&mut Queues<M>)) -> Result<(), Closed> {
        let mut queues = self.lock();
        if queues.closed {
            drop(queues); // before `put`, which may hold a caller's function
            return Err(Closed);
        }
        put(&mut queues);
        self.wake(queues, turn);
        Ok(())
    }

    /// Wakes the machine if it sleeps, after releasing the lock; otherwise does nothing more than
    /// releasing it. Runs a turn on this thread only if `turn` asks for that, a runner is set and
    /// still exists, and the queued messages have at most [`TURN_NOW_BYTES`]; otherwise wakes the
    /// loop.
    fn wake(&self, mut queues: MutexGuard<'_, Queues<M>>, turn: TurnThread) {
        let sleeps = std::mem::take(&mut queues.asleep);
        let is_here = turn == TurnThread::Here && queues.message_bytes() <= TURN_NOW_BYTES;
        drop(queues);
        if !sleeps {
            return;
        }
        match self.0.runner.get().filter(|_| is_here).and_then(Weak::upgrade) {
            Some(runner) => runner.run_inline(),
            None => self.notify(),
        }
    }

    /// Wakes the loop of the driver, or lets its next wait return at once.
    pub(super) fn notify(&self) {
        self.0.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queues<M>> {
        // The program's code never runs under this lock, so the queues are consistent after a
        // panic.
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of requests. It is free again when the driver takes the request from the
/// queue, when this is dropped unused, or when the inbox turns out to be closed.
pub(crate) struct QueuePermit<'a, M: Machine> {
    inbox: &'a Inbox<M>,
    permit: tokio::sync::SemaphorePermit<'a>,
}

impl<M: Machine> QueuePermit<'_, M> {
    /// Pushes a request into this place. Wakes the loop of a sleeping machine; never runs a turn
    /// here.
    pub(crate) fn request(self, input: M::Input) -> Result<(), Closed> {
        self.push(InboxEntry::Input(input), TurnThread::Loop)
    }

    /// Like [`request`](Self::request), but runs a turn on this thread if the machine sleeps and
    /// its driver permits that; see [`Inbox::run`].
    pub(crate) fn request_here(self, input: M::Input) -> Result<(), Closed> {
        self.push(InboxEntry::Input(input), TurnThread::Here)
    }

    /// Pushes a function that reads the machine. It is called in the order of the requests, on the
    /// thread that runs the turn, or dropped if the driver ends before. Wakes the loop of a
    /// sleeping machine; never runs a turn here.
    pub(crate) fn look(self, look: impl FnOnce(&M) + Send + 'static) -> Result<(), Closed> {
        self.push(InboxEntry::Look(Box::new(look)), TurnThread::Loop)
    }

    /// Pushes an entry that keeps this place until the driver takes it. If the inbox is closed, the
    /// entry is dropped and the place is free.
    fn push(self, item: InboxEntry<M>, turn: TurnThread) -> Result<(), Closed> {
        let Self { inbox, permit } = self;
        inbox.push(turn, |queues| {
            queues.requests.push_back(QueuedRequest { item, counted: true });
            permit.forget(); // released when the request is taken
        })
    }
}

/// Counts a waiting caller while it exists.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use ostraca_ddata::clock::{Instant, Now};
    use ostraca_ddata::machine::Outbox;

    use super::*;

    struct Deaf;

    impl Machine for Deaf {
        type Input = u32;
        type Output = ();

        fn handle(&mut self, _: Now, _: u32, _: &mut Outbox<()>) {}

        fn next_deadline(&self) -> Option<Instant> {
            None
        }
    }

    fn inbox(requests: usize, messages: usize, message_bytes: usize) -> Inbox<Deaf> {
        Inbox::new(InboxLimits { requests, messages, message_bytes })
    }

    fn take(inbox: &Inbox<Deaf>, most: usize, policy: TakePolicy) -> (Vec<u32>, TakeResult) {
        let mut batch = VecDeque::new();
        let took = inbox.take(&mut batch, most, policy);
        let inputs = batch.into_iter().map(|item| match item {
            InboxEntry::Input(input) => input,
            InboxEntry::Look(_) => panic!("no test pushes a look"),
        });
        (inputs.collect(), took)
    }

    async fn ask(inbox: &Inbox<Deaf>, input: u32) -> Result<(), Closed> {
        inbox.place().await?.request(input)
    }

    #[test]
    fn turn_takes_facts_first_then_messages_and_requests_equally() {
        let inbox = inbox(100, 100, 1_000);
        for n in 0..10 {
            inbox.offer(100 + n, 1, Urgency::Ordinary).expect("room");
            ask(&inbox, 200 + n).now_or_never().expect("a place").expect("open");
        }
        inbox.fact(1).expect("open");
        assert_eq!(take(&inbox, 5, TakePolicy::All).0, [1, 100, 101, 200, 201]);
        assert_eq!(take(&inbox, 4, TakePolicy::All).0, [102, 103, 202, 203]);
        inbox.fact(2).expect("open");
        assert_eq!(take(&inbox, 9, TakePolicy::Little), (vec![2], TakeResult::Some));
        assert_eq!(take(&inbox, 100, TakePolicy::All).0.len(), 12);
        assert_eq!(take(&inbox, 100, TakePolicy::All), (vec![], TakeResult::Nothing));
        assert_eq!(inbox.waiting(), QueueLengths::default());
    }

    #[test]
    fn single_kind_of_input_gets_the_whole_turn() {
        let inbox = inbox(100, 100, 1_000);
        for n in 0..10 {
            inbox.offer(n, 1, Urgency::Ordinary).expect("room");
        }
        assert_eq!(take(&inbox, 8, TakePolicy::All).0.len(), 8);
        for n in 0..10 {
            ask(&inbox, n).now_or_never().expect("a place").expect("open");
        }
        assert_eq!(take(&inbox, 10, TakePolicy::All).0.len(), 10);
    }

    #[test]
    fn messages_over_a_bound_are_refused_until_some_are_taken() {
        for inbox in [inbox(1, 2, 1_000), inbox(1, 100, 11)] {
            assert_eq!(inbox.offer(1, 10, Urgency::Ordinary), Ok(()));
            assert_eq!(
                inbox.offer(2, 10, Urgency::Ordinary),
                Ok(()),
                "the message that exceeds the bound is accepted"
            );
            assert_eq!(inbox.offer(3, 10, Urgency::Ordinary), Err(Busy));
            let mut room = Box::pin(inbox.room(Urgency::Ordinary));
            assert_eq!(room.as_mut().now_or_never(), None);
            take(&inbox, 1, TakePolicy::All);
            assert_eq!(room.now_or_never(), Some(()));
            assert_eq!(inbox.offer(3, 10, Urgency::Ordinary), Ok(()));
        }
    }

    #[test]
    fn urgent_messages_have_their_own_room_and_come_first() {
        let inbox = inbox(1, 2, 1_000);
        (0..2).for_each(|n| inbox.offer(n, 10, Urgency::Ordinary).expect("room"));
        assert_eq!(inbox.offer(2, 10, Urgency::Ordinary), Err(Busy));
        assert_eq!(inbox.offer(10, 10, Urgency::Urgent), Ok(()));
        assert_eq!(inbox.offer(11, 10, Urgency::Urgent), Ok(()));
        assert_eq!(inbox.offer(12, 10, Urgency::Urgent), Err(Busy));
        assert_eq!(inbox.room(Urgency::Urgent).now_or_never(), None);
        assert_eq!((inbox.waiting().messages, inbox.waiting().message_bytes), (4, 40));
        assert_eq!(take(&inbox, 1, TakePolicy::Little).0, [10]);
        assert_eq!(inbox.room(Urgency::Urgent).now_or_never(), Some(()));
        assert_eq!(take(&inbox, 9, TakePolicy::All).0, [11, 0, 1]);
        assert_eq!(inbox.waiting(), QueueLengths::default());
    }

    #[test]
    fn callers_get_places_in_order_and_cancelled_ones_free_theirs() {
        let inbox = inbox(1, 1, 1);
        ask(&inbox, 1).now_or_never().expect("a place").expect("open");
        let mut second = Box::pin(ask(&inbox, 2));
        let mut third = Box::pin(ask(&inbox, 3));
        assert!(
            second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none()
        );
        assert_eq!(inbox.waiting().callers, 2);
        drop(second);
        assert_eq!(inbox.waiting().callers, 1);
        assert_eq!(take(&inbox, 9, TakePolicy::All).0, [1]);
        assert_eq!(third.now_or_never(), Some(Ok(())));
        assert_eq!(take(&inbox, 9, TakePolicy::All).0, [3]);
        drop(inbox.place().now_or_never().expect("a place"));
        assert!(ask(&inbox, 4).now_or_never().is_some(), "an unused place was released");
    }

    #[test]
    fn closed_inbox_yields_its_items_and_releases_waiting_callers() {
        let inbox = inbox(1, 1, 1);
        ask(&inbox, 1).now_or_never().expect("a place").expect("open");
        inbox.offer(2, 1, Urgency::Ordinary).expect("room");
        let mut waits = Box::pin(ask(&inbox, 3));
        assert!(waits.as_mut().now_or_never().is_none());
        inbox.close();
        assert_eq!(waits.now_or_never(), Some(Err(Closed)));
        assert_eq!(inbox.fact(4), Err(Closed));
        assert_eq!(inbox.request_now(5), Err(Closed));
        assert_eq!(inbox.offer(6, 1, Urgency::Ordinary), Ok(()), "accepted and dropped");
        assert_eq!(inbox.room(Urgency::Ordinary).now_or_never(), Some(()));
        assert_eq!(take(&inbox, 9, TakePolicy::Little), (vec![2, 1], TakeResult::Some));
        assert_eq!(take(&inbox, 9, TakePolicy::All), (vec![], TakeResult::TheLast));
    }

    #[test]
    fn sleeping_driver_is_woken_by_the_first_push() {
        let inbox = inbox(1, 1, 1);
        assert_eq!(take(&inbox, 9, TakePolicy::All).1, TakeResult::Nothing);
        let mut pushed = Box::pin(inbox.pushed());
        assert_eq!(pushed.as_mut().now_or_never(), None);
        inbox.fact(1).expect("open");
        assert_eq!(pushed.now_or_never(), Some(()));
    }
}
