//! Tables for the five strategies that compare sides, and for `manual`.

use std::time::Duration;

use super::{split, table};
use crate::cluster::downing::DowningDecision::{
    AcquireLeaseAndDownIndirectlyConnected as LeaseIndirect,
    AcquireLeaseAndDownUnreachable as Lease, DownAll, DownIndirectlyConnected, DownReachable,
    DownUnreachable, Nothing,
};
use crate::cluster::downing::{
    DowningDecision, DowningStrategy, KeepMajority, KeepOldest, LeaseMajority, StaticQuorum,
    TieBreak, Trust, VoterSet, resolve,
};

const AT_ONCE: DowningDecision = Lease { after: Duration::ZERO };
const LATER: DowningDecision = Lease { after: Duration::from_secs(2) };

fn role(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn keep_majority() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority::default());
    table(
        &strategy,
        &[
            ("the larger side stays", "A B C | D E", &[DownUnreachable, DownReachable]),
            ("whichever side has the leader", "D E | A B C", &[DownReachable, DownUnreachable]),
            ("a tie keeps the tiebreaker", "A B | C D ;=C", &[DownReachable, DownUnreachable]),
            ("without one the lowest address", "A B | C D", &[DownUnreachable, DownReachable]),
            ("two nodes: the tiebreaker", "A | B ;=B", &[DownReachable, DownUnreachable]),
            ("of two the other one crashed", "B | ~A ;=B", &[DownUnreachable]),
            ("of two the tiebreaker crashed", "A | ~B ;=B", &[DownReachable]),
            ("one crashed", "A B C | ~D", &[DownUnreachable]),
            ("the oldest crashed", "A B C | ~E ;=E", &[DownUnreachable]),
            ("the leader crashed", "B C D | ~A", &[DownUnreachable]),
            ("alone in the world", "A", &[DownUnreachable]),
            ("joining may be up over there", "B C | A +D", &[DownAll, DownReachable]),
            ("weakly up just as well", "B C | A ^D", &[DownAll, DownReachable]),
            ("joining here counts for nothing", "B +D | A C", &[DownReachable, DownUnreachable]),
            ("leaving may be gone already", "B -C | A", &[DownAll, DownReachable]),
            ("leaving and still enough", "B C -D | A", &[DownUnreachable, DownReachable]),
            ("exiting counts for nothing", "A !B | C D", &[DownReachable, DownUnreachable]),
            ("down counts for nothing", "A *B | C D", &[DownReachable, DownUnreachable]),
            ("of three sides no half stays", "A B | C D | E", &[DownReachable; 3]),
            (
                "of three sides the half stays",
                "A B C | D | E",
                &[DownUnreachable, DownReachable, DownReachable],
            ),
            ("a pair that cannot talk", "A B C ;A>B B>A", &[DownIndirectlyConnected]),
            ("a ring of three", "A B C D ;A>B B>C C>A", &[DownIndirectlyConnected]),
            (
                "a pair beside a clean split",
                "A B C | D E ;B>C C>B",
                &[DownIndirectlyConnected, DownIndirectlyConnected],
            ),
        ],
    );
}

#[test]
fn keep_majority_of_a_role() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority {
        role: role("role3"),
        ..KeepMajority::default()
    });
    table(
        &strategy,
        &[
            ("only A, B and D count", "A B | C D E", &[DownUnreachable, DownReachable]),
            ("others weigh nothing", "A C E F G | B D", &[DownReachable, DownUnreachable]),
            ("no member has the role", "C | E", &[DownAll, DownAll]),
        ],
    );
}

#[test]
fn keep_majority_by_lowest_address_ignores_tiebreaker() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority {
        tie_break: TieBreak::LowestAddress,
        ..KeepMajority::default()
    });
    table(&strategy, &[("as in Akka", "A B | C D ;=C", &[DownUnreachable, DownReachable])]);
}

#[test]
fn static_quorum() {
    let strategy =
        DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 3, ..StaticQuorum::default() });
    table(
        &strategy,
        &[
            ("three of five stay", "A B C | D E", &[DownUnreachable, DownReachable]),
            ("two of four do not, nor do the others", "A B | C D", &[DownReachable; 2]),
            ("two that are left go", "A B | ~C", &[DownReachable]),
            ("one crashed of five", "A B C D | ~E", &[DownUnreachable]),
            ("six are too many", "A B C D | E F", &[DownAll; 2]),
            ("a leaving one may be gone", "A B -C | D E", &[DownAll, DownReachable]),
            ("joining ones may be up there", "A B C | D E +F", &[DownAll, DownReachable]),
            ("weakly up just as well", "A B C | D E ^F", &[DownAll, DownReachable]),
            ("joining ones may be up on either side", "A B +C | D E F", &[DownReachable, DownAll]),
            ("exiting counts for nothing", "A B !C | D E", &[DownReachable; 2]),
            (
                "of three sides the quorum stays",
                "A B C | D | E",
                &[DownUnreachable, DownReachable, DownReachable],
            ),
            ("a pair that cannot talk", "A B C D ;A>B B>A", &[DownIndirectlyConnected]),
            ("a ring of three", "A B C D ;A>B B>C C>A", &[DownIndirectlyConnected]),
            (
                "a pair beside a clean split",
                "A B C | D E ;B>C C>B",
                &[DownIndirectlyConnected, DownIndirectlyConnected],
            ),
            ("alone below the quorum", "A", &[DownReachable]),
        ],
    );
}

