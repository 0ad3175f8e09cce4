//! A majority fails, or seems to, and an operator continues without it.

use std::rc::Rc;
use std::time::Duration;

use ostraca::cluster::config::{ClusterConfig, DowningStrategyName, HostingLease};
use ostraca::cluster::membership::port::{MembershipCommand, OperatorNotice, StopReason};
use ostraca::cluster::membership::recovery::{NotRecovered, RecoveryPlan};
use ostraca_ddata::sim::NodeIndex;

use super::super::whole::strategies::STRATEGIES;
use super::super::whole::{Command, World, address, addresses, node_at};
use super::going::cluster_of;
use super::strategies::world as with_strategy;
use super::{SECOND, Sim, agree, at, until};

/// Sides without a quorum wait for an operator.
fn patient() -> World {
    World { waits: true, ..World::new(3) }
}

fn force(sim: &mut Sim, place: usize) {
    sim.command(NodeIndex::new(place), Command::User(MembershipCommand::Recover));
}

fn recovery(sim: &Sim, place: usize) -> Result<RecoveryPlan, NotRecovered> {
    at(sim, place).membership.recovery(sim.view().clock(NodeIndex::new(place)).mono)
}

fn crash(sim: &mut Sim, places: impl IntoIterator<Item = usize>) {
    places.into_iter().for_each(|place| sim.crash(NodeIndex::new(place)));
}

fn serves(sim: &Sim, place: usize) -> bool {
    at(sim, place).membership.serves(sim.view().clock(NodeIndex::new(place)).mono)
}

/// Five nodes, of which only `survivors` are left.
fn survived(seed: u64, survivors: [usize; 2]) -> Sim {
    let mut sim = cluster_of(seed, 5, patient());
    crash(&mut sim, (0..5).filter(|place| !survivors.contains(place)));
    sim.run_for(60 * SECOND);
    sim
}

#[test]
fn survivors_continue_by_force_and_a_newcomer_joins() {
    for seed in 0..20 {
        let both @ [one, other] = [seed as usize % 5, (seed as usize + 2) % 5];
        let mut sim = survived(seed, both);
        assert!(both.iter().all(|place| at(&sim, *place).over.is_none() && !serves(&sim, *place)));
        let planned = recovery(&sim, one).expect("a recovery is possible");
        assert_eq!((planned.kept.len(), planned.given_up.len()), (2, 3), "seed {seed}");
        // Ordered at one of them, at the other, or at both at the same time.
        let asked = [&both[..1], &both[1..], &both][seed as usize % 3];
        asked.iter().for_each(|place| force(&mut sim, *place));
        let mut sorted = both;
        sorted.sort_unstable();
        until(&mut sim, 10, |sim| agree(sim, &sorted) && both.iter().all(|it| serves(sim, *it)));
        let forced: u64 = both.iter().map(|it| at(&sim, *it).membership.stats().forced).sum();
        assert_eq!(forced, asked.len() as u64, "seed {seed}");
        let told =
            |notice: &OperatorNotice| matches!(notice, OperatorNotice::Forced { kept: 2, .. });
        assert!(at(&sim, asked[0]).notices.iter().any(told), "seed {seed}");
        assert!(at(&sim, one).epoch().is_some_and(|epoch| epoch.is_forced()));
        assert_eq!(recovery(&sim, other), Err(NotRecovered::Serves), "seed {seed}");
        if sorted[0] < 3 {
            sim.restart(NodeIndex::new(5)); // a seed is left and admits it
            let mut all = vec![sorted[0], sorted[1], 5];
            all.sort_unstable();
            until(&mut sim, 30, |sim| agree(sim, &all));
        }
    }
}

#[test]
fn given_up_member_returns_only_as_a_new_node() {
    for seed in 0..10 {
        let mut sim = survived(seed, [0, 1]);
        force(&mut sim, 1);
        until(&mut sim, 10, |sim| agree(sim, &[0, 1]));
        (2..5).for_each(|place| sim.restart(NodeIndex::new(place)));
        until(&mut sim, 40, |sim| agree(sim, &[0, 1, 2, 3, 4]));
        assert_eq!(at(&sim, 0).epoch().expect("installed").left().len(), 3, "seed {seed}");
    }
}

