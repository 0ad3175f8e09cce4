//! Runs that once failed, by suite and seed: what was wrong, and is no more.

use ostraca_ddata::sim::Seed;

use crate::plans;
use crate::run::{Plan, run};

fn holds(plan: fn(Seed) -> Plan, seed: u64) {
    if let Err(failure) = run(plan(seed.into())) {
        panic!("{failure}");
    }
}

/// The replica that took term 19 promised term 20 before it had the promises it needed, and
/// counted itself for the recovery write all the same: fence 20 did not show what fence 19 had.
#[test]
fn a_replica_counts_for_no_write_below_its_own_promise() {
    holds(plans::coordinated, 32);
}
