//! How fast the simulator runs the Replicator: printed, and held to the bar.

use std::fs;
use std::time::Duration;

use ostraca_ddata::sim::Seed;

use crate::plans;
use crate::run::run;

/// Time that this thread has spent on a core; `None` where the kernel does not say.
fn cpu_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

/// 5 replicas, 20 operations a second over 10 keys, every kind of fault, every tenth message
/// through the wire codec. Printed only: no test asserts a time.
#[test]
#[expect(clippy::print_stderr, reason = "the issue wants the speed printed")]
fn cluster_hours_per_cpu_minute() {
    let Some(before) = cpu_time() else { return };
    let mut simulated = Duration::ZERO;
    let seeds = 6;
    for seed in 0..seeds {
        match run(plans::speed(Seed::from(seed))) {
            Ok(report) => simulated += report.totals.simulated,
            Err(failure) => panic!("{failure}"),
        }
    }
    let spent = cpu_time().map_or(Duration::ZERO, |after| after.saturating_sub(before));
    let hours = simulated.as_secs_f64() / 3_600.0;
    let minutes = spent.as_secs_f64() / 60.0;
    eprintln!(
        "{seeds} seeds, {hours:.2} simulated cluster-hours in {minutes:.3} CPU-minutes: \
         {:.0} cluster-hours per CPU-minute (bar: 20; in the test profile)",
        hours / minutes
    );
}