/// As documented: a dead majority cannot be distinguished from an unreachable one.
#[test]
fn forced_recovery_beside_a_living_majority_stops_it_later() {
    let (mut ended, mut refuses) = (0, 0);
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, patient());
        sim.partition([&[0], &[1, 2, 3, 4]]);
        until(&mut sim, 40, |sim| agree(sim, &[1, 2, 3, 4]));
        force(&mut sim, 0);
        let end = sim.now() + 10 * SECOND;
        until(&mut sim, 11, |sim| sim.now() >= end);
        let both_act = serves(&sim, 0) && (1..5).all(|place| serves(&sim, place));
        assert!(both_act, "seed {seed}: both sides serve");
        sim.heal();
        let one = at(&sim, 0).me();
        // A node that was connected with it at its removal refuses it, and never learns of the
        // recovery by itself.
        let is_over = |sim: &Sim, place| at(sim, place).over.is_some();
        let ends = |sim: &Sim, place| is_over(sim, place) || at(sim, place).refuses(one);
        until(&mut sim, 30, |sim| (1..5).all(|place| ends(sim, place)));
        refuses += (1..5).filter(|place| !is_over(&sim, *place)).count();
        if (1..5).any(|place| is_over(&sim, place)) {
            until(&mut sim, 30, |sim| (1..5).all(|place| is_over(sim, place)));
            ended += 1;
        }
        for place in (1..5).filter(|place| is_over(&sim, *place)) {
            assert_eq!(at(&sim, place).over, Some(StopReason::Removed), "seed {seed}");
        }
        assert!(agree(&sim, &[0]) && serves(&sim, 0), "seed {seed}");
    }
    assert!(ended > 0, "{ended} majorities ended; {refuses} nodes refused the connection");
}

#[test]
fn recovery_is_refused_where_a_quorum_answers() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 5, patient());
        assert_eq!(recovery(&sim, 0), Err(NotRecovered::Serves));
        crash(&mut sim, [3, 4]);
        force(&mut sim, 0);
        sim.run_for(SECOND);
        let refused = OperatorNotice::NotForced(NotRecovered::Serves);
        assert!(at(&sim, 0).notices.contains(&refused), "seed {seed}");
        assert_eq!(at(&sim, 0).membership.not_forced(), Some((1, NotRecovered::Serves)));
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        assert!(!at(&sim, 0).epoch().expect("installed").is_forced());
        // It was disconnected for a moment and has lost only its lease.
        sim.partition([&[0], &[1, 2]]);
        sim.run_for(8 * SECOND);
        assert!(recovery(&sim, 0).is_ok(), "seed {seed}: it reaches no quorum");
        sim.restart(NodeIndex::new(3)); // knows no member yet
        sim.run_for(SECOND / 100);
        let told = recovery(&sim, 3);
        assert!(matches!(told, Err(NotRecovered::Stopped { .. })), "seed {seed}: {told:?}");
    }
}

/// Without leases there are no grants: only the reachable members matter.
#[test]
fn recovery_without_leases_is_refused_with_a_quorum() {
    for seed in 0..5 {
        let world = World::with(|_| ClusterConfig {
            seeds: addresses(0..3),
            lease: HostingLease { enabled: false, ..HostingLease::default() },
            ..ClusterConfig::default()
        });
        let mut sim = cluster_of(seed, 5, world);
        sim.run_for(SECOND);
        let quorum = |reached| NotRecovered::Quorum { reached, voters: 5 };
        assert_eq!(recovery(&sim, 0), Err(quorum(5)), "seed {seed}");
        crash(&mut sim, [3, 4]);
        sim.run_for(SECOND);
        force(&mut sim, 0);
        sim.run_for(SECOND);
        assert_eq!(at(&sim, 0).membership.not_forced(), Some((1, quorum(3))), "seed {seed}");
        let refused = OperatorNotice::NotForced(quorum(3));
        assert!(at(&sim, 0).notices.contains(&refused), "seed {seed}");
        crash(&mut sim, [2]);
        sim.run_for(SECOND);
        let planned = recovery(&sim, 0).expect("two of five are no quorum");
        assert_eq!((planned.kept.len(), planned.given_up.len()), (2, 3), "seed {seed}");
    }
}

