//! The simulation of a run: its setup, its state, the functions that run it, and the report of a
//! failure.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::clock::{NodeClock, SimTime};
use super::fault::{Draw, Fault, Faults};
use super::network::{LaneRule, Network};
use super::queue::{EventQueue, Owner, QueueEvent, Slab};
use super::schedule::{Schedule, ScheduledFault, Trigger};
use super::seeds::{Seed, Totals};
use super::stream::{RandomStream, nanos};
use super::trace::{Marks, Trace};
use super::world::{Observer, SimInput, SimNode, SimulationView};
use super::{Boot, Effects, NodeIndex, Process};
use crate::clock::Instant;

/// The parameters of a run. `SimulationSetup { lanes: .., ..SimulationSetup::new(seed, 5) }`.
#[derive(Clone, Debug)]
pub struct SimulationSetup {
    /// The seed of all random decisions.
    pub seed: Seed,
    /// Number of nodes, 1 to [`NODES_MAX`](super::NODES_MAX).
    pub nodes: usize,
    /// Number of nodes that start at once, from node 0 on; the others wait for
    /// [`restart`](Simulation::restart). `None`, or more than there are: all.
    pub started: Option<usize>,
    /// The guarantees of each lane, by number; 1 to 256 lanes.
    pub lanes: Vec<LaneRule>,
    /// The faults of the run.
    pub faults: Faults,
    /// A recorded schedule to follow instead of drawing faults; rules then inject its targeted
    /// faults only. Loss, delay and clocks are still drawn from the seed. Faults whose time comes
    /// after a [`heal`](Simulation::heal) are dropped; an empty schedule gives no faults.
    pub schedule: Option<Schedule>,
    /// Wall time at the start, in milliseconds since the Unix epoch, of a node without skew.
    pub epoch_millis: u64,
}

impl SimulationSetup {
    /// A run of `nodes` nodes, all started, with one [wild](LaneRule::WILD) lane and the faults
    /// that the seed draws.
    #[must_use]
    pub fn new(seed: impl Into<Seed>, nodes: usize) -> Self {
        let seed = seed.into();
        Self {
            seed,
            nodes,
            started: None,
            lanes: vec![LaneRule::WILD],
            faults: Faults::swarm(seed),
            schedule: None,
            epoch_millis: 1_700_000_000_000,
        }
    }
}

/// Why a run failed, with everything needed to repeat it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The violation or the text of the panic.
    pub reason: String,
    /// The seed of the run.
    pub seed: Seed,
    /// The simulated time of the failure.
    pub at: SimTime,
    /// The hash of the run at that time.
    pub hash: u64,
    /// The faults that occurred, without those that the harness ordered. Repeat them with
    /// [`SimulationSetup::schedule`], reduce them with [`shrink`](super::shrink).
    pub schedule: Schedule,
    by_hand: Schedule, // faults that the harness ordered
    events: String,    // the last events, as text
}

/// Writes the report: the reason, the seed with time and hash, the replay command, the faults,
/// those that the test ordered (if any), and the last events.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.reason)?;
        writeln!(f, "seed {}, t={}, event hash {:016x}", self.seed.value, self.at, self.hash)?;
        writeln!(f, "replay: {}", self.seed.replay_command())?;
        writeln!(f, "faults:\n{}", self.schedule)?;
        if !self.by_hand.lines.is_empty() {
            writeln!(f, "faults that the test ordered:\n{}", self.by_hand)?;
        }
        write!(f, "last events:\n{}", self.events)
    }
}

impl std::error::Error for Failure {}

/// Maximum number of messages in flight, and of scheduled actions. More means that the protocol
/// sends without end.
const PENDING_MAX: u32 = 4_000_000;

/// Maximum number of recorded faults, for each of the two schedules. Later ones still occur, but
/// are only counted.
const LINES_MAX: usize = 100_000;

/// A message in flight or held by a clogged link.
pub(super) struct InFlight<P: Process> {
    pub(super) from: NodeIndex,
    pub(super) to: NodeIndex,
    pub(super) lane: u8,
    pub(super) breaks: u32,      // of the link, when the message was sent
    pub(super) incarnation: u32, // of the receiver, when the message was sent
    pub(super) message: P::Message,
}

