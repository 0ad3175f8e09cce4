//! Measures how fast a change reaches every replica: clusters of real
//! [Replicators](crate::replicator) in the [simulator](crate::sim), measured in simulated time,
//! rounds, messages and bytes.
//!
//! A [`Plan`] describes one cluster. A run founds it, fills the key, and then makes the changes one
//! after the other, each on a node that the seed selects. The [`RunOutcome`] covers only these
//! changes. The same plan gives the same outcome on every machine.
//!
//! ```
//! use ostraca_ddata::convergence::{Plan, run};
//!
//! let plan = Plan { nodes: 20, changes: 3, ..Plan::default() };
//! let outcome = run(&plan, &mut |_done| {})?;
//! assert!(outcome.rounds(&plan) < 2.0); // direct pushes, and nothing is lost
//! # Ok::<(), ostraca_ddata::convergence::RunFailure>(())
//! ```

mod replica;

use std::sync::Arc;
use std::time::Duration;

use crate::causal::CausalContext;
use crate::key::{Key, KeyName};
use crate::replicator::config::ReplicatorConfig;
use crate::replicator::epoch::{Epoch, EpochId, EpochSettings, MEMBERS_MAX};
use crate::replicator::port::Peer;
use crate::replicator::request::{Update, WriteConsistency};
use crate::sim::{
    Fault, Faults, LaneLoss, LaneRule, LinkQuality, NodeIndex, RandomStream, SimTime, Simulation,
    SimulationSetup,
};
use crate::types::{LWWRegister, ORMap, ORSet};

use replica::{ConvergenceObserver, Replica, ReplicaCommand, id_of};

/// Maximum number of replicas of a simulated cluster, which is the maximum of a configuration.
pub const NODES_MAX: usize = MEMBERS_MAX;

/// Maximum simulated time of one change, from the heal of its partition, before the run fails; also
/// the timeout of a majority write.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Time after a change has converged in which messages, mainly acknowledgements, still count.
const ACKNOWLEDGEMENT_TIME: Duration = Duration::from_millis(200);
/// Pause between changes, in which the quick gossip after a change ends.
const SETTLE_TIME: Duration = Duration::from_secs(3);

/// The kind of data that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataKind {
    /// An `LWWRegister<u64>` that is set.
    LwwRegister,
    /// An `ORSet<u64>` that gets an element.
    OrSet,
    /// An `ORMap<u64, LWWRegister<u64>>`, one of whose registers is set.
    OrMap,
}

/// Durability that a change needs before its author is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDurability {
    /// The author's own replica (`WriteLocal`).
    Local,
    /// A majority of the replicas (`WriteMajority`).
    Majority,
}

/// The cluster and the changes to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Number of replicas, 2 to [`NODES_MAX`].
    pub nodes: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Minimum latency of a message, above zero and at most 10 s. The mean is a tenth higher.
    pub one_way: Duration,
    /// Probability that a message is lost, from 0 to below 1. Above 0, losses are silent; at 0 the
    /// links behave like connections, which report their failure.
    pub loss: f64,
    /// Type of the changed data.
    pub kind: DataKind,
    /// Durability that the author waits for.
    pub level: WriteDurability,
    /// Number of entries of the set or map before the changes; 0 counts as 1.
    pub entries: u64,
    /// Number of changes, at least 1.
    pub changes: usize,
    /// Splits the cluster in two halves for this time before each change. Both halves make changes,
    /// and times count from the heal. `Majority` then waits for the heal in at least one half.
    /// Above zero and at most an hour; above four minutes the run always fails with
    /// [`RunFailure::TooLong`], because a change made in the middle has two minutes.
    pub partition: Option<Duration>,
}

impl Default for Plan {
    /// Ten nodes, 1 ms, no loss, one entry of a map of 100, `WriteLocal`, ten changes.
    fn default() -> Self {
        Self {
            nodes: 10,
            seed: 1,
            one_way: Duration::from_millis(1),
            loss: 0.0,
            kind: DataKind::OrMap,
            level: WriteDurability::Local,
            entries: 100,
            changes: 10,
            partition: None,
        }
    }
}

