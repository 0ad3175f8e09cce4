//! Random schedules: tells and asks from all nodes while shards move, leases lapse and lanes are
//! full. Checked at every step: an entity has one instance, which runs only under a lease, handles
//! each sender's messages in order, and continues the count of its former instance. Checked at the
//! end: a planned move lost no message. Each check is shown to catch a fault injection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{BoxError, Entity};
use ostraca::sharding::entity_ref::AskError;
use ostraca::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::passivation::settings::PassivationStrategy;
use ostraca::sharding::reply::Reply;
use ostraca::sharding::shard_region::ShardRegion;
use ostraca_ddata::sim::{RandomStream, Seed, seeds};
use serde::{Deserialize, Serialize};

use super::journal::{Alive, Journal};
use super::nodes::{NodeWorld, Nodes, Plan, Step, node};
use crate::nodes::some_passivation;

const NODES: usize = 3;
const SHARDS: u32 = 3;
const ENTITIES: u64 = 6;

/// An entity that counts its messages and reports what it does to the journal.
struct Player {
    journal: Arc<Journal>,
    world: Arc<NodeWorld>,
    id: String,
    count: u64,
    may_go: bool, // may end with its count: it passivates, or has exported it
    _alive: Alive,
}

#[derive(Serialize, Deserialize)]
enum Word {
    Note { sender: u64, number: u64 },
    Slow { sender: u64, number: u64, millis: u64 },
    Passivate { sender: u64, number: u64 },
    AskPeer { sender: u64, number: u64, peer: u64 },
    Answer(Reply<u64>),
}

impl Player {
    /// Reports a violation if the handler runs without a lease.
    fn look(&self, id: &EntityId) {
        if !self.world.leased.load(Ordering::SeqCst) {
            self.journal.violates(format!("instance: {id} runs without a lease"));
        }
    }
}

impl Entity for Player {
    type Message = Word;

    async fn handle(&mut self, word: Word, cx: &mut Context<'_, Self>) {
        self.look(cx.id());
        self.count += 1;
        self.journal.counts(&self.id, self.count);
        let note = |sender, number| self.journal.handles(sender, cx.id().as_str(), number);
        match word {
            Word::Note { sender, number } => note(sender, number),
            Word::Slow { sender, number, millis } => {
                note(sender, number);
                let world: &dyn ostraca::sharding::region_handle::RegionEnvironment = &*self.world;
                world.sleep(Duration::from_millis(millis)).await;
                self.look(cx.id());
            }
            Word::Passivate { sender, number } => {
                note(sender, number);
                self.may_go = true;
                cx.passivate();
            }
            Word::AskPeer { sender, number, peer } => {
                note(sender, number);
                let peer = cx.entity(&name(peer));
                match peer.ask_within(Duration::from_secs(2), Word::Answer).await {
                    Ok(_) | Err(AskError::Refused { why: DeadLetterReason::NotLeased, .. }) => {}
                    // Entities of two shards that leave two nodes may wait for each other.
                    Err(AskError::Timeout { .. }) => self.journal.pages().timeouts += 1,
                    Err(why) => {
                        let what = format!("loss: {peer} gives {} no answer: {why}", cx.id());
                        self.journal.violates(what);
                    }
                }
                self.look(cx.id());
            }
            Word::Answer(reply) => reply.send(1),
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        self.journal.hands_over(&self.id, self.count);
        self.may_go = true;
        Some(self.count.to_le_bytes().to_vec())
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.count = u64::from_le_bytes(state.try_into()?);
        self.journal.takes_over(&self.id, self.count);
        Ok(())
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.journal.ends(&self.id, self.may_go);
    }
}

fn name(entity: u64) -> String {
    format!("e{entity}")
}

/// The nodes of a run with the harness that acts on them at random.
struct Storm {
    nodes: Nodes<Player>,
    journal: Arc<Journal>,
    chance: RandomStream,
    told: BTreeMap<(u64, String), u64>,
    moves: usize,
    lapses: usize, // number of long lapses
}

impl Storm {
    fn new(seed: Seed, fault_injection: ShardingFaultInjection) -> Self {
        let mut chance = RandomStream::split(seed.value, "entities", 0);
        let mut plan = Plan { nodes: NODES, shards: SHARDS, fault_injection, ..Plan::default() };
        plan.settings.passivation = some_passivation(seed, &mut chance, 4, &[20, 40, 60, 90]);
        let journal = Arc::new(Journal::default());
        journal.pages().policy = plan.settings.passivation.strategy != PassivationStrategy::None;
        let nodes = Nodes::new(&plan, |me, world| {
            let journal = Arc::clone(&journal);
            move |id: &EntityId| Player {
                _alive: journal.begins(id.as_str(), me),
                journal: Arc::clone(&journal),
                world: Arc::clone(&world),
                id: id.as_str().to_owned(),
                count: 0,
                may_go: false,
            }
        });
        if chance.chance(0.5) {
            nodes.lanes.lock().expect("nobody panicked").limit = 4;
        }
        let (told, moves, lapses) = (BTreeMap::new(), 0, 0);
        Self { nodes, journal, chance, told, moves, lapses }
    }

