//! Timing of decisions. Views are rows of tables, times are in milliseconds. The cases follow the
//! tests of Pekko's resolver.

use std::time::Duration;

use ostraca_ddata::clock::Instant;

use super::{names, node, split};
use crate::cluster::downing::{
    AutoDown, DowningResolver, DowningStrategy, KeepMajority, LeaderRoles, LeaseAnswer,
    LeaseMajority, QuorumLeader, Resolution, ResolverOrder, StaticQuorum, Timing, Trust, View,
};

const STABLE: Timing = Timing {
    stable_after: Duration::from_secs(2),
    down_all_after: None,
    turn: Duration::from_secs(10),
};

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn majority() -> DowningStrategy {
    DowningStrategy::KeepMajority(KeepMajority::default())
}

fn lease() -> DowningStrategy {
    DowningStrategy::LeaseMajority(LeaseMajority::default())
}

fn resolver(strategy: DowningStrategy, timing: Timing) -> DowningResolver {
    DowningResolver::new(strategy, Trust::Survivors, timing)
}

/// The view of the first member.
fn seen(row: &str) -> View {
    split(row).view(0)
}

fn seen_by(own: char, row: &str) -> View {
    split(row).view_of(0, node(own))
}

/// All orders from `from` to `end` with their times: `2000: DownUnreachable of D E`.
fn run(resolver: &mut DowningResolver, from: u64, end: u64) -> Vec<String> {
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

fn text(order: &ResolverOrder) -> String {
    match order {
        ResolverOrder::Resolve(Resolution { decision, down, responsible, .. }) => {
            let suffix = if *responsible { "" } else { ", not responsible" };
            format!("{decision:?} of {}{suffix}", names(down))
        }
        ResolverOrder::Withdraw => "Withdraw".to_owned(),
        ResolverOrder::AcquireLease => "AcquireLease".to_owned(),
        ResolverOrder::ReleaseLease => "ReleaseLease".to_owned(),
    }
}

const NOTHING: [&str; 0] = [];

#[test]
fn leader_acts_after_a_stable_view_and_repeats() {
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
fn next_member_acts_in_place_of_the_leader() {
    let row = "A B C | D ;=A";
    for (own, expected) in [('B', "12000"), ('C', "22000")] {
        let mut next = DowningResolver::new(majority(), Trust::Configuration, STABLE);
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
fn order_is_withdrawn_once_another_node_leads() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('B', "B C D | A"));
    assert_eq!(run(&mut resolver, 0, 2_500), ["2000: DownUnreachable of A"]);
    resolver.observe(at(3_000), seen_by('B', "C A B | D"));
    assert_eq!(run(&mut resolver, 3_000, 60_000), ["5000: Withdraw"]);
}

#[test]
fn zero_stable_after_acts_at_once() {
    let mut resolver = resolver(majority(), Timing { stable_after: Duration::ZERO, ..STABLE });
    resolver.observe(at(7), seen("A B | C"));
    assert_eq!(
        resolver.poll(at(7)).map(|order| text(&order)).as_deref(),
        Some("DownUnreachable of C")
    );
}

#[test]
fn follower_never_acts() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('B', "A B | C"));
    assert_eq!(run(&mut resolver, 0, 60_000), NOTHING);
}

#[test]
fn follower_stops_with_its_side() {
    let mut resolver = resolver(majority(), STABLE);
    resolver.observe(at(0), seen_by('E', "D E | A B C"));
    assert_eq!(run(&mut resolver, 0, 2_000), ["2000: DownReachable of D E, not responsible"]);
}

