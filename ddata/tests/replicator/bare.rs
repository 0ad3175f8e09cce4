//! One Replicator without a simulator: the test feeds inputs by hand, reads outputs as lists, and
//! plays the peers.

use std::sync::Arc;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::data::Registry;
use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::{Group, Key, KeyName};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::epoch::{Ballot, Epoch, EpochId, EpochMessage, MembershipChange};
use ostraca_ddata::replicator::port::{Peer, ReplicatorInput, ReplicatorOutput};
use ostraca_ddata::replicator::request::{
    Guard, ReadConsistency, ReplicatorReply, ReplicatorRequest, RequestError, RequestId, Update,
    WriteConsistency,
};
use ostraca_ddata::replicator::wire::{AckScope, Body, Entry, Nack, ReplicatorMessage};
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{DataType, ORSet, Term};

use crate::cluster::first_epoch;
use crate::node::replica;

pub type Answer = Result<ReplicatorReply, RequestError>;
pub type Words = ORSet<String>;

/// Wall clock at the start, in milliseconds.
pub const START: u64 = 1_700_000_000_000;

#[derive(Debug)]
pub struct Bare {
    pub replicator: Replicator,
    pub now: Now,
    /// Orders to write records that wait for [`stored`](Self::stored).
    pub persists: Vec<u64>,
    /// Messages sent since the last call of [`sent`](Self::sent).
    sent: Vec<(ReplicaId, ReplicatorMessage)>,
    answers: Vec<(RequestId, Answer)>,
    pub others: Vec<ReplicatorOutput>,
    next: u64,
}

pub fn peer(n: usize) -> ReplicaId {
    replica(n, 1)
}

pub fn epoch_id() -> EpochId {
    EpochId { generation: 1, number: 1 }
}

/// An acknowledgement of a whole push.
pub fn ack(push: u64) -> Body {
    Body::Ack { push, scope: AckScope::All, counts: true, nacks: vec![] }
}

/// The push that a message names, and the number of the sending.
pub fn sent_as(name: u64) -> (u64, u64) {
    (name / 16, name % 16)
}

/// The refusal of the only entry of a push.
pub fn nack(push: u64, nack: Nack) -> Body {
    Body::Ack { push, scope: AckScope::All, counts: true, nacks: vec![(0, nack)] }
}

pub fn insert(key: &str, word: &str, consistency: WriteConsistency) -> ReplicatorRequest {
    let word = word.to_owned();
    change::<Words, _>(key, consistency, move |set| set.insert(&word))
}

pub fn change<T: DataType, R>(
    key: &str,
    consistency: WriteConsistency,
    f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
) -> ReplicatorRequest {
    ReplicatorRequest::Update(Update::new(&Key::<T>::new(key), consistency, f))
}