    /// Sends a random message from a random node; each node is one sender.
    fn tell(&mut self) {
        let sender = self.chance.below(NODES as u64);
        let entity = self.chance.below(ENTITIES);
        let number = self.told.get(&(sender, name(entity))).copied().unwrap_or(0) + 1;
        let word = match self.chance.below(12) {
            0 => Word::Slow { sender, number, millis: self.chance.below(40) },
            1 => Word::Passivate { sender, number },
            2 | 3 if entity > 0 => {
                Word::AskPeer { sender, number, peer: self.chance.below(entity) }
            }
            _ => Word::Note { sender, number },
        };
        let to = self.nodes.nodes[sender as usize].region.entity(&name(entity));
        to.tell(word).expect("there is room");
        self.told.insert((sender, name(entity)), number);
    }

    fn disturb(&mut self) {
        match self.chance.below(10) {
            0..4 => {
                let shard = ShardId::new(self.chance.below(SHARDS.into()) as u32);
                self.nodes.decide(shard, Some(self.chance.index(NODES)));
                self.moves += 1;
            }
            4 => {
                let shard = ShardId::new(self.chance.below(SHARDS.into()) as u32);
                self.nodes.send_orders(shard);
            }
            5 => {
                let world = &self.nodes.nodes[self.chance.index(NODES)].world;
                world.leased.fetch_xor(true, Ordering::SeqCst);
            }
            6 => {
                let index = self.chance.index(NODES);
                let is_back = self.chance.chance(0.7);
                self.nodes.nodes[index].world.leased.store(is_back, Ordering::SeqCst);
                self.journal.pages().lapsed.insert(node(index));
                self.nodes.nodes[index].hosting.lapsed();
                self.lapses += 1;
            }
            _ => self.nodes.advance(Duration::from_millis(self.chance.between(1, 30))),
        }
    }

    fn violation(&self) -> Option<String> {
        self.journal.pages().violations.first().cloned()
    }

    fn run(mut self) -> Result<Self, String> {
        for _ in 0..1_500 {
            let steps = self.nodes.possible();
            match self.chance.below(10) {
                0 | 1 => self.tell(),
                2 if self.chance.chance(0.3) => self.disturb(),
                _ if !steps.is_empty() => {
                    let step: Step = *self.chance.pick(&steps);
                    self.nodes.step(step, self.chance.index(1 << 20));
                }
                _ => self.nodes.advance(Duration::from_millis(1)),
            }
            if let Some(violation) = self.violation() {
                return Err(violation);
            }
        }
        self.heal()
    }

