//! Stand-in for membership: it observes the running nodes with delays and errors, announces members
//! to every node, and lets several nodes propose joins, leaves and removals at once.

use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::port::Peer;
use ostraca_ddata::sim::{DiskFate, Fault, NodeIndex, RandomStream, Simulation};

use crate::history::History;
use crate::node::{Command, Node};

type Sim = Simulation<Node, History>;

const MS: Duration = Duration::from_millis(1);

/// How nodes join, leave and crash in a run.
#[derive(Clone, Debug)]
pub struct Churn {
    /// Mean time between two observations.
    pub every: Duration,
    /// Probability, at each observation, that a node crashes and restarts later.
    pub crash: f64,
    /// Probability that a node starts that has never run.
    pub start: f64,
    /// Probability that a member leaves gracefully.
    pub leave: f64,
    /// Probability that a live member is falsely suspected.
    pub suspect: f64,
    /// Most nodes that propose at a time.
    pub proposers: usize,
}

impl Churn {
    /// No node joins or leaves by itself; crashed members are still replaced.
    pub const QUIET: Self = Self {
        every: Duration::from_secs(1),
        crash: 0.0,
        start: 0.0,
        leave: 0.0,
        suspect: 0.0,
        proposers: 1,
    };
}

/// The membership of a run.
pub struct Membership {
    churn: Churn,
    chance: RandomStream,
    leaving: Vec<ReplicaId>,
}

/// The result of one observation: running nodes, and members and removed members of the newest
/// configuration.
struct Sight {
    running: Vec<(NodeIndex, ReplicaId)>,
    members: Vec<ReplicaId>,
    left: Vec<ReplicaId>,
}

impl Sight {
    fn of(sim: &Sim) -> Self {
        let running = sim.processes().map(|(node, process)| (node, process.id())).collect();
        let newest = sim.observer().chain.newest();
        let members = newest.map(|epoch| epoch.members().to_vec()).unwrap_or_default();
        let left = newest.map(|epoch| epoch.left().to_vec()).unwrap_or_default();
        Self { running, members, left }
    }

    fn runs(&self, id: ReplicaId) -> bool {
        self.running.iter().any(|(_, other)| *other == id)
    }

    fn is_settled(&self) -> bool {
        self.members.iter().all(|id| self.runs(*id))
            && self.running.iter().all(|(_, id)| self.members.contains(id))
    }
}

/// Whether exactly the running nodes are members.
pub fn is_settled(sim: &Sim) -> bool {
    Sight::of(sim).is_settled()
}

impl Membership {
    pub fn new(seed: u64, churn: Churn) -> Self {
        Self { churn, chance: RandomStream::split(seed, "membership", 0), leaving: Vec::new() }
    }

    /// Random time until the next observation.
    pub fn wait(&mut self) -> Duration {
        let mean = u64::try_from(self.churn.every.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.chance.exponential(mean)) + MS
    }

    /// Ends crashes, leaves and false suspicions.
    pub fn calm(&mut self) {
        self.churn = Churn { every: 500 * MS, ..Churn::QUIET };
    }

    /// Observes the nodes, announces the members and proposes changes.
    pub fn look(&mut self, sim: &mut Sim) {
        self.come_and_go(sim);
        let sight = Sight::of(sim);
        self.tell(sim, &sight);
        self.propose(sim, &sight);
    }

    fn come_and_go(&mut self, sim: &mut Sim) {
        // A removed node stops, and comes back as a new incarnation. A joiner may have been a
        // member for a while without learning of it; only membership tells it that it was removed.
        let left = Sight::of(sim).left;
        let excluded: Vec<NodeIndex> = sim
            .processes()
            .filter(|(_, node)| node.replicator.epochs().is_excluded() || left.contains(&node.id()))
            .map(|(node, _)| node)
            .collect();
        for node in excluded {
            let down = Some(self.chance.span(10 * MS, 2_000 * MS));
            sim.fault(&Fault::Crash { node, disk: DiskFate::Kept, down });
        }
        if self.chance.chance(self.churn.start) {
            let asleep = (0..sim.view().nodes()).map(NodeIndex::new);
            let asleep: Vec<_> = asleep.filter(|node| sim.view().incarnation(*node) == 0).collect();
            if !asleep.is_empty() {
                sim.restart(*self.chance.pick(&asleep));
            }
        }
        if self.chance.chance(self.churn.crash) {
            self.crash(sim);
        }
    }

