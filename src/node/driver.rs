//! The one loop that runs machines: it feeds what waits, then performs the outputs of the whole
//! batch, then flushes.
//!
//! Messages of one batch so leave together under load, and at once when idle; no timer makes
//! batches. A turn is bounded ([`TURN_MAX`] inputs, and none begins after [`TURN_SPAN`]), so that a
//! full inbox delays outputs by one turn and never for ever. A loop that is woken by a request lets go first who has one as well.
//! Knows no protocol: what an output means is the [`World`]'s business.
//!
//! Where the world allows it ([`World::ON_CALLERS`]), whoever finds the inbox at rest runs one turn
//! on its own thread: after "Flat Combining and the Synchronization-Parallelism Tradeoff" (Hendler,
//! Incze, Shavit, Tzafrir; SPAA 2010). Who finds it busy only pushes. The loop looks after deadlines
//! and all that a caller leaves.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::machine::{Machine, Outbox};
use tokio::runtime::Handle;

use super::clock::Clock;
use super::inbox::{Appetite, Inbox, Item, RunNow, Took};
use super::rarely::Rarely;
use crate::sharding::yield_now;

/// Inputs of one turn, at most.
pub const TURN_MAX: usize = 1_024;

/// A turn begins no further input after this time: what it has ordered leaves first, and other tasks
/// have their turn.
const TURN_SPAN: Duration = Duration::from_millis(10);

/// Inputs of a turn that a caller runs itself, at most.
pub(crate) const TURN_NOW_MAX: usize = 64;

/// How often the loop lets others go first before a turn, at most.
const GIVES_WAY_MAX: usize = 4;

/// Ticks after the last input, at most: what ends a batch is still done, what waits is not.
const LAST_TICKS: usize = 8;

/// A turn longer than this is warned of, once a minute.
const SLOW_TURN: Duration = Duration::from_millis(100);

/// What surrounds a machine.
pub(crate) trait World<M: Machine>: Send {
    /// Names the machine in events.
    const NAME: &'static str;

    /// Whether who pushes something into an inbox that rests runs the turn itself, rather than wake
    /// the loop for it. That saves a switch of threads, most of what a small request takes; but a
    /// long turn then holds up whoever pushed.
    const ON_CALLERS: bool = false;

    /// The input that says that a deadline may have passed.
    fn tick() -> M::Input;

    /// Carries out an order. Must not block.
    fn perform(&mut self, output: M::Output);

    /// The batch is over: what was gathered leaves now.
    fn flush(&mut self);

    /// Whether so much that was ordered is unfinished that nothing new should begin.
    fn is_behind(&self) -> bool {
        false
    }
}

/// What a driver counts. Read it whenever you like; it costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    turns: AtomicU64,
    inputs: AtomicU64,
    ticks: AtomicU64,
    outputs: AtomicU64,
    batch_max: AtomicU64,
    turn_nanos_max: AtomicU64,
    turns_slow: AtomicU64,
    busy_nanos: AtomicU64,
}

/// What a driver did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Turns.
    pub turns: u64,
    /// Inputs handled.
    pub inputs: u64,
    /// Deadlines that the machine was told of.
    pub ticks: u64,
    /// Outputs performed.
    pub outputs: u64,
    /// Inputs of the largest batch.
    pub batch_max: u64,
    /// The longest turn: feeding, performing and flushing.
    pub turn_max: Duration,
    /// Turns of 100 ms and more. Each delays what waits for this machine; `node.slow_turn` tells of
    /// them once a minute.
    pub turns_slow: u64,
    /// All turns together.
    pub busy: Duration,
}

impl Counters {
    pub(crate) fn read(&self) -> Turns {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Turns {
            turns: of(&self.turns),
            inputs: of(&self.inputs),
            ticks: of(&self.ticks),
            outputs: of(&self.outputs),
            batch_max: of(&self.batch_max),
            turn_max: Duration::from_nanos(of(&self.turn_nanos_max)),
            turns_slow: of(&self.turns_slow),
            busy: Duration::from_nanos(of(&self.busy_nanos)),
        }
    }

    fn turn(&self, turn: Turn, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.inputs.fetch_add(turn.inputs, Ordering::Relaxed);
        self.ticks.fetch_add(turn.ticks, Ordering::Relaxed);
        self.outputs.fetch_add(turn.outputs, Ordering::Relaxed);
        self.batch_max.fetch_max(turn.inputs, Ordering::Relaxed);
        self.turn_nanos_max.fetch_max(nanos, Ordering::Relaxed);
        self.turns_slow.fetch_add(u64::from(took >= SLOW_TURN), Ordering::Relaxed);
        self.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Default)]
struct Turn {
    inputs: u64,
    ticks: u64,
    outputs: u64,
}

/// A machine with all that it needs to run.
pub(crate) struct Driver<M: Machine, W> {
    core: Core<M, W>,
}

