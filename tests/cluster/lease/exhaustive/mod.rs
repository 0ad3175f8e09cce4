//! Every schedule of the decision protocol with ballots, leases and two changes at three members.
//!
//! Real machines: `Epochs`, [`Grantor`](ostraca::cluster::lease::Grantor) and
//! [`LeaseHolder`](ostraca::cluster::lease::LeaseHolder). A message may arrive in any order, at any
//! time, any number of times or never. A node proposes its changes at any time, in its current
//! configuration. A node that takes no further step models a permanent crash.
//!
//! Clocks are reduced to an order of events. The holder's lease from a heartbeat may end at any
//! time after that heartbeat was sent, in the order of sending. From then on a grantor's promise
//! may end, and the wait after an install may end once the leases from all heartbeats sent before
//! it have ended. These are the earliest moments that T_q and T_p allow; the timed model in the
//! parent module covers how both follow from clock rates within ρ.
//!
//! Bounds: one change that swaps a member and one that removes another, proposed by one node or by
//! two concurrently; one ballot for each change and, in one case, a second ballot for an abandoned
//! seal; one or two heartbeats besides those at installs; the lease of one member at a time (leases
//! of other members never block a step, which adds schedules and removes none); leases, or one
//! write, or one guarded value with coordinators (`guard.rs`). All voters answer a Withhold at
//! once, and a Seal that a lease refuses is delivered later instead. The timed model covers
//! restarts, releases, proof of death, and grants and refusals after a Withhold.
//!
//! The smallest cases always run; all of them take about a minute of one core:
//! `OSTRACA_EXHAUSTIVE=1 cargo test -p ostraca --test cluster every_schedule -- --nocapture`.

mod guard;
mod node;
mod search;

use ostraca::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::MembershipChange;

use self::search::Search;

/// A violated property (docs/protocol/configurations.md#properties,
/// docs/protocol/leases.md#no-service-beside-a-decided-exclusion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Two configurations with one id.
    TwoConfigurations,
    /// A majority answers a read without a write that was acknowledged before the read began.
    Lost,
    /// The holder serves although a configuration without it is decided.
    Overlap,
    /// A coordinator acts without a decision that was acknowledged, or spoken of, under a term up to
    /// its own.
    Superseded,
    /// A configuration that a stranger made up is installed, or a ballot of it is promised.
    Forged,
}

/// The changes that one node proposes, and how often it treats a seal as abandoned.
pub(crate) struct Plan {
    node: u64,
    wishes: Vec<MembershipChange>,
    patience: u8,
}

/// A bounded model: members, proposals and the parts that are modelled.
pub(crate) struct Case {
    /// Number of founders: the nodes 1..=members.
    members: u64,
    /// Number of founders and joiners.
    nodes: u64,
    plan: Vec<Plan>,
    /// Whether data is modelled: one token that any eligible node may acknowledge.
    token: bool,
    /// Number of coordinators that take a term and decide once, on the nodes from 1.
    coordinators: u8,
    /// The node whose lease is modelled.
    holder: Option<u64>,
    /// Number of the holder's heartbeats besides those that each install sends.
    beats: u64,
    /// A node that membership has not let in sends forged messages to every node.
    is_attacked: bool,
    epoch_fault: Option<ReplicatorFault>,
    lease_fault: Option<MembershipFault>,
}

impl Case {
    fn epoch_fault_injection(&self) -> FaultInjection {
        self.epoch_fault.map_or_else(FaultInjection::none, FaultInjection::with)
    }

    fn lease_fault_injection(&self) -> MembershipFaultInjection {
        self.lease_fault.map_or_else(MembershipFaultInjection::none, MembershipFaultInjection::with)
    }
}

/// Result of a search.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) depth: usize,
    nodes: usize,
    places: usize,
    messages: usize,
    pub(crate) newest: u64,
    pub(crate) taken_over: bool,
    pub(crate) is_complete: bool,
    /// The violated property, and the number of visible steps to it.
    pub(crate) violation: Option<(Violation, usize)>,
    /// The steps to the violation in words.
    pub(crate) trace: Vec<String>,
}

impl Default for Found {
    fn default() -> Self {
        Self {
            states: 0,
            depth: 0,
            nodes: 0,
            places: 0,
            messages: 0,
            newest: 0,
            taken_over: false,
            is_complete: true,
            violation: None,
            trace: Vec::new(),
        }
    }
}

impl Found {
    fn note(&mut self, newest: u64, taken_over: bool) {
        self.newest = self.newest.max(newest);
        self.taken_over |= taken_over;
    }
}

/// A limit that no case reaches.
pub(crate) const ALL: usize = usize::MAX;

pub(crate) fn change(join: &[u64], leave: &[u64]) -> MembershipChange {
    let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId::new).collect();
    MembershipChange { join: ids(join), leave: ids(leave), ..MembershipChange::default() }
}

