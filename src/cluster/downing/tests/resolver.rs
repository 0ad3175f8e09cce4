//! Timing of decisions. Views are rows of tables, times are in milliseconds. The cases follow the
//! tests of Pekko's resolver.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::{names, node, split};
use crate::cluster::downing::{
    AutoDown, KeepMajority, LeaderRoles, LeaseAnswer, LeaseMajority, Order, QuorumLeader,
    Resolution, Resolver, StaticQuorum, Strategy, Timing, Trust, View,
};

const STABLE: Timing = Timing {
    stable_after: Duration::from_secs(2),
    down_all_after: None,
    turn: Duration::from_secs(10),
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn majority() -> Strategy {
    Strategy::KeepMajority(KeepMajority::default())
}

fn lease() -> Strategy {
    Strategy::LeaseMajority(LeaseMajority::default())
}

fn resolver(strategy: Strategy, timing: Timing) -> Resolver {
    Resolver::new(strategy, Trust::Survivors, timing)
}

/// The view of the first member.
fn seen(row: &str) -> View {
    split(row).view(0)
}

fn seen_by(own: char, row: &str) -> View {
    split(row).view_of(0, node(own))
}

/// All orders from `from` to `end` with their times: `2000: DownUnreachable of D E`.
fn run(resolver: &mut Resolver, from: u64, end: u64) -> Vec<String> {
    let mut orders = Vec::new();
    let mut now = at(from);
    loop {
        while let Some(order) = resolver.poll(now) {
            orders.push(format!("{}: {}", now.as_nanos() / 1_000_000, text(&order)));
        }
        match resolver.next_deadline() {
            Some(next) if next <= at(end) => {
                assert!(next > now, "a deadline without effect: {next:?}");
                now = next;
            }
            _ => return orders,
        }
    }
}

fn text(order: &Order) -> String {
    match order {
        Order::Resolve(Resolution { decision, down, responsible, .. }) => {
            let suffix = if *responsible { "" } else { ", not responsible" };
            format!("{decision:?} of {}{suffix}", names(down))
        }
        Order::Withdraw => "Withdraw".to_owned(),
        Order::AcquireLease => "AcquireLease".to_owned(),
        Order::ReleaseLease => "ReleaseLease".to_owned(),
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_leader_acts_once_it_was_quiet_long_enough_and_again_if_nothing_came_of_it() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen("A B C"));
    resolver.observe(at(1_000), seen("A B | C"));
    assert_eq!(run(&mut resolver, 1_000, 2_999), NOTHING);
    assert_eq!(
        run(&mut resolver, 2_999, 5_500),
        ["3000: DownUnreachable of C", "5000: DownUnreachable of C"]
    );
}

#[test]
fn who_is_next_acts_in_the_leaders_place_where_only_a_configuration_removes() {
    let row = "A B C | D ;=A";
    for (own, expected) in [('B', "12000"), ('C', "22000")] {
        let mut next = Resolver::new(majority(), Trust::Configuration, STABLE);
        next.observe(at(0), seen_by(own, row));
        let orders = run(&mut next, 0, 23_999);
        assert_eq!(orders.first(), Some(&format!("{expected}: DownUnreachable of D")), "{own}");
        next.observe(at(24_000), seen_by(own, "A B C E | D ;=A"));
        assert_eq!(
            run(&mut next, 24_000, 27_000),
            ["26000: Withdraw"],
            "another member is Up: {own}"
        );
    }
}

#[test]
fn what_was_ordered_is_withdrawn_once_when_it_is_no_longer_for_this_node_to_say() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('B', "B C D | A"));
    assert_eq!(run(&mut resolver, 0, 2_500), ["2000: DownUnreachable of A"]);
    resolver.observe(at(3_000), seen_by('B', "C A B | D"));
    assert_eq!(run(&mut resolver, 3_000, 60_000), ["5000: Withdraw"]);
}

#[test]
fn with_no_time_to_wait_it_acts_at_once() {
    let mut resolver = resolver(majority(), Timing { stable_after: Duration::ZERO, ..STABLE });
    resolver.observe(at(7), seen("A B | C"));
    assert_eq!(
        resolver.poll(at(7)).map(|order| text(&order)).as_deref(),
        Some("DownUnreachable of C")
    );
}

