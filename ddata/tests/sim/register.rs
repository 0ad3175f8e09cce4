//! A leaderless register over majorities, its checker, and planted bugs that runs must find.
//!
//! Source: Attiya, Bar-Noy, Dolev, *Sharing Memory Robustly in Message-Passing Systems* (1995).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::sim::{
    Boot, Effects, Fault, FaultKind, Faults, InvariantViolation, LaneRule, NodeIndex, Observer,
    Orders, Process, RandomStream, Seed, Simulation, SimulationSetup, SimulationView, SyncFailed,
    Totals, on_all_cores,
};

/// The stamp of a write (counter, node, incarnation), unique for every write.
pub(crate) type Stamp = (u64, u16, u32);

/// The step that the protocol omits on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// A store is acknowledged although a crash may still lose it.
    AckBeforeSync,
    /// A read replies without making sure that a majority holds its value.
    NoReadRepair,
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Query { op: u64 },
    Found { op: u64, stamp: Stamp },
    Store { op: u64, stamp: Stamp },
    Stored { op: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Write,
    Read,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Began {
        op: u64,
    },
    /// A replica acknowledged a store.
    Acked,
    Done {
        op: u64,
        stamp: Stamp,
    },
}

#[derive(Clone, Debug)]
struct Operation {
    command: Command,
    storing: bool,
    stamp: Stamp,
    answers: Vec<NodeIndex>, // ≤ number of nodes
}

pub(crate) struct Register {
    bug: Bug,
    me: NodeIndex,
    nodes: usize,
    incarnation: u32,
    stamp: Stamp,
    next_op: u64,
    operations: BTreeMap<u64, Operation>, // ≤ commands of the test
    unsynced: BTreeMap<u64, (NodeIndex, u64)>, // ≤ stores under way
    next_token: u64,
    retry_at: Option<Instant>,
}

const RETRY: Duration = Duration::from_millis(200);

impl Register {
    fn new(boot: &Boot<'_, Vec<Stamp>>, nodes: usize, bug: Bug) -> Self {
        Self {
            bug,
            me: boot.node,
            nodes,
            incarnation: boot.incarnation,
            stamp: boot.disk.iter().max().copied().unwrap_or_default(),
            next_op: u64::from(boot.incarnation) << 32,
            operations: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            next_token: 0,
            retry_at: None,
        }
    }

    fn ask(&self, op: u64, fx: &mut Effects<Self>) {
        let Some(operation) = self.operations.get(&op) else { return };
        for to in (0..self.nodes).map(NodeIndex::new) {
            let stamp = operation.stamp;
            let message = if operation.storing {
                Message::Store { op, stamp }
            } else {
                Message::Query { op }
            };
            fx.send(to, 0, message);
        }
    }

    fn answered(
        &mut self,
        op: u64,
        from: NodeIndex,
        storing: bool,
        stamp: Stamp,
        fx: &mut Effects<Self>,
    ) {
        let majority = self.nodes / 2 + 1;
        let Some(operation) = self.operations.get_mut(&op) else { return };
        if operation.storing != storing || operation.answers.contains(&from) {
            return;
        }
        operation.answers.push(from);
        operation.stamp = operation.stamp.max(stamp);
        if operation.answers.len() < majority {
            return;
        }
        if storing || (operation.command == Command::Read && self.bug == Bug::NoReadRepair) {
            fx.emit(Event::Done { op, stamp: operation.stamp });
            self.operations.remove(&op);
            return;
        }
        operation.storing = true;
        operation.answers.clear();
        if operation.command == Command::Write {
            let node = u16::try_from(self.me.get()).expect("few nodes");
            // Two writes of one incarnation may find the same counter; the operation makes them
            // differ.
            operation.stamp = (operation.stamp.0 + 1 + (op & 0xff), node, self.incarnation);
        }
        self.ask(op, fx);
    }

    fn store(&mut self, from: NodeIndex, op: u64, stamp: Stamp, fx: &mut Effects<Self>) {
        self.stamp = self.stamp.max(stamp);
        fx.write(stamp);
        fx.sync(self.next_token);
        if self.bug == Bug::AckBeforeSync {
            fx.send(from, 0, Message::Stored { op });
            fx.emit(Event::Acked);
        } else {
            self.unsynced.insert(self.next_token, (from, op));
        }
        self.next_token += 1;
    }
}

impl Process for Register {
    type Message = Message;
    type Command = Command;
    type Event = Event;
    type Disk = Vec<Stamp>;

