//! The Replicator: every member runs one, which holds all keys (docs/protocol/replication.md).
//!
//! [`Replicator`] is a [`Machine`]. This file holds its fields, the dispatch of its inputs and its
//! deadlines. `requests` handles requests of users, `peers` messages of peers, `configuration` the
//! configurations and their syncs, and `rounds` the timers. Each part (store, pushes, reads …)
//! knows only itself and answers with values. The Replicator knows no socket, clock or membership
//! protocol.

mod alarms;
mod anti_entropy;
mod batch;
pub mod config;
mod configuration;
mod durability;
mod entries;
pub mod epoch;
mod expiry;
mod fanout;
mod fence;
mod fencing_reads;
mod flush;
mod open_probes;
mod pace;
mod peers;
pub mod port;
mod push;
mod quick;
pub mod quorum;
mod read;
mod read_protocol;
mod reassembly;
mod repairs;
pub mod request;
mod requests;
mod retransmitter;
mod retransmitters;
mod rounds;
pub mod stats;
mod store;
mod subscription;
mod sums;
pub mod wire;
mod write;
mod write_protocol;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use self::alarms::AlarmThrottle;
use self::anti_entropy::AntiEntropy;
use self::config::ReplicatorConfig;
use self::durability::Durability;
use self::epoch::{EpochId, EpochInput, Epochs};
use self::fence::{Fencings, Promises};
use self::open_probes::Questions;
use self::pace::RoundTrips;
use self::port::{LaneClass, Peer, ReplicatorInput, ReplicatorOutput};
use self::push::Pushes;
use self::read::Reads;
use self::reassembly::Reassembly;
use self::repairs::Repairs;
use self::request::{ReplicatorReply, ReplicatorRequest, RequestError, RequestId};
use self::stats::ReplicatorStats;
use self::store::{ReplicaStore, Snapshot, StateChange};
use self::subscription::Subscriptions;
use self::wire::{Body, ReplicatorMessage};
use self::write::{Electors, Writes};
use crate::clock::{HybridClock, Instant, Now};
use crate::data::{Registry, Value};
use crate::fault_injection::FaultInjection;
use crate::id::ReplicaId;
use crate::key::KeyName;
use crate::machine::{Machine, Outbox};

type ReplicatorOutbox = Outbox<ReplicatorOutput>;

/// One replica of all keys.
#[derive(Debug)]
pub struct Replicator {
    me: ReplicaId,
    config: ReplicatorConfig,
    fault_injection: FaultInjection,
    registry: Registry,
    rng: SmallRng,
    clock: HybridClock,
    store: ReplicaStore,
    promises: Promises,
    epochs: Epochs,
    sealed_snapshot: Option<SealedSnapshot>,
    /// For the fault `SnapshotBeforeLastAck`: the data before the last acknowledgement.
    before_last_ack: Option<Snapshot>,
    pushes: Pushes,
    questions: Questions,
    repairs: Repairs,
    writes: Writes,
    reads: Reads,
    fencings: Fencings,
    flushes: BTreeMap<RequestId, Flush>, // ≤ max_pending_requests
    subscriptions: Subscriptions,
    anti_entropy: AntiEntropy,
    durability: Durability,
    parts: Reassembly,
    trips: RoundTrips,
    membership: BTreeMap<ReplicaId, Peer>, // ≤ members that membership knows
    /// Members of the last other configuration before the installed one: their data is still
    /// merged.
    former: Vec<ReplicaId>,
    /// Members of the installed configuration, stopping ones included.
    roster: Vec<ReplicaId>,
    /// Receivers of changes: members of the configuration and nodes of membership, without this
    /// one.
    peers: BTreeSet<ReplicaId>,
    /// Members of the configuration that have not announced their stop.
    electorate: BTreeSet<ReplicaId>,
    /// When each peer last answered or was chosen for gossip; one without an entry counts as never.
    contacted: BTreeMap<ReplicaId, Instant>, // ≤ peers
    /// Requests that wait for durable data to load; `None` once it has.
    loading: Option<VecDeque<(RequestId, ReplicatorRequest)>>, // ≤ max_pending_requests
    /// Durable records could not be read: nothing is served.
    unreadable: bool,
    /// Receiver and length of the last message that was too long to send, for an alarm at the next
    /// tick.
    unsent: Option<(ReplicaId, usize)>,
    /// The next round of gossip; `None` before the first configuration and after an exclusion.
    gossip_at: Option<Instant>,
    /// The last change of a key here, by any node: gossip is faster for 1 s after it.
    changed_at: Option<Instant>,
    expire_at: Option<Instant>,
    /// Owners of keys may have changed: no key expires before all members have reported its use
    /// again.
    own_from: Instant,
    /// The next round of expiry reports the use of all keys again, not only newer uses.
    report_all: bool,
    alarms: AlarmThrottle,
    stats: ReplicatorStats,
}

