//! The decisions of every strategy in every situation, compared with `matrix.txt`
//! (`UPDATE_EXPECT=1` rewrites it; review its diff).
//!
//! A cell contains for each living side the decision (of all its members, or of the named ones) and
//! the downed members. There is no configuration, so ties are decided by the lowest address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ostraca_ddata::id::NodeId;

use super::{Split, name, names, split};
use crate::cluster::downing::{
    AutoDown, DowningDecision, DowningStrategy, KeepMajority, KeepOldest, LeaderRoles,
    LeaseMajority, MajorityLeader, Oldest, QuorumLeader, RoleLeaderRoles, StaticQuorum, Trust,
    resolve,
};

const SITUATIONS: &[(&str, &str)] = &[
    ("clean split, the larger side has the leader", "A B C | D E"),
    ("clean split, the smaller side has the leader", "A B | C D E"),
    ("equal halves", "A B | C E"),
    ("crash of one", "A B C E | ~D"),
    ("crash of the oldest", "A B C D | ~E"),
    ("crash of the leader", "B C D E | ~A"),
    ("joining on the larger side", "A B +C | D"),
    ("joining on the smaller side", "A B | C +D"),
    ("weakly up on the larger side", "A B ^C | D"),
    ("weakly up on the smaller side", "A B | C ^D"),
    ("leaving on the larger side", "A B -C | D E"),
    ("leaving on the smaller side", "A B C | D -E"),
    ("exiting on the larger side", "A B !C | D E"),
    ("exiting on the smaller side", "A B C | D !E"),
    ("down on the larger side", "A B *C | D E"),
    ("down on the smaller side", "A B C | D *E"),
    ("all that have a role on one side", "B D | A C E"),
    ("three sides, none with a half", "A B | C D | E"),
    ("three sides, one with more than half", "A B C | D | E"),
    ("an indirectly connected pair", "A B C D E ;A>B B>A"),
    ("an indirectly connected triple", "A B C D E ;A>B B>C C>A"),
    ("a pair beside a clean split", "A B C | D E ;B>C C>B"),
    ("one node that nobody but the first misses", "A B C D E ;A>E"),
    ("a single node", "A"),
    ("two nodes, split", "A | E"),
    ("two nodes, the younger crashed", "E | ~A"),
    ("two nodes, the oldest crashed", "A | ~E"),
];

/// Strategies that compare sides.
fn weighing() -> Vec<(&'static str, DowningStrategy)> {
    let role = |name: &str| Some(name.to_owned());
    vec![
        (
            "static-quorum 3",
            DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 3, role: None }),
        ),
        (
            "static-quorum 2 role3",
            DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 2, role: role("role3") }),
        ),
        ("keep-majority", DowningStrategy::KeepMajority(KeepMajority::default())),
        (
            "keep-majority role3",
            DowningStrategy::KeepMajority(KeepMajority {
                role: role("role3"),
                ..Default::default()
            }),
        ),
        ("keep-oldest", DowningStrategy::KeepOldest(KeepOldest::default())),
        (
            "keep-oldest, alone too",
            DowningStrategy::KeepOldest(KeepOldest { down_if_alone: false, role: None }),
        ),
        (
            "keep-oldest role2",
            DowningStrategy::KeepOldest(KeepOldest { role: role("role2"), ..Default::default() }),
        ),
        ("down-all", DowningStrategy::DownAll),
        ("lease-majority", DowningStrategy::LeaseMajority(LeaseMajority::default())),
        (
            "lease-majority role2",
            DowningStrategy::LeaseMajority(LeaseMajority {
                role: role("role2"),
                ..Default::default()
            }),
        ),
    ]
}