    fn message(&mut self, _: Now, from: NodeIndex, message: Message, fx: &mut Effects<Self>) {
        match message {
            Message::Query { op } => fx.send(from, 0, Message::Found { op, stamp: self.stamp }),
            Message::Found { op, stamp } => self.answered(op, from, false, stamp, fx),
            Message::Store { op, stamp } => self.store(from, op, stamp, fx),
            Message::Stored { op } => self.answered(op, from, true, Stamp::default(), fx),
        }
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        let op = self.next_op;
        self.next_op += 1;
        let stamp = Stamp::default();
        let operation = Operation { command, storing: false, stamp, answers: Vec::new() };
        self.operations.insert(op, operation);
        fx.emit(Event::Began { op });
        self.ask(op, fx);
        self.retry_at.get_or_insert(now.mono + RETRY);
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        fx.mark("register.retried");
        for op in self.operations.keys() {
            self.ask(*op, fx);
        }
        self.retry_at = (!self.operations.is_empty()).then(|| now.mono + RETRY);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    fn synced(
        &mut self,
        _: Now,
        token: u64,
        outcome: Result<(), SyncFailed>,
        fx: &mut Effects<Self>,
    ) {
        match (self.unsynced.remove(&token), outcome) {
            (Some((to, op)), Ok(())) => {
                fx.send(to, 0, Message::Stored { op });
                fx.emit(Event::Acked);
            }
            (Some(_), Err(SyncFailed)) => fx.mark("register.sync_failed"),
            (None, _) => {}
        }
    }
}

/// Checks that no operation ends with an older stamp than one that had ended before it started.
#[derive(Default)]
pub(crate) struct NeverBack {
    done: Stamp,
    floors: BTreeMap<(NodeIndex, u64), Stamp>, // ≤ commands of the test
    pub(crate) finished: u64,
}

impl Observer<Register> for NeverBack {
    fn event(
        &mut self,
        _: &SimulationView<'_, Register>,
        node: NodeIndex,
        event: &Event,
        _: &mut Orders<Register>,
    ) -> Result<(), InvariantViolation> {
        match event {
            Event::Began { op } => {
                self.floors.insert((node, *op), self.done);
            }
            Event::Acked => {}
            Event::Done { op, stamp } => {
                self.finished += 1;
                let floor = self.floors[&(node, *op)];
                if *stamp < floor {
                    let what =
                        format!("node {node} ends at {stamp:?}, but {floor:?} was done before");
                    return Err(InvariantViolation::new(what));
                }
                self.done = self.done.max(*stamp);
            }
        }
        Ok(())
    }
}

/// A run with 60 operations within 30 s and a crash after one acknowledgement in ten.
pub(crate) fn register(setup: SimulationSetup, bug: Bug) -> Simulation<Register, NeverBack> {
    let (nodes, seed) = (setup.nodes, setup.seed.value);
    let mut sim =
        Simulation::new(setup, NeverBack::default(), move |boot| Register::new(&boot, nodes, bug));
    sim.after(
        |event| matches!(event, Event::Acked),
        |node| Fault::crash(node, Duration::from_millis(20)),
        0.1,
    );
    let mut workload = RandomStream::split(seed, "workload", 0);
    for _ in 0..60 {
        let after = Duration::from_millis(workload.below(30_000));
        let command = *workload.pick(&[Command::Write, Command::Read]);
        sim.schedule_command(after, NodeIndex::new(workload.index(nodes)), command);
    }
    sim
}

pub(crate) fn setup(seed: impl Into<Seed>) -> SimulationSetup {
    let seed = seed.into();
    let mut faults = Faults::swarm(seed);
    // A majority register does not survive lost disks.
    faults.kinds.retain(|(kind, _)| *kind != FaultKind::DiskLoss);
    SimulationSetup { faults, lanes: vec![LaneRule::WILD], ..SimulationSetup::new(seed, 3) }
}

fn run(seed: Seed, bug: Bug) -> Totals {
    let mut sim = register(setup(seed), bug);
    sim.run_for(Duration::from_secs(40));
    sim.heal();
    sim.restart_all();
    for node in (0..3).map(NodeIndex::new) {
        sim.command(node, Command::Read);
    }
    let finished = sim.observer().finished;
    sim.run_until(Duration::from_secs(60), |sim| sim.observer().finished >= finished + 3);
    sim.totals()
}

#[test]
fn a_majority_register_never_goes_back() {
    let name = "a_majority_register_never_goes_back";
    let totals = on_all_cores(name, 300, |seed| run(seed, Bug::None));
    totals.must_have_hit(["register.retried", "register.sync_failed"]);
    assert!(totals.runs == 1 || totals.crashes > 0 && totals.doubled > 0, "{totals:?}");
}

#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::AckBeforeSync, Bug::NoReadRepair] {
        let fails = |seed: &u64| {
            let mut sim = register(setup(*seed), bug);
            sim.try_run_for(Duration::from_secs(40)).is_err()
        };
        assert!((0..2_000).any(|seed| fails(&seed)), "{bug:?} is not found by 2,000 seeds");
    }
}