/// The state that a sealed replica serves, as it was at the seal.
#[derive(Clone, Debug)]
struct SealedSnapshot {
    epoch: EpochId,
    snapshot: Snapshot,
    promises: Vec<(crate::key::Group, crate::types::Term)>,
}

/// A request that waits until everything is delivered.
#[derive(Clone, Debug)]
struct Flush {
    /// Pushes that are under way.
    open: BTreeSet<u64>,
    /// Peers that still lack changes, which anti-entropy brings.
    behind: BTreeSet<ReplicaId>,
    deadline: Instant,
}

/// The arguments of [`Replicator::new`].
#[derive(Clone, Debug)]
pub struct ReplicatorParameters {
    /// This incarnation: random, never used before.
    pub me: ReplicaId,
    /// The settings of the Replicator.
    pub config: ReplicatorConfig,
    /// The user-defined data types of this node.
    pub registry: Registry,
    /// Seeds the generator that spreads timers and picks peers.
    pub seed: u64,
    /// The planted fault; none outside of tests.
    pub fault_injection: FaultInjection,
}

impl Replicator {
    /// Creates a replica without a configuration. It serves `Local` requests and waits until it
    /// founds or installs one. With durable keys in the settings it queues requests (except
    /// subscriptions and `ReplicaCount`) and drops messages until [`ReplicatorInput::Loaded`].
    #[must_use]
    pub fn new(setup: ReplicatorParameters) -> Self {
        let ReplicatorParameters { me, config, registry, seed, fault_injection } = setup;
        let loading = (!config.durable_keys.is_empty()).then(VecDeque::new);
        Self {
            me,
            fault_injection,
            registry,
            rng: SmallRng::seed_from_u64(seed),
            clock: HybridClock::new(config.max_clock_skew),
            store: ReplicaStore::default(),
            promises: Promises::default(),
            epochs: Epochs::new(me, config.epoch.clone(), seed ^ 1, fault_injection),
            sealed_snapshot: None,
            before_last_ack: None,
            pushes: Pushes::default(),
            questions: Questions::default(),
            repairs: Repairs::default(),
            writes: Writes::default(),
            reads: Reads::default(),
            fencings: Fencings::default(),
            flushes: BTreeMap::new(),
            subscriptions: Subscriptions::default(),
            anti_entropy: AntiEntropy::default(),
            durability: Durability::default(),
            parts: Reassembly::default(),
            trips: RoundTrips::default(),
            membership: BTreeMap::new(),
            former: Vec::new(),
            roster: Vec::new(),
            peers: BTreeSet::new(),
            electorate: BTreeSet::new(),
            contacted: BTreeMap::new(),
            loading,
            unreadable: false,
            unsent: None,
            gossip_at: None,
            changed_at: None,
            expire_at: None,
            own_from: Instant::default(),
            report_all: false,
            alarms: AlarmThrottle::default(),
            stats: ReplicatorStats::default(),
            config,
        }
    }

    /// The incarnation of this replica.
    #[must_use]
    pub const fn id(&self) -> ReplicaId {
        self.me
    }

    /// The machine that decides configurations.
    #[must_use]
    pub const fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// Counters since the replica was created, and current sizes. A copy.
    #[must_use]
    pub fn stats(&self) -> ReplicatorStats {
        ReplicatorStats {
            keys: self.store.len() as u64,
            keys_deleted: self.store.deleted() as u64,
            requests_pending: self.pending() as u64,
            pushes_open: self.pushes.len() as u64,
            removal_records: self.store.records() as u64,
            assemblies_dropped: self.parts.dropped(),
            epoch: *self.epochs.stats(),
            ..self.stats.clone()
        }
    }

    /// The value of a key at this replica, without a request. `None` if it never held the key; a
    /// deleted key has an empty value.
    #[must_use]
    pub fn peek(&self, key: &KeyName) -> Option<Value> {
        self.store.get(key).map(|held| Value::new(held.state.snapshot()))
    }

