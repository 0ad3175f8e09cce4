//! Cuts, clogs, breaks and delays affect exactly the links that they name.

use std::time::Duration;

use ostraca_ddata::sim::{Direction, Fault, Faults, LinkSet, Simulation};

use crate::probe::{Order, STREAM, Seen, WILD, millis, node, probes, working_links};

fn links(from: &[usize], to: &[usize]) -> Vec<LinkSet> {
    let nodes = |nodes: &[usize]| nodes.iter().copied().map(node).collect();
    vec![LinkSet { from: nodes(from), to: nodes(to) }]
}

#[test]
fn without_faults_every_link_works() {
    let mut sim = probes(1, 3, Faults::none());
    assert_eq!(working_links(&mut sim), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]);
}

#[test]
fn partition_cuts_both_directions_until_healed() {
    let mut sim = probes(1, 4, Faults::none());
    sim.partition([&[0, 1], &[2]]);
    // Node 3 is in no group, so it is a bridge.
    let expected = [(0, 1), (0, 3), (1, 0), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)];
    assert_eq!(working_links(&mut sim), expected);
    sim.heal();
    assert_eq!(working_links(&mut sim).len(), 12);
}

#[test]
fn one_way_cut_affects_one_direction_and_ends_by_itself() {
    let mut sim = probes(1, 3, Faults::none());
    sim.fault(&Fault::Cut { links: links(&[0], &[1, 2]), span: Some(millis(40)) });
    assert_eq!(working_links(&mut sim), [(1, 0), (1, 2), (2, 0), (2, 1)]);
    assert_eq!(working_links(&mut sim).len(), 6);
}

#[test]
fn clog_holds_messages_and_delivers_them_in_order() {
    let mut sim = probes(1, 2, Faults::none());
    sim.fault(&Fault::Clog { links: links(&[0], &[1]), span: Some(millis(500)) });
    for number in 0..20 {
        sim.command(node(0), Order::Send { to: 1, lane: STREAM, number });
    }
    sim.run_for(millis(499));
    assert_eq!(sim.process(node(1)).expect("up").numbers(), []);
    assert_eq!((sim.in_flight(), sim.in_flight_on(STREAM), sim.in_flight_on(WILD)), (20, 20, 0));
    sim.run_until(millis(50), Simulation::is_quiet);
    assert_eq!(sim.process(node(1)).expect("up").numbers(), (0..20).collect::<Vec<_>>());
}

#[test]
fn broken_link_loses_messages_in_flight_and_tells_both_ends() {
    let mut sim = probes(1, 3, Faults::none());
    sim.command(node(0), Order::Send { to: 1, lane: STREAM, number: 7 });
    sim.run_for(Duration::from_nanos(1));
    sim.fault(&Fault::Break { links: links(&[0], &[1]) });
    sim.run_for(Duration::from_secs(3));
    let sender = sim.process(node(0)).expect("up").saw();
    let receiver = sim.process(node(1)).expect("up").saw();
    assert_eq!(
        sender[1..],
        [Seen::Broken(1, Direction::Outgoing), Seen::Up(1, Direction::Outgoing)]
    );
    assert_eq!(
        receiver[1..],
        [Seen::Broken(0, Direction::Incoming), Seen::Up(0, Direction::Incoming)]
    );
    assert_eq!(sim.process(node(2)).expect("up").saw().len(), 1);
    assert_eq!(working_links(&mut sim).len(), 6);
}

#[test]
fn loss_on_a_reliable_lane_breaks_the_link() {
    let mut sim = probes(3, 2, Faults::none());
    sim.fault(&Fault::isolate(node(1), 2, millis(100)));
    sim.command(node(0), Order::Send { to: 1, lane: STREAM, number: 1 });
    sim.run_for(Duration::from_secs(30));
    sim.command(node(0), Order::Send { to: 1, lane: STREAM, number: 2 });
    sim.run_for(millis(50));
    let receiver = sim.process(node(1)).expect("up").saw();
    let told = [Seen::Broken(0, Direction::Incoming), Seen::Up(0, Direction::Incoming)];
    assert_eq!(receiver[1..3], told);
    assert_eq!(receiver[3..], [Seen::Message { from: 0, number: 2 }]);
}