/// Why a run has no outcome.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RunFailure {
    /// A value of the plan is out of range.
    #[error("{what} is {found}; it must be {allowed}")]
    Unfit {
        /// The wrong value's name.
        what: &'static str,
        /// The value found in the plan.
        found: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A change has not reached all replicas in two simulated minutes, or an author was not
    /// answered. With a partition these minutes count from its heal.
    #[error(
        "change {change} was on {reached} of {nodes} replicas after {} simulated seconds: \
         too much is lost",
        CHANGE_TIMEOUT.as_secs()
    )]
    TooLong {
        /// Number of the change, from 1; 0 for the filling before the changes.
        change: usize,
        /// Number of replicas that had the change, with a partition both changes. All, if only an
        /// answer is missing.
        reached: usize,
        /// Number of replicas in the cluster.
        nodes: usize,
    },
}

/// Messages of some kind that all nodes sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageTotals {
    /// Number of these messages.
    pub messages: u64,
    /// Bytes of the encoded messages.
    pub bytes: u64,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    /// For each change the times at which the replicas had it, the author's included, from the
    /// change or the heal; ascending.
    pub seen: Vec<Vec<Duration>>,
    /// For each change the time at which its author was answered, perhaps with an error; with a
    /// partition, the later one. Counted like `seen`; zero for an answer before the heal.
    pub answered: Vec<Duration>,
    /// All messages except those of `compared`, for all changes: pushes, their acknowledgements and
    /// reads. Lost messages count. Those of the filling and of the settling do not.
    pub pushed: MessageTotals,
    /// Anti-entropy for all changes: comparisons, their answers and the repairs in them.
    pub compared: MessageTotals,
    /// Bytes of the shortest push: the lower bound for spreading a change, per replica.
    pub push_bytes: u64,
    /// Simulated time of the whole run, the filling and the settling included.
    pub simulated: Duration,
}

impl RunOutcome {
    /// Returns the mean time until the last replica had a change; zero without changes.
    #[must_use]
    pub fn converged(&self) -> Duration {
        let last = self.seen.iter().filter_map(|seen| seen.last());
        last.sum::<Duration>() / u32::try_from(self.seen.len().max(1)).unwrap_or(u32::MAX)
    }

    /// Returns [`converged`](Self::converged) in one-way trips; the lower bound is 1.
    #[must_use]
    pub fn rounds(&self, plan: &Plan) -> f64 {
        self.converged().as_secs_f64() / plan.one_way.as_secs_f64()
    }
}

/// Lower bounds for one change that hold for every protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowerBounds {
    /// One-way trips: 1 without loss. With loss, the trips in which a sender that repeats every
    /// round trip reaches all replicas with probability ½.
    pub rounds: f64,
    /// A push and an acknowledgement for each other replica, plus their repetitions after losses.
    pub messages: f64,
    /// Bytes of the pushes.
    pub bytes: f64,
}

impl LowerBounds {
    /// Computes the bounds for a plan whose shortest push has `push_bytes` bytes. With a partition,
    /// messages and bytes are those of both changes; `rounds` is that of one. The plan must be one
    /// that [`run`] accepts, which is not checked.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of simulated nodes are small")]
    pub fn of(plan: &Plan, push_bytes: u64) -> Self {
        let others = plan.nodes.saturating_sub(1) as f64;
        let sides = 1.0 + f64::from(plan.partition.is_some());
        let kept = 1.0 - plan.loss;
        // All n messages arrive within k transmissions with probability (1 - p^k)^n.
        let sendings = if plan.loss > 0.0 {
            ((1.0 - 0.5_f64.powf(1.0 / others)).ln() / plan.loss.ln()).max(1.0)
        } else {
            1.0
        };
        Self {
            rounds: 1.0 + 2.0 * (sendings - 1.0),
            messages: sides * others * (1.0 / (kept * kept) + 1.0 / kept),
            bytes: sides * others / kept * push_bytes as f64,
        }
    }
}