impl<M, W> Driver<M, W>
where
    M: Machine<Input: Send, Output: Send> + Send + 'static,
    W: World<M> + 'static,
{
    pub(crate) fn new(machine: M, world: W, inbox: Inbox<M>, clock: Clock) -> Self {
        Self { core: Core::new(machine, world, inbox, clock) }
    }

    /// What it counts, while it runs.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.core.counters.clone()
    }

    /// Runs the machine until its inbox is closed and empty; gives both back when the last output
    /// is performed.
    pub(crate) async fn run(self) -> (M, W) {
        let inbox = self.core.inbox.clone();
        let _emptied = Emptied(inbox.clone());
        let shared = Arc::new(Shared {
            core: Mutex::new(Some(self.core)),
            loop_waits: AtomicBool::new(false),
            inbox: inbox.clone(),
            runtime: Handle::current(),
        });
        let _over = Over(&shared);
        if W::ON_CALLERS {
            let shared: Arc<dyn RunNow> = shared.clone();
            inbox.run_by(Arc::downgrade(&shared));
        }
        loop {
            match shared.step() {
                Step::More => tokio::task::yield_now().await, // others have their turn too
                Step::Rest(until) => {
                    let is_pushed = match until {
                        None => {
                            inbox.pushed().await;
                            true
                        }
                        Some(until) => tokio::time::timeout_at(until, inbox.pushed()).await.is_ok(),
                    };
                    if is_pushed {
                        give_way(&inbox, until).await;
                    }
                }
                Step::Over(core) => return core.end(),
            }
        }
    }
}

/// Lets go first who is ready to make a request as well, for as long as that brings more of them,
/// and nothing else waits than what peers and users can wait for.
///
/// The replies of a batch wake all who waited for them, and most have their next request. A
/// runtime runs first what was woken last: the loop, by the first of these, and the others'
/// requests would each be a batch of their own.
async fn give_way<M: Machine>(inbox: &Inbox<M>, until: Option<tokio::time::Instant>) {
    let mut before = 0;
    for _ in 0..GIVES_WAY_MAX {
        let is_due = until.is_some_and(|until| until <= tokio::time::Instant::now());
        match inbox.patient_requests().filter(|waiting| *waiting > before && !is_due) {
            Some(waiting) => before = waiting,
            None => return,
        }
        yield_now().await; // to the end of the queue, behind all that is ready
    }
}

/// What the loop does next.
enum Step<M: Machine, W> {
    /// There is more to do.
    More,
    /// It sleeps until it is woken, or until then.
    Rest(Option<tokio::time::Instant>),
    /// There will be nothing any more.
    Over(Box<Core<M, W>>),
}

/// The machine, for the loop and for callers that run it themselves: one turn of at most
/// [`TURN_NOW_MAX`] inputs. Nobody waits for the lock: a caller that finds it held leaves the rest
/// to the loop, the loop is woken when it is free.
struct Shared<M: Machine, W> {
    core: Mutex<Option<Core<M, W>>>, // none: the loop has ended
    loop_waits: AtomicBool,          // for the lock
    inbox: Inbox<M>,
    runtime: Handle,
}

impl<M: Machine, W: World<M>> Shared<M, W> {
    fn step(&self) -> Step<M, W> {
        let Some(mut guard) = self.lock_for_loop() else { return Step::Rest(None) };
        let core = guard.as_mut().expect("only the loop takes it, at its end");
        if let Some(panic) = core.failed.take() {
            *guard = None; // nothing is run by a machine that has failed
            drop(guard);
            std::panic::resume_unwind(panic); // as if it had happened here
        }
        loop {
            match core.take(TURN_MAX) {
                Took::TheLast => break,
                Took::Nothing if !core.is_due() => {
                    core.armed = core.machine.next_deadline();
                    return Step::Rest(core.armed.map(|at| core.clock.moment(at)));
                }
                Took::Some | Took::Nothing => core.turn(),
            }
            // A runtime wakes a thread for a task that yields: only if there is more to do.
            if !core.batch.is_empty() || core.is_due() || core.inbox.has_any() {
                return Step::More;
            }
        }
        Step::Over(Box::new(guard.take().expect("it is there")))
    }

    /// `None`: a caller is at it, and wakes the loop when its turn is over.
    fn lock_for_loop(&self) -> Option<MutexGuard<'_, Option<Core<M, W>>>> {
        self.loop_waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // either this finds it free, or the caller sees who waits
        let guard = match self.core.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
        };
        self.loop_waits.store(false, Ordering::Relaxed);
        Some(guard)
    }
}

