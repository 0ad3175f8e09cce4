//! Entity state in a planned move: `export_state` exports it at the old home, `import_state` imports it
//! at the next one; which ends of an instance export nothing, and which failures lose a state
//! (docs/protocol/sharding.md#entity-state-travels-in-the-payload).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostraca::sharding::config::ShardingConfig;
use ostraca::sharding::context::Context;
use ostraca::sharding::dead_letters::DeadLetterReason;
use ostraca::sharding::entity::{BoxError, Entity, Supervision};
use ostraca::sharding::ids::{EntityId, Generation, ShardId};
use ostraca::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};
use ostraca::sharding::region::{HostingPhase, RegionOutput, ShardHostState};
use ostraca::sharding::reply::Reply;
use ostraca::sharding::wire::ShardRoute;
use ostraca_ddata::types::Term;
use serde::{Deserialize, Serialize};

use super::door::Door;
use super::nodes::{MESSAGE_BYTES_MAX, Nodes, Plan, Step, node};
use super::waits::logged;

/// The failure that the next instance or its factory shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Manner {
    #[default]
    Well,
    HandOverPanics,
    HandOverTooMuch,
    TakeOverPanics,
    TakeOverFails,
    FactoryPanics,
    StopMessagePanics,
    StopMessageHangs,
}

/// Shared by all instances of a test: the planned failure, a door, and a log.
#[derive(Default)]
struct Town {
    manner: Mutex<Manner>,
    door: Door,
    log: Mutex<Vec<String>>,
}

impl Town {
    fn manner(&self) -> Manner {
        *self.manner.lock().expect("nobody panicked")
    }

    fn is(&self, manner: Manner) {
        *self.manner.lock().expect("nobody panicked") = manner;
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().expect("nobody panicked"))
    }
}

/// An entity with a counter as its state. `LAST`: the type has a stop message.
struct Purse<const LAST: bool> {
    coins: u64,
    town: Arc<Town>,
    node: u64,
}

#[derive(Serialize, Deserialize)]
enum Deal {
    Add(u64),
    Wait,
    WaitAndAsk(String),
    Passivate,
    Panic,
    Count(Reply<u64>),
    Last,
}

impl<const LAST: bool> Entity for Purse<LAST> {
    type Message = Deal;

    async fn handle(&mut self, deal: Deal, cx: &mut Context<'_, Self>) {
        match deal {
            Deal::Add(coins) => {
                self.coins += coins;
                let what = format!("{}@{} {}", cx.id(), self.node, self.coins);
                self.town.log.lock().expect("nobody panicked").push(what);
            }
            Deal::Wait => self.town.door.pass().await,
            Deal::WaitAndAsk(other) => {
                self.town.door.pass().await;
                self.coins += cx.entity(&other).ask(Deal::Count).await.expect("it answers");
            }
            Deal::Passivate => cx.passivate(),
            Deal::Panic => panic!("planned by the test"),
            Deal::Count(reply) => reply.send(self.coins),
            Deal::Last => {
                assert!(self.town.manner() != Manner::StopMessagePanics, "planned by the test");
                if self.town.manner() == Manner::StopMessageHangs {
                    self.town.door.pass().await;
                }
                self.coins += 100;
            }
        }
    }

    fn stop_message() -> Option<Deal> {
        LAST.then_some(Deal::Last)
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        match self.town.manner() {
            Manner::HandOverPanics if self.coins == 13 => panic!("planned by the test"),
            Manner::HandOverTooMuch if self.coins == 13 => Some(vec![0; MESSAGE_BYTES_MAX]),
            _ => Some(self.coins.to_le_bytes().to_vec()),
        }
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BoxError> {
        self.coins = u64::from_le_bytes(state.try_into()?);
        assert!(self.town.manner() != Manner::TakeOverPanics, "planned by the test");
        if self.town.manner() == Manner::TakeOverFails {
            return Err("planned by the test".into());
        }
        Ok(())
    }
}

struct Purses<const LAST: bool> {
    nodes: Nodes<Purse<LAST>>,
    town: Arc<Town>,
}

impl<const LAST: bool> Purses<LAST> {
    fn new(plan: &Plan) -> Self {
        let town = Arc::<Town>::default();
        let nodes = Nodes::new(plan, |me, _| {
            let town = Arc::clone(&town);
            move |_: &EntityId| {
                assert!(town.manner() != Manner::FactoryPanics, "planned by the test");
                Purse { coins: 0, town: Arc::clone(&town), node: me.replica().get() }
            }
        });
        let mut purses = Self { nodes, town };
        purses.nodes.host(0, 0);
        purses
    }

