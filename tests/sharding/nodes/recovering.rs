//! Forced recovery after the loss of a majority: the shards of survivors stay where they are, with
//! the messages that wait in them, the other shards get new homes, and none is started twice. That
//! each shard has one host is checked at every step
//! (docs/protocol/sharding.md#recount-after-a-forced-configuration).

use std::collections::BTreeMap;

use ostraca::cluster::membership::port::MembershipCommand;
use ostraca::sharding::ids::ShardId;
use ostraca::sharding::region::{HostingPhase, Region};
use ostraca_ddata::sim::{Faults, NodeIndex};

use super::{Cluster, CoordinatorPhase, SECOND, SHARDS, counter};
use crate::whole::{Command, WholeNode, World};

const PLACES: usize = 5;

/// Five nodes that host all shards, and a spare place. Returns the two nodes that will survive.
fn of_five(seed: u64) -> (Cluster, [usize; 2]) {
    let world = World { waits: true, ..World::new(3) };
    let mut cluster = Cluster::with(seed, PLACES + 1, PLACES, Faults::none(), world);
    cluster.until(30, "all are registered", |it| (0..PLACES).all(|at| it.is_registered(at)));
    cluster.want_all(0);
    cluster.until(30, "all are hosted", |it| it.homes().len() == SHARDS as usize);
    cluster.sim.try_run_for(10 * SECOND).expect("nothing is wrong");
    let survivors = [seed as usize % PLACES, (seed as usize + 1 + seed as usize / 5 % 4) % PLACES];
    (cluster, survivors)
}

fn force(cluster: &mut Cluster, place: usize) {
    cluster.sim.command(NodeIndex::new(place), Command::User(MembershipCommand::Recover));
}

fn lose_all_but(cluster: &mut Cluster, survivors: [usize; 2]) {
    let lost = (0..PLACES).filter(|place| !survivors.contains(place));
    lost.for_each(|place| cluster.sim.crash(NodeIndex::new(place)));
}

/// Numbers of shards that were started and drained at a place.
fn counted(cluster: &Cluster, place: usize) -> (u64, u64) {
    let region = cluster.at(place).region(&counter()).expect("the type is started");
    (region.stats().started, region.stats().drained)
}

/// The shards hosted at these places. Paused nodes, which may still believe to host some, are not
/// asked.
fn homes_at(cluster: &Cluster, places: [usize; 2]) -> BTreeMap<ShardId, usize> {
    let hosted = |place: usize| {
        let region = cluster.at(place).region(&counter()).expect("the type is started");
        let lives = region.hosted().filter(|(_, run)| matches!(run, HostingPhase::Hosting(_)));
        lives.map(move |(shard, _)| (shard, place)).collect::<Vec<_>>()
    };
    places.into_iter().flat_map(hosted).collect()
}

/// Messages that these nodes hold in mailboxes and payloads.
fn waiting(cluster: &Cluster, places: [usize; 2]) -> Vec<u64> {
    places.iter().flat_map(|place| cluster.at(*place).messages()).collect()
}

#[test]
fn survivors_keep_their_shards_and_lost_ones_start_once() {
    for seed in 0..40 {
        let (mut it, both) = of_five(seed);
        (0..20).for_each(|_| it.tell());
        it.sim.try_run_for(SECOND / 20).expect("nothing is wrong");
        let (kept, waits) = (homes_at(&it, both), waiting(&it, both));
        let before = both.map(|place| counted(&it, place));
        lose_all_but(&mut it, both);
        it.sim.try_run_for((8 + seed as u32 % 5 * 8) * SECOND).expect("nothing is wrong");
        // Forced at one survivor, or at both at the same time.
        both[..1 + seed as usize % 2].iter().for_each(|place| force(&mut it, *place));
        it.sim.try_run_for(SECOND).expect("nothing is wrong");
        both.iter().for_each(|place| it.want_all(*place));
        it.until(60, "all are hosted", |it| it.homes().len() == SHARDS as usize);
        it.until(60, "both are registered", |it| both.iter().all(|at| it.is_registered(*at)));
        // A rebalancing move also starts a shard, but drains it first.
        let lost = u64::from(SHARDS) - kept.len() as u64;
        let after = both.map(|place| counted(&it, place));
        let sum = |of: fn(&(u64, u64)) -> u64| {
            after.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>()
        };
        let (starts, drains) = (sum(|it| it.0), sum(|it| it.1));
        assert!(
            (lost..=lost + drains).contains(&starts),
            "seed {seed}: {starts}, {lost}, {drains}"
        );
        let handled = |it: &Cluster| {
            let seen = it.sim.observer();
            waits.iter().all(|id| seen.handled.contains(id))
        };
        it.until(60, "what waited at survivors is handled", handled);
        let told = it.told;
        (0..3).for_each(|_| it.tell());
        let handled =
            |it: &Cluster| (told + 1..=it.told).all(|id| it.sim.observer().handled.contains(&id));
        it.until(60, "what is told now is handled", handled);
        if both.iter().any(|place| *place < 3) {
            it.sim.restart(NodeIndex::new(PLACES));
            it.host(PLACES);
            let sizes = [both[0], both[1], PLACES];
            it.until(90, "the new node has its share", |it| it.sizes(sizes) == [4, 4, 4]);
        }
        for place in both {
            let of = |node: &WholeNode| node.region(&counter()).map(Region::is_registered);
            assert_eq!(of(it.at(place)), Some(true), "seed {seed}");
        }
    }
}