    /// Every key that this replica has ever held, deleted ones included, with its value: for tests
    /// and dumps.
    pub fn dump(&self) -> impl Iterator<Item = (&KeyName, Value)> {
        self.store.iter().map(|held| (&held.key, Value::new(held.state.snapshot())))
    }

    /// The terms that this replica has promised.
    #[must_use]
    pub fn promises(&self) -> Vec<(crate::key::Group, crate::types::Term)> {
        self.promises.all()
    }

    /// Number of open requests, including those that wait for durable data to load, and those at
    /// `Local` that wait for the disk.
    fn pending(&self) -> usize {
        let loading = self.loading.as_ref().map_or(0, VecDeque::len);
        let on_peers = self.writes.len() + self.reads.len() + self.fencings.len();
        on_peers + self.flushes.len() + self.durability.replies() + loading
    }

    /// Whether this replica may acknowledge and answer in the installed configuration. False as
    /// well while the write of its latest vote has failed and was not repeated with success.
    fn eligible(&self) -> bool {
        self.epochs.eligible() && !self.durability.is_shut()
    }

    /// The replicas whose answers count now. There are none before the first configuration.
    fn electors(&self) -> Electors<'_> {
        Electors {
            me: self.me,
            eligible: self.eligible(),
            members: &self.electorate,
            voters: self.epochs.installed().map_or(&[], |epoch| epoch.voters()),
        }
    }

    /// The bookkeeping of a change that counts as a use of the key and does not change its size.
    const fn change(now: Now) -> StateChange {
        StateChange { now: now.mono, bytes: 0, used: true }
    }

    /// Notes that keys changed, which makes gossip faster. A round that is due is moved forward;
    /// none is set if there is none.
    fn noted_change(&mut self, now: Now) {
        self.changed_at = Some(now.mono);
        if let Some(at) = self.gossip_at {
            self.gossip_at = Some(at.min(now.mono + self.config.busy_gossip_interval));
        }
    }

    /// Sends a message on the lane of its kind, see [`send_as`](Self::send_as).
    fn send(&mut self, to: ReplicaId, body: Body, out: &mut ReplicatorOutbox) {
        let class = match &body {
            Body::Epoch(_) => LaneClass::Control,
            Body::Part { .. } => LaneClass::Bulk,
            _ => LaneClass::Data,
        };
        self.send_as(to, class, body, out);
    }

    /// Sends a message with the id of the installed configuration. One longer than a frame is cut
    /// into pieces, which go as `Bulk` whatever `class` is. One longer than `assembly_bytes_max` is
    /// not sent but counted; the next tick raises an alarm, of the last such message only.
    fn send_as(&mut self, to: ReplicaId, class: LaneClass, body: Body, out: &mut ReplicatorOutbox) {
        let frame = self.config.frame_bytes_max;
        let long = body.len() + 64 > frame;
        let message = ReplicatorMessage { epoch: self.epochs.id(), body };
        if !long {
            return self.emit(ReplicatorOutput::Send { to, class, message }, out);
        }
        let encoded = message.encode();
        if encoded.len() <= frame {
            return self.emit(ReplicatorOutput::Send { to, class, message }, out);
        }
        if encoded.len() > self.config.assembly_bytes_max {
            self.stats.too_large += 1;
            self.unsent = Some((to, encoded.len()));
            return;
        }
        for body in self.parts.cut(&encoded, frame.saturating_sub(128).max(1)) {
            let message = ReplicatorMessage { epoch: self.epochs.id(), body };
            self.emit(ReplicatorOutput::Send { to, class: LaneClass::Bulk, message }, out);
        }
    }

    /// Sends a message, or holds it back while this replica's latest vote is being written (see
    /// [`Durability::gate`]). After a failed write, a message that depends on a vote is dropped.
    /// Other outputs, such as replies, do not pass here and are never held back.
    fn emit(&mut self, output: ReplicatorOutput, out: &mut ReplicatorOutbox) {
        if self.durability.is_open() {
            out.push(output); // the common case: the message is not moved in and out again
        } else if let Some(output) = self.durability.gate(output) {
            out.push(output);
        }
    }

    /// The earliest deadline of a flush; `None` without any.
    fn flushes_due(&self) -> Option<Instant> {
        if self.flushes.is_empty() {
            return None; // the common case
        }
        self.flushes.values().map(|flush| flush.deadline).min()
    }

    fn reply(
        id: RequestId,
        reply: Result<ReplicatorReply, RequestError>,
        out: &mut ReplicatorOutbox,
    ) {
        out.push(ReplicatorOutput::Reply { id, reply });
    }

    /// Takes the durable records of an earlier run, notifies subscribers of the loaded values, then
    /// handles the requests that waited for them, in their order. If a record cannot be read, it
    /// reports `LoadFailed`, no promise is loaded, and these requests fail with `NotLoaded`, as do
    /// all later ones. Records that come again are merged as well.
    fn load(
        &mut self,
        now: Now,
        records: Vec<crate::durable::DurableRecord>,
        out: &mut ReplicatorOutbox,
    ) {
        let failed = self.restore(now, records, out).err();
        self.unreadable = failed.is_some();
        if !self.unreadable {
            self.tell_now(out); // the loaded values, to subscriptions that were opened before
        }
        out.extend(failed.map(ReplicatorOutput::LoadFailed));
        for (id, request) in self.loading.take().unwrap_or_default() {
            self.request(now, id, request, out);
        }
    }
}