/// Strategies of one member, and `manual`.
fn of_one_member() -> Vec<(&'static str, DowningStrategy)> {
    let role = |name: &str| Some(name.to_owned());
    let roles = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    vec![
        ("oldest", DowningStrategy::Oldest(Oldest::default())),
        (
            "oldest role1",
            DowningStrategy::Oldest(Oldest {
                oldest_member_role: role("role1"),
                ..Default::default()
            }),
        ),
        (
            "quorum-leader 2",
            DowningStrategy::QuorumLeader(QuorumLeader { quorum_size: 2, ..Default::default() }),
        ),
        (
            "quorum-leader 2 role3",
            DowningStrategy::QuorumLeader(QuorumLeader {
                quorum_size: 2,
                role: role("role3"),
                ..Default::default()
            }),
        ),
        ("majority-leader", DowningStrategy::MajorityLeader(MajorityLeader::default())),
        (
            "majority-leader role2",
            DowningStrategy::MajorityLeader(MajorityLeader {
                majority_member_role: role("role2"),
                ..Default::default()
            }),
        ),
        (
            "leader-roles role1",
            DowningStrategy::LeaderRoles(LeaderRoles { target_roles: roles(&["role1"]) }),
        ),
        (
            "role-leader-roles role2 role1",
            DowningStrategy::RoleLeaderRoles(RoleLeaderRoles {
                leader_role: "role2".to_owned(),
                target_roles: roles(&["role1"]),
            }),
        ),
        ("auto-down", DowningStrategy::AutoDown(AutoDown::default())),
        ("manual", DowningStrategy::Manual),
    ]
}

#[test]
fn decisions_in_all_situations_match_the_matrix() {
    let mut written = String::new();
    for (sentence, row) in SITUATIONS {
        let split = split(row);
        writeln!(written, "# {sentence}: {row}").unwrap();
        for (title, strategy) in weighing().into_iter().chain(of_one_member()) {
            let sides: Vec<String> =
                split.living().map(|side| answer(&strategy, &split, side)).collect();
            writeln!(written, "{title:<30} {}", sides.join(" | ")).unwrap();
        }
        writeln!(written).unwrap();
    }
    super::expect("matrix.txt", &written, include_str!("matrix.txt"));
}

/// The decision of a side, the deciding members unless all decide equally, and the downed members.
fn answer(strategy: &DowningStrategy, split: &Split, side: usize) -> String {
    let mut by: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
    let mut down = BTreeSet::new();
    for own in &split.sides[side] {
        let view = split.view_of(side, own.node);
        let resolution = resolve(strategy, Trust::Survivors, &view);
        by.entry(code(resolution.decision)).or_default().push(own.node);
        if resolution.responsible {
            down.extend(resolution.down);
        }
    }
    let everybody = split.sides[side].len();
    let decided = by.iter().filter(|(code, who)| **code != "-" || who.len() == everybody);
    let mut text: Vec<String> = decided
        .map(|(code, who)| match who.len() {
            all if all == everybody => (*code).to_owned(),
            _ => format!("{code} by {}", who.iter().map(|node| name(*node)).collect::<String>()),
        })
        .collect();
    if !down.is_empty() {
        text.push(format!("downs {}", names(&down)));
    }
    text.join(", ")
}

fn code(decision: DowningDecision) -> &'static str {
    match decision {
        DowningDecision::Nothing => "-",
        DowningDecision::DownUnreachable => "DownUnreachable",
        DowningDecision::DownReachable => "DownReachable",
        DowningDecision::DownAll => "DownAll",
        DowningDecision::DownIndirectlyConnected => "DownIndirectlyConnected",
        DowningDecision::AcquireLeaseAndDownUnreachable { after } if after.is_zero() => {
            "Lease at once"
        }
        DowningDecision::AcquireLeaseAndDownUnreachable { .. } => "Lease later",
        DowningDecision::AcquireLeaseAndDownIndirectlyConnected => {
            "Lease at once, indirectly connected"
        }
        DowningDecision::DownTargets => "DownTargets",
        DowningDecision::ShutDownSelf => "ShutDownSelf",
        DowningDecision::LeaveCluster => "LeaveCluster",
    }
}
