//! One run of a suite: a cluster under load by users and coordinators, changes of membership and
//! faults; then the faults end, and the cluster must come to rest with all replicas equal.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::key::{Key, KeyName};
use ostraca_ddata::replicator::ReplicatorParameters;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};
use ostraca_ddata::replicator::request::{
    ReadConsistency, ReplicatorReply, ReplicatorRequest, RequestId, Update, WriteConsistency,
};
use ostraca_ddata::replicator::stats::ReplicatorStats;
use ostraca_ddata::sim::{
    Failure, Faults, LaneRule, NodeIndex, Seed, Simulation, SimulationSetup as SimSetup, Totals,
};
use ostraca_ddata::types::ORSet;

use crate::coordinators::{Coordinators, Zeal};
use crate::history::{Ask, Asked, EXPIRING, History};
use crate::membership::{Churn, Membership, is_settled};
use crate::node::{Command, Node, replica};
use crate::oracle::What;
use crate::strikes::Strikes;
use crate::workload::{Habits, Users};

type Sim = Simulation<Node, History>;

const SECOND: Duration = Duration::from_secs(1);

/// Longest simulated time until a cluster is at rest after the last fault.
const REST_WITHIN: Duration = Duration::from_secs(400);

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: Seed,
    /// Members of the first configuration.
    pub members: usize,
    /// Nodes that may start later.
    pub spares: usize,
    pub config: ReplicatorConfig,
    pub faults: Faults,
    /// Probability that a chosen step of the protocol causes a fault.
    pub strikes: f64,
    pub churn: Churn,
    pub habits: Habits,
    pub zeal: Option<Zeal>,
    /// Simulated time with faults.
    pub span: Duration,
    pub fault_injection: FaultInjection,
    /// Whether the history checks the run. Only the speed test turns it off.
    pub judged: bool,
}

/// The result of a run without violations.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub totals: Totals,
    /// The run's event hash.
    pub hash: u64,
}

/// Runs a plan.
///
/// # Errors
/// The violation, with everything needed to repeat the run.
pub fn run(plan: Plan) -> Result<Report, Box<Failure>> {
    let mut run = Run::new(plan);
    run.storm()?;
    let outside = !run.peace()?;
    Ok(run.report(outside))
}

struct Run {
    sim: Sim,
    users: Users,
    membership: Membership,
    coordinators: Option<Coordinators>,
    next: u64,
    span: Duration,
}

fn first_epoch(plan: &Plan) -> Arc<Epoch> {
    let members = (0..plan.members).map(|node| replica(node, 1)).collect();
    let id = EpochId { generation: 1, number: 1 };
    let settings = EpochSettings { digest_seed: plan.seed.value, ..EpochSettings::default() };
    Arc::new(Epoch::founding(id, members, settings).expect("a valid configuration"))
}

impl Run {
    fn new(plan: Plan) -> Self {
        let epoch = first_epoch(&plan);
        let Plan { seed, members, spares, config, faults, strikes, churn, habits, zeal, .. } = plan;
        let (span, fault_injection, judged) = (plan.span, plan.fault_injection, plan.judged);
        let setup = SimSetup {
            faults,
            lanes: vec![LaneRule::WILD; 3],
            started: Some(members),
            ..SimSetup::new(seed, members + spares)
        };
        let value = seed.value;
        let mut history = History::default();
        history.strikes = Strikes::new(value, strikes);
        history.is_blind = !judged;
        let mut sim = Simulation::new(setup, history, move |boot| {
            let setup = ReplicatorParameters {
                me: replica(boot.node.get(), boot.incarnation),
                config: config.clone(),
                registry: Registry::new(),
                seed: boot.seed,
                fault_injection,
            };
            Node::new(setup, boot.disk)
        });
        for node in 0..members {
            sim.command(NodeIndex::new(node), Command::Found(epoch.clone()));
        }
        Self {
            sim,
            users: Users::new(value, habits),
            membership: Membership::new(value, churn),
            coordinators: zeal.map(|zeal| Coordinators::new(value, zeal)),
            next: 0,
            span,
        }
    }