impl<M, W> RunNow for Shared<M, W>
where
    M: Machine<Input: Send, Output: Send> + Send,
    W: World<M>,
{
    fn run_now(&self) {
        let mut guard = match self.core.try_lock() {
            Ok(guard) => guard,
            // Somebody is at it, perhaps past its last look at the inbox.
            Err(TryLockError::WouldBlock) => return self.inbox.notify(),
            Err(TryLockError::Poisoned(_)) => return,
        };
        let Some(core) = guard.as_mut() else { return };
        let inside = self.runtime.enter(); // as on the loop's task, wherever the caller runs
        let done = catch_unwind(AssertUnwindSafe(|| core.turn_now()));
        drop(inside);
        let is_done = done.unwrap_or_else(|panic| {
            core.failed = Some(panic); // the loop's to tell: a caller has no part in it
            false
        });
        drop(guard);
        fence(Ordering::SeqCst);
        if self.loop_waits.load(Ordering::Relaxed) || !is_done {
            self.inbox.notify();
        }
    }
}

/// Ends the machine with its loop, however that ends: after the turn that a caller is at, and no
/// turn follows.
struct Over<'a, M: Machine, W>(&'a Shared<M, W>);

impl<M: Machine, W> Drop for Over<'_, M, W> {
    fn drop(&mut self) {
        let mut guard = self.0.core.lock().unwrap_or_else(PoisonError::into_inner);
        let core = guard.take();
        drop(guard);
        drop(core);
    }
}

struct Core<M: Machine, W> {
    machine: M,
    world: W,
    inbox: Inbox<M>,
    clock: Clock,
    counters: Arc<Counters>,
    batch: VecDeque<Item<M>>, // ≤ TURN_MAX; between turns what the last one had no time for
    out: Outbox<M::Output>,
    slow: Rarely,
    armed: Option<Instant>,              // when the loop wakes by itself
    failed: Option<Box<dyn Any + Send>>, // what a turn on a caller's thread panicked with
}

impl<M: Machine, W: World<M>> Core<M, W> {
    fn new(machine: M, world: W, inbox: Inbox<M>, clock: Clock) -> Self {
        Self {
            machine,
            world,
            inbox,
            clock,
            counters: Arc::default(),
            batch: VecDeque::new(),
            out: Outbox::new(),
            slow: Rarely::default(),
            armed: None,
            failed: None,
        }
    }

    fn take(&mut self, most: usize) -> Took {
        if !self.batch.is_empty() {
            return Took::Some;
        }
        let appetite = if self.world.is_behind() { Appetite::Little } else { Appetite::All };
        self.inbox.take(&mut self.batch, most, appetite)
    }

    fn is_due(&self) -> bool {
        self.machine.next_deadline().is_some_and(|at| at <= self.clock.mono())
    }

    /// One turn on a caller's thread. `false`: the loop has to look after the rest.
    fn turn_now(&mut self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match self.take(TURN_NOW_MAX) {
            Took::TheLast => return false,
            Took::Nothing if !self.is_due() => {}
            Took::Some | Took::Nothing => self.turn(),
        }
        let due = self.machine.next_deadline();
        let is_earlier = due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed));
        self.inbox.rest() && !is_earlier && self.batch.is_empty()
    }

    /// What ends a batch is still done.
    fn end(mut self) -> (M, W) {
        for _ in 0..LAST_TICKS {
            if self.tick() == 0 {
                break;
            }
            self.perform();
        }
        (self.machine, self.world)
    }

    fn turn(&mut self) {
        let began = self.clock.mono();
        let mut inputs = 0_u64;
        while let Some(item) = self.batch.pop_front() {
            let now = self.clock.now();
            if inputs > 0 && now.mono - began >= TURN_SPAN {
                self.batch.push_front(item);
                break;
            }
            inputs += 1;
            match item {
                Item::Input(input) => self.machine.handle(now, input, &mut self.out),
                Item::Look(look) => look(&self.machine),
            }
        }
        let ticks = self.tick();
        let turn = Turn { inputs, ticks, outputs: self.perform() };
        let now = self.clock.mono();
        let took = now - began;
        self.counters.turn(turn, took);
        if took >= SLOW_TURN && self.slow.now(now) {
            let (part, millis) = (W::NAME, took.as_millis());
            tracing::warn!(part, millis, inputs, "node.slow_turn");
        }
    }

    /// Tells the machine if a deadline has passed; how often, which is at most once.
    fn tick(&mut self) -> u64 {
        let now = self.clock.now();
        if self.machine.next_deadline().is_none_or(|at| at > now.mono) {
            return 0;
        }
        self.machine.handle(now, W::tick(), &mut self.out);
        1
    }

    fn perform(&mut self) -> u64 {
        let outputs = self.out.len() as u64;
        for output in self.out.drain() {
            self.world.perform(output);
        }
        self.world.flush();
        outputs
    }
}

/// Empties the inbox when its driver ends, however it ends: nobody waits for a place in it.
struct Emptied<M: Machine>(Inbox<M>);

impl<M: Machine> Drop for Emptied<M> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