/// The node does not want a lease, so no proposal can be stuck.
#[test]
fn recovery_is_refused_after_a_released_lease() {
    for seed in 0..5 {
        let world = World::with(|_| {
            let mut config = ClusterConfig { seeds: addresses(0..3), ..ClusterConfig::default() };
            config.downing.stable_after = Some(Duration::from_secs(60)); // no removal in between
            config
        });
        let mut sim = cluster_of(seed, 5, world);
        sim.command(NodeIndex::new(0), Command::User(MembershipCommand::Drained));
        crash(&mut sim, [3, 4]);
        sim.run_for(30 * SECOND);
        assert!(!serves(&sim, 0) && serves(&sim, 1), "seed {seed}");
        let quorum = NotRecovered::Quorum { reached: 3, voters: 5 };
        assert_eq!(recovery(&sim, 0), Err(quorum), "seed {seed}");
    }
}

/// The plan that was shown to the operator is minutes old.
#[test]
fn outdated_recovery_is_refused_and_reported_each_time() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 5, patient());
        sim.partition([&[0, 1], &[2], &[3, 4]]); // no side has a quorum
        sim.run_for(60 * SECOND);
        let planned = recovery(&sim, 0).expect("a recovery is possible");
        assert_eq!((planned.kept.len(), planned.given_up.len()), (2, 3), "seed {seed}");
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3, 4]) && serves(sim, 0));
        let before = at(&sim, 0).epoch().expect("installed").id();
        for number in 1..=2 {
            force(&mut sim, 0);
            sim.run_for(SECOND);
            let refused = Some((number, NotRecovered::Serves));
            assert_eq!(at(&sim, 0).membership.not_forced(), refused, "seed {seed}");
        }
        assert_eq!(at(&sim, 0).epoch().map(|epoch| epoch.id()), Some(before), "seed {seed}");
    }
}

/// A kept member has failed without being noticed: the recovery is ordered again.
#[test]
fn recovery_is_repeated_if_a_kept_member_is_dead() {
    for seed in 0..10 {
        let mut sim = survived(seed, [0, 1]);
        crash(&mut sim, [1]);
        force(&mut sim, 0);
        sim.run_for(SECOND);
        let first = at(&sim, 0).epoch().expect("installed").clone();
        assert!(first.is_forced() && first.members().len() == 2, "seed {seed}: {first:?}");
        sim.run_for(20 * SECOND);
        if at(&sim, 0).epoch().is_some_and(|epoch| epoch.members().len() == 2) {
            force(&mut sim, 0); // the dead one is the older: the other is no quorum
        }
        until(&mut sim, 20, |sim| agree(sim, &[0]) && serves(sim, 0));
    }
}

#[test]
fn waiting_side_stops_when_its_time_expires() {
    for seed in 0..5 {
        let world = World::with(|_| {
            let mut config = ClusterConfig { seeds: addresses(0..3), ..ClusterConfig::default() };
            config.downing.wait_without_quorum = Some(Duration::from_secs(120));
            config
        });
        let mut sim = cluster_of(seed, 3, world);
        crash(&mut sim, [1, 2]);
        sim.run_for(115 * SECOND);
        assert_eq!(at(&sim, 0).over, None, "seed {seed}");
        let waits =
            |notice: &OperatorNotice| matches!(notice, OperatorNotice::WithoutQuorum { .. });
        assert!(at(&sim, 0).notices.iter().any(waits), "seed {seed}");
        until(&mut sim, 20, |sim| at(sim, 0).over == Some(StopReason::DownedItself));
    }
}

#[test]
fn waiting_side_continues_when_the_others_return() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 5, patient());
        sim.partition([&[0, 1], &[2], &[3, 4]]); // no side has a quorum
        sim.run_for(60 * SECOND);
        assert!((0..5).all(|place| at(&sim, place).over.is_none()), "seed {seed}");
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3, 4]));
    }
}

/// A quorum is back for some seconds, with one member unreachable, and is lost again: the waiting
/// time starts anew.
#[test]
fn short_quorum_restarts_the_waiting_time() {
    for seed in 0..5 {
        let world = World::with(|_| {
            let mut config = ClusterConfig { seeds: addresses(0..3), ..ClusterConfig::default() };
            config.downing.wait_without_quorum = Some(Duration::from_secs(60));
            config.downing.stable_after = Some(Duration::from_secs(20)); // no removal in between
            config
        });
        let mut sim = cluster_of(seed, 5, world);
        sim.partition([&[0], &[1], &[2], &[3, 4]]);
        sim.run_for(70 * SECOND); // the notice comes after some 25 s
        assert!((0..3).all(|place| at(&sim, place).over.is_none()), "seed {seed}");
        sim.heal();
        sim.partition([&[0, 1, 2], &[3, 4]]);
        sim.run_for(8 * SECOND);
        sim.heal();
        sim.partition([&[0], &[1], &[2], &[3, 4]]);
        sim.run_for(40 * SECOND);
        assert!((0..3).all(|place| at(&sim, place).over.is_none()), "seed {seed}");
        until(&mut sim, 80, |sim| (0..3).all(|place| at(sim, place).over.is_some()));
    }
}

