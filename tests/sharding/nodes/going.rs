//! Whole nodes in clusters of three and five that leave or crash while other nodes leave, and
//! splits of the network under each downing strategy.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca::sharding::ids::ShardId;
use ostraca::sharding::region::{HostingPhase, Region};
use ostraca_ddata::sim::{Faults, NodeIndex};

use super::{Cluster, SECOND, SHARDS, counter, shards};
use crate::whole::entities::Order;
use crate::whole::strategies::{STRATEGIES, downing};
use crate::whole::{WholeNode, World};

const PLACES: usize = 5;

impl Cluster {
    /// Five nodes that host all shards evenly.
    fn of_five(seed: u64, world: World) -> Self {
        let mut cluster = Self::with(seed, PLACES, PLACES, Faults::none(), world);
        cluster.until(20, "all register", |it| (0..PLACES).all(|place| it.is_registered(place)));
        cluster.want_all(0);
        cluster.until(20, "even", |it| {
            let sizes = it.sizes([0, 1, 2, 3, 4]);
            sizes.iter().sum::<usize>() == SHARDS as usize
                && sizes.iter().all(|size| (2..=3).contains(size))
        });
        cluster
    }

    fn runs(&self, place: usize) -> Vec<HostingPhase> {
        let hosted = self.at(place).region(&counter()).into_iter().flat_map(Region::hosted);
        hosted.map(|(_, run)| run).collect()
    }

    /// Five nodes, one of which leaves and has a drain under way, and that node. `None` if its
    /// drains all ended at once.
    fn of_five_in_mid_drain(seed: u64) -> Option<(Self, usize)> {
        let mut cluster = Self::of_five(seed, World::new(3));
        let leaver = (cluster.coordinates() + 1) % PLACES;
        (0..5).for_each(|_| cluster.tell());
        cluster.leave(leaver);
        while cluster.at(leaver).over.is_none() {
            cluster.sim.try_run_for(Duration::from_millis(1)).expect("nothing is wrong");
            if cluster.runs(leaver).iter().any(|run| matches!(run, HostingPhase::Draining(_))) {
                return Some((cluster, leaver));
            }
        }
        None
    }

    /// Waits until every shard is hosted outside of `gone`, and all messages except `died` are
    /// handled.
    fn lives_without(&mut self, gone: &[usize], died: &[u64]) {
        self.until(60, "all shards are hosted elsewhere", |it| {
            let homes = it.homes();
            homes.len() == SHARDS as usize && homes.values().all(|home| !gone.contains(home))
        });
        self.until(60, "what was told is handled", |it| {
            it.sim.observer().open.iter().all(|id| died.contains(id))
        });
    }
}

#[test]
fn known_failure_02_drain_ends_without_its_coordinator() {
    let mut met = 0;
    for (mut cluster, leaver) in (0..6).filter_map(Cluster::of_five_in_mid_drain) {
        met += 1;
        let coordinates = cluster.coordinates();
        let died = cluster.at(coordinates).messages();
        cluster.sim.crash(NodeIndex::new(coordinates));
        cluster.lives_without(&[leaver, coordinates], &died);
        cluster.until(30, "it has left", |it| it.at(leaver).over.is_some());
    }
    assert!(met > 2, "{met} of 6 were still draining");
}

#[test]
fn known_failure_03_home_that_dies_during_a_drain_is_replaced() {
    let mut met = 0;
    for (mut cluster, leaver) in (0..6).filter_map(Cluster::of_five_in_mid_drain) {
        met += 1;
        let died = cluster.at(leaver).messages();
        cluster.sim.crash(NodeIndex::new(leaver));
        cluster.lives_without(&[leaver], &died);
    }
    assert!(met > 2, "{met} of 6 were still draining");
}

#[test]
fn two_nodes_leaving_at_once_move_only_their_own_shards() {
    for seed in 0..5 {
        let mut cluster = Cluster::of_five(seed, World::new(3));
        (0..5).for_each(|_| cluster.tell());
        let coordinates = cluster.coordinates();
        let leavers = [coordinates, (coordinates + 2) % PLACES];
        let stays = |homes: BTreeMap<ShardId, usize>| -> BTreeMap<ShardId, usize> {
            homes.into_iter().filter(|(_, home)| !leavers.contains(home)).collect()
        };
        let before = stays(cluster.homes());
        leavers.into_iter().for_each(|place| cluster.leave(place));
        for place in leavers {
            cluster.until(60, "it has left", |it| it.at(place).over.is_some());
        }
        cluster.lives_without(&leavers, &[]);
        let after = cluster.homes();
        assert!(before.iter().all(|(shard, home)| after.get(shard) == Some(home)), "seed {seed}");
        assert_eq!(cluster.sim.observer().discarded, 0, "seed {seed}");
    }
}

/// The messages of a stopped shard wait at its former home, and that node leaves.
#[test]
fn kept_payloads_survive_a_graceful_leave() {
    let mut kept = 0;
    for seed in 0..6 {
        let mut cluster = Cluster::of_three(seed, 3);
        (0..8).for_each(|_| cluster.tell());
        let leaver = seed as usize % 3;
        cluster.order(leaver, Order::Stop(counter(), shards().collect()));
        if seed < 3 {
            cluster.until(30, "all shards stopped", |it| (0..3).all(|at| it.runs(at).is_empty()));
            let region = cluster.at(leaver).region(&counter()).expect("the type is started");
            kept += region.payloads().count();
        }
        cluster.leave(leaver);
        cluster.until(60, "it has left", |it| it.at(leaver).over.is_some());
        let stays = (leaver + 1) % 3;
        shards().for_each(|shard| cluster.order(stays, Order::Want(counter(), shard)));
        let is_handled = |it: &Cluster| it.sim.observer().open.is_empty();
        cluster.until(60, "what was told is handled", is_handled);
        assert_eq!(cluster.sim.observer().discarded, 0, "seed {seed}");
    }
    assert!(kept > 2, "too few payloads were kept: {kept}");
}

/// That no shard is hosted twice is checked after every step (`watch.rs`).
#[test]
fn every_strategy_hosts_shards_on_one_side_of_a_split() {
    for (seed, strategy) in (0..).zip(STRATEGIES) {
        let mut cluster = Cluster::of_five(seed, World::with_downing(downing(strategy)));
        cluster.sim.partition([&[0, 1, 2], &[3, 4]]);
        cluster.until(60, "the larger side hosts all shards", |it| {
            let live = |place| it.runs(place).len();
            (0..3).map(live).sum::<usize>() == SHARDS as usize
        });
        cluster.sim.heal();
        let is_over = |it: &Cluster, place| {
            it.sim.process(NodeIndex::new(place)).is_none_or(|node: &WholeNode| node.over.is_some())
        };
        cluster.until(60, "the smaller side stopped", |it| is_over(it, 3) && is_over(it, 4));
        cluster.sim.try_run_for(5 * SECOND).expect("nothing is wrong");
        assert_eq!(cluster.homes().len(), SHARDS as usize, "{strategy:?}");
    }
}
