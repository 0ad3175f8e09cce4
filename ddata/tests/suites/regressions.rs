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

/// A disk that had been slow was 8 s behind when the last fault was over; the cluster was at rest
/// all the same, and its next write could not be safe within 5 s. (The suite's mistake: it now
/// waits for the disks too.)
#[test]
fn a_disk_that_was_slow_answers_late_after_the_last_fault() {
    holds(plans::durable, 63_317_374_239_910);
}

/// Both voters decided a configuration of one other and crashed. Only a joiner had heard of it, and
/// whoever is in no configuration told nobody anything: its one member never learned of it.
#[test]
fn a_configuration_that_only_a_joiner_knows_reaches_its_members() {
    holds(plans::contested, 53_245_328_238_394);
}

/// A removal found its work done, by one that no majority had, and was joined with a change of the same
/// batch: it was acknowledged by who held that change, and a majority read did not show it. (Found in an hour
/// of fresh seeds.)
#[test]
fn what_changes_nothing_waits_for_more_than_the_change_beside_it() {
    holds(plans::coordinated, 105_321_867_388_244);
}

/// All three members had been told to leave, and a change that leaves nobody is refused. (The suite's
/// mistake: the last one now stays, as membership keeps it.)
#[test]
fn the_last_members_are_not_all_told_to_leave() {
    holds(plans::changing, 32_306_959_646_787);
}