    /// Runs the load under faults.
    fn storm(&mut self) -> Result<(), Box<Failure>> {
        let end = self.sim.now() + self.span;
        let mut look = self.sim.now() + self.membership.wait();
        while self.sim.now() < end {
            let wait = self.users.wait();
            self.sim.try_run_for(wait)?;
            self.users.ask(&mut self.sim, &mut self.next);
            if let Some(coordinators) = &mut self.coordinators {
                coordinators.step(&mut self.sim, &mut self.next);
            }
            if self.sim.now() >= look {
                self.membership.look(&mut self.sim);
                look = self.sim.now() + self.membership.wait();
            }
        }
        Ok(())
    }

    /// Ends the faults and waits until the cluster is at rest with equal replicas. `false` means
    /// that the faults took a majority for good, so that progress cannot be demanded.
    fn peace(&mut self) -> Result<bool, Box<Failure>> {
        self.sim.observer_mut().strikes.end();
        self.sim.heal();
        self.sim.restart_all();
        self.membership.calm();
        let end = self.sim.now() + REST_WITHIN;
        let mut equal = 0;
        while equal < 2 {
            if self.sim.now() >= end {
                return self.too_late("not at rest");
            }
            self.membership.look(&mut self.sim);
            self.sim.try_run_for(SECOND)?;
            if !self.survives() {
                return Ok(false);
            }
            let served = self.serves() && self.sim.disks_idle();
            let rests = is_settled(&self.sim) && served && self.is_equal() && self.has_expired();
            equal = if rests { equal + 1 } else { 0 };
        }
        self.check_rest()?;
        self.serves_users()?;
        Ok(true)
    }

    fn survives(&self) -> bool {
        self.sim.observer().chain.survives(&self.sim.view(), None)
    }

    /// For up to two keys, the context of each replica, and whether its value follows from the
    /// context.
    fn differing_states(&self, keys: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        for key in keys.iter().take(2) {
            for (_, node) in self.sim.processes() {
                let name = key.as_str().into();
                let Some(value) = node.replicator.peek(&name) else { continue };
                let verdict = self.sim.observer().judge(&name, &value);
                let context = value.state().context();
                lines.push(format!("{key} at {}: {verdict:?} {context:?}", node.id()));
            }
        }
        lines
    }

    fn too_late(&self, what: &str) -> Result<bool, Box<Failure>> {
        let epochs: Vec<String> = self
            .sim
            .processes()
            .map(|(node, p)| {
                let epochs = p.replicator.epochs();
                format!(
                    "{node}: {} epoch {:?} of {:?} accepted {:?} sealed {} synced {} eligible {}",
                    p.id(),
                    epochs.id(),
                    epochs.installed().map(|epoch| epoch.members().to_vec()),
                    epochs.state().accepted.as_ref().map(|(ballot, e)| (ballot, e.members())),
                    epochs.sealed(),
                    epochs.synced(),
                    epochs.eligible()
                )
            })
            .collect();
        let newest =
            self.sim.observer().chain.newest().map(|epoch| (epoch.id(), epoch.members().to_vec()));
        let keys = self.differing();
        let reason = format!(
            "{what} {REST_WITHIN:?} after the last fault: newest {newest:?}\n{}\n{}",
            epochs.join("\n"),
            self.differing_states(&keys).join("\n"),
        );
        Err(Box::new(self.sim.failure(reason)))
    }

    fn serves(&self) -> bool {
        self.sim.processes().all(|(_, node)| node.replicator.epochs().eligible())
    }

