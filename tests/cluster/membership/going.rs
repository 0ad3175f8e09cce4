//! Members leave, crash, are declared dead, and return as other incarnations.

use std::rc::Rc;

use ostraca::cluster::config::{ClusterConfig, Downing, DowningStrategyName};
use ostraca::cluster::member::Status;
use ostraca::cluster::membership::port::{MembershipCommand, StopReason};
use ostraca_ddata::sim::NodeIndex;

use super::super::whole::{Command, World, addresses};
use super::{SECOND, Sim, agree, at, calm, until};

/// A cluster of this many nodes; the first three are seeds.
fn cluster(seed: u64, nodes: usize) -> Sim {
    cluster_of(seed, nodes, World::new(3))
}

pub(super) fn cluster_of(seed: u64, nodes: usize, world: World) -> Sim {
    let mut sim = calm(seed, nodes + 2, nodes, world);
    let all: Vec<usize> = (0..nodes).collect();
    until(&mut sim, 20, |sim| agree(sim, &all));
    sim
}

fn ask(sim: &mut Sim, place: usize, wish: MembershipCommand) {
    sim.command(NodeIndex::new(place), Command::User(wish));
}

pub(super) fn leave(sim: &mut Sim, asked: usize, who: usize) {
    let id = at(sim, who).me().incarnation;
    ask(sim, asked, MembershipCommand::Leave(id));
}

fn stopped(sim: &Sim, place: usize, why: StopReason) -> bool {
    at(sim, place).over == Some(why)
}

#[test]
fn leaving_node_stops_after_its_removal() {
    for seed in 0..10 {
        for who in 0..4 {
            let mut sim = cluster(seed, 4);
            leave(&mut sim, 1, who);
            let rest: Vec<usize> = (0..4).filter(|place| *place != who).collect();
            until(&mut sim, 5, |sim| stopped(sim, who, StopReason::Left));
            until(&mut sim, 5, |sim| agree(sim, &rest));
        }
    }
}

#[test]
fn two_of_four_members_leave_at_once() {
    for seed in 0..10 {
        let mut sim = cluster(seed, 4);
        leave(&mut sim, 0, 0);
        leave(&mut sim, 3, 3);
        until(&mut sim, 10, |sim| agree(sim, &[1, 2]));
        until(&mut sim, 5, |sim| {
            stopped(sim, 0, StopReason::Left) && stopped(sim, 3, StopReason::Left)
        });
    }
}

#[test]
fn all_members_leave_at_once() {
    for seed in 0..10 {
        let mut sim = cluster(seed, 3);
        for place in 0..3 {
            leave(&mut sim, place, place);
        }
        until(&mut sim, 20, |sim| (0..3).all(|place| stopped(sim, place, StopReason::Left)));
    }
}

#[test]
fn five_of_six_members_leave_at_once() {
    for seed in 0..5 {
        for stays in [0, 5] {
            let mut sim = cluster(seed, 6);
            let rest: Vec<usize> = (0..6).filter(|place| *place != stays).collect();
            rest.iter().for_each(|place| leave(&mut sim, *place, *place));
            until(&mut sim, 30, |sim| agree(sim, &[stays]));
            until(&mut sim, 5, |sim| rest.iter().all(|p| stopped(sim, *p, StopReason::Left)));
        }
    }
}

#[test]
fn removed_incarnation_leaves_only_a_tombstone() {
    let mut sim = cluster(8, 4);
    for round in 1..=10 {
        leave(&mut sim, 3, 3);
        until(&mut sim, 10, |sim| stopped(sim, 3, StopReason::Left));
        sim.crash(NodeIndex::new(3));
        sim.restart(NodeIndex::new(3));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
        let gossip = at(&sim, 0).membership.gossip().expect("a member");
        assert_eq!((gossip.len(), gossip.tombstones().len()), (4, round));
        assert!(gossip.version().dots.keys().all(|id| gossip.contains(*id)));
        assert_eq!(at(&sim, 0).epoch().expect("installed").members().len(), 4);
    }
}

#[test]
fn crashed_member_is_removed_by_a_quorum() {
    for seed in 0..5 {
        for who in 0..5 {
            let mut sim = cluster(seed, 5);
            sim.crash(NodeIndex::new(who));
            let rest: Vec<usize> = (0..5).filter(|place| *place != who).collect();
            until(&mut sim, 30, |sim| agree(sim, &rest));
        }
    }
}