/// Runs a plan. Calls `progress` after each change with the number of changes done, but not after
/// the filling or after a change that fails.
///
/// # Errors
/// [`RunFailure::Unfit`] for an invalid plan, before anything runs. [`RunFailure::TooLong`] if the
/// filling or a change does not reach all replicas or is not answered: the run ends, and the
/// results of earlier changes are lost.
///
/// # Panics
/// With a report of the run, if a replica panics, which is a bug.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(usize)) -> Result<RunOutcome, RunFailure> {
    check_plan(plan)?;
    let mut run = Measurement::found(plan);
    run.fill()?;
    for change in 1..=plan.changes {
        run.change(change)?;
        progress(change);
    }
    Ok(run.outcome())
}

/// Checks the ranges of a plan. Reports the first value out of range, in the order number of nodes,
/// loss (also if it is not a number), latency, number of changes, partition.
fn check_plan(plan: &Plan) -> Result<(), RunFailure> {
    let unfit = |what, found: &dyn ToString, allowed| {
        Err(RunFailure::Unfit { what, found: found.to_string(), allowed })
    };
    if !(2..=NODES_MAX).contains(&plan.nodes) {
        return unfit("the number of nodes", &plan.nodes, "2 to 10000");
    }
    if !(0.0..1.0).contains(&plan.loss) {
        return unfit("the loss", &plan.loss, "a share of messages, from 0 to below 1");
    }
    if plan.one_way.is_zero() || plan.one_way > Duration::from_secs(10) {
        let millis = plan.one_way.as_secs_f64() * 1e3;
        return unfit("the one-way time", &format!("{millis} ms"), "above 0 and at most 10 s");
    }
    if plan.changes == 0 {
        return unfit("the number of changes", &0, "at least 1");
    }
    if plan.partition.is_some_and(|cut| cut.is_zero() || cut > Duration::from_secs(3_600)) {
        return unfit("the partition", &"out of range", "above 0 and at most an hour");
    }
    Ok(())
}

/// A run in progress: the simulated cluster and the results so far.
struct Measurement<'a> {
    plan: &'a Plan,
    sim: Simulation<Replica, ConvergenceObserver>,
    chance: RandomStream, // selects the authors
    key: KeyName,
    value: u64, // number of entries written so far, and the next value
    outcome: RunOutcome,
}

impl<'a> Measurement<'a> {
    /// Starts the replicas, and installs a configuration with all of them, and the list of members,
    /// on each. With losses the lanes also reorder messages.
    fn found(plan: &'a Plan) -> Self {
        let link = LinkQuality {
            base: plan.one_way,
            spread: plan.one_way / 10,
            loss: plan.loss,
            ..LinkQuality::clean()
        };
        let lossy = LaneRule { loss: LaneLoss::Lossy, fifo: false, ..LaneRule::STREAM };
        let lane = if plan.loss > 0.0 { lossy } else { LaneRule::STREAM };
        let setup = SimulationSetup {
            lanes: vec![lane; 3],
            faults: Faults { links: vec![link], ..Faults::none() },
            ..SimulationSetup::new(plan.seed, plan.nodes)
        };
        let key = KeyName::from("converges");
        let watch = ConvergenceObserver::new(key.clone(), plan.nodes);
        let mut sim = Simulation::new(setup, watch, |boot| {
            Replica::new(boot.node, boot.seed, ReplicatorConfig::default())
        });
        let members: Vec<_> = (0..plan.nodes).map(|node| id_of(NodeIndex::new(node))).collect();
        let id = EpochId { generation: 1, number: 1 };
        let epoch = Epoch::founding(id, members.clone(), EpochSettings::default());
        let epoch = Arc::new(epoch.expect("distinct members, at most MEMBERS_MAX"));
        let peer = |id| Peer { id, stopping: false, reachable: true };
        let peers: Vec<Peer> = members.into_iter().map(peer).collect();
        for node in (0..plan.nodes).map(NodeIndex::new) {
            sim.command(node, ReplicaCommand::FoundCluster(epoch.clone()));
            sim.command(node, ReplicaCommand::Members(peers.clone()));
        }
        let (chance, outcome) =
            (RandomStream::split(plan.seed, "authors", 0), RunOutcome::default());
        Self { plan, sim, chance, key, value: 0, outcome }
    }

