//! Enumeration of all small clusters: how often decisions alone would let two sides continue, and
//! that the configuration never does. `clashes.txt` contains the counts.
//!
//! Enumerated are all clusters of 2 to 5 members, each Up, Joining or Leaving, with each member as
//! the oldest where age matters (keep-oldest: up to 4 members in every order of age; strategies of
//! one member: up to 4 members). Every cluster is split in two in every way. Both sides have the
//! same view, or one of them is a step ahead (Joining → Up, Leaving → Exiting). A side continues if
//! an Up or Leaving member of it is downed by no member of that side.
//!
//! Explanation of the results:
//! - keep-majority, same view: two sides cannot both be the larger one, and a tie has one winner. A
//!   step ahead: the worst-case check counts possible joiners as present there and possible leavers
//!   as gone, so the larger side by either count is the larger one by both.
//! - Exception: a tie by the lowest address if its owner is Joining in one view and Up in the
//!   other. Akka excludes this because only a leader is ahead; here any proposer may be. Both sides
//!   know the tiebreaker of the configuration, so there are no clashes with it.
//! - static-quorum without the worst-case check (as in Akka) clashes at rolling replacements; with
//!   it, never. Half of the check would suffice and keep more clusters alive: whether the other
//!   side may have the quorum.
//! - keep-oldest: both sides know the same oldest member, because ages never change. The worst-case
//!   check covers that it may have left or may no longer be alone.
//! - quorum-leader 3: with fewer than six members, two sides of three do not exist.
//! - lease-majority is not enumerated: the lease has one holder in any case.
//! - The strategies of one member have no worst-case check, and those by roles do not compare
//!   sides.
//! - Column `nobody` counts splits after which no side continues. Under the configuration,
//!   keep-majority has them only where no side holds a quorum.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ostraca_ddata::fault_injection::FaultInjection;
use ostraca_ddata::id::{NodeId, ReplicaId};
use ostraca_ddata::replicator::quorum::is_quorum;

use super::{member, node};
use crate::cluster::downing::view::{MEMBERS, POSSIBLE};
use crate::cluster::downing::{
    AutoDown, DowningDecision, DowningStrategy, KeepMajority, KeepOldest, LeaderRoles,
    MajorityLeader, Oldest, QuorumLeader, Resolution, RoleLeaderRoles, StaticQuorum, TieBreak,
    Trust, UnreachableRecord, View, VoterSet, resolve,
};
use crate::cluster::member::{Member, Status};

const NAMES: [char; 5] = ['A', 'B', 'C', 'D', 'E'];

/// A cluster that is split in two, as seen by both sides.
struct Case {
    views: [Vec<Member>; 2],
    sides: [Vec<NodeId>; 2],
    electorate: VoterSet,
}

/// Age of each member by its index.
type Ages = Vec<u64>;

/// Enumerated clusters: one order of age, each member as the oldest, or every order of age.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    AsListedOfFive,
    OldestOfFive,
    OldestOfFour,
    AgesOfFour,
}

/// The side whose view is a step ahead.
#[derive(Clone, Copy, PartialEq)]
enum Ahead {
    Nobody,
    LeadersSide,
    OtherSide,
}

fn every_case(which: Which, ahead: Ahead, mut check: impl FnMut(&Case)) {
    let (largest, orders): (_, fn(usize) -> Vec<Ages>) = match which {
        Which::AsListedOfFive => (5, |count| vec![(0..count as u64).collect()]),
        Which::OldestOfFive => (5, rotations),
        Which::OldestOfFour => (4, rotations),
        Which::AgesOfFour => (4, permutations),
    };
    for count in 2..=largest {
        for statuses in 0..3_usize.pow(u32::try_from(count).unwrap()) {
            for ages in orders(count) {
                let members = cluster(count, statuses, &ages);
                if members.iter().any(Member::counts) {
                    every_cut(&members, ahead, &mut check);
                }
            }
        }
    }
}