    fn tell(&mut self, to: &str, deal: Deal) {
        self.nodes.nodes[1].region.entity(to).tell(deal).expect("there is room");
        self.nodes.settle();
    }

    fn count(&mut self, of: &str) -> u64 {
        let purse = self.nodes.nodes[1].region.entity(of);
        self.nodes.wait_for(async move { purse.ask(Deal::Count).await }).expect("it answers")
    }

    fn lost_states(&self) -> u64 {
        self.nodes.nodes.iter().map(|node| node.region.lost_states()).sum()
    }

    fn failures(&self) -> u64 {
        self.nodes.nodes.iter().map(|node| node.region.failures()).sum()
    }
}

fn plain() -> Purses<false> {
    Purses::new(&Plan::default())
}

#[test]
fn entity_state_moves_even_through_homes_without_messages() {
    let mut purses = plain();
    for to in ["a", "b"] {
        purses.tell(to, Deal::Add(7));
    }
    purses.nodes.host(0, 1);
    assert_eq!(purses.count("a"), 7);
    assert_eq!((purses.nodes.nodes[1].region.entities(), purses.nodes.tasks_at_rest()), (2, 0));
    for node in [0, 1, 0] {
        purses.nodes.host(0, node);
    }
    purses.tell("a", Deal::Add(1));
    assert_eq!((purses.count("a"), purses.count("b"), purses.count("c")), (8, 7, 0));
    assert_eq!((purses.lost_states(), purses.nodes.all_lost(), purses.failures()), (0, 0, 0));
}

#[test]
fn state_is_imported_before_waiting_messages() {
    let mut purses = plain();
    purses.tell("a", Deal::Add(1));
    purses.tell("a", Deal::Wait);
    purses.tell("a", Deal::Add(10));
    purses.nodes.decide(ShardId::new(0), Some(1));
    purses.tell("a", Deal::Add(100));
    purses.town.door.open();
    purses.nodes.settle();
    assert_eq!(purses.town.taken(), ["a@1 1", "a@2 11", "a@2 111"]);
}

#[test]
fn stop_message_precedes_the_export_of_state() {
    let mut purses = Purses::<true>::new(&Plan::default());
    purses.tell("a", Deal::Add(1));
    purses.nodes.host(0, 1);
    assert_eq!(purses.count("a"), 101);
    purses.nodes.host(0, 0);
    purses.nodes.host(0, 1);
    assert_eq!(purses.count("a"), 201, "one instance each time, and one stop message");
}

#[test]
fn passivated_restarted_and_aborted_entities_export_no_state() {
    let mut purses = plain();
    for (to, deal) in [("a", Deal::Passivate), ("b", Deal::Panic), ("c", Deal::Wait)] {
        purses.tell(to, Deal::Add(5));
        purses.tell(to, deal);
    }
    purses.tell("d", Deal::Add(5));
    purses.nodes.decide(ShardId::new(0), Some(1));
    purses.nodes.settle();
    purses.nodes.advance(Duration::from_secs(16));
    purses.nodes.settle();
    assert_eq!(purses.nodes.lost(DeadLetterReason::Aborted), 1);
    let counts = ["a", "b", "c", "d"].map(|id| purses.count(id));
    assert_eq!((counts, purses.lost_states()), ([0, 0, 0, 5], 0));
    purses.tell("d", Deal::Panic);
    purses.nodes.advance(Duration::from_secs(1));
    assert_eq!(purses.count("d"), 0, "a restart begins without state");
}

#[test]
fn panic_in_stop_message_exports_no_state_unless_resumed() {
    for (supervision, coins) in [(Supervision::Restart, 0), (Supervision::Resume, 5)] {
        let mut purses = Purses::<true>::new(&Plan { supervision, ..Plan::default() });
        purses.tell("a", Deal::Add(5));
        purses.town.is(Manner::StopMessagePanics);
        purses.nodes.host(0, 1);
        purses.town.is(Manner::Well);
        assert_eq!((purses.count("a"), purses.failures()), (coins, 1), "{supervision:?}");
    }
}

#[test]
fn aborted_stop_message_is_counted_and_exports_no_state() {
    let mut purses = Purses::<true>::new(&Plan::default());
    purses.tell("a", Deal::Add(5));
    purses.town.is(Manner::StopMessageHangs);
    purses.nodes.host(0, 1);
    assert_eq!(purses.nodes.all_lost(), 0, "it has `handoff-timeout`");
    purses.nodes.advance(Duration::from_secs(16));
    purses.nodes.settle();
    assert_eq!((purses.nodes.lost(DeadLetterReason::Aborted), purses.nodes.all_lost()), (1, 1));
    purses.town.is(Manner::Well);
    assert_eq!((purses.count("a"), purses.failures()), (0, 0));
}

#[test]
fn state_that_cannot_be_exported_is_counted_alone() {
    for (manner, failures) in [(Manner::HandOverPanics, 1), (Manner::HandOverTooMuch, 0)] {
        let mut purses = plain();
        for (to, coins) in [("a", 1), ("unlucky", 13), ("c", 3)] {
            purses.tell(to, Deal::Add(coins));
        }
        purses.town.is(manner);
        purses.nodes.host(0, 1);
        let counts = ["a", "unlucky", "c"].map(|id| purses.count(id));
        assert_eq!((counts, purses.lost_states()), ([1, 0, 3], 1), "{manner:?}");
        assert_eq!((purses.failures(), purses.nodes.all_lost()), (failures, 0), "{manner:?}");
    }
}

#[test]
fn failed_import_is_a_failure_and_loses_the_state() {
    let restart = (Supervision::Restart, 4, 0);
    let resume = (Supervision::Resume, 9, 0); // continues with the partly imported state
    let stop = (Supervision::Stop, 0, 1);
    for (supervision, coins, lost) in [restart, resume, stop] {
        for manner in [Manner::TakeOverFails, Manner::TakeOverPanics] {
            let mut purses = Purses::<false>::new(&Plan { supervision, ..Plan::default() });
            purses.tell("a", Deal::Add(5));
            purses.nodes.host(0, 1);
            purses.town.is(manner);
            purses.tell("a", Deal::Add(4));
            purses.nodes.advance(Duration::from_secs(1));
            assert_eq!(purses.count("a"), coins, "{supervision:?} {manner:?}");
            assert_eq!((purses.lost_states(), purses.failures()), (1, 1));
            assert_eq!(purses.nodes.all_lost(), lost, "{supervision:?} {manner:?}");
        }
    }
}

#[test]
fn failed_import_is_not_logged_as_a_panic() {
    let lines = logged(|| {
        let mut purses = plain();
        purses.tell("a", Deal::Add(5));
        purses.nodes.host(0, 1);
        purses.town.is(Manner::TakeOverFails);
        purses.tell("a", Deal::Add(4));
    });
    let failed: Vec<&String> =
        lines.iter().filter(|line| line.contains("sharding.entity_failed")).collect();
    assert_eq!(failed.len(), 1, "{lines:?}");
    assert!(!failed[0].contains("panicked"), "{}", failed[0]);
}

/// No home writes a payload with two states of one entity, but a faulty peer may.
#[test]
fn second_state_of_an_entity_is_lost() {
    let mut purses = plain();
    let mut payload = vec![2]; // the version
    for coins in [5_u64, 9] {
        payload.push(2); // kind of the entry: a state
        payload.extend(11_u32.to_le_bytes()); // its length
        payload.extend(1_u16.to_le_bytes()); // length of the id
        payload.push(b'a');
        payload.extend(coins.to_le_bytes());
    }
    let (shard, home) = (ShardId::new(0), Some(node(1)));
    let generation = Generation::new(Term { number: 2, owner: 1.into() }, 1);
    let run = HostingPhase::Hosting(generation);
    let stands = ShardHostState { shard, max_gen: generation, home, pending: false, run };
    let hosting = &purses.nodes.nodes[1].hosting;
    hosting.perform(RegionOutput::Route(ShardRoute { shard, generation, home }));
    hosting.perform(RegionOutput::Start { shard, generation, payload: Some(payload.into()) });
    hosting.perform(RegionOutput::Standing(stands));
    assert_eq!((purses.count("a"), purses.lost_states()), (5, 1));
}

#[test]
fn a_state_waits_until_the_factory_works() {
    let mut purses = plain();
    purses.tell("a", Deal::Add(5));
    purses.nodes.host(0, 1);
    purses.town.is(Manner::FactoryPanics);
    purses.tell("a", Deal::Add(1));
    purses.nodes.host(0, 0);
    purses.town.is(Manner::Well);
    purses.nodes.advance(Duration::from_secs(1));
    assert_eq!((purses.count("a"), purses.lost_states()), (6, 0));
}

#[test]
fn entity_asked_during_a_drain_keeps_and_exports_its_state() {
    let mut purses = plain();
    purses.tell("a", Deal::WaitAndAsk("b".to_owned()));
    purses.tell("b", Deal::Add(7));
    purses.nodes.decide(ShardId::new(0), Some(1));
    purses.nodes.settle();
    assert_eq!(purses.nodes.nodes[0].region.entities(), 2, "a waits at the door");
    purses.town.door.open();
    purses.nodes.settle();
    assert_eq!((purses.count("a"), purses.count("b"), purses.lost_states()), (7, 7, 0));
    assert_eq!(purses.nodes.nodes[0].region.entities(), 0);
}

#[test]
fn entity_asked_during_its_export_starts_again_with_its_state() {
    for first in [0, 1] {
        let mut purses = plain();
        purses.tell("b", Deal::Add(7));
        purses.tell("a", Deal::WaitAndAsk("b".to_owned()));
        purses.nodes.decide(ShardId::new(0), Some(1));
        for _ in 0..4 {
            purses.nodes.step(Step::Control, 0);
        }
        purses.town.door.open();
        assert_eq!(purses.nodes.executor.ready(), 2, "b exports its state, a continues");
        purses.nodes.step(Step::Task, first);
        purses.nodes.settle();
        assert_eq!((purses.count("a"), purses.count("b"), purses.lost_states()), (7, 7, 0));
    }
}

#[test]
fn moved_state_without_messages_is_passivated() {
    let idle =
        PassivationConfig { idle_timeout: Duration::from_secs(60), ..PassivationConfig::default() };
    let limit = PassivationConfig {
        strategy: PassivationStrategy::LeastRecentlyUsed,
        active_entity_limit: 2,
        idle_timeout: Duration::ZERO,
        ..PassivationConfig::default()
    };
    for (passivation, left) in [(idle, 0), (limit, 2)] {
        let settings = ShardingConfig { passivation, ..ShardingConfig::default() };
        let mut purses = Purses::<false>::new(&Plan { settings, ..Plan::default() });
        purses.nodes.nodes[0].region.set_active_entity_limit(10);
        for to in ["a", "b", "c"] {
            purses.tell(to, Deal::Add(5));
        }
        purses.nodes.host(0, 1);
        for _ in 0..8 {
            purses.nodes.advance(Duration::from_secs(15));
            purses.nodes.settle();
        }
        assert_eq!(purses.nodes.nodes[1].region.entities(), left);
        let sum: u64 = ["a", "b", "c"].iter().map(|id| purses.count(id)).sum();
        assert!(sum <= 5 * left as u64 && purses.lost_states() == 0, "{sum}");
    }
}

#[test]
fn states_lost_with_a_node_are_counted_apart_from_messages() {
    let mut purses = plain();
    for to in ["a", "b"] {
        purses.tell(to, Deal::Add(5));
    }
    purses.nodes.host(0, 1);
    assert_eq!(purses.count("a"), 5);
    purses.nodes.crash(1);
    purses.nodes.settle();
    assert_eq!(
        (purses.lost_states(), purses.nodes.all_lost()),
        (1, 0),
        "a has imported its state before"
    );

    let mut purses = plain();
    purses.tell("a", Deal::Add(5));
    purses.nodes.decide(ShardId::new(0), Some(1));
    for _ in 0..4 {
        purses.nodes.step(Step::Control, 0); // Release, Host, and two announcements
    }
    purses.nodes.settle_without_control();
    assert_eq!(
        purses.nodes.nodes[0].region.entities(),
        0,
        "its message to the next home is under way"
    );
    purses.nodes.crash(0);
    purses.nodes.settle();
    assert_eq!(
        (purses.lost_states(), purses.nodes.all_lost()),
        (1, 0),
        "the next home never received it"
    );
}

/// An entity that exports a state but has no `import_state`.
struct Mute;

impl Entity for Mute {
    type Message = Deal;

    async fn handle(&mut self, deal: Deal, _: &mut Context<'_, Self>) {
        if let Deal::Count(reply) = deal {
            reply.send(1);
        }
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        Some(vec![1])
    }
}

#[test]
fn states_of_a_type_without_import_are_counted_as_lost() {
    let mut nodes = Nodes::new(&Plan::default(), |_, _| |_: &EntityId| Mute);
    nodes.host(0, 0);
    for node in [1, 0] {
        let mute = nodes.nodes[0].region.entity("m");
        let answer = nodes.wait_for(async move { mute.ask(Deal::Count).await });
        assert_eq!(answer.expect("it answers"), 1);
        nodes.host(0, node);
    }
    let lost: u64 = nodes.nodes.iter().map(|node| node.region.lost_states()).sum();
    assert_eq!((lost, nodes.all_lost()), (1, 0), "the second state is not imported yet");
}