    /// Fills the set or map on every replica by one update of node 0; a register is set once. Lets
    /// the cluster settle before and after. A failure names change 0.
    fn fill(&mut self) -> Result<(), RunFailure> {
        self.settle();
        self.sim.observer_mut().expect(1);
        let update = self.update(self.plan.entries.max(1), CHANGE_TIMEOUT);
        self.sim.command(NodeIndex::new(0), ReplicaCommand::Update(update));
        self.wait(0, CHANGE_TIMEOUT)?;
        self.settle();
        Ok(())
    }

    /// Makes one change, or one on each side of a partition, and waits until all replicas have it.
    /// Adds the times to the outcome, and the messages from the change until
    /// [`ACKNOWLEDGEMENT_TIME`] after it has converged. Then lets the cluster settle. A failure
    /// adds nothing to the outcome.
    ///
    /// A partition begins here and the changes are made after half of its time. Times count from
    /// its heal, so an earlier answer counts as zero; messages count from the changes.
    fn change(&mut self, number: usize) -> Result<(), RunFailure> {
        let authors = self.authors();
        let mut heals = self.sim.now();
        let mut within = CHANGE_TIMEOUT;
        if let Some(span) = self.plan.partition {
            heals = heals + span;
            within += span - span / 2;
            let groups = self.sides().to_vec();
            self.sim.fault(&Fault::Partition { groups, span: Some(span) });
            self.sim.run_for(span / 2);
        }
        self.sim.observer_mut().expect(authors.len());
        let before = self.sent();
        for author in authors {
            let update = self.update(1, within);
            self.sim.command(author, ReplicaCommand::Update(update));
        }
        let begun = heals.max(self.sim.now());
        self.wait(number, within)?;
        let watch = self.sim.observer();
        let since =
            |at: SimTime| Duration::from_nanos(at.as_nanos().saturating_sub(begun.as_nanos()));
        let mut seen: Vec<Duration> = watch.seen().map(since).collect();
        seen.sort_unstable();
        self.outcome.seen.push(seen);
        self.outcome.answered.push(since(watch.answered_at()));
        self.sim.run_for(ACKNOWLEDGEMENT_TIME);
        let after = self.sent();
        for (sum, (after, before)) in [
            (&mut self.outcome.pushed, (after.0, before.0)),
            (&mut self.outcome.compared, (after.1, before.1)),
        ] {
            sum.messages += after.messages - before.messages;
            sum.bytes += after.bytes - before.bytes;
        }
        self.settle();
        Ok(())
    }

    /// Selects the nodes that make the next changes: one, or with a partition one of each side.
    fn authors(&mut self) -> Vec<NodeIndex> {
        let groups = match self.plan.partition {
            None => vec![(0..self.plan.nodes).map(NodeIndex::new).collect()],
            Some(_) => self.sides().to_vec(),
        };
        groups.iter().map(|group: &Vec<NodeIndex>| *self.chance.pick(group)).collect()
    }

    /// The two halves of a partition; of an odd number of nodes, the first has one more.
    fn sides(&self) -> [Vec<NodeIndex>; 2] {
        let (nodes, half) = (self.plan.nodes, self.plan.nodes.div_ceil(2));
        [(0..half), (half..nodes)].map(|side| side.map(NodeIndex::new).collect())
    }

    /// Runs until all replicas have the expected changes and all authors were answered;
    /// [`RunFailure::TooLong`] if that takes longer than `within`. Panics with a report of the run
    /// if a replica has panicked.
    fn wait(&mut self, change: usize, within: Duration) -> Result<(), RunFailure> {
        let done = self.sim.try_run_until(within, |sim| sim.observer().is_done());
        let Err(failure) = done else { return Ok(()) };
        assert!(!self.sim.has_failed(), "{failure}");
        let reached = self.sim.observer().seen().count();
        Err(RunFailure::TooLong { change, reached, nodes: self.plan.nodes })
    }

