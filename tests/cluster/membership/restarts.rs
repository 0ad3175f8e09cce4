//! Clusters without a running process: restart of the only member, nodes without data directories
//! whose gossip is outdated, and nodes that return one after the other.

use std::rc::Rc;

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::membership::port::{
    MembershipCommand, OperatorNotice, ResumeRefusal, StopReason,
};
use ostraca::cluster::membership::recovery::NotRecovered;
use ostraca_ddata::replicator::epoch::EpochId;
use ostraca_ddata::sim::{Fault, NodeIndex, RandomStream};

use super::super::whole::{Command, World, addresses};
use super::going::leave;
use super::joining::clusters;
use super::{SECOND, Sim, agree, at, calm, until};

/// How the process of the only member ended.
#[derive(Clone, Copy, Debug)]
enum End {
    InOrder,
    Killed,
}

fn end(sim: &mut Sim, place: usize, how: End) {
    if matches!(how, End::InOrder) {
        leave(sim, place, place);
        until(sim, 10, |sim| at(sim, place).over == Some(StopReason::Left));
    }
    sim.crash(NodeIndex::new(place));
}

fn epoch(sim: &Sim, place: usize) -> EpochId {
    at(sim, place).epoch().expect("installed").id()
}

fn start(sim: &mut Sim, places: &[usize]) {
    places.iter().for_each(|place| sim.restart(NodeIndex::new(*place)));
}

fn resumed(sim: &Sim, place: usize) -> bool {
    at(sim, place).notices.iter().any(|notice| matches!(notice, OperatorNotice::Resumed { .. }))
}

#[test]
fn sole_member_resumes_after_each_restart() {
    for (seed, seeds) in [(0, 0), (1, 1), (2, 3), (3, 0)] {
        let how = if seed % 2 == 0 { End::InOrder } else { End::Killed };
        let world = World::with(move |place| ClusterConfig {
            seeds: if place == 0 { addresses(0..seeds.min(1)) } else { Vec::new() },
            ..ClusterConfig::default()
        });
        let mut sim = calm(seed, 1, 1, world);
        until(&mut sim, 5, |sim| agree(sim, &[0]));
        let first = clusters(&sim);
        for life in 0..4 {
            let before = epoch(&sim, 0);
            sim.run_for(SECOND);
            end(&mut sim, 0, how);
            start(&mut sim, &[0]);
            until(&mut sim, 5, |sim| agree(sim, &[0]));
            assert!(resumed(&sim, 0), "seed {seed}, life {life}");
            assert!(epoch(&sim, 0).generation > before.generation, "tokens never go back");
            assert_eq!(clusters(&sim), first, "seed {seed}, life {life}: the same cluster");
        }
    }
}

/// Killed at any moment from before its vote is written until it is Up.
#[test]
fn lone_founder_killed_at_any_moment_resumes() {
    let mut resumes = 0;
    for micros in (0..20_000).step_by(250) {
        let seeds = micros % 500 / 250;
        let mut sim = calm(7, 1, 1, World::new(seeds as usize));
        sim.run_for(SECOND / 1_000_000 * micros);
        sim.crash(NodeIndex::new(0));
        start(&mut sim, &[0]);
        until(&mut sim, 10, |sim| agree(sim, &[0]));
        resumes += usize::from(resumed(&sim, 0));
    }
    assert!(resumes > 10, "{resumes}");
}

#[test]
fn last_member_to_leave_resumes_and_others_join_it() {
    for seed in 0..12 {
        let mut sim = calm(seed, 3, 3, World::new(3));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
        let last = seed as usize % 3;
        for place in [(last + 1) % 3, (last + 2) % 3, last] {
            end(&mut sim, place, End::InOrder);
            sim.run_for(SECOND);
        }
        let first = sim.observer().clusters.clone();
        // At once, or the last one later than the others.
        start(&mut sim, &[(last + 1) % 3, (last + 2) % 3]);
        if seed % 2 == 1 {
            sim.run_for(8 * SECOND);
            let waits = |notice: &OperatorNotice| matches!(notice, OperatorNotice::Remembers { silent, .. } if silent.len() == 1);
            assert!(at(&sim, (last + 1) % 3).notices.iter().any(waits), "seed {seed}");
        }
        start(&mut sim, &[last]);
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        assert!(resumed(&sim, last) && sim.observer().clusters == first, "seed {seed}");
    }
}

