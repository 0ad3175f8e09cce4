//! Cluster queries: the number of entities of each shard, and the decisions behind the place of a
//! shard. A result contains the answers of all regions, and names those that did not answer.

use std::time::Duration;

use ostraca::sharding::explanation::{DecisionReports, DecisionSource, Topic};
use ostraca::sharding::ids::{RegionId, ShardId};
use ostraca::sharding::machines::{ClusterQuery, ClusterQueryResult, ClusterShardingStats};
use ostraca::sharding::region::PayloadPartSizes;
use ostraca_ddata::sim::NodeIndex;

use super::{Cluster, SECOND, SHARDS, counter, settings};
use crate::whole::World;
use crate::whole::entities::Order;

impl Cluster {
    fn survey(&mut self, place: usize, within: Duration) -> ClusterShardingStats {
        match self.find(place, ClusterQuery::Count, within) {
            ClusterQueryResult::Counted(stats) => stats,
            other => panic!("{other:?}"),
        }
    }

    fn recall(&mut self, place: usize, topic: Topic) -> DecisionReports {
        match self.find(place, ClusterQuery::Why(topic), SECOND) {
            ClusterQueryResult::Recalled(recalled) => recalled,
            other => panic!("{other:?}"),
        }
    }

    fn find(
        &mut self,
        place: usize,
        question: ClusterQuery,
        within: Duration,
    ) -> ClusterQueryResult {
        let before = self.sim.observer().found.len();
        self.order(place, Order::Survey(counter(), question, within));
        self.until(30, "the survey ends", |it| it.sim.observer().found.len() > before);
        self.sim.observer().found[before].clone()
    }

    fn region_at(&self, place: usize) -> RegionId {
        RegionId::new(self.at(place).me().incarnation)
    }
}

#[test]
fn query_counts_every_shard_once_including_empty_ones() {
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
fn known_failure_37_silent_node_is_named_beside_other_answers() {
    let mut cluster = Cluster::of_three(2, 3);
    let silent = cluster.region_at(2);
    cluster.sim.pause(NodeIndex::new(2), 3 * SECOND);
    let stats = cluster.survey(0, SECOND);
    assert_eq!(stats.unanswered.into_iter().collect::<Vec<_>>(), [silent]);
    assert_eq!(stats.regions.len(), 2);
    assert!(stats.regions.values().all(|shards| shards.len() == 4));
}

#[test]
fn query_repeats_lost_messages() {
    let by_default = World::new(3).cut;
    for (seed, words) in [(3_u64, by_default.words), (4, 40)] {
        let world = World { cut: PayloadPartSizes { words, ..by_default }, ..World::new(3) };
        let loss = world.loss.clone();
        let mut cluster = Cluster::of_three_in(seed, 3, world);
        loss.set(0.5);
        for _ in 0..5 {
            let stats = cluster.survey(0, 60 * SECOND);
            assert!(stats.unanswered.is_empty(), "{stats:?}");
            assert_eq!(stats.shards(), SHARDS as usize, "none is missing: {stats:?}");
        }
    }
}

#[test]
fn region_with_a_missing_message_counts_as_unanswered() {
    let world = World::new(3);
    let world = World { cut: PayloadPartSizes { words: 40, ..world.cut }, ..world };
    let loss = world.loss.clone();
    let mut cluster = Cluster::of_three_in(9, 3, world);
    loss.set(0.5);
    for _ in 0..20 {
        let stats = cluster.survey(0, SECOND / 2); // too short to ask again
        assert_eq!(stats.regions.len() + stats.unanswered.len(), 3, "{stats:?}");
        assert!(stats.regions.values().all(|shards| shards.len() == 4), "{stats:?}");
    }
}

#[test]
fn proxy_may_query_and_is_not_queried() {
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

/// Remembered decisions on a shard: the source (coordinator or region) and its place, and the old
/// and the new home.
type Story = Vec<(DecisionSource, usize, Option<usize>, Option<usize>)>;

impl Cluster {
    /// Whether every decision is carried out.
    fn is_settled(&self) -> bool {
        let mut coordinators = self
            .sim
            .processes()
            .filter_map(|(_, node)| node.machines.of(&counter())?.coordinator());
        coordinators.all(|it| it.records().all(|(_, record)| record.is_settled()))
    }

    fn story_of(&mut self, asker: usize, shard: ShardId, places: usize) -> Story {
        let regions: Vec<RegionId> = (0..places).map(|place| self.region_at(place)).collect();
        let place = |region: RegionId| regions.iter().position(|known| *known == region);
        let recalled = self.recall(asker, Topic::Shard(shard));
        assert!(recalled.unanswered.is_empty(), "{recalled:?}");
        let story = recalled.accounts.into_iter().map(|account| {
            let entry = account.remembered;
            assert!(entry.is_over(), "{entry:?}");
            let by = place(account.by.into()).expect("a node of the cluster");
            (
                entry.generation,
                account.witness,
                by,
                entry.from.and_then(place),
                entry.to.and_then(place),
            )
        });
        let mut story: Vec<_> = story.collect();
        story.sort_unstable();
        story.into_iter().map(|(_, witness, by, from, to)| (witness, by, from, to)).collect()
    }
}

#[test]
fn every_node_recalls_decisions_of_coordinator_and_regions() {
    use DecisionSource::{Coordinator, Region};

    let mut cluster = Cluster::of_three(5, 4);
    let coordinator = (0..3).find(|place| cluster.acts(*place)).expect("one acts");
    let first = cluster.homes();
    cluster.sim.restart(NodeIndex::new(3));
    cluster.host(3);
    cluster.until(20, "even", |it| it.sizes([0, 1, 2, 3]) == [3, 3, 3, 3] && it.is_settled());
    let (shard, _) =
        cluster.homes().into_iter().find(|(_, at)| *at == 3).expect("node 3 has three shards");
    let from = first[&shard];
    for asker in 0..4 {
        let begin =
            [(Coordinator, coordinator, None, Some(from)), (Region, from, None, Some(from))];
        let moved = |witness, by| (witness, by, Some(from), Some(3));
        let then = [moved(Coordinator, coordinator), moved(Region, from), moved(Region, 3)];
        assert_eq!(cluster.story_of(asker, shard, 4), [&begin[..], &then[..]].concat());
    }
    let of_new = cluster.recall(1, Topic::Region(cluster.region_at(3)));
    let shards = of_new.accounts.iter().map(|account| account.remembered.shard);
    assert_eq!(shards.collect::<std::collections::BTreeSet<_>>().len(), 3);
}

#[test]
fn lost_home_is_recalled_as_the_reason() {
    let mut cluster = Cluster::of_three(6, 3);
    let [lost, asker] = {
        let others: Vec<usize> = (0..3).filter(|place| !cluster.acts(*place)).collect();
        [others[0], others[1]]
    };
    let (shard, _) =
        cluster.homes().into_iter().find(|(_, at)| *at == lost).expect("the node has four shards");
    cluster.sim.crash(NodeIndex::new(lost));
    cluster.until(60, "all shards are hosted", |it| it.homes().len() == SHARDS as usize);
    let recalled = cluster.recall(asker, Topic::Shard(shard));
    let by_coordinator =
        recalled.accounts.iter().filter(|it| it.witness == DecisionSource::Coordinator);
    let newest = by_coordinator.map(|account| &account.remembered).max_by_key(|it| it.generation);
    let why = newest.map(|entry| entry.why.to_string()).expect("the coordinator remembers");
    assert!(why.starts_with("its region is out of the cluster: "), "{why}");
}
