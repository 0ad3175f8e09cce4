//! Schedules by chance: any order, loss, doubling, clocks that jump, crashes, restarts, several
//! proposers and coordinators at once. Each seed turns some faults off and others up (swarm
//! testing: Groce et al., 2012).

use std::collections::BTreeSet;

use ostraca_ddata::bug::{Bug, Canary};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::Machine;
use ostraca_ddata::replicator::epoch::{Change, Epoch, EpochInput};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::check::Violation;
use crate::world::{Body, Packet, World};

/// One seed's weather.
#[derive(Debug)]
struct Swarm {
    members: u64,
    joiners: u64,
    proposals: u32,
    coordinators: u32,
    steps: u32,
    loss: u32,   // of 100 deliveries
    double: u32, // of 100 deliveries
    tick: u32,   // of 1,000 steps
    crash: u32,  // of 10,000 steps
    restart: u32,
    lease: u32,    // of 100 proposals
    in_order: u32, // of 100 deliveries: the oldest
}

impl Swarm {
    fn new(rng: &mut SmallRng) -> Self {
        let mut sometimes = |of: std::ops::Range<u32>| {
            if rng.random_bool(0.5) { rng.random_range(of) } else { 0 }
        };
        let (loss, double, crash) = (sometimes(1..40), sometimes(1..30), sometimes(1..40));
        let (restart, lease, in_order) = (sometimes(1..40), sometimes(1..60), sometimes(1..100));
        Self {
            members: rng.random_range(3..=5),
            joiners: rng.random_range(1..=2),
            proposals: rng.random_range(1..=4),
            coordinators: rng.random_range(0..=3),
            steps: rng.random_range(150..700),
            loss,
            double,
            tick: rng.random_range(5..150),
            crash,
            restart,
            lease,
            in_order,
        }
    }
}

pub(crate) struct Run {
    world: World,
    rng: SmallRng,
    swarm: Swarm,
    tokens: u32,
    crashes: u32,
}

