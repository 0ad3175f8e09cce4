//! A Replicator as a process of the simulator, and the observer that records when replicas have
//! seen changes.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{Sent, holds};
use crate::bug::Canary;
use crate::causal::{CausalContext, Dot};
use crate::clock::{Instant, Now};
use crate::data::Registry;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::machine::{Machine, Outbox};
use crate::replicator::config::Config;
use crate::replicator::epoch::Epoch;
use crate::replicator::port::{Class, Input, Output, Peer};
use crate::replicator::request::{Request, RequestId};
use crate::replicator::wire::{Body, Message};
use crate::replicator::{Replicator, Setup};
use crate::sim::{
    Direction, Effects, NodeIndex, Observer, Orders, Process, SimTime, View, Violation,
};

/// Returns the replica id of a node. Nodes never restart in these simulations.
pub(super) fn id_of(node: NodeIndex) -> ReplicaId {
    ReplicaId::new(node.get() as u64 + 1)
}

fn node_of(id: ReplicaId) -> NodeIndex {
    let number = usize::try_from(id.get()).expect("made by id_of");
    NodeIndex::new(number - 1)
}

/// An input of a run to a replica.
#[derive(Debug)]
pub(super) enum Command {
    Found(Arc<Epoch>),
    Members(Vec<Peer>),
    Request(Request),
}

/// An event that a replica reports to the run.
#[derive(Debug)]
pub(super) enum Event {
    /// The replica has made a change.
    Made(Dot),
    /// The replica has handled a message.
    Heard,
    /// A request was answered.
    Answered,
}

#[derive(Debug)]
pub(super) struct Replica {
    pub(super) replicator: Replicator,
    pub(super) pushed: Sent,
    pub(super) compared: Sent,
    pub(super) shortest_push: Option<u64>,
    out: Outbox<Output>,
    requests: u64,
}

impl Replica {
    pub(super) fn new(node: NodeIndex, seed: u64, config: Config) -> Self {
        let (registry, canary) = (Registry::new(), Canary::none());
        let setup = Setup { me: id_of(node), config, registry, seed, canary };
        Self {
            replicator: Replicator::new(setup),
            pushed: Sent::default(),
            compared: Sent::default(),
            shortest_push: None,
            out: Outbox::new(),
            requests: 0,
        }
    }

    fn feed(&mut self, now: Now, input: Input, fx: &mut Effects<Self>) {
        self.replicator.handle(now, input, &mut self.out);
        while !self.out.is_empty() {
            for output in std::mem::take(&mut self.out).drain() {
                self.perform(now, output, fx);
            }
        }
    }

    fn perform(&mut self, now: Now, output: Output, fx: &mut Effects<Self>) {
        match output {
            Output::Send { to, class, message } => {
                self.count(&message);
                let lane = match class {
                    Class::Control => 0,
                    Class::Data => 1,
                    Class::Bulk => 2,
                };
                fx.send(node_of(to), lane, message);
            }
            Output::Reply { .. } => fx.emit(Event::Answered),
            Output::Persist { id, .. } => {
                // There is no disk: the write completes immediately.
                let written = Input::Persisted { id, result: Ok(()) };
                self.replicator.handle(now, written, &mut self.out);
            }
            _ => {}
        }
    }

    fn count(&mut self, message: &Message) {
        let bytes = message.encode().len() as u64;
        let sent = match &message.body {
            Body::Compare { .. } | Body::Compared { .. } => &mut self.compared,
            Body::Write { .. } => {
                self.shortest_push = Some(self.shortest_push.map_or(bytes, |b| b.min(bytes)));
                &mut self.pushed
            }
            _ => &mut self.pushed,
        };
        sent.messages += 1;
        sent.bytes += bytes;
    }
}

impl Process for Replica {
    type Message = Message;
    type Command = Command;
    type Event = Event;
    type Disk = ();

    fn message(&mut self, now: Now, from: NodeIndex, message: Message, fx: &mut Effects<Self>) {
        self.feed(now, Input::Message { from: id_of(from), message }, fx);
        fx.emit(Event::Heard);
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        match command {
            Command::Found(epoch) => self.feed(now, Input::Found(epoch), fx),
            Command::Members(peers) => self.feed(now, Input::Members(peers), fx),
            Command::Request(request) => {
                let Request::Update(update) = &request else { return };
                let (key, me) = (update.key().clone(), self.replicator.id());
                self.requests += 1;
                let id = RequestId(self.requests);
                self.feed(now, Input::Request { id, request }, fx);
                let value = self.replicator.peek(&key);
                let next = value.map(|value| value.state().context().next_dot(me));
                if let Some(Dot { actor, counter }) = next {
                    fx.emit(Event::Made(Dot { actor, counter: counter - 1 }));
                }
            }
        }
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.feed(now, Input::Tick, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }

    fn link_up(&mut self, now: Now, peer: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        self.feed(now, Input::LinkUp(id_of(peer)), fx);
    }

    fn digest(message: &Message) -> Option<u64> {
        Some(xxh3_64(&message.encode()))
    }
}

/// Records when each replica has all expected changes.
pub(super) struct ConvergenceObserver {
    key: KeyName,
    wanted: CausalContext,
    missing: usize, // expected changes that were not made yet
    unanswered: usize,
    seen: Vec<Option<SimTime>>, // by node
    unseen: usize,
    answered: SimTime,
}

impl ConvergenceObserver {
    pub(super) fn new(key: KeyName, nodes: usize) -> Self {
        let wanted = CausalContext::new();
        let (seen, answered) = (vec![None; nodes], SimTime::default());
        Self { key, wanted, missing: 0, unanswered: 0, seen, unseen: 0, answered }
    }

    /// Starts to wait for this number of changes.
    pub(super) fn expect(&mut self, changes: usize) {
        self.wanted = CausalContext::new();
        (self.missing, self.unanswered) = (changes, changes);
        self.seen.fill(None);
        self.unseen = self.seen.len();
    }

    /// Whether all replicas have the changes and all authors were answered.
    pub(super) fn is_done(&self) -> bool {
        self.unseen == 0 && self.unanswered == 0
    }

    pub(super) fn seen(&self) -> impl Iterator<Item = SimTime> {
        self.seen.iter().flatten().copied()
    }

    pub(super) const fn answered_at(&self) -> SimTime {
        self.answered
    }
}

impl Observer<Replica> for ConvergenceObserver {
    fn event(
        &mut self,
        view: &View<'_, Replica>,
        node: NodeIndex,
        event: &Event,
        _: &mut Orders<Replica>,
    ) -> Result<(), Violation> {
        match event {
            Event::Made(dot) => {
                self.wanted.insert(*dot);
                self.missing = self.missing.saturating_sub(1);
            }
            Event::Answered => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.answered = view.now();
            }
            Event::Heard => {}
        }
        let open = self.missing == 0 && self.seen[node.get()].is_none();
        let has = |replica| holds(replica, &self.key, &self.wanted);
        if open && view.process(node).is_some_and(has) {
            self.seen[node.get()] = Some(view.now());
            self.unseen -= 1;
        }
        Ok(())
    }
}
