//! Random schedules: any order, loss, duplicates, clock jumps, crashes, restarts, several proposers
//! and coordinators at once. Each seed turns some faults off and others up (swarm testing: Groce et
//! al., 2012).

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::Machine;
use ostraca_ddata::replicator::epoch::{
    Epoch, EpochInput, MembershipChange, ProposalOutcome, ProposalRefusal,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::check::{HOSTILE, Violation};
use crate::exhaustive::FORGED_BALLOT;
use crate::forged::attack;
use crate::world::{Packet, World};

/// Sizes and fault rates of one seed.
#[derive(Debug)]
struct Swarm {
    members: u64,
    joiners: u64,
    proposals: u32,
    coordinators: u32,
    steps: u32,
    loss: u32,      // of 100 deliveries
    duplicate: u32, // of 100 deliveries
    tick: u32,      // of 1,000 steps
    crash: u32,     // of 10,000 steps
    restart: u32,
    lease: u32,           // of 100 proposals
    in_order: u32,        // of 100 deliveries: the oldest
    busy: u32,            // of 100 steps: a client operation
    guarded: u32,         // of 100 operations: of a coordinator
    in_flight_max: usize, // more packets are lost
    slow: u32,            // of 100 packets to or from the slow node: deferred
}

impl Swarm {
    fn new(rng: &mut SmallRng) -> Self {
        let mut sometimes = |of: std::ops::Range<u32>| {
            if rng.random_bool(0.5) { rng.random_range(of) } else { 0 }
        };
        let (loss, duplicate, crash) = (sometimes(1..40), sometimes(1..30), sometimes(1..40));
        let (restart, lease, in_order) = (sometimes(1..40), sometimes(1..60), sometimes(1..100));
        let slow = sometimes(50..100);
        Self {
            members: [3, 3, 3, 4, 5][rng.random_range(0..5)],
            joiners: rng.random_range(1..=2),
            proposals: rng.random_range(2..=8),
            coordinators: rng.random_range(0..=4),
            steps: rng.random_range(200..1_500),
            loss,
            duplicate,
            tick: [2, 8, 20, 100][rng.random_range(0..4)],
            crash,
            restart,
            lease,
            in_order,
            busy: rng.random_range(3..30),
            guarded: [0, 50, 90][rng.random_range(0..3)],
            in_flight_max: [20, 40, 80][rng.random_range(0..3)],
            slow,
        }
    }
}

pub(crate) struct Run {
    world: World,
    rng: SmallRng,
    /// Draws of the attacker only, so that a seed has the same schedule without it.
    hostile: SmallRng,
    swarm: Swarm,
    tokens: u32,
    decisions: u32,
    crashes: u32,
    slow: u64,
}

impl Run {
    pub(crate) fn new(seed: u64, fault_injection: FaultInjection) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let swarm = Swarm::new(&mut rng);
        let world = World::new(swarm.members, swarm.joiners, seed, fault_injection);
        let hostile = SmallRng::seed_from_u64(!seed);
        Self { world, rng, hostile, swarm, tokens: 0, decisions: 8, crashes: 0, slow: 0 }
    }

    /// Runs all steps with faults; stops at the first violation.
    pub(crate) fn chaos(&mut self) -> Option<Violation> {
        for _ in 0..self.swarm.steps {
            self.step();
            self.attack();
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

    fn random_node(&mut self) -> u64 {
        self.rng.random_range(1..=self.swarm.members + self.swarm.joiners)
    }

    fn step(&mut self) {
        let id = self.random_node();
        if self.chance(1, 80) {
            self.slow = id;
        }
        if self.chance(self.swarm.tick, 1_000) {
            self.world.tick(id);
        } else if self.chance(self.swarm.crash, 10_000) && self.crashes < 2 {
            self.crashes += 1;
            self.world.crash(id);
        } else if self.chance(self.swarm.restart, 10_000) && self.world.nodes[&id].alive {
            self.world.restart(id);
        } else if self.swarm.proposals > 0 && self.chance(1, 40) {
            self.propose(id);
        } else if self.chance(self.swarm.busy, 100) {
            self.operation(id);
        } else {
            self.deliver();
        }
    }

    /// In one of 20 steps a hostile client sends a forged message to a random node.
    fn attack(&mut self) {
        if !self.hostile.random_ratio(1, 20) {
            return;
        }
        let to = self.hostile.random_range(1..=self.swarm.members + self.swarm.joiners);
        let node = &self.world.nodes[&to];
        if !node.alive {
            return;
        }
        let newest = self.world.check.configurations.values().next_back();
        let Some(real) = node.epochs.installed().or(newest).cloned() else { return };
        let mut messages = attack(HOSTILE, to, &real);
        let message = messages.swap_remove(self.hostile.random_range(0..messages.len()));
        self.world.input(to, EpochInput::Message { from: ReplicaId::new(HOSTILE), message });
        let promise = self.world.nodes[&to].epochs.state().promise;
        if promise.is_some_and(|promise| promise.number == FORGED_BALLOT) {
            self.world.check.violated(Violation::Forged);
        }
    }

    fn propose(&mut self, id: u64) {
        let node = &self.world.nodes[&id];
        let Some(epoch) = node.epochs.installed().filter(|_| node.alive).cloned() else { return };
        self.swarm.proposals -= 1;
        let change = self.change(&epoch);
        if self.chance(self.swarm.lease, 100) {
            let victim = self.random_node();
            let holder = self.random_node();
            let holder = self.world.nodes.get_mut(&holder).unwrap();
            let run = std::time::Duration::from_secs(1);
            holder.leases.extend(change.removed().map(|id| (id.get(), run)).chain([(victim, run)]));
        }
        self.world.propose(id, change);
    }

    fn change(&mut self, epoch: &Epoch) -> MembershipChange {
        let mut change = MembershipChange::default();
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
        if self.chance(1, 10) {
            // It may be a member here, or elsewhere by now, or join in the same batch.
            change.leave.push(ReplicaId::new(self.rng.random_range(first..=last)));
        }
        change
    }

    fn operation(&mut self, id: u64) {
        if self.chance(1, 3) {
            return self.world.ask_again(id);
        }
        if self.chance(1, 6) {
            let to = self.random_node();
            return self.world.push(id, to);
        }
        if self.chance(self.swarm.guarded, 100) {
            return self.coordinate(id);
        }
        if self.chance(1, 3) {
            self.world.read(id);
        } else if self.tokens < 10 {
            self.tokens += 1;
            self.world.write(id, self.tokens);
        }
    }

    fn coordinate(&mut self, id: u64) {
        if self.swarm.coordinators > 0 && self.chance(1, 3) {
            self.swarm.coordinators -= 1;
            return self.world.fence(id);
        }
        let acting = |node: &u64| self.world.nodes[node].parent.coordinator.is_some();
        let acting: Vec<_> = self.world.nodes.keys().copied().filter(acting).collect();
        if !acting.is_empty() && self.decisions > 0 {
            self.decisions -= 1;
            self.world.decide(acting[self.rng.random_range(0..acting.len())]);
        }
    }

    fn deliver(&mut self) {
        let waiting = self.world.net.len();
        if waiting == 0 {
            return;
        }
        while self.world.net.len() > self.swarm.in_flight_max {
            let lost = self.rng.random_range(0..self.world.net.len());
            self.world.net.swap_remove(lost);
        }
        let waiting = self.world.net.len();
        let in_order = self.chance(self.swarm.in_order, 100);
        let at = if in_order { 0 } else { self.rng.random_range(0..waiting) };
        let Packet { from, to, .. } = self.world.net[at];
        if (from == self.slow || to == self.slow) && self.chance(self.swarm.slow, 100) {
            self.world.net[at..].rotate_left(1);
            return;
        }
        let packet = self.world.net.remove(at);
        if self.chance(self.swarm.duplicate, 100) {
            self.world.net.push(packet.clone());
        }
        if !self.chance(self.swarm.loss, 100) {
            self.world.deliver(packet);
        }
    }

    // ── after the faults ────────────────────────────────────────────────────────────────────

    /// Runs without faults until every live member of the newest configuration serves. `false` if a
    /// quorum that is needed is dead.
    ///
    /// # Panics
    /// If no majority serves although every needed quorum is alive.
    pub(crate) fn heal(&mut self, seed: u64) -> bool {
        if !self.can_heal() {
            return false;
        }
        let latest = self.world.nodes.values().map(|node| node.now).max().unwrap();
        self.world.nodes.values_mut().for_each(|node| node.now = latest);
        for _round in 0..600 {
            self.drain();
            if self.serves() {
                return true;
            }
            self.next_deadline();
        }
        panic!("seed {seed}: not all members serve after the faults\n{}", self.world.picture());
    }

    /// Whether a quorum is alive of the newest configuration and of every proposal accepted after
    /// it (docs/protocol/configurations.md#a-change-can-always-be-completed).
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
            && newest.is_quorum(&live, FaultInjection::none())
            && accepted.all(|(_, proposal)| proposal.is_quorum(&live, FaultInjection::none()))
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

    /// Delivers all packets in order, with everything that follows from them.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.world.net.is_empty() {
                return;
            }
            let packet = self.world.net.remove(0);
            self.world.deliver(packet);
            assert_eq!(self.world.check.found, None);
        }
        panic!("the network never becomes idle");
    }

    /// Advances all clocks to the next deadline; anti-entropy passes ids of configurations on.
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
        let (from, to) = (alive[self.rng.random_range(0..alive.len())], self.random_node());
        self.world.push(from, to);
        self.world.push(to, from);
        self.world.ask_again(from);
    }
}

