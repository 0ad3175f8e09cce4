//! Explores every schedule of a small case breadth first, with the real machines.
//!
//! The search is feasible because a node's step depends on that node and one message only: each
//! (node state, event) is executed once and remembered, and a state of the world is four small
//! numbers and a set of messages. Messages stay in the set once sent, so that each may arrive at
//! any time, any number of times, or never. The coordinator of the write is an adversary: each
//! replica that may acknowledge the token may do so at any time, and acknowledgements count per
//! configuration. The only timer is the patience with a seal, which may end as often as the case
//! allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{
    Epoch, EpochConfig, EpochId, EpochInput, EpochMessage, EpochOutput, EpochSettings, Epochs,
    MembershipChange,
};

use crate::check::Violation;
use crate::parent::Pull;

/// Most different messages of one case.
const MESSAGES_MAX: usize = 256;

/// The number of every forged ballot: above all others of a search.
pub(crate) const FORGED_BALLOT: u64 = 1_000;

/// One node and whether it holds the token.
#[derive(Clone)]
struct Local {
    epochs: Epochs,
    now: Instant,
    token: bool,
    snapshot: Option<(EpochId, bool)>,
    pulls: BTreeSet<Pull>,
    wishes: Vec<MembershipChange>,
    patience: u8,
}

impl Local {
    fn essence(&self) -> String {
        let parent = (self.token, self.snapshot, &self.pulls, self.wishes.len(), self.patience);
        format!("{}{parent:?}", self.epochs.essence())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deliver(u8),
    Propose,
    LosePatience,
    Ack,
    Merge(Pull, bool),
}

/// A node, its proposals, and how often its patience with a seal ends.
pub(crate) type Plan = (u64, Vec<MembershipChange>, u8);

/// The result of an event: the node's new state, and the messages sent.
type Step = (u16, Vec<u8>);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    locals: [u16; 4],
    sent: [u64; MESSAGES_MAX / 64],
    /// Replicas that acknowledged in configuration 1, 2 and 3, as bits.
    acks: [u8; 3],
}

pub(crate) struct Case {
    /// Nodes that membership does not list, because they were removed.
    pub(crate) removed: Vec<u64>,
    /// Messages that an attacker may deliver at any time, once the receiver has reached this
    /// number.
    forged: Vec<(u8, u64)>,
    locals: Vec<Local>,
    known: BTreeMap<String, u16>, // by node and essence
    messages: Vec<(u64, u64, EpochMessage)>,
    ids: BTreeMap<String, u8>,
    steps: BTreeMap<(u16, Event), Step>,
}

impl Case {
    /// Lets `attacker` send these messages to a node that has reached configuration `number`.
    pub(crate) fn forge(&mut self, attacker: u64, to: u64, number: u64, messages: &[EpochMessage]) {
        for message in messages {
            let message = self.message(attacker, to, message.clone());
            self.forged.push((message, number));
        }
    }