#[test]
fn all_leave_at_once_and_resume_by_the_last_one() {
    for seed in 0..10 {
        let mut sim = calm(seed, 3, 3, World::new(3));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
        (0..3).for_each(|place| leave(&mut sim, place, place));
        until(&mut sim, 20, |sim| (0..3).all(|place| at(sim, place).over.is_some()));
        (0..3).for_each(|place| sim.crash(NodeIndex::new(place)));
        start(&mut sim, &[0, 1, 2]);
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        assert_eq!(sim.observer().clusters.len(), 1, "seed {seed}");
    }
}

/// The run is interrupted at every other millisecond from before the newcomer starts until it is
/// Up. The watch checks that no node resumes beside a member.
#[test]
fn sole_member_may_crash_while_it_admits_another() {
    let (mut runs, mut waiting) = (0, 0);
    for millis in (0..60).step_by(2) {
        for seed in 0..4 {
            let mut sim = calm(seed, 2, 1, World::new(1));
            until(&mut sim, 5, |sim| agree(sim, &[0]));
            start(&mut sim, &[1]);
            sim.run_for(SECOND / 1_000 * millis);
            sim.crash(NodeIndex::new(0));
            let was_two = sim.observer().installed.values().any(|it| it.members().len() == 2);
            sim.run_for(if seed % 2 == 0 { SECOND / 50 } else { 2 * SECOND });
            start(&mut sim, &[0]);
            sim.run_for(20 * SECOND);
            runs += 1;
            if resumed(&sim, 0) {
                assert!(!was_two, "{millis} ms, seed {seed}: half a pair resumed alone");
                until(&mut sim, 60, |sim| agree(sim, &[0, 1]));
            } else {
                waiting += 1;
                // The other node may have admitted it, but cannot add it to a configuration.
                let told = recovery(&sim, 0).expect_err("not a member");
                let is_told = matches!(told, NotRecovered::Stopped { .. } | NotRecovered::NoMember);
                assert!(is_told, "{told}");
            }
        }
    }
    assert!(waiting > 0 && waiting < runs, "{waiting} of {runs}: both results must occur");
}

fn recovery(
    sim: &Sim,
    place: usize,
) -> Result<ostraca::cluster::membership::recovery::RecoveryPlan, NotRecovered> {
    at(sim, place).membership.recovery(sim.view().clock(NodeIndex::new(place)).mono)
}

#[test]
fn copied_directory_resumes_by_operator_only() {
    let mut world = World::new(1);
    world.directory = Rc::new(|_, life| u64::from(life > 1));
    let mut sim = calm(1, 1, 1, world);
    until(&mut sim, 5, |sim| agree(sim, &[0]));
    sim.run_for(SECOND);
    end(&mut sim, 0, End::Killed);
    start(&mut sim, &[0]);
    sim.run_for(60 * SECOND);
    let copied = |notice: &OperatorNotice| {
        matches!(notice, OperatorNotice::NotResumed { because: ResumeRefusal::Copied, .. })
    };
    assert!(at(&sim, 0).notices.iter().any(copied) && at(&sim, 0).membership.gossip().is_none());
    let planned = recovery(&sim, 0).expect("an operator may resume");
    assert_eq!((planned.kept.len(), planned.given_up.len()), (1, 1));
    sim.command(NodeIndex::new(0), Command::User(MembershipCommand::Recover));
    until(&mut sim, 5, |sim| agree(sim, &[0]));
    sim.run_for(SECOND);
    end(&mut sim, 0, End::Killed);
    start(&mut sim, &[0]);
    until(&mut sim, 5, |sim| agree(sim, &[0]));
}