    fn differing(&self) -> Vec<String> {
        let mut dumps = self.sim.processes().map(|(_, node)| {
            let dump = node.replicator.dump();
            // A change without effect leaves an empty key behind, which is not replicated.
            dump.filter(|(_, value)| !value.state().context().is_empty())
                .map(|(key, value)| (key.clone(), value))
                .collect::<std::collections::BTreeMap<_, _>>()
        });
        let Some(first) = dumps.next() else { return Vec::new() };
        let mut keys = Vec::new();
        for other in dumps {
            let all = first.keys().chain(other.keys());
            keys.extend(
                all.filter(|key| first.get(*key) != other.get(*key)).map(ToString::to_string),
            );
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Whether all expiring keys are empty.
    fn has_expired(&self) -> bool {
        let expires = |key: &KeyName| key.as_str().starts_with(EXPIRING);
        self.sim.processes().all(|(_, node)| {
            let mut held = node.replicator.dump().filter(|(key, _)| expires(key));
            held.all(|(_, value)| value.state().is_bottom())
        })
    }

    fn is_equal(&self) -> bool {
        self.differing().is_empty()
    }

    fn check_rest(&mut self) -> Result<(), Box<Failure>> {
        let mut history = std::mem::take(self.sim.observer_mut());
        let outcome = history.at_rest(&self.sim.view());
        *self.sim.observer_mut() = history;
        outcome.map_err(|why| Box::new(self.sim.failure(why)))
    }

    /// A majority write and a majority read must succeed at every node.
    fn serves_users(&mut self) -> Result<(), Box<Failure>> {
        let nodes: Vec<NodeIndex> = self.sim.processes().map(|(node, _)| node).collect();
        let within = 5 * SECOND;
        let level = WriteConsistency::majority(within);
        let key = Key::<ORSet<u64>>::new("set-last");
        for node in nodes {
            self.next += 1;
            let element = self.next;
            let update = Update::new(&key, level, move |set| set.insert(&element));
            let asked = Asked {
                key: Some(key.name().clone()),
                ask: Ask::Change(What::Insert(vec![element])),
                strong: true,
                within: Some(within),
            };
            self.succeeds(node, ReplicatorRequest::Update(update), asked)?;
            let consistency = ReadConsistency::majority(within);
            let name = key.name().clone();
            let get = ReplicatorRequest::Get { key: name.clone(), shape: None, consistency };
            let asked =
                Asked { key: Some(name), ask: Ask::Read, strong: true, within: Some(within) };
            self.succeeds(node, get, asked)?;
        }
        Ok(())
    }

    fn succeeds(
        &mut self,
        node: NodeIndex,
        request: ReplicatorRequest,
        asked: Asked,
    ) -> Result<(), Box<Failure>> {
        self.next += 1;
        let id = RequestId(self.next);
        let text = format!("{request:?}");
        self.sim.observer_mut().expect(id, asked);
        self.sim.observer_mut().await_answer(id);
        self.sim.command(node, Command::Request(id, request));
        self.sim.try_run_until(10 * SECOND, |sim| {
            matches!(sim.observer().awaited.get(&id), Some(Some(_)))
        })?;
        match self.sim.observer_mut().awaited.remove(&id).flatten() {
            Some(Ok(ReplicatorReply::Updated { .. } | ReplicatorReply::Got { .. })) => Ok(()),
            other => {
                let why = format!("after the last fault {text} ends in {other:?}");
                Err(Box::new(self.sim.failure(why)))
            }
        }
    }

    fn report(&self, outside: bool) -> Report {
        let mut totals = self.sim.totals();
        let history = self.sim.observer();
        for (_, node) in self.sim.processes() {
            mark(&node.replicator.stats(), &mut totals);
        }
        let (decided, fences) = history.decisions.counts();
        let refused = self.coordinators.as_ref().map_or(0, |c| c.refused);
        for (name, count) in [
            ("run.outside", u64::from(outside)),
            ("run.inside", u64::from(!outside)),
            ("configuration.changed", history.chain.len() as u64 - 1),
            ("decision.acked", decided as u64),
            ("fence.returned", fences as u64),
            ("coordinator.refused", refused),
            ("fault.targeted", history.strikes.count),
            ("write.strong", history.counts.strong_writes),
            ("read.strong", history.counts.strong_reads),
            ("request.timeout", history.counts.timeouts),
            ("request.refused", history.counts.refused),
            ("key.expired", history.counts.expired),
        ] {
            (0..count.min(1_000)).for_each(|_| totals.marks.hit(name));
        }
        Report { totals, hash: self.sim.hash() }
    }
}

/// Sets the marks of rare branches that a replica's counters show.
fn mark(stats: &ReplicatorStats, totals: &mut Totals) {
    for (name, count) in [
        ("rule_r.lack", stats.lacks),
        ("repair.delta", stats.repairs),
        ("repair.full", stats.repairs_full),
        ("read.repair", stats.read_repairs),
        ("write.fenced", stats.fenced),
        ("gossip.differed", stats.gossip_differed),
        ("gossip.equal", stats.gossip_equal),
        ("peer.stranger", stats.strangers),
        ("clock.impossible", stats.impossible_clocks),
        ("store.failed", stats.store_failures),
        ("epoch.abandoned", stats.epoch.abandoned),
        ("epoch.refused", stats.epoch.refused),
    ] {
        if count > 0 {
            totals.marks.hit(name);
        }
    }
    assert_eq!(stats.undecodable, 0, "correct peers send no undecodable messages");
    assert_eq!(stats.wrong_types, 0, "every key has one type");
}
