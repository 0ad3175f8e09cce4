//! Executes the outputs of a node's sharding machines and simulates entities: mailboxes of numbers,
//! handled one after the other while the lease runs. Messages left in a mailbox when its drain ends
//! are the payload of the shard. A message arrives at the node that hosts its shard, because gates
//! have tests of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use ostraca::node::routes::sharding::{
    ShardingDestination, ShardingEvent as Told, counted, lives, route, say,
};
use ostraca::sharding::allocation::{Allocations, StrategyAnswer, StrategyRequest};
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::decision_history::SlowDecisions;
use ostraca::sharding::ids::{EntityType, Generation, RegionId, ShardId};
use ostraca::sharding::machines::{
    ClusterQuery, ClusterQueryResult, Hosts, MachineMessage, ShardingInput as Fact,
};
use ostraca::sharding::region::{HostingPhase, Region, RegionInput, RegionOutput, RegionShard};
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::machine::{Machine as _, Outbox};
use ostraca_ddata::sim::{Effects, RandomStream};

use super::house::Said;
use super::{Body, Event, WholeNode, Work};

const MS: Duration = Duration::from_millis(1);

/// The times that a node uses by default.
const CALM: Duration = Duration::from_millis(200);
const CALM_WITHIN: Duration = Duration::from_secs(2);

/// Requests of a harness.
#[derive(Debug)]
pub(crate) enum Order {
    Start(EntityType, Box<Settings>, Hosts),
    /// Starts the type with a strategy of the program, which at random fails, is late, does not
    /// answer or names an absent region.
    StartOwn(EntityType, Box<Settings>),
    /// An entity here sends to a shard without a home.
    Want(EntityType, ShardId),
    /// The program requests that these shards stop everywhere.
    Stop(EntityType, Vec<ShardId>),
    /// A message for an entity of the shard; ignored unless the shard is hosted here.
    Tell(EntityType, ShardId, u64),
    /// Sends this number of messages from this node to random entities; only with a real entity
    /// runtime.
    TellAny(usize),
    /// Moves all shards of this node to other nodes; the node remains a member.
    Drain,
    /// Queries all nodes. Each queued message counts as an entity of its shard.
    Survey(EntityType, ClusterQuery, Duration),
}

/// Events that a harness observes.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    Registered,
    Acting,
    SteppedDown,
    Hosts(ShardId, Generation),
    Accepted(u64),
    Handled(u64),
    Discarded(u64),
    Surveyed(ClusterQueryResult),
    Slow(SlowDecisions),
    /// The program's strategy was asked; carries the planned behaviour.
    Consulted(&'static str),
    /// Failures of the strategy were reported.
    StrategyFailed,
    /// Shards are pinned to places without a region.
    PinsAbsent,
    Left,
}

type Key = (EntityType, ShardId);

/// The simulated entities of one node (see the module).
pub(crate) struct Entities {
    mailboxes: BTreeMap<Key, Vec<u64>>,
    drains: BTreeMap<Key, Instant>,
    handle_at: Option<Instant>,
    advice: Vec<(Instant, Fact)>, // pending answers of the program's strategy
    chance: RandomStream,
}

impl Entities {
    pub(super) fn new(seed: u64) -> Self {
        let chance = RandomStream::split(seed, "entities", 0);
        Self {
            mailboxes: BTreeMap::new(),
            drains: BTreeMap::new(),
            handle_at: None,
            advice: Vec::new(),
            chance,
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let advice = self.advice.iter().map(|(at, _)| *at);
        self.drains.values().copied().chain(self.handle_at).chain(advice).min()
    }

    /// Simulates the answer of the program's strategy to a request and returns its behaviour.
    fn consult(
        &mut self,
        now: Now,
        (entity_type, number): (EntityType, u64),
        asked: &StrategyRequest,
    ) -> &'static str {
        let chance = &mut self.chance;
        let fate = *chance.pick(&["good", "good", "good", "fails", "late", "silent", "vanished"]);
        let longest = if fate == "late" { 8_000 * MS } else { 50 * MS };
        let at = now.mono + chance.span(Duration::ZERO, longest);
        let home = |chance: &mut RandomStream, seen: &Allocations| {
            let there: Vec<RegionId> = seen.regions.keys().copied().collect();
            let nobody = RegionId::new(ReplicaId::new(u64::MAX));
            if fate == "vanished" || there.is_empty() { nobody } else { *chance.pick(&there) }
        };
        let advice = match asked {
            _ if fate == "fails" => Err("as ordered".into()),
            StrategyRequest::Home { seen, .. } => Ok(StrategyAnswer::Home(home(chance, seen))),
            StrategyRequest::Moves { seen } => {
                let all: Vec<ShardId> = seen.homes().map(|(shard, _)| shard).collect();
                let count = if chance.chance(0.3) { 2.min(all.len()) } else { 0 };
                let moves = (0..count).map(|_| (*chance.pick(&all), home(chance, seen)));
                Ok(StrategyAnswer::Moves(moves.collect()))
            }
        };
        if fate != "silent" {
            self.advice.push((at, Fact::Advised { entity_type, number, advice }));
        }
        fate
    }