    fn crash(&mut self, sim: &mut Sim) {
        let running = Sight::of(sim).running;
        if running.is_empty() {
            return;
        }
        let (node, id) = *self.chance.pick(&running);
        let down = Some(self.chance.span(10 * MS, 10_000 * MS));
        let disk = *self.chance.pick(&[DiskFate::Kept, DiskFate::Lost]);
        if sim.observer().chain.survives(&sim.view(), Some(id)) {
            sim.fault(&Fault::Crash { node, disk, down });
        }
    }

    fn tell(&mut self, sim: &mut Sim, sight: &Sight) {
        let mut all: Vec<ReplicaId> = sight.running.iter().map(|(_, id)| *id).collect();
        all.extend(sight.members.iter().filter(|id| !sight.runs(**id)));
        for (node, _) in &sight.running {
            let peer = |id: &ReplicaId| {
                let stopping = self.leaving.contains(id);
                Peer { id: *id, stopping, reachable: sight.runs(*id) }
            };
            let peers = all.iter().map(peer).collect();
            let after = self.chance.span(MS, 500 * MS);
            sim.schedule_command(after, *node, Command::Members(peers));
        }
    }

    fn propose(&mut self, sim: &mut Sim, sight: &Sight) {
        let joining = |id: &ReplicaId| !sight.members.contains(id) && !sight.left.contains(id);
        let mut change = MembershipChange {
            join: sight.running.iter().map(|(_, id)| *id).filter(joining).collect(),
            leave: self.leaving.iter().copied().filter(|id| sight.members.contains(id)).collect(),
            lost: sight.members.iter().copied().filter(|id| !sight.runs(*id)).collect(),
        };
        if sight.members.len() > 2 && self.chance.chance(self.churn.leave) {
            let leaver = *self.chance.pick(&sight.members);
            self.leaving.push(leaver);
            change.leave.push(leaver);
        }
        if sight.members.len() > 2 && self.chance.chance(self.churn.suspect) {
            change.lost.push(*self.chance.pick(&sight.members));
        }
        self.keep_one(sight, &mut change);
        let members: Vec<NodeIndex> = sight
            .running
            .iter()
            .filter(|(_, id)| sight.members.contains(id))
            .map(|(node, _)| *node)
            .collect();
        if change.is_empty() || members.is_empty() {
            return;
        }
        for _ in 0..=self.chance.index(self.churn.proposers.max(1)) {
            let proposer = *self.chance.pick(&members);
            let after = self.chance.span(MS, 300 * MS);
            let mut change = change.clone();
            if self.churn.proposers > 1 && self.chance.chance(0.3) {
                change.join.truncate(1);
                change.lost.clear();
            }
            if !change.is_empty() {
                sim.schedule_command(after, proposer, Command::Propose(change));
            }
        }
    }

    /// Keeps one running member if the change would remove all members, because such a change is
    /// refused.
    fn keep_one(&mut self, sight: &Sight, change: &mut MembershipChange) {
        let goes = |id: &ReplicaId| change.leave.contains(id) || change.lost.contains(id);
        if change.join.is_empty() && sight.members.iter().all(goes) {
            let stays = sight.members.iter().copied().find(|id| sight.runs(*id));
            for going in [&mut self.leaving, &mut change.leave, &mut change.lost] {
                going.retain(|id| Some(*id) != stays);
            }
        }
    }
}