pub(crate) fn plan(node: u64, wishes: Vec<MembershipChange>) -> Plan {
    Plan { node, wishes, patience: 0 }
}

/// Node 4 replaces node 3; then node 2 is removed.
pub(crate) fn one_proposer() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3]), change(&[], &[2])])]
}

/// One node replaces 3 by 4, another removes 1: in either order, or competing in one configuration.
pub(crate) fn two_proposers() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3])]), plan(2, vec![change(&[], &[1])])]
}

/// Node 4 replaces node 3, and node 2 may treat the seal as abandoned.
pub(crate) fn an_abandoned_seal() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3])]), Plan { patience: 1, ..plan(2, Vec::new()) }]
}

/// Two founders. One takes in node 3, the other removes node 1.
pub(crate) fn two_founders() -> Case {
    let plans = vec![plan(1, vec![change(&[3], &[])]), plan(2, vec![change(&[], &[1])])];
    Case::with_token(plans).with_members(2)
}

/// Two coordinators at three members, and no change.
pub(crate) fn two_coordinators() -> Case {
    Case::with_coordinators(Vec::new(), 2)
}

/// Node 1 replaces both others by node 4, beside the coordinators of nodes 1 and 2.
pub(crate) fn coordinators_beside_a_change() -> Case {
    Case::with_coordinators(vec![plan(1, vec![change(&[4], &[2, 3])])], 2)
}

/// Node 2 replaces both others by node 4, beside the coordinators of nodes 1 and 2.
pub(crate) fn coordinator_after_a_change() -> Case {
    Case::with_coordinators(vec![plan(2, vec![change(&[4], &[1, 3])])], 2)
}

impl Case {
    /// Three founders and one further node that may join.
    pub(crate) fn new(plan: Vec<Plan>) -> Self {
        Self {
            members: 3,
            nodes: 4,
            plan,
            token: false,
            coordinators: 0,
            holder: None,
            beats: 0,
            is_attacked: false,
            epoch_fault: None,
            lease_fault: None,
        }
    }

    pub(crate) fn with_token(plan: Vec<Plan>) -> Self {
        Self { token: true, ..Self::new(plan) }
    }

    pub(crate) fn with_coordinators(plan: Vec<Plan>, coordinators: u8) -> Self {
        Self { coordinators, ..Self::new(plan) }
    }

    pub(crate) fn with_lease(plan: Vec<Plan>, holder: u64, beats: u64) -> Self {
        Self { holder: Some(holder), beats, ..Self::new(plan) }
    }

    pub(crate) fn with_members(self, members: u64) -> Self {
        Self { members, ..self }
    }

    pub(crate) fn attacked(self) -> Self {
        Self { is_attacked: true, ..self }
    }

    pub(crate) fn without_epoch_rule(self, fault: ReplicatorFault) -> Self {
        Self { epoch_fault: Some(fault), ..self }
    }

    pub(crate) fn without_lease_rule(self, fault: MembershipFault) -> Self {
        Self { lease_fault: Some(fault), ..self }
    }

    /// Visits every state, or stops at the first violation or after about `most` states.
    pub(crate) fn explore(&self, most: usize) -> Found {
        Search::new(self).run(most)
    }

    /// Asserts that no schedule violates a property and that `changes` changes can be decided.
    #[expect(clippy::print_stderr, reason = "the figures are the result")]
    fn is_safe(&self, name: &str, changes: u64) {
        let begun = std::time::Instant::now();
        let found = self.explore(ALL);
        eprintln!("{name}: {found:?} in {:.1?}", begun.elapsed());
        assert_eq!(found.violation, None, "{name}: {:#?}", found.trace);
        let reached = found.newest == changes + 1 && found.taken_over == self.holder.is_some();
        assert!(found.is_complete && reached, "{name}: {found:?}");
    }

    /// Asserts that the shortest schedule with this violation has `steps` visible steps.
    #[expect(clippy::print_stderr, reason = "the figures are the result")]
    fn breaks(&self, violation: Violation, steps: usize) {
        let found = self.explore(ALL);
        let (epoch, lease) = (self.epoch_fault, self.lease_fault);
        eprintln!("{epoch:?} {lease:?}: {} states, {:?}", found.states, found.violation);
        assert_eq!(found.violation, Some((violation, steps)), "{epoch:?} {lease:?}");
    }
}

