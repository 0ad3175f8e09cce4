//! Composition and random faults of a chaos run, drawn from the seed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ostraca::cluster::config::{ClusterConfig, Downing, DowningStrategyName};
use ostraca::cluster::downing::StaticQuorum;
use ostraca::cluster::membership::port::MembershipCommand;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::sim::{
    DiskFate, Fault, Faults, LaneRule, LinkQuality, LinkSet, NodeIndex, RandomStream, Seed,
    Simulation, SimulationSetup,
};

use super::super::whole::{Command, Watch, World, addresses};
use super::{SECOND, Sim};

const MS: Duration = Duration::from_millis(1);

/// Kinds of faults and commands with their weights.
const STRIKES: [(Strike, u64); 14] = [
    (Strike::Start, 4),
    (Strike::Leave, 3),
    (Strike::Down, 1),
    (Strike::Crash, 4),
    (Strike::Pause, 3),
    (Strike::Split, 3),
    (Strike::Partial, 2),
    (Strike::OneWay, 2),
    (Strike::Flap, 2),
    (Strike::Break, 2),
    (Strike::Slow, 1),
    (Strike::Drift, 1),
    (Strike::Jump, 1),
    (Strike::Loss, 2),
];

#[derive(Clone, Copy, Debug)]
enum Strike {
    Start,
    Leave,
    Down,
    Crash,
    Pause,
    Split,
    Partial,
    OneWay,
    Flap,
    Break,
    Slow,
    Drift,
    Jump,
    Loss,
}

/// The nodes of a run, and its random choices.
pub(super) struct Weather {
    pub(super) draw: RandomStream,
    pub(super) places: usize,
    /// The first nodes, which are seeds.
    pub(super) seeds: usize,
    /// Nodes that were told to leave; only a random start restarts them.
    pub(super) left: BTreeSet<usize>,
    loss: Rc<Cell<f64>>,
    most_loss: f64,
    strikes: Vec<(Strike, u64)>,
}

/// Creates a run with this many places.
pub(super) fn world(
    seed: Seed,
    places: usize,
    strategies: &[DowningStrategyName],
) -> (Sim, Weather) {
    let mut draw = RandomStream::split(seed.value, "membership weather", 0);
    let seeds = (*draw.pick(&[1_usize, 3, 3, 5])).min(places);
    let strategy = *draw.pick(strategies);
    let static_quorum = StaticQuorum { quorum_size: places / 2 + 1, role: None };
    let downing = Downing { strategy, static_quorum, ..Downing::default() };
    let mut world = World::with(move |_| ClusterConfig {
        seeds: addresses(0..seeds),
        downing: downing.clone(),
        ..ClusterConfig::default()
    });
    let remembers = *draw.pick(&[0.0, 0.5, 1.0, 1.0]);
    let keeps: Vec<bool> = (0..places).map(|p| p < seeds || draw.chance(remembers)).collect();
    world.keeps = Rc::new(move |place| keeps[place]);
    world.proof = draw.chance(0.5);
    world.drain = Some(draw.span(MS, 2 * SECOND));
    let loss = world.loss.clone();
    let link = LinkQuality {
        spread: *draw.pick(&[MS / 10, 5 * MS, 50 * MS]),
        tail: *draw.pick(&[0.0, 0.001]),
        tail_scale: 50 * MS,
        ..LinkQuality::clean()
    };
    let faults = Faults {
        links: vec![link],
        wall_skew: *draw.pick(&[Duration::ZERO, SECOND, 3_600 * SECOND]),
        rate_ppm: *draw.pick(&[0, 10_000]),
        crash_is_told: *draw.pick(&[0.0, 0.5, 1.0]),
        grain: *draw.pick(&[Duration::ZERO, MS]),
        ..Faults::none()
    };
    let started = Some(*draw.pick(&[places, places, seeds, places.div_ceil(2)]));
    let lanes = vec![LaneRule::STREAM];
    let setup = SimulationSetup { started, lanes, faults, ..SimulationSetup::new(seed, places) };
    let watch = Watch::founding_once();
    // A subset of the kinds per run finds more failures than all of them in every run.
    let kept = *draw.pick(&[0.3, 0.6, 1.0]);
    let strikes = STRIKES.into_iter().filter(|_| draw.chance(kept));
    let strikes: Vec<_> = strikes.chain([(Strike::Start, 2)]).collect();
    let most_loss = *draw.pick(&[0.05, 0.2]);
    let sim = Simulation::new(setup, watch, world.factory());
    (sim, Weather { draw, places, seeds, left: BTreeSet::new(), loss, most_loss, strikes })
}

/// Places with a running node.
pub(super) fn living(sim: &Sim) -> Vec<usize> {
    let living = sim.processes().filter(|(_, node)| node.over.is_none());
    living.map(|(index, _)| index.get()).collect()
}

/// Starts another incarnation at a place without a running node.
fn start(sim: &mut Sim, place: usize) {
    let node = NodeIndex::new(place);
    if sim.process(node).is_some() {
        sim.crash(node);
    }
    sim.restart(node);
}

impl Weather {
    /// Ends all faults.
    pub(super) fn heal(&self, sim: &mut Sim) {
        self.loss.set(0.0);
        sim.heal();
    }

    /// As a supervisor: restarts stopped nodes, except those that were told to leave.
    pub(super) fn supervise(&self, sim: &mut Sim) {
        let all = (0..self.places).filter(|place| !self.left.contains(place));
        for place in all.collect::<Vec<_>>() {
            let process = sim.process(NodeIndex::new(place));
            if process.is_none_or(|node| node.over.is_some()) {
                start(sim, place);
            }
        }
    }