#[test]
fn only_the_older_of_two_nodes_survives_a_crash() {
    let mut sim = cluster_of(1, 2, World::new(2));
    sim.crash(NodeIndex::new(1));
    until(&mut sim, 30, |sim| agree(sim, &[0]));

    let mut sim = cluster_of(1, 2, World::new(2));
    sim.crash(NodeIndex::new(0));
    until(&mut sim, 60, |sim| stopped(sim, 1, StopReason::DownedItself));
}

#[test]
fn restart_on_the_same_data_directory_is_proof_of_death() {
    for seed in 0..10 {
        for who in 0..4 {
            let mut sim = cluster(seed, 4);
            let old = at(&sim, who).me();
            sim.crash(NodeIndex::new(who));
            sim.restart(NodeIndex::new(who));
            until(&mut sim, 4, |sim| agree(sim, &[0, 1, 2, 3]));
            assert_ne!(at(&sim, who).me(), old);
            let left = at(&sim, 0).epoch().expect("installed").left().to_vec();
            assert!(left.contains(&old.incarnation), "{left:?}");
        }
    }
}

#[test]
fn restart_without_proof_joins_after_the_removal() {
    for strategy in [DowningStrategyName::KeepMajority, DowningStrategyName::Manual] {
        for seed in 0..5 {
            let mut world = World::with(move |_| ClusterConfig {
                seeds: addresses(0..3),
                downing: Downing { strategy, ..Downing::default() },
                ..ClusterConfig::default()
            });
            world.proof = false;
            let mut sim = cluster_of(seed, 4, world);
            sim.crash(NodeIndex::new(3));
            sim.restart(NodeIndex::new(3));
            until(&mut sim, 40, |sim| agree(sim, &[0, 1, 2, 3]));
        }
    }
}

#[test]
fn node_without_data_directory_returns_as_another_peer() {
    for seed in 0..5 {
        let mut world = World::new(3);
        world.keeps = Rc::new(|_| false);
        let mut sim = cluster_of(seed, 4, world);
        sim.crash(NodeIndex::new(3));
        sim.restart(NodeIndex::new(3));
        until(&mut sim, 40, |sim| agree(sim, &[0, 1, 2, 3]));
    }
}

#[test]
fn rolling_restart_keeps_the_cluster() {
    let mut sim = cluster(7, 4);
    let cluster_id = at(&sim, 0).membership.gossip().expect("a member").cluster();
    for _ in 0..2 {
        for who in 0..4 {
            leave(&mut sim, who, who);
            until(&mut sim, 10, |sim| stopped(sim, who, StopReason::Left));
            sim.crash(NodeIndex::new(who));
            sim.restart(NodeIndex::new(who));
            until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
        }
    }
    let now = at(&sim, 0).membership.gossip().expect("a member").cluster();
    assert_eq!(now, cluster_id);
}

#[test]
fn living_node_declared_dead_stops_and_is_removed() {
    for seed in 0..10 {
        let mut sim = cluster(seed, 4);
        let id = at(&sim, 2).me().incarnation;
        ask(&mut sim, 1, MembershipCommand::Down(id));
        until(&mut sim, 2, |sim| stopped(sim, 2, StopReason::Downed));
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 3]));
    }
}

#[test]
fn joiner_without_a_quorum_becomes_weakly_up() {
    let world = World::with(|_| ClusterConfig {
        seeds: addresses(0..3),
        downing: Downing { strategy: DowningStrategyName::Manual, ..Downing::default() },
        ..ClusterConfig::default()
    });
    let mut sim = cluster_of(3, 3, world);
    sim.crash(NodeIndex::new(1));
    sim.crash(NodeIndex::new(2));
    until(&mut sim, 20, |sim| {
        at(sim, 0).membership.state().is_some_and(|state| state.unreachable.len() == 2)
    });
    sim.restart(NodeIndex::new(3));
    until(&mut sim, 20, |sim| at(sim, 3).status() == Some(Status::WeaklyUp));
    let joiner = at(&sim, 3).me().incarnation;
    assert!(at(&sim, 0).epoch().is_some_and(|epoch| !epoch.is_member(joiner)));
    // Two voters restart at the places of their former incarnations, which still count as voters.
    sim.restart(NodeIndex::new(1));
    sim.restart(NodeIndex::new(2));
    sim.run_for(30 * SECOND);
    assert_eq!(at(&sim, 3).status(), Some(Status::WeaklyUp), "successors do not vote");
}