impl Machine for Replicator {
    type Input = ReplicatorInput;
    type Output = ReplicatorOutput;

    /// Handles one input. A `Found` that `Epochs::may_found` refuses is ignored. After durable
    /// records could not be read, only requests are answered, with an error, and all other inputs
    /// (and subscriptions) are ignored.
    fn handle(&mut self, now: Now, input: ReplicatorInput, out: &mut ReplicatorOutbox) {
        match input {
            ReplicatorInput::Request { id, request } => self.request(now, id, request, out),
            _ if self.unreadable => {} // it ignores all other inputs and writes nothing
            ReplicatorInput::Tick => self.tick(now, out),
            ReplicatorInput::Message { from, message } => self.message(now, from, message, out),
            ReplicatorInput::LinkUp(peer) => self.link_up(now, peer, out),
            ReplicatorInput::PeerEpoch { from, id } => {
                if id != self.epochs.id() {
                    self.drive(now, EpochInput::PeerEpoch { from, id }, out);
                }
            }
            ReplicatorInput::Members(peers) => self.members(now, peers, out),
            ReplicatorInput::Propose(change) => self.drive(now, EpochInput::Propose(change), out),
            ReplicatorInput::ProposeAfter { base, change } => {
                self.propose_after(now, base, change, out);
            }
            ReplicatorInput::Force { replaced, kept } => {
                self.drive(now, EpochInput::Force { replaced, kept }, out);
            }
            ReplicatorInput::Consent { query, remaining } => {
                self.drive(now, EpochInput::Consent { query, remaining }, out);
            }
            ReplicatorInput::Released(id) => self.drive(now, EpochInput::Released(id), out),
            // A peer may have sent a decided configuration before, which takes precedence.
            ReplicatorInput::Found(epoch) if !self.epochs.may_found(&epoch) => {}
            ReplicatorInput::Found(epoch) => self.drive(now, EpochInput::Found(epoch), out),
            ReplicatorInput::Loaded(records) => self.load(now, records, out),
            ReplicatorInput::Persisted { id, result } => self.persisted(now, id, result, out),
        }
    }

    /// The earliest deadline of all parts, which may have passed; a batch with changes is due at
    /// once. `None` after durable records could not be read.
    fn next_deadline(&self) -> Option<Instant> {
        if self.unreadable {
            return None;
        }
        EarliestTime(self.pushes.fresh_since())
            .or(self.subscriptions.due())
            .or(self.pushes.due())
            .or(self.writes.due())
            .or(self.reads.due())
            .or(self.fencings.due())
            .or(self.flushes_due())
            .or(self.anti_entropy.due())
            .or(self.durability.due())
            .or(self.epochs.next_deadline())
            .or(self.gossip_at)
            .or(self.expire_at)
            .0
    }
}

/// The earliest of several times.
#[derive(Clone, Copy)]
struct EarliestTime(Option<Instant>);

impl EarliestTime {
    /// The earlier of the two times; `None` counts as never.
    fn or(self, other: Option<Instant>) -> Self {
        match (self.0, other) {
            (Some(one), Some(other)) => Self(Some(one.min(other))),
            (one, other) => Self(one.or(other)),
        }
    }
}
