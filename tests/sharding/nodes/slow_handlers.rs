//! A handler that does not end, and the other entities of its shard: whole nodes with real entities.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use ostraca::sharding::config::ShardingConfig as Settings;
use ostraca::sharding::extractor::{ByMessage, Extractor as _, HashExtractor, ShardHash};
use ostraca::sharding::fault_injection::ShardingFaultInjection;
use ostraca::sharding::ids::{EntityId, ShardId};
use ostraca::sharding::machines::Hosts;
use ostraca::sharding::passivation::settings::{PassivationConfig, PassivationStrategy};
use ostraca_ddata::sim::{Faults, NodeIndex};

use super::watch::ShardWatch;
use super::{Cluster, SECOND, SHARDS, counter, settings};
use crate::stack::book::Book;
use crate::stack::player::Word;
use crate::stack::quarters::Plan;
use crate::whole::World;
use crate::whole::entities::Order;

const SLOW_AFTER: Duration = Duration::from_secs(2);
/// An entity that rests answers another node within this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// A mate answers within this while its shard moves: less than `handoff-timeout`, 15 s.
const MOVES_WITHIN: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(50);

/// Three nodes of four, on which every shard of the first has an entity whose handler sleeps.
struct Stuck {
    cluster: Cluster,
    book: Arc<Book>,
    shards: BTreeSet<ShardId>, // at the first node
}

impl Stuck {
    fn new(seed: u64, sleeps: Duration) -> Self {
        let passivation = PassivationConfig {
            strategy: PassivationStrategy::None,
            ..PassivationConfig::default()
        };
        let settings = Settings { passivation, slow_handler_after: SLOW_AFTER, ..*settings() };
        let book = Arc::<Book>::default();
        let plan = Plan {
            book: Arc::clone(&book),
            settings: settings.clone(),
            lane_max: usize::MAX,
            fault_injection: ShardingFaultInjection::none(),
        };
        let world = World { houses: Some(plan.houses()), ..World::new(3) };
        let start = move || Order::Start(counter(), Box::new(settings.clone()), Hosts::Shards);
        let watch = ShardWatch::reading(Arc::clone(&book));
        let mut cluster = Cluster::watched(start, seed, (4, 3), Faults::none(), world, watch);
        cluster.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
        cluster.want_all(1);
        cluster.until(20, "even", |it| it.sizes([0, 1, 2]) == [4, 4, 4]);
        let at_first = cluster.homes().into_iter().filter(|(_, place)| *place == 0);
        let shards = at_first.map(|(shard, _)| shard).collect();
        let mut stuck = Self { cluster, book, shards };
        stuck.sleep(sleeps);
        stuck
    }

    fn sleep(&mut self, sleeps: Duration) {
        let millis = u64::try_from(sleeps.as_millis()).expect("less than centuries");
        for shard in &self.shards {
            let me = self.cluster.at(0).me().incarnation;
            let told =
                self.book.region(me).entity(&id_in(*shard, "stuck")).tell(Word::Sleep(millis));
            told.expect("there is room");
        }
        let shards = self.shards.clone();
        self.cluster.until(20, "slow handlers are reported", |it| {
            let region = it.at(0).region(&counter()).expect("it is started");
            region.with_slow_handlers().eq(shards.iter().copied())
        });
        self.pass(2 * SECOND); // the coordinator hears of it
    }

    fn pass(&mut self, time: Duration) {
        self.cluster.sim.try_run_for(time).expect("nothing is wrong");
    }

    fn join_fourth(&mut self) {
        self.cluster.sim.restart(NodeIndex::new(3));
        self.cluster.host(3);
        self.cluster.until(20, "it is registered", |it| it.is_registered(3));
    }

    /// Those of the first node's shards that live there.
    fn stay(&self) -> usize {
        let homes = self.cluster.homes();
        self.shards.iter().filter(|shard| homes.get(shard) == Some(&0)).count()
    }

    /// Asks mates until all shards of the first node are hosted elsewhere: how long the slowest answer took.
    fn ask_mates_until_moved(&mut self) -> Duration {
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            slowest = slowest.max(self.ask_mates());
            let homes = self.cluster.homes();
            if self.shards.iter().all(|shard| homes.get(shard).is_some_and(|place| *place != 0)) {
                return slowest;
            }
        }
        panic!("they never move\n{}", self.cluster.story());
    }

    /// Asks a mate of each stuck entity from another node: how long the slowest answer took.
    fn ask_mates(&mut self) -> Duration {
        let asker = self.cluster.at(1).me().incarnation;
        let region = self.book.region(asker);
        let asked = self.shards.iter().map(|shard| {
            region.entity(&id_in(*shard, "mate")).ask_within(60 * SECOND, Word::Answer)
        });
        let mut open: Vec<_> = asked.map(Box::pin).collect();
        let start = self.cluster.sim.now();
        while !open.is_empty() {
            self.pass(STEP);
            open.retain_mut(|asked| match asked.now_or_never() {
                Some(answer) => {
                    answer.expect("a mate answers");
                    false
                }
                None => true,
            });
        }
        self.cluster.sim.now() - start
    }
}

/// An entity of a shard.
fn id_in(shard: ShardId, kind: &str) -> String {
    let hash = HashExtractor::new(ShardHash::Xxh3, SHARDS).expect("there can be so many");
    let by_id = ByMessage::new(hash, |_: &Word| None);
    let ids = (0..).map(|number| format!("{kind}{number}"));
    let is_there = |id: &String| by_id.shard(&EntityId::new(id).expect("a name")) == shard;
    ids.into_iter().find(is_there).expect("some hash leads there")
}

#[test]
fn rebalance_leaves_shards_with_slow_handlers_in_place() {
    let mut stuck = Stuck::new(1, 120 * SECOND);
    stuck.join_fourth();
    for _ in 0..40 {
        assert!(stuck.ask_mates() < ANSWERS_WITHIN, "mates are served throughout");
        stuck.pass(SECOND / 2);
    }
    assert_eq!(stuck.stay(), 4);
    assert_eq!(stuck.cluster.sizes([0, 1, 2, 3]), [4, 3, 3, 2], "the others move");
    // The handlers end, and then the first node gives its part.
    stuck.cluster.until(120, "even", |it| it.sizes([0, 1, 2, 3]) == [3, 3, 3, 3]);
    assert!(stuck.ask_mates() < ANSWERS_WITHIN);
}

#[test]
fn leave_moves_shards_with_slow_handlers() {
    let mut stuck = Stuck::new(2, 600 * SECOND);
    stuck.cluster.leave(0);
    assert!(stuck.ask_mates_until_moved() < MOVES_WITHIN, "they wait for no stuck handler");
    stuck.cluster.until(60, "it has left", |it| it.at(0).over.is_some());
    stuck.cluster.until(20, "even", |it| it.sizes([1, 2]) == [6, 6]);
    assert!(stuck.ask_mates() < ANSWERS_WITHIN);
}

#[test]
fn drain_moves_shards_with_slow_handlers() {
    let mut stuck = Stuck::new(3, 600 * SECOND);
    stuck.cluster.order(0, Order::Drain);
    assert!(stuck.ask_mates_until_moved() < MOVES_WITHIN, "they wait for no stuck handler");
    stuck.cluster.until(60, "it is empty", |it| it.sizes([0, 1, 2]) == [0, 6, 6]);
    assert!(stuck.ask_mates() < ANSWERS_WITHIN);
}