/// The seeds of a suite: the one in `OSTRACA_SEED`, or the number in `OSTRACA_SEEDS`, or `count`;
/// at least one.
pub(crate) fn seeds(count: u64) -> std::ops::RangeInclusive<u64> {
    let set = |name: &str| {
        let text = std::env::var(name).ok()?;
        let number = text.parse::<u64>();
        Some(number.unwrap_or_else(|_| panic!("{name}={text:?} is not a number")))
    };
    let count = set("OSTRACA_SEEDS").unwrap_or(count);
    set("OSTRACA_SEED").map_or(0..=count.saturating_sub(1), |seed| seed..=seed)
}

/// The first seed below `count` in which the fault violates one of the properties in `by`.
pub(crate) fn caught(
    bug: ReplicatorFault,
    count: u64,
    by: &[Violation],
) -> Option<(u64, Violation)> {
    seeds(count).find_map(|seed| {
        let mut run = Run::new(seed, FaultInjection::with(bug));
        run.world.check.strict = by.contains(&Violation::Unsynced);
        run.chaos().filter(|found| by.contains(found)).map(|found| (seed, found))
    })
}

/// Cases that the seeds of a suite have reached. A case that is never reached shows nothing.
#[derive(Debug, Default)]
struct Reached(BTreeMap<&'static str, u64>);

impl Reached {
    fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    fn add(&mut self, run: &Run, healed: bool) {
        self.count("healed", u64::from(healed));
        self.count("decided", run.world.check.configurations.len() as u64 - 1);
        self.count("barred", run.world.check.barred());
        for node in run.world.nodes.values() {
            let stats = node.epochs.stats();
            self.count("declined", stats.declined);
            self.count("abandoned", stats.abandoned);
            self.count("refused", stats.refused);
            self.count("excluded", u64::from(node.epochs.is_excluded()));
            let installed = node.epochs.id().map_or(0, |id| id.number);
            self.count("skipped an epoch", u64::from(installed > stats.installed));
            for outcome in &node.outcomes {
                self.count(name(outcome), 1);
            }
        }
    }
}

fn name(outcome: &ProposalOutcome) -> &'static str {
    match outcome {
        ProposalOutcome::Decided { deferred, .. } if deferred.is_empty() => "decided as asked",
        ProposalOutcome::Decided { .. } => "a removal deferred",
        ProposalOutcome::Superseded { .. } => "superseded",
        ProposalOutcome::Refused { why: ProposalRefusal::Busy } => "busy",
        ProposalOutcome::Refused { why: ProposalRefusal::NotSynced } => "not synced",
        ProposalOutcome::Refused { why: ProposalRefusal::TooFewAnswered } => "too few answered",
        ProposalOutcome::Refused { .. } => "refused otherwise",
        _ => "another outcome",
    }
}

