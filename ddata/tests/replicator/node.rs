//! A Replicator as a process of the simulator. It consents to every request of the configuration
//! machine, because no leases exist, and its disk keeps records in order.

#![allow(dead_code, reason = "shared by two test binaries, each of which uses a part")]

use std::collections::BTreeMap;
use std::hash::{Hash as _, Hasher};
use std::sync::Arc;

use ostraca_ddata::causal::{CausalContext, Dot};
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::data::Value;
use ostraca_ddata::durable::{DurableRecord, StoreError};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::key::KeyName;
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::replicator::epoch::{Epoch, MembershipChange, ProposalOutcome};
use ostraca_ddata::replicator::port::{
    LaneClass, Peer, ReplicatorAlarm, ReplicatorInput, ReplicatorOutput,
};
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, RequestId, SubscriptionId, SubscriptionNotice,
};
use ostraca_ddata::replicator::wire::{Body, ReplicatorMessage};
use ostraca_ddata::replicator::{Replicator, ReplicatorParameters};
use ostraca_ddata::sim::{Direction, Effects, NodeIndex, Process, SyncFailed};

/// The incarnation number `life` of a node.
pub fn replica(node: usize, life: u32) -> ReplicaId {
    ReplicaId::new((u64::from(life) << 16) | (node as u64 + 1))
}

/// The node that an incarnation runs on.
pub fn node_of(replica: ReplicaId) -> NodeIndex {
    NodeIndex::new((replica.get() & 0xffff) as usize - 1)
}

/// A message between two incarnations. It is dropped if the receiver is a later incarnation.
#[derive(Clone, Debug, Hash)]
pub struct Envelope {
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub message: ReplicatorMessage,
}

/// A command of the harness to a node.
#[derive(Debug)]
pub enum Command {
    Request(RequestId, ReplicatorRequest),
    Found(Arc<Epoch>),
    Members(Vec<Peer>),
    Propose(MembershipChange),
    /// Hands a message to the machine as if a peer had sent it.
    Inject(ReplicaId, ReplicatorMessage),
}

/// An event that the harness sees.
#[derive(Debug)]
pub enum Event {
    /// The machine is about to handle a request.
    Asked(RequestId),
    /// The machine has applied or refused a change, with the key's context before and after it.
    Made(RequestId, Box<Made>),
    /// The machine has deleted a key by expiry.
    Expired(Box<Made>),
    Replied(RequestId, Result<ReplicatorReply, RequestError>),
    Notified(SubscriptionId, SubscriptionNotice),
    Installed(Arc<Epoch>),
    Synced,
    Excluded,
    Outcome(ProposalOutcome),
    Alarm(ReplicatorAlarm),
}

/// The effect of a request on its key, at the node that handled it.
#[derive(Debug)]
pub struct Made {
    pub key: KeyName,
    pub before: CausalContext,
    pub after: CausalContext,
    /// The value after the request.
    pub value: Option<Value>,
}

/// Counts of the messages of one kind that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub messages: u64,
    pub bytes: u64,
    pub longest: u64,
}

impl Sent {
    fn add(&mut self, message: &ReplicatorMessage) {
        let bytes = message.encode().len() as u64;
        self.messages += 1;
        self.bytes += bytes;
        self.longest = self.longest.max(bytes);
    }
}

/// The kind of a message, for counts and names.
pub const fn kind(body: &Body) -> &'static str {
    match body {
        Body::Write { .. } => "write",
        Body::Ack { .. } => "ack",
        Body::Read { .. } => "read",
        Body::ReadAnswer { .. } => "read-answer",
        Body::Fence { .. } => "fence",
        Body::Promised { .. } => "promised",
        Body::NotPromised { .. } => "not-promised",
        Body::Compare { .. } => "compare",
        Body::Compared { .. } => "compared",
        Body::Epoch(_) => "epoch",
        Body::Used(_) | Body::Known(_) => "used",
        Body::Part { .. } => "part",
    }
}

#[derive(Debug)]
pub struct Node {
    pub replicator: Replicator,
    pub sent: Option<BTreeMap<&'static str, Sent>>, // by kind; `None` if not counted
    out: Outbox<ReplicatorOutput>,
    loaded: Option<Vec<DurableRecord>>,
    own: BTreeMap<KeyName, u64>, // next own counter of each key after the last event; ≤ keys
    expires: bool,
    expired: u64,
}

