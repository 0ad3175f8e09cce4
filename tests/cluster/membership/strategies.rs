//! Each strategy in a cluster of whole nodes: a crash, and a split of three against two. The
//! decisions in all other situations are tested in src/cluster/downing/tests.

use std::time::Duration;

use ostraca::cluster::config::{Downing, DowningStrategyName};
use ostraca::cluster::downing::AutoDown;
use ostraca_ddata::sim::{Fault, LinkSet, NodeIndex};

use super::super::whole::strategies::{STRATEGIES, downing};
use super::super::whole::{World, node_at, place_of};
use super::going::cluster_of;
use super::{Sim, agree, at, until};

/// Five members with this strategy and one role; the oldest is one of the first three.
fn five(seed: u64, strategy: DowningStrategyName) -> Sim {
    some(seed, 5, strategy)
}

fn some(seed: u64, size: usize, strategy: DowningStrategyName) -> Sim {
    cluster_of(seed, size, world(strategy))
}

pub(super) fn world(strategy: DowningStrategyName) -> World {
    let auto_down = AutoDown { after: Duration::from_secs(4) };
    World::with_downing(Downing { auto_down, ..downing(strategy) })
}

fn is_over(sim: &Sim, place: usize) -> bool {
    at(sim, place).over.is_some()
}

#[test]
fn crashed_member_is_removed_under_every_strategy() {
    for (seed, strategy) in (0..).zip(STRATEGIES) {
        for who in [0, 4] {
            let mut sim = five(seed, strategy);
            sim.crash(NodeIndex::new(who));
            let rest: Vec<usize> = (0..5).filter(|place| *place != who).collect();
            until(&mut sim, 30, |sim| agree(sim, &rest));
        }
    }
}

#[test]
fn three_of_five_continue_under_every_strategy() {
    for (seed, strategy) in (0..).zip(STRATEGIES) {
        let mut sim = five(seed, strategy);
        sim.partition([&[0, 1, 2], &[3, 4]]);
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        sim.heal();
        until(&mut sim, 20, |sim| is_over(sim, 3) && is_over(sim, 4));
        assert!(agree(&sim, &[0, 1, 2]), "{strategy:?}");
    }
}

/// Pekko would keep one of the two nodes. Here all members of the side stay. If the side is only as
/// large as a quorum, however, these two cannot probe each other in the old configuration, so the
/// next configuration waits for their link.
#[test]
fn bad_link_on_the_larger_side_removes_none_of_it() {
    for (seed, size, waits) in [(0, 5, true), (1, 5, true), (2, 7, false), (3, 7, false)] {
        let mut sim = some(seed, size, DowningStrategyName::KeepMajority);
        let (two, three) = (vec![NodeIndex::new(1)], vec![NodeIndex::new(2)]);
        let links = vec![
            LinkSet { from: two.clone(), to: three.clone() },
            LinkSet { from: three, to: two },
        ];
        sim.fault(&Fault::Cut { links, span: None });
        let larger: Vec<usize> = (0..size - 2).collect();
        let smaller = [size - 2, size - 1];
        sim.partition([larger.as_slice(), &smaller]);
        until(&mut sim, 40, |sim| smaller.iter().all(|place| is_over(sim, *place)));
        sim.run_for(Duration::from_secs(30));
        for place in &larger {
            let node = at(&sim, *place);
            let members = node.epoch().map(|epoch| epoch.members().len());
            let expected = if waits { size } else { larger.len() };
            assert_eq!((node.over, members), (None, Some(expected)), "seed {seed}");
        }
        sim.heal();
        until(&mut sim, 30, |sim| agree(sim, &larger));
    }
}

#[test]
fn down_all_stops_all_nodes_and_manual_stops_none() {
    let mut sim = five(1, DowningStrategyName::DownAll);
    sim.partition([&[0, 1, 2], &[3, 4]]);
    until(&mut sim, 30, |sim| (0..5).all(|place| is_over(sim, place)));

    let mut sim = five(1, DowningStrategyName::Manual);
    sim.partition([&[0, 1, 2], &[3, 4]]);
    sim.run_for(Duration::from_secs(60));
    assert!(!(0..5).any(|place| is_over(&sim, place)));
    sim.heal();
    until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3, 4]));
}

#[test]
fn lease_majority_continues_and_releases_the_lease() {
    for seed in 0..3 {
        let world = world(DowningStrategyName::LeaseMajority);
        let lease = world.downing_lease.clone();
        let mut sim = cluster_of(seed, 5, world);
        sim.partition([&[0, 1, 2], &[3, 4]]);
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]) && is_over(sim, 3) && is_over(sim, 4));
        let holder = lease.get().map(place_of);
        assert!(holder.is_some_and(|place| place < 3), "{holder:?}: the lease must still be held");
        until(&mut sim, 60, |_| lease.get().is_none());
        assert!(agree(&sim, &[0, 1, 2]));
    }
}

/// A side that holds a quorum never stops itself, because no other side could continue.
#[test]
fn lease_majority_quorum_waits_for_a_lease_held_elsewhere() {
    for seed in 0..3 {
        let world = world(DowningStrategyName::LeaseMajority);
        let lease = world.downing_lease.clone();
        lease.set(Some(node_at(9, 1, true)));
        let mut sim = cluster_of(seed, 5, world);
        sim.partition([&[0, 1, 2], &[3, 4]]);
        until(&mut sim, 30, |sim| is_over(sim, 3) && is_over(sim, 4));
        sim.run_for(Duration::from_secs(30));
        for place in 0..3 {
            let node = at(&sim, place);
            let members = node.epoch().map(|epoch| epoch.members().len());
            assert_eq!((node.over, members), (None, Some(5)), "seed {seed}");
        }
        lease.set(None);
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
    }
}
