//! Tables for the strategies in which one member decides. A row contains the decision of every
//! member of each side, in order. The expectations follow the custom providers for Akka and their
//! tests.

use std::time::Duration;

use super::{name, split};
use crate::cluster::downing::DowningDecision::{
    DownTargets, DownUnreachable, LeaveCluster, Nothing, ShutDownSelf,
};
use crate::cluster::downing::{
    AutoDown, DowningDecision, DowningStrategy, LeaderRoles, MajorityLeader, Oldest, QuorumLeader,
    RoleLeaderRoles, Trust, resolve,
};

/// Rows of (description, split, decisions of the members of each living side).
#[track_caller]
fn everyone(strategy: &DowningStrategy, rows: &[(&str, &str, &[&[DowningDecision]])]) {
    let mut wrong = Vec::new();
    for (sentence, row, expected) in rows {
        let split = split(row);
        let answers: Vec<Vec<DowningDecision>> = split
            .living()
            .map(|side| {
                let members = split.sides[side].iter();
                members.map(|own| strategy.decide(&split.view_of(side, own.node))).collect()
            })
            .collect();
        if answers != *expected {
            wrong.push(format!("{sentence}: {row}\n  is {answers:?}\n  not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn down(strategy: &DowningStrategy, row: &str) -> String {
    let view = split(row).view(0);
    super::names(&resolve(strategy, Trust::Survivors, &view).down)
}

fn roles(names: &[&str]) -> std::collections::BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn oldest() {
    let strategy = DowningStrategy::Oldest(Oldest::default());
    everyone(
        &strategy,
        &[
            (
                "the oldest downs, members cut from it stop",
                "D E | A B",
                &[&[Nothing, DownUnreachable], &[ShutDownSelf, ShutDownSelf]],
            ),
            (
                "alone it goes, the second oldest downs it",
                "E | A D",
                &[&[ShutDownSelf], &[Nothing, DownUnreachable]],
            ),
            ("of two the oldest stays", "E | A", &[&[DownUnreachable], &[ShutDownSelf]]),
            ("of two the younger crashed", "E | ~A", &[&[DownUnreachable]]),
            ("a younger one crashed", "A D E | ~B", &[&[Nothing, Nothing, DownUnreachable]]),
            ("the oldest crashed", "A B D | ~E", &[&[Nothing, Nothing, DownUnreachable]]),
            (
                "a leaving oldest still acts",
                "D -E | A",
                &[&[Nothing, DownUnreachable], &[ShutDownSelf]],
            ),
            (
                "an exiting member makes it wait",
                "D E !C | A",
                &[&[Nothing, Nothing, Nothing], &[ShutDownSelf]],
            ),
            (
                "a down member too",
                "D E | A *C",
                &[&[Nothing, Nothing], &[ShutDownSelf, ShutDownSelf]],
            ),
            (
                "joining ones neither act nor count",
                "E +C | A D",
                &[&[ShutDownSelf, Nothing], &[Nothing, DownUnreachable]],
            ),
            ("no member is unreachable", "A E", &[&[Nothing, Nothing]]),
            (
                "three sides",
                "D E | A B | C",
                &[&[Nothing, DownUnreachable], &[ShutDownSelf, ShutDownSelf], &[ShutDownSelf]],
            ),
            ("alone in the world", "E", &[&[Nothing]]),
        ],
    );
}

#[test]
fn oldest_may_stay_alone_if_configured() {
    let stays = DowningStrategy::Oldest(Oldest { down_if_alone: false, ..Oldest::default() });
    everyone(
        &stays,
        &[("alone it stays", "E | A D", &[&[DownUnreachable], &[ShutDownSelf, ShutDownSelf]])],
    );
}

#[test]
fn oldest_of_a_role() {
    let of_role = DowningStrategy::Oldest(Oldest {
        oldest_member_role: Some("role1".to_owned()),
        ..Oldest::default()
    });
    everyone(
        &of_role,
        &[
            (
                "the oldest of B and D is D",
                "C D | B E",
                &[&[Nothing, DownUnreachable], &[ShutDownSelf, ShutDownSelf]],
            ),
            (
                "its only member is not alone among others",
                "C D | A E",
                &[&[Nothing, DownUnreachable], &[ShutDownSelf, ShutDownSelf]],
            ),
            (
                "alone, with another of the role over there",
                "D | A B E",
                &[&[ShutDownSelf], &[Nothing, DownUnreachable, Nothing]],
            ),
            (
                "alone, the only one of the role",
                "D | A E",
                &[&[ShutDownSelf], &[Nothing, DownUnreachable]],
            ),
            ("no member has the role", "A | C", &[&[Nothing], &[Nothing]]),
        ],
    );
}

#[test]
fn quorum_leader() {
    let strategy =
        DowningStrategy::QuorumLeader(QuorumLeader { quorum_size: 2, ..Default::default() });
    everyone(
        &strategy,
        &[
            (
                "enough remain",
                "A B C | D",
                &[&[DownUnreachable, Nothing, Nothing], &[ShutDownSelf]],
            ),
            (
                "both sides have enough: it is not safe",
                "A B | C D",
                &[&[DownUnreachable, Nothing], &[DownUnreachable, Nothing]],
            ),
            ("too few remain", "A | ~B ~C", &[&[ShutDownSelf]]),
            ("the leader crashed", "B C | ~A", &[&[DownUnreachable, Nothing]]),
            (
                "joining and exiting ones do not count",
                "A +B !C | D",
                &[&[ShutDownSelf, ShutDownSelf, ShutDownSelf], &[ShutDownSelf]],
            ),
            ("leaving ones do", "A -B | D", &[&[DownUnreachable, Nothing], &[ShutDownSelf]]),
            ("too few, but no member is unreachable", "A", &[&[Nothing]]),
        ],
    );
    let waits = DowningStrategy::QuorumLeader(QuorumLeader {
        quorum_size: 2,
        down_if_out_of_quorum: false,
        role: None,
    });
    everyone(&waits, &[("too few wait", "A | ~B ~C", &[&[Nothing]])]);
    let of_role = DowningStrategy::QuorumLeader(QuorumLeader {
        quorum_size: 2,
        role: Some("role3".to_owned()),
        ..Default::default()
    });
    everyone(
        &of_role,
        &[
            (
                "A and B count, C does not",
                "A B | C D E",
                &[&[DownUnreachable, Nothing], &[ShutDownSelf, ShutDownSelf, ShutDownSelf]],
            ),
            (
                "the leader of the role acts, not the leader",
                "B C D | A",
                &[&[DownUnreachable, Nothing, Nothing], &[ShutDownSelf]],
            ),
        ],
    );
}

#[test]
fn majority_leader() {
    let strategy = DowningStrategy::MajorityLeader(MajorityLeader::default());
    everyone(
        &strategy,
        &[
            (
                "the leader of the larger side acts",
                "D E | A B C",
                &[&[ShutDownSelf; 2], &[DownUnreachable, Nothing, Nothing]],
            ),
            (
                "of equal sides the lowest address",
                "A B | C D",
                &[&[DownUnreachable, Nothing], &[ShutDownSelf; 2]],
            ),
            ("of two the lowest address", "A | B", &[&[DownUnreachable], &[ShutDownSelf]]),
            ("the leader crashed", "B C | ~A", &[&[DownUnreachable, Nothing]]),
            (
                "unreachable joining ones count",
                "B C | A +D",
                &[&[ShutDownSelf; 2], &[ShutDownSelf; 2]],
            ),
            (
                "reachable ones count for nothing",
                "A +B | C",
                &[&[DownUnreachable, Nothing], &[ShutDownSelf]],
            ),
            (
                "three sides",
                "A B | C D | E",
                &[&[ShutDownSelf; 2], &[ShutDownSelf; 2], &[ShutDownSelf]],
            ),
            ("no member is unreachable", "A B", &[&[Nothing; 2]]),
        ],
    );
    let leaves = DowningStrategy::MajorityLeader(MajorityLeader {
        shutdown_on_resolution: false,
        ..MajorityLeader::default()
    });
    everyone(
        &leaves,
        &[("a minority leaves", "E | A B", &[&[LeaveCluster], &[DownUnreachable, Nothing]])],
    );
    let waits = DowningStrategy::MajorityLeader(MajorityLeader {
        down_if_in_minority: false,
        ..MajorityLeader::default()
    });
    everyone(
        &waits,
        &[("a minority waits", "E | A B", &[&[Nothing], &[DownUnreachable, Nothing]])],
    );
    let of_role = DowningStrategy::MajorityLeader(MajorityLeader {
        majority_member_role: Some("role2".to_owned()),
        ..MajorityLeader::default()
    });
    everyone(
        &of_role,
        &[("C and D count", "A B E | C D", &[&[ShutDownSelf; 3], &[DownUnreachable, Nothing]])],
    );
}

#[test]
fn leader_roles() {
    let strategy =
        DowningStrategy::LeaderRoles(LeaderRoles { target_roles: roles(&["role1", "role2"]) });
    everyone(
        &strategy,
        &[
            (
                "both leaders act: it is not safe",
                "A B | C D",
                &[&[DownTargets, Nothing], &[DownTargets, Nothing]],
            ),
            ("a joining leader does not", "+A | B", &[&[Nothing], &[DownTargets]]),
        ],
    );
    assert_eq!(down(&strategy, "A | B C D E"), "B C D", "E has no role");
    assert_eq!(down(&strategy, "B C | A E"), "", "none of them has one");
    assert_eq!(down(&strategy, "A | !B *C D"), "D", "departing members are not downed");
}

#[test]
fn role_leader_roles() {
    let strategy = DowningStrategy::RoleLeaderRoles(RoleLeaderRoles {
        leader_role: "role2".to_owned(),
        target_roles: roles(&["role1"]),
    });
    everyone(
        &strategy,
        &[
            (
                "C leads role2, A leads all",
                "A C | B D",
                &[&[Nothing, DownTargets], &[Nothing, DownTargets]],
            ),
            (
                "a side without the role waits",
                "A B | C D",
                &[&[Nothing, Nothing], &[DownTargets, Nothing]],
            ),
        ],
    );
    assert_eq!(down(&strategy, "C | A B D E"), "B D");
}

#[test]
fn auto_down_downs_members_unreachable_for_long_enough() {
    let strategy = DowningStrategy::AutoDown(AutoDown { after: Duration::from_secs(20) });
    everyone(
        &strategy,
        &[(
            "both leaders act: it is not safe",
            "A B | C D",
            &[&[DownTargets, Nothing], &[DownTargets, Nothing]],
        )],
    );
    let mut view = split("A | B C D").view(0);
    view.unreachable.insert(super::node('B'), Duration::from_millis(19_999));
    view.unreachable.insert(super::node('C'), Duration::from_millis(20_000));
    let down = resolve(&strategy, Trust::Survivors, &view).down;
    assert_eq!(down.into_iter().map(name).collect::<String>(), "CD");
}