#[test]
fn who_does_not_lead_never_acts() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('B', "A B | C"));
    assert_eq!(run(&mut resolver, 0, 60_000), NOTHING);
}

#[test]
fn who_does_not_lead_still_goes_with_its_side() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('E', "D E | A B C"));
    assert_eq!(run(&mut resolver, 0, 2_000), ["2000: DownReachable of D E, not responsible"]);
}

#[test]
fn who_comes_to_lead_acts_and_who_no_longer_leads_does_not() {
    let mut comes = resolver(majority(), STABLE);
    comes.observe(at(0), seen_by('B', "A B C | D"));
    assert_eq!(run(&mut comes, 0, 5_000), NOTHING);
    comes.observe(at(5_000), seen_by('B', "B C | D"));
    assert_eq!(run(&mut comes, 5_000, 5_000), ["5000: DownUnreachable of D"], "A was removed");
    let mut goes = resolver(majority(), STABLE);
    goes.observe(at(0), seen_by('B', "B C D | E"));
    goes.observe(at(1_000), seen_by('B', "A B C D | E"));
    assert_eq!(run(&mut goes, 0, 9_000), NOTHING);
}

#[test]
fn what_heals_or_is_removed_or_already_down_in_time_is_left_alone() {
    for later in ["A B C", "A B", "A B | *C"] {
        let mut resolver = resolver(majority(), STABLE);
        resolver.observe(at(0), seen("A B | C"));
        resolver.observe(at(1_999), seen(later));
        assert_eq!(run(&mut resolver, 1_999, 60_000), NOTHING, "{later}");
    }
}

#[test]
fn what_may_change_the_verdict_restarts_the_wait_and_what_may_not_does_not() {
    let rows = [
        ("A B C +D -E | F", "A B C +D -E G | F", 3_500, "a member is up"),
        ("A B C +D -E | F", "A B C +D !E | F", 3_500, "a member exits"),
        ("A B C +D -E | F", "A B *C +D -E | F", 3_500, "a member is down"),
        ("A B C +D -E | F", "A B +D -E | F C", 3_500, "a member is unreachable"),
        ("A B C +D -E | F G", "A B C +D -E F | G", 3_500, "a member is reachable"),
        ("A B C +D -E | F", "A B C +D -E +G | F", 2_000, "a member joins"),
        ("A B C +D -E | F", "A B C ^D -E | F", 2_000, "a member is weakly up"),
        ("A B C +D -E | F", "A B -C +D -E | F", 2_000, "a member leaves"),
        ("A B C +D -E | F", "A B C +D | F", 2_000, "a member is removed"),
    ];
    for (before, after, acts, what) in rows {
        let mut resolver = resolver(majority(), STABLE);
        resolver.observe(at(0), seen(before));
        resolver.observe(at(1_500), seen(after));
        assert_eq!(resolver.next_deadline(), Some(at(acts)), "{what}");
    }
}

#[test]
fn a_cluster_that_outgrew_its_quorum_goes_as_a_whole() {
    let strategy = Strategy::StaticQuorum(StaticQuorum { quorum_size: 2, role: None });
    let mut resolver = resolver(strategy, STABLE);
    resolver.observe(at(0), seen("A B C | D"));
    assert_eq!(run(&mut resolver, 0, 2_000), ["2000: DownAll of A B C D"]);
}

// ── unstable clusters ──

/// D stays unreachable while E becomes reachable and unreachable in turn.
fn flap(resolver: &mut Resolver, steps: u64, every: u64) -> Vec<String> {
    let mut orders = Vec::new();
    for step in 0..steps {
        let row = if step % 2 == 0 { "A B C | D E" } else { "A B C E | D" };
        resolver.observe(at(step * every), seen(row));
        orders.extend(run(resolver, step * every, (step + 1) * every - 1));
    }
    orders
}

#[test]
fn a_cluster_that_does_not_come_to_rest_goes_as_a_whole_on_every_node() {
    for (unstable, every, expected) in [(1_000, 1_000, 3_000), (500, 900, 2_500)] {
        let down_all_after = Some(Duration::from_millis(unstable));
        let mut resolver = resolver(majority(), Timing { down_all_after, ..STABLE });
        let orders = flap(&mut resolver, 4, every);
        assert_eq!(orders, [format!("{expected}: DownAll of A B C D E")]);
    }
    let timing = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let mut follower = resolver(majority(), timing);
    follower.observe(at(0), seen_by('B', "A B C | D E"));
    follower.observe(at(1_500), seen_by('B', "A B C E | D"));
    assert_eq!(run(&mut follower, 1_500, 3_000), ["3000: DownAll of A B C D E"]);
}

