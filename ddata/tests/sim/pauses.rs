//! Batches, pauses, slow nodes, and ticks right after a batch.

use std::time::Duration;

use ostraca_ddata::sim::{Fault, Faults, LaneRule, Simulation, SimulationSetup};

use crate::probe::{Order, Probe, Seen, WILD, millis, node, probes};

fn batching(seed: u64, faults: Faults) -> Simulation<Probe> {
    let lanes = vec![LaneRule::WILD, LaneRule::STREAM];
    let setup = SimulationSetup { faults, lanes, ..SimulationSetup::new(seed, 3) };
    Simulation::new(setup, (), |boot| Probe::new(&boot, true))
}

fn batches(sim: &Simulation<Probe>, index: usize) -> Vec<usize> {
    let size = |seen: Seen| match seen {
        Seen::BatchEnd(size) => Some(size),
        _ => None,
    };
    sim.process(node(index)).expect("up").saw().into_iter().filter_map(size).collect()
}

#[test]
fn inputs_during_a_pause_are_one_batch_after_it() {
    let mut sim = batching(1, Faults::none());
    sim.pause(node(1), Duration::from_secs(60));
    for number in 0..30 {
        sim.schedule_command(millis(number), node(0), Order::Send { to: 1, lane: WILD, number });
        sim.schedule_command(millis(number), node(2), Order::Send { to: 1, lane: WILD, number });
    }
    sim.run_for(Duration::from_millis(59_999));
    assert_eq!(sim.process(node(1)).expect("up").saw().len(), 1);
    assert!(!sim.is_quiet());
    sim.run_for(millis(1));
    assert_eq!(batches(&sim, 1), [60]);
    let seen = &sim.process(node(1)).expect("up").seen;
    assert!(
        seen[1].0.mono - seen[0].0.mono >= Duration::from_secs(59),
        "the clock runs on during a pause"
    );
}

#[test]
fn messages_of_one_instant_are_one_batch() {
    let grain = |grain| Faults { grain, ..Faults::none() };
    for (faults, expected) in [(grain(millis(10)), vec![9]), (grain(Duration::ZERO), vec![1; 9])] {
        let mut sim = batching(1, faults);
        for number in 0..9 {
            sim.command(node(0), Order::Send { to: 1, lane: WILD, number });
        }
        sim.run_for(millis(20));
        assert_eq!(batches(&sim, 1), expected);
    }
}

#[test]
fn long_queue_is_split_into_batches() {
    let mut sim = batching(1, Faults::none());
    sim.pause(node(1), Duration::from_secs(1));
    for number in 0..1_500 {
        sim.command(node(0), Order::Send { to: 1, lane: WILD, number });
    }
    sim.run_for(Duration::from_secs(1));
    assert_eq!(batches(&sim, 1), [1_024, 476]);
}

#[test]
fn deadline_during_a_pause_ticks_after_it() {
    let mut sim = probes(1, 2, Faults::none());
    sim.command(node(0), Order::TickAfter(millis(10)));
    sim.run_for(millis(1));
    sim.pause(node(0), Duration::from_secs(5));
    sim.run_for(Duration::from_secs(4));
    assert_eq!(sim.process(node(0)).expect("up").saw().len(), 1);
    sim.run_for(Duration::from_secs(1));
    assert_eq!(sim.process(node(0)).expect("up").saw()[1..], [Seen::Tick]);
    assert_eq!(sim.marks().count("ticked"), 1);
}

#[test]
fn heal_ends_a_pause_and_restarts_nothing() {
    let mut sim = probes(1, 3, Faults::none());
    sim.command(node(0), Order::TickAfter(millis(10)));
    sim.run_for(millis(1));
    sim.pause(node(0), Duration::from_secs(100));
    sim.crash(node(1));
    sim.run_for(Duration::from_secs(1));
    sim.heal();
    sim.run_for(millis(1));
    assert_eq!(sim.process(node(0)).expect("up").saw()[1..], [Seen::Tick]);
    assert!(sim.process(node(1)).is_none());
    sim.restart_all();
    assert_eq!(sim.view().incarnation(node(1)), 2);
    assert_eq!(sim.view().incarnation(node(2)), 1);
}

#[test]
fn slow_node_needs_time_for_every_input() {
    let mut sim = probes(1, 2, Faults::none());
    let per_input = millis(100);
    sim.fault(&Fault::Slow { node: node(1), per_input, span: None });
    for number in 0..5 {
        sim.schedule_command(
            millis(number * 10),
            node(0),
            Order::Send { to: 1, lane: WILD, number },
        );
    }
    sim.run_for(millis(90));
    assert_eq!(sim.process(node(1)).expect("up").numbers().len(), 1);
    sim.run_for(millis(20));
    assert_eq!(sim.process(node(1)).expect("up").numbers().len(), 5);
}

#[test]
fn nodes_may_join_later() {
    let setup =
        SimulationSetup { faults: Faults::none(), started: Some(2), ..SimulationSetup::new(1, 4) };
    let mut sim: Simulation<Probe> = Simulation::new(setup, (), |boot| Probe::new(&boot, false));
    assert_eq!(sim.processes().count(), 2);
    sim.restart_all(); // nodes that were never started have not crashed
    assert_eq!(sim.processes().count(), 2);
    sim.restart(node(3));
    assert_eq!(sim.process(node(3)).expect("up").saw().len(), 1);
}
