//! Wrong settings, wrong messages of peers, and messages that no correct peer sends.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::gossip::wire::COUNTER_MAX;
use ostraca::cluster::gossip::{ClusterId, Gossip};
use ostraca::cluster::member::{Address, Member};
use ostraca::cluster::membership::port::{MembershipCommand, OperatorNotice};
use ostraca::cluster::wire::{ClusterMessage, ComparedSettings, FoundingBallot, InitAnswer};
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::sim::{Fault, NodeIndex};

use super::super::whole::{Command, World, address, addresses, alias, name_of_all, node_at};
use super::going::cluster_of;
use super::{SECOND, Sim, agree, at, calm, until};

fn with_seeds(seeds: impl Fn(usize) -> Vec<Address> + 'static) -> World {
    World::with(move |place| ClusterConfig { seeds: seeds(place), ..ClusterConfig::default() })
}

fn is_searching(sim: &Sim, place: usize) -> bool {
    at(sim, place).membership.gossip().is_none() && at(sim, place).over.is_none()
}

fn was_told(sim: &Sim, place: usize, notice: impl Fn(&OperatorNotice) -> bool) -> bool {
    at(sim, place).notices.iter().any(notice)
}

#[test]
fn different_seed_lists_found_no_cluster_and_are_reported() {
    let mut sim = calm(
        1,
        3,
        2,
        with_seeds(|place| if place == 0 { addresses([0, 1]) } else { addresses([0, 1, 2]) }),
    );
    sim.run_for(60 * SECOND);
    for place in 0..2 {
        assert!(is_searching(&sim, place));
        assert!(was_told(&sim, place, |notice| matches!(
            notice,
            OperatorNotice::OtherSeeds { .. }
        )));
    }
}

#[test]
fn node_with_a_different_list_joins_the_others() {
    for odd in 0..3 {
        let mut sim =
            calm(
                2,
                4,
                3,
                with_seeds(move |place| {
                    if place == odd { addresses([0, 1, 2, 3]) } else { addresses([0, 1, 2]) }
                }),
            );
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2]));
    }
}

#[test]
fn seed_listed_twice_founds_one_cluster() {
    for seed in 0..5 {
        let list = || [addresses([0, 1, 2]), vec![alias(0)]].concat();
        let mut sim = calm(seed, 3, 3, with_seeds(move |_| list()));
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    }
    let mut sim = calm(1, 1, 1, with_seeds(|_| vec![address(0), alias(0)]));
    until(&mut sim, 10, |sim| agree(sim, &[0]));
}

/// As with a headless service: every node's only seed is the name of all nodes. The second and
/// third node start long after the first.
#[test]
fn known_failure_29_name_of_all_seeds_founds_one_cluster() {
    for (seed, started) in [(1, 3), (2, 1), (3, 1)] {
        let mut sim = calm(
            seed,
            3,
            started,
            World::with(|_| ClusterConfig {
                seeds: vec![name_of_all(0..3)],
                expected_nodes: Some(3),
                ..ClusterConfig::default()
            }),
        );
        for place in started..3 {
            sim.run_for(20 * SECOND);
            sim.restart(NodeIndex::new(place));
        }
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
    }
}

#[test]
fn silent_seed_does_not_delay_a_majority() {
    let mut sim = calm(1, 3, 2, World::new(3));
    until(&mut sim, 2, |sim| agree(sim, &[0, 1]));
}

#[test]
fn minority_of_seeds_founds_nothing_and_logs_the_silent_ones() {
    let mut sim = calm(1, 3, 1, World::new(3));
    sim.run_for(120 * SECOND);
    assert!(is_searching(&sim, 0));
    let expected = OperatorNotice::SeedsSilent { silent: addresses([1, 2]), others_suffice: false };
    assert!(was_told(&sim, 0, |notice| *notice == expected));
    sim.restart(NodeIndex::new(2));
    until(&mut sim, 3, |sim| agree(sim, &[0, 2]));
}

#[test]
fn two_nodes_with_one_address_are_two_members() {
    for seed in 0..5 {
        let mut world = World::new(3);
        world.claims = Rc::new(|place| address(if place == 4 { 3 } else { place }));
        let mut sim = cluster_of(seed, 5, world);
        sim.run_for(30 * SECOND);
        assert!(agree(&sim, &[0, 1, 2, 3, 4]), "seed {seed}");
    }
}