    fn count(&self, entity_type: &EntityType) -> BTreeMap<ShardId, u64> {
        let own = self.mailboxes.iter().filter(|((of, _), _)| of == entity_type);
        own.map(|((_, shard), mailbox)| (*shard, mailbox.len() as u64)).collect()
    }

    /// Messages that were accepted and neither handled nor handed over.
    pub(crate) fn holds(&self) -> impl Iterator<Item = u64> + '_ {
        self.mailboxes.values().flatten().copied()
    }
}

fn sealed(messages: &[u64]) -> Bytes {
    messages.iter().flat_map(|id| id.to_be_bytes()).collect()
}

fn opened(payload: &Bytes) -> Vec<u64> {
    let ids = payload.chunks_exact(8);
    ids.map(|id| u64::from_be_bytes(id.try_into().expect("eight bytes"))).collect()
}

impl WholeNode {
    /// This node's region of the type.
    pub(crate) fn region(&self, entity_type: &EntityType) -> Option<&Region> {
        self.machines.of(entity_type)?.region()
    }

    fn run(&self, (entity_type, shard): &Key) -> HostingPhase {
        let shard = self.region(entity_type).and_then(|region| region.shard(*shard));
        shard.map_or(HostingPhase::Idle, RegionShard::run)
    }

    pub(super) fn shard(&mut self, now: Now, fact: Fact, fx: &mut Effects<Self>) {
        let me = self.me().incarnation;
        let ends = match &fact {
            Fact::Out => true,
            Fact::Installed(epoch) => !epoch.is_member(me),
            _ => false,
        };
        if ends {
            // The node stops all shards: messages held here count as lost.
            let lost = self.messages().into_iter();
            lost.for_each(|id| fx.emit(Event::Sharding(Seen::Discarded(id))));
        }
        let mut out = Outbox::new();
        self.machines.handle(now, fact, &mut out);
        for output in out.drain() {
            match route(output) {
                ShardingDestination::Peer { to, entity_type, word } => {
                    if let Some(to) = self.linked(to) {
                        let (part, bytes) = say(&word);
                        self.send(to, Body::Sharding(part, entity_type.into(), bytes), fx);
                    }
                }
                ShardingDestination::Guard(input) => self.work.push_back(Work::Guard(input)),
                ShardingDestination::Membership(input) => {
                    self.work.push_back(Work::Membership(input));
                }
                ShardingDestination::Entities { entity_type, order } => {
                    self.perform(now, entity_type, order, fx);
                }
                ShardingDestination::Count { to, entity_type, number, messages } => {
                    let entities = self.entities.count(&entity_type);
                    for counting in &messages {
                        let word = counted(number, counting, &entities);
                        self.answer(to, entity_type.clone(), word, fx);
                    }
                }
                ShardingDestination::Exists { to, entity_type, number, .. } => {
                    self.answer(to, entity_type, lives(number, None), fx); // no ids are stored
                }
                ShardingDestination::Strategy { entity_type, number, asked } => {
                    let fate = self.entities.consult(now, (entity_type, number), &asked);
                    fx.emit(Event::Sharding(Seen::Consulted(fate)));
                }
                ShardingDestination::Removed(regions) => {
                    if let Some(house) = &mut self.house {
                        regions.iter().for_each(|(region, how)| house.removed(*region, *how));
                    }
                }
                ShardingDestination::Node(told) => self.shown(now, told, fx),
            }
        }
    }

