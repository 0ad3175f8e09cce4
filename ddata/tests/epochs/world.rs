//! Nodes, and a network without order: each packet may be delivered at any time, twice or never.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{
    AcceptorState, Epoch, EpochConfig, EpochId, EpochInput, EpochMessage, EpochOutput,
    EpochSettings, Epochs, MembershipChange, ProposalOutcome,
};

use crate::check::{Checker, HOSTILE};
use crate::parent::{Answer, Ask, Cell, Coordinator, Data, Goal, Parent, Pull, Request, Term};

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Epoch(EpochMessage),
    Ask(u32, Ask),
    Answer(u32, Answer),
    PullRequest(Pull),
    PullAnswer(Pull, Option<Data>),
    /// Anti-entropy: tokens and the guarded value, never promised terms.
    Push(u64, Cell),
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) epoch: Option<EpochId>,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) epochs: Epochs,
    pub(crate) parent: Parent,
    pub(crate) now: Instant,
    pub(crate) alive: bool,
    pub(crate) disk: AcceptorState,
    pub(crate) outcomes: Vec<ProposalOutcome>,
    pub(crate) stopped: bool,
    pub(crate) last_term: u32,
    /// Answers of the lease machine: the next question finds these leases running.
    pub(crate) leases: BTreeMap<u64, Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) net: Vec<Packet>,
    pub(crate) check: Checker,
    pub(crate) fault_injection: FaultInjection,
    seed: u64,
    requests: u32,
    decisions: u16,
}

impl World {
    /// Nodes `1..=members` found the cluster; `joiners` more are in no configuration.
    pub(crate) fn new(
        members: u64,
        joiners: u64,
        seed: u64,
        fault_injection: FaultInjection,
    ) -> Self {
        let mut world = Self {
            nodes: BTreeMap::new(),
            net: Vec::new(),
            check: Checker::default(),
            fault_injection,
            seed,
            requests: 0,
            decisions: 0,
        };
        for id in 1..=members + joiners {
            world.nodes.insert(id, world.node(id));
        }
        let first = EpochId { generation: 1, number: 1 };
        let ids = (1..=members).map(ReplicaId::new).collect();
        let epoch = Arc::new(Epoch::founding(first, ids, EpochSettings::default()).unwrap());
        for id in 1..=members {
            world.input(id, EpochInput::Found(epoch.clone()));
        }
        world.introduce();
        world
    }

