//! Traces that random seeds reach too rarely. Each is derived from a rule of
//! docs/protocol/configurations.md, violates it with a planted fault, and is safe without the fault.

use std::time::Duration;

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{EpochInput, EpochMessage as M, MembershipChange};

use crate::check::{HOSTILE, Violation};
use crate::forged::attack;
use crate::world::{Body, Packet, World};

fn joining<const N: usize>(ids: [u64; N]) -> MembershipChange {
    MembershipChange { join: ids.map(ReplicaId::new).to_vec(), ..MembershipChange::default() }
}

impl World {
    /// Delivers packets that satisfy `what` in order, with all that follow from them; the rest
    /// waits.
    fn flow(&mut self, what: impl Fn(&Packet) -> bool) {
        while let Some(at) = self.net.iter().position(&what) {
            let packet = self.net.remove(at);
            self.deliver(packet);
            self.check.reads(&self.nodes);
        }
    }

    /// Delivers packets between these nodes that satisfy `what`.
    fn flow_among(&mut self, nodes: &[u64], what: impl Fn(&Packet) -> bool) {
        self.flow(|p| nodes.contains(&p.from) && nodes.contains(&p.to) && what(p));
    }

    /// Advances all clocks by ten seconds, longer than every rate limit.
    fn pass_time(&mut self) {
        for node in self.nodes.values_mut() {
            node.now = node.now + Duration::from_secs(10);
        }
    }

    fn lose_everything(&mut self) {
        self.net.clear();
    }

    /// Advances the node's clock until it begins another ballot.
    fn lose_patience(&mut self, id: u64) {
        let before = self.nodes[&id].epochs.stats().attempts;
        while self.nodes[&id].epochs.stats().attempts == before {
            self.tick(id);
        }
    }

    fn found(&mut self) -> Option<Violation> {
        self.check.reads(&self.nodes);
        self.check.found
    }

    fn newest(&self, id: u64) -> u64 {
        self.nodes[&id].epochs.id().map_or(0, |id| id.number)
    }
}

/// 2 is unreachable while 1, which decides alone as the tiebreaker of two, takes in 3. Then 3 sends
/// to 2 first. No other node has a reason to send to 2.
#[test]
fn hint_of_a_newcomer_brings_the_newest_configuration() {
    let mut world = World::new(2, 1, 1, FaultInjection::none());
    world.propose(1, joining([3]));
    world.flow_among(&[1, 3], is_config);
    world.lose_everything();
    assert_eq!([1, 2, 3].map(|id| world.newest(id)), [2, 1, 2]);
    world.pass_time(); // longer than every rate limit
    world.push(3, 2);
    world.flow_among(&[2, 3], |_| true);
    assert_eq!((world.newest(2), world.nodes[&2].epochs.stats().declined), (1, 0));
    world.flow(|_| true);
    assert_eq!(world.newest(2), 2, "1 has answered the hint probe");
}

/// The same, and 2 no longer reaches 1: its failure detector says so, or no voter answers its hint
/// probe because the detector relies on 3.
#[test]
fn member_that_lost_all_others_learns_from_a_newcomer() {
    for is_detected in [true, false] {
        let mut world = World::new(2, 1, 1, FaultInjection::none());
        world.propose(1, joining([3]));
        world.flow_among(&[1, 3], is_config);
        world.lose_everything();
        if is_detected {
            world.cut_off(2, &[1]);
        }
        world.pass_time();
        world.push(3, 2);
        world.flow_among(&[2, 3], |_| true);
        world.lose_everything();
        if !is_detected {
            assert_eq!(world.newest(2), 1);
            world.tick(2); // no voter has answered its probe
            world.flow_among(&[2, 3], |_| true);
        }
        assert_eq!((world.newest(2), world.nodes[&2].epochs.is_member()), (2, true));
    }
    // A hostile client is still not believed.
    let mut world = World::new(2, 1, 1, FaultInjection::none());
    world.cut_off(2, &[1]);
    let first = world.nodes[&2].epochs.installed().unwrap().clone();
    for message in attack(HOSTILE, 2, &first) {
        world.input(2, EpochInput::Message { from: ReplicaId::new(HOSTILE), message });
    }
    assert_eq!((world.newest(2), world.nodes[&2].epochs.stats().declined), (1, 3));
}