#[test]
fn clock_offsets_of_an_hour_have_no_effect() {
    for seed in 0..5 {
        let hour = 3_600_000;
        let mut sim = calm(seed, 5, 5, World::new(3));
        for (place, millis) in [(0, hour), (1, -hour), (3, hour / 2)] {
            sim.fault(&Fault::Jump { node: NodeIndex::new(place), millis });
        }
        until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3, 4]));
        sim.crash(NodeIndex::new(0));
        until(&mut sim, 30, |sim| agree(sim, &[1, 2, 3, 4]));
        sim.restart(NodeIndex::new(0));
        until(&mut sim, 30, |sim| agree(sim, &[0, 1, 2, 3, 4]));
    }
}

#[test]
fn incompatible_settings_refuse_a_join_and_are_reported() {
    let mut world = World::new(3);
    world.settings = Rc::new(|place| ComparedSettings {
        must: vec![("name".into(), if place == 3 { "other" } else { "ours" }.into())],
        should: vec![],
    });
    let mut sim = cluster_of(1, 3, world);
    sim.restart(NodeIndex::new(3));
    sim.run_for(20 * SECOND);
    assert!(is_searching(&sim, 3));
    assert!(agree(&sim, &[0, 1, 2]));
    let names_it = |notice: &OperatorNotice| matches!(notice, OperatorNotice::SettingsDiffer { which, .. } if *which == ["name"]);
    assert!(was_told(&sim, 3, names_it));
    assert!((0..3).any(|place| was_told(&sim, place, names_it)));
}

#[test]
fn differing_optional_settings_only_cause_a_warning() {
    let mut world = World::new(3);
    world.settings = Rc::new(|place| ComparedSettings {
        must: vec![],
        should: vec![("downing".into(), place.to_string())],
    });
    let mut sim = cluster_of(1, 3, world);
    sim.restart(NodeIndex::new(3));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
    assert!(was_told(&sim, 3, |notice| matches!(notice, OperatorNotice::SettingsDiffer { .. })));
}

#[test]
fn separate_clusters_never_merge_and_report_each_other() {
    let apart = Rc::new(Cell::new(true));
    let theirs = apart.clone();
    let world = World::with(move |place| {
        let alone = place == 3 && theirs.get();
        let seeds = if alone { Vec::new() } else { addresses([0, 1, 2]) };
        ClusterConfig { seeds, ..ClusterConfig::default() }
    });
    let mut sim = calm(1, 4, 4, world);
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]) && agree(sim, &[3]));
    apart.set(false);
    sim.crash(NodeIndex::new(3));
    sim.restart(NodeIndex::new(3));
    sim.run_for(20 * SECOND);
    assert!(is_searching(&sim, 3));
    assert!(agree(&sim, &[0, 1, 2]));
    let foreign = |notice: &OperatorNotice| matches!(notice, OperatorNotice::ForeignCluster { .. });
    assert!(was_told(&sim, 3, foreign));
    assert!((0..3).any(|place| was_told(&sim, place, foreign)));
}

#[test]
fn seeds_with_a_stored_cluster_never_found_another() {
    let mut sim = cluster_of(1, 3, World::new(3));
    for place in 0..3 {
        sim.crash(NodeIndex::new(place));
    }
    for place in 0..3 {
        sim.restart(NodeIndex::new(place));
    }
    sim.run_for(60 * SECOND);
    for place in 0..3 {
        assert!(is_searching(&sim, place));
        assert!(was_told(&sim, place, |notice| matches!(
            notice,
            OperatorNotice::AllStopped { .. }
        )));
    }
}

