//! The clocks of a process: skew, drift and jumps, within the configured bounds.

use std::time::Duration;

use ostraca_ddata::sim::{Fault, Faults};

use crate::probe::{Order, Seen, millis, node, probes};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn wall_clock_skew_is_within_the_bound() {
    let faults = Faults { wall_skew: HOUR, ..Faults::none() };
    let mut largest = 0;
    for seed in 0..50 {
        let sim = probes(seed, 5, faults.clone());
        for index in 0..5 {
            let wall = sim.view().clock(node(index)).wall.as_millis();
            let off = wall.abs_diff(1_700_000_000_000);
            assert!(off <= 3_600_000, "seed {seed}: {off} ms");
            largest = off.max(largest);
        }
    }
    assert!(largest > 1_800_000, "the largest skew is only {largest} ms");
}

#[test]
fn monotonic_clocks_start_anywhere_and_drift_within_bounds() {
    let faults = Faults { rate_ppm: 10_000, ..Faults::none() };
    let (mut fastest, mut slowest) = (i64::MIN, i64::MAX);
    for seed in 0..50 {
        let mut sim = probes(seed, 2, faults.clone());
        let before = [0, 1].map(|index| sim.view().clock(node(index)).mono);
        assert_ne!(before[0], before[1]);
        sim.run_for(HOUR);
        for (index, before) in before.into_iter().enumerate() {
            let passed = sim.view().clock(node(index)).mono - before;
            let ahead = passed.as_millis() as i64 - HOUR.as_millis() as i64;
            assert!(ahead.abs() <= 36_001, "seed {seed}: {ahead} ms in an hour");
            (fastest, slowest) = (fastest.max(ahead), slowest.min(ahead));
        }
    }
    assert!(fastest > 18_000 && slowest < -18_000, "{slowest}..{fastest} ms");
}

#[test]
fn deadlines_follow_the_nodes_own_clock() {
    let mut sim = probes(1, 2, Faults::none());
    sim.fault(&Fault::Drift { node: node(0), ppm: 10_000 });
    sim.fault(&Fault::Drift { node: node(1), ppm: -10_000 });
    for index in 0..2 {
        sim.command(node(index), Order::TickAfter(Duration::from_secs(100)));
    }
    let start = sim.now();
    let ticked = |index| {
        move |sim: &ostraca_ddata::sim::Simulation<_>| {
            let probe: &crate::probe::Probe = sim.process(node(index)).expect("up");
            probe.saw().contains(&Seen::Tick)
        }
    };
    sim.run_until(Duration::from_secs(200), ticked(0));
    let fast = sim.now() - start;
    sim.run_until(Duration::from_secs(200), ticked(1));
    let slow = sim.now() - start;
    assert!(fast.abs_diff(Duration::from_secs(100).mul_f64(1.0 / 1.01)) < millis(1), "{fast:?}");
    assert!(slow.abs_diff(Duration::from_secs(100).mul_f64(1.0 / 0.99)) < millis(1), "{slow:?}");
}

#[test]
fn changed_rate_moves_a_pending_deadline() {
    let mut sim = probes(1, 1, Faults::none());
    sim.command(node(0), Order::TickAfter(Duration::from_secs(100)));
    sim.run_for(Duration::from_secs(1));
    sim.fault(&Fault::Drift { node: node(0), ppm: 10_000 });
    sim.run_for(Duration::from_millis(98_500));
    let seen = &sim.process(node(0)).expect("up").seen;
    assert_eq!(seen[1].1, Seen::Tick);
    let late = (seen[1].0.mono - seen[0].0.mono).saturating_sub(Duration::from_secs(100));
    assert!(late < Duration::from_micros(1), "{late:?}");
}

#[test]
fn jump_moves_only_the_wall_clock() {
    let mut sim = probes(1, 2, Faults::none());
    let before = sim.view().clock(node(0));
    sim.fault(&Fault::Jump { node: node(0), millis: -3_600_000 });
    let after = sim.view().clock(node(0));
    assert_eq!(after.mono, before.mono);
    assert_eq!(before.wall.as_millis() - after.wall.as_millis(), 3_600_000);
}
