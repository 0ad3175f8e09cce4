//! Which restarts of a peer prove that its former incarnation is dead.

use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochId, EpochSettings, LeaseSettings};

use super::*;
use crate::cluster::config::HostingLease;
use crate::cluster::gossip::tests::{id, joiner, node, state};
use crate::cluster::member::Status;

/// A in a cluster of A to C. `own` and `agreed` are the setting `restart-is-proof` of A and of the
/// configuration.
fn member_of_three(own: bool, agreed: bool) -> Membership {
    let lease = HostingLease { restart_is_proof: own, ..HostingLease::default() };
    let mut machine = Membership::new(Setup {
        me: node(1),
        address: joiner(1, 1).address,
        config: Cluster { lease, ..Cluster::default() },
        settings: Settings::default(),
        memory: Memory::default(),
        directory: None,
        seed: 1,
        canary: Canary::none(),
    });
    let inside = Inside::new(&mut machine.core, Now::default(), state("A B C"));
    machine.stage = Stage::Inside(Box::new(inside));
    let lease = LeaseSettings { restart_is_proof: agreed, ..LeaseSettings::default() };
    let settings = EpochSettings { lease, ..EpochSettings::default() };
    let members = (1..=3).map(ReplicaId::new).collect();
    let epoch = Epoch::founding(EpochId { generation: 1, number: 1 }, members, settings);
    let installed = Input::Installed(Arc::new(epoch.expect("well formed")));
    machine.handle(Now::default(), installed, &mut Outbox::new());
    machine
}

#[test]
fn configuration_decides_whether_a_restart_is_proof() {
    for (own, agreed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut machine = member_of_three(own, agreed);
        let again = NodeId { incarnation: ReplicaId::new(99), ..node(2) };
        let restart = Input::NewIncarnation { old: node(2), node: again, is_proof: true };
        machine.handle(Now::default(), restart, &mut Outbox::new());
        let gossip = machine.gossip().expect("A is in a cluster");
        let status = gossip.member(id('B')).map(|member| member.status);
        let expected = if agreed { Status::Down } else { Status::Up };
        assert_eq!(status, Some(expected), "own {own}, agreed {agreed}");
    }
}