/// Two seeds lost their directories and founded a new cluster; the third was the only member of the
/// old one.
#[test]
fn sole_member_does_not_resume_beside_another_cluster() {
    let mut world = World::new(3);
    world.keeps = Rc::new(|place| place == 0);
    let mut sim = calm(3, 3, 3, world);
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    end(&mut sim, 1, End::InOrder);
    end(&mut sim, 2, End::InOrder);
    until(&mut sim, 10, |sim| agree(sim, &[0]));
    sim.run_for(SECOND);
    end(&mut sim, 0, End::Killed);
    start(&mut sim, &[1, 2]);
    until(&mut sim, 10, |sim| agree(sim, &[1, 2]));
    start(&mut sim, &[0]);
    sim.run_for(30 * SECOND);
    let doubts = |notice: &OperatorNotice| {
        matches!(notice, OperatorNotice::NotResumed { because: ResumeRefusal::OtherCluster(_), .. })
    };
    assert!(at(&sim, 0).notices.iter().any(doubts) && at(&sim, 0).membership.gossip().is_none());
}

#[test]
fn stopped_nodes_report_that_all_are_stopped() {
    let mut sim = calm(5, 3, 3, World::new(3));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    (0..3).for_each(|place| end(&mut sim, place, End::Killed));
    start(&mut sim, &[0, 1]);
    sim.run_for(8 * SECOND);
    let said = |sim: &Sim, is_it: fn(&OperatorNotice) -> bool| {
        (0..2).all(|place| at(sim, place).notices.iter().any(is_it))
    };
    let missing = |notice: &OperatorNotice| matches!(notice, OperatorNotice::Remembers { silent, stopped, .. } if silent.len() == 1 && stopped.len() == 1);
    let all = |notice: &OperatorNotice| matches!(notice, OperatorNotice::AllStopped { stopped, .. } if stopped.len() == 2);
    assert!(said(&sim, missing));
    start(&mut sim, &[2]);
    until(&mut sim, 30, |sim| said(sim, all));
    assert!(matches!(recovery(&sim, 2), Err(NotRecovered::Stopped { .. })));
}

// ── nodes without data directories ──

fn ephemeral(seeds: usize) -> World {
    let mut world = World::new(seeds);
    world.keeps = Rc::new(|_| false);
    world
}

/// As a supervisor: restarts stopped nodes. Returns the numbers of orphaned and stranded nodes.
fn supervise(sim: &mut Sim) -> [usize; 2] {
    let mut counts = [0; 2];
    for place in (0..sim.view().nodes()).map(NodeIndex::new) {
        let Some(why) = sim.process(place).and_then(|node| node.over) else { continue };
        counts[0] += usize::from(why == StopReason::Orphaned);
        counts[1] += usize::from(why == StopReason::Stranded);
        sim.crash(place);
        sim.restart(place);
    }
    counts
}

#[test]
fn ephemeral_nodes_redeployed_in_turn_form_a_cluster() {
    let mut orphans = 0;
    for nodes in [2, 3, 5] {
        for millis in [500, 1_000, 1_500] {
            for seed in 0..6 {
                let all: Vec<usize> = (0..nodes).collect();
                let mut sim = calm(seed, nodes, nodes, ephemeral(nodes));
                until(&mut sim, 10, |sim| agree(sim, &all));
                for place in &all {
                    sim.crash(NodeIndex::new(*place));
                    sim.restart(NodeIndex::new(*place));
                    sim.run_for(SECOND / 1_000 * millis);
                    orphans += supervise(&mut sim)[0];
                }
                for _ in 0..40 {
                    sim.run_for(SECOND / 2);
                    orphans += supervise(&mut sim)[0];
                }
                until(&mut sim, 10, |sim| agree(sim, &all));
            }
        }
    }
    assert!(orphans > 20, "{orphans} orphans");
}