/// 1 and 2 are replaced by 4 and 5, and die before 3 hears of it.
#[test]
fn cut_off_member_learns_from_nodes_let_in_since() {
    let mut world = World::new(3, 2, 1, FaultInjection::none());
    let leave = vec![ReplicaId::new(1), ReplicaId::new(2)];
    world.propose(1, MembershipChange { leave, ..joining([4, 5]) });
    world.flow_among(&[1, 2, 4, 5], is_config);
    world.lose_everything();
    assert_eq!([1, 2, 3, 4].map(|id| world.newest(id)), [2, 2, 1, 2]);
    world.push(4, 3);
    world.push(3, 4);
    world.flow_among(&[3, 4], |_| true);
    assert_eq!(world.newest(3), 1, "it reaches a quorum of its own configuration");
    world.crash(1);
    world.crash(2);
    world.pass_time();
    world.push(3, 4);
    world.flow_among(&[3, 4], |_| true);
    assert_eq!((world.newest(3), world.nodes[&3].epochs.is_member()), (2, true));
}

fn is_config(packet: &Packet) -> bool {
    matches!(packet.body, Body::Epoch(_) | Body::PullRequest(_) | Body::PullAnswer(..))
}

fn is_client(packet: &Packet) -> bool {
    !is_config(packet)
}

const fn is_accept(packet: &Packet) -> bool {
    matches!(packet.body, Body::Epoch(M::Accept { .. }))
}

const fn is_install(packet: &Packet) -> bool {
    matches!(packet.body, Body::Epoch(M::Install { .. }))
}

const fn is_vote(packet: &Packet) -> bool {
    matches!(packet.body, Body::Epoch(M::Seal { .. } | M::Accept { .. }))
}

/// Only 1 has accepted {1, 2, 3, 4} in ballot 1. {2, 3} decide {1, 2, 3} in ballot 2. Then 1 asks
/// {1, 3} in ballot 3 and is told of both.
fn two_proposals_were_accepted(fault_injection: FaultInjection) -> World {
    let mut world = World::new(3, 1, 1, fault_injection);
    world.propose(1, joining([4]));
    world.flow_among(&[1, 2], |p| is_config(p) && !is_accept(p));
    assert!(world.nodes[&1].epochs.state().accepted.is_some(), "1 has accepted its own proposal");
    world.propose(2, MembershipChange::default());
    world.flow_among(&[2, 3], |p| is_config(p) && !is_install(p));
    assert_eq!((world.newest(2), world.newest(3)), (2, 1), "only 2 has installed the decision");
    world.flow_among(&[1, 3], is_config); // 3 refuses the first ballot
    world.lose_patience(1);
    world.flow_among(&[1, 3], is_config);
    assert_eq!(world.newest(1), 2, "the third ballot decides");
    world
}

#[test]
fn ballot_adopts_highest_accepted_proposal() {
    assert_eq!(two_proposals_were_accepted(FaultInjection::none()).found(), None);
    let fault_injection = FaultInjection::with(ReplicatorFault::AdoptLowestBallot);
    assert_eq!(two_proposals_were_accepted(fault_injection).found(), Some(Violation::A));
}

/// 3 has its own acknowledgement in configuration 1, and does not seal. Then 2 acknowledges in
/// configuration 2.
fn acks_of_two_epochs(fault_injection: FaultInjection) -> World {
    let mut world = World::new(3, 2, 1, fault_injection);
    world.write(3, 1);
    world.propose(1, joining([4, 5]));
    world.flow_among(&[1, 2, 4, 5], is_config);
    assert_eq!([1, 2, 3, 4, 5].map(|id| world.newest(id)), [2, 2, 1, 2, 2]);
    world.flow_among(&[2, 3], is_client);
    world
}

#[test]
fn acks_of_two_epochs_never_count_together() {
    let mut safe = acks_of_two_epochs(FaultInjection::none());
    assert_eq!((safe.found(), safe.check.all_known()), (None, 0));
    let mut mixed = acks_of_two_epochs(FaultInjection::with(ReplicatorFault::MixedEpochs));
    assert_eq!((mixed.found(), mixed.check.all_known()), (Some(Violation::Bc), 2));
}

/// 1 coordinates under term 1. 2 takes a higher term while {2, 3} are sealed, or before, and
/// configuration 2 adds two replicas. Then 1 decides there with these two.
fn a_fence_beside_a_seal(fault_injection: FaultInjection, fence_first: bool) -> World {
    let mut world = World::new(3, 2, 1, fault_injection);
    world.fence(1);
    world.flow_among(&[1, 2], is_client);
    assert!(world.nodes[&1].parent.coordinator.is_some());
    if fence_first {
        world.fence(2);
        world.flow_among(&[2, 3], is_client);
    }
    world.propose(2, joining([4, 5]));
    world.flow_among(&[2, 3], |p| is_config(p) && !is_accept(p));
    if !fence_first {
        world.fence(2);
        world.flow_among(&[2, 3], is_client);
    }
    world.flow(|p| is_config(p) && !(is_vote(p) && p.to == 1));
    assert_eq!([1, 2, 3, 4, 5].map(|id| world.newest(id)), [2; 5]);
    world.flow_among(&[2, 3, 4], is_client);
    world.decide(1);
    world.flow_among(&[1, 4, 5], is_client);
    world
}