/// Pekko's strategy lets both sides of this split survive: an ordinary rolling replacement at the
/// moment of a split.
#[test]
fn static_quorum_survives_join_and_leave_during_a_split() {
    let strategy =
        DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 2, ..StaticQuorum::default() });
    let leaders_side = split("A C | B !D").view(0);
    let other_side = split("A +C | B -D").view(1);
    assert_eq!(strategy.decide(&leaders_side), DownUnreachable);
    assert_eq!(strategy.decide(&other_side), DownAll);
}

#[test]
fn keep_oldest() {
    let strategy = DowningStrategy::KeepOldest(KeepOldest::default());
    table(
        &strategy,
        &[
            ("the side of E stays", "A B C | D E", &[DownReachable, DownUnreachable]),
            ("alone it goes", "A B | E", &[DownUnreachable, DownReachable]),
            ("of two nodes it stays", "A | E", &[DownReachable, DownUnreachable]),
            ("of two the younger crashed", "E | ~A", &[DownUnreachable]),
            ("of two the oldest crashed", "A | ~E", &[DownReachable]),
            ("the oldest crashed", "A B C D | ~E", &[DownUnreachable]),
            ("the leader crashed", "B C E | ~A", &[DownUnreachable]),
            ("alone in the world", "E", &[DownUnreachable]),
            ("a joining companion may be up there", "A B | +C E", &[DownAll, DownReachable]),
            ("a leaving companion may be gone", "-D E | A B", &[DownAll, DownReachable]),
            ("a leaving oldest may be gone", "C -E | A B D", &[DownAll, DownReachable]),
            ("an exiting oldest is none", "D !E | A B", &[DownReachable, DownUnreachable]),
            ("three sides", "D E | A B | C", &[DownUnreachable, DownReachable, DownReachable]),
            ("a pair that cannot talk", "A B E ;A>B B>A", &[DownIndirectlyConnected]),
            ("a ring of three", "A B C E ;A>B B>C C>A", &[DownIndirectlyConnected]),
            (
                "a pair beside a clean split",
                "C D E | A B ;C>D D>C",
                &[DownIndirectlyConnected, DownIndirectlyConnected],
            ),
        ],
    );
    let keeps = DowningStrategy::KeepOldest(KeepOldest { down_if_alone: false, role: None });
    table(
        &keeps,
        &[
            ("it stays alone", "A B C D | E", &[DownReachable, DownUnreachable]),
            ("and downs all others", "A B C D | ~E", &[DownReachable]),
        ],
    );
    let of_role =
        DowningStrategy::KeepOldest(KeepOldest { role: role("role2"), ..KeepOldest::default() });
    table(
        &of_role,
        &[
            ("D is the oldest of C and D", "A E | B C D", &[DownReachable, DownUnreachable]),
            ("no member has the role", "A | B", &[DownAll, DownAll]),
        ],
    );
}

#[test]
fn down_all() {
    table(
        &DowningStrategy::DownAll,
        &[
            ("both sides go", "A B C | D E", &[DownAll, DownAll]),
            ("also for a single crash", "A B C D | ~E", &[DownAll]),
            ("and for one bad link", "A B C ;A>B B>A", &[DownAll]),
        ],
    );
}