#[test]
fn full_shutdown_admits_and_promotes_no_node() {
    let mut sim = cluster(5, 3);
    ask(&mut sim, 2, MembershipCommand::PrepareForFullShutdown);
    until(&mut sim, 2, |sim| {
        (0..3).all(|place| {
            at(sim, place).membership.state().is_some_and(|state| state.preparing_for_shutdown)
        })
    });
    sim.restart(NodeIndex::new(3));
    sim.run_for(20 * SECOND);
    assert_eq!(at(&sim, 3).status(), None);
    assert!(agree(&sim, &[0, 1, 2]));
    for place in 0..3 {
        leave(&mut sim, place, place);
    }
    until(&mut sim, 20, |sim| (0..3).all(|p| stopped(sim, p, StopReason::Left)));
}

#[test]
fn subscribers_get_each_status_once_in_order() {
    let mut sim = cluster(2, 3);
    sim.restart(NodeIndex::new(3));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
    leave(&mut sim, 3, 3);
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    for place in 0..3 {
        let lived: Vec<Status> = at(&sim, place).lives_seen(3);
        assert!(lived.is_sorted(), "{lived:?}");
        assert_eq!(lived.last(), Some(&Status::Removed));
        assert!(lived.contains(&Status::Up) && lived.contains(&Status::Exiting), "{lived:?}");
    }
}

#[test]
fn crash_at_any_moment_of_a_leave_is_handled() {
    for millis in (0..120).step_by(5) {
        for crashed in [0, 1, 3] {
            let mut sim = cluster(21, 5);
            leave(&mut sim, 2, 2);
            sim.run_for(SECOND / 1_000 * millis);
            sim.crash(NodeIndex::new(crashed));
            let rest: Vec<usize> = (0..5).filter(|place| ![2, crashed].contains(place)).collect();
            until(&mut sim, 60, |sim| agree(sim, &rest));
            until(&mut sim, 10, |sim| stopped(sim, 2, StopReason::Left));
        }
    }
}

#[test]
fn crash_of_a_leaving_node_at_any_moment_is_handled() {
    for millis in (0..120).step_by(5) {
        let mut sim = cluster(22, 4);
        leave(&mut sim, 0, 0);
        sim.run_for(SECOND / 1_000 * millis);
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 60, |sim| agree(sim, &[1, 2, 3]));
    }
}

#[test]
fn crash_of_the_leader_during_a_removal_is_handled() {
    for tenths in (0..120).step_by(4) {
        let mut sim = cluster(23, 5);
        sim.crash(NodeIndex::new(4));
        sim.run_for(SECOND / 10 * tenths);
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 80, |sim| agree(sim, &[1, 2, 3]));
    }
}

/// The sum in docs/downing.md: a heartbeat interval, the pause, the time until phi reaches 8 at the
/// minimum deviation, the probes and the stable time; then one decision.
#[test]
fn silent_host_is_removed_in_the_time_that_settings_give() {
    let config = ClusterConfig::default();
    let detector = &config.failure_detector;
    let threshold = detector.min_std_deviation.mul_f64(5.7);
    let noticed = detector.heartbeat_interval
        + detector.acceptable_heartbeat_pause
        + threshold
        + detector.indirect_probe_timeout;
    let stable = SECOND * 3;
    for nodes in [3, 5, 7] {
        let mut removals = Vec::new();
        for seed in 0..10 {
            let mut sim = cluster(seed, nodes);
            sim.run_for(20 * SECOND + SECOND / 10 * (seed as u32));
            let silent = nodes - 1;
            sim.pause(NodeIndex::new(silent), 120 * SECOND);
            let begun = sim.now();
            let others: Vec<usize> = (0..silent).collect();
            until(&mut sim, 30, |sim| {
                others.iter().all(|place| at(sim, *place).members().len() == silent)
            });
            removals.push(sim.now() - begun);
        }
        let most = removals.iter().max();
        assert!(most.is_some_and(|most| *most <= noticed + stable + SECOND / 2), "{removals:?}");
    }
}
