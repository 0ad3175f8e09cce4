//! A cluster of Replicators in the simulator, for tests: nodes are numbered, each kind of request
//! has a method, and answers are awaited with a deadline in simulated time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::data::{Registry, Value};
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::{Group, Key, KeyName, Pattern};
use ostraca_ddata::replicator::ReplicatorParameters;
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{
    Epoch, EpochId, EpochSettings, MembershipChange, ProposalOutcome,
};
use ostraca_ddata::replicator::port::{Peer, ReplicatorAlarm};
use ostraca_ddata::replicator::request::{
    Guard, ReadConsistency, ReplicatorReply, ReplicatorRequest, RequestError, RequestId,
    SubscriptionId, SubscriptionNotice, Update, WriteConsistency,
};
use ostraca_ddata::replicator::stats::ReplicatorStats;
use ostraca_ddata::replicator::wire::ReplicatorMessage;
use ostraca_ddata::sim::{
    Fault, Faults, InvariantViolation, LaneRule, NodeIndex, Observer, Orders, Simulation,
    SimulationSetup as SimSetup, SimulationView,
};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{DataType, Term};

use crate::node::{Command, Event, Node, Sent, replica};

pub type Answer = Result<ReplicatorReply, RequestError>;

/// All events that the nodes have emitted so far.
#[derive(Default)]
pub struct Log {
    pub answers: BTreeMap<RequestId, Answer>,
    pub notices: BTreeMap<SubscriptionId, Vec<SubscriptionNotice>>,
    pub installed: Vec<(NodeIndex, Arc<Epoch>)>,
    pub outcomes: Vec<(NodeIndex, ProposalOutcome)>,
    pub alarms: Vec<(NodeIndex, ReplicatorAlarm)>,
}

#[derive(Clone, Default)]
pub struct Watcher(pub Rc<RefCell<Log>>);

impl Observer<Node> for Watcher {
    fn event(
        &mut self,
        _: &SimulationView<'_, Node>,
        node: NodeIndex,
        event: &Event,
        _: &mut Orders<Node>,
    ) -> Result<(), InvariantViolation> {
        let mut log = self.0.borrow_mut();
        match event {
            Event::Replied(id, reply) => {
                if log.answers.insert(*id, reply.clone()).is_some() {
                    return Err(InvariantViolation::new(format!("{id:?} was answered twice")));
                }
            }
            Event::Notified(id, notice) => {
                log.notices.entry(*id).or_default().push(notice.clone());
            }
            Event::Installed(epoch) => log.installed.push((node, epoch.clone())),
            Event::Outcome(outcome) => log.outcomes.push((node, outcome.clone())),
            Event::Alarm(alarm) => log.alarms.push((node, alarm.clone())),
            Event::Asked(_)
            | Event::Made(..)
            | Event::Expired(_)
            | Event::Synced
            | Event::Excluded => {}
        }
        Ok(())
    }
}

/// The parameters of a cluster.
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub started: usize,
    pub members: usize,
    pub config: ReplicatorConfig,
    pub faults: Faults,
    pub fault_injection: FaultInjection,
    pub registry: Registry,
}

impl Plan {
    /// A cluster of `nodes` members of a first configuration, without faults, with default
    /// settings.
    pub fn of(nodes: usize) -> Self {
        Self {
            seed: 1,
            nodes,
            started: nodes,
            members: nodes,
            config: ReplicatorConfig::default(),
            faults: Faults::none(),
            fault_injection: FaultInjection::none(),
            registry: Registry::new(),
        }
    }

    pub fn start(self) -> Cluster {
        Cluster::new(self)
    }
}

pub struct Cluster {
    pub sim: Simulation<Node, Watcher>,
    log: Rc<RefCell<Log>>,
    next: u64,
}

/// The lanes of every cluster: control, data and bulk, none of which guarantees anything.
pub fn lanes() -> Vec<LaneRule> {
    vec![LaneRule::WILD; 3]
}

/// The first configuration of nodes `0..members`.
pub fn first_epoch(members: usize) -> Arc<Epoch> {
    let members = (0..members).map(|node| replica(node, 1)).collect();
    let id = EpochId { generation: 1, number: 1 };
    Arc::new(Epoch::founding(id, members, EpochSettings::default()).expect("a valid configuration"))
}

