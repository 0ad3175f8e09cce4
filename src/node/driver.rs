//! [`Driver`]: runs a machine in turns. A turn feeds queued inputs to the machine, performs the
//! outputs of the whole batch, and flushes.
//!
//! Batches need no timer: under load the messages of many inputs leave together, and an idle
//! machine handles each input at once. A turn is bounded ([`TURN_MAX`] inputs, and none begins
//! after [`TURN_SPAN`]), so that a full inbox delays outputs by one turn at most. After a request
//! has woken it, the loop first yields to other tasks that are about to make a request. The driver
//! knows no protocol: the [`MachineEnvironment`] performs the outputs.
//!
//! If [`MachineEnvironment::ON_CALLERS`] is set, a caller that pushes to a sleeping machine runs
//! one turn on its own thread, and a caller that finds the machine busy only pushes (flat
//! combining, by a [`Combiner`]). The loop handles deadlines and the work that callers leave.
//!
//! A panic of the machine or its environment ends the driver: the future of [`Driver::run`] panics,
//! also if a caller ran the turn, which is not affected itself.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use ostraca_ddata::log_throttle::LogThrottle;
use ostraca_ddata::machine::{Machine, Outbox};
use tokio::runtime::Handle;

use super::clock::Clock;
use super::inbox::{Inbox, InboxEntry, InlineRunner, TakePolicy, TakeResult};
use crate::combiner::{Combiner, OwnerAccess, RemoveOnDrop};
use crate::wakers::yield_now;

/// Maximum number of inputs in one turn.
pub const TURN_MAX: usize = 1_024;

/// Time after which a turn begins no further input, so that its outputs leave and other tasks run.
const TURN_SPAN: Duration = Duration::from_millis(10);

/// Maximum number of inputs in a turn that a caller runs.
pub(crate) const TURN_NOW_MAX: usize = 64;

/// Maximum number of times that the loop yields to other tasks before a turn.
const GIVES_WAY_MAX: usize = 4;

/// Maximum number of ticks after the last input: enough for work at the end of a batch, but the
/// machine does not wait for later deadlines.
const LAST_TICKS: usize = 8;

/// Duration from which a turn is logged as slow, at most once a minute.
const SLOW_TURN: Duration = Duration::from_millis(100);

/// The environment of a machine, which performs its outputs. It is called by one thread at a time:
/// the loop's, or with [`ON_CALLERS`](Self::ON_CALLERS) also a caller's.
pub(crate) trait MachineEnvironment<M: Machine>: Send {
    /// Name of the machine in log events.
    const NAME: &'static str;

    /// Whether a caller that pushes to a sleeping machine runs the turn itself instead of waking
    /// the loop. This saves a switch of threads, which takes most of the time of a small request;
    /// but a long turn then delays the caller.
    const ON_CALLERS: bool = false;

    /// The input which tells the machine that its next deadline has passed. Only the driver makes
    /// it.
    fn tick() -> M::Input;

    /// Performs an output. Called for each output, in order, after the last input of a turn. Must
    /// not block.
    fn perform(&mut self, output: M::Output);

    /// Called at the end of each turn, even if it had no outputs, and after each last tick
    /// ([`LAST_TICKS`]): sends gathered messages.
    fn flush(&mut self);

    /// Whether so many earlier outputs are incomplete that the next turn must take only facts and
    /// urgent messages ([`TakePolicy::Little`]). Asked before inputs are taken from the inbox;
    /// never, by default. Deferred inputs do not keep the machine awake: the environment must push
    /// a fact when this becomes false.
    fn defers_requests(&self) -> bool {
        false
    }
}

/// Counters of a driver, updated at the end of each turn. The last ticks ([`LAST_TICKS`]) are in
/// none of them.
#[derive(Debug, Default)]
pub(crate) struct DriverCounters {
    turns: AtomicU64,
    inputs: AtomicU64,
    ticks: AtomicU64,
    outputs: AtomicU64,
    batch_max: AtomicU64,
    turn_nanos_max: AtomicU64,
    turns_slow: AtomicU64,
    busy_nanos: AtomicU64,
}