    /// Ends the faults, waits until all messages are handled, and checks that each was handled
    /// once.
    fn heal(mut self) -> Result<Self, String> {
        for index in 0..NODES {
            self.nodes.nodes[index].world.leased.store(true, Ordering::SeqCst);
        }
        for _ in 0..1_300 {
            let rests = |region: &ShardRegion<Player>| region.buffered() + region.held() == 0;
            let idle = self.nodes.executor.tasks() == 0 && self.nodes.possible().is_empty();
            if idle && self.nodes.nodes.iter().all(|node| rests(&node.region)) {
                break;
            }
            for shard in 0..SHARDS {
                self.nodes.send_orders(ShardId::new(shard));
            }
            self.nodes.settle();
            self.nodes.advance(Duration::from_millis(10));
        }
        if let Some(violation) = self.violation() {
            return Err(violation);
        }
        // A handler that a lapse dropped had logged its message before. No node crashes here, so no
        // payload may be counted as lost, whether a later home has taken it (a former fault) or
        // not.
        if self.nodes.all_lost() > self.nodes.lost(DeadLetterReason::NotLeased) {
            let lost = self.nodes.nodes.iter().flat_map(|node| node.region.dead_letters());
            let lost: Vec<_> = lost.filter(|(_, count)| *count > 0).collect();
            return Err(format!("loss: messages are counted as lost: {lost:?}"));
        }
        let states: u64 = self.nodes.nodes.iter().map(|node| node.region.lost_states()).sum();
        if states > 0 || self.nodes.discarded() > 0 {
            let payloads = self.nodes.discarded();
            return Err(format!("state: {states} states and {payloads} payloads counted as lost"));
        }
        let pages = self.journal.pages();
        for (to, count) in &self.told {
            let handled = pages.handled.get(to).map_or(&[][..], |numbers| &numbers[..]);
            if !handled.iter().copied().eq(1..=*count) {
                let places = self.nodes.nodes.iter().map(|node| {
                    let region = &node.region;
                    (region.entities(), region.buffered(), region.held())
                });
                return Err(format!(
                    "loss: of {count} told to {to:?} are handled {handled:?}; entities, buffered \
                     and held on each node: {:?}; {} tasks",
                    places.collect::<Vec<_>>(),
                    self.nodes.executor.tasks()
                ));
            }
        }
        drop(pages);
        Ok(self)
    }
}

#[test]
fn moves_keep_order_and_one_instance() {
    let (mut runs, mut started, mut told, mut moves, mut timeouts) = (0, 0, 0, 0, 0);
    let (mut taken, mut lapses) = (0, 0);
    let test = "moves_keep_order_and_one_instance";
    for seed in seeds(test, 300) {
        let storm = Storm::new(seed, ShardingFaultInjection::none()).run();
        let storm = storm.unwrap_or_else(|why| panic!("{why}\n{}", seed.replay_command()));
        runs += 1;
        started += storm.journal.pages().started;
        timeouts += storm.journal.pages().timeouts;
        taken += storm.journal.pages().taken;
        moves += storm.moves;
        lapses += storm.lapses;
        told += storm.told.values().sum::<u64>();
    }
    let all = format!(
        "{told} told, {moves} decisions, {started} instances, {taken} counts moved, {lapses} \
         lapses, {timeouts} timeouts"
    );
    let often = |count: usize, times: usize| count > times * runs as usize;
    assert!(
        told > 200 * runs
            && often(moves, 10)
            && often(started, 10)
            && often(taken, 5)
            && often(lapses, 2),
        "too few events: {all}"
    );
    assert!(timeouts < runs as usize * 5, "too many asks wait for each other: {all}");
}

/// The violations that the first 60 seeds find with a fault injected.
fn found(bug: ShardingFault) -> Vec<String> {
    let violation =
        |value: u64| Storm::new(Seed::from(value), ShardingFaultInjection::with(bug)).run().err();
    (0..60).filter_map(violation).collect()
}

#[test]
fn canaries_are_found() {
    for (bug, invariant) in [
        (ShardingFault::TakenNotGivenBack, "loss"),
        (ShardingFault::TakenGivenBackBehind, "order"),
        (ShardingFault::LeaseNotAsked, "instance"),
        (ShardingFault::PassivatedWithMessages, "loss"),
        (ShardingFault::StatesStay, "state"),
        (ShardingFault::StateTakenAgain, "state"),
        (ShardingFault::IdleHandNothingOver, "state"),
        (ShardingFault::LetGoTakesStarted, "instance"),
    ] {
        let found = found(bug);
        assert!(found.iter().any(|why| why.starts_with(invariant)), "{bug:?}: {found:?}");
    }
}
