//! A process that executes orders and records all its inputs.

use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::sim::{
    Boot, Direction, Effects, Faults, LaneRule, NodeIndex, Process, Simulation, SimulationSetup,
    SyncFailed,
};

/// A lane without any guarantee.
pub(crate) const WILD: usize = 0;

/// A lane like a TCP connection.
pub(crate) const STREAM: usize = 1;

#[derive(Clone, Debug)]
pub(crate) enum Order {
    Send {
        to: usize,
        lane: usize,
        number: u64,
    },
    Write(u64),
    Sync(u64),
    TickAfter(Duration),
    Emit(u64),
    /// Emits the first number and sends the second to node 1.
    EmitAndSend(u64, u64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Started {
        incarnation: u32,
        disk: Vec<u64>,
    },
    Message {
        from: usize,
        number: u64,
    },
    Synced(u64, Result<(), SyncFailed>),
    Broken(usize, Direction),
    Up(usize, Direction),
    Tick,
    /// The tick right after a batch, with the number of messages in the batch.
    BatchEnd(usize),
}

pub(crate) struct Probe {
    pub(crate) seen: Vec<(Now, Seen)>,
    deadline: Option<Instant>,
    batch: usize,
    batch_end: Option<Instant>,
    pub(crate) batches: bool,
}

impl Probe {
    pub(crate) fn new(boot: &Boot<'_, Vec<u64>>, batches: bool) -> Self {
        let started = Seen::Started { incarnation: boot.incarnation, disk: boot.disk.clone() };
        let seen = vec![(boot.now, started)];
        Self { seen, deadline: None, batch: 0, batch_end: None, batches }
    }

    pub(crate) fn saw(&self) -> Vec<Seen> {
        self.seen.iter().map(|(_, seen)| seen.clone()).collect()
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        let number = |(_, seen): &(Now, Seen)| match seen {
            Seen::Message { number, .. } => Some(*number),
            _ => None,
        };
        self.seen.iter().filter_map(number).collect()
    }
}

impl Process for Probe {
    type Message = u64;
    type Command = Order;
    type Event = u64;
    type Disk = Vec<u64>;

    fn message(&mut self, now: Now, from: NodeIndex, number: u64, _: &mut Effects<Self>) {
        self.seen.push((now, Seen::Message { from: from.get(), number }));
        if self.batches {
            self.batch += 1;
            self.batch_end = Some(now.mono);
        }
    }

    fn command(&mut self, now: Now, order: Order, fx: &mut Effects<Self>) {
        match order {
            Order::Send { to, lane, number } => fx.send(NodeIndex::new(to), lane, number),
            Order::Write(number) => fx.write(number),
            Order::Sync(token) => fx.sync(token),
            Order::TickAfter(span) => self.deadline = Some(now.mono + span),
            Order::Emit(number) => fx.emit(number),
            Order::EmitAndSend(first, second) => {
                fx.emit(first);
                fx.send(NodeIndex::new(1), WILD, second);
            }
        }
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        fx.mark("ticked");
        if self.batch_end.take().is_some() {
            self.seen.push((now, Seen::BatchEnd(std::mem::take(&mut self.batch))));
        }
        if self.deadline.is_some_and(|at| at <= now.mono) {
            self.deadline = None;
            self.seen.push((now, Seen::Tick));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.batch_end.or(self.deadline)
    }

    fn synced(
        &mut self,
        now: Now,
        token: u64,
        outcome: Result<(), SyncFailed>,
        _: &mut Effects<Self>,
    ) {
        self.seen.push((now, Seen::Synced(token, outcome)));
    }

    fn link_broken(
        &mut self,
        now: Now,
        peer: NodeIndex,
        direction: Direction,
        _: &mut Effects<Self>,
    ) {
        self.seen.push((now, Seen::Broken(peer.get(), direction)));
    }

    fn link_up(&mut self, now: Now, peer: NodeIndex, direction: Direction, _: &mut Effects<Self>) {
        self.seen.push((now, Seen::Up(peer.get(), direction)));
    }
}

/// A run of probes with these faults.
pub(crate) fn probes(seed: u64, nodes: usize, faults: Faults) -> Simulation<Probe> {
    let lanes = vec![LaneRule::WILD, LaneRule::STREAM];
    let setup = SimulationSetup { faults, lanes, ..SimulationSetup::new(seed, nodes) };
    Simulation::new(setup, (), |boot| Probe::new(&boot, false))
}

pub(crate) fn node(index: usize) -> NodeIndex {
    NodeIndex::new(index)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Lets every node send a number to every other on the wild lane, and returns the directed links on
/// which it arrived within 50 ms.
pub(crate) fn working_links(sim: &mut Simulation<Probe>) -> Vec<(usize, usize)> {
    let nodes = sim.view().nodes();
    let stamp = 1_000_000 + sim.now().as_nanos();
    for from in 0..nodes {
        for to in (0..nodes).filter(|to| *to != from) {
            sim.command(node(from), Order::Send { to, lane: WILD, number: stamp });
        }
    }
    sim.run_for(millis(50));
    let mut links = Vec::new();
    for to in 0..nodes {
        let Some(probe) = sim.process(node(to)) else { continue };
        for (_, seen) in &probe.seen {
            match seen {
                Seen::Message { from, number } if *number == stamp => links.push((*from, to)),
                _ => {}
            }
        }
    }
    links.sort_unstable();
    links
}
