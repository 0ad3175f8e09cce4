//! A seed determines a run: the same events in the same order, in every build.

use crate::plans;
use crate::run::{Plan, run};

fn hash(plan: Plan) -> u64 {
    match run(plan) {
        Ok(report) => report.hash,
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn same_seed_gives_same_events() {
    for seed in 0..4 {
        assert_eq!(hash(plans::coordinated(seed.into())), hash(plans::coordinated(seed.into())));
        assert_eq!(hash(plans::durable(seed.into())), hash(plans::durable(seed.into())));
    }
}

/// Pinned, so that all builds agree. A change of the protocol, of the simulator's draws or of a
/// plan changes the hashes: check that the change is intended, then pin the new ones.
#[test]
fn pinned_runs_have_pinned_hashes() {
    let hashes = [
        hash(plans::steady(1.into())),
        hash(plans::coordinated(2.into())),
        hash(plans::large(3.into())),
    ];
    assert_eq!(
        hashes.map(|hash| format!("{hash:016x}")),
        ["2add0e923e1b70b1", "5e4730b43a632c9f", "97093308f8e99449"]
    );
}
