//! A Replicator as a process of the simulator, and the observer that records when replicas have
//! seen changes.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{MessageTotals, holds};
use crate::causal::{CausalContext, Dot};
use crate::clock::{Instant, Now};
use crate::data::Registry;
use crate::fault_injection::FaultInjection;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::machine::{Machine, Outbox};
use crate::replicator::config::ReplicatorConfig;
use crate::replicator::epoch::Epoch;
use crate::replicator::port::{LaneClass, Peer, ReplicatorInput, ReplicatorOutput};
use crate::replicator::request::{ReplicatorRequest, RequestId, Update};
use crate::replicator::wire::{Body, ReplicatorMessage};
use crate::replicator::{Replicator, ReplicatorParameters};
use crate::sim::{
    Direction, Effects, InvariantViolation, NodeIndex, Observer, Orders, Process, SimTime,
    SimulationView,
};

/// Returns the replica id of a node; 0 is no replica. No node restarts in these simulations, so one
/// id per node is enough.
pub(super) fn id_of(node: NodeIndex) -> ReplicaId {
    ReplicaId::new(node.get() as u64 + 1)
}

/// Returns the node of an id that [`id_of`] made. The id must not be 0.
fn node_of(id: ReplicaId) -> NodeIndex {
    let number = usize::try_from(id.get()).expect("made by id_of");
    NodeIndex::new(number - 1)
}

/// An input of a run to a replica.
#[derive(Debug)]
pub(super) enum ReplicaCommand {
    /// Installs the configuration that founds the cluster.
    FoundCluster(Arc<Epoch>),
    /// Tells the replica which nodes membership knows.
    Members(Vec<Peer>),
    /// Makes a change, which must not be refused: [`ReplicaEvent::Made`] would name an older dot.
    Update(Update),
}

/// An event that a replica reports to the run.
#[derive(Debug)]
pub(super) enum ReplicaEvent {
    /// The replica has made a change. The dot is the last one of the update. Not reported if the
    /// replica does not know the key after the update.
    Made(Dot),
    /// The replica has handled a message.
    Heard,
    /// A request was answered, perhaps with an error.
    Answered,
}

/// A Replicator without a disk, with counts of the messages that it has sent.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) replicator: Replicator,
    pub(super) pushed: MessageTotals, // all messages except `Compare` and `Compared`
    pub(super) compared: MessageTotals, // `Compare` and `Compared`
    pub(super) shortest_write: Option<u64>, // bytes; of `Write`, `None` before the first
    out: Outbox<ReplicatorOutput>,
    requests: u64,
}

impl Replica {
    /// Creates a replica without a configuration and without a planted fault.
    pub(super) fn new(node: NodeIndex, seed: u64, config: ReplicatorConfig) -> Self {
        let (registry, fault_injection) = (Registry::new(), FaultInjection::none());
        let setup =
            ReplicatorParameters { me: id_of(node), config, registry, seed, fault_injection };
        Self {
            replicator: Replicator::new(setup),
            pushed: MessageTotals::default(),
            compared: MessageTotals::default(),
            shortest_write: None,
            out: Outbox::new(),
            requests: 0,
        }
    }

    /// Feeds the Replicator and performs its outputs until none are left.
    fn feed(&mut self, now: Now, input: ReplicatorInput, fx: &mut Effects<Self>) {
        self.replicator.handle(now, input, &mut self.out);
        // `perform` may add outputs.
        while !self.out.is_empty() {
            for output in std::mem::take(&mut self.out).drain() {
                self.perform(now, output, fx);
            }
        }
    }

    /// Performs one output: counts a message and sends it on the lane of its class (control 0, data
    /// 1, bulk 2; the run must set up these three), reports a reply whatever its result, and
    /// completes a write to disk successfully within this call, which may add outputs to `out`.
    /// Ignores all others.
    fn perform(&mut self, now: Now, output: ReplicatorOutput, fx: &mut Effects<Self>) {
        match output {
            ReplicatorOutput::Send { to, class, message } => {
                self.count(&message);
                let lane = match class {
                    LaneClass::Control => 0,
                    LaneClass::Data => 1,
                    LaneClass::Bulk => 2,
                };
                fx.send(node_of(to), lane, message);
            }
            ReplicatorOutput::Reply { .. } => fx.emit(ReplicaEvent::Answered),
            ReplicatorOutput::Persist { id, .. } => {
                // There is no disk: the write completes immediately.
                let written = ReplicatorInput::Persisted { id, result: Ok(()) };
                self.replicator.handle(now, written, &mut self.out);
            }
            _ => {} // reports, and orders of configuration changes, which do not occur here
        }
    }

    /// Adds a message to its totals, and its length to the shortest write if it is a `Write`. Runs
    /// before the send, so messages that the network loses count as well.
    fn count(&mut self, message: &ReplicatorMessage) {
        let bytes = message.encode().len() as u64;
        let sent = match &message.body {
            Body::Compare { .. } | Body::Compared { .. } => &mut self.compared,
            Body::Write { .. } => {
                self.shortest_write = Some(self.shortest_write.map_or(bytes, |b| b.min(bytes)));
                &mut self.pushed
            }
            _ => &mut self.pushed,
        };
        sent.messages += 1;
        sent.bytes += bytes;
    }
}

