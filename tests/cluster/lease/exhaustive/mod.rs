//! Every schedule of the decision protocol with ballots, leases and two changes at three members.
//!
//! Real machines: `Epochs`, [`Grantor`](ostraca::cluster::lease::Grantor) and
//! [`Holder`](ostraca::cluster::lease::Holder). A message may arrive in any order, at any time, any
//! number of times or never. A node proposes its changes at any time, in its current configuration.
//! A node that takes no further step models a permanent crash.
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
//! of other members never block a step, which adds schedules and removes none); leases or data, not
//! both. All voters answer a Withhold at once, and a Seal that a lease refuses is delivered later
//! instead. The timed model covers restarts, releases, proof of death, and grants and refusals
//! after a Withhold.
//!
//! The smallest cases always run; all of them take about a minute of one core:
//! `OSTRACA_EXHAUSTIVE=1 cargo test -p ostraca --test cluster every_schedule -- --nocapture`.

mod node;
mod search;

use ostraca::cluster::fault_injection::{MembershipFault, MembershipFaultInjection};
use ostraca_ddata::fault_injection::{FaultInjection as DataCanary, ReplicatorFault as DataBug};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::MembershipChange;

use self::search::Search;

/// A violated property (docs/protocol/configurations.md#properties,
/// docs/protocol/leases.md#no-service-beside-a-decided-exclusion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Violation {
    /// Two configurations with one id.
    TwoConfigurations,
    /// A majority answers a read without a write that was acknowledged before the read began.
    Lost,
    /// The holder serves although a configuration without it is decided.
    Overlap,
}

/// The changes that one node proposes, and how often it treats a seal as abandoned.
struct Plan {
    node: u64,
    wishes: Vec<MembershipChange>,
    patience: u8,
}

/// A bounded model: members, proposals and the parts that are modelled.
struct Case {
    /// Number of founders: the nodes 1..=members.
    members: u64,
    /// Number of founders and joiners.
    nodes: u64,
    plan: Vec<Plan>,
    /// Whether data is modelled: one token that any eligible node may acknowledge.
    token: bool,
    /// The node whose lease is modelled.
    holder: Option<u64>,
    /// Number of the holder's heartbeats besides those that each install sends.
    beats: u64,
    epoch_bug: Option<DataBug>,
    lease_bug: Option<MembershipFault>,
}

impl Case {
    fn epoch_canary(&self) -> DataCanary {
        self.epoch_bug.map_or_else(DataCanary::none, DataCanary::with)
    }

    fn lease_canary(&self) -> MembershipFaultInjection {
        self.lease_bug.map_or_else(MembershipFaultInjection::none, MembershipFaultInjection::with)
    }
}

/// Result of a search.
#[derive(Debug)]
struct Found {
    states: usize,
    depth: usize,
    nodes: usize,
    places: usize,
    messages: usize,
    newest: u64,
    taken_over: bool,
    is_complete: bool,
    violation: Option<(Violation, usize)>,
    trace: Vec<String>,
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
const ALL: usize = usize::MAX;

fn change(join: &[u64], leave: &[u64]) -> MembershipChange {
    let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId::new).collect();
    MembershipChange { join: ids(join), leave: ids(leave), ..MembershipChange::default() }
}

fn plan(node: u64, wishes: Vec<MembershipChange>) -> Plan {
    Plan { node, wishes, patience: 0 }
}

/// Node 4 replaces node 3; then node 2 is removed.
fn one_proposer() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3]), change(&[], &[2])])]
}

/// One node replaces 3 by 4, another removes 1: in either order, or competing in one configuration.
fn two_proposers() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3])]), plan(2, vec![change(&[], &[1])])]
}

/// Node 4 replaces node 3, and node 2 may treat the seal as abandoned.
fn an_abandoned_seal() -> Vec<Plan> {
    vec![plan(1, vec![change(&[4], &[3])]), Plan { patience: 1, ..plan(2, Vec::new()) }]
}

impl Case {
    /// Three founders and one further node that may join.
    fn new(plan: Vec<Plan>) -> Self {
        Self {
            members: 3,
            nodes: 4,
            plan,
            token: false,
            holder: None,
            beats: 0,
            epoch_bug: None,
            lease_bug: None,
        }
    }

    fn with_token(plan: Vec<Plan>) -> Self {
        Self { token: true, ..Self::new(plan) }
    }

    fn with_lease(plan: Vec<Plan>, holder: u64, beats: u64) -> Self {
        Self { holder: Some(holder), beats, ..Self::new(plan) }
    }

    fn without_epoch_rule(self, bug: DataBug) -> Self {
        Self { epoch_bug: Some(bug), ..self }
    }

    fn without_lease_rule(self, bug: MembershipFault) -> Self {
        Self { lease_bug: Some(bug), ..self }
    }

    /// Asserts that no schedule violates a property and that `changes` changes can be decided.
    #[expect(clippy::print_stderr, reason = "the figures are the result")]
    fn is_safe(&self, name: &str, changes: u64) {
        let begun = std::time::Instant::now();
        let found = Search::new(self).run(ALL);
        eprintln!("{name}: {found:?} in {:.1?}", begun.elapsed());
        assert_eq!(found.violation, None, "{name}: {:#?}", found.trace);
        let reached = found.newest == changes + 1 && found.taken_over == self.holder.is_some();
        assert!(found.is_complete && reached, "{name}: {found:?}");
    }

    /// Asserts that the shortest schedule with this violation has `steps` visible steps.
    #[expect(clippy::print_stderr, reason = "the figures are the result")]
    fn breaks(&self, violation: Violation, steps: usize) {
        let found = Search::new(self).run(ALL);
        let (epoch, lease) = (self.epoch_bug, self.lease_bug);
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
    let bug = DataBug::AcceptBeforeSync; // has no effect before the second change
    Case::with_token(one_proposer()).without_epoch_rule(bug).breaks(Violation::Lost, 17);
}

/// Each rule of docs/protocol/leases.md that these cases can violate when it is left out. (For a
/// lease over two configurations they are too small: `directed` tests it with six nodes.)
#[test]
fn each_rule_of_the_lease_is_needed() {
    use MembershipFault::{
        AckAfterConsent, ConsentAfterInstall, LeaseFromAck, NoDriftMargin, NoRefusal, OwnAckAlways,
        OwnRemovalGoesOn, SealedGrants, StopsAtAccept,
    };
    let one = |bug| Case::with_lease(one_proposer(), 2, 1).without_lease_rule(bug);
    let two = |bug| Case::with_lease(two_proposers(), 1, 1).without_lease_rule(bug);
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
fn rules_of_the_decision_are_needed_at_three_members() {
    use DataBug::{AcceptBelowPromise, IgnoreAccepted, NotSealed, SyncFromFewer};
    let two = |bug| Case::with_token(two_proposers()).without_epoch_rule(bug);
    two(IgnoreAccepted).breaks(Violation::TwoConfigurations, 9);
    two(AcceptBelowPromise).breaks(Violation::TwoConfigurations, 9);
    let one = |bug| Case::with_token(one_proposer()).without_epoch_rule(bug);
    one(SyncFromFewer).breaks(Violation::Lost, 13);
    one(NotSealed).breaks(Violation::Lost, 13);
}