    fn shown(&mut self, now: Now, told: Told, fx: &mut Effects<Self>) {
        if told == Told::Left {
            self.drained_at = self.world.drain.map(|takes| now.mono + takes);
        }
        fx.emit(Event::Sharding(match told {
            Told::Registered(_) => Seen::Registered,
            Told::Answered { found, .. } => Seen::Surveyed(found),
            Told::Slow { slow, .. } => Seen::Slow(slow),
            Told::StrategyFailed { .. } => Seen::StrategyFailed,
            Told::PinsAbsent { .. } => Seen::PinsAbsent,
            Told::Step { .. } | Told::Stopped(_) | Told::Unregistered { .. } => return,
            Told::Left => Seen::Left,
            Told::Acting { .. } => Seen::Acting,
            Told::SteppedDown { .. } => Seen::SteppedDown,
            Told::Differs { .. } => unreachable!("all nodes have the same settings"),
        }));
    }

    fn answer(
        &mut self,
        to: ReplicaId,
        entity_type: EntityType,
        word: MachineMessage,
        fx: &mut Effects<Self>,
    ) {
        let me = self.me().incarnation;
        if to == me {
            self.work.push_back(Work::Sharding(Fact::Message { from: me, entity_type, word }));
        } else if let Some(to) = self.linked(to) {
            let (part, bytes) = say(&word);
            self.send(to, Body::Sharding(part, entity_type.into(), bytes), fx);
        }
    }

    fn perform(
        &mut self,
        now: Now,
        entity_type: EntityType,
        order: RegionOutput,
        fx: &mut Effects<Self>,
    ) {
        if let Some(house) = &mut self.house {
            if let RegionOutput::Start { shard, generation, .. }
            | RegionOutput::Adopt { shard, generation } = &order
            {
                fx.emit(Event::Sharding(Seen::Hosts(*shard, *generation)));
            }
            return house.perform(order);
        }
        let Entities { mailboxes, drains, handle_at, chance, .. } = &mut self.entities;
        match order {
            RegionOutput::Start { shard, generation, payload } => {
                fx.emit(Event::Sharding(Seen::Hosts(shard, generation)));
                let carried = payload.map(|payload| opened(&payload)).unwrap_or_default();
                let before = mailboxes.insert((entity_type, shard), carried);
                assert!(before.is_none_or(|mailbox| mailbox.is_empty()), "the shard was drained");
                *handle_at = Some(now.mono);
            }
            RegionOutput::Adopt { shard, generation } => {
                fx.emit(Event::Sharding(Seen::Hosts(shard, generation)));
            }
            RegionOutput::Drain { shard, .. } => {
                let longest = *chance.pick(&[MS, 20 * MS, 200 * MS, 3_000 * MS]);
                let takes = chance.span(Duration::ZERO, longest);
                drains.insert((entity_type, shard), now.mono + takes);
            }
            RegionOutput::Abort(shard) => {
                drains.insert((entity_type, shard), now.mono);
            }
            RegionOutput::Discard { payload, .. } => {
                let discarded = |id| fx.emit(Event::Sharding(Seen::Discarded(id)));
                opened(&payload).into_iter().for_each(discarded);
            }
            RegionOutput::StopAll => {
                drains.clear();
                mailboxes.clear();
            }
            _ => {}
        }
    }

    /// Runs the entity runtime and routes its outputs, until it produces none.
    pub(super) fn keep_house(&mut self, now: Now, fx: &mut Effects<Self>) {
        loop {
            let serves = self.membership.serves(now.mono);
            let Some(house) = &mut self.house else { return };
            self.gone.drain(..).for_each(|peer| house.closed(now.mono, peer));
            if self.over.is_some() {
                return house.perform(RegionOutput::StopAll);
            }
            let Said { parcels, facts } = house.run(now.mono, serves);
            if parcels.is_empty() && facts.is_empty() {
                return;
            }
            for (to, parcel) in parcels {
                if let Some(to) = self.linked(to) {
                    self.send(to, Body::User(parcel), fx);
                }
            }
            let entity_type = self.machines.types().map(|(name, _)| name.clone()).next();
            let Some(entity_type) = entity_type else { continue };
            let fact = |fact| Work::Sharding(Fact::Fact { entity_type: entity_type.clone(), fact });
            self.work.extend(facts.into_iter().map(fact));
            self.work_off(now, fx);
        }
    }

    /// Whether a leaving node's sent messages have all arrived; after `CALM_WITHIN` the node no
    /// longer waits.
    pub(super) fn is_calm(&mut self, now: Now) -> bool {
        let at = *self.left_at.get_or_insert(now.mono);
        let Some(house) = &mut self.house else { return true };
        house.is_calm(now.mono, CALM) || now.mono >= at + CALM_WITHIN
    }

