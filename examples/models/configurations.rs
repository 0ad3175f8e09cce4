//! The models of configurations (with data) and of leases: one exploration of the configuration
//! machine with its grantors and a holder, under two sets of bounds.

use ostraca::cluster::fault_injection::MembershipFault;
use ostraca_ddata::fault_injection::ReplicatorFault;

use crate::lease_explorer::{
    ALL, Case, Violation, an_abandoned_seal, change, coordinator_after_a_change,
    coordinators_beside_a_change, one_proposer, plan, two_coordinators, two_founders,
    two_proposers,
};
use crate::model::{Bounds, Failure, Model, Outcome, Weakened};

fn outcome(case: &Case) -> Outcome {
    let found = case.explore(ALL);
    let property = |violation| match violation {
        Violation::TwoConfigurations => "agreement: two configurations are decided with one id",
        Violation::Lost => "durability: a majority read misses an acknowledged write",
        Violation::Superseded => "terms: a coordinator acts without a decision of an earlier term",
        Violation::Forged => "agreement: a node believes a configuration that nobody decided",
        Violation::Overlap => "lease: a node serves beside a decided configuration without it",
    };
    let failure = found.violation.map(|(violation, _)| Failure {
        property: property(violation).to_owned(),
        steps: found.trace,
    });
    Outcome { states: found.states, depth: found.depth, failure }
}

fn bounds(text: &'static str, case: fn() -> Case) -> Bounds {
    Bounds { text, is_deep: false, explore: Box::new(move || outcome(&case())) }
}

fn deep(text: &'static str, case: fn() -> Case) -> Bounds {
    Bounds { is_deep: true, ..bounds(text, case) }
}

pub(crate) fn configurations() -> Model {
    Model {
        name: "configurations",
        about: "the configuration machine (ddata/src/replicator/epoch) on 3 or 4 nodes; beside it, in \
                a few lines, either one write, or one guarded value and its coordinators",
        checks: "no two configurations have one id; a majority read misses no acknowledged write; a \
                 coordinator knows all decisions of terms up to its own",
        bounds: vec![
            bounds("2 members, 2 concurrent proposers, 2 changes", two_founders),
            bounds("3 members, 1 proposer, 2 changes: 4 replaces 3, then 2 is removed", || {
                Case::with_token(one_proposer())
            }),
            bounds("3 members, 2 concurrent proposers: 4 replaces 3, 1 is removed", || {
                Case::with_token(two_proposers())
            }),
            deep("3 members, 1 change, a second ballot for an abandoned seal", || {
                Case::with_token(an_abandoned_seal())
            }),
            bounds("2 members, 2 changes, forged messages of a stranger", || {
                two_founders().attacked()
            }),
            bounds("2 members, 1 change: 3 replaces 2, 2 coordinators, 2 decisions", || {
                let plans = vec![plan(1, vec![change(&[3], &[2])])];
                Case::with_coordinators(plans, 2).with_members(2)
            }),
            bounds("3 members, no change, 2 coordinators, 2 decisions", two_coordinators),
        ],
        rules: DATA_RULES.into_iter().map(data_rule).collect(),
    }
}

pub(crate) fn leases() -> Model {
    Model {
        name: "leases",
        about: "the same machine with a grantor on each node and the lease of one node \
                (src/cluster/lease); clocks only order events",
        checks: "no node serves once a configuration without it is decided; no two configurations \
                 have one id",
        bounds: vec![
            bounds("3 members, 1 proposer, 2 changes, lease of 2, 1 heartbeat", || {
                Case::with_lease(one_proposer(), 2, 1)
            }),
            bounds("3 members, 2 concurrent proposers, lease of 1, 1 heartbeat", || {
                Case::with_lease(two_proposers(), 1, 1)
            }),
            deep("3 members, 2 concurrent proposers, lease of 3, 1 heartbeat", || {
                Case::with_lease(two_proposers(), 3, 1)
            }),
            bounds("3 members, 1 proposer, 2 changes, lease of 2, 2 heartbeats", || {
                Case::with_lease(one_proposer(), 2, 2)
            }),
            deep("3 members, 2 concurrent proposers, lease of 1, 2 heartbeats", || {
                Case::with_lease(two_proposers(), 1, 2)
            }),
        ],
        rules: LEASE_RULES.into_iter().map(lease_rule).collect(),
    }
}

type DataRule = (&'static str, &'static str, ReplicatorFault, fn() -> Case);