impl Run {
    pub(crate) fn new(seed: u64, canary: Canary) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let swarm = Swarm::new(&mut rng);
        let world = World::new(swarm.members, swarm.joiners, seed, canary);
        Self { world, rng, swarm, tokens: 0, crashes: 0 }
    }

    /// Chaos; stops at the first violation.
    pub(crate) fn chaos(&mut self) -> Option<Violation> {
        for _ in 0..self.swarm.steps {
            self.step();
            self.world.check.reads(&self.world.nodes);
            if self.world.check.found.is_some() {
                break;
            }
        }
        self.world.check.found
    }

    fn chance(&mut self, part: u32, of: u32) -> bool {
        self.rng.random_range(0..of) < part
    }

    fn somebody(&mut self) -> u64 {
        self.rng.random_range(1..=self.swarm.members + self.swarm.joiners)
    }

    fn step(&mut self) {
        let id = self.somebody();
        if self.chance(self.swarm.tick, 1_000) {
            self.world.tick(id);
        } else if self.chance(self.swarm.crash, 10_000) && self.crashes < 2 {
            self.crashes += 1;
            self.world.crash(id);
        } else if self.chance(self.swarm.restart, 10_000) && self.world.nodes[&id].alive {
            self.world.restart(id);
        } else if self.swarm.proposals > 0 && self.chance(1, 30) {
            self.propose(id);
        } else if self.chance(1, 12) {
            self.operation(id);
        } else {
            self.deliver();
        }
    }

    fn propose(&mut self, id: u64) {
        let node = &self.world.nodes[&id];
        let Some(epoch) = node.epochs.installed().filter(|_| node.alive).cloned() else { return };
        self.swarm.proposals -= 1;
        let change = self.change(&epoch);
        if self.chance(self.swarm.lease, 100) {
            let victim = self.somebody();
            let holder = self.somebody();
            let holder = self.world.nodes.get_mut(&holder).unwrap();
            let run = std::time::Duration::from_secs(1);
            holder.leases.extend(change.removed().map(|id| (id.get(), run)).chain([(victim, run)]));
        }
        self.world.propose(id, change);
    }

    fn change(&mut self, epoch: &Epoch) -> Change {
        let mut change = Change::default();
        let (first, last) = (self.swarm.members + 1, self.swarm.members + self.swarm.joiners);
        if self.chance(2, 3) {
            change.join.push(ReplicaId::new(self.rng.random_range(first..=last)));
        }
        for _ in 0..self.rng.random_range(0..=2) {
            let gone = epoch.members()[self.rng.random_range(0..epoch.members().len())];
            let alive = self.world.nodes[&gone.get()].alive;
            if alive || self.chance(1, 4) { &mut change.leave } else { &mut change.lost }
                .push(gone);
        }
        change.join.retain(|id| !epoch.left().contains(id));
        change
    }

    fn operation(&mut self, id: u64) {
        match self.rng.random_range(0..8) {
            0 | 1 if self.tokens < 8 => {
                self.tokens += 1;
                self.world.write(id, self.tokens);
            }
            2 => self.world.read(id),
            3 if self.swarm.coordinators > 0 => {
                self.swarm.coordinators -= 1;
                self.world.fence(id);
            }
            4 => {
                let acting = |node: &&u64| self.world.nodes[node].parent.coordinator.is_some();
                let coordinator = self.world.nodes.keys().find(acting).copied();
                self.world.decide(coordinator.unwrap_or(id));
            }
            5 => {
                let to = self.somebody();
                self.world.push(id, to);
            }
            6 | 7 if self.world.nodes[&id].alive => self.world.ask_again(id),
            _ => {}
        }
    }

    fn deliver(&mut self) {
        let waiting = self.world.net.len();
        if waiting == 0 {
            return;
        }
        let in_order = self.chance(self.swarm.in_order, 100);
        let at = if in_order { 0 } else { self.rng.random_range(0..waiting) };
        let packet =
            if in_order { self.world.net.remove(at) } else { self.world.net.swap_remove(at) };
        if self.chance(self.swarm.double, 100) {
            self.world.net.push(packet.clone());
        }
        if !self.chance(self.swarm.loss, 100) {
            self.world.deliver(packet);
        }
    }

    // ── after the faults ────────────────────────────────────────────────────────────────────

    /// No faults any more: everybody alive in the newest configuration must serve again.
    ///
    /// # Panics
    /// If it does not, though every quorum that is needed lives.
    pub(crate) fn heal(&mut self, seed: u64) {
        if !self.can_heal() {
            return;
        }
        let latest = self.world.nodes.values().map(|node| node.now).max().unwrap();
        self.world.nodes.values_mut().for_each(|node| node.now = latest);
        for _round in 0..600 {
            self.drain();
            if self.serves() {
                return;
            }
            self.next_deadline();
        }
        panic!("seed {seed}: nobody serves after the faults\n{}", self.world.picture());
    }

    /// epochs.md §2, E: a live quorum of the newest configuration and of every proposal that was
    /// accepted after it. (Nobody can do without.)
    fn can_heal(&self) -> bool {
        let nodes = &self.world.nodes;
        let live = nodes.iter().filter(|(_, node)| node.alive);
        let live: BTreeSet<_> = live.map(|(id, _)| ReplicaId::new(*id)).collect();
        let Some(newest) = self.world.check.configurations.values().next_back() else {
            return false;
        };
        let known = nodes.values().any(|n| n.alive && n.epochs.installed() == Some(newest));
        let accepted = nodes.values().filter(|node| node.epochs.installed() == Some(newest));
        let mut accepted = accepted.filter_map(|node| node.epochs.state().accepted.as_ref());
        known
            && newest.is_quorum(&live, Canary::none())
            && accepted.all(|(_, proposal)| proposal.is_quorum(&live, Canary::none()))
    }

    fn serves(&self) -> bool {
        let newest = self.world.check.configurations.values().next_back().unwrap();
        self.world.nodes.iter().filter(|(_, node)| node.alive).all(|(id, node)| {
            let member = newest.is_member(ReplicaId::new(*id));
            let up_to_date = node.epochs.installed() == Some(newest) && node.epochs.eligible();
            let out = !node.epochs.eligible();
            if member { up_to_date } else { out }
        })
    }

    /// Delivers everything, in order, and what follows from it.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.world.net.is_empty() {
                return;
            }
            let packet = self.world.net.remove(0);
            self.world.deliver(packet);
            assert_eq!(self.world.check.found, None);
        }
        panic!("the network never falls silent");
    }

    /// Time passes for everybody; anti-entropy carries epochs around.
    fn next_deadline(&mut self) {
        let alive = self.world.nodes.iter().filter(|(_, node)| node.alive);
        let alive: Vec<u64> = alive.map(|(id, _)| *id).collect();
        let due = |id: &u64| self.world.nodes[id].epochs.next_deadline();
        let second = std::time::Duration::from_secs(1);
        let latest = self.world.nodes[&alive[0]].now + second;
        let now = alive.iter().filter_map(due).min().unwrap_or(latest).min(latest);
        for id in &alive {
            let node = self.world.nodes.get_mut(id).unwrap();
            node.now = node.now.max(now);
            if node.epochs.next_deadline().is_some_and(|at| at <= node.now) {
                self.world.input(*id, EpochInput::Tick);
            }
        }
        let (from, to) = (alive[self.rng.random_range(0..alive.len())], self.somebody());
        self.world.push(from, to);
        self.world.push(to, from);
        self.world.ask_again(from);
    }
}