#[test]
fn every_schedule_of_two_changes_at_three_members_is_safe() {
    Case::with_lease(one_proposer(), 2, 1).is_safe("one proposer, lease of 2, 1 beat", 2);
    Case::with_lease(two_proposers(), 1, 1).is_safe("two proposers, lease of 1, 1 beat", 2);
    if std::env::var_os("OSTRACA_EXHAUSTIVE").is_none() {
        return;
    }
    Case::with_token(one_proposer()).is_safe("one proposer, data", 2);
    Case::with_token(two_proposers()).is_safe("two proposers, data", 2);
    Case::with_token(an_abandoned_seal()).is_safe("an abandoned seal, data", 1);
    Case::with_lease(one_proposer(), 2, 2).is_safe("one proposer, lease of 2, 2 beats", 2);
    Case::with_lease(two_proposers(), 1, 2).is_safe("two proposers, lease of 1, 2 beats", 2);
    Case::with_lease(two_proposers(), 3, 1).is_safe("two proposers, lease of 3, 1 beat", 2);
    let fault = ReplicatorFault::AcceptBeforeSync; // has no effect before the second change
    Case::with_token(one_proposer()).without_epoch_rule(fault).breaks(Violation::Lost, 17);
}

/// Each rule of docs/protocol/leases.md that these cases can violate when it is left out. (For a
/// lease over two configurations they are too small: `directed` tests it with six nodes.)
#[test]
fn each_rule_of_the_lease_is_needed() {
    use MembershipFault::{
        AckAfterConsent, ConsentAfterInstall, LeaseFromAck, NoDriftMargin, NoRefusal, OwnAckAlways,
        OwnRemovalGoesOn, SealedGrants, StopsAtAccept,
    };
    let one = |fault| Case::with_lease(one_proposer(), 2, 1).without_lease_rule(fault);
    let two = |fault| Case::with_lease(two_proposers(), 1, 1).without_lease_rule(fault);
    two(LeaseFromAck).breaks(Violation::Overlap, 9);
    two(NoDriftMargin).breaks(Violation::Overlap, 9);
    two(AckAfterConsent).breaks(Violation::Overlap, 8);
    two(SealedGrants).breaks(Violation::Overlap, 8);
    two(NoRefusal).breaks(Violation::Overlap, 8);
    one(OwnAckAlways).breaks(Violation::Overlap, 15);
    one(ConsentAfterInstall).breaks(Violation::Overlap, 16);
    two(OwnRemovalGoesOn).breaks(Violation::Overlap, 8);
    two(StopsAtAccept).breaks(Violation::Overlap, 8);
}

#[test]
fn two_founders_resist_forged_messages_in_every_schedule() {
    two_founders().is_safe("two founders, data", 2);
    two_founders().attacked().is_safe("two founders, data, a stranger", 2);
    let misled =
        two_founders().attacked().without_epoch_rule(ReplicatorFault::ConfigurationFromAnybody);
    misled.breaks(Violation::Forged, 1);
    let half = two_founders().without_epoch_rule(ReplicatorFault::HalfWithoutTiebreaker);
    half.breaks(Violation::TwoConfigurations, 3);
    let equal = two_founders().without_epoch_rule(ReplicatorFault::BallotWithoutNode);
    equal.breaks(Violation::TwoConfigurations, 6);
}

#[test]
fn coordinators_know_the_decisions_of_earlier_terms() {
    use ReplicatorFault::{
        CellsNotSynced, FenceWhileSealed, NoRecoveryWrite, PromisesNotSynced,
        TermWithoutCoordinator,
    };
    two_coordinators().is_safe("two coordinators", 0);
    let one_term = two_coordinators().without_epoch_rule(TermWithoutCoordinator);
    one_term.breaks(Violation::Superseded, 11);
    two_coordinators().without_epoch_rule(NoRecoveryWrite).breaks(Violation::Superseded, 10);
    if std::env::var_os("OSTRACA_EXHAUSTIVE").is_none() {
        return;
    }
    let beside = |fault| coordinators_beside_a_change().without_epoch_rule(fault);
    beside(PromisesNotSynced).breaks(Violation::Superseded, 14);
    beside(FenceWhileSealed).breaks(Violation::Superseded, 14);
    let after = coordinator_after_a_change().without_epoch_rule(CellsNotSynced);
    after.breaks(Violation::Superseded, 17);
}

#[test]
fn rules_of_the_decision_are_needed_at_three_members() {
    use ReplicatorFault::{
        AcceptBelowPromise, IgnoreAccepted, MixedEpochs, NotSealed, SnapshotBeforeLastAck,
        SyncFromFewer,
    };
    let two = |fault| Case::with_token(two_proposers()).without_epoch_rule(fault);
    two(IgnoreAccepted).breaks(Violation::TwoConfigurations, 9);
    two(AcceptBelowPromise).breaks(Violation::TwoConfigurations, 9);
    let one = |fault| Case::with_token(one_proposer()).without_epoch_rule(fault);
    one(SyncFromFewer).breaks(Violation::Lost, 13);
    one(NotSealed).breaks(Violation::Lost, 13);
    one(SnapshotBeforeLastAck).breaks(Violation::Lost, 13);
    one(MixedEpochs).breaks(Violation::Lost, 14);
}