/// Creates members from a base-3 number of statuses and a list of ages; Joining members have no
/// age.
fn cluster(count: usize, statuses: usize, ages: &[u64]) -> Vec<Member> {
    let status = [Status::Up, Status::Joining, Status::Leaving];
    let members = (0..count).map(|at| {
        let mut member =
            member(NAMES[at], status[statuses / 3_usize.pow(u32::try_from(at).unwrap()) % 3]);
        member.roles = ["all"].into_iter().collect();
        member.up_number = (member.status != Status::Joining).then_some(ages[at]);
        member
    });
    members.collect()
}

/// Orders of age in which each member is the oldest once.
fn rotations(count: usize) -> Vec<Ages> {
    let ages = |first: usize| (0..count).map(move |at| ((at + count - first) % count) as u64);
    (0..count).map(|first| ages(first).collect()).collect()
}

fn permutations(count: usize) -> Vec<Ages> {
    let mut all = vec![vec![]];
    for next in 0..count {
        let longer = all.iter().flat_map(|order: &Vec<u64>| {
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, next as u64);
                order
            })
        });
        all = longer.collect();
    }
    all
}

fn every_cut(members: &[Member], ahead: Ahead, check: &mut impl FnMut(&Case)) {
    let leader = members.iter().find(|member| member.counts()).expect("a member counts").node;
    let voters = || members.iter().filter(|member| member.counts());
    let tiebreaker = voters().min_by(|a, b| a.by_age(b)).expect("a member counts").node;
    let electorate = VoterSet { voters: voters().map(|m| m.node).collect(), tiebreaker };
    let stepped = step(members);
    if ahead != Ahead::Nobody && stepped == members {
        return;
    }
    // The first member is always on the first side, so that each split occurs once.
    for cut in 0..(1_usize << (members.len() - 1)) - 1 {
        let on_first = |at: usize| at == 0 || cut & (1 << (at - 1)) != 0;
        let side = |first: bool| {
            let of = (0..members.len()).filter(move |at| on_first(*at) == first);
            of.map(|at| members[at].node).collect::<Vec<_>>()
        };
        let mut sides = [side(true), side(false)];
        if !sides[0].contains(&leader) {
            sides.swap(0, 1);
        }
        let now = || members.to_vec();
        let views = match ahead {
            Ahead::Nobody => [now(), now()],
            Ahead::LeadersSide => [stepped.clone(), now()],
            Ahead::OtherSide => [now(), stepped.clone()],
        };
        check(&Case { views, sides, electorate: electorate.clone() });
    }
}

/// The next changes that the leader and the members themselves make.
fn step(members: &[Member]) -> Vec<Member> {
    let mut members = members.to_vec();
    let mut youngest = 10;
    for member in &mut members {
        member.status = match member.status {
            Status::Joining => Status::Up,
            Status::Leaving => Status::Exiting,
            other => other,
        };
        if member.up_number.is_none() {
            member.up_number = Some(youngest);
            youngest += 1;
        }
    }
    members
}

impl Case {
    /// The view of a member of a side.
    fn view(&self, side: usize, own: NodeId) -> View {
        let observer = self.sides[side][0];
        let unreachable = self.sides[1 - side].iter();
        let record = |subject: &NodeId| UnreachableRecord { observer, subject: *subject };
        View {
            own,
            members: self.views[side].clone(),
            records: unreachable.clone().map(record).collect(),
            unreachable: unreachable.map(|node| (*node, std::time::Duration::MAX)).collect(),
            seen: self.sides[side].iter().copied().collect(),
            connected: BTreeSet::new(),
            electorate: Some(self.electorate.clone()),
            pending: None,
        }
    }

    /// Members of a side that continue according to its own view.
    fn survivors(&self, side: usize, strategy: &DowningStrategy, trust: Trust) -> BTreeSet<NodeId> {
        let mut survivors: BTreeSet<NodeId> = self.views[side]
            .iter()
            .filter(|member| member.counts() && self.sides[side].contains(&member.node))
            .map(|member| member.node)
            .collect();
        let mut view = self.view(side, self.sides[side][0]);
        if strategy.weighs_sides() {
            // One decision for the whole side; its leader acts, or all members stop.
            view.own = view.leader(None).expect("a side has members");
            let down = resolve(strategy, trust, &view).down;
            survivors.retain(|node| !down.contains(node));
            return survivors;
        }
        for own in &self.sides[side] {
            view.own = *own;
            let Resolution { decision, down, responsible, .. } = resolve(strategy, trust, &view);
            let goes =
                matches!(decision, DowningDecision::DownReachable | DowningDecision::DownAll);
            if responsible || goes {
                survivors.retain(|node| !down.contains(node));
            }
        }
        survivors
    }
}

