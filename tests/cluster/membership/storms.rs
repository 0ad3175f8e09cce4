//! Costs of changes that many nodes learn at the same time.

use ostraca::cluster::config::ClusterConfig;
use ostraca::cluster::gossip::Gossip;
use ostraca::cluster::member::Member;
use ostraca::cluster::membership::Membership;
use ostraca::cluster::membership::port::{
    MembershipCommand, MembershipInput, MembershipOutput, MembershipSetup, Memory,
};
use ostraca::cluster::wire::{ClusterMessage, ComparedSettings, InitAnswer};
use ostraca_ddata::clock::{Instant, Now, WallTime};
use ostraca_ddata::machine::{Machine, Outbox};
use ostraca_ddata::sim::{Fault, LinkSet, NodeIndex};

use super::super::whole::{Command, World, address, addresses, node_at};
use super::{SECOND, Sim, agree, at, calm, until};

/// Total number of messages and of whole states that membership has sent.
fn sent(sim: &Sim) -> (u64, u64) {
    let stats = sim.processes().map(|(_, node)| node.membership.stats());
    stats.fold((0, 0), |(messages, states), of| (messages + of.sent, states + of.states_sent))
}

/// All connections of a node break at once, and it crashes, as for a killed process.
fn kill(sim: &mut Sim, place: usize, nodes: usize) {
    let node = NodeIndex::new(place);
    let others: Vec<_> = (0..nodes).map(NodeIndex::new).filter(|other| *other != node).collect();
    let out = LinkSet { from: vec![node], to: others.clone() };
    sim.fault(&Fault::Break { links: vec![out, LinkSet { from: others, to: vec![node] }] });
    sim.crash(node);
}

/// Heartbeats are 10 per second; a killed node is removed within 6 s. (It cost 3,000 messages per
/// node when all connected nodes accused it and every merge of two accusations was sent to all.)
#[test]
fn killed_node_costs_each_of_32_nodes_few_messages() {
    let nodes = 32;
    let mut sim = calm(1, nodes, nodes, World::new(3));
    let all: Vec<usize> = (0..nodes).collect();
    until(&mut sim, 20, |sim| agree(sim, &all));
    sim.run_for(20 * SECOND);
    let before = sent(&sim);
    sim.run_for(8 * SECOND);
    let calm = sent(&sim);
    kill(&mut sim, 7, nodes);
    let rest: Vec<usize> = (0..nodes).filter(|place| *place != 7).collect();
    until(&mut sim, 6, |sim| agree(sim, &rest));
    sim.run_for(2 * SECOND);
    let after = sent(&sim);
    let idle = (calm.0 - before.0) / nodes as u64;
    let (messages, states) = (after.0.saturating_sub(calm.0) / 31, after.1.saturating_sub(calm.1));
    assert!(messages < idle + 150, "{messages} messages each, {idle} without events");
    assert!(states < 64, "{states} whole states in all");
    let accusers = rest.iter().map(|place| at(&sim, *place).membership.stats().accusations);
    assert!(accusers.sum::<u64>() <= 8, "only observers on the ring and a few others accuse");
}

/// Each half has a change of its own, and a node that merges them sends the result. (Two nodes with
/// the same merge once left that to each other, and all learned of it by repair only, at 100 ms per
/// doubling.)
#[test]
fn merge_of_two_halves_is_sent_to_all_by_few() {
    let nodes = 60;
    for seed in 0..3 {
        let mut sim = calm(seed, nodes, nodes, World::new(3));
        let all: Vec<usize> = (0..nodes).collect();
        until(&mut sim, 20, |sim| agree(sim, &all));
        let (one, other) = all.split_at(nodes / 2);
        sim.partition([one, other]);
        let draining = |sim: &Sim, place: usize, of: usize| {
            let id = at(sim, of).me().incarnation;
            let gossip = at(sim, place).membership.gossip().expect("a member");
            gossip.member(id).is_some_and(|member| member.hosting.draining)
        };
        for place in [0, nodes - 1] {
            let wish = MembershipCommand::Host { entity_types: [].into(), draining: true };
            sim.command(NodeIndex::new(place), Command::User(wish));
        }
        until(&mut sim, 1, |sim| {
            let tells = |places: &[usize], of| places.iter().all(|p| draining(sim, *p, of));
            tells(one, 0) && tells(other, nodes - 1)
        });
        sim.heal();
        let knows = |sim: &Sim, p: &usize| draining(sim, *p, 0) && draining(sim, *p, nodes - 1);
        until(&mut sim, 3, |sim| all.iter().any(|place| knows(sim, place)));
        let before = sent(&sim);
        sim.run_for(SECOND / 4);
        let deaf = all.iter().filter(|place| !knows(&sim, place)).count();
        assert_eq!(deaf, 0, "seed {seed}: nodes without both changes");
        let each = (sent(&sim).0 - before.0) / nodes as u64;
        assert!(each < 40, "seed {seed}: {each} messages each");
    }
}

fn now(millis: u64) -> Now {
    Now { mono: Instant::from_nanos(millis * 1_000_000), wall: WallTime::from_millis(millis) }
}

/// More newcomers than a node remembers answers ask a seed before the other seeds do.
#[test]
fn seed_asked_by_many_newcomers_founds_with_the_seeds() {
    let seeds = addresses(0..3);
    let config = ClusterConfig { seeds: seeds.clone(), ..ClusterConfig::default() };
    let mut seed = Membership::new(MembershipSetup {
        me: node_at(0, 1, true),
        address: address(0),
        config,
        settings: ComparedSettings::default(),
        memory: Memory::default(),
        directory: None,
        seed: 1,
        fault_injection: ostraca::cluster::fault_injection::MembershipFaultInjection::none(),
    });
    let mut out = Outbox::new();
    let mut asked = Vec::new();
    // Newcomers first, in the order of their places; the other two seeds last.
    let places = (10..1_010).chain([1, 2]);
    for place in places {
        let (from, addresses) = (node_at(place, 1, true), vec![address(place)]);
        let up = MembershipInput::Up { node: from, addresses: addresses.clone(), cluster: None };
        seed.handle(now(1), up, &mut out);
        let init = ClusterMessage::InitJoin {
            member: Box::new(Member::joining(from, address(place), 0)),
            settings: ComparedSettings::default(),
            seeds: seeds.iter().cloned().collect(),
            cluster: None,
        };
        let searching = ClusterMessage::InitJoinAnswer {
            what: InitAnswer::Searching,
            settings: ComparedSettings::default(),
        };
        for message in [init, searching] {
            let input =
                MembershipInput::Message { from, message, waited: std::time::Duration::ZERO };
            seed.handle(now(1), input, &mut out);
        }
    }
    for millis in (1..5_000).step_by(50) {
        seed.handle(now(millis), MembershipInput::Tick, &mut out);
    }
    for output in out.drain() {
        if let MembershipOutput::Send { to, message: ClusterMessage::FoundingPrepare(_) } = output {
            asked.push(to);
        }
    }
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, [node_at(1, 1, true), node_at(2, 1, true)]);
    assert!(seed.gossip().is_none_or(Gossip::is_empty), "it cannot found alone");
}