/// Counters of a machine's turns since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnStats {
    /// Number of turns of the machine, including those with only a tick.
    pub turns: u64,
    /// Number of handled inputs, including functions that read the machine, but not ticks.
    pub inputs: u64,
    /// Number of ticks, each for one or more deadlines that had passed.
    pub ticks: u64,
    /// Number of performed outputs.
    pub outputs: u64,
    /// Largest number of inputs that one turn has handled.
    pub batch_max: u64,
    /// Duration of the longest turn, from its first input to the flush.
    pub turn_max: Duration,
    /// Number of turns of 100 ms and more, each of which delays all queued inputs. The event
    /// `node.slow_turn` reports them at most once a minute.
    pub turns_slow: u64,
    /// Total duration of all turns.
    pub busy: Duration,
}

impl DriverCounters {
    /// Reads the counters one after the other: a turn that ends meanwhile may be counted in some of
    /// them only.
    pub(crate) fn read(&self) -> TurnStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TurnStats {
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

    /// Counts a turn, which is slow from [`SLOW_TURN`]. Does not log.
    fn turn(&self, turn: TurnCounts, took: Duration) {
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

/// The inputs, ticks and outputs of one turn.
#[derive(Clone, Copy, Default)]
struct TurnCounts {
    inputs: u64,
    ticks: u64,
    outputs: u64,
}

/// A machine with its world, inbox and clock.
pub(crate) struct Driver<M: Machine, W> {
    core: DriverCore<M, W>,
}

impl<M, W> Driver<M, W>
where
    M: Machine<Input: Send, Output: Send> + Send + 'static,
    W: MachineEnvironment<M> + 'static,
{
    /// Creates a driver, the only one of this inbox. Handles nothing before [`run`](Self::run);
    /// inputs that are queued already are handled first.
    pub(crate) fn new(machine: M, world: W, inbox: Inbox<M>, clock: Clock) -> Self {
        Self { core: DriverCore::new(machine, world, inbox, clock) }
    }

    /// The driver's counters, which can be read while it runs and after its end.
    pub(crate) fn counters(&self) -> Arc<DriverCounters> {
        self.core.counters.clone()
    }

    /// Runs the machine until its inbox is closed and empty, and then the last ticks
    /// ([`LAST_TICKS`]). Returns machine and world after the last output was performed. Panics
    /// outside of a tokio runtime, which is entered for turns that callers run on other threads.
    ///
    /// If the future is dropped, or panics because a turn panicked, the machine is dropped, and
    /// then the inbox is closed and its inputs are dropped. This blocks until a caller's
    /// turn has ended.
    pub(crate) async fn run(self) -> (M, W) {
        let inbox = self.core.inbox.clone();
        let _emptied = Emptied(inbox.clone());
        let shared = Arc::new(SharedCore {
            core: Combiner::new(self.core),
            inbox: inbox.clone(),
            runtime: Handle::current(),
        });
        let _over = RemoveOnDrop(&shared.core); // after it no caller runs a turn
        if W::ON_CALLERS {
            let shared: Arc<dyn InlineRunner> = shared.clone();
            inbox.run_by(Arc::downgrade(&shared));
        }
        loop {
            let step = match shared.core.work(DriverCore::step) {
                OwnerAccess::Free(step) => step,
                OwnerAccess::Busy => LoopStep::Rest(None), // a caller runs a turn
                OwnerAccess::Gone => unreachable!("only the loop removes the machine"),
            };
            match step {
                LoopStep::More => tokio::task::yield_now().await, // lets other tasks run
                LoopStep::Rest(until) => {
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
                LoopStep::Over => {
                    let core = shared.core.remove().expect("only the loop removes the machine");
                    return core.end();
                }
            }
        }
    }
}

/// Yields to other tasks as long as each time more requests arrive, and only requests and ordinary
/// messages are queued, but at most [`GIVES_WAY_MAX`] times. Returns at once if no request is
/// queued or the deadline `until` has passed. Called when the inbox has woken the loop, but not
/// when its timer has, and not between turns that follow each other.
///
/// The replies of a batch wake all callers, and most of them make another request. The runtime runs
/// the task first that was woken last: the loop, woken by the first of these requests. Without
/// yielding, each request would be a batch of its own.
async fn give_way<M: Machine>(inbox: &Inbox<M>, until: Option<tokio::time::Instant>) {
    let mut before = 0;
    for _ in 0..GIVES_WAY_MAX {
        let is_due = until.is_some_and(|until| until <= tokio::time::Instant::now());
        match inbox.patient_requests().filter(|waiting| *waiting > before && !is_due) {
            Some(waiting) => before = waiting,
            None => return,
        }
        yield_now().await; // to the end of the runtime's queue, behind all ready tasks
    }
}

/// The loop's next step.
enum LoopStep {
    /// A turn was run, and more inputs or deadlines are pending: yield, and step again.
    More,
    /// Sleep until the inbox wakes the loop, or until this time.
    Rest(Option<tokio::time::Instant>),
    /// The inbox is closed and empty, or a turn on a caller's thread has panicked: remove the core
    /// and [`end`](DriverCore::end) it.
    Over,
}

/// The machine, which the loop owns, and callers use for turns of at most [`TURN_NOW_MAX`] inputs.
/// No thread blocks on it: a caller that finds it in use wakes the loop instead, and a loop that
/// finds it in use is woken by the caller.
struct SharedCore<M: Machine, W> {
    core: Combiner<DriverCore<M, W>>,
    inbox: Inbox<M>,
    runtime: Handle,
}

impl<M, W> InlineRunner for SharedCore<M, W>
where
    M: Machine<Input: Send, Output: Send> + Send,
    W: MachineEnvironment<M>,
{
    /// Runs a turn within the loop's runtime. If another thread uses the machine, or the loop has
    /// ended, only wakes the loop. Never panics: a panic of the turn is kept for the loop, which is
    /// woken and resumes it. Also wakes the loop if work or an earlier deadline is left, or the
    /// loop has found the machine in use.
    fn run_inline(&self) {
        let is_done = self.core.help(|core| {
            let _inside = self.runtime.enter(); // the caller may run outside of the loop's runtime
            let done = catch_unwind(AssertUnwindSafe(|| core.turn_now()));
            done.unwrap_or_else(|panic| {
                core.failed = Some(panic); // the loop resumes it; the caller is not affected
                false
            })
        });
        // If it was in use, its user may have checked the inbox for the last time already.
        if !is_done {
            self.inbox.notify();
        }
    }
}

/// The machine with all that a turn needs.
struct DriverCore<M: Machine, W> {
    machine: M,
    world: W,
    inbox: Inbox<M>,
    clock: Clock,
    counters: Arc<DriverCounters>,
    batch: VecDeque<InboxEntry<M>>, // ≤ TURN_MAX; between turns: items for which the last had no time
    out: Outbox<M::Output>,
    slow: LogThrottle,
    turn_span: Duration, // `TURN_SPAN`, but tests of other bounds have no such bound
    armed: Option<Instant>, // deadline for which the loop last went to sleep; `None`: it had none
    failed: Option<Box<dyn Any + Send>>, // panic of a turn on a caller's thread
}

impl<M: Machine, W: MachineEnvironment<M>> DriverCore<M, W> {
    fn new(machine: M, world: W, inbox: Inbox<M>, clock: Clock) -> Self {
        Self {
            machine,
            world,
            inbox,
            clock,
            counters: Arc::default(),
            batch: VecDeque::new(),
            out: Outbox::new(),
            slow: LogThrottle::default(),
            turn_span: TURN_SPAN,
            armed: None,
            failed: None,
        }
    }

    /// Runs a turn for the loop if inputs or a deadline are pending. If some are pending after it,
    /// returns [`LoopStep::More`]; otherwise checks again, and puts the machine to sleep once
    /// nothing is pending. Runs no turn after one that has panicked on a caller's thread. Must not
    /// be called again after [`LoopStep::Over`].
    ///
    /// # Panics
    /// With the panic of its own turn.
    fn step(&mut self) -> LoopStep {
        if self.failed.is_some() {
            return LoopStep::Over;
        }
        loop {
            match self.take(TURN_MAX) {
                TakeResult::TheLast => return LoopStep::Over,
                TakeResult::Nothing if !self.is_due() => {
                    self.armed = self.machine.next_deadline();
                    return LoopStep::Rest(self.armed.map(|at| self.clock.moment(at)));
                }
                TakeResult::Some | TakeResult::Nothing => self.turn(),
            }
            // Yield only if there is more to do, because the runtime wakes a thread for a yielding
            // task.
            if !self.batch.is_empty() || self.is_due() || self.inbox.has_any() {
                return LoopStep::More;
            }
        }
    }

    /// Takes the next batch from the inbox, of at most `most` inputs, by the policy of the
    /// environment. Takes nothing and returns [`TakeResult::Some`] if the last turn left inputs,
    /// which may be more than `most`.
    fn take(&mut self, most: usize) -> TakeResult {
        if !self.batch.is_empty() {
            return TakeResult::Some;
        }
        let policy =
            if self.world.defers_requests() { TakePolicy::Little } else { TakePolicy::All };
        self.inbox.take(&mut self.batch, most, policy)
    }

    /// Whether the machine has a deadline that has passed.
    fn is_due(&self) -> bool {
        self.machine.next_deadline().is_some_and(|at| at <= self.clock.mono())
    }

    /// Runs one turn on a caller's thread, if inputs that may be taken are queued or a deadline has
    /// passed. Then the machine sleeps again, unless the inbox is closed. Returns `false` if the
    /// loop must be woken: for remaining inputs, even deferred ones, for a deadline earlier than
    /// `armed`, because the inbox is closed, or to resume a kept panic, in which case nothing else
    /// is done.
    fn turn_now(&mut self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match self.take(TURN_NOW_MAX) {
            TakeResult::TheLast => return false,
            TakeResult::Nothing if !self.is_due() => {}
            TakeResult::Some | TakeResult::Nothing => self.turn(),
        }
        let due = self.machine.next_deadline();
        let is_earlier = due.is_some_and(|due| self.armed.is_none_or(|armed| due < armed));
        self.inbox.try_sleep() && !is_earlier && self.batch.is_empty()
    }

    /// Ticks the machine for work that is due now, at most [`LAST_TICKS`] times, performs the
    /// outputs, and returns machine and world.
    ///
    /// # Panics
    /// With the panic of a turn on a caller's thread, after it has dropped the machine.
    fn end(mut self) -> (M, W) {
        if let Some(panic) = self.failed.take() {
            drop(self); // a machine that has panicked must not run again
            std::panic::resume_unwind(panic); // as if it had happened on the loop's task
        }
        for _ in 0..LAST_TICKS {
            if self.tick() == 0 {
                break;
            }
            self.perform();
        }
        (self.machine, self.world)
    }

    /// Runs one turn: handles the batch, then ticks the machine if a deadline has passed, and then
    /// performs the outputs of both. Handles at least one input of a batch that has any; leaves the
    /// rest in the batch once `turn_span` has passed. Counts the turn, and logs it if it was slow,
    /// at most once a minute. A turn that panics is not counted; if it panics before the outputs
    /// are performed, none is.
    fn turn(&mut self) {
        let began = self.clock.mono();
        let mut inputs = 0_u64;
        while let Some(item) = self.batch.pop_front() {
            let now = self.clock.now();
            if inputs > 0 && now.mono - began >= self.turn_span {
                self.batch.push_front(item);
                break;
            }
            inputs += 1;
            match item {
                InboxEntry::Input(input) => self.machine.handle(now, input, &mut self.out),
                InboxEntry::Look(look) => look(&self.machine),
            }
        }
        let ticks = self.tick();
        let turn = TurnCounts { inputs, ticks, outputs: self.perform() };
        let now = self.clock.mono();
        let took = now - began;
        self.counters.turn(turn, took);
        if took >= SLOW_TURN && self.slow.permit(now) {
            let (part, millis) = (W::NAME, took.as_millis());
            tracing::warn!(
                part,
                millis,
                inputs,
                "node.slow_turn: one turn took far longer than usual; check the load of this host"
            );
        }
    }

    /// Ticks the machine once if a deadline has passed. Returns the number of ticks, 0 or 1. The
    /// caller must perform the outputs.
    fn tick(&mut self) -> u64 {
        let now = self.clock.now();
        if self.machine.next_deadline().is_none_or(|at| at > now.mono) {
            return 0;
        }
        self.machine.handle(now, W::tick(), &mut self.out);
        1
    }

    /// Performs the outputs gathered so far, and flushes in any case. Returns their number.
    fn perform(&mut self) -> u64 {
        let outputs = self.out.len() as u64;
        for output in self.out.drain() {
            self.world.perform(output);
        }
        self.world.flush();
        outputs
    }
}

/// Empties and closes the inbox when its driver ends in any way, so that no caller waits for it.
struct Emptied<M: Machine>(Inbox<M>);

impl<M: Machine> Drop for Emptied<M> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests;
