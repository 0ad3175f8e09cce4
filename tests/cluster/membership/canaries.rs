//! Fault injections of membership: the watch must detect each of them.

use ostraca::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};
use ostraca::cluster::membership::port::MembershipCommand;
use ostraca_ddata::sim::NodeIndex;

use super::super::whole::{Command, World};
use super::{SECOND, calm};

/// Starts two seeds and three more nodes, and crashes the younger seed. Returns the reason of the
/// failure.
fn run(bug: MembershipFault) -> Option<String> {
    let world = World { fault_injection: MembershipFaultInjection::with(bug), ..World::new(3) };
    let mut sim = calm(1, 5, 5, world);
    let grown = sim.try_run_for(10 * SECOND);
    let failed = grown.and_then(|()| {
        sim.crash(NodeIndex::new(1));
        sim.try_run_for(40 * SECOND)
    });
    failed.err().map(|failure| failure.reason.clone())
}

/// Four of seven nodes fail, and three continue by force: the watch also checks the following
/// changes.
#[test]
fn fault_removed_by_verdict_is_detected_after_a_recovery() {
    let fault_injection = MembershipFaultInjection::with(MembershipFault::RemovedByVerdict);
    let world = World { fault_injection, waits: true, ..World::new(3) };
    let mut sim = calm(1, 7, 7, world);
    sim.run_for(10 * SECOND);
    (3..7).for_each(|place| sim.crash(NodeIndex::new(place)));
    sim.run_for(30 * SECOND);
    sim.command(NodeIndex::new(0), Command::User(MembershipCommand::Recover));
    sim.run_for(10 * SECOND);
    let sizes = (0..3).map(|place| {
        let epoch = sim.process(NodeIndex::new(place)).and_then(|node| node.epoch());
        epoch.map(|epoch| (epoch.is_forced(), epoch.members().len()))
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [Some((true, 3)); 3]);
    sim.crash(NodeIndex::new(1));
    let failed = sim.try_run_for(40 * SECOND).err().map(|failure| failure.reason.clone());
    assert!(failed.is_some_and(|reason| reason.contains("removed, but it is in the newest")));
}

#[test]
fn fault_up_without_configuration_is_detected() {
    let reason = run(MembershipFault::UpWithoutConfiguration).unwrap_or_default();
    assert!(reason.contains("in no configuration"), "{reason}");
}

#[test]
fn fault_removed_by_verdict_is_detected() {
    let reason = run(MembershipFault::RemovedByVerdict).unwrap_or_default();
    assert!(reason.contains("removed, but it is in the newest"), "{reason}");
}