fn strategies() -> Vec<(&'static str, Which, DowningStrategy)> {
    let roles = || ["all".to_owned()].into();
    let quorum =
        |quorum_size| DowningStrategy::StaticQuorum(StaticQuorum { quorum_size, role: None });
    let leader = |quorum_size| QuorumLeader { quorum_size, ..QuorumLeader::default() };
    let lowest = KeepMajority { role: None, tie_break: TieBreak::LowestAddress };
    vec![
        ("static-quorum 2", Which::AsListedOfFive, quorum(2)),
        ("static-quorum 3", Which::AsListedOfFive, quorum(3)),
        (
            "keep-majority",
            Which::OldestOfFive,
            DowningStrategy::KeepMajority(KeepMajority::default()),
        ),
        (
            "keep-majority by lowest address",
            Which::AsListedOfFive,
            DowningStrategy::KeepMajority(lowest),
        ),
        ("keep-oldest", Which::AgesOfFour, DowningStrategy::KeepOldest(KeepOldest::default())),
        (
            "keep-oldest, alone too",
            Which::AgesOfFour,
            DowningStrategy::KeepOldest(KeepOldest { down_if_alone: false, role: None }),
        ),
        ("down-all", Which::AsListedOfFive, DowningStrategy::DownAll),
        ("oldest", Which::OldestOfFour, DowningStrategy::Oldest(Oldest::default())),
        ("quorum-leader 2", Which::OldestOfFour, DowningStrategy::QuorumLeader(leader(2))),
        ("quorum-leader 3", Which::OldestOfFour, DowningStrategy::QuorumLeader(leader(3))),
        (
            "majority-leader",
            Which::OldestOfFour,
            DowningStrategy::MajorityLeader(MajorityLeader::default()),
        ),
        (
            "leader-roles",
            Which::OldestOfFour,
            DowningStrategy::LeaderRoles(LeaderRoles { target_roles: roles() }),
        ),
        (
            "role-leader-roles",
            Which::OldestOfFour,
            DowningStrategy::RoleLeaderRoles(RoleLeaderRoles {
                leader_role: "all".to_owned(),
                target_roles: roles(),
            }),
        ),
        ("auto-down", Which::OldestOfFour, DowningStrategy::AutoDown(AutoDown::default())),
        ("manual", Which::OldestOfFour, DowningStrategy::Manual),
    ]
}

const EVERY: [(&str, Ahead); 3] = [
    ("same view", Ahead::Nobody),
    ("leader's side ahead", Ahead::LeadersSide),
    ("other side ahead", Ahead::OtherSide),
];

#[test]
fn clash_counts_of_decisions_alone_match_the_file() {
    let mut written = String::new();
    for (title, ahead) in EVERY {
        writeln!(written, "# {title}: two sides, nobody, of so many cases").unwrap();
        for (name, which, strategy) in strategies() {
            let [two, nobody, cases] = count(which, ahead, |case, side| {
                !case.survivors(side, &strategy, Trust::Survivors).is_empty()
            });
            writeln!(written, "{name:<35} {two:>6} {nobody:>6} {cases:>6}").unwrap();
        }
        for (what, others) in [("as upstream", MEMBERS), ("with half the check", POSSIBLE)] {
            for size in [2, 3] {
                let [two, nobody, cases] = count(Which::AsListedOfFive, ahead, |case, side| {
                    stays_without_double_check(case, side, size, others)
                });
                let name = format!("static-quorum {size} {what}");
                writeln!(written, "{name:<35} {two:>6} {nobody:>6} {cases:>6}").unwrap();
            }
        }
        writeln!(written).unwrap();
    }
    super::expect("clashes.txt", &written, include_str!("clashes.txt"));
}

