//! Nodes find each other, found one cluster, and admit others.

use std::collections::BTreeSet;

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::gossip::ClusterId;
use ostraca::cluster::membership::port::{MembershipCommand, OperatorNotice};
use ostraca_ddata::replicator::epoch::MembershipChange;
use ostraca_ddata::replicator::port as data;
use ostraca_ddata::sim::{Fault, LinkSet, NodeIndex};

use super::super::whole::{Command, World, address, name_of_all, node_at};
use super::{SECOND, Sim, agree, at, calm, until};

pub(super) fn clusters(sim: &Sim) -> BTreeSet<ClusterId> {
    sim.processes().filter_map(|(_, node)| Some(node.membership.gossip()?.cluster())).collect()
}

#[test]
fn three_seeds_found_one_cluster_and_a_fourth_joins() {
    for seed in 0..20 {
        let mut sim = calm(seed, 4, 3, World::new(3));
        until(&mut sim, 5, |sim| agree(sim, &[0, 1, 2]));
        sim.restart(NodeIndex::new(3));
        until(&mut sim, 5, |sim| agree(sim, &[0, 1, 2, 3]));
        assert_eq!(clusters(&sim).len(), 1, "seed {seed}");
    }
}

#[test]
fn thirty_nodes_starting_at_once_form_one_cluster() {
    for seed in 0..3 {
        let mut sim = calm(seed, 30, 30, World::new(3));
        let all: Vec<usize> = (0..30).collect();
        until(&mut sim, 20, |sim| agree(sim, &all));
        assert_eq!(clusters(&sim).len(), 1, "seed {seed}");
    }
}

#[test]
fn cluster_grows_node_by_node() {
    let mut sim = calm(4, 10, 1, World::new(1));
    until(&mut sim, 5, |sim| agree(sim, &[0]));
    for place in 1..10 {
        sim.restart(NodeIndex::new(place));
        let all: Vec<usize> = (0..=place).collect();
        until(&mut sim, 5, |sim| agree(sim, &all));
    }
}

#[test]
fn ages_have_the_order_of_the_configuration() {
    let mut sim = calm(5, 12, 12, World::new(3));
    let all: Vec<usize> = (0..12).collect();
    until(&mut sim, 20, |sim| agree(sim, &all));
    for place in 0..12 {
        let node = at(&sim, place);
        let gossip = node.membership.gossip().expect("a member");
        let mut by_age: Vec<_> = gossip.members().collect();
        by_age.sort_by(|one, other| one.by_age(other));
        let by_age: Vec<_> = by_age.into_iter().map(|member| member.incarnation()).collect();
        assert_eq!(by_age, node.epoch().expect("installed").members());
    }
}

#[test]
fn node_without_seeds_founds_alone_and_another_joins_it() {
    let world =
        World::with(|place| ClusterConfig { wait_for_join: place > 0, ..ClusterConfig::default() });
    let mut sim = calm(6, 2, 2, world);
    until(&mut sim, 5, |sim| agree(sim, &[0]));
    sim.run_for(20 * SECOND);
    assert!(at(&sim, 1).membership.gossip().is_none(), "it waits for a join command");
    let join = |sim: &mut Sim, place| {
        sim.command(NodeIndex::new(1), Command::User(MembershipCommand::Join(address(place))));
    };
    join(&mut sim, 0);
    join(&mut sim, 0);
    until(&mut sim, 5, |sim| agree(sim, &[0, 1]));
    // A member ignores further join commands.
    join(&mut sim, 0);
    join(&mut sim, 7);
    sim.run_for(20 * SECOND);
    assert!(agree(&sim, &[0, 1]));
}

/// Whether only two nodes founded, and the older one is the one that crashed: the younger of a pair
/// cannot continue alone.
fn lost_the_older_of_two(sim: &Sim, crashed: usize) -> bool {
    let mut installed = sim.observer().installed.values();
    let (first, second) = (installed.next(), installed.next());
    first.filter(|_| second.is_none()).is_some_and(|epoch| {
        epoch.members().len() == 2 && epoch.tiebreaker() == node_at(crashed, 1, true).incarnation
    })
}

/// The run is interrupted at every few milliseconds of the founding.
#[test]
fn seed_crash_during_founding_leaves_one_cluster() {
    let (mut runs, mut pairs) = (0, 0);
    for millis in (0..400).step_by(7) {
        for who in 0..2 {
            let mut sim = calm(u64::from(millis), 3, 3, World::new(3));
            sim.run_for(SECOND / 1_000 * millis);
            sim.crash(NodeIndex::new(who));
            sim.run_for(SECOND / 50);
            sim.restart(NodeIndex::new(who));
            sim.run_for(3 * SECOND);
            assert!(sim.observer().clusters.len() <= 1, "{who} crashed after {millis} ms");
            runs += 1;
            if lost_the_older_of_two(&sim, who) {
                pairs += 1;
                continue;
            }
            until(&mut sim, 60, |sim| agree(sim, &[0, 1, 2]));
        }
    }
    assert!(pairs * 4 < runs, "{pairs} of {runs} ended with half a pair");
}

#[test]
fn crash_of_the_admitting_member_is_handled() {
    for millis in (0..60).step_by(2) {
        for who in 0..3 {
            let mut sim = calm(12, 5, 4, World::new(3));
            until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
            sim.restart(NodeIndex::new(4));
            sim.run_for(SECOND / 2_000 * millis);
            sim.crash(NodeIndex::new(who));
            let rest: Vec<usize> = (0..5).filter(|place| *place != who).collect();
            until(&mut sim, 60, |sim| agree(sim, &rest));
        }
    }
}