    fn settle(&mut self) {
        self.sim.run_for(SETTLE_TIME);
    }

    /// Sums the messages of all nodes since the start: those of comparisons second, all others
    /// first.
    fn sent(&self) -> (MessageTotals, MessageTotals) {
        let mut sums = (MessageTotals::default(), MessageTotals::default());
        for (_, replica) in self.sim.processes() {
            for (sum, sent) in [(&mut sums.0, replica.pushed), (&mut sums.1, replica.compared)] {
                sum.messages += sent.messages;
                sum.bytes += sent.bytes;
            }
        }
        sums
    }

    /// Returns an update of `entries` entries: new elements of the set, or the next registers of
    /// the map with new values, in turn. A register is set once, whatever `entries` is. `within` is
    /// the timeout of a majority write.
    fn update(&mut self, entries: u64, within: Duration) -> Update {
        let first = self.value;
        self.value += entries;
        let level = match self.plan.level {
            WriteDurability::Local => WriteConsistency::Local,
            WriteDurability::Majority => WriteConsistency::majority(within),
        };
        let name = self.key.as_str();
        let range = first..self.value;
        let size = self.plan.entries.max(1);
        match self.plan.kind {
            DataKind::LwwRegister => {
                let key = Key::<LWWRegister<u64>>::new(name);
                Update::new(&key, level, move |edit| edit.set(&range.end))
            }
            DataKind::OrSet => {
                let key = Key::<ORSet<u64>>::new(name);
                Update::new(&key, level, move |edit| {
                    range.into_iter().try_for_each(|n| edit.insert(&n).map(drop))
                })
            }
            DataKind::OrMap => {
                let key = Key::<ORMap<u64, LWWRegister<u64>>>::new(name);
                Update::new(&key, level, move |edit| {
                    let mut set = |n: u64| edit.update(&(n % size), |register| register.set(&n));
                    range.into_iter().try_for_each(&mut set)
                })
            }
        }
    }

    /// Returns the results. The shortest push may be one of the filling or a repair; 0 if no node
    /// sent a push.
    fn outcome(self) -> RunOutcome {
        let shortest = self.sim.processes().filter_map(|(_, replica)| replica.shortest_write).min();
        let simulated = Duration::from_nanos(self.sim.now().as_nanos());
        RunOutcome { push_bytes: shortest.unwrap_or(0), simulated, ..self.outcome }
    }
}

/// Whether a replica has seen all of `wanted`; `false` if it does not know the key, even if
/// `wanted` is empty.
fn holds(replica: &Replica, key: &KeyName, wanted: &CausalContext) -> bool {
    let value = replica.replicator.peek(key);
    value.is_some_and(|value| value.state().context().includes(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::edit::EditError;

    #[test]
    #[should_panic(expected = "planned by the test")]
    fn panic_of_a_replica_is_not_taken_for_loss() {
        let plan = Plan { nodes: 2, ..Plan::default() };
        let mut run = Measurement::found(&plan);
        run.settle();
        run.sim.observer_mut().expect(1);
        let key = Key::<LWWRegister<u64>>::new("converges");
        let update = Update::new(&key, WriteConsistency::Local, |_| -> Result<(), EditError> {
            panic!("planned by the test")
        });
        run.sim.command(NodeIndex::new(0), ReplicaCommand::Update(update));
        let _ = run.wait(1, CHANGE_TIMEOUT); // an error would be the wrong report
    }

    #[test]
    fn bounds_of_a_plan_without_nodes_need_no_message() {
        for loss in [0.0, 0.5] {
            let bounds = LowerBounds::of(&Plan { nodes: 0, loss, ..Plan::default() }, 100);
            assert_eq!(bounds, LowerBounds { rounds: 1.0, messages: 0.0, bytes: 0.0 });
        }
    }
}
