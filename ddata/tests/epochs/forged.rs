//! Explores attackers that send forged configurations to the real machines, exhaustively.
//!
//! The transport admits an attacker, so its messages arrive with its own incarnation as the sender.
//! It may deliver each of its messages to any node at any time, any number of times, between the
//! steps of an honest change. A violation is a node that installed a forged configuration or
//! promised a forged ballot.

use std::sync::Arc;

use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::epoch::{
    Ballot, Epoch, EpochId, EpochMessage, EpochSettings, MembershipChange,
};

use crate::check::{HOSTILE, Violation};
use crate::exhaustive::{Case, FORGED_BALLOT, Found, Plan, explore, swap};

const fn id(number: u64) -> ReplicaId {
    ReplicaId::new(number)
}

fn of(generation: u64, number: u64, members: &[u64]) -> Arc<Epoch> {
    let members = members.iter().copied().map(id).collect();
    let epoch = EpochId { generation, number };
    Arc::new(Epoch::founding(epoch, members, EpochSettings::default()).expect("distinct"))
}

/// The messages of an attacker to a node: forged configurations of a later generation and of this
/// one, a forged base to sync from, and a forged ballot in the real configuration.
pub(crate) fn attack(attacker: u64, to: u64, real: &Arc<Epoch>) -> Vec<EpochMessage> {
    let number = real.id().number + 5;
    let ballot = Ballot { number: FORGED_BALLOT, node: id(attacker) };
    let base = of(1, number, &[attacker]);
    let change = MembershipChange { join: vec![id(to)], ..MembershipChange::default() };
    let sealed = vec![id(attacker)];
    let proposal = Arc::new(base.next(&change).expect("one joins"));
    let same = Arc::new(real.next(&MembershipChange::default()).expect("the same members"));
    let epoch = real.id();
    vec![
        EpochMessage::Install { epoch: of(2, 1, &[attacker]) },
        EpochMessage::Install { epoch: of(1, number, &[attacker, to]) },
        EpochMessage::Sync { base, ballot, proposal, sealed },
        EpochMessage::Seal { epoch, ballot, proposal: same.clone() },
        EpochMessage::Accept { epoch, ballot, proposal: same },
    ]
}

/// Explores every schedule of `plan` with an attacker whose messages reach nodes in `real` or
/// later.
fn attacked(
    members: u64,
    plan: &[Plan],
    attacker: u64,
    real: &Arc<Epoch>,
    fault_injection: FaultInjection,
) -> Found {
    let mut case = Case::new();
    if attacker != LET_IN {
        case.removed.push(attacker);
    }
    let start = case.start(members, plan, fault_injection);
    for to in (1..=4).filter(|to| *to != attacker) {
        let from = match attacker {
            HOSTILE => 0,           // a joining node may have installed nothing yet
            LET_IN if to == 3 => 2, // node 3 believes let-in nodes until it has joined
            _ => real.id().number,
        };
        case.forge(attacker, to, from, &attack(attacker, to, real));
    }
    let found = explore(case, start, states_max(attacker));
    println!("attacker {attacker}, {fault_injection:?}: {found:?}");
    found
}

/// Most states to explore. The schedules of a former member are explored completely if
/// `OSTRACA_EXHAUSTIVE` is set, which takes minutes. Those of a let-in attacker, whose messages
/// cause probes, are too many for that.
fn states_max(attacker: u64) -> usize {
    match attacker {
        HOSTILE => usize::MAX,
        LET_IN => 300_000,
        _ if std::env::var_os("OSTRACA_EXHAUSTIVE").is_some() => usize::MAX,
        _ => 300_000,
    }
}

/// A node that membership has let in and no configuration lists.
const LET_IN: u64 = 4;

const ANYBODY: ReplicatorFault = ReplicatorFault::ConfigurationFromAnybody;

#[test]
fn stranger_forges_no_configuration_in_any_schedule() {
    let plan: &[Plan] = &[(1, vec![swap(3, 2)], 0)];
    let real = of(1, 1, &[1, 2]);
    let found = attacked(2, plan, HOSTILE, &real, FaultInjection::none());
    assert!(found.violation.is_none() && found.changed, "{found:?}");
    let found = attacked(2, plan, HOSTILE, &real, FaultInjection::with(ANYBODY));
    assert_eq!(found.violation, Some((Violation::Forged, 1)), "one message is enough");
}

#[test]
fn node_let_in_forges_nothing_where_a_quorum_is_reached() {
    let plan: &[Plan] = &[(1, vec![swap(3, 2)], 0)];
    let real = of(1, 1, &[1, 2]);
    let found = attacked(2, plan, LET_IN, &real, FaultInjection::none());
    assert!(found.violation.is_none() && found.changed, "{found:?}");
    let found = attacked(2, plan, LET_IN, &real, FaultInjection::with(ANYBODY));
    assert_eq!(found.violation, Some((Violation::Forged, 1)));
}

#[test]
fn member_removed_two_changes_ago_forges_nothing() {
    let plan: &[Plan] = &[(1, vec![swap(3, 2), swap(4, 3)], 0)];
    let second = of(1, 1, &[1, 2]).next(&swap(3, 2)).expect("2 leaves");
    let third = Arc::new(second.next(&swap(4, 3)).expect("3 leaves"));
    let found = attacked(2, plan, 2, &third, FaultInjection::none());
    assert!(found.violation.is_none() && found.changed, "{found:?}");
    let found = attacked(2, plan, 2, &third, FaultInjection::with(ANYBODY));
    assert!(matches!(found.violation, Some((Violation::Forged, _))), "{found:?}");
}