    /// Membership has let in every node, and reaches those that are alive.
    fn introduce(&mut self) {
        let known = |(id, node): (&u64, &Node)| (ReplicaId::new(*id), node.alive);
        let known: BTreeMap<_, _> = self.nodes.iter().map(known).collect();
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.input(id, EpochInput::Known(known.clone()));
        }
    }

    /// The failure detector of `id` no longer reaches these nodes.
    pub(crate) fn cut_off(&mut self, id: u64, from: &[u64]) {
        let known = |(other, node): (&u64, &Node)| {
            (ReplicaId::new(*other), node.alive && !from.contains(other))
        };
        let known = self.nodes.iter().map(known).collect();
        self.input(id, EpochInput::Known(known));
    }

    fn node(&self, id: u64) -> Node {
        let config = EpochConfig::default();
        Node {
            epochs: Epochs::new(ReplicaId::new(id), config, self.seed ^ id, self.fault_injection),
            parent: Parent::new(Data::default(), self.fault_injection),
            now: Instant::default(),
            alive: true,
            disk: AcceptorState::default(),
            outcomes: Vec::new(),
            stopped: false,
            last_term: 0,
            leases: BTreeMap::new(),
        }
    }

    // ── inputs ──────────────────────────────────────────────────────────────────────────────

    pub(crate) fn input(&mut self, id: u64, input: EpochInput) {
        let node = self.nodes.get_mut(&id).unwrap();
        let mut out = Outbox::new();
        let now = Now { mono: node.now, wall: WallTime::default() };
        node.epochs.handle(now, input, &mut out);
        let outputs: Vec<_> = out.drain().collect();
        for output in outputs {
            self.perform(id, output);
        }
    }

    fn perform(&mut self, id: u64, output: EpochOutput) {
        let node = self.nodes.get_mut(&id).unwrap();
        match output {
            EpochOutput::Send { to, message } => self.post(id, to.get(), Body::Epoch(message)),
            EpochOutput::Persist(state) => node.disk = state,
            EpochOutput::Freeze(epoch) => node.parent.freeze(epoch),
            EpochOutput::PullSnapshot { epoch, of } => self.order(id, Pull::Snapshot(epoch, of)),
            EpochOutput::PullState { epoch, from } => {
                node.parent.pulls.retain(|pull| matches!(pull, Pull::Snapshot(..)));
                self.order(id, Pull::State(epoch, from));
            }
            EpochOutput::StopPulls => node.parent.pulls.clear(),
            EpochOutput::Installed(epoch) => self.installed(id, &epoch),
            EpochOutput::Synced(_) => self.ask_own(id),
            EpochOutput::AskConsent { query, removed, .. } => {
                let left = |id: &ReplicaId| Some((*id, *node.leases.get(&id.get())?));
                let remaining = removed.iter().filter_map(left).collect();
                node.leases.clear(); // expired at the next question
                self.input(id, EpochInput::Consent { query, remaining });
            }
            EpochOutput::Outcome(outcome) => node.outcomes.push(outcome),
            EpochOutput::StopServing => node.stopped = true,
            EpochOutput::Pending(_) | EpochOutput::Declined { .. } => {}
            EpochOutput::Excluded(_) => {
                node.parent.requests.clear();
                node.parent.coordinator = None;
            }
        }
    }

    fn installed(&mut self, id: u64, epoch: &Arc<Epoch>) {
        self.check.installed(epoch);
        let node = self.nodes.get_mut(&id).unwrap();
        node.parent.snapshot = None;
        if !self.fault_injection.has(ReplicatorFault::MixedEpochs) {
            for request in &mut node.parent.requests {
                request.restart(epoch);
            }
            self.ask_again(id);
        }
    }

    fn order(&mut self, id: u64, pull: Pull) {
        self.nodes.get_mut(&id).unwrap().parent.pulls.insert(pull);
        self.send_pull(id, pull);
    }

    fn send_pull(&mut self, id: u64, pull: Pull) {
        let (Pull::Snapshot(_, of) | Pull::State(_, of)) = pull;
        self.post(id, of.get(), Body::PullRequest(pull));
    }

    fn post(&mut self, from: u64, to: u64, body: Body) {
        if to == HOSTILE {
            return;
        }
        let epoch = self.nodes[&from].epochs.id();
        self.net.push(Packet { from, to, epoch, body });
    }

    // ── events ──────────────────────────────────────────────────────────────────────────────

    pub(crate) fn propose(&mut self, id: u64, change: MembershipChange) {
        self.input(id, EpochInput::Propose(change));
    }

    /// Advances the node's clock to its next deadline.
    pub(crate) fn tick(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).unwrap();
        if let Some(at) = node.epochs.next_deadline().filter(|_| node.alive) {
            node.now = node.now.max(at);
            self.input(id, EpochInput::Tick);
        }
    }

    pub(crate) fn crash(&mut self, id: u64) {
        self.nodes.get_mut(&id).unwrap().alive = false;
        self.introduce();
    }

    /// Restarts a node with its durable state: the data, and the state that the machine persisted.
    pub(crate) fn restart(&mut self, id: u64) {
        let fresh = self.node(id).epochs;
        let node = self.nodes.get_mut(&id).unwrap();
        let Parent { data, .. } = std::mem::take(&mut node.parent);
        node.parent = Parent::new(data, self.fault_injection);
        node.epochs = fresh;
        let disk = node.disk.clone();
        self.input(id, EpochInput::Restore(disk));
        self.introduce();
    }

    /// Delivers one packet, unless its receiver is dead.
    pub(crate) fn deliver(&mut self, packet: Packet) {
        let Packet { from, to, epoch, body } = packet;
        let Some(node) = self.nodes.get_mut(&to).filter(|node| node.alive) else { return };
        if !matches!(body, Body::Epoch(_)) {
            self.input(to, EpochInput::PeerEpoch { from: ReplicaId::new(from), id: epoch });
        } else {
            node.now = node.now + Duration::from_micros(1);
        }
        match body {
            Body::Epoch(message) => {
                self.input(to, EpochInput::Message { from: ReplicaId::new(from), message });
            }
            Body::Ask(request, ask) => {
                if let Some(answer) = epoch.and_then(|epoch| self.serve(to, epoch, &ask)) {
                    self.post(to, from, Body::Answer(request, answer));
                }
            }
            Body::Answer(request, answer) => self.answered(to, from, epoch, request, answer),
            Body::PullRequest(pull) => {
                let node = &self.nodes[&to];
                let data = node.parent.give(&node.epochs, pull);
                self.post(to, from, Body::PullAnswer(pull, data));
            }
            Body::PullAnswer(pull, data) => self.pulled(to, pull, data),
            Body::Push(tokens, cell) => {
                let node = self.nodes.get_mut(&to).unwrap();
                if node.epochs.installed().is_some() {
                    node.parent.data.tokens |= tokens;
                    node.parent.data.merge_cell(&cell);
                }
            }
        }
    }

    fn serve(&mut self, id: u64, epoch: EpochId, ask: &Ask) -> Option<Answer> {
        let node = self.nodes.get_mut(&id).unwrap();
        let answer = node.parent.serve(&node.epochs, epoch, ask)?;
        let (epoch, tokens) = (node.epochs.id()?, node.parent.data.tokens);
        self.check.served(epoch, tokens);
        Some(answer)
    }

    fn pulled(&mut self, id: u64, pull: Pull, data: Option<Data>) {
        let node = self.nodes.get_mut(&id).unwrap();
        if !node.parent.pulls.contains(&pull) {
            return;
        }
        if let Some(data) = &data {
            node.parent.data.merge(data, self.fault_injection);
        }
        match (pull, data) {
            (Pull::Snapshot(epoch, of), Some(_)) => {
                self.input(id, EpochInput::SnapshotMerged { epoch, of });
            }
            (Pull::Snapshot(..), None) => {}
            (Pull::State(epoch, from), Some(_)) => {
                self.input(id, EpochInput::StateMerged { epoch, from });
            }
            (Pull::State(epoch, from), None) => {
                self.input(id, EpochInput::SourceFailed { epoch, from });
            }
        }
    }

    // ── the user's requests ─────────────────────────────────────────────────────────────────

    pub(crate) fn write(&mut self, id: u64, token: u32) {
        self.open(id, Goal::Write(1 << token));
    }

    pub(crate) fn read(&mut self, id: u64) {
        let expected = self.check.all_known();
        self.open(id, Goal::Read { expected });
    }

    /// A coordinator takes a new term.
    pub(crate) fn fence(&mut self, id: u64) {
        let anonymous = self.fault_injection.has(ReplicatorFault::TermWithoutCoordinator);
        let node = self.nodes.get_mut(&id).unwrap();
        node.last_term = node.last_term.max(node.parent.data.promise.0) + 1;
        let term = Term(node.last_term, if anonymous { 0 } else { id });
        node.parent.step_down();
        self.open(id, Goal::Fence(term));
    }

    /// A recovered coordinator decides, on top of the value that it knows.
    pub(crate) fn decide(&mut self, id: u64) {
        self.decisions += 1;
        let decision = self.decisions;
        let coordinator = self.nodes.get_mut(&id).unwrap().parent.coordinator.as_mut();
        let Some(coordinator) = coordinator.filter(|coordinator| coordinator.recovered) else {
            return;
        };
        coordinator.seq += 1;
        coordinator.cell.term = coordinator.term;
        coordinator.cell.seq = coordinator.seq;
        coordinator.cell.history.push(decision);
        let cell = coordinator.cell.clone();
        self.open(id, Goal::Decide(cell));
    }

    fn open(&mut self, id: u64, goal: Goal) {
        self.requests += 1;
        let node = self.nodes.get_mut(&id).unwrap();
        let Some(epoch) = node.epochs.installed().cloned() else { return };
        if node.alive && node.epochs.is_member() {
            let request = Request { id: self.requests, epoch, goal, answers: BTreeMap::new() };
            node.parent.requests.push(request);
            self.ask_one(id, self.requests);
        }
    }

    /// Asks all voters, this node included.
    fn ask_one(&mut self, id: u64, request: u32) {
        let requests = &self.nodes[&id].parent.requests;
        let Some(open) = requests.iter().find(|open| open.id == request) else { return };
        let (ask, epoch) = (open.ask(), open.epoch.clone());
        for voter in epoch.voters().iter().map(|id| id.get()).filter(|voter| *voter != id) {
            let body = Body::Ask(request, ask.clone());
            self.net.push(Packet { from: id, to: voter, epoch: Some(epoch.id()), body });
        }
        if let Some(answer) = self.serve(id, epoch.id(), &ask) {
            self.answered(id, id, Some(epoch.id()), request, answer);
        }
    }

    pub(crate) fn ask_again(&mut self, id: u64) {
        let open: Vec<_> = self.nodes[&id].parent.requests.iter().map(|open| open.id).collect();
        for request in open {
            self.ask_one(id, request);
        }
        let pulls = self.nodes[&id].parent.pulls.clone();
        for pull in pulls {
            self.send_pull(id, pull);
        }
    }

    fn ask_own(&mut self, id: u64) {
        self.ask_again(id);
    }

    fn answered(
        &mut self,
        id: u64,
        from: u64,
        epoch: Option<EpochId>,
        request: u32,
        answer: Answer,
    ) {
        let fault_injection = self.fault_injection;
        let requests = &mut self.nodes.get_mut(&id).unwrap().parent.requests;
        let Some(at) = requests.iter().position(|open| open.id == request) else { return };
        let open = &mut requests[at];
        if epoch != Some(open.epoch.id()) && !fault_injection.has(ReplicatorFault::MixedEpochs) {
            return;
        }
        // A late answer to the read does not acknowledge its write-back.
        let fits = match (&open.goal, &answer) {
            (_, Answer::Fenced) => true,
            (Goal::Read { .. }, answer) => matches!(answer, Answer::Tokens(_)),
            (Goal::Fence(_), answer) => matches!(answer, Answer::Cell(_)),
            (_, answer) => *answer == Answer::Ack,
        };
        if answer == Answer::Fenced {
            self.nodes.get_mut(&id).unwrap().parent.step_down();
        } else if fits {
            open.answers.insert(ReplicaId::new(from), answer);
            if open.is_complete(fault_injection) {
                let done = requests.remove(at);
                self.completed(id, done);
            }
        }
    }

    fn completed(&mut self, id: u64, done: Request) {
        let epoch = done.epoch.id();
        match done.goal {
            Goal::Write(tokens) => self.check.promised(epoch, tokens),
            Goal::Read { expected } => self.read_done(id, expected, &done),
            Goal::WriteBack { expected, tokens } => self.check.read(epoch, expected, tokens),
            Goal::Fence(term) => self.fenced(id, term, &done),
            Goal::Recover(term, cell) => self.recovered(id, term, cell),
            Goal::Decide(cell) => self.check.acked(id, &cell),
        }
    }

    fn read_done(&mut self, id: u64, expected: u64, done: &Request) {
        let tokens = |answer: &Answer| match answer {
            Answer::Tokens(tokens) => *tokens,
            _ => 0,
        };
        let merged = done.answers.values().fold(0, |all, answer| all | tokens(answer));
        self.nodes.get_mut(&id).unwrap().parent.data.tokens |= merged;
        let equal = done.answers.values().all(|answer| tokens(answer) == merged);
        if equal || self.fault_injection.has(ReplicatorFault::NoReadRepair) {
            self.check.read(done.epoch.id(), expected, merged);
        } else {
            self.open(id, Goal::WriteBack { expected, tokens: merged });
        }
    }

    fn fenced(&mut self, id: u64, term: Term, done: &Request) {
        let mut read = Data::default();
        for answer in done.answers.values() {
            if let Answer::Cell(cell) = answer {
                read.merge_cell(cell);
            }
        }
        if self.fault_injection.has(ReplicatorFault::NoRecoveryWrite) {
            self.recovered(id, term, read.cell);
        } else {
            self.open(id, Goal::Recover(term, read.cell));
        }
    }

    fn recovered(&mut self, id: u64, term: Term, cell: Cell) {
        self.check.speaks(term, id, &cell.history);
        let coordinator = Coordinator { term, recovered: true, cell, seq: 0 };
        self.nodes.get_mut(&id).unwrap().parent.coordinator = Some(coordinator);
    }

    pub(crate) fn push(&mut self, from: u64, to: u64) {
        let data = &self.nodes[&from].parent.data;
        let body = Body::Push(data.tokens, data.cell.clone());
        if self.nodes[&from].alive && self.nodes[&from].epochs.is_member() {
            self.post(from, to, body);
        }
    }
}