#[test]
fn acked_writes_survive_and_all_serve_after_faults() {
    let mut reached = Reached::default();
    let seeds = seeds(12_000);
    let one = seeds.start() == seeds.end();
    for seed in seeds {
        let mut run = Run::new(seed, FaultInjection::none());
        run.world.check.strict = true;
        let found = run.chaos();
        assert_eq!(found, None, "OSTRACA_SEED={seed}: {:?}\n{}", run.swarm, run.world.picture());
        let healed = run.heal(seed);
        reached.add(&run, healed);
    }
    let expected = [
        "healed",
        "declined",
        "abandoned",
        "refused",
        "excluded",
        "skipped an epoch",
        "barred",
        "decided as asked",
        "a removal deferred",
        "superseded",
        "busy",
        "not synced",
    ];
    let hit = |what: &&str| reached.0.get(what).is_some_and(|times| *times > 0);
    assert!(one || expected.iter().all(hit), "{reached:?} lacks some of {expected:?}");
    println!("{reached:?}");
}

/// Faults that random seeds catch; `scenarios.rs` has those that they catch too rarely.
#[test]
fn faults_are_caught_within_two_thousand_seeds() {
    use Violation::{A, Bc, D1, D2, Forged, Unsynced};
    let canaries: [(ReplicatorFault, &[Violation]); 11] = [
        (ReplicatorFault::ConfigurationFromAnybody, &[Forged]),
        (ReplicatorFault::AckBeforeSync, &[Unsynced]),
        (ReplicatorFault::NotSealed, &[Bc]),
        (ReplicatorFault::IgnoreAccepted, &[A]),
        (ReplicatorFault::BallotWithoutNode, &[A]),
        (ReplicatorFault::AcceptBelowPromise, &[A]),
        (ReplicatorFault::HalfWithoutTiebreaker, &[A]),
        (ReplicatorFault::SyncFromFewer, &[Bc]),
        (ReplicatorFault::SnapshotBeforeLastAck, &[Bc]),
        (ReplicatorFault::NoReadRepair, &[Bc]),
        (ReplicatorFault::TermWithoutCoordinator, &[D1, D2]),
    ];
    for (bug, by) in canaries {
        let caught = caught(bug, 2_000, by);
        println!("{bug:?}: {caught:?}");
        assert!(caught.is_some(), "no seed catches {bug:?}");
    }
}

impl World {
    /// The state of every node in a line, for the message of a failure.
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
