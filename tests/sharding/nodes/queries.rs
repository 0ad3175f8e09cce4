//! How many entities live where: whoever answers is in the result, and who does not is named.

use std::time::Duration;

use ostraca::sharding::ids::RegionId;
use ostraca::sharding::machines::ClusterShardingStats;
use ostraca_ddata::sim::{Faults, NodeIndex};

use super::{Cluster, SECOND, SHARDS, counter, settings};
use crate::whole::World;
use crate::whole::entities::Order;

impl Cluster {
    fn survey(&mut self, place: usize, within: Duration) -> ClusterShardingStats {
        let before = self.sim.observer().surveyed.len();
        self.order(place, Order::Survey(counter(), within));
        self.until(30, "the survey ends", |it| it.sim.observer().surveyed.len() > before);
        self.sim.observer().surveyed[before].clone()
    }

    fn region_at(&self, place: usize) -> RegionId {
        RegionId::new(self.at(place).me().incarnation)
    }
}

#[test]
fn a_survey_has_every_shard_of_every_region_once_and_empty_ones_too() {
    let mut cluster = Cluster::of_three(1, 3);
    for place in 0..3 {
        let stats = cluster.survey(place, 5 * SECOND);
        assert!(stats.unanswered.is_empty(), "{stats:?}");
        assert_eq!((stats.shards(), stats.entities()), (SHARDS as usize, 0));
        assert!(stats.regions.values().all(|shards| shards.len() == 4), "{stats:?}");
    }
    cluster.tell();
    let told = u64::from(SHARDS);
    let stats = cluster.survey(1, 5 * SECOND);
    let handled = cluster.sim.observer().handled.len() as u64;
    assert!((told - handled..=told).contains(&stats.entities()), "{stats:?}, {handled} handled");
}

#[test]
fn a_node_that_does_not_answer_is_named_and_the_others_are_there() {
    let mut cluster = Cluster::of_three(2, 3);
    let silent = cluster.region_at(2);
    cluster.sim.pause(NodeIndex::new(2), 3 * SECOND);
    let stats = cluster.survey(0, SECOND);
    assert_eq!(stats.unanswered.into_iter().collect::<Vec<_>>(), [silent]);
    assert_eq!(stats.regions.len(), 2);
    assert!(stats.regions.values().all(|shards| shards.len() == 4));
}

#[test]
fn a_survey_whose_words_are_lost_asks_again() {
    let world = World::new(3);
    let loss = world.loss.clone();
    let mut cluster = Cluster::with(3, 3, 3, Faults::none(), world);
    cluster.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
    loss.set(0.5);
    for _ in 0..5 {
        let stats = cluster.survey(0, 60 * SECOND);
        assert!(stats.unanswered.is_empty(), "{stats:?}");
    }
}

#[test]
fn a_node_that_only_routes_is_asked_by_nobody_and_may_ask() {
    use ostraca::sharding::machines::Hosts;

    let mut cluster = Cluster::of_three(4, 4);
    cluster.sim.restart(NodeIndex::new(3));
    cluster.order(3, Order::Start(counter(), settings(), Hosts::Nothing));
    cluster.until(20, "the proxy is registered", |it| it.is_registered(3));
    let stats = cluster.survey(3, SECOND);
    assert!(!stats.regions.contains_key(&cluster.region_at(3)) && stats.unanswered.is_empty());
    assert_eq!(stats.shards(), SHARDS as usize);
    let regions: Vec<RegionId> = cluster.at(0).machines.regions(&counter()).collect();
    assert_eq!(regions, (0..3).map(|place| cluster.region_at(place)).collect::<Vec<_>>());
}