impl Process for Replica {
    type Message = ReplicatorMessage;
    type Command = ReplicaCommand;
    type Event = ReplicaEvent;
    type Disk = ();

    /// Hands a message to the Replicator, then reports [`ReplicaEvent::Heard`].
    fn message(
        &mut self,
        now: Now,
        from: NodeIndex,
        message: ReplicatorMessage,
        fx: &mut Effects<Self>,
    ) {
        self.feed(now, ReplicatorInput::Message { from: id_of(from), message }, fx);
        fx.emit(ReplicaEvent::Heard);
    }

    /// Carries out a command of the run. After an update it reports [`ReplicaEvent::Made`], after
    /// the answer if that came within the update. Reports it also for a refused update if the key
    /// is known, with the last dot that this replica made, or the counter 0 if it has made none.
    fn command(&mut self, now: Now, command: ReplicaCommand, fx: &mut Effects<Self>) {
        match command {
            ReplicaCommand::FoundCluster(epoch) => {
                self.feed(now, ReplicatorInput::Found(epoch), fx);
            }
            ReplicaCommand::Members(peers) => self.feed(now, ReplicatorInput::Members(peers), fx),
            ReplicaCommand::Update(update) => {
                let (key, me) = (update.key().clone(), self.replicator.id());
                self.requests += 1;
                let id = RequestId(self.requests);
                let request = ReplicatorRequest::Update(update);
                self.feed(now, ReplicatorInput::Request { id, request }, fx);
                let value = self.replicator.peek(&key);
                // The dot of the update, or the last of several, precedes the next dot. A replica
                // merges all dots of an update together.
                let next = value.map(|value| value.state().context().next_dot(me));
                if let Some(Dot { actor, counter }) = next {
                    fx.emit(ReplicaEvent::Made(Dot { actor, counter: counter - 1 }));
                }
            }
        }
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.feed(now, ReplicatorInput::Tick, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }

    // A Replicator needs no news of a break: when the link is up, it sends again what may be lost.
    // Both directions are reported; the second report only repeats that.
    fn link_up(&mut self, now: Now, peer: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        self.feed(now, ReplicatorInput::LinkUp(id_of(peer)), fx);
    }

    fn digest(message: &ReplicatorMessage) -> Option<u64> {
        Some(xxh3_64(&message.encode()))
    }
}

/// Records when each replica has all expected changes. Never reports a violation.
pub(super) struct ConvergenceObserver {
    key: KeyName,
    wanted: CausalContext,         // dots of the expected changes made so far
    missing: usize,                // expected changes that were not made yet
    unanswered: usize,             // expected changes whose authors were not answered yet
    seen_at: Vec<Option<SimTime>>, // by node
    unseen: usize,                 // nodes without a time in `seen_at`
    answered_at: SimTime,          // of the last answer
}

impl ConvergenceObserver {
    /// Creates an observer that expects no change yet.
    pub(super) fn new(key: KeyName, nodes: usize) -> Self {
        let wanted = CausalContext::new();
        let (seen_at, answered_at) = (vec![None; nodes], SimTime::default());
        Self { key, wanted, missing: 0, unanswered: 0, seen_at, unseen: 0, answered_at }
    }

    /// Starts to wait for this number of changes, each with an author to answer. Forgets the former
    /// ones, and the times at which replicas had them; keeps the time of the last answer. Call it
    /// before the updates are given.
    pub(super) fn expect(&mut self, changes: usize) {
        self.wanted = CausalContext::new();
        (self.missing, self.unanswered) = (changes, changes);
        self.seen_at.fill(None);
        self.unseen = self.seen_at.len();
    }

    /// Whether all replicas have the expected changes and all authors were answered. Also true
    /// before the first [`expect`](Self::expect).
    pub(super) fn is_done(&self) -> bool {
        self.unseen == 0 && self.unanswered == 0
    }

    /// When the replicas had all expected changes, without those that have not; by node.
    pub(super) fn seen(&self) -> impl Iterator<Item = SimTime> {
        self.seen_at.iter().flatten().copied()
    }

    /// When an author was answered last, also before the last [`expect`](Self::expect); 0 before
    /// the first answer.
    pub(super) const fn answered_at(&self) -> SimTime {
        self.answered_at
    }
}

impl Observer<Replica> for ConvergenceObserver {
    /// Records a change or an answer, beyond the expected number too. Then records the time of
    /// `node`, once per [`expect`](Self::expect), if all expected changes were made and it holds
    /// all of them. A node is looked at only when it reports an event.
    fn event(
        &mut self,
        view: &SimulationView<'_, Replica>,
        node: NodeIndex,
        event: &ReplicaEvent,
        _: &mut Orders<Replica>,
    ) -> Result<(), InvariantViolation> {
        match event {
            ReplicaEvent::Made(dot) => {
                self.wanted.insert(*dot);
                self.missing = self.missing.saturating_sub(1);
            }
            ReplicaEvent::Answered => {
                self.unanswered = self.unanswered.saturating_sub(1);
                self.answered_at = view.now();
            }
            ReplicaEvent::Heard => {}
        }
        let is_awaited = self.missing == 0 && self.seen_at[node.get()].is_none();
        let has = |replica| holds(replica, &self.key, &self.wanted);
        if is_awaited && view.process(node).is_some_and(has) {
            self.seen_at[node.get()] = Some(view.now());
            self.unseen -= 1;
        }
        Ok(())
    }
}
