//! What waits for a machine: facts, requests of users, messages of peers, each with its own bound
//! and its own answer at the bound.
//!
//! One short lock per push, one per turn. The driver is woken only if it sleeps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ostraca_ddata::machine::Machine;
use tokio::sync::{Notify, Semaphore};

use crate::net::Busy;

/// Bytes of messages that wait, above which a caller leaves the turn to the loop.
const TURN_NOW_BYTES: usize = 64 * 1024;

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxLimits {
    /// Requests of users; beyond, callers wait for their turn, in order.
    pub requests: usize,
    /// Messages of peers; beyond, lanes are told to wait. The control lanes have as much again.
    pub messages: usize,
    /// Bytes of messages of peers; the message that crosses it is still taken.
    pub message_bytes: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self { requests: 4_096, messages: 16_384, message_bytes: 16 << 20 }
    }
}

/// The machine takes nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// A question about a machine, answered between two inputs.
type Look<M> = Box<dyn FnOnce(&M) + Send>;

/// Something for a machine.
pub(super) enum Item<M: Machine> {
    Input(M::Input),
    Look(Look<M>),
}

/// A request, and whether it stands in the place that its caller waited for.
struct Asked<M: Machine> {
    item: Item<M>,
    counted: bool,
}

struct Queues<M: Machine> {
    facts: VecDeque<M::Input>, // few by nature: links, members, what the disk says
    requests: VecDeque<Asked<M>>, // ≤ limits.requests, and the ends of subscriptions
    /// Messages of peers, the urgent ones apart: they wait for no data, and have room of their own.
    urgent: Line<M::Input>,
    messages: Line<M::Input>,
    asleep: bool,
    closed: bool,
}

/// Messages in order, with their bytes.
struct Line<I> {
    waiting: VecDeque<(I, usize)>, // ≤ limits.messages
    bytes: usize,                  // ≤ limits.message_bytes and one message
}

impl<I> Line<I> {
    const fn new() -> Self {
        Self { waiting: VecDeque::new(), bytes: 0 }
    }

    fn has_room(&self, limits: &InboxLimits) -> bool {
        self.waiting.len() < limits.messages && self.bytes < limits.message_bytes
    }

    fn put(&mut self, input: I, bytes: usize) {
        self.bytes += bytes;
        self.waiting.push_back((input, bytes));
    }

    fn take(&mut self, count: usize) -> impl Iterator<Item = I> + '_ {
        let all = &mut self.bytes;
        self.waiting.drain(..count).map(move |(input, bytes)| {
            *all -= bytes;
            input
        })
    }
}

/// Which messages come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Configurations: few, and others wait for them.
    Urgent,
    /// Everything else.
    Ordinary,
}

/// Runs a turn of the machine on the thread that asks for it.
pub(super) trait RunNow: Send + Sync {
    /// Runs it, unless somebody does already; whatever is left is the loop's, which is woken.
    fn run_now(&self);
}

struct Shared<M: Machine> {
    limits: InboxLimits,
    queues: Mutex<Queues<M>>,
    wake: Notify,
    places: Semaphore, // for requests; fair, and nothing is lost if a caller gives up
    callers: AtomicUsize,
    room: Notify, // for messages
    runner: OnceLock<Weak<dyn RunNow>>,
}

/// The inbox of one machine. A clone is the same inbox.
pub(crate) struct Inbox<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Clone for Inbox<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Facts.
    pub facts: usize,
    /// Requests of users in the queue.
    pub requests: usize,
    /// Callers that wait for a place in the queue.
    pub callers: usize,
    /// Messages of peers.
    pub messages: usize,
    /// Their bytes.
    pub message_bytes: usize,
}

/// What a turn may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appetite {
    /// Everything.
    All,
    /// Only facts and what is urgent: what was ordered before has to be finished first.
    Little,
}

/// Who handles what is pushed while the machine rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The loop, which is woken.
    Loop,
    /// Whoever pushes, on its own thread, where callers run the machine.
    Here,
}

/// What came of taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// Something.
    Some,
    /// Nothing waits; the next push wakes.
    Nothing,
    /// Nothing waits, and nothing will.
    TheLast,
}