/// The seeds of a suite, or the one of `OSTRACA_SEED`.
pub(crate) fn seeds(count: u64) -> std::ops::Range<u64> {
    let one = std::env::var("OSTRACA_SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or(0..count, |seed: u64| seed..seed + 1)
}

/// The first seed below `count` in which the bug breaks the promise.
pub(crate) fn caught(bug: Bug, count: u64, by: &[Violation]) -> Option<(u64, Violation)> {
    seeds(count).find_map(|seed| {
        let mut run = Run::new(seed, Canary::with(bug));
        run.world.check.strict = by.contains(&Violation::Unsynced);
        run.chaos().filter(|found| by.contains(found)).map(|found| (seed, found))
    })
}

#[test]
fn nothing_acked_is_lost_and_everything_serves_again() {
    let mut installed = 0;
    for seed in seeds(3_000) {
        let mut run = Run::new(seed, Canary::none());
        run.world.check.strict = true;
        let found = run.chaos();
        assert_eq!(found, None, "OSTRACA_SEED={seed}: {:?}\n{}", run.swarm, run.world.picture());
        run.heal(seed);
        installed += run.world.check.configurations.len() - 1;
    }
    println!("{installed} configurations decided");
}

#[test]
fn every_canary_by_seeds() {
    use Violation::{A, Bc, D1, D2, Unsynced};
    for (bug, by) in [
        (Bug::AckBeforeSync, &[Unsynced][..]),
        (Bug::AcceptBeforeSync, &[Bc]),
        (Bug::NotSealed, &[Bc]),
        (Bug::IgnoreAccepted, &[A]),
        (Bug::AdoptLowestBallot, &[A]),
        (Bug::BallotWithoutNode, &[A]),
        (Bug::AcceptBelowPromise, &[A]),
        (Bug::HalfWithoutTiebreaker, &[A]),
        (Bug::SyncFromFewer, &[Bc]),
        (Bug::SnapshotBeforeLastAck, &[Bc]),
        (Bug::MixedEpochs, &[Bc]),
        (Bug::NoReadRepair, &[Bc]),
        (Bug::FenceWhileSealed, &[D1, D2]),
        (Bug::TermWithoutCoordinator, &[D1, D2]),
        (Bug::NoRecoveryWrite, &[D1, D2]),
        (Bug::CellsNotSynced, &[D1, D2]),
        (Bug::PromisesNotSynced, &[D1, D2]),
    ] {
        println!("{bug:?}: {:?}", caught(bug, 20_000, by));
    }
}

impl World {
    /// Every node in a line, for a failure's message.
    pub(crate) fn picture(&self) -> String {
        let line = |(id, node): (&u64, &crate::world::Node)| {
            let epochs = &node.epochs;
            let members = epochs
                .installed()
                .map(|e| (e.id().number, e.members().iter().map(|m| m.get()).collect::<Vec<_>>()));
            format!(
                "{id}: alive {} {members:?} eligible {} sealed {} synced {} ready {} promise {:?} accepted {:?} next {:?} outcomes {:?}\n",
                node.alive,
                epochs.eligible(),
                epochs.sealed(),
                epochs.synced(),
                epochs.state().ready,
                epochs.state().promise,
                epochs.state().accepted.as_ref().map(|(b, e)| (*b, e.members().to_vec())),
                epochs.next_deadline(),
                node.outcomes,
            )
        };
        self.nodes.iter().map(line).collect()
    }
}

/// Whether a packet is of the configuration machine and satisfies `what`.
pub(crate) fn is_epoch(
    packet: &Packet,
    what: impl Fn(&ostraca_ddata::replicator::epoch::EpochMessage) -> bool,
) -> bool {
    matches!(&packet.body, Body::Epoch(message) if what(message))
}