#[test]
fn lease_majority() {
    let strategy = DowningStrategy::LeaseMajority(LeaseMajority::default());
    table(
        &strategy,
        &[
            ("the larger side asks first", "A B C | D E", &[AT_ONCE, LATER]),
            ("a tie lets the tiebreaker first", "A B | C D ;=C", &[LATER, AT_ONCE]),
            ("or else the lowest address", "A B | C D", &[AT_ONCE, LATER]),
            ("one crashed of two", "A | ~B", &[AT_ONCE]),
            ("the leader crashed of two", "B | ~A", &[LATER]),
            ("joining counts for nothing", "A +B | C D", &[LATER, AT_ONCE]),
            ("exiting counts for nothing", "A !B | C D", &[LATER, AT_ONCE]),
            ("leaving counts", "-A B | C", &[AT_ONCE, LATER]),
            ("of three sides none is larger", "A B | C D | E", &[LATER, LATER, LATER]),
            ("alone in the world", "A", &[AT_ONCE]),
            ("a pair that cannot talk", "A B C ;A>B B>A", &[LeaseIndirect]),
            (
                "a pair beside a clean split",
                "A B C | D E ;B>C C>B",
                &[LeaseIndirect, LeaseIndirect],
            ),
        ],
    );
    let of_role = DowningStrategy::LeaseMajority(LeaseMajority {
        role: role("role2"),
        ..LeaseMajority::default()
    });
    table(
        &of_role,
        &[
            ("only C and D count", "A B E | C D", &[LATER, AT_ONCE]),
            ("no member has the role: no delay", "A | B", &[AT_ONCE, AT_ONCE]),
            ("regardless of the tiebreaker", "A | B ;=B", &[AT_ONCE, AT_ONCE]),
        ],
    );
}

#[test]
fn manual_always_waits() {
    table(
        &DowningStrategy::Manual,
        &[
            ("both sides", "A B C | D E", &[Nothing, Nothing]),
            ("a crash", "A B C | ~D", &[Nothing]),
            ("a pair that cannot talk", "A B C ;A>B B>A", &[Nothing]),
        ],
    );
}

// ── the quorum overrules ──

#[test]
fn side_with_a_quorum_overrules_most_strategies() {
    let majority = DowningStrategy::KeepMajority(KeepMajority::default());
    let of_role = DowningStrategy::KeepMajority(KeepMajority {
        role: role("role2"),
        ..KeepMajority::default()
    });
    let quorum = DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 3, role: None });
    let rows = [
        // Two of three voters, with a joining member in doubt: no other side can continue.
        (&majority, "B C | A +D ;=A", DownUnreachable, Some(DownAll)),
        (&majority, "B -C | A ;=A", DownUnreachable, Some(DownAll)),
        // Three of five voters, without the counted role.
        (&of_role, "A B E | C D ;=E", DownUnreachable, Some(DownReachable)),
        // C cannot reach the others, which reach each other: a bad network, no dead member.
        (&majority, "A B C ;C>A C>B =A", DownUnreachable, Some(DownIndirectlyConnected)),
        (&majority, "A B ;A>B B>A =A", DownUnreachable, Some(DownIndirectlyConnected)),
        (&majority, "A B C ;A>B B>A =A", DownUnreachable, Some(DownIndirectlyConnected)),
        // Without a quorum nothing is overruled.
        (&majority, "C | A B ;=C", DownReachable, None),
        (&DowningStrategy::DownAll, "A B C | D E ;=A", DownAll, None),
        (&quorum, "A B | C ;=C", DownReachable, None),
    ];
    for (strategy, row, decision, overruled) in rows {
        let resolution = resolve(strategy, Trust::Configuration, &split(row).view(0));
        assert_eq!((resolution.decision, resolution.overruled), (decision, overruled), "{row}");
    }
}

/// Once the proposal is accepted, the other side cannot continue without this one.
#[test]
fn side_needed_by_the_pending_configuration_waits() {
    let majority = DowningStrategy::KeepMajority(KeepMajority::default());
    let mut view = split("C +D | A B ;=A").view(0);
    let pending = |voters: &str| {
        let voters = voters.chars().map(super::node).collect();
        Some(VoterSet { voters, tiebreaker: super::node('A') })
    };
    for (voters, decision) in [("ACD", Nothing), ("ABC", DownReachable), ("ABCD", DownReachable)] {
        view.pending = pending(voters);
        let resolution = resolve(&majority, Trust::Configuration, &view);
        assert_eq!(resolution.decision, decision, "{voters}");
        assert_eq!(resolution.down.is_empty(), decision == Nothing, "{voters}");
    }
    view.pending = pending("ACD");
    let all = resolve(&DowningStrategy::DownAll, Trust::Configuration, &view);
    assert_eq!(all.decision, DownAll, "down-all stops in any case");
}

/// As above, but a bad link of the node itself would end it.
#[test]
fn needed_indirectly_connected_node_waits() {
    let majority = DowningStrategy::KeepMajority(KeepMajority::default());
    let lease = DowningStrategy::LeaseMajority(LeaseMajority::default());
    for (strategy, verdict) in [(&majority, DownIndirectlyConnected), (&lease, LeaseIndirect)] {
        let mut view = split("C +D | A B ;=A D>C").view(0);
        for (voters, decision) in [("ACD", Nothing), ("ABC", verdict)] {
            let voters: Vec<_> = voters.chars().map(super::node).collect();
            view.pending = Some(VoterSet { voters, tiebreaker: super::node('A') });
            let resolution = resolve(strategy, Trust::Configuration, &view);
            assert_eq!(resolution.decision, decision, "{strategy:?}");
            let ends = resolution.down.contains(&super::node('C'));
            assert_eq!(ends, decision != Nothing, "{strategy:?}");
        }
    }
}

