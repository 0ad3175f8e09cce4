//! The one loop that runs machines: it feeds what waits, then performs the outputs of the whole
//! batch, then flushes.
//!
//! Messages of one batch so leave together under load, and at once when idle; no timer makes
//! batches. A turn is bounded ([`TURN_MAX`] inputs), so that a full inbox delays outputs by one
//! turn and never for ever. Knows no protocol: what an output means is the [`World`]'s business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostraca_ddata::machine::{Machine, Outbox};

use super::clock::Clock;
use super::inbox::{Appetite, Inbox, Item, Took};
use super::rarely::Rarely;

/// Inputs of one turn, at most.
pub const TURN_MAX: usize = 1_024;

/// Ticks after the last input, at most: what ends a batch is still done, what waits is not.
const LAST_TICKS: usize = 8;

/// A turn longer than this is warned of, once a minute.
const SLOW_TURN: Duration = Duration::from_millis(100);

/// What surrounds a machine.
pub(crate) trait World<M: Machine>: Send {
    /// Names the machine in events.
    const NAME: &'static str;

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
    machine: M,
    world: W,
    inbox: Inbox<M>,
    clock: Clock,
    counters: Arc<Counters>,
    rested: bool, // before this turn there was nothing to do
}

impl<M: Machine, W: World<M>> Driver<M, W> {
    pub(crate) fn new(machine: M, world: W, inbox: Inbox<M>, clock: Clock) -> Self {
        Self { machine, world, inbox, clock, counters: Arc::default(), rested: true }
    }

    /// What it counts, while it runs.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Runs the machine until its inbox is closed and empty; gives both back when the last output
    /// is performed.
    pub(crate) async fn run(mut self) -> (M, W) {
        let _emptied = Emptied(self.inbox.clone());
        let mut batch = Vec::with_capacity(TURN_MAX);
        let mut out = Outbox::new();
        let mut slow = Rarely::default();
        while self.wait(&mut batch).await {
            let began = self.clock.mono();
            let turn = self.turn(&mut batch, &mut out);
            let took = self.clock.mono() - began;
            self.counters.turn(turn, took);
            if took >= SLOW_TURN && slow.now(self.clock.mono()) {
                let (part, millis) = (W::NAME, took.as_millis());
                tracing::warn!(part, millis, inputs = turn.inputs, "node.slow_turn");
            }
        }
        for _ in 0..LAST_TICKS {
            if self.tick(&mut out) == 0 {
                break;
            }
            self.perform(&mut out);
        }
        (self.machine, self.world)
    }