#[test]
fn sealed_replica_answers_no_fence() {
    assert_eq!(a_fence_beside_a_seal(FaultInjection::none(), false).found(), None);
    let fault_injection = FaultInjection::with(ReplicatorFault::FenceWhileSealed);
    assert_eq!(a_fence_beside_a_seal(fault_injection, false).found(), Some(Violation::D2));
}

#[test]
fn snapshots_carry_promised_terms() {
    assert_eq!(a_fence_beside_a_seal(FaultInjection::none(), true).found(), None);
    let fault_injection = FaultInjection::with(ReplicatorFault::PromisesNotSynced);
    assert_eq!(a_fence_beside_a_seal(fault_injection, true).found(), Some(Violation::D2));
}

/// A decision is acknowledged by {1, 2}. {2, 3} are sealed. In configuration 2, 3 takes a term with
/// {3, 4, 5}.
fn a_coordinator_after_a_change(fault_injection: FaultInjection) -> World {
    let mut world = World::new(3, 2, 1, fault_injection);
    world.fence(1);
    world.flow_among(&[1, 2], is_client);
    world.decide(1);
    world.flow_among(&[1, 2], is_client);
    world.propose(2, joining([4, 5]));
    world.flow(|p| is_config(p) && !(is_vote(p) && p.to == 1));
    assert_eq!([1, 2, 3, 4, 5].map(|id| world.newest(id)), [2; 5]);
    world.lose_everything();
    world.fence(3);
    world.flow_among(&[3, 4, 5], is_client);
    assert!(world.nodes[&3].parent.coordinator.is_some());
    world
}

#[test]
fn snapshots_carry_guarded_values() {
    assert_eq!(a_coordinator_after_a_change(FaultInjection::none()).found(), None);
    let fault_injection = FaultInjection::with(ReplicatorFault::CellsNotSynced);
    assert_eq!(a_coordinator_after_a_change(fault_injection).found(), Some(Violation::D2));
}

/// A token is acknowledged by {1, 2}. {2, 3} are sealed and replaced by {3, 4, 5}, which pull
/// nothing. Then these decide configuration 3 among themselves.
fn two_changes_without_a_pull(fault_injection: FaultInjection) -> World {
    let mut world = World::new(3, 2, 1, fault_injection);
    world.write(1, 1);
    world.flow_among(&[1, 2], is_client);
    assert_eq!(world.check.all_known(), 2);
    let leave = [1, 2].map(ReplicaId::new).to_vec();
    world.propose(2, MembershipChange { leave, ..joining([4, 5]) });
    world.flow_among(&[2, 3, 4, 5], |p| matches!(p.body, Body::Epoch(_)));
    world.lose_everything();
    world.propose(3, MembershipChange::default());
    world.flow_among(&[3, 4, 5], is_config);
    world
}

#[test]
fn accept_waits_until_a_quorum_has_synced() {
    let mut safe = two_changes_without_a_pull(FaultInjection::none());
    assert_eq!((safe.found(), safe.newest(3)), (None, 1));
    let mut bad =
        two_changes_without_a_pull(FaultInjection::with(ReplicatorFault::AcceptBeforeSync));
    assert_eq!((bad.found(), bad.newest(3)), (Some(Violation::Bc), 3));
}

/// The first coordinator's decision is on its own replica only. The second reads it there and
/// answers with it. The third asks the two other replicas.
fn three_coordinators(fault_injection: FaultInjection) -> World {
    let mut world = World::new(3, 1, 1, fault_injection);
    world.fence(1);
    world.flow_among(&[1, 2], is_client);
    world.decide(1);
    world.lose_everything();
    world.fence(2);
    world.flow_among(&[1, 2], is_client);
    assert_eq!(world.nodes[&2].parent.coordinator.as_ref().unwrap().cell.history, [1]);
    for _too_low_then_high_enough in 0..2 {
        world.fence(3);
        world.flow_among(&[2, 3], is_client);
    }
    assert!(world.nodes[&3].parent.coordinator.is_some());
    world
}

#[test]
fn recovery_write_precedes_answers_of_coordinator() {
    assert_eq!(three_coordinators(FaultInjection::none()).found(), None);
    let fault_injection = FaultInjection::with(ReplicatorFault::NoRecoveryWrite);
    assert_eq!(three_coordinators(fault_injection).found(), Some(Violation::D2));
}