#[test]
fn a_restless_cluster_that_heals_is_left_alone() {
    let timing = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let mut resolver = resolver(majority(), timing);
    assert_eq!(flap(&mut resolver, 3, 900), NOTHING);
    resolver.observe(at(2_700), seen("A B C D E"));
    assert_eq!(run(&mut resolver, 2_700, 60_000), NOTHING);
}

#[test]
fn restlessness_ends_nobody_where_it_is_off_or_the_strategy_weighs_no_sides() {
    let on = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let roles = Strategy::LeaderRoles(LeaderRoles::default());
    for (strategy, timing) in [(majority(), STABLE), (Strategy::Manual, on), (roles, on)] {
        let mut resolver = resolver(strategy.clone(), timing);
        assert_eq!(flap(&mut resolver, 30, 1_000), NOTHING, "{strategy:?}");
    }
}

// ── strategies of one member ──

#[test]
fn auto_down_counts_the_time_of_each_and_waits_for_no_quiet() {
    let strategy = Strategy::AutoDown(AutoDown { after: Duration::from_secs(5) });
    let mut resolver = resolver(strategy, STABLE);
    resolver.observe(at(0), seen("A B C | D"));
    resolver.observe(at(3_000), seen("A B | C D"));
    assert_eq!(
        run(&mut resolver, 3_000, 9_000),
        ["5000: DownTargets of D", "8000: DownTargets of C"]
    );
    resolver.observe(at(9_500), seen("A B D | C"));
    resolver.observe(at(9_600), seen("A B | C D"));
    assert_eq!(run(&mut resolver, 9_600, 14_000), ["13000: DownTargets of C"]);
}

#[test]
fn who_is_given_the_word_after_the_wait_uses_it_at_once() {
    let roles = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let strategies = [
        Strategy::QuorumLeader(QuorumLeader { quorum_size: 1, ..QuorumLeader::default() }),
        Strategy::LeaderRoles(LeaderRoles { target_roles: roles(&["role1"]) }),
        Strategy::AutoDown(AutoDown { after: Duration::from_secs(2) }),
    ];
    for strategy in strategies {
        let mut resolver = resolver(strategy.clone(), STABLE);
        resolver.observe(at(0), seen_by('C', "A C | B"));
        assert_eq!(run(&mut resolver, 0, 30_000), NOTHING, "{strategy:?}");
        resolver.observe(at(30_000), seen("C | B"));
        let orders = run(&mut resolver, 30_000, 30_000);
        assert!(orders.len() == 1 && orders[0].ends_with(" of B"), "{strategy:?}: {orders:?}");
    }
}

#[test]
fn members_that_fall_silent_together_are_one_batch() {
    let strategy = Strategy::QuorumLeader(QuorumLeader { quorum_size: 2, ..Default::default() });
    let mut resolver = resolver(strategy, STABLE);
    resolver.observe(at(0), seen("A B C D | E"));
    resolver.observe(at(1_000), seen("A B C | D E"));
    assert_eq!(run(&mut resolver, 1_000, 3_000), ["3000: DownUnreachable of D E"]);
}

// ── the lease ──

#[test]
fn a_granted_lease_downs_the_unreachable_and_is_given_back_after_they_are_removed() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    assert_eq!(run(&mut resolver, 0, 2_500), ["2000: AcquireLease"]);
    let order = resolver.lease_answered(at(2_500), LeaseAnswer::Granted).unwrap();
    assert_eq!(text(&order), "AcquireLeaseAndDownUnreachable { after: 0ns } of B");
    resolver.observe(at(3_000), seen("A C"));
    assert_eq!(run(&mut resolver, 3_000, 60_000), ["43000: ReleaseLease"]);
    assert_eq!(run(&mut resolver, 60_000, 99_000), NOTHING);
}

#[test]
fn while_the_lease_is_held_the_next_split_needs_no_question() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C D | B"));
    run(&mut resolver, 0, 2_000);
    resolver.lease_answered(at(2_000), LeaseAnswer::Granted);
    resolver.observe(at(3_000), seen("A C D"));
    resolver.observe(at(10_000), seen("A C | D"));
    let orders = run(&mut resolver, 10_000, 12_000);
    assert_eq!(orders, ["12000: AcquireLeaseAndDownUnreachable { after: 0ns } of D"]);
}

