//! Rules of membership that are left out on purpose: the watch must notice.

use ostraca::cluster::bug::{Bug, Canary};
use ostraca_ddata::sim::NodeIndex;

use super::super::whole::World;
use super::{SECOND, calm};

/// Two seeds and three more nodes, the younger of the seeds crashes. Why the run failed.
fn run(bug: Bug) -> Option<String> {
    let world = World { canary: Canary::with(bug), ..World::new(3) };
    let mut sim = calm(1, 5, 5, world);
    let grown = sim.try_run_for(10 * SECOND);
    let failed = grown.and_then(|()| {
        sim.crash(NodeIndex::new(1));
        sim.try_run_for(40 * SECOND)
    });
    failed.err().map(|failure| failure.reason.clone())
}

#[test]
fn a_leader_that_takes_members_up_without_a_configuration_is_caught() {
    let reason = run(Bug::UpWithoutConfiguration).unwrap_or_default();
    assert!(reason.contains("in no configuration"), "{reason}");
}

#[test]
fn a_verdict_that_removes_members_without_a_configuration_is_caught() {
    let reason = run(Bug::RemovedByVerdict).unwrap_or_default();
    assert!(reason.contains("removed, which is in the newest"), "{reason}");
}