/// Three of five nodes hang with all their connections, and wake up after the others have forced a
/// configuration. They are a quorum of the configuration that they know, and have unread messages.
/// They must host no shard that another node hosts, and stop.
#[test]
fn abandoned_nodes_stop_when_they_wake_and_host_nothing() {
    for seed in 0..20 {
        let (mut it, both) = of_five(seed);
        (0..5).for_each(|_| it.tell());
        let lost: Vec<usize> = (0..PLACES).filter(|place| !both.contains(place)).collect();
        let kept = homes_at(&it, both);
        // They wake up at once, or one after the other.
        for (nth, place) in (0..).zip(&lost) {
            let span = 40 * SECOND + nth * (seed as u32 % 3) * SECOND;
            it.sim.pause(NodeIndex::new(*place), span);
        }
        it.sim.try_run_for((12 + seed as u32 % 10) * SECOND).expect("nothing is wrong");
        force(&mut it, both[0]);
        it.sim.try_run_for(SECOND).expect("nothing is wrong");
        both.iter().for_each(|place| it.want_all(*place));
        let is_there = |it: &Cluster| homes_at(it, both).len() == SHARDS as usize;
        it.until(20, "the survivors host all", is_there);
        let is_over = |it: &Cluster, place: usize| {
            let node = it.sim.process(NodeIndex::new(place));
            node.is_none_or(|node| node.over.is_some())
        };
        it.until(60, "the others stop", |it| lost.iter().all(|place| is_over(it, *place)));
        it.sim.try_run_for(20 * SECOND).expect("nothing is wrong");
        assert_eq!(homes_at(&it, both).len(), SHARDS as usize, "seed {seed}");
        let survivors = homes_at(&it, both);
        assert!(kept.keys().all(|shard| survivors.contains_key(shard)), "seed {seed}");
        let told = it.told;
        (0..3).for_each(|_| it.tell());
        let handled =
            |it: &Cluster| (told + 1..=it.told).all(|id| it.sim.observer().handled.contains(&id));
        it.until(60, "what is told now is handled", handled);
    }
}

/// The coordinator crashes during the recount.
#[test]
fn coordinator_crash_during_recount_starts_it_again() {
    let mut counting = 0;
    for seed in 0..20 {
        let world = World { waits: true, ..World::new(3) };
        let mut it = Cluster::with(seed, 7, 7, Faults::none(), world);
        it.until(30, "all are registered", |it| (0..7).all(|at| it.is_registered(at)));
        it.want_all(0);
        it.until(30, "all are hosted", |it| it.homes().len() == SHARDS as usize);
        (3..7).for_each(|place| it.sim.crash(NodeIndex::new(place)));
        it.sim.try_run_for(10 * SECOND).expect("nothing is wrong");
        force(&mut it, 1);
        it.sim.try_run_for(5 * SECOND).expect("nothing is wrong");
        let counts = |it: &Cluster| (0..3).find(|place| it.phase(*place).is_some());
        // It crashes as soon as it counts in every other run, and a moment later in the others.
        let is_counting = |it: &Cluster| {
            let coordinator = counts(it).and_then(|place| it.phase(place));
            coordinator.is_some_and(|phase| phase >= CoordinatorPhase::Recounting)
        };
        let end = it.sim.now() + 30 * SECOND;
        while !is_counting(&it) {
            assert!(it.sim.now() < end, "no coordinator counts");
            it.sim.try_run_for(SECOND / 5_000).expect("nothing is wrong");
        }
        it.sim.try_run_for(SECOND * (seed as u32 % 2) / 500).expect("nothing is wrong");
        let Some(coordinates) = counts(&it) else { continue };
        counting += usize::from(it.phase(coordinates) == Some(CoordinatorPhase::Recounting));
        it.sim.crash(NodeIndex::new(coordinates));
        let left: Vec<usize> = (0..3).filter(|place| *place != coordinates).collect();
        it.sim.try_run_for(20 * SECOND).expect("nothing is wrong");
        left.iter().for_each(|place| it.want_all(*place));
        it.until(60, "all are hosted", |it| {
            let homes = it.homes();
            homes.len() == SHARDS as usize && homes.values().all(|at| left.contains(at))
        });
    }
    assert!(counting >= 10, "of 20 coordinators only {counting} died while they counted");
}