pub fn guarded<T: DataType, R>(
    (group, term): (&str, Term),
    key: &str,
    consistency: WriteConsistency,
    f: impl FnOnce(&mut Edit<'_, T>) -> Result<R, EditError> + Send + 'static,
) -> ReplicatorRequest {
    let update = Update::new(&Key::<T>::new(key), consistency, f);
    ReplicatorRequest::Update(update.guarded(Guard { group: Group::new(group), term }))
}

pub fn get(key: &str, consistency: ReadConsistency) -> ReplicatorRequest {
    ReplicatorRequest::Get { key: key.into(), shape: None, consistency }
}

impl Bare {
    /// Node 0 of a first configuration with `members` members.
    pub fn of(members: usize) -> Self {
        Self::with(members, ReplicatorConfig::default())
    }

    pub fn with(members: usize, config: ReplicatorConfig) -> Self {
        let mut bare = Self::loaded(config);
        if members > 0 {
            bare.found(first_epoch(members));
        }
        bare
    }

    /// Let in by membership, in no configuration. Durable data is loaded and empty.
    pub fn joining(config: ReplicatorConfig) -> Self {
        let mut bare = Self::loaded(config);
        bare.members(3, &[], &[]);
        bare
    }

    /// Known to no node. Durable data is loaded and empty.
    fn loaded(config: ReplicatorConfig) -> Self {
        let durable = !config.durable_keys.is_empty();
        let mut bare = Self::unloaded(config);
        if durable {
            bare.feed(ReplicatorInput::Loaded(vec![]));
        }
        bare
    }

    pub fn unloaded(config: ReplicatorConfig) -> Self {
        Self::named(peer(0), config)
    }

    pub fn named(me: ReplicaId, config: ReplicatorConfig) -> Self {
        Self::with_bug(me, config, FaultInjection::none())
    }

    pub fn with_bug(
        me: ReplicaId,
        config: ReplicatorConfig,
        fault_injection: FaultInjection,
    ) -> Self {
        let mut registry = Registry::new();
        registry.register::<crate::acknowledged::TwoPhase>().expect("the only type of this name");
        let setup = ReplicatorParameters { me, config, registry, seed: 7, fault_injection };
        let second = Instant::from_nanos(1_000_000_000);
        let now = Now { mono: second, wall: WallTime::from_millis(START) };
        Self {
            replicator: Replicator::new(setup),
            now,
            persists: Vec::new(),
            sent: Vec::new(),
            answers: Vec::new(),
            others: Vec::new(),
            next: 0,
        }
    }

    pub fn found(&mut self, epoch: Arc<Epoch>) {
        self.feed(ReplicatorInput::Found(epoch));
        self.persist_all();
        self.others.clear();
    }

    /// Feeds one batch of the driver: the input, then ticks that are due.
    pub fn feed(&mut self, input: ReplicatorInput) {
        self.feed_all(vec![input]);
    }

    /// Feeds several inputs as one batch of the driver.
    pub fn feed_all(&mut self, inputs: Vec<ReplicatorInput>) {
        let mut out = Outbox::new();
        for input in inputs {
            self.replicator.handle(self.now, input, &mut out);
        }
        self.take(&mut out);
        self.ticks();
    }

    fn ticks(&mut self) {
        let mut out = Outbox::new();
        for _ in 0..1_000 {
            if self.replicator.next_deadline().is_none_or(|at| at > self.now.mono) {
                return;
            }
            self.replicator.handle(self.now, ReplicatorInput::Tick, &mut out);
            self.take(&mut out);
        }
        panic!("a deadline that never passes");
    }

    fn take(&mut self, out: &mut Outbox<ReplicatorOutput>) {
        for output in out.drain().collect::<Vec<_>>() {
            match output {
                ReplicatorOutput::Send { to, message, .. } => self.sent.push((to, message)),
                ReplicatorOutput::Reply { id, reply } => self.answers.push((id, reply)),
                ReplicatorOutput::Persist { id, .. } => self.persists.push(id),
                ReplicatorOutput::AskConsent { query, .. } => {
                    let mut more = Outbox::new();
                    let consent = ReplicatorInput::Consent { query, remaining: vec![] };
                    self.replicator.handle(self.now, consent, &mut more);
                    self.take(&mut more);
                }
                other => self.others.push(other),
            }
        }
    }

    /// Advances the clock from deadline to deadline.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now.mono + span;
        while let Some(at) = self.replicator.next_deadline().filter(|at| *at <= end) {
            self.move_to(at.max(self.now.mono));
            self.ticks();
        }
        self.move_to(end);
    }

    fn move_to(&mut self, at: Instant) {
        let start = Instant::from_nanos(1_000_000_000);
        let millis = (at - start).as_millis();
        let wall = START + u64::try_from(millis).expect("a short test");
        self.now = Now { mono: at, wall: WallTime::from_millis(wall) };
    }

    pub fn ask(&mut self, request: ReplicatorRequest) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.feed(ReplicatorInput::Request { id, request });
        id
    }

    /// Several requests in one batch of the driver.
    pub fn batch(&mut self, requests: Vec<ReplicatorRequest>) -> Vec<RequestId> {
        let ids: Vec<RequestId> = (self.next + 1..).map(RequestId).take(requests.len()).collect();
        self.next += ids.len() as u64;
        let asked = ids.iter().zip(requests);
        self.feed_all(
            asked.map(|(&id, request)| ReplicatorInput::Request { id, request }).collect(),
        );
        ids
    }

    /// Member 1 of two acknowledges 64 pushes after `trip` each, so that round trips are known.
    pub fn round_trips(&mut self, trip: Duration) {
        for n in 0..64 {
            let _ = self.now(insert("k", &n.to_string(), WriteConsistency::Local));
            let (push, _) = self.push_to_all(2);
            self.pass(trip);
            self.hear(1, ack(push));
        }
    }

    /// Feeds a message of a member in the first configuration.
    pub fn hear(&mut self, from: usize, body: Body) {
        self.hear_in(peer(from), Some(epoch_id()), body);
    }

    pub fn hear_in(&mut self, from: ReplicaId, epoch: Option<EpochId>, body: Body) {
        self.feed(ReplicatorInput::Message { from, message: ReplicatorMessage { epoch, body } });
    }

    /// The answer to a request, if there is one. Asserts that there are not two.
    pub fn answer(&self, id: RequestId) -> Option<Answer> {
        let mut all = self.answers.iter().filter(|(of, _)| *of == id);
        let first = all.next().map(|(_, answer)| answer.clone());
        assert!(all.next().is_none(), "{id:?} was answered twice");
        first
    }

    /// Sends a request and returns the answer, which must come at once.
    pub fn now(&mut self, request: ReplicatorRequest) -> Answer {
        let id = self.ask(request);
        self.answer(id).expect("answered at once")
    }

    /// Takes the messages sent since the last call.
    pub fn sent(&mut self) -> Vec<(ReplicaId, Body)> {
        std::mem::take(&mut self.sent).into_iter().map(|(to, m)| (to, m.body)).collect()
    }

    /// Takes the pushes sent since the last call: receiver, number, entries.
    pub fn pushes(&mut self) -> Vec<(ReplicaId, u64, Vec<Entry>)> {
        let push = |(to, body)| match body {
            Body::Write { push, entries, .. } => Some((to, push, entries.to_vec())),
            _ => None,
        };
        self.sent().into_iter().filter_map(push).collect()
    }

    /// Takes the only push sent since the last call. Asserts that it went to every other member
    /// once.
    pub fn push_to_all(&mut self, members: usize) -> (u64, Vec<Entry>) {
        let pushes = self.pushes();
        let to: Vec<_> = pushes.iter().map(|(to, ..)| *to).collect();
        let all: Vec<_> = (1..members).map(peer).collect();
        assert_eq!(to, all, "one message to each member");
        let (_, push, entries) = pushes[0].clone();
        assert!(
            pushes.iter().all(|(_, n, e)| (*n, e) == (push, &entries)),
            "the same message to all"
        );
        (push, entries)
    }

    /// Takes the last push sent since the last call. Asserts that it went to every other member.
    pub fn push_to_all_of_many(&mut self, members: usize) -> (u64, Vec<Entry>) {
        let pushes = self.pushes();
        let (_, last, entries) = pushes.last().expect("a push").clone();
        assert_eq!(pushes.iter().filter(|(_, push, _)| *push == last).count(), members - 1);
        (last, entries)
    }

    /// Reports that the store has written, or failed to write, the first open order.
    pub fn stored(&mut self, result: Result<(), ostraca_ddata::durable::StoreError>) {
        let id = self.persists.remove(0);
        self.feed(ReplicatorInput::Persisted { id, result });
    }

    /// Reports that the store has written all open orders.
    pub fn persist_all(&mut self) {
        while !self.persists.is_empty() {
            self.stored(Ok(()));
        }
    }

    /// Membership of `all` nodes, of which some have announced their stop and some are unreachable.
    pub fn members(&mut self, all: usize, stopping: &[usize], unreachable: &[usize]) {
        let peer = |n: usize| Peer {
            id: peer(n),
            stopping: stopping.contains(&n),
            reachable: !unreachable.contains(&n),
        };
        self.feed(ReplicatorInput::Members((0..all).map(peer).collect()));
    }

    /// Seals this replica for a configuration without member `leaver`.
    pub fn seal(&mut self, members: usize, leaver: usize) -> Arc<Epoch> {
        let change = MembershipChange { leave: vec![peer(leaver)], ..MembershipChange::default() };
        let proposal = Arc::new(first_epoch(members).next(&change).expect("it may leave"));
        let ballot = Ballot { number: 1, node: peer(1) };
        let seal = EpochMessage::Seal { epoch: epoch_id(), ballot, proposal: proposal.clone() };
        self.hear(1, Body::Epoch(seal));
        self.persist_all();
        assert!(self.replicator.epochs().sealed(), "the replica is sealed");
        proposal
    }

    pub fn holds(&self, key: &str, word: &str) -> bool {
        let value = self.replicator.peek(&KeyName::new(key));
        value.and_then(|value| value.get::<Words>()).is_some_and(|set| set.contains(word))
    }
}
