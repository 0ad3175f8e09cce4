//! Seeds of runs that once failed, with the fault that they showed.

use ostraca_ddata::sim::Seed;

use crate::plans;
use crate::run::{Plan, run};

fn holds(plan: fn(Seed) -> Plan, seed: u64) {
    if let Err(failure) = run(plan(seed.into())) {
        panic!("{failure}");
    }
}

/// The replica that took term 19 promised term 20 before it had collected its promises, and still
/// counted itself for the recovery write: the fencing read of term 20 did not show what that of
/// term 19 had shown.
#[test]
fn replica_counts_for_no_write_below_its_promise() {
    holds(plans::coordinated, 32);
}

/// A slow disk was 8 s behind when the last fault ended. The suite took the cluster to be at rest,
/// but its next write could not be durable within 5 s. The suite was wrong and now waits for the
/// disks too.
#[test]
fn slow_disk_may_answer_after_the_last_fault() {
    holds(plans::durable, 63_317_374_239_910);
}

/// Both voters decided a configuration with a single other member and crashed. Only a joiner knew
/// of the decision, and a node that is in no configuration sent no messages: the member never
/// learned of it.
#[test]
fn configuration_known_to_a_joiner_only_reaches_members() {
    holds(plans::contested, 53_245_328_238_394);
}

/// A removal had no effect because of an earlier removal that no majority held. It was batched with
/// another change and acknowledged by the replicas that held only that change, so that a later
/// majority read showed the removed element
/// (docs/protocol/replication.md#leaning-changes-await-everything).
#[test]
fn removal_without_effect_waits_for_its_whole_context() {
    holds(plans::coordinated, 105_321_867_388_244);
}

/// All three members had been told to leave, but a change without remaining members is refused. The
/// suite was wrong: the last member now stays, as membership demands.
#[test]
fn the_last_members_are_not_all_told_to_leave() {
    holds(plans::changing, 32_306_959_646_787);
}