const DATA_RULES: [DataRule; 15] = [
    (
        "docs/protocol/configurations.md#quorum-by-the-tie-rule",
        "half of the voters is a quorum also without the tiebreaker",
        ReplicatorFault::HalfWithoutTiebreaker,
        two_founders,
    ),
    (
        "docs/protocol/configurations.md#answers-of-one-configuration",
        "acknowledgements of two configurations are counted together",
        ReplicatorFault::MixedEpochs,
        || Case::with_token(one_proposer()),
    ),
    (
        "docs/protocol/configurations.md#unique-ballots",
        "ballots contain no node",
        ReplicatorFault::BallotWithoutNode,
        two_founders,
    ),
    (
        "docs/protocol/configurations.md#seal-ends-acknowledgement",
        "a sealed replica goes on acknowledging",
        ReplicatorFault::NotSealed,
        || Case::with_token(one_proposer()),
    ),
    (
        "docs/protocol/configurations.md#snapshot-holds-the-last-acknowledgement",
        "the frozen snapshot lacks the last acknowledged write",
        ReplicatorFault::SnapshotBeforeLastAck,
        || Case::with_token(one_proposer()),
    ),
    (
        "docs/protocol/configurations.md#adopt-the-highest-accepted-proposal",
        "a new ballot ignores what was accepted",
        ReplicatorFault::IgnoreAccepted,
        || Case::with_token(two_proposers()),
    ),
    (
        "docs/protocol/configurations.md#sync-from-a-sealed-quorum",
        "a next voter merges the snapshots of fewer than a quorum",
        ReplicatorFault::SyncFromFewer,
        || Case::with_token(one_proposer()),
    ),
    (
        "docs/protocol/configurations.md#terms-travel-with-the-snapshot",
        "the promised terms of sealed replicas are not merged at the sync",
        ReplicatorFault::PromisesNotSynced,
        coordinators_beside_a_change,
    ),
    (
        "docs/protocol/configurations.md#terms-travel-with-the-snapshot",
        "the guarded values of sealed replicas are not merged at the sync",
        ReplicatorFault::CellsNotSynced,
        coordinator_after_a_change,
    ),
    (
        "docs/protocol/configurations.md#accept-after-sync",
        "Accept is sent before a quorum of the next configuration has synced",
        ReplicatorFault::AcceptBeforeSync,
        || Case::with_token(one_proposer()),
    ),
    (
        "docs/protocol/configurations.md#accept-implies-seal",
        "a voter accepts a proposal below its promise",
        ReplicatorFault::AcceptBelowPromise,
        || Case::with_token(two_proposers()),
    ),
    (
        "docs/protocol/configurations.md#sender-rule",
        "a configuration is installed without a check of its sender",
        ReplicatorFault::ConfigurationFromAnybody,
        || two_founders().attacked(),
    ),
    (
        "docs/protocol/leases.md#term-order",
        "terms contain no owner, so that two coordinators hold one term",
        ReplicatorFault::TermWithoutCoordinator,
        two_coordinators,
    ),
    (
        "docs/protocol/leases.md#fencing-read",
        "a sealed replica answers fencing reads",
        ReplicatorFault::FenceWhileSealed,
        coordinators_beside_a_change,
    ),
    (
        "docs/protocol/leases.md#recovery-write",
        "a coordinator acts before a majority holds what it read",
        ReplicatorFault::NoRecoveryWrite,
        two_coordinators,
    ),
];

fn data_rule((rule, text, fault, case): DataRule) -> Weakened {
    let explore = Box::new(move || outcome(&case().without_epoch_rule(fault)));
    Weakened { rule, fault: format!("{fault:?}"), text, is_deep: false, explore }
}

type LeaseRule = (&'static str, &'static str, MembershipFault, fn() -> Case);

/// The holder competes with the proposer of its removal.
fn competing() -> Case {
    Case::with_lease(two_proposers(), 1, 1)
}

const LEASE_RULES: [LeaseRule; 9] = [
    (
        "docs/protocol/leases.md#lease-counts-from-sending",
        "a lease counts from the arrival of the grant",
        MembershipFault::LeaseFromAck,
        competing,
    ),
    (
        "docs/protocol/leases.md#drift-margin",
        "the holder takes the grantor's time without a margin for drift",
        MembershipFault::NoDriftMargin,
        competing,
    ),
    (
        "docs/protocol/leases.md#own-grant-obeys-the-rules-of-a-grantor",
        "the holder's grant to itself always counts",
        MembershipFault::OwnAckAlways,
        || Case::with_lease(one_proposer(), 2, 1),
    ),
    (
        "docs/protocol/leases.md#sealed-voter-grants-nothing",
        "a sealed voter goes on granting",
        MembershipFault::SealedGrants,
        competing,
    ),
    (
        "docs/protocol/leases.md#seal-consent",
        "a voter seals a removal while its promise runs",
        MembershipFault::NoRefusal,
        competing,
    ),
    (
        "docs/protocol/leases.md#wait-after-install",
        "a voter consents to removals right after an install",
        MembershipFault::ConsentAfterInstall,
        || Case::with_lease(one_proposer(), 2, 1),
    ),
    (
        "docs/protocol/leases.md#withheld-members-get-no-grant",
        "a grantor grants to a member whose removal it has consented to",
        MembershipFault::AckAfterConsent,
        competing,
    ),
    (
        "docs/protocol/leases.md#stop-at-the-own-answer",
        "a voter consents to its own removal and goes on serving",
        MembershipFault::OwnRemovalGoesOn,
        competing,
    ),
    (
        "docs/protocol/leases.md#stop-at-the-own-answer",
        "a voter consents to its own removal and serves until the Accept",
        MembershipFault::StopsAtAccept,
        competing,
    ),
];

fn lease_rule((rule, text, fault, case): LeaseRule) -> Weakened {
    let explore = Box::new(move || outcome(&case().without_lease_rule(fault)));
    Weakened { rule, fault: format!("{fault:?}"), text, is_deep: false, explore }
}