/// A scheduled action that is neither the arrival of a message nor a deadline.
pub(super) enum Action<P: Process> {
    /// Gives an input to a node, if its incarnation is still this one (any, with `None`).
    Tell { incarnation: Option<u32>, input: SimInput<P> },
    /// Ends a sync of a disk: the records written before `end` are safe or, if it fails, only a
    /// random prefix of them.
    Synced { incarnation: u32, token: u64, end: u64, fails: bool },
    /// Tries to bring a broken link up. Without effect if an end is down, the link is cut, or it
    /// has broken more than `breaks` times by then.
    LinkUp { link: super::SimLink, breaks: u32 },
    /// A fault of this source begins.
    Strike { fault: Fault, source: FaultSource },
    /// Ends a lasting fault, unless the run was healed since.
    End { heals: u32, fault: Fault },
    /// Restarts a crashed node, if its incarnation is still this one.
    Restart { node: NodeIndex, incarnation: u32 },
}

/// The origin of a fault: drawn from the seed or timed by the followed schedule (both `Drawn`),
/// caused by a rule, or ordered by the harness or the observer (both `Harness`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultSource {
    Drawn { heals: u32 }, // heals of the run at the draw: a later heal drops the fault
    Rule(Trigger),
    Harness,
}

/// A rule of the harness that injects a fault at a chosen step of the protocol.
pub(super) struct Rule<P: Process> {
    pub(super) matches: Matches<P>,
    pub(super) fault: Box<dyn FnMut(NodeIndex) -> Fault>,
    pub(super) probability: f64, // not used while a schedule is followed
    pub(super) matched_at: SimTime, // of the last match
    pub(super) matches_by_node: BTreeMap<NodeIndex, u64>, // at that instant; ≤ nodes
}