/// The gossip state of a member that has been removed since.
fn outdated(sim: &mut Sim) -> (NodeId, Gossip) {
    sim.restart(NodeIndex::new(3));
    until(sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
    let gossip = at(sim, 3).membership.gossip().expect("a member").clone();
    let node = at(sim, 3).me();
    sim.command(NodeIndex::new(3), Command::User(MembershipCommand::Leave(node.incarnation)));
    until(sim, 10, |sim| agree(sim, &[0, 1, 2]));
    (node, gossip)
}

#[test]
fn gossip_of_a_removed_incarnation_resurrects_no_member() {
    let mut sim = cluster_of(1, 3, World::new(3));
    let (gone, gossip) = outdated(&mut sim);
    let before = at(&sim, 1).membership.stats().strangers;
    let (status, seen) = (gossip.status(), gossip.seen_set());
    for message in [
        ClusterMessage::Gossip(Arc::new(gossip.clone())),
        ClusterMessage::GossipStatus(status),
        ClusterMessage::GossipSeen(seen),
    ] {
        sim.command(NodeIndex::new(1), Command::Inject(gone, message));
    }
    sim.run_for(5 * SECOND);
    assert!(agree(&sim, &[0, 1, 2]));
    assert_eq!(at(&sim, 1).membership.stats().strangers, before + 3);
    // A state forwarded by a member does not resurrect it either.
    let carrier = at(&sim, 0).me();
    let message = ClusterMessage::Gossip(Arc::new(gossip));
    sim.command(NodeIndex::new(1), Command::Inject(carrier, message));
    sim.run_for(5 * SECOND);
    assert!(agree(&sim, &[0, 1, 2]));
}

#[test]
fn join_of_a_removed_incarnation_is_refused() {
    let mut sim = cluster_of(1, 3, World::new(3));
    let (gone, _) = outdated(&mut sim);
    let refused = at(&sim, 1).membership.stats().join_refused;
    let member = Box::new(Member::joining(gone, address(3), 0));
    let join = ClusterMessage::Join { member, settings: ComparedSettings::default() };
    sim.command(NodeIndex::new(1), Command::Inject(gone, join));
    sim.run_for(5 * SECOND);
    assert!(agree(&sim, &[0, 1, 2]));
    assert_eq!(at(&sim, 1).membership.stats().join_refused, refused + 1);
}

/// Every kind of message, from a sender that must not send it.
fn nonsense(gossip: &Gossip, stranger: NodeId) -> Vec<ClusterMessage> {
    use ClusterMessage as M;
    let member = || Box::new(Member::joining(node_at(7, 7, true), address(7), 9));
    let settings = ComparedSettings::default;
    let ballot = FoundingBallot { number: u64::MAX, proposer: ReplicaId::new(9) };
    let mut foreign_member = Member::joining(stranger, address(9), 1);
    foreign_member.up_number = Some(0);
    let foreign = Gossip::found(ClusterId(9), foreign_member).expect("within bounds");
    vec![
        M::InitJoinAnswer { what: InitAnswer::Member(ClusterId(9)), settings: settings() },
        M::Join { member: member(), settings: settings() },
        M::Welcome { gossip: Arc::new(foreign.clone()) },
        M::JoinRefused { why: "because".into(), retry: false },
        M::FoundingPrepare(ballot),
        M::FoundingPromise { ballot, member: member(), accepted: None },
        M::FoundingAccepted(ballot),
        M::FoundingRefused { ballot, promised: ballot },
        M::GossipStatus(foreign.status()),
        M::GossipSeen(foreign.seen_set()),
        M::Gossip(Arc::new(foreign)),
        M::GossipSeen(gossip.seen_set()),
        M::Heartbeat(u64::MAX),
        M::HeartbeatAnswer(u64::MAX),
        M::ProbeAsk { subject: stranger, probe: u64::MAX },
        M::Probed { subject: stranger, probe: u64::MAX },
        M::Leave(gossip.members().next().expect("a member").incarnation()),
        M::Down(gossip.members().next().expect("a member").incarnation()),
        M::YouAreOut { removed: true },
        M::YouAreOut { removed: false },
    ]
}

#[test]
fn invalid_messages_of_a_stranger_are_ignored() {
    let mut sim = cluster_of(1, 3, World::new(3));
    let stranger = node_at(9, 1, true);
    let gossip = at(&sim, 0).membership.gossip().expect("a member").clone();
    for message in nonsense(&gossip, stranger) {
        for place in 0..3 {
            sim.command(NodeIndex::new(place), Command::Inject(stranger, message.clone()));
        }
    }
    sim.run_for(10 * SECOND);
    assert!(agree(&sim, &[0, 1, 2]));
    assert!(at(&sim, 0).membership.stats().nonsense > 0);
}

/// A member takes the entry of a newcomer from the newcomer's state or request. With the highest
/// counters in it, the others would refuse or could not decode the state of that member.
#[test]
fn counters_of_a_stranger_do_not_prevent_joins() {
    let mut sim = cluster_of(1, 3, World::new(3));
    let stranger = node_at(9, 1, true);
    let cluster = at(&sim, 0).membership.gossip().expect("a member").cluster();
    let waits = Member::joining(stranger, address(9), COUNTER_MAX);
    let theirs = Gossip::found(cluster, waits).expect("within bounds");
    let mut member = Box::new(Member::joining(stranger, address(9), 0));
    member.hosting.revision = COUNTER_MAX;
    let join = ClusterMessage::Join { member, settings: ComparedSettings::default() };
    let refused = at(&sim, 0).membership.stats().join_refused;
    for message in [ClusterMessage::Gossip(Arc::new(theirs)), join] {
        sim.command(NodeIndex::new(0), Command::Inject(stranger, message));
    }
    sim.run_for(SECOND);
    assert_eq!(at(&sim, 0).membership.stats().join_refused, refused + 1);
    sim.restart(NodeIndex::new(3));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2, 3]));
}