    /// Translates a request of the harness into an input of the machines.
    pub(super) fn ordered(
        &mut self,
        now: Now,
        order: Order,
        fx: &mut Effects<Self>,
    ) -> Option<Fact> {
        match order {
            Order::Start(entity_type, settings, hosts) => {
                let (extractor, strategy) = ("xxh3".into(), None);
                Some(Fact::Start { entity_type, settings, extractor, strategy, hosts })
            }
            Order::StartOwn(entity_type, settings) => {
                let (extractor, strategy) = ("xxh3".into(), Some("own".into()));
                let hosts = Hosts::Shards;
                Some(Fact::Start { entity_type, settings, extractor, strategy, hosts })
            }
            Order::Want(entity_type, shard) => {
                Some(Fact::Fact { entity_type, fact: RegionInput::Wanted(shard) })
            }
            Order::Stop(entity_type, shards) => {
                let within = Duration::from_secs(60);
                Some(Fact::Fact { entity_type, fact: RegionInput::Stop { shards, within } })
            }
            Order::TellAny(messages) => {
                self.house.iter_mut().for_each(|house| house.tell(messages));
                None
            }
            Order::Drain => Some(Fact::Drain),
            Order::Survey(entity_type, question, within) => {
                Some(Fact::Query { id: 1, entity_type, question, within })
            }
            Order::Tell(entity_type, shard, id) => {
                let key = (entity_type, shard);
                if matches!(self.run(&key), HostingPhase::Hosting(_)) {
                    fx.emit(Event::Sharding(Seen::Accepted(id)));
                    self.entities.mailboxes.entry(key).or_default().push(id);
                    let pause = self.entities.chance.span(MS, 500 * MS);
                    self.entities.handle_at.get_or_insert(now.mono + pause);
                }
                None
            }
        }
    }

    pub(super) fn entities_due(&mut self, now: Now, fx: &mut Effects<Self>) {
        let over = self.entities.drains.iter().filter(|(_, at)| **at <= now.mono);
        for key in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.entities.drains.remove(&key);
            let left = self.entities.mailboxes.remove(&key).unwrap_or_default();
            let payload = (!left.is_empty()).then(|| sealed(&left));
            let (entity_type, shard) = key;
            let fact = RegionInput::Drained { shard, payload };
            self.work.push_back(Work::Sharding(Fact::Fact { entity_type, fact }));
        }
        if self.entities.handle_at.is_some_and(|at| at <= now.mono) {
            self.handle_some(now, fx);
        }
        let advice = self.entities.advice.extract_if(.., |(at, _)| *at <= now.mono);
        self.work.extend(advice.map(|(_, fact)| Work::Sharding(fact)));
        self.work_off(now, fx);
    }

    /// Each shard hosted here handles one message if the lease runs.
    fn handle_some(&mut self, now: Now, fx: &mut Effects<Self>) {
        let mut more = false;
        let serves = self.membership.serves(now.mono);
        for key in self.entities.mailboxes.keys().cloned().collect::<Vec<_>>() {
            let hosts = matches!(self.run(&key), HostingPhase::Hosting(_));
            let Some(mailbox) = self.entities.mailboxes.get_mut(&key) else { continue };
            if serves && hosts && !mailbox.is_empty() {
                fx.emit(Event::Sharding(Seen::Handled(mailbox.remove(0))));
            }
            more |= hosts && !mailbox.is_empty();
        }
        let pause = self.entities.chance.span(MS, 500 * MS);
        self.entities.handle_at = more.then(|| now.mono + pause);
    }

    /// Messages that would be lost with this node: those in mailboxes and those in stored payloads.
    pub(crate) fn messages(&self) -> Vec<u64> {
        let regions = self.machines.types().filter_map(|(_, of_type)| of_type.region());
        let payloads = regions.flat_map(Region::payloads).flat_map(opened);
        self.entities.holds().chain(payloads).collect()
    }

    /// This node's state of a type, for a failure report.
    pub(crate) fn sharding_story(&self, entity_type: &EntityType) -> String {
        let Some(of) = self.machines.of(entity_type) else { return "no type".into() };
        let coordinator = of.coordinator().map(|c| (c.phase(), c.hindrance()));
        let region = of.region().map(|r| (r.is_registered(), r.hosted().collect::<Vec<_>>()));
        let house = self.house.as_ref().map(|house| house.story()).unwrap_or_default();
        format!(
            "{}: singleton {:?}, coordinator at {:?} {coordinator:?}, region {region:?} {house}\n",
            self.me().incarnation,
            of.singleton().running(),
            of.coordinator_at(),
        )
    }
}