type Matches<P> = Box<dyn FnMut(&<P as Process>::Event) -> bool>;
type Factory<P> = Box<dyn FnMut(Boot<'_, <P as Process>::Disk>) -> P>;

/// A run of processes on virtual time.
///
/// A violation or a panic of a process ends the run for good: [`run_for`](Self::run_for) and
/// [`run_until`](Self::run_until) then panic, and their `try_` forms return an error, at each later
/// call too, also if the violation was found while none of them ran (by [`new`](Self::new), a fault
/// or a restart that the harness orders between two of them). A panic outside of them is not
/// caught.
pub struct Simulation<P: Process, O: Observer<P> = ()> {
    pub(super) seed: Seed,
    pub(super) now: SimTime,
    pub(super) faults: Faults,
    pub(super) nodes: Vec<SimNode<P>>,
    pub(super) network: Network,
    pub(super) queue: EventQueue,
    pub(super) messages: Slab<InFlight<P>>,
    pub(super) actions: Slab<Action<P>>,
    pub(super) in_flight: Vec<u64>, // by lane
    pub(super) effects: Effects<P>,
    pub(super) factory: Factory<P>,
    pub(super) observer: O,
    pub(super) rules: Vec<Rule<P>>, // registered by the harness
    /// Targeted faults of the followed schedule that have not occurred; `None` if faults are drawn.
    pub(super) planned: Option<Vec<ScheduledFault>>,
    pub(super) draw: Draw,
    pub(super) family: u64, // of random decisions about breaking links and about disks
    pub(super) rules_chance: RandomStream,
    pub(super) heals: u32,         // number of heals so far
    pub(super) healed: bool,       // never reset: no further fault is drawn
    pub(super) recorded: Schedule, // ≤ LINES_MAX
    pub(super) by_hand: Schedule,  // ≤ LINES_MAX
    pub(super) trace: Trace,
    pub(super) totals: Totals,
    pub(super) violation: Option<String>, // the first one, or the text of a panic; ends the run
}

impl<P: Process, O: Observer<P>> Simulation<P, O> {
    /// Creates a run and starts its nodes: their first batches run before this function returns.
    /// `factory` builds every process, at the start and after every crash.
    ///
    /// # Panics
    /// If the setup has no node, too many nodes, no lane, more than 256 lanes or no link quality,
    /// or if its schedule names a node that it does not have. A panic of a process at its start is
    /// not caught; a violation is kept for the first function that runs the simulation.
    pub fn new(
        setup: SimulationSetup,
        observer: O,
        factory: impl FnMut(Boot<'_, P::Disk>) -> P + 'static,
    ) -> Self {
        let SimulationSetup { seed, nodes, started, lanes, faults, schedule, epoch_millis } = setup;
        assert!(nodes > 0, "a run needs a node");
        assert!(lanes.len() <= 256, "a run has at most 256 lanes");
        let lane_count = lanes.len();
        let network = Network::new(nodes, lanes, &faults.links, faults.grain, seed.value);
        let mut sim = Self {
            seed,
            now: SimTime::default(),
            nodes: places(seed.value, nodes, epoch_millis, &faults),
            network,
            queue: EventQueue::default(),
            messages: Slab::new(PENDING_MAX),
            actions: Slab::new(PENDING_MAX),
            in_flight: vec![0; lane_count],
            effects: Effects {
                node: NodeIndex::new(0),
                pending: Vec::new(),
                marks: Marks::default(),
            },
            factory: Box::new(factory),
            observer,
            rules: Vec::new(),
            planned: None,
            draw: Draw::new(seed.value),
            family: RandomStream::split(seed.value, "decisions", 0).bits(),
            rules_chance: RandomStream::split(seed.value, "rules", 0),
            faults,
            heals: 0,
            healed: false,
            recorded: Schedule::default(),
            by_hand: Schedule::default(),
            trace: Trace::new(seed.trace),
            totals: Totals { runs: 1, ..Totals::default() },
            violation: None,
        };
        sim.plan(schedule);
        for node in (0..started.unwrap_or(nodes).min(nodes)).map(NodeIndex::new) {
            sim.start(node);
        }
        sim
    }

    /// Schedules the first draw of a fault (none if the setup has no kinds of fault), or the faults
    /// of the schedule to follow, which a later heal drops like drawn ones. Its targeted faults are
    /// kept in `planned` until a rule matches. Panics if a fault of the schedule names an unknown
    /// node; the node of a trigger is not checked, it then never matches.
    fn plan(&mut self, schedule: Option<Schedule>) {
        let Some(schedule) = schedule else {
            if !self.faults.kinds.is_empty() {
                let first = self.draw.wait(&self.faults);
                self.queue.push(self.now + first, Owner::Run, QueueEvent::DrawFault);
            }
            return;
        };
        for line in &schedule.lines {
            let known = line.fault.nodes().iter().all(|node| node.get() < self.nodes.len());
            assert!(known, "the run has {} nodes, too few for `{line}`", self.nodes.len());
        }
        let (targeted, timed) = schedule.lines.into_iter().partition(|l| l.trigger.is_some());
        self.planned = Some(targeted);
        let timed: Vec<ScheduledFault> = timed;
        for line in timed {
            let source = FaultSource::Drawn { heals: 0 };
            self.schedule_action(line.at, Owner::Run, Action::Strike { fault: line.fault, source });
        }
    }

    /// Runs for `span` of simulated time, events at its end included. The simulated time is then
    /// its end.
    ///
    /// # Panics
    /// With a report, on a violation or a panic of a process.
    #[track_caller]
    pub fn run_for(&mut self, span: Duration) {
        if let Err(failure) = self.try_run_for(span) {
            panic!("{failure}");
        }
    }

    /// Runs until `reached` returns true; it is called before the first and after every step (one
    /// queue entry, often a whole batch of a node). The simulated time is then that of the last
    /// step.
    ///
    /// # Panics
    /// With a report, on a violation, on a panic of a process or of `reached`, or if `reached` is
    /// still false when `within` has passed.
    #[track_caller]
    pub fn run_until(&mut self, within: Duration, reached: impl FnMut(&Self) -> bool) {
        if let Err(failure) = self.try_run_until(within, reached) {
            panic!("{failure}");
        }
    }

    /// As [`run_for`](Self::run_for).
    ///
    /// # Errors
    /// A violation, also one that was found before this call, or a panic of a process. The
    /// simulated time stays at the failure. The run cannot be continued after that: a later call
    /// runs nothing and returns the same reason.
    pub fn try_run_for(&mut self, span: Duration) -> Result<(), Box<Failure>> {
        let end = self.now + span;
        self.guarded(|sim| while sim.violation.is_none() && sim.step(end) {})?;
        self.pass_to(end);
        Ok(())
    }

    /// As [`run_until`](Self::run_until). A violation by the last event is an error even if
    /// `reached` is true then.
    ///
    /// # Errors
    /// A violation, also one that was found before this call, a panic of a process, or `reached`
    /// was still false when `within` had passed. Only in the last case can the run be continued.
    pub fn try_run_until(
        &mut self,
        within: Duration,
        mut reached: impl FnMut(&Self) -> bool,
    ) -> Result<(), Box<Failure>> {
        let end = self.now + within;
        let there = self.guarded(|sim| {
            loop {
                if reached(sim) {
                    break true;
                }
                if sim.violation.is_some() || !sim.step(end) {
                    break false;
                }
            }
        })?;
        if there {
            return Ok(());
        }
        self.pass_to(end);
        Err(Box::new(self.failure(format!("not reached within {within:?} of simulated time"))))
    }

    /// Whether a violation or a panic of a process has ended the run.
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.violation.is_some()
    }

    /// Moves simulated time on to `end`, which must not be earlier than now, and adds the
    /// difference to the totals.
    fn pass_to(&mut self, end: SimTime) {
        self.totals.simulated += end - self.now;
        self.now = end;
    }

    /// Runs `work` and turns a violation or a panic into a failure. A panic becomes the run's
    /// violation, so the run cannot be continued. If the run has failed already, `work` is not run.
    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, Box<Failure>> {
        if let Some(reason) = self.violation.clone() {
            return Err(Box::new(self.failure(reason))); // found between runs, or reported before
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        if let Err(panic) = &outcome {
            self.violation = Some(super::seeds::panic_text(panic.as_ref()));
        }
        match (outcome, &self.violation) {
            (Ok(value), None) => Ok(value),
            (_, violation) => {
                let reason = violation.clone().unwrap_or_default();
                Err(Box::new(self.failure(reason)))
            }
        }
    }

    /// Returns a report on the present state of the run, as a failure for this reason. The run
    /// itself does not fail.
    #[must_use]
    pub fn failure(&self, reason: String) -> Failure {
        Failure {
            reason,
            seed: self.seed,
            at: self.now,
            hash: self.hash(),
            schedule: self.recorded.clone(),
            by_hand: self.by_hand.clone(),
            events: self.trace.to_string(),
        }
    }

    /// Returns the simulated time.
    #[must_use]
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// A hash over every event so far: order, time, node, kind and content. Of an event that a
    /// process emitted, the content is left out. The same seed and the same harness give the same
    /// hash, in every build.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Returns the faults that occurred so far, except for those that the harness ordered; at most
    /// the first 100,000.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.recorded
    }

    /// Returns the counters of the run so far, for the figures of a suite.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals { marks: self.effects.marks.clone(), ..self.totals.clone() }
    }

    /// Returns the rare branches reached so far.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.effects.marks
    }

    /// Returns the observer of the run.
    #[must_use]
    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// Returns the observer mutably, so that a test can change its expectations.
    pub fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// Whether the time of every sync has come. Syncs of a disk end in the order in which they
    /// were ordered, so a slow disk may be behind long after the run was healed. Syncs of crashed
    /// incarnations count until their time has passed.
    #[must_use]
    pub fn disks_idle(&self) -> bool {
        self.nodes.iter().all(|node| node.synced_at <= self.now)
    }

    /// Returns a read-only view of the run.
    #[must_use]
    pub fn view(&self) -> SimulationView<'_, P> {
        SimulationView { now: self.now, touched: None, nodes: &self.nodes, network: &self.network }
    }

    /// Returns the process of a node; `None` while it is down.
    #[must_use]
    pub fn process(&self, node: NodeIndex) -> Option<&P> {
        self.nodes[node.get()].process.as_ref()
    }

    /// Iterates over the processes that are up.
    pub fn processes(&self) -> impl Iterator<Item = (NodeIndex, &P)> {
        super::world::processes(&self.nodes)
    }

    /// Returns the number of messages in flight or held by clogged links. Messages that wait in
    /// paused nodes are not counted.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.messages.len()
    }

    /// Returns the number of messages in flight or held by clogged links on one lane, so that a
    /// harness can ignore heartbeats. Panics if there is no such lane.
    #[must_use]
    pub fn in_flight_on(&self, lane: usize) -> u64 {
        self.in_flight[lane]
    }

    /// Whether only deadlines are left: no message, command, sync or scheduled fault is pending,
    /// and no inbox has an input. Messages held by clogged links, ends of lasting faults, restarts,
    /// notices of links and attempts to reconnect count as pending; the next draw of a fault,
    /// targeted faults of a schedule and the end of a pause do not.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.messages.len() == 0
            && self.actions.len() == 0
            && self.nodes.iter().all(|node| node.inbox.is_empty())
    }

    /// Schedules an action; at the same time, actions of the run precede those of nodes. Panics if
    /// 4,000,000 actions are pending.
    pub(super) fn schedule_action(&mut self, at: SimTime, owner: Owner, action: Action<P>) {
        let slot = self.actions.put(action);
        self.queue.push(at, owner, QueueEvent::Action(slot));
    }

    /// Counts a fault and records it with the present time: in the schedule of the harness if it or
    /// the observer ordered the fault, otherwise in that of the run. A full schedule
    /// ([`LINES_MAX`]) records nothing, but the fault is counted.
    pub(super) fn note(&mut self, source: FaultSource, fault: &Fault) {
        self.totals.faults += 1;
        let (list, trigger) = match source {
            FaultSource::Drawn { .. } => (&mut self.recorded, None),
            FaultSource::Rule(trigger) => (&mut self.recorded, Some(trigger)),
            FaultSource::Harness => (&mut self.by_hand, None),
        };
        if list.lines.len() < LINES_MAX {
            list.lines.push(ScheduledFault { at: self.now, trigger, fault: fault.clone() });
        }
    }
}