impl<M: Machine> Queues<M> {
    fn line(&mut self, urgency: Urgency) -> &mut Line<M::Input> {
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
    pub(crate) fn new(limits: InboxLimits) -> Self {
        let queues = Queues {
            facts: VecDeque::new(),
            requests: VecDeque::new(),
            urgent: Line::new(),
            messages: Line::new(),
            asleep: false,
            closed: false,
        };
        Self(Arc::new(Shared {
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

    /// A fact: always taken.
    pub(crate) fn fact(&self, input: M::Input) -> Result<(), Closed> {
        self.push(Turn::Loop, |queues| queues.facts.push_back(input))
    }

    /// Waits for a place for a request. Cancel-safe; who waits longest comes first.
    pub(crate) async fn place(&self) -> Result<Place<'_, M>, Closed> {
        let _counted = Counted::new(&self.0.callers);
        let permit = self.0.places.acquire().await.map_err(|_| Closed)?;
        Ok(Place { inbox: self, permit })
    }

    /// A place for a request, if one is free and nobody waits for it.
    pub(crate) fn place_now(&self) -> Option<Place<'_, M>> {
        let permit = self.0.places.try_acquire().ok()?;
        Some(Place { inbox: self, permit })
    }

    /// A request that must not wait: the begin or end of a subscription.
    pub(crate) fn request_now(&self, input: M::Input) -> Result<(), Closed> {
        let asked = Asked { item: Item::Input(input), counted: false };
        self.push(Turn::Loop, |queues| queues.requests.push_back(asked))
    }

    /// Takes a peer's message of `bytes` bytes, or says that there is no room. After the end
    /// messages are taken and dropped: nobody must wait for a machine that is gone. An ordinary
    /// message wakes nobody where callers run the machine: [`run`](Self::run) does, when no more
    /// are at hand.
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
            self.wake(queues, Turn::Loop);
        }
        Ok(())
    }

    /// From here on, who finds the machine at rest lets this run it.
    pub(super) fn run_by(&self, runner: Weak<dyn RunNow>) {
        let _ = self.0.runner.set(runner); // an inbox has one driver
    }

    /// Runs a turn on this thread if something waits and nobody has begun with it.
    pub(crate) fn run(&self) {
        let queues = self.lock();
        if queues.has_any() {
            self.wake(queues, Turn::Here);
        }
    }

    /// Whether a message would be taken now.
    pub(crate) fn has_room(&self, urgency: Urgency) -> bool {
        let mut queues = self.lock();
        queues.closed || queues.line(urgency).has_room(&self.0.limits)
    }

    /// Ends when there is (probably) room for a message.
    pub(crate) async fn room(&self, urgency: Urgency) {
        loop {
            let mut freed = std::pin::pin!(self.0.room.notified());
            freed.as_mut().enable(); // from here on nothing that is freed goes unnoticed
            if self.has_room(urgency) {
                return;
            }
            freed.await;
        }
    }

    /// Takes nothing any more; what waits is still handled.
    pub(crate) fn close(&self) {
        let mut queues = self.lock();
        queues.closed = true;
        self.0.places.close();
        self.wake(queues, Turn::Loop);
        self.0.room.notify_waiters();
    }

    /// Drops what waits: nobody will handle it.
    pub(super) fn clear(&self) {
        self.close();
        let mut queues = self.lock();
        let facts = std::mem::take(&mut queues.facts);
        let requests = std::mem::take(&mut queues.requests);
        let urgent = std::mem::replace(&mut queues.urgent, Line::new());
        let messages = std::mem::replace(&mut queues.messages, Line::new());
        drop(queues); // before the rest: a caller's function may do anything when it is dropped
        drop((facts, requests, urgent.waiting, messages.waiting));
    }

    pub(crate) fn waiting(&self) -> Waiting {
        let queues = self.lock();
        Waiting {
            facts: queues.facts.len(),
            requests: queues.requests.len(),
            callers: self.0.callers.load(Ordering::Relaxed),
            messages: queues.urgent.waiting.len() + queues.messages.waiting.len(),
            message_bytes: queues.message_bytes(),
        }
    }

    /// Whether anything waits.
    pub(super) fn has_any(&self) -> bool {
        self.lock().has_any()
    }

    /// Requests that wait; `None` if something does that they are not to hold up.
    pub(super) fn patient_requests(&self) -> Option<usize> {
        let queues = self.lock();
        let is_patient = queues.facts.is_empty() && queues.urgent.waiting.is_empty();
        is_patient.then_some(queues.requests.len())
    }

    /// The end of a turn on a caller's thread: from here on a push runs the next. `false`:
    /// something waits, and the loop must be woken; it may be long in coming.
    pub(super) fn rest(&self) -> bool {
        let mut queues = self.lock();
        queues.asleep = !queues.closed;
        queues.asleep && !queues.has_any()
    }

    /// Whether the next push runs a turn or wakes the loop.
    #[cfg(test)]
    pub(super) fn rests(&self) -> bool {
        self.lock().asleep
    }

    /// Appends at most `most` items to `batch`: facts first, then what is urgent, then messages and
    /// requests by halves, so that neither starves the other.
    pub(super) fn take(
        &self,
        batch: &mut VecDeque<Item<M>>,
        most: usize,
        appetite: Appetite,
    ) -> Took {
        let mut guard = self.lock();
        let queues = &mut *guard;
        let facts = queues.facts.len().min(most);
        batch.extend(queues.facts.drain(..facts).map(Item::Input));
        let urgent = queues.urgent.waiting.len().min(most - facts);
        batch.extend(queues.urgent.take(urgent).map(Item::Input));
        let (mut places, mut freed) = (0, urgent > 0);
        if appetite == Appetite::All || queues.closed {
            let left = most - facts - urgent;
            let (asked, said) = (queues.requests.len(), queues.messages.waiting.len());
            let messages = said.min(left - asked.min(left / 2));
            let requests = asked.min(left - messages);
            batch.extend(queues.messages.take(messages).map(Item::Input));
            for asked in queues.requests.drain(..requests) {
                places += usize::from(asked.counted);
                batch.push_back(asked.item);
            }
            freed |= messages > 0;
        }
        let took = match (batch.is_empty(), queues.closed) {
            (false, _) => Took::Some,
            (true, false) => Took::Nothing,
            (true, true) => Took::TheLast,
        };
        queues.asleep = took == Took::Nothing;
        drop(guard);
        self.0.places.add_permits(places);
        if freed {
            self.0.room.notify_waiters();
        }
        took
    }

    /// Ends when something was pushed after [`take`](Self::take) found nothing.
    pub(super) async fn pushed(&self) {
        self.0.wake.notified().await;
    }

    fn push(&self, turn: Turn, put: impl FnOnce(&mut Queues<M>)) -> Result<(), Closed> {
        let mut queues = self.lock();
        if queues.closed {
            drop(queues); // `put` goes after it: it may hold a caller's function
            return Err(Closed);
        }
        put(&mut queues);
        self.wake(queues, turn);
        Ok(())
    }

    fn wake(&self, mut queues: MutexGuard<'_, Queues<M>>, turn: Turn) {
        let sleeps = std::mem::take(&mut queues.asleep);
        let is_here = turn == Turn::Here && queues.message_bytes() <= TURN_NOW_BYTES;
        drop(queues);
        if !sleeps {
            return;
        }
        match self.0.runner.get().filter(|_| is_here).and_then(Weak::upgrade) {
            Some(runner) => runner.run_now(),
            None => self.notify(),
        }
    }

    /// Wakes the loop.
    pub(super) fn notify(&self) {
        self.0.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Queues<M>> {
        // No foreign code runs under this lock; if ours panicked, the queues are still queues.
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue of requests, given back if it is not used.
pub(crate) struct Place<'a, M: Machine> {
    inbox: &'a Inbox<M>,
    permit: tokio::sync::SemaphorePermit<'a>,
}

impl<M: Machine> Place<'_, M> {
    pub(crate) fn request(self, input: M::Input) -> Result<(), Closed> {
        self.push(Item::Input(input), Turn::Loop)
    }

    /// [`request`](Self::request), and runs it on this thread if the machine rests.
    pub(crate) fn request_here(self, input: M::Input) -> Result<(), Closed> {
        self.push(Item::Input(input), Turn::Here)
    }

    pub(crate) fn look(self, look: impl FnOnce(&M) + Send + 'static) -> Result<(), Closed> {
        self.push(Item::Look(Box::new(look)), Turn::Loop)
    }

    fn push(self, item: Item<M>, turn: Turn) -> Result<(), Closed> {
        let Self { inbox, permit } = self;
        inbox.push(turn, |queues| {
            queues.requests.push_back(Asked { item, counted: true });
            permit.forget(); // given back when the request is taken
        })
    }
}

/// One of those who wait, as long as it lives.
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

    fn take(inbox: &Inbox<Deaf>, most: usize, appetite: Appetite) -> (Vec<u32>, Took) {
        let mut batch = VecDeque::new();
        let took = inbox.take(&mut batch, most, appetite);
        let inputs = batch.into_iter().map(|item| match item {
            Item::Input(input) => input,
            Item::Look(_) => panic!("nobody looked"),
        });
        (inputs.collect(), took)
    }

    async fn ask(inbox: &Inbox<Deaf>, input: u32) -> Result<(), Closed> {
        inbox.place().await?.request(input)
    }

    #[test]
    fn a_turn_takes_facts_first_and_then_both_halves() {
        let inbox = inbox(100, 100, 1_000);
        for n in 0..10 {
            inbox.offer(100 + n, 1, Urgency::Ordinary).expect("room");
            ask(&inbox, 200 + n).now_or_never().expect("a place").expect("open");
        }
        inbox.fact(1).expect("open");
        assert_eq!(take(&inbox, 5, Appetite::All).0, [1, 100, 101, 200, 201]);
        assert_eq!(take(&inbox, 4, Appetite::All).0, [102, 103, 202, 203]);
        inbox.fact(2).expect("open");
        assert_eq!(take(&inbox, 9, Appetite::Little), (vec![2], Took::Some));
        assert_eq!(take(&inbox, 100, Appetite::All).0.len(), 12);
        assert_eq!(take(&inbox, 100, Appetite::All), (vec![], Took::Nothing));
        assert_eq!(inbox.waiting(), Waiting::default());
    }

    #[test]
    fn one_kind_alone_gets_the_whole_turn() {
        let inbox = inbox(100, 100, 1_000);
        for n in 0..10 {
            inbox.offer(n, 1, Urgency::Ordinary).expect("room");
        }
        assert_eq!(take(&inbox, 8, Appetite::All).0.len(), 8);
        for n in 0..10 {
            ask(&inbox, n).now_or_never().expect("a place").expect("open");
        }
        assert_eq!(take(&inbox, 10, Appetite::All).0.len(), 10);
    }

    #[test]
    fn messages_beyond_either_bound_are_refused_until_some_are_taken() {
        for inbox in [inbox(1, 2, 1_000), inbox(1, 100, 11)] {
            assert_eq!(inbox.offer(1, 10, Urgency::Ordinary), Ok(()));
            assert_eq!(
                inbox.offer(2, 10, Urgency::Ordinary),
                Ok(()),
                "the one that crosses the bound is taken"
            );
            assert_eq!(inbox.offer(3, 10, Urgency::Ordinary), Err(Busy));
            let mut room = Box::pin(inbox.room(Urgency::Ordinary));
            assert_eq!(room.as_mut().now_or_never(), None);
            take(&inbox, 1, Appetite::All);
            assert_eq!(room.now_or_never(), Some(()));
            assert_eq!(inbox.offer(3, 10, Urgency::Ordinary), Ok(()));
        }
    }

    #[test]
    fn what_is_urgent_waits_for_no_data_and_has_room_of_its_own() {
        let inbox = inbox(1, 2, 1_000);
        (0..2).for_each(|n| inbox.offer(n, 10, Urgency::Ordinary).expect("room"));
        assert_eq!(inbox.offer(2, 10, Urgency::Ordinary), Err(Busy));
        assert_eq!(inbox.offer(10, 10, Urgency::Urgent), Ok(()));
        assert_eq!(inbox.offer(11, 10, Urgency::Urgent), Ok(()));
        assert_eq!(inbox.offer(12, 10, Urgency::Urgent), Err(Busy));
        assert_eq!(inbox.room(Urgency::Urgent).now_or_never(), None);
        assert_eq!((inbox.waiting().messages, inbox.waiting().message_bytes), (4, 40));
        assert_eq!(take(&inbox, 1, Appetite::Little).0, [10]);
        assert_eq!(inbox.room(Urgency::Urgent).now_or_never(), Some(()));
        assert_eq!(take(&inbox, 9, Appetite::All).0, [11, 0, 1]);
        assert_eq!(inbox.waiting(), Waiting::default());
    }

    #[test]
    fn callers_wait_for_a_place_in_order_and_who_gives_up_leaves_none_behind() {
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
        assert_eq!(take(&inbox, 9, Appetite::All).0, [1]);
        assert_eq!(third.now_or_never(), Some(Ok(())));
        assert_eq!(take(&inbox, 9, Appetite::All).0, [3]);
        drop(inbox.place().now_or_never().expect("a place"));
        assert!(ask(&inbox, 4).now_or_never().is_some(), "an unused place came back");
    }

    #[test]
    fn after_the_end_what_waits_is_taken_and_nobody_waits_any_more() {
        let inbox = inbox(1, 1, 1);
        ask(&inbox, 1).now_or_never().expect("a place").expect("open");
        inbox.offer(2, 1, Urgency::Ordinary).expect("room");
        let mut waits = Box::pin(ask(&inbox, 3));
        assert!(waits.as_mut().now_or_never().is_none());
        inbox.close();
        assert_eq!(waits.now_or_never(), Some(Err(Closed)));
        assert_eq!(inbox.fact(4), Err(Closed));
        assert_eq!(inbox.request_now(5), Err(Closed));
        assert_eq!(inbox.offer(6, 1, Urgency::Ordinary), Ok(()), "taken and dropped");
        assert_eq!(inbox.room(Urgency::Ordinary).now_or_never(), Some(()));
        assert_eq!(take(&inbox, 9, Appetite::Little), (vec![2, 1], Took::Some));
        assert_eq!(take(&inbox, 9, Appetite::All), (vec![], Took::TheLast));
    }

    #[test]
    fn who_sleeps_is_woken_by_the_first_push() {
        let inbox = inbox(1, 1, 1);
        assert_eq!(take(&inbox, 9, Appetite::All).1, Took::Nothing);
        let mut pushed = Box::pin(inbox.pushed());
        assert_eq!(pushed.as_mut().now_or_never(), None);
        inbox.fact(1).expect("open");
        assert_eq!(pushed.now_or_never(), Some(()));
    }
}
