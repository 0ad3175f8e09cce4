//! Prints how fast the simulator runs the Replicator, with and without the checks.

use std::fs;
use std::time::Duration;

use ostraca_ddata::sim::Seed;

use crate::plans;
use crate::run::{Plan, run};

/// CPU time of this thread; `None` where the kernel does not report it.
fn cpu_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// Simulated hours, CPU-minutes and event hashes of some runs.
struct Spent {
    hours: f64,
    minutes: f64,
    hashes: Vec<u64>,
}

fn spent(seeds: u64, judged: bool) -> Option<Spent> {
    let before = cpu_time()?;
    let (mut simulated, mut hashes) = (Duration::ZERO, Vec::new());
    for seed in 0..seeds {
        match run(Plan { judged, ..plans::speed(Seed::from(seed)) }) {
            Ok(report) => {
                simulated += report.totals.simulated;
                hashes.push(report.hash);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    let spent = cpu_time()?.saturating_sub(before);
    let (hours, minutes) = (simulated.as_secs_f64() / 3_600.0, spent.as_secs_f64() / 60.0);
    Some(Spent { hours, minutes, hashes })
}

/// 5 replicas, 20 operations a second over 10 keys, every kind of fault, every tenth message
/// through the wire codec; with history and oracle, and the same runs without. The speed is printed
/// only, because a time depends on the machine.
#[test]
#[expect(clippy::print_stderr, reason = "the speed is the result")]
fn cluster_hours_per_cpu_minute() {
    let seeds = 6;
    let (Some(suite), Some(alone)) = (spent(seeds, true), spent(seeds, false)) else { return };
    assert_eq!(suite.hashes, alone.hashes, "the observer changed the runs");
    for (what, spent) in [("with history and oracle", suite), ("the simulator alone", alone)] {
        let Spent { hours, minutes, .. } = spent;
        eprintln!(
            "{what}: {seeds} seeds, {hours:.2} simulated cluster-hours in {minutes:.3} \
             CPU-minutes: {:.1} cluster-hours per CPU-minute (bar: 20)",
            hours / minutes
        );
    }
}
