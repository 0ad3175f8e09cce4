//! Network splits and heals.

use std::ops::Range;
use std::time::Duration;

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::member::Status;
use ostraca::cluster::membership::port::{MembershipCommand, OperatorNotice, StopReason};
use ostraca_ddata::sim::{Fault, LinkSet, NodeIndex};

use super::super::whole::{Command, World, addresses};
use super::going::{cluster_of, leave};
use super::{SECOND, Sim, agree, at, until};

fn nodes(places: &[usize]) -> Vec<NodeIndex> {
    places.iter().copied().map(NodeIndex::new).collect()
}

fn is_over(sim: &Sim, places: &[usize]) -> bool {
    places.iter().all(|place| at(sim, *place).over.is_some())
}

#[test]
fn larger_side_continues_and_smaller_side_stops() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, World::new(3));
        sim.partition([&[0, 1], &[2, 3, 4]]);
        until(&mut sim, 40, |sim| agree(sim, &[2, 3, 4]) && is_over(sim, &[0, 1]));
        for place in [0, 1] {
            assert_eq!(at(&sim, place).over, Some(StopReason::DownedItself), "seed {seed}");
        }
    }
}

#[test]
fn half_with_the_tiebreaker_continues() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 4, World::new(3));
        let tiebreaker = at(&sim, 0).epoch().expect("installed").tiebreaker();
        let oldest =
            (0..4).find(|p| at(&sim, *p).me().incarnation == tiebreaker).expect("the tiebreaker");
        let other = (oldest + 1) % 4;
        let rest: Vec<usize> = (0..4).filter(|p| *p != oldest && *p != other).collect();
        sim.partition([&[oldest, other], &rest]);
        let mut stays = [oldest, other];
        stays.sort_unstable();
        until(&mut sim, 40, |sim| agree(sim, &stays) && is_over(sim, &rest));
    }
}

#[test]
fn split_that_heals_in_time_removes_no_member() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, World::new(3));
        sim.partition([&[0, 1], &[2, 3, 4]]);
        sim.run_for(3 * SECOND);
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3, 4]));
        let id = at(&sim, 0).epoch().expect("installed").id();
        assert_eq!(at(&sim, 4).epoch().expect("installed").id(), id);
    }
}

/// The older of two members is disconnected before it accepts a configuration with a third one,
/// which the younger has accepted: that side waits two minutes for the older one.
#[test]
fn side_needed_by_the_next_configuration_waits_two_minutes() {
    for seed in 0..5 {
        let config = |_| ClusterConfig { seeds: addresses([1]), ..ClusterConfig::default() };
        let mut sim = cluster_of(seed, 2, World::with(config));
        let tiebreaker = at(&sim, 0).epoch().expect("installed").tiebreaker();
        assert_eq!(at(&sim, 1).me().incarnation, tiebreaker, "it is the founder");
        sim.restart(NodeIndex::new(2));
        until(&mut sim, 5, |sim| at(sim, 0).accepted().is_some());
        sim.partition([&[1], &[0, 2]]);
        sim.run_for(100 * SECOND);
        assert!(!is_over(&sim, &[0]), "seed {seed}");
        until(&mut sim, 40, |sim| is_over(sim, &[0]));
        assert_eq!(at(&sim, 0).over, Some(StopReason::DownedItself), "seed {seed}");
        until(&mut sim, 20, |sim| agree(sim, &[1]));
        sim.heal();
        for place in [0, 2] {
            sim.crash(NodeIndex::new(place));
            sim.restart(NodeIndex::new(place));
        }
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
    }
}

/// Nodes at these places never stop themselves.
fn without_verdicts(places: Range<usize>) -> World {
    let mut world = World::new(3);
    let config = world.config.clone();
    world.config = std::rc::Rc::new(move |place| {
        let mut config = config(place);
        if places.contains(&place) {
            config.downing.strategy = ostraca::cluster::config::DowningStrategyName::Manual;
        }
        config
    });
    world
}

#[test]
fn removed_side_stops_after_the_heal() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, without_verdicts(0..2));
        sim.partition([&[0, 1], &[2, 3, 4]]);
        until(&mut sim, 40, |sim| agree(sim, &[2, 3, 4]));
        assert!(!is_over(&sim, &[0]));
        sim.heal();
        until(&mut sim, 20, |sim| is_over(sim, &[0, 1]));
        for place in [0, 1] {
            assert_eq!(at(&sim, place).over, Some(StopReason::Removed), "seed {seed}");
        }
        assert!(agree(&sim, &[2, 3, 4]));
    }
}