/// Creates the nodes, none of them up, with clocks drawn within the bounds of the faults. A wall
/// clock is off by the difference of two draws, so small skews are more likely; the rate of a
/// monotonic clock is off by one draw, at most 90 %.
fn places<P: Process>(seed: u64, nodes: usize, epoch: u64, faults: &Faults) -> Vec<SimNode<P>> {
    let mut chance = RandomStream::split(seed, "clocks", 0);
    let skew_max = nanos(faults.wall_skew) / 1_000_000;
    let place = |node| {
        let epoch = i64::try_from(epoch).unwrap_or(i64::MAX);
        let wall = epoch
            .saturating_add_unsigned(chance.between(0, skew_max))
            .saturating_sub_unsigned(chance.between(0, skew_max));
        let mut clock = NodeClock::new(SimTime::default(), mono_start(&mut chance), wall);
        let rate = i64::from(faults.rate_ppm.min(900_000));
        let above = chance.between(0, 2 * rate.unsigned_abs());
        let ppm = i64::try_from(above).unwrap_or(rate) - rate;
        clock.drift(SimTime::default(), i32::try_from(ppm).unwrap_or(0));
        SimNode::new(clock, RandomStream::split(seed, "node", node as u64))
    };
    (0..nodes).map(place).collect()
}

/// Draws the reading at which a monotonic clock starts: anywhere within about 13 days.
pub(super) fn mono_start(chance: &mut RandomStream) -> Instant {
    Instant::from_nanos(chance.below(1 << 50))
}