/// Number of cases in which both sides continue, in which none continues, and of all cases.
fn count(which: Which, ahead: Ahead, goes_on: impl Fn(&Case, usize) -> bool) -> [u32; 3] {
    let mut counts = [0; 3];
    every_case(which, ahead, |case| {
        let sides = [goes_on(case, 0), goes_on(case, 1)];
        counts[0] += u32::from(sides == [true, true]);
        counts[1] += u32::from(sides == [false, false]);
        counts[2] += 1;
    });
    counts
}

/// Akka's static-quorum; with `others` as an upper bound, half of the worst-case check.
fn stays_without_double_check(
    case: &Case,
    side: usize,
    quorum_size: usize,
    others: &'static [Status],
) -> bool {
    let view = case.view(side, case.sides[side][0]);
    let now = view.sides(None, [MEMBERS, MEMBERS]);
    let possible = view.sides(None, [MEMBERS, others]).unreachable.len();
    now.len() < 2 * quorum_size && now.reachable.len() >= quorum_size && possible < quorum_size
}

/// Two sides never both hold a quorum, for any strategy and views, and a side without a quorum
/// installs nothing. So at most one side removes the other.
#[test]
fn at_most_one_side_can_install_the_next_configuration() {
    for (_, ahead) in EVERY {
        every_case(Which::OldestOfFive, ahead, |case| {
            let installs = [0, 1].map(|side| case.view(side, case.sides[side][0]).holds_quorum());
            assert_eq!(installs.iter().filter(|held| **held).count(), 1, "an even split included");
        });
    }
}

#[test]
fn side_with_quorum_never_stops_unless_strategy_demands_it() {
    for (_, ahead) in EVERY {
        for (name, _, strategy) in strategies() {
            if strategy.ends_quorums() || strategy == DowningStrategy::Manual {
                continue;
            }
            every_case(Which::OldestOfFour, ahead, |case| {
                let holds = |side: &usize| case.view(*side, case.sides[*side][0]).holds_quorum();
                let with = [0, 1].into_iter().find(holds).expect("one of two sides");
                let alive = case.survivors(with, &strategy, Trust::Configuration);
                let of_side = case.views[with]
                    .iter()
                    .filter(|member| member.counts() && case.sides[with].contains(&member.node));
                assert_eq!(alive.len(), of_side.count(), "{name}: a quorum ended itself");
            });
        }
    }
}

/// With a quorum, keep-majority always continues on the side that holds it.
#[test]
fn keep_majority_with_quorum_removes_the_others() {
    let strategy = DowningStrategy::KeepMajority(KeepMajority::default());
    for (_, ahead) in EVERY {
        every_case(Which::OldestOfFive, ahead, |case| {
            for side in [0, 1] {
                let view = case.view(side, case.sides[side][0]);
                let resolution = resolve(&strategy, Trust::Configuration, &view);
                let stays = resolution.decision == DowningDecision::DownUnreachable;
                assert!(!view.holds_quorum() || stays, "a side with a quorum stops");
            }
        });
    }
}

/// Up to 5 voters in up to 3 parts: at most one part holds a quorum; with one or two parts exactly
/// one.
#[test]
fn at_most_one_part_of_five_voters_holds_a_quorum() {
    for count in 1..=NAMES.len() {
        let voters: Vec<ReplicaId> = NAMES[..count].iter().map(|n| node(*n).incarnation).collect();
        for tiebreaker in &voters {
            for cut in 0..3_usize.pow(u32::try_from(count).unwrap()) {
                let place = |at: usize| cut / 3_usize.pow(u32::try_from(at).unwrap()) % 3;
                let holds = |side: usize| {
                    let part = (0..count).filter(|at| place(*at) == side).map(|at| voters[at]);
                    is_quorum(&voters, *tiebreaker, &part.collect(), FaultInjection::none())
                };
                let held = (0..3).filter(|side| holds(*side)).count();
                let sides: BTreeSet<usize> = (0..count).map(place).collect();
                assert!(held <= 1);
                assert!(sides.len() > 2 || held == 1, "of at most two parts one holds a quorum");
            }
        }
    }
}