impl Node {
    pub fn new(setup: ReplicatorParameters, disk: &[DurableRecord]) -> Self {
        let durable = !setup.config.durable_keys.is_empty();
        let loaded = durable.then(|| disk.to_vec());
        let expires = !setup.config.expire_keys_after_inactivity.is_empty();
        let replicator = Replicator::new(setup);
        let (out, own) = (Outbox::new(), BTreeMap::new());
        Self { replicator, sent: None, out, loaded, own, expires, expired: 0 }
    }

    /// Makes the node count its messages and their bytes, for which every message is encoded.
    pub fn counting(mut self) -> Self {
        self.sent = Some(BTreeMap::new());
        self
    }

    pub fn id(&self) -> ReplicaId {
        self.replicator.id()
    }

    fn feed(&mut self, now: Now, input: ReplicatorInput, fx: &mut Effects<Self>) {
        self.replicator.handle(now, input, &mut self.out);
        self.carry_out(now, fx);
    }

    fn request(
        &mut self,
        now: Now,
        id: RequestId,
        request: ReplicatorRequest,
        fx: &mut Effects<Self>,
    ) {
        fx.emit(Event::Asked(id));
        let key = match &request {
            ReplicatorRequest::Update(update) => Some(update.key().clone()),
            ReplicatorRequest::Delete { key, .. } => Some(key.clone()),
            _ => None,
        };
        let before = key.as_ref().map(|key| self.context(key));
        self.replicator.handle(now, ReplicatorInput::Request { id, request }, &mut self.out);
        if let (Some(key), Some(before)) = (key, before) {
            let value = self.replicator.peek(&key);
            let after = value.as_ref().map(|value| value.state().context().clone());
            let after = after.unwrap_or_default();
            self.own.insert(key.clone(), after.next_dot(self.id()).counter);
            fx.emit(Event::Made(id, Box::new(Made { key, before, after, value })));
        }
        self.carry_out(now, fx);
    }

    /// Emits an event for each key that has just expired, a change that no request made.
    fn tell_expired(&mut self, fx: &mut Effects<Self>) {
        if !self.expires {
            return;
        }
        let expired = self.replicator.stats().expired;
        if std::mem::replace(&mut self.expired, expired) == expired {
            return;
        }
        let (me, mut made) = (self.id(), Vec::new());
        for (key, value) in self.replicator.dump() {
            let after = value.state().context().clone();
            let next = after.next_dot(me).counter;
            if next == self.own.get(key).copied().unwrap_or(1) {
                continue;
            }
            let mut last = CausalContext::new();
            last.insert(Dot { actor: me, counter: next - 1 });
            let mut before = CausalContext::new();
            before.extend(&after.minus(&last));
            made.push((next, Made { key: key.clone(), before, after, value: None }));
        }
        for (next, made) in made {
            self.own.insert(made.key.clone(), next);
            fx.emit(Event::Expired(Box::new(made)));
        }
    }

    fn context(&self, key: &KeyName) -> CausalContext {
        let value = self.replicator.peek(key);
        value.map(|value| value.state().context().clone()).unwrap_or_default()
    }

    fn carry_out(&mut self, now: Now, fx: &mut Effects<Self>) {
        while !self.out.is_empty() {
            let mut outputs = std::mem::take(&mut self.out);
            for output in outputs.drain() {
                self.perform(now, output, fx);
            }
            if self.out.is_empty() {
                self.out = outputs; // reuses the allocation
            }
        }
    }