/// Random restarts, pauses and cuts. The watch checks at each orphan that no member of its cluster
/// is alive, reachable or not.
#[test]
fn orphans_end_only_where_no_member_lives() {
    let (mut orphans, mut stranded) = (0, 0);
    for seed in 0..150 {
        let mut draw = RandomStream::split(seed, "orphans", 0);
        let nodes = *draw.pick(&[2, 3, 3, 4, 5]);
        let seeds = *draw.pick(&[1, 2, 3, 5]).min(&nodes);
        let mut sim = calm(seed, nodes, nodes, ephemeral(seeds));
        sim.run_for(3 * SECOND);
        for _ in 0..30 {
            let place = NodeIndex::new(draw.index(nodes));
            match draw.below(10) {
                0..=5 => {
                    sim.crash(place);
                    sim.run_for(draw.span(SECOND / 1_000, SECOND));
                    sim.restart(place);
                }
                6 => sim.pause(place, draw.span(SECOND / 10, 10 * SECOND)),
                _ => {
                    let mut places: Vec<_> = (0..nodes).map(NodeIndex::new).collect();
                    draw.shuffle(&mut places);
                    let rest = places.split_off(1 + draw.index(nodes - 1));
                    let span = Some(draw.span(SECOND / 10, 20 * SECOND));
                    sim.fault(&Fault::Partition { groups: vec![places, rest], span });
                }
            }
            sim.run_for(draw.span(SECOND / 100, 4 * SECOND));
            let counts = supervise(&mut sim);
            (orphans, stranded) = (orphans + counts[0], stranded + counts[1]);
        }
    }
    assert!(orphans > 20, "{orphans} orphans, {stranded} stranded");
}

#[test]
fn stranded_node_ends_within_a_bounded_time() {
    let mut sim = calm(8, 3, 2, ephemeral(2));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1]));
    // The other member fails before any configuration can contain the newcomer, and so does the
    // admitting one.
    sim.partition([&[0, 2], &[1]]);
    start(&mut sim, &[2]);
    sim.run_for(SECOND);
    sim.crash(NodeIndex::new(0));
    until(&mut sim, 120, |sim| at(sim, 2).over == Some(StopReason::Stranded));
}

// ── nodes that come back ──

/// All seeds are replaced at once. They know the addresses of the other members.
#[test]
fn seeds_replaced_together_are_soon_members_again() {
    for seed in 0..10 {
        let all: Vec<usize> = (0..6).collect();
        let mut sim = calm(seed, 6, 6, World::new(3));
        until(&mut sim, 20, |sim| agree(sim, &all));
        sim.run_for(10 * SECOND);
        (0..3).for_each(|place| leave(&mut sim, place, place));
        until(&mut sim, 10, |sim| (0..3).all(|place| at(sim, place).over.is_some()));
        (0..3).for_each(|place| sim.crash(NodeIndex::new(place)));
        start(&mut sim, &[0, 1, 2]);
        let begun = sim.now();
        until(&mut sim, 10, |sim| agree(sim, &all));
        let took = sim.now() - begun;
        assert!(took < 2 * SECOND, "seed {seed}: {took:?} of simulated time");
    }
}

/// Without its data directory the only seed knows no members: it is invited soon after its removal.
#[test]
fn ephemeral_seed_is_invited_soon_after_it_left() {
    for seed in 0..10 {
        let mut sim = calm(seed, 3, 3, ephemeral(1));
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2]));
        sim.run_for(10 * SECOND);
        leave(&mut sim, 0, 0);
        until(&mut sim, 10, |sim| at(sim, 0).over.is_some());
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 10, |sim| agree(sim, &[1, 2]));
        let left = sim.now();
        until(&mut sim, 2, |sim| (1..3).any(|place| at(sim, place).is_dialling(0)));
        assert!(sim.now() - left < SECOND, "seed {seed}: a lone seed would found a cluster");
    }
}