#[test]
fn invalid_messages_do_not_disturb_a_search() {
    let mut sim = calm(1, 3, 1, World::new(3));
    sim.run_for(SECOND);
    let stranger = node_at(9, 1, true);
    let member = Member::joining(stranger, address(9), 1);
    let gossip = Gossip::found(ClusterId(1), member).expect("within bounds");
    for message in nonsense(&gossip, stranger) {
        sim.command(NodeIndex::new(0), Command::Inject(stranger, message));
    }
    sim.run_for(SECOND);
    assert!(is_searching(&sim, 0));
    sim.restart(NodeIndex::new(1));
    sim.restart(NodeIndex::new(2));
    until(&mut sim, 10, |sim| agree(sim, &[0, 1, 2]));
}

#[test]
fn commands_about_unknown_members_are_ignored() {
    let mut sim = cluster_of(1, 3, World::new(3));
    let member = at(&sim, 1).me();
    let unknown = ReplicaId::new(0xdead);
    let wishes = [ClusterMessage::Leave(unknown), ClusterMessage::Down(unknown)];
    for message in wishes {
        sim.command(NodeIndex::new(0), Command::Inject(member, message));
    }
    for wish in [
        MembershipCommand::Leave(unknown),
        MembershipCommand::Down(unknown),
        MembershipCommand::Join(address(2)),
    ] {
        sim.command(NodeIndex::new(0), Command::User(wish));
    }
    sim.run_for(5 * SECOND);
    assert!(agree(&sim, &[0, 1, 2]));
}

#[test]
fn two_living_incarnations_of_a_peer_are_not_both_members() {
    // Place 3, and a copy of its data directory elsewhere: the copy is refused with the reason.
    let mut sim = cluster_of(1, 4, World::new(3));
    let mut copy = node_at(3, 1, true);
    copy.incarnation = ReplicaId::new(0xc0b1_0004);
    let member = Box::new(Member::joining(copy, address(3), 0));
    let join = ClusterMessage::Join { member, settings: ComparedSettings::default() };
    let refused = at(&sim, 0).membership.stats().join_refused;
    sim.command(NodeIndex::new(0), Command::Inject(copy, join));
    sim.run_for(20 * SECOND);
    assert_eq!(at(&sim, 0).membership.stats().join_refused, refused + 1);
    assert!(agree(&sim, &[0, 1, 2, 3]));
}

#[test]
fn node_stops_searching_only_if_configured() {
    let world = World::with(|_| ClusterConfig {
        seeds: addresses([0, 1, 2]),
        shutdown_after_unsuccessful_join: Some(Duration::from_secs(30)),
        ..ClusterConfig::default()
    });
    let mut sim = calm(1, 3, 1, world);
    sim.run_for(29 * SECOND);
    assert!(is_searching(&sim, 0));
    until(&mut sim, 3, |sim| at(sim, 0).over.is_some());
    let why = at(&sim, 0).over.map(|why| why.to_string());
    assert_eq!(why.as_deref(), Some("no cluster admitted this node within the configured time"));
}