    fn perform(&mut self, now: Now, output: ReplicatorOutput, fx: &mut Effects<Self>) {
        match output {
            ReplicatorOutput::Send { to, class, message } => {
                let lane = match class {
                    LaneClass::Control => 0,
                    LaneClass::Data => 1,
                    LaneClass::Bulk => 2,
                };
                if let Some(sent) = &mut self.sent {
                    sent.entry(kind(&message.body)).or_default().add(&message);
                }
                let envelope = Envelope { from: self.id(), to, message };
                fx.send(node_of(to), lane, Box::new(envelope));
            }
            ReplicatorOutput::Reply { id, reply } => fx.emit(Event::Replied(id, reply)),
            ReplicatorOutput::Notify { subscription, notice } => {
                fx.emit(Event::Notified(subscription, notice));
            }
            ReplicatorOutput::Persist { id, records } => {
                records.into_iter().for_each(|record| fx.write(record));
                fx.sync(id);
            }
            ReplicatorOutput::AskConsent { query, .. } => {
                let consent = ReplicatorInput::Consent { query, remaining: Vec::new() };
                self.replicator.handle(now, consent, &mut self.out);
            }
            ReplicatorOutput::Installed(epoch) => fx.emit(Event::Installed(epoch)),
            ReplicatorOutput::Synced(_) => fx.emit(Event::Synced),
            ReplicatorOutput::Excluded(_) => fx.emit(Event::Excluded),
            ReplicatorOutput::Outcome(outcome) => fx.emit(Event::Outcome(outcome)),
            ReplicatorOutput::Alarm(alarm) => fx.emit(Event::Alarm(alarm)),
            _ => {}
        }
    }
}

impl Process for Node {
    /// Boxed, because a message is moved a dozen times on its way.
    type Message = Box<Envelope>;
    type Command = Command;
    type Event = Event;
    type Disk = Vec<DurableRecord>;

    fn started(&mut self, now: Now, fx: &mut Effects<Self>) {
        if let Some(records) = self.loaded.take() {
            self.feed(now, ReplicatorInput::Loaded(records), fx);
        }
    }

    fn message(&mut self, now: Now, _: NodeIndex, envelope: Self::Message, fx: &mut Effects<Self>) {
        if envelope.to == self.id() {
            let Envelope { from, message, .. } = *envelope;
            self.feed(now, ReplicatorInput::Message { from, message }, fx);
        }
    }

    fn command(&mut self, now: Now, command: Command, fx: &mut Effects<Self>) {
        let input = match command {
            Command::Request(id, request) => return self.request(now, id, request, fx),
            Command::Found(epoch) => ReplicatorInput::Found(epoch),
            Command::Members(peers) => ReplicatorInput::Members(peers),
            Command::Propose(change) => ReplicatorInput::Propose(change),
            Command::Inject(from, message) => ReplicatorInput::Message { from, message },
        };
        self.feed(now, input, fx);
    }

    fn tick(&mut self, now: Now, fx: &mut Effects<Self>) {
        self.replicator.handle(now, ReplicatorInput::Tick, &mut self.out);
        self.tell_expired(fx);
        self.carry_out(now, fx);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.replicator.next_deadline()
    }

    fn synced(
        &mut self,
        now: Now,
        token: u64,
        outcome: Result<(), SyncFailed>,
        fx: &mut Effects<Self>,
    ) {
        let result = outcome.map_err(|error| StoreError(error.to_string()));
        self.feed(now, ReplicatorInput::Persisted { id: token, result }, fx);
    }

    fn link_up(&mut self, now: Now, peer: NodeIndex, _: Direction, fx: &mut Effects<Self>) {
        let members = self.replicator.epochs().installed();
        let known = members.map(|epoch| epoch.members().to_vec()).unwrap_or_default();
        for id in known.into_iter().filter(|id| node_of(*id) == peer) {
            self.feed(now, ReplicatorInput::LinkUp(id), fx);
        }
    }

    fn digest(envelope: &Self::Message) -> Option<u64> {
        let mut content = Content(0);
        envelope.hash(&mut content);
        Some(content.finish())
    }

    /// The digest of a request is its id, because its content shows in the events that follow.
    fn digest_command(command: &Command) -> Option<u64> {
        let Command::Request(id, _) = command else { return None };
        Some(id.0)
    }

    fn recode(mut envelope: Self::Message) -> Self::Message {
        let decoded = ReplicatorMessage::decode(&envelope.message.encode());
        let message = decoded.expect("an encoded message decodes");
        assert_eq!(message, envelope.message, "decoding must invert encoding");
        envelope.message = message;
        envelope
    }
}

/// A hasher for the content of a message, which need not be encoded for it. Its result is the same
/// in every build for one processor architecture, which the hashers of std do not guarantee.
struct Content(u64);

impl Hasher for Content {
    fn write(&mut self, bytes: &[u8]) {
        self.write_u64(xxhash_rust::xxh3::xxh3_64(bytes));
    }

    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        let product = u128::from(self.0 ^ n ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