/// By then the others keep no lanes for it: it is refused before a message can tell it why.
#[test]
fn removed_side_stops_after_a_late_heal() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, without_verdicts(0..2));
        sim.partition([&[0, 1], &[2, 3, 4]]);
        until(&mut sim, 40, |sim| agree(sim, &[2, 3, 4]));
        sim.run_for(30 * SECOND);
        assert!(!is_over(&sim, &[0]));
        sim.heal();
        until(&mut sim, 20, |sim| is_over(sim, &[0, 1]));
        for place in [0, 1] {
            assert_eq!(at(&sim, place).over, Some(StopReason::Removed), "seed {seed}");
        }
        assert!(agree(&sim, &[2, 3, 4]));
    }
}

/// Derived from seed 42958640453030 of an earlier version of chaos: no strategy stops an Exiting
/// node.
#[test]
fn removed_exiting_node_learns_of_it_and_leaves() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 3, World::new(3));
        leave(&mut sim, 2, 2);
        until(&mut sim, 5, |sim| at(sim, 2).status() == Some(Status::Exiting));
        sim.partition([&[0, 1], &[2]]);
        until(&mut sim, 40, |sim| agree(sim, &[0, 1]));
        sim.run_for(30 * SECOND);
        assert!(!is_over(&sim, &[2]), "it is not informed yet, seed {seed}");
        sim.heal();
        until(&mut sim, 20, |sim| is_over(sim, &[2]));
        assert_eq!(at(&sim, 2).over, Some(StopReason::Left), "seed {seed}");
        assert!(agree(&sim, &[0, 1]));
    }
}

#[test]
fn newcomer_on_the_smaller_side_is_weakly_up() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 5, without_verdicts(0..7));
        sim.partition([&[0, 1, 5], &[2, 3, 4, 6]]);
        until(&mut sim, 20, |sim| {
            at(sim, 0).membership.state().is_some_and(|state| state.unreachable.len() == 3)
        });
        sim.restart(NodeIndex::new(5));
        sim.restart(NodeIndex::new(6));
        until(&mut sim, 20, |sim| at(sim, 5).status() == Some(Status::WeaklyUp));
        assert!(!at(&sim, 0).up().contains(&5), "seed {seed}");
        // Its seed is reachable, and so is a quorum.
        until(&mut sim, 20, |sim| at(sim, 6).status() == Some(Status::Up));
        sim.heal();
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2, 3, 4, 5, 6]));
    }
}

#[test]
fn bad_link_removes_no_member() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, World::new(3));
        let links = vec![
            LinkSet { from: nodes(&[1]), to: nodes(&[3]) },
            LinkSet { from: nodes(&[3]), to: nodes(&[1]) },
        ];
        sim.fault(&Fault::Cut { links, span: None });
        sim.run_for(60 * SECOND);
        for place in 0..5 {
            let node = at(&sim, place);
            assert_eq!((node.over, node.status()), (None, Some(Status::Up)), "seed {seed}");
            assert_eq!(node.epoch().map(|epoch| epoch.members().len()), Some(5));
        }
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3, 4]));
    }
}

#[test]
fn pause_below_the_acceptable_one_accuses_no_member() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, World::new(3));
        sim.pause(NodeIndex::new(seed as usize % 5), Duration::from_millis(2_900));
        sim.run_for(20 * SECOND);
        let accused = (0..5).map(|p| at(&sim, p).membership.stats().accusations).sum::<u64>();
        assert_eq!(accused, 0, "seed {seed}");
        assert!(agree(&sim, &[0, 1, 2, 3, 4]));
    }
}

#[test]
fn node_paused_during_its_removal_stops_when_it_resumes() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 5, World::new(3));
        sim.pause(NodeIndex::new(2), 60 * SECOND);
        until(&mut sim, 40, |sim| agree(sim, &[0, 1, 3, 4]));
        until(&mut sim, 80, |sim| is_over(sim, &[2]));
        assert_eq!(at(&sim, 2).over, Some(StopReason::Removed), "seed {seed}");
    }
}

/// The member that admitted it is removed before another member has learned of it.
#[test]
fn newcomer_of_a_lost_side_is_adopted() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 3, World::new(3));
        sim.partition([&[0, 3], &[1, 2, 4]]);
        sim.restart(NodeIndex::new(3));
        until(&mut sim, 5, |sim| at(sim, 3).membership.gossip().is_some());
        sim.crash(NodeIndex::new(0));
        assert!(!at(&sim, 1).members().contains(&3), "1 does not know it, seed {seed}");
        sim.heal();
        sim.restart(NodeIndex::new(0));
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3]));
    }
}

