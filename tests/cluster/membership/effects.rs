//! Settings that only change how often a node sends: each test runs with two values and counts
//! messages on virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ostraca::cluster::config::{ClusterConfig, HostingLease};
use ostraca::cluster::fault_injection::MembershipFaultInjection;
use ostraca::cluster::membership::Membership;
use ostraca::cluster::membership::port::{
    MembershipInput, MembershipOutput, MembershipSetup, Memory,
};
use ostraca::cluster::wire::ComparedSettings;
use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::machine::{Machine, Outbox};

use super::super::whole::{Meter, World, address, addresses, node_at};
use super::SECOND;
use super::going::cluster_of;

/// Nodes of a cluster that is counted.
const NODES: usize = 3;

/// The count of `of` after a minute in a cluster at rest whose nodes have these settings.
fn sent_in_a_minute(config: ClusterConfig, of: fn(&Meter) -> u64) -> u64 {
    let meter = Rc::new(RefCell::new(Meter::default()));
    let mut world =
        World::with(move |_| ClusterConfig { seeds: addresses(0..NODES), ..config.clone() });
    world.meter = Some(Rc::clone(&meter));
    let mut sim = cluster_of(1, NODES, world);
    sim.run_for(10 * SECOND); // the last change has been repaired
    meter.borrow_mut().reset();
    sim.run_for(60 * SECOND);
    let sent = meter.borrow();
    of(&sent)
}

/// Whether a count differs from the expected one by at most a quarter. Intervals vary randomly by
/// up to a fifth.
fn is_about(count: u64, expected: u64) -> bool {
    count.abs_diff(expected) <= expected / 4
}

#[test]
fn gossip_rounds_have_the_configured_interval() {
    for (seconds, rounds) in [(1, 60), (4, 15)] {
        let config =
            ClusterConfig { gossip_interval: SECOND * seconds, ..ClusterConfig::default() };
        let digests = sent_in_a_minute(config, |meter| meter.digests);
        let expected = NODES as u64 * rounds; // each round of a node sends one digest
        assert!(is_about(digests, expected), "{digests} digests, an interval of {seconds} s");
    }
}

#[test]
fn lease_heartbeats_have_the_configured_interval() {
    for (millis, beats) in [(500, 120), (2_000, 30)] {
        let lease = HostingLease {
            heartbeat_interval: Duration::from_millis(millis),
            ..HostingLease::default()
        };
        let config = ClusterConfig { lease, ..ClusterConfig::default() };
        let messages = sent_in_a_minute(config, |meter| meter.lease.messages);
        // A heartbeat goes to each other voter, and each answers it.
        let nodes = NODES as u64;
        let expected = nodes * beats * 2 * (nodes - 1);
        assert!(is_about(messages, expected), "{messages} messages, an interval of {millis} ms");
    }
}

/// Number of dials in ten minutes, by a node whose only seed does not answer.
fn dials(retry_unsuccessful_join_after: Duration) -> u64 {
    let mut machine = Membership::new(MembershipSetup {
        me: node_at(1, 1, true),
        address: address(1),
        config: ClusterConfig {
            seeds: addresses(0..1),
            retry_unsuccessful_join_after,
            ..ClusterConfig::default()
        },
        settings: ComparedSettings::default(),
        memory: Memory::default(),
        directory: None,
        seed: 1,
        fault_injection: MembershipFaultInjection::none(),
    });
    let end = Instant::default() + 600 * SECOND;
    let mut dials = 0;
    while let Some(mono) = machine.next_deadline().filter(|at| *at < end) {
        let mut out = Outbox::new();
        machine.handle(Now { mono, ..Now::default() }, MembershipInput::Tick, &mut out);
        let is_dial = |output: &MembershipOutput| matches!(output, MembershipOutput::Dial(_));
        dials += out.drain().filter(is_dial).count() as u64;
    }
    dials
}

/// The first pauses are shorter: they double from 100 ms.
#[test]
fn search_for_a_cluster_is_repeated_as_configured() {
    for (seconds, rounds) in [(1, 600), (10, 60)] {
        let dials = dials(SECOND * seconds);
        assert!(is_about(dials, rounds), "{dials} dials, a pause of {seconds} s");
    }
}