#[test]
fn a_denied_lease_ends_this_side() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    let order = resolver.lease_answered(at(2_100), LeaseAnswer::Denied).unwrap();
    assert_eq!(text(&order), "DownReachable of A C");
}

#[test]
fn the_indirectly_connected_go_with_the_lease_and_everybody_without() {
    let row = "A B C ;A>B B>A";
    for (answer, expected) in [
        (LeaseAnswer::Granted, "AcquireLeaseAndDownIndirectlyConnected of A B"),
        (LeaseAnswer::Denied, "DownReachable of A B C"),
    ] {
        let mut resolver = resolver(lease(), STABLE);
        resolver.observe(at(0), seen(row));
        assert_eq!(run(&mut resolver, 0, 2_000), ["2000: AcquireLease"]);
        let order = resolver.lease_answered(at(2_000), answer).unwrap();
        assert_eq!(text(&order), expected);
    }
}

#[test]
fn a_minority_lets_the_majority_ask_first() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("D E | A B C"));
    assert_eq!(run(&mut resolver, 0, 4_000), ["4000: AcquireLease"]);
    let mut healed = self::resolver(lease(), STABLE);
    healed.observe(at(0), seen("D E | A B C"));
    assert_eq!(run(&mut healed, 0, 3_000), NOTHING);
    healed.observe(at(3_500), seen("A B C D E"));
    assert_eq!(run(&mut healed, 3_500, 60_000), NOTHING);
}

#[test]
fn no_answer_about_the_lease_is_a_refusal() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    assert_eq!(run(&mut resolver, 0, 7_000), ["2000: AcquireLease", "7000: DownReachable of A C"]);
    let late = resolver.lease_answered(at(7_100), LeaseAnswer::Granted);
    assert_eq!(late, Some(Order::ReleaseLease), "a late grant is released");
}

#[test]
fn an_answer_about_the_lease_is_judged_by_the_view_of_its_time() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    resolver.observe(at(2_100), seen("A B C"));
    assert_eq!(resolver.lease_answered(at(2_200), LeaseAnswer::Granted), None, "it has healed");
    assert_eq!(run(&mut resolver, 2_200, 90_000), ["42200: ReleaseLease"]);
}

#[test]
fn a_lease_is_given_back_though_those_that_it_downed_came_back() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    assert!(resolver.lease_answered(at(2_100), LeaseAnswer::Granted).is_some(), "B is downed");
    resolver.observe(at(3_000), seen("A B C"));
    assert_eq!(run(&mut resolver, 3_000, 90_000), ["43000: ReleaseLease"]);
}

#[test]
fn a_lost_lease_must_be_asked_for_again() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    resolver.lease_answered(at(2_000), LeaseAnswer::Granted);
    resolver.lease_lost();
    assert_eq!(run(&mut resolver, 2_000, 4_000), ["4000: AcquireLease"]);
}

#[test]
fn a_side_with_a_quorum_does_not_go_for_want_of_a_lease_and_asks_again() {
    let mut resolver = Resolver::new(lease(), Trust::Configuration, STABLE);
    resolver.observe(at(0), seen("A C | B ;=A"));
    run(&mut resolver, 0, 2_000);
    assert_eq!(resolver.lease_answered(at(2_500), LeaseAnswer::Denied), None);
    assert_eq!(run(&mut resolver, 2_500, 4_500), ["4500: AcquireLease"]);
}

#[test]
fn only_the_leader_asks_for_the_lease() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen_by('C', "A C | B"));
    assert_eq!(run(&mut resolver, 0, 60_000), NOTHING);
}

#[test]
fn the_decision_of_a_view_is_not_made_before_there_is_one() {
    let mut resolver = resolver(majority(), STABLE);
    assert_eq!((resolver.poll(at(9_000)), resolver.next_deadline()), (None, None));
    assert_eq!(resolver.lease_answered(at(9_000), LeaseAnswer::Denied), None);
    let order = resolver.lease_answered(at(9_000), LeaseAnswer::Granted);
    assert_eq!(order, Some(Order::ReleaseLease));
}