/// Three of five nodes are paused while two continue by force, and resume long after they were
/// informed. They are not refused before they have learned of the recovery, so the two sides do not
/// coexist.
#[test]
fn paused_given_up_majority_learns_of_it_when_it_resumes() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, patient());
        for (nth, place) in (0..).zip(2..5) {
            sim.pause(NodeIndex::new(place), (60 + nth * (seed as u32 % 3)) * SECOND);
        }
        sim.run_for(30 * SECOND);
        force(&mut sim, 0);
        until(&mut sim, 10, |sim| agree(sim, &[0, 1]) && serves(sim, 0) && serves(sim, 1));
        let lost = (2..5).map(|place| at(&sim, place).me()).collect::<Vec<_>>();
        sim.run_for(15 * SECOND);
        assert!(lost.iter().all(|node| !at(&sim, 0).refuses(*node)), "seed {seed}");
        until(&mut sim, 60, |sim| (2..5).all(|place| at(sim, place).over.is_some()));
        assert!(agree(&sim, &[0, 1]) && serves(&sim, 0), "seed {seed}");
    }
}

/// For example its place in a StatefulSet: it is no longer dialled, because another node answers
/// there. It is paused or disconnected, and connects by itself.
#[test]
fn given_up_member_with_a_reused_address_is_informed() {
    for seed in 0..10 {
        let mut world = patient();
        world.claims = Rc::new(|place| address(if place == 5 { 3 } else { place }));
        let mut sim = cluster_of(seed, 5, world);
        crash(&mut sim, [2, 4]);
        if seed % 2 == 0 {
            sim.pause(NodeIndex::new(3), 600 * SECOND);
        } else {
            sim.partition([&[0, 1, 5], &[3]]);
        }
        sim.run_for(30 * SECOND);
        let lost = at(&sim, 3).me();
        force(&mut sim, 0);
        until(&mut sim, 10, |sim| agree(sim, &[0, 1]));
        sim.restart(NodeIndex::new(5));
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 5]));
        sim.run_for(20 * SECOND);
        assert!((0..2).all(|place| !at(&sim, place).refuses(lost)), "seed {seed}");
        assert_eq!(at(&sim, 3).over, None, "seed {seed}: it is not informed yet");
        sim.heal();
        until(&mut sim, 30, |sim| at(sim, 3).over == Some(StopReason::Removed));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 5]) && serves(sim, 0));
    }
}

/// By default, and with `lease-majority` in any case.
#[test]
fn side_without_waiting_time_stops_at_once() {
    let mut sim = cluster_of(1, 5, World::new(3));
    crash(&mut sim, [0, 1, 2]);
    until(&mut sim, 30, |sim| (3..5).all(|place| at(sim, place).over.is_some()));

    let world = World { waits: true, ..with_strategy(DowningStrategyName::LeaseMajority) };
    world.downing_lease.set(Some(node_at(9, 1, true))); // another node holds it
    let mut sim = cluster_of(1, 5, world);
    crash(&mut sim, [0, 1, 2]);
    until(&mut sim, 60, |sim| (3..5).all(|place| at(sim, place).over.is_some()));
}

/// The table in docs/downing.md about each strategy when three of five nodes fail at once.
#[test]
fn survivors_wait_for_an_operator_under_most_strategies() {
    let all = STRATEGIES.into_iter();
    for strategy in all.chain([DowningStrategyName::DownAll, DowningStrategyName::Manual]) {
        let mut sim = cluster_of(1, 5, World { waits: true, ..with_strategy(strategy) });
        crash(&mut sim, [0, 1, 2]);
        sim.run_for(120 * SECOND);
        let ends =
            matches!(strategy, DowningStrategyName::StaticQuorum | DowningStrategyName::DownAll);
        let over = [3, 4].map(|place| at(&sim, place).over.is_some());
        assert_eq!(over, [ends; 2], "{strategy}");
        if !ends {
            force(&mut sim, 3);
            until(&mut sim, 20, |sim| agree(sim, &[3, 4]));
        }
    }
}