/// The member that admitted it, and the newcomer itself, have failed.
#[test]
fn unlisted_member_of_the_configuration_is_removed() {
    let mut sim = calm(13, 4, 3, World::new(3));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    let join = vec![node_at(3, 1, true).incarnation];
    let change = MembershipChange { join, ..MembershipChange::default() };
    sim.command(NodeIndex::new(0), Command::Data(Box::new(data::ReplicatorInput::Propose(change))));
    let size = |sim: &Sim| at(sim, 0).epoch().map(|epoch| epoch.members().len());
    until(&mut sim, 5, |sim| size(sim) == Some(4));
    until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
}

/// Each newcomer fails before the previous one can be removed: short-lived members would outnumber
/// the living ones.
#[test]
fn short_lived_newcomers_do_not_cost_the_quorum() {
    for seed in 0..5 {
        let mut sim = calm(seed, 15, 3, World::new(3));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
        for place in 3..15 {
            sim.restart(NodeIndex::new(place));
            sim.run_for(SECOND * 5 / 2);
            sim.crash(NodeIndex::new(place));
        }
        until(&mut sim, 60, |sim| agree(sim, &[0, 1, 2]));
    }
}

/// A configuration of three would surely have only one living member, and all know of the newcomer
/// before the link is back, so that no other event triggers a new proposal.
#[test]
fn repaired_link_triggers_a_pending_join() {
    for seed in 0..5 {
        let mut sim = calm(seed, 3, 2, World::new(2));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1]));
        let [one, other] = [0, 1].map(|place| vec![NodeIndex::new(place)]);
        let there = LinkSet { from: one.clone(), to: other.clone() };
        let links = vec![there, LinkSet { from: other, to: one }];
        sim.fault(&Fault::Cut { links, span: Some(4 * SECOND) });
        sim.restart(NodeIndex::new(2));
        sim.run_for(4 * SECOND);
        assert!(!at(&sim, 0).up().contains(&2), "seed {seed}");
        until(&mut sim, 2, |sim| agree(sim, &[0, 1, 2]));
    }
}

/// No member dials the address of a removed seed, and the seed has no other node to ask.
#[test]
fn restarted_only_seed_is_invited() {
    for seed in 0..5 {
        let mut sim = calm(seed, 4, 4, World::new(1));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 30, |sim| agree(sim, &[1, 2, 3]));
        let is_said = |sim: &Sim| {
            let said = |place| at(sim, place).notices.contains(&OperatorNotice::NoSeedInside);
            (1..4).any(said)
        };
        until(&mut sim, 15, is_said);
        sim.restart(NodeIndex::new(0));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
        assert_eq!(clusters(&sim).len(), 1, "seed {seed}");
    }
}

/// An inviting member crashes, or links break, at every millisecond from before the invitation
/// until the seed is a member.
#[test]
fn crash_or_broken_link_during_an_invitation_is_handled() {
    for millis in 0..30 {
        for who in 1..=5 {
            let mut sim = calm(14, 5, 5, World::new(1));
            until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3, 4]));
            sim.crash(NodeIndex::new(0));
            until(&mut sim, 30, |sim| agree(sim, &[1, 2, 3, 4]));
            sim.restart(NodeIndex::new(0));
            until(&mut sim, 10, |sim| at(sim, 0).is_linked());
            sim.run_for(SECOND / 1_000 * millis);
            let mut rest = vec![0, 1, 2, 3, 4];
            if who == 5 {
                let others = || (1..5).map(NodeIndex::new).collect::<Vec<_>>();
                let links = LinkSet { from: others(), to: vec![NodeIndex::new(0)] };
                sim.fault(&Fault::Break { links: vec![links] });
            } else {
                sim.crash(NodeIndex::new(who));
                rest.retain(|place| *place != who);
            }
            until(&mut sim, 60, |sim| agree(sim, &rest));
        }
    }
}

/// The side could not add the seed, which would then search for no other cluster.
#[test]
fn side_without_a_quorum_invites_no_seed() {
    let mut world = World::new(1);
    world.waits = true;
    let mut sim = calm(15, 3, 3, world);
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    sim.crash(NodeIndex::new(0));
    until(&mut sim, 30, |sim| agree(sim, &[1, 2]));
    let tiebreaker = at(&sim, 1).epoch().map(|epoch| epoch.tiebreaker());
    let (older, other) =
        if tiebreaker == Some(at(&sim, 1).me().incarnation) { (1, 2) } else { (2, 1) };
    sim.crash(NodeIndex::new(older));
    sim.run_for(15 * SECOND);
    for _ in 0..90 {
        sim.run_for(SECOND / 2); // shorter than a dial without an answer
        assert!(!at(&sim, other).is_dialling(0));
    }
    assert!(at(&sim, other).over.is_none(), "it waits");
}

/// As behind a headless service: no member's own address is in the list, but all answer at its
/// name, including the last one, which would invite itself.
#[test]
fn member_at_a_seed_name_is_not_invited() {
    let list = || ClusterConfig {
        seeds: vec![name_of_all(0..3)],
        expected_nodes: Some(3),
        ..ClusterConfig::default()
    };
    let mut sim = calm(16, 3, 3, World::with(move |_| list()));
    let is_missed = |sim: &Sim| {
        sim.processes().any(|(_, node)| node.notices.contains(&OperatorNotice::NoSeedInside))
    };
    for left in (0..3).rev() {
        let rest: Vec<usize> = (0..=left).collect();
        until(&mut sim, 20, |sim| agree(sim, &rest));
        sim.run_for(60 * SECOND);
        assert!(!is_missed(&sim), "{rest:?}");
        let id = at(&sim, left).me().incarnation;
        sim.command(NodeIndex::new(left), Command::User(MembershipCommand::Leave(id)));
    }
}