/// As [`newcomer_of_a_lost_side_is_adopted`], but the gossip state that it received contains no
/// remaining member that is alive: it ignores the others, and they do not know it.
#[test]
fn newcomer_of_a_side_with_others_down_searches_again() {
    for seed in 0..10 {
        let mut sim = cluster_of(seed, 2, World::new(2));
        let tiebreaker = at(&sim, 0).epoch().expect("installed").tiebreaker();
        let stays = usize::from(at(&sim, 1).me().incarnation == tiebreaker);
        let goes = 1 - stays;
        sim.partition([&[stays], &[goes, 2]]);
        sim.restart(NodeIndex::new(2));
        until(&mut sim, 5, |sim| at(sim, 2).membership.gossip().is_some());
        let declared = at(&sim, stays).me().incarnation;
        sim.command(NodeIndex::new(goes), Command::User(MembershipCommand::Down(declared)));
        leave(&mut sim, goes, goes);
        until(&mut sim, 5, |sim| at(sim, 2).lives_seen(goes).last() == Some(&Status::Exiting));
        assert_eq!(at(&sim, 2).lives_seen(stays).last(), Some(&Status::Down));
        sim.crash(NodeIndex::new(goes));
        until(&mut sim, 30, |sim| agree(sim, &[stays]));
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[stays, 2]));
        let notices = &at(&sim, 2).notices;
        assert!(notices.contains(&OperatorNotice::OrphanRecovery), "seed {seed}: {notices:?}");
    }
}

/// All members that it knew have meanwhile restarted as other incarnations.
#[test]
fn newcomer_searches_again_after_a_full_replacement() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 3, without_verdicts(3..4));
        sim.partition([&[0, 3], &[1, 2]]);
        sim.restart(NodeIndex::new(3));
        until(&mut sim, 5, |sim| at(sim, 3).membership.gossip().is_some());
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 30, |sim| agree(sim, &[1, 2]));
        sim.heal();
        sim.partition([&[3], &[0, 1, 2]]);
        sim.restart(NodeIndex::new(0));
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        for place in 0..3 {
            sim.crash(NodeIndex::new(place));
            sim.restart(NodeIndex::new(place));
            until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
        }
        assert!(!at(&sim, 1).members().contains(&3), "1 does not know it, seed {seed}");
        sim.heal();
        until(&mut sim, 20, |sim| agree(sim, &[0, 1, 2, 3]));
    }
}

#[test]
fn newcomer_of_a_lost_side_can_leave() {
    for seed in 0..10 {
        for before in [false, true] {
            let mut sim = cluster_of(seed, 3, World::new(3));
            sim.partition([&[0, 3], &[1, 2]]);
            sim.restart(NodeIndex::new(3));
            until(&mut sim, 5, |sim| at(sim, 3).membership.gossip().is_some());
            sim.crash(NodeIndex::new(0));
            until(&mut sim, 30, |sim| agree(sim, &[1, 2]));
            if before {
                leave(&mut sim, 3, 3);
                until(&mut sim, 20, |sim| at(sim, 3).over.is_some());
            }
            sim.heal();
            if !before {
                leave(&mut sim, 3, 3);
            }
            until(&mut sim, 20, |sim| agree(sim, &[1, 2]) && is_over(sim, &[3]));
            assert_eq!(at(&sim, 3).over, Some(StopReason::Left), "seed {seed}");
        }
    }
}

/// It is disconnected from the only member that it knows, and the configuration contains a newcomer
/// that reaches both.
#[test]
fn exiting_node_is_released_by_a_configured_newcomer() {
    for seed in 0..5 {
        let mut sim = cluster_of(seed, 2, without_verdicts(0..3));
        let tiebreaker = at(&sim, 0).epoch().expect("installed").tiebreaker();
        let stays = usize::from(at(&sim, 1).me().incarnation == tiebreaker);
        let goes = 1 - stays;
        sim.partition([&[stays], &[goes]]);
        leave(&mut sim, goes, goes);
        until(&mut sim, 5, |sim| at(sim, goes).status() == Some(Status::Exiting));
        sim.restart(NodeIndex::new(2));
        until(&mut sim, 60, |sim| is_over(sim, &[goes]));
        assert_eq!(at(&sim, goes).over, Some(StopReason::Left), "seed {seed}");
        until(&mut sim, 20, |sim| agree(sim, &[stays, 2]));
    }
}