    pub(crate) fn new() -> Self {
        Self {
            removed: Vec::new(),
            forged: Vec::new(),
            locals: Vec::new(),
            known: BTreeMap::new(),
            messages: Vec::new(),
            ids: BTreeMap::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Nodes `1..=members` in configuration 1; the others (up to 4) join.
    pub(crate) fn start(
        &mut self,
        members: u64,
        plan: &[Plan],
        fault_injection: FaultInjection,
    ) -> State {
        let first = EpochId { generation: 1, number: 1 };
        let ids = (1..=members).map(ReplicaId::new).collect();
        let epoch = Arc::new(Epoch::founding(first, ids, EpochSettings::default()).unwrap());
        let locals = [1, 2, 3, 4].map(|id| {
            let mut epochs =
                Epochs::new(ReplicaId::new(id), EpochConfig::default(), 0, fault_injection);
            let let_in = (1..=4).filter(|id| !self.removed.contains(id));
            let known = let_in.map(|id| (ReplicaId::new(id), true)).collect();
            let now = Now { mono: Instant::default(), wall: WallTime::default() };
            epochs.handle(now, EpochInput::Known(known), &mut Outbox::new());
            let planned = plan.iter().find(|(node, ..)| *node == id);
            let (wishes, patience) = planned
                .map_or_else(Default::default, |(_, wishes, patience)| (wishes.clone(), *patience));
            let (now, pulls) = (Instant::default(), BTreeSet::new());
            let local =
                Local { epochs, now, token: false, snapshot: None, pulls, wishes, patience };
            if id > members {
                return self.intern(id, local);
            }
            let (local, sent) = self.handle(id, local, EpochInput::Found(epoch.clone()));
            assert!(sent.is_empty());
            self.intern(id, local)
        });
        State { locals, sent: Default::default(), acks: Default::default() }
    }

    fn intern(&mut self, id: u64, local: Local) -> u16 {
        let next = u16::try_from(self.locals.len()).expect("more node states than a u16 can name");
        let index = *self.known.entry(format!("{id}{}", local.essence())).or_insert(next);
        if index == next {
            self.locals.push(local);
        }
        index
    }

    fn message(&mut self, from: u64, to: u64, message: EpochMessage) -> u8 {
        let next = u8::try_from(self.messages.len()).expect("more messages than a u8 can name");
        let index = *self.ids.entry(format!("{from} {to} {message:?}")).or_insert(next);
        if index == next {
            self.messages.push((from, to, message));
        }
        index
    }

    fn handle(&mut self, id: u64, mut local: Local, input: EpochInput) -> (Local, Vec<u8>) {
        let mut sent = Vec::new();
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut out = Outbox::new();
            local.now = local.now + Duration::from_secs(1); // longer than every rate limit
            let now = Now { mono: local.now, wall: WallTime::default() };
            local.epochs.handle(now, input, &mut out);
            for output in out.drain() {
                match output {
                    EpochOutput::Send { to, message } => {
                        sent.push(self.message(id, to.get(), message));
                    }
                    EpochOutput::Freeze(epoch) => local.snapshot = Some((epoch, local.token)),
                    EpochOutput::PullSnapshot { epoch, of } => {
                        local.pulls.insert(Pull::Snapshot(epoch, of));
                    }
                    EpochOutput::PullState { epoch, from } => {
                        local.pulls.retain(|pull| matches!(pull, Pull::Snapshot(..)));
                        local.pulls.insert(Pull::State(epoch, from));
                    }
                    EpochOutput::StopPulls => local.pulls.clear(),
                    EpochOutput::Installed(_) => local.snapshot = None,
                    EpochOutput::AskConsent { query, .. } => {
                        inputs.push(EpochInput::Consent { query, remaining: Vec::new() });
                    }
                    _ => {}
                }
            }
        }
        (local, sent)
    }

    fn step(&mut self, at: u16, id: u64, event: Event) -> Step {
        if let Some(step) = self.steps.get(&(at, event)) {
            return step.clone();
        }
        let mut local = self.locals[usize::from(at)].clone();
        let input = match event {
            Event::Deliver(message) => {
                let (from, _, message) = self.messages[usize::from(message)].clone();
                Some(EpochInput::Message { from: ReplicaId::new(from), message })
            }
            Event::Propose => Some(EpochInput::Propose(local.wishes.remove(0))),
            Event::LosePatience => {
                local.patience -= 1;
                local.now = local.now + Duration::from_secs(3_600);
                Some(EpochInput::Tick)
            }
            Event::Ack => {
                local.token = true;
                None
            }
            Event::Merge(pull, token) => {
                local.token |= token;
                Some(match pull {
                    Pull::Snapshot(epoch, of) => EpochInput::SnapshotMerged { epoch, of },
                    Pull::State(epoch, from) => EpochInput::StateMerged { epoch, from },
                })
            }
        };
        let (local, sent) = match input {
            Some(input) => self.handle(id, local, input),
            None => (local, Vec::new()),
        };
        let step = (self.intern(id, local), sent);
        self.steps.insert((at, event), step.clone());
        step
    }

    /// All events that are possible at node `id` (its index is `id - 1`).
    fn events(&self, state: &State, id: u64) -> Vec<Event> {
        let local = &self.locals[usize::from(state.locals[id as usize - 1])];
        let mut events = Vec::new();
        for (index, (_, to, _)) in self.messages.iter().enumerate() {
            if *to == id && state.sent[index / 64] & (1 << (index % 64)) != 0 {
                events.push(Event::Deliver(index as u8));
            }
        }
        for (index, number) in &self.forged {
            let (_, to, _) = self.messages[usize::from(*index)];
            if to == id && self.number(state, id) as u64 >= *number {
                events.push(Event::Deliver(*index));
            }
        }
        if !local.wishes.is_empty() {
            events.push(Event::Propose);
        }
        if local.patience > 0 && local.epochs.sealed() {
            events.push(Event::LosePatience);
        }
        if local.epochs.eligible() && !self.acked(state, id) {
            events.push(Event::Ack);
        }
        for &pull in &local.pulls {
            let (Pull::Snapshot(_, of) | Pull::State(_, of)) = pull;
            let source = &self.locals[usize::from(state.locals[of.get() as usize - 1])];
            let token = match pull {
                Pull::Snapshot(epoch, _) => {
                    source.snapshot.filter(|(id, _)| *id == epoch).map(|(_, token)| token)
                }
                Pull::State(epoch, _) => {
                    let has = source.epochs.id() == Some(epoch) && source.epochs.synced();
                    has.then_some(source.token)
                }
            };
            events.extend(token.map(|token| Event::Merge(pull, token)));
        }
        events
    }

    fn number(&self, state: &State, id: u64) -> usize {
        let local = &self.locals[usize::from(state.locals[id as usize - 1])];
        local.epochs.id().map_or(0, |id| id.number as usize)
    }

    fn acked(&self, state: &State, id: u64) -> bool {
        state.acks[self.number(state, id) - 1] & (1 << id) != 0
    }

    /// Whether a forged configuration is installed, or a forged ballot is promised.
    fn is_forged(&self, epochs: &Epochs) -> bool {
        let promise = epochs.state().promise;
        let made = |message: &EpochMessage| match message {
            EpochMessage::Install { epoch } | EpochMessage::Sync { base: epoch, .. } => {
                epochs.installed() == Some(epoch)
            }
            _ => false,
        };
        let mut forged = self.forged.iter().map(|(index, _)| &self.messages[usize::from(*index)].2);
        promise.is_some_and(|promise| promise.number == FORGED_BALLOT) || forged.any(made)
    }

    fn violation(&self, state: &State) -> Option<Violation> {
        let locals = state.locals.map(|at| &self.locals[usize::from(at)]);
        if locals.iter().any(|local| self.is_forged(&local.epochs)) {
            return Some(Violation::Forged);
        }
        let mut configurations: BTreeMap<EpochId, &Arc<Epoch>> = BTreeMap::new();
        for epoch in locals.iter().filter_map(|local| local.epochs.installed()) {
            if *configurations.entry(epoch.id()).or_insert(epoch) != epoch {
                return Some(Violation::A);
            }
        }
        let acked = |epoch: &Epoch| {
            let bits = state.acks[epoch.id().number as usize - 1];
            2 * epoch.voters().iter().filter(|id| bits & (1 << id.get()) != 0).count()
                > epoch.voters().len()
        };
        if !configurations.values().any(|epoch| acked(epoch)) {
            return None;
        }
        let lost = configurations.values().any(|epoch| {
            let lacking = locals.iter().filter(|local| {
                !local.token && local.epochs.eligible() && local.epochs.installed() == Some(*epoch)
            });
            2 * lacking.count() > epoch.voters().len()
        });
        lost.then_some(Violation::Bc)
    }
}

/// The result of a search.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
pub(crate) struct Found {
    states: usize,
    depth: usize,
    nodes: usize,
    messages: usize,
    /// Whether some state has a majority that serves in configuration 2.
    pub(crate) changed: bool,
    /// The first violation, and the length of the shortest trace to it.
    pub(crate) violation: Option<(Violation, usize)>,
}

/// Breadth first, so that the first violation has the shortest trace.
fn search(members: u64, plan: &[Plan], fault_injection: FaultInjection, most: usize) -> Found {
    let mut case = Case::new();
    let start = case.start(members, plan, fault_injection);
    explore(case, start, most)
}

/// Breadth first from `start`, over about `most` states.
pub(crate) fn explore(mut case: Case, start: State, most: usize) -> Found {
    let mut seen = BTreeSet::from([start]);
    let mut frontier = vec![start];
    let (mut depth, mut changed) = (0, false);
    while !frontier.is_empty() && seen.len() < most {
        let mut next = Vec::new();
        for state in frontier {
            if let Some(violation) = case.violation(&state) {
                let (nodes, messages) = (case.locals.len(), case.messages.len());
                let violation = Some((violation, depth));
                return Found { states: seen.len(), depth, nodes, messages, changed, violation };
            }
            changed |= serving(&case, &state) >= 2;
            for id in 1..=4 {
                for event in case.events(&state, id) {
                    let after = apply(&mut case, state, id, event);
                    if after != state && seen.insert(after) {
                        next.push(after);
                    }
                }
            }
        }
        frontier = next;
        depth += 1;
    }
    let (nodes, messages) = (case.locals.len(), case.messages.len());
    Found { states: seen.len(), depth, nodes, messages, changed, violation: None }
}

fn serving(case: &Case, state: &State) -> usize {
    let eligible = |id: &u64| {
        let local = &case.locals[usize::from(state.locals[*id as usize - 1])];
        case.number(state, *id) == 2 && local.epochs.eligible()
    };
    (1..=4).filter(eligible).count()
}

fn apply(case: &mut Case, mut state: State, id: u64, event: Event) -> State {
    if event == Event::Ack {
        state.acks[case.number(&state, id) - 1] |= 1 << id;
    }
    let index = id as usize - 1;
    let (local, sent) = case.step(state.locals[index], id, event);
    state.locals[index] = local;
    for message in sent {
        state.sent[usize::from(message) / 64] |= 1 << (message % 64);
    }
    state
}

fn join(id: u64) -> MembershipChange {
    MembershipChange { join: vec![ReplicaId::new(id)], ..MembershipChange::default() }
}

fn leave(id: u64) -> MembershipChange {
    MembershipChange { leave: vec![ReplicaId::new(id)], ..MembershipChange::default() }
}

pub(crate) fn swap(joins: u64, leaves: u64) -> MembershipChange {
    MembershipChange { leave: vec![ReplicaId::new(leaves)], ..join(joins) }
}

/// Asserts that no schedule violates a property, and that the change can succeed.
fn is_safe(members: u64, plan: &[Plan]) -> Found {
    let found = search(members, plan, FaultInjection::none(), usize::MAX);
    assert!(found.violation.is_none() && found.changed, "{found:?}");
    found
}

#[test]
fn three_nodes_one_swap_one_ballot() {
    println!("{:?}", is_safe(3, &[(1, vec![swap(4, 3)], 0)]));
}

#[test]
fn two_nodes_with_an_abandoned_seal() {
    println!("{:?}", is_safe(2, &[(1, vec![join(3)], 0), (2, vec![], 1)]));
}

#[test]
fn two_nodes_that_replace_each_other_at_once() {
    println!("{:?}", is_safe(2, &[(1, vec![swap(3, 2)], 0), (2, vec![swap(4, 1)], 0)]));
}

/// Breadth first finds the shortest trace of each fault. The second case without a fault is safe to
/// a greater depth than its traces.
#[test]
fn faults_are_found_with_shortest_traces() {
    use ReplicatorFault::{
        AcceptBelowPromise, BallotWithoutNode, HalfWithoutTiebreaker, IgnoreAccepted,
    };
    let swap_one: &[Plan] = &[(1, vec![swap(4, 3)], 0)];
    let both: &[Plan] = &[(1, vec![join(3)], 0), (2, vec![leave(1)], 0)];
    for (bug, members, plan, by) in [
        (ReplicatorFault::NotSealed, 3, swap_one, Violation::Bc),
        (ReplicatorFault::SyncFromFewer, 3, swap_one, Violation::Bc),
        (IgnoreAccepted, 2, both, Violation::A),
        (AcceptBelowPromise, 2, both, Violation::A),
        (BallotWithoutNode, 2, both, Violation::A),
        (HalfWithoutTiebreaker, 2, both, Violation::A),
    ] {
        let found = search(members, plan, FaultInjection::with(bug), 1_000_000);
        println!("{bug:?}: {found:?}");
        assert_eq!(found.violation.map(|(violation, _)| violation), Some(by), "{bug:?}");
    }
    let safe = search(2, both, FaultInjection::none(), 200_000);
    assert!(safe.violation.is_none() && safe.depth > 11, "{safe:?}");
}