impl Cluster {
    pub fn new(plan: Plan) -> Self {
        let Plan { seed, nodes, started, members, config, faults, fault_injection, registry } =
            plan;
        let watcher = Watcher::default();
        let log = watcher.0.clone();
        let setup = SimSetup {
            faults,
            lanes: lanes(),
            started: Some(started),
            ..SimSetup::new(seed, nodes)
        };
        let sim = Simulation::new(setup, watcher, move |boot| {
            let setup = ReplicatorParameters {
                me: replica(boot.node.get(), boot.incarnation),
                config: config.clone(),
                registry: registry.clone(),
                seed: boot.seed,
                fault_injection,
            };
            Node::new(setup, boot.disk).counting()
        });
        let mut cluster = Self { sim, log, next: 0 };
        if members > 0 {
            let epoch = first_epoch(members);
            for node in 0..members {
                cluster.command(node, Command::Found(epoch.clone()));
            }
        }
        cluster
    }

    pub fn command(&mut self, node: usize, command: Command) {
        self.sim.command(NodeIndex::new(node), command);
    }

    pub fn node(&self, node: usize) -> &Node {
        self.sim.process(NodeIndex::new(node)).expect("the node runs")
    }

    pub fn ask(&mut self, node: usize, request: ReplicatorRequest) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.command(node, Command::Request(id, request));
        id
    }

    pub fn update<T: DataType, R>(
        &mut self,
        node: usize,
        key: &str,
        consistency: WriteConsistency,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    ) -> RequestId {
        self.ask(node, ReplicatorRequest::Update(Update::new(&Key::<T>::new(key), consistency, f)))
    }

    pub fn guarded<T: DataType, R>(
        &mut self,
        node: usize,
        (group, term): (&str, Term),
        key: &str,
        consistency: WriteConsistency,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    ) -> RequestId {
        let update = Update::new(&Key::<T>::new(key), consistency, f);
        let update = update.guarded(Guard { group: Group::new(group), term });
        self.ask(node, ReplicatorRequest::Update(update))
    }

    pub fn get(&mut self, node: usize, key: &str, consistency: ReadConsistency) -> RequestId {
        self.ask(node, ReplicatorRequest::Get { key: key.into(), shape: None, consistency })
    }

    pub fn delete(&mut self, node: usize, key: &str, consistency: WriteConsistency) -> RequestId {
        self.ask(node, ReplicatorRequest::Delete { key: key.into(), consistency })
    }

    pub fn fence(&mut self, node: usize, group: &str, term: Term, within: Duration) -> RequestId {
        self.ask(node, ReplicatorRequest::Fence { group: Group::new(group), term, within })
    }

    pub fn subscribe(&mut self, node: usize, pattern: &str) -> SubscriptionId {
        self.next += 1;
        let subscription = SubscriptionId(self.next);
        self.ask(
            node,
            ReplicatorRequest::Subscribe { subscription, pattern: Pattern::new(pattern) },
        );
        subscription
    }

    pub fn propose(&mut self, node: usize, change: MembershipChange) {
        self.command(node, Command::Propose(change));
    }

    /// Tells every running node which nodes run, as membership would.
    pub fn introduce(&mut self) {
        let peer = |id| Peer { id, stopping: false, reachable: true };
        let all: Vec<Peer> = self.sim.processes().map(|(_, node)| peer(node.id())).collect();
        let nodes: Vec<usize> = self.sim.processes().map(|(node, _)| node.get()).collect();
        for node in nodes {
            self.command(node, Command::Members(all.clone()));
        }
    }

    /// Cuts every link between the groups, until [`heal`](Self::heal).
    pub fn partition(&mut self, groups: &[&[usize]]) {
        let group = |group: &&[usize]| group.iter().copied().map(NodeIndex::new).collect();
        let groups = groups.iter().map(group).collect();
        self.sim.fault(&Fault::Partition { groups, span: None });
    }

    pub fn heal(&mut self) {
        self.sim.heal();
    }

    pub fn crash(&mut self, node: usize) {
        self.sim.crash(NodeIndex::new(node));
    }

    /// Starts the next incarnation of a node that has crashed.
    pub fn restart(&mut self, node: usize) {
        self.sim.restart(NodeIndex::new(node));
    }

    /// Makes the next sync of a node's disk fail.
    pub fn fail_disk(&mut self, node: usize) {
        self.sim.fault(&Fault::FailSync { node: NodeIndex::new(node) });
    }

    /// Counts of the messages that all running nodes have sent so far, by kind.
    pub fn sent(&self) -> BTreeMap<&'static str, Sent> {
        let mut all: BTreeMap<&'static str, Sent> = BTreeMap::new();
        for (_, node) in self.sim.processes() {
            for (kind, sent) in node.sent.iter().flatten() {
                let sum = all.entry(kind).or_default();
                sum.messages += sent.messages;
                sum.bytes += sent.bytes;
                sum.longest = sum.longest.max(sent.longest);
            }
        }
        all
    }

    /// Counts of the messages sent since `before`, by kind.
    pub fn sent_since(
        &self,
        before: &BTreeMap<&'static str, Sent>,
    ) -> BTreeMap<&'static str, Sent> {
        let mut since = self.sent();
        for (kind, sent) in &mut since {
            let before = before.get(kind).copied().unwrap_or_default();
            sent.messages -= before.messages;
            sent.bytes -= before.bytes;
        }
        since.retain(|_, sent| sent.messages > 0);
        since
    }

    pub fn stats(&self, node: usize) -> ReplicatorStats {
        self.node(node).replicator.stats()
    }

    /// Makes an update and waits for the reply.
    pub fn write<T: DataType, R>(
        &mut self,
        node: usize,
        key: &str,
        consistency: WriteConsistency,
        f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
    ) -> Answer {
        let id = self.update(node, key, consistency, f);
        self.answer(id)
    }

    pub fn read<T: DataType>(
        &mut self,
        node: usize,
        key: &str,
        consistency: ReadConsistency,
    ) -> Option<T> {
        let id = self.get(node, key, consistency);
        got(self.answer(id))
    }

    pub fn inject(&mut self, node: usize, from: ReplicaId, message: ReplicatorMessage) {
        self.command(node, Command::Inject(from, message));
    }

    pub fn run(&mut self, span: Duration) {
        self.sim.run_for(span);
    }

    /// Runs until a request is answered, at most a minute, and returns the reply.
    pub fn answer(&mut self, id: RequestId) -> Answer {
        let log = self.log.clone();
        self.sim
            .run_until(Duration::from_secs(60), move |_| log.borrow().answers.contains_key(&id));
        self.log.borrow().answers[&id].clone()
    }

    /// The reply to a request, if it was answered yet.
    pub fn answered(&self, id: RequestId) -> Option<Answer> {
        self.log.borrow().answers.get(&id).cloned()
    }

    pub fn notices(&self, subscription: SubscriptionId) -> Vec<SubscriptionNotice> {
        self.log.borrow().notices.get(&subscription).cloned().unwrap_or_default()
    }

    pub fn log(&self) -> std::cell::Ref<'_, Log> {
        self.log.borrow()
    }

    /// The value that a node holds of a key right now; `None` if nothing is live.
    pub fn held<T: DataType>(&self, node: usize, key: &str) -> Option<T> {
        let value = self.node(node).replicator.peek(&KeyName::new(key))?;
        if value.state().is_bottom() { None } else { value.get() }
    }

    /// Runs until all of `nodes` hold equal states of every key.
    pub fn settle(&mut self, nodes: &[usize], within: Duration) {
        self.run(millis(1)); // lets requests that were just made take effect
        let nodes = nodes.to_vec();
        self.sim.run_until(within, |sim| {
            let dump = |node: usize| -> Option<Vec<(KeyName, Value)>> {
                let process = sim.process(NodeIndex::new(node))?;
                let dump = process.replicator.dump();
                Some(dump.map(|(key, value)| (key.clone(), value)).collect())
            };
            let first = dump(nodes[0]);
            nodes.iter().all(|node| dump(*node) == first)
        });
    }
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const WRITE_MAJORITY: WriteConsistency = WriteConsistency::majority(secs(3));
pub const READ_MAJORITY: ReadConsistency = ReadConsistency::majority(secs(3));

/// The value of a read that succeeded.
pub fn got<T: DataType>(answer: Answer) -> Option<T> {
    match answer {
        Ok(ReplicatorReply::Got { value, .. }) => {
            value.map(|value| value.get().expect("the key has this type"))
        }
        other => panic!("not a value: {other:?}"),
    }
}