#[test]
fn delay_affects_one_direction() {
    let mut sim = probes(1, 2, Faults::none());
    let (by, span) = (millis(200), None);
    sim.fault(&Fault::Delay { links: links(&[0], &[1]), by, span });
    assert_eq!(working_links(&mut sim), [(1, 0)]);
    sim.run_until(millis(200), Simulation::is_quiet);
    assert_eq!(sim.process(node(1)).expect("up").numbers().len(), 1);
}

#[test]
fn message_to_itself_always_arrives() {
    let mut sim = probes(1, 2, Faults::all());
    sim.fault(&Fault::isolate(node(0), 2, Duration::from_secs(10)));
    for number in 0..50 {
        sim.command(node(0), Order::Send { to: 0, lane: STREAM, number });
    }
    sim.run_for(millis(20));
    assert_eq!(sim.process(node(0)).expect("up").numbers(), (0..50).collect::<Vec<_>>());
}

#[test]
fn restart_breaks_links_even_after_an_unnoticed_crash() {
    for crash_is_told in [0.0, 1.0] {
        let mut sim = probes(1, 3, Faults { crash_is_told, ..Faults::none() });
        sim.command(node(0), Order::Send { to: 1, lane: STREAM, number: 1 });
        sim.run_for(millis(20));
        sim.crash(node(1));
        sim.run_for(millis(100));
        let peer = sim.process(node(0)).expect("up").saw();
        assert_eq!(peer.len(), if crash_is_told > 0.0 { 2 } else { 1 }, "{peer:?}");
        sim.restart(node(1));
        sim.run_for(Duration::from_secs(2));
        let peer = sim.process(node(0)).expect("up").saw();
        let told = [Seen::Broken(1, Direction::Outgoing), Seen::Up(1, Direction::Outgoing)];
        assert_eq!(peer[1..], told);
        let restarted = sim.process(node(1)).expect("up").saw();
        assert_eq!(restarted[1..], [Seen::Up(0, Direction::Incoming)]);
        assert_eq!(sim.process(node(2)).expect("up").saw().len(), 1);
    }
}

#[test]
fn only_lanes_that_cross_restarts_deliver_old_messages() {
    let mut sim = probes(1, 2, Faults::none());
    sim.command(node(0), Order::Send { to: 1, lane: STREAM, number: 1 });
    sim.command(node(0), Order::Send { to: 1, lane: WILD, number: 2 });
    sim.run_for(Duration::from_nanos(1));
    sim.crash(node(1));
    sim.restart(node(1));
    sim.run_for(millis(20));
    assert_eq!(sim.process(node(1)).expect("up").numbers(), [2]);
}

/// Regression: a message that found the inbox full was lost silently, even on a reliable lane.
#[test]
fn full_inbox_breaks_the_link_of_a_reliable_lane() {
    const INBOX_MAX: u64 = 100_000; // as in sim/world.rs
    for (lane, breaks) in [(STREAM, 1), (WILD, 0)] {
        let mut sim = probes(1, 2, Faults::none());
        sim.pause(node(1), Duration::from_secs(60));
        for number in 0..=INBOX_MAX {
            sim.command(node(0), Order::Send { to: 1, lane, number });
        }
        sim.run_for(Duration::from_secs(30));
        let sender = sim.process(node(0)).expect("up").saw();
        let broken = Seen::Broken(1, Direction::Outgoing);
        assert_eq!(sender.iter().filter(|seen| **seen == broken).count(), breaks);
        assert_eq!(sim.totals().lost, 1);
    }
}
