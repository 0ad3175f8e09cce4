//! The suites: each has a plan, a number of seeds, and marks of rare branches that its runs must
//! reach.

use ostraca_ddata::sim::{Seed, Totals, on_all_cores};

use crate::plans;
use crate::run::{Plan, run};

fn suite(test: &'static str, seeds: u64, plan: fn(Seed) -> Plan) -> Totals {
    let totals = on_all_cores(test, seeds, |seed| match run(plan(seed)) {
        Ok(report) => report.totals,
        Err(failure) => panic!("{failure}"),
    });
    told(test, &totals);
    let [inside, outside] = ["run.inside", "run.outside"].map(|name| totals.marks.count(name));
    let most = totals.runs < 2 || inside > 2 * outside;
    assert!(most, "only {inside} runs came to rest, {outside} lost a majority");
    totals
}

/// Prints the amount of simulated time.
#[expect(clippy::print_stderr, reason = "how much was simulated is part of the result")]
fn told(test: &str, totals: &Totals) {
    let hours = totals.simulated.as_secs_f64() / 3_600.0;
    eprintln!("{test}: {} seeds, {hours:.1} simulated cluster-hours", totals.runs);
}

#[test]
fn converges_under_faults() {
    let totals = suite("converges_under_faults", 250, plans::steady);
    totals.must_have_hit([
        "rule_r.lack",
        "repair.delta",
        "read.repair",
        "gossip.differed",
        "gossip.equal",
        "key.expired",
        "clock.impossible",
        "read.strong",
        "write.strong",
        "request.timeout",
    ]);
}

#[test]
fn configuration_changes() {
    let totals = suite("configuration_changes", 300, plans::changing);
    totals.must_have_hit([
        "configuration.changed",
        "fault.targeted",
        "epoch.abandoned",
        "epoch.refused",
        "peer.stranger",
        "request.refused",
        "run.inside",
        "run.outside",
    ]);
}

#[test]
fn coordinators() {
    let totals = suite("coordinators", 250, plans::coordinated);
    totals.must_have_hit([
        "decision.acked",
        "fence.returned",
        "coordinator.refused",
        "write.fenced",
    ]);
}

#[test]
fn coordinators_while_members_change() {
    let totals = suite("coordinators_while_members_change", 150, plans::contested);
    totals.must_have_hit(["decision.acked", "fence.returned", "configuration.changed"]);
}

#[test]
fn durable() {
    let totals = suite("durable", 150, plans::durable);
    totals.must_have_hit(["store.failed", "key.expired"]);
}

#[test]
fn large_and_eager() {
    let totals = suite("large_and_eager", 60, plans::large);
    totals.must_have_hit(["repair.full"]);
}