    fn some(&mut self, sim: &Sim) -> Option<usize> {
        let living = living(sim);
        (!living.is_empty()).then(|| *self.draw.pick(&living))
    }

    fn place(&mut self) -> NodeIndex {
        NodeIndex::new(self.draw.index(self.places))
    }

    /// Assigns every node to one of several groups; the first two groups have at least one node.
    fn groups(&mut self, count: usize) -> Vec<Vec<NodeIndex>> {
        let mut all: Vec<_> = (0..self.places).map(NodeIndex::new).collect();
        self.draw.shuffle(&mut all);
        let mut groups = vec![Vec::new(); count];
        for (nth, node) in all.into_iter().enumerate() {
            let group = if nth < 2 { nth } else { self.draw.index(count) };
            groups[group].push(node);
        }
        groups
    }

    fn span(&mut self) -> Option<Duration> {
        let long = self.draw.chance(0.5);
        Some(self.draw.span(100 * MS, if long { 40 * SECOND } else { 4 * SECOND }))
    }

    /// Injects one fault, or issues one command.
    pub(super) fn strike(&mut self, sim: &mut Sim) {
        let total = self.strikes.iter().map(|(_, weight)| weight).sum();
        let mut ticket = self.draw.below(total);
        let drawn = self.strikes.iter().find(|(_, weight)| {
            let is_it = ticket < *weight;
            ticket = ticket.saturating_sub(*weight);
            is_it
        });
        let Some((strike, _)) = drawn.copied() else { return };
        match strike {
            Strike::Start => self.start(sim),
            Strike::Leave => self.ask(sim, MembershipCommand::Leave),
            Strike::Down => self.ask(sim, MembershipCommand::Down),
            Strike::Crash => self.crash(sim),
            Strike::Flap => self.flap(sim),
            Strike::Loss => self.loss.set(self.most_loss),
            Strike::Pause | Strike::Split | Strike::Partial | Strike::OneWay => {
                let fault = self.cut(strike);
                sim.fault(&fault);
            }
            Strike::Break | Strike::Slow | Strike::Drift | Strike::Jump => {
                let fault = self.nuisance(strike);
                sim.fault(&fault);
            }
        }
    }

    fn start(&mut self, sim: &mut Sim) {
        let running = living(sim);
        let idle: Vec<_> = (0..self.places).filter(|place| !running.contains(place)).collect();
        if !idle.is_empty() {
            let place = *self.draw.pick(&idle);
            self.left.remove(&place);
            start(sim, place);
        }
    }

    fn ask(&mut self, sim: &mut Sim, wish: fn(ReplicaId) -> MembershipCommand) {
        let (Some(asked), Some(who)) = (self.some(sim), self.some(sim)) else { return };
        if living(sim).len() <= self.places.div_ceil(2).max(2) {
            return;
        }
        let Some(id) = sim.process(NodeIndex::new(who)).map(|node| node.me().incarnation) else {
            return;
        };
        let wish = wish(id);
        if matches!(wish, MembershipCommand::Leave(_)) {
            self.left.insert(who);
        }
        sim.command(NodeIndex::new(asked), Command::User(wish));
    }

    fn crash(&mut self, sim: &mut Sim) {
        let Some(who) = self.some(sim) else { return };
        if living(sim).len() > self.places / 2 + 1 {
            let down = self.draw.chance(0.7).then(|| self.draw.span(MS, 15 * SECOND));
            let node = NodeIndex::new(who);
            sim.fault(&Fault::Crash { node, disk: DiskFate::Kept, down });
        }
    }

    /// Repeats the same split several times.
    fn flap(&mut self, sim: &mut Sim) {
        let groups = self.groups(2);
        let (open, shut) = (self.draw.span(MS, 3 * SECOND), self.draw.span(MS, 3 * SECOND));
        for nth in 0..self.draw.between(2, 8) as u32 {
            let fault = Fault::Partition { groups: groups.clone(), span: Some(shut) };
            sim.schedule_fault((open + shut) * nth, fault);
        }
    }

    fn cut(&mut self, strike: Strike) -> Fault {
        let span = self.span();
        match strike {
            Strike::Pause => {
                let (node, span) = (self.place(), self.draw.span(MS, 12 * SECOND));
                Fault::Pause { node, span }
            }
            Strike::Split => {
                let count = *self.draw.pick(&[2, 2, 3]);
                Fault::Partition { groups: self.groups(count), span }
            }
            // Nodes of the third group keep their links with all nodes.
            Strike::Partial => {
                let mut groups = self.groups(3);
                groups.truncate(2);
                Fault::Partition { groups, span }
            }
            _ => {
                let mut groups = self.groups(2);
                let (from, to) = (groups.remove(0), groups.remove(0));
                Fault::Cut { links: vec![LinkSet { from, to }], span }
            }
        }
    }

    fn nuisance(&mut self, strike: Strike) -> Fault {
        let node = self.place();
        match strike {
            Strike::Break => {
                let mut groups = self.groups(2);
                let (from, to) = (groups.remove(0), groups.remove(0));
                Fault::Break { links: vec![LinkSet { from, to }] }
            }
            Strike::Slow => {
                let per_input = self.draw.span(MS / 100, MS);
                Fault::Slow { node, per_input, span: self.span() }
            }
            Strike::Drift => {
                let ppm = i32::try_from(self.draw.below(20_001)).unwrap_or(0) - 10_000;
                Fault::Drift { node, ppm }
            }
            _ => {
                let millis = i64::try_from(self.draw.below(7_200_001)).unwrap_or(0) - 3_600_000;
                Fault::Jump { node, millis }
            }
        }
    }
}