    /// Waits for inputs or the next deadline. `false`: there will be none any more.
    async fn wait(&mut self, batch: &mut Vec<Item<M>>) -> bool {
        loop {
            let due = self.machine.next_deadline();
            let is_due = due.is_some_and(|at| at <= self.clock.mono());
            if !self.rested && (is_due || self.inbox.has_any()) {
                // Others have their turn too. Only if there is more to do: a runtime wakes a thread
                // for a task that yields, twice for every request and every answer.
                tokio::task::yield_now().await;
            }
            self.rested = false;
            let appetite = if self.world.is_behind() { Appetite::Little } else { Appetite::All };
            match self.inbox.take(batch, TURN_MAX, appetite) {
                Took::TheLast => return false,
                Took::Nothing if !is_due => {}
                Took::Some | Took::Nothing => return true,
            }
            self.rested = true;
            match due.map(|at| self.clock.moment(at)) {
                None => self.inbox.pushed().await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.inbox.pushed()).await;
                }
            }
        }
    }

    fn turn(&mut self, batch: &mut Vec<Item<M>>, out: &mut Outbox<M::Output>) -> Turn {
        let inputs = batch.len() as u64;
        for item in batch.drain(..) {
            match item {
                Item::Input(input) => self.machine.handle(self.clock.now(), input, out),
                Item::Look(look) => look(&self.machine),
            }
        }
        let ticks = self.tick(out);
        Turn { inputs, ticks, outputs: self.perform(out) }
    }

    /// Tells the machine if a deadline has passed; how often, which is at most once.
    fn tick(&mut self, out: &mut Outbox<M::Output>) -> u64 {
        let now = self.clock.now();
        if self.machine.next_deadline().is_none_or(|at| at > now.mono) {
            return 0;
        }
        self.machine.handle(now, W::tick(), out);
        1
    }

    fn perform(&mut self, out: &mut Outbox<M::Output>) -> u64 {
        let outputs = out.len() as u64;
        for output in out.drain() {
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
mod tests {
    use std::sync::Mutex;

    use ostraca_ddata::clock::{Instant, Now};

    use super::super::inbox::InboxLimits;
    use super::*;

    /// Says what it hears, and asks for a tick after each batch, or at a given time.
    #[derive(Debug, Default)]
    struct Echo {
        due: Option<Instant>,
    }

    enum Heard {
        Tick,
        Word(u32),
        WakeIn(Duration),
        Panic,
    }

    impl Machine for Echo {
        type Input = Heard;
        type Output = u32;

        fn handle(&mut self, now: Now, input: Heard, out: &mut Outbox<u32>) {
            match input {
                Heard::Word(word) => {
                    out.push(word);
                    self.due.get_or_insert(now.mono);
                }
                Heard::WakeIn(span) => self.due = Some(now.mono + span),
                Heard::Tick => {
                    assert!(self.due.take().is_some_and(|at| at <= now.mono), "not yet");
                    out.push(u32::MAX);
                }
                Heard::Panic => panic!("as ordered"),
            }
        }

        fn next_deadline(&self) -> Option<Instant> {
            self.due
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Seen(Arc<Mutex<Vec<Vec<u32>>>>, Vec<u32>, bool);

    impl World<Echo> for Seen {
        const NAME: &'static str = "echo";

        fn tick() -> Heard {
            Heard::Tick
        }

        fn perform(&mut self, output: u32) {
            self.1.push(output);
        }

        fn flush(&mut self) {
            let batch = std::mem::take(&mut self.1);
            self.0.lock().expect("no test panics under it").push(batch);
        }

        fn is_behind(&self) -> bool {
            self.2
        }
    }

    fn driver(behind: bool) -> (Driver<Echo, Seen>, Inbox<Echo>) {
        let inbox = Inbox::new(InboxLimits::default());
        let world = Seen(Arc::default(), Vec::new(), behind);
        (Driver::new(Echo::default(), world, inbox.clone(), Clock::start()), inbox)
    }

    fn batches(world: &Seen) -> Vec<Vec<u32>> {
        world.0.lock().expect("no test panics under it").clone()
    }

    #[tokio::test]
    async fn what_waits_is_one_batch_and_its_end_is_told_in_the_same_turn() {
        let (driver, inbox) = driver(false);
        let counters = driver.counters();
        (0..3).for_each(|n| inbox.fact(Heard::Word(n)).expect("open"));
        inbox.close();
        let (_, world) = driver.run().await;
        assert_eq!(batches(&world), [vec![0, 1, 2, u32::MAX]]);
        let turns = counters.read();
        assert_eq!((turns.turns, turns.inputs, turns.ticks, turns.outputs), (1, 3, 1, 4));
        assert_eq!(turns.batch_max, 3);
        assert!(turns.turn_max > Duration::ZERO && turns.busy >= turns.turn_max);
    }

    #[tokio::test]
    async fn a_turn_is_bounded_and_nothing_that_was_queued_is_lost_at_the_stop() {
        let (driver, inbox) = driver(false);
        let many = u32::try_from(TURN_MAX).expect("small") * 2 + 1;
        (0..many).for_each(|n| inbox.fact(Heard::Word(n)).expect("open"));
        inbox.close();
        let (_, world) = driver.run().await;
        let sizes: Vec<usize> = batches(&world).iter().map(Vec::len).collect();
        assert_eq!(sizes, [TURN_MAX + 1, TURN_MAX + 1, 2]);
        let words: Vec<u32> = batches(&world).concat();
        let words: Vec<u32> = words.into_iter().filter(|word| *word != u32::MAX).collect();
        assert_eq!(words, (0..many).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_deadline_wakes_a_machine_that_hears_nothing() {
        let (driver, inbox) = driver(false);
        let world = driver.world.clone();
        let running = tokio::spawn(driver.run());
        inbox.fact(Heard::WakeIn(Duration::from_millis(2))).expect("open");
        for _ in 0..1_000 {
            if batches(&world).concat() == [u32::MAX] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(batches(&world).concat(), [u32::MAX]);
        inbox.close();
        running.await.expect("it ended");
    }

    #[tokio::test]
    async fn a_world_that_is_behind_gets_facts_only_until_the_end() {
        let (driver, inbox) = driver(true);
        let world = driver.world.clone();
        inbox.request_now(Heard::Word(2)).expect("open");
        inbox.fact(Heard::Word(1)).expect("open");
        let running = tokio::spawn(driver.run());
        while batches(&world).is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(batches(&world), [vec![1, u32::MAX]]);
        inbox.close();
        running.await.expect("it ended");
        assert_eq!(batches(&world)[1], [2, u32::MAX], "what was queued is handled at the end");
    }

    #[tokio::test]
    async fn a_machine_that_panics_leaves_nobody_waiting() {
        let (driver, inbox) = driver(false);
        let running = tokio::spawn(driver.run());
        inbox.fact(Heard::Panic).expect("open");
        assert!(running.await.expect_err("it panicked").is_panic());
        assert!(inbox.fact(Heard::Tick).is_err());
        assert!(inbox.place().await.is_err());
        assert_eq!(inbox.waiting(), super::super::inbox::Waiting::default());
    }
}