/// The same bad link, recorded by its other end: a member that has seen the present state counts as
/// present, even if an observer cannot reach it.
#[test]
fn bad_link_counts_equally_from_both_ends() {
    let majority = DowningStrategy::KeepMajority(KeepMajority::default());
    let lease = DowningStrategy::LeaseMajority(LeaseMajority::default());
    for (strategy, verdict) in [(&majority, DownIndirectlyConnected), (&lease, LeaseIndirect)] {
        for (row, own) in [("C>D", 'C'), ("D>C", 'C'), ("C>D", 'D'), ("D>C", 'D')] {
            let mut view = split(&format!("C +D | A B ;=A {row}")).view_of(0, super::node(own));
            let pending = |voters: &str| {
                let voters = voters.chars().map(super::node).collect();
                Some(VoterSet { voters, tiebreaker: super::node('A') })
            };
            view.pending = pending("ACD");
            let needed = resolve(strategy, Trust::Configuration, &view);
            assert_eq!(needed.decision, Nothing, "{row} at {own}: {strategy:?}");
            view.pending = pending("ABC");
            let other = resolve(strategy, Trust::Configuration, &view);
            assert_eq!(other.decision, verdict, "{row} at {own}: {strategy:?}");
        }
    }
    // D is dead or on the other side: it has not seen the present state.
    let mut view = split("C | D A B ;=A").view(0);
    let voters = "ACD".chars().map(super::node).collect();
    view.pending = Some(VoterSet { voters, tiebreaker: super::node('A') });
    assert_eq!(resolve(&majority, Trust::Configuration, &view).decision, DownReachable);
}

#[test]
fn with_trust_downing_the_strategy_decides() {
    let oldest = DowningStrategy::KeepOldest(KeepOldest::default());
    // Three members hold the quorum, the other two the oldest. If the three also survived, two
    // sides would.
    let split = split("A B C | D E ;=E");
    let three = resolve(&oldest, Trust::Survivors, &split.view(0));
    let two = resolve(&oldest, Trust::Survivors, &split.view(1));
    assert_eq!((three.decision, two.decision), (DownReachable, DownUnreachable));
    assert_eq!(super::names(&three.down), "A B C");
    assert_eq!(super::names(&two.down), "A B C");
}

#[test]
fn only_a_leader_that_was_admitted_acts() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority::default());
    let split = split("A B +C | D");
    for (own, acts) in [('A', true), ('B', false), ('C', false)] {
        let view = split.view_of(0, super::node(own));
        assert_eq!(resolve(&strategy, Trust::Configuration, &view).responsible, acts, "{own}");
    }
    let alone = super::split("+A | B").view(0);
    assert!(!resolve(&strategy, Trust::Configuration, &alone).responsible, "a joining leader");
    let last = super::split("!A | B ;=A").view(0);
    let resolution = resolve(&strategy, Trust::Configuration, &last);
    assert_eq!(
        (resolution.decision, super::names(&resolution.down)),
        (DownUnreachable, "B".into())
    );
    assert!(resolution.responsible, "no other member could act");
}

/// A was never in a configuration, or is already removed. B and C cannot leave before D is removed.
#[test]
fn exiting_voter_acts_before_exiting_non_voters() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority::default());
    let split = split("!A !B !C | D");
    for (own, acts) in [('A', false), ('B', true), ('C', false)] {
        let mut view = split.view_of(0, super::node(own));
        let voters = "BCD".chars().map(super::node).collect();
        view.electorate = Some(VoterSet { voters, tiebreaker: super::node('D') });
        let resolution = resolve(&strategy, Trust::Configuration, &view);
        assert_eq!(resolution.responsible, acts, "{own}");
        assert_eq!(super::names(&resolution.down), "D", "{own}");
    }
}

/// D accused E and crashed before E was removed; then E crashed. Counting D as indirectly
/// connected, as Akka does, would end all five.
#[test]
fn accusations_by_unreachable_nodes_are_set_aside() {
    let keep_majority = DowningStrategy::KeepMajority(KeepMajority::default());
    let static_quorum =
        DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 3, ..StaticQuorum::default() });
    for strategy in [keep_majority, static_quorum] {
        let view = split("A B C | ~D ~E ;D>E =A").view(0);
        let decision = strategy.decide(&view);
        assert_eq!(decision, DownIndirectlyConnected);
        let down = strategy.down(&view, decision);
        assert_eq!(super::names(&down), "D E");
    }
}