#[test]
fn new_leader_acts_and_former_leader_does_not() {
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
fn healed_removed_and_down_members_are_not_downed() {
    for later in ["A B C", "A B", "A B | *C"] {
        let mut resolver = resolver(majority(), STABLE);
        resolver.observe(at(0), seen("A B | C"));
        resolver.observe(at(1_999), seen(later));
        assert_eq!(run(&mut resolver, 1_999, 60_000), NOTHING, "{later}");
    }
}

#[test]
fn only_relevant_changes_restart_the_wait() {
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
fn cluster_larger_than_its_quorum_allows_is_downed() {
    let strategy = DowningStrategy::StaticQuorum(StaticQuorum { quorum_size: 2, role: None });
    let mut resolver = resolver(strategy, STABLE);
    resolver.observe(at(0), seen("A B C | D"));
    assert_eq!(run(&mut resolver, 0, 2_000), ["2000: DownAll of A B C D"]);
}

// ── unstable clusters ──

/// D stays unreachable while E becomes reachable and unreachable in turn.
fn flap(resolver: &mut DowningResolver, steps: u64, every: u64) -> Vec<String> {
    let mut orders = Vec::new();
    for step in 0..steps {
        let row = if step % 2 == 0 { "A B C | D E" } else { "A B C E | D" };
        resolver.observe(at(step * every), seen(row));
        orders.extend(run(resolver, step * every, (step + 1) * every - 1));
    }
    orders
}

#[test]
fn unstable_cluster_is_downed_on_every_node() {
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
fn exiting_node_downs_no_unstable_cluster() {
    let timing = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let mut exiting = resolver(majority(), timing);
    exiting.observe(at(0), seen_by('B', "A !B C | D E"));
    exiting.observe(at(1_500), seen_by('B', "A !B C E | D"));
    assert_eq!(run(&mut exiting, 1_500, 60_000), NOTHING);
}

#[test]
fn unstable_cluster_that_heals_is_not_downed() {
    let timing = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let mut resolver = resolver(majority(), timing);
    assert_eq!(flap(&mut resolver, 3, 900), NOTHING);
    resolver.observe(at(2_700), seen("A B C D E"));
    assert_eq!(run(&mut resolver, 2_700, 60_000), NOTHING);
}

#[test]
fn instability_is_ignored_where_disabled() {
    let on = Timing { down_all_after: Some(Duration::from_secs(1)), ..STABLE };
    let roles = DowningStrategy::LeaderRoles(LeaderRoles::default());
    for (strategy, timing) in [(majority(), STABLE), (DowningStrategy::Manual, on), (roles, on)] {
        let mut resolver = resolver(strategy.clone(), timing);
        assert_eq!(flap(&mut resolver, 30, 1_000), NOTHING, "{strategy:?}");
    }
}

// ── strategies of one member ──

#[test]
fn auto_down_counts_time_per_member() {
    let strategy = DowningStrategy::AutoDown(AutoDown { after: Duration::from_secs(5) });
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
fn node_leading_after_the_wait_acts_at_once() {
    let roles = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let strategies = [
        DowningStrategy::QuorumLeader(QuorumLeader { quorum_size: 1, ..QuorumLeader::default() }),
        DowningStrategy::LeaderRoles(LeaderRoles { target_roles: roles(&["role1"]) }),
        DowningStrategy::AutoDown(AutoDown { after: Duration::from_secs(2) }),
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
fn members_lost_together_are_downed_together() {
    let strategy =
        DowningStrategy::QuorumLeader(QuorumLeader { quorum_size: 2, ..Default::default() });
    let mut resolver = resolver(strategy, STABLE);
    resolver.observe(at(0), seen("A B C D | E"));
    resolver.observe(at(1_000), seen("A B C | D E"));
    assert_eq!(run(&mut resolver, 1_000, 3_000), ["3000: DownUnreachable of D E"]);
}

// ── the lease ──

#[test]
fn granted_lease_is_released_after_the_removals() {
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
fn held_lease_covers_the_next_split() {
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
fn denied_lease_stops_this_side() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    let order = resolver.lease_answered(at(2_100), LeaseAnswer::Denied).unwrap();
    assert_eq!(text(&order), "DownReachable of A C");
}

#[test]
fn denied_lease_also_downs_indirectly_connected() {
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
fn minority_requests_the_lease_later() {
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
fn missing_lease_answer_is_a_refusal() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    assert_eq!(run(&mut resolver, 0, 7_000), ["2000: AcquireLease", "7000: DownReachable of A C"]);
    let late = resolver.lease_answered(at(7_100), LeaseAnswer::Granted);
    assert_eq!(late, Some(ResolverOrder::ReleaseLease), "a late grant is released");
}

#[test]
fn lease_answer_is_judged_by_the_present_view() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    resolver.observe(at(2_100), seen("A B C"));
    assert_eq!(resolver.lease_answered(at(2_200), LeaseAnswer::Granted), None, "it has healed");
    assert_eq!(run(&mut resolver, 2_200, 90_000), ["42200: ReleaseLease"]);
}

#[test]
fn lease_is_released_if_downed_members_return() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    assert!(resolver.lease_answered(at(2_100), LeaseAnswer::Granted).is_some(), "B is downed");
    resolver.observe(at(3_000), seen("A B C"));
    assert_eq!(run(&mut resolver, 3_000, 90_000), ["43000: ReleaseLease"]);
}

#[test]
fn lost_lease_is_requested_again() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen("A C | B"));
    run(&mut resolver, 0, 2_000);
    resolver.lease_answered(at(2_000), LeaseAnswer::Granted);
    resolver.lease_lost();
    assert_eq!(run(&mut resolver, 2_000, 4_000), ["4000: AcquireLease"]);
}

#[test]
fn side_with_quorum_requests_a_denied_lease_again() {
    let mut resolver = DowningResolver::new(lease(), Trust::Configuration, STABLE);
    resolver.observe(at(0), seen("A C | B ;=A"));
    run(&mut resolver, 0, 2_000);
    assert_eq!(resolver.lease_answered(at(2_500), LeaseAnswer::Denied), None);
    assert_eq!(run(&mut resolver, 2_500, 4_500), ["4500: AcquireLease"]);
}

#[test]
fn only_the_leader_requests_the_lease() {
    let mut resolver = resolver(lease(), STABLE);
    resolver.observe(at(0), seen_by('C', "A C | B"));
    assert_eq!(run(&mut resolver, 0, 60_000), NOTHING);
}

#[test]
fn no_decision_before_the_first_view() {
    let mut resolver = resolver(majority(), STABLE);
    assert_eq!((resolver.poll(at(9_000)), resolver.next_deadline()), (None, None));
    assert_eq!(resolver.lease_answered(at(9_000), LeaseAnswer::Denied), None);
    let order = resolver.lease_answered(at(9_000), LeaseAnswer::Granted);
    assert_eq!(order, Some(ResolverOrder::ReleaseLease));
}
