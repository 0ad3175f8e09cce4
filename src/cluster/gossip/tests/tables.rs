//! Tables of convergence, and the effect of each change on a state.

use super::super::tombstones::Tombstones;
use super::super::{JoinRefused, Joined, StatusRefused, TOMBSTONES_MAX};
use super::*;
use crate::cluster::name_set::NameSet;

use std::time::Duration;

use ostraca_ddata::clock::Instant;

/// Name, state, observing node, awaited members.
const CONVERGENCE: &[(&str, &str, char, &str)] = &[
    ("1: one that has seen", "A; seen A", 'A', ""),
    ("1: one of two has seen", "A B; seen A", 'A', "B"),
    ("1: both have seen", "A B; seen A B", 'A', ""),
    ("2: Exiting need not see", "A Bx; seen A", 'A', ""),
    ("2: Down need not see", "A Bd; seen A", 'A', ""),
    ("2: Leaving must see", "A Bl; seen A", 'A', "B"),
    ("spec: Joining must see", "A Bj; seen A", 'A', "B"),
    ("spec: WeaklyUp must see", "A Bw; seen A", 'A', "B"),
    ("2: unreachable blocks though it has seen", "A B; seen A B; A>B", 'A', "B"),
    ("2: unreachable and unseen blocks", "A B; seen A; A>B", 'A', "B"),
    ("2: unreachable but Down", "A Bd; seen A; A>B", 'A', ""),
    ("2: unreachable but Exiting", "A Bx; seen A; A>B", 'A', ""),
    ("2: terminated blocks", "A B; seen A B; A>>B", 'A', "B"),
    ("3: the verdict of a Down observer", "A B Cd; seen A B; C>B", 'A', ""),
    ("3: the verdict of an Exiting observer", "A B Cx; seen A B; C>B", 'A', "B"),
    ("3: mutual accusation, seen by A", "A B; seen A B; A>B B>A", 'A', "B"),
    ("3: mutual accusation, seen by B", "A B; seen A B; A>B B>A", 'B', "A"),
    ("3: mutual accusation, seen by C", "A B C; seen A B C; A>B B>A", 'C', "A B"),
    ("3: until one of them is Down", "A Bd C; seen A C; A>B B>A", 'C', ""),
    ("a node is never unreachable to itself", "A B; seen A B; B>A", 'A', ""),
];

#[test]
fn convergence_table_is_reproduced() {
    for (name, text, me, awaited) in CONVERGENCE {
        let gossip = state(text);
        let awaited: BTreeSet<_> = awaited.split_whitespace().map(only).collect();
        assert_eq!(gossip.awaited(id(*me)), awaited, "{name}");
        assert_eq!(gossip.converged(id(*me)), awaited.is_empty(), "{name}");
    }
}

#[test]
fn founder_has_seen_its_state_and_converged() {
    let gossip = Gossip::found(CLUSTER, joiner(1, 0)).unwrap();
    assert_eq!(gossip.len(), 1);
    assert!(gossip.converged(id('A')));
    assert_eq!(gossip.version().get(&id('A')), 1);
}

type Change = fn(&mut Gossip);

#[test]
fn change_clears_the_seen_set_and_raises_the_version() {
    let (a, b) = (id('A'), id('B'));
    let changes: [(&str, Change); 9] = [
        ("let in", |gossip| assert!(gossip.admit_member(id('A'), joiner(9, 9)).is_ok())),
        ("leave", |gossip| assert!(gossip.move_to(id('A'), id('B'), Status::Leaving).unwrap())),
        ("down", |gossip| assert!(gossip.move_to(id('A'), id('B'), Status::Down).unwrap())),
        ("promote", |gossip| assert!(gossip.promote(id('A'), &[(id('C'), 7)]))),
        ("remove", |gossip| assert!(gossip.remove(id('A'), &[id('B')]))),
        ("host", |gossip| assert!(gossip.host(id('A'), ["t"].into_iter().collect(), false))),
        ("accuse", |gossip| {
            assert!(gossip.accuse(id('A'), id('C'), ReachabilityStatus::Unreachable));
        }),
        ("acquit", |gossip| assert!(gossip.acquit(id('A'), id('B')))),
        ("prepare", |gossip| assert!(gossip.prepare_for_full_shutdown(id('A')))),
    ];
    for (name, change) in changes {
        let mut gossip = state("A B Cj; seen A B C; A>B");
        change(&mut gossip);
        assert_eq!(gossip.seen(), &BTreeSet::from([a]), "{name}");
        assert_eq!((gossip.version().get(&a), gossip.version().get(&b)), (1, 0), "{name}");
    }
}

#[test]
fn repeated_change_has_no_effect() {
    let mut gossip = state("A Bl Cj; seen A B C; A>B");
    gossip.host(id('A'), NameSet::new(), true);
    gossip.see(id('B'));
    let before = gossip.clone();
    let (a, b, c, z) = (id('A'), id('B'), id('C'), id('Z'));
    assert_eq!(gossip.admit_member(a, joiner(3, 3)), Ok(Joined::Known));
    assert_eq!(gossip.move_to(a, b, Status::Leaving), Ok(false));
    let step = StatusRefused::Step { from: Status::Joining, to: Status::Exiting };
    assert_eq!(gossip.move_to(a, c, Status::Exiting), Err(step));
    assert_eq!(gossip.move_to(a, z, Status::Down), Err(StatusRefused::Unknown(z)));
    assert!(!gossip.promote(a, &[(b, 9), (z, 10)]));
    assert!(!gossip.remove(a, &[z]));
    assert!(!gossip.host(a, NameSet::new(), true));
    assert!(!gossip.accuse(a, b, ReachabilityStatus::Unreachable));
    assert!(!gossip.accuse(a, z, ReachabilityStatus::Unreachable));
    assert!(!gossip.acquit(a, c));
    assert!(!gossip.forget_up_to(a, 0));
    assert!(!gossip.see(b) && !gossip.see(z));
    assert_eq!(gossip, before);
}

#[test]
fn promotion_assigns_ages_and_skips_others() {
    let mut gossip = state("A Bj Cw Dl");
    let next = gossip.next_up_number();
    assert_eq!(next, 5, "D's is 4");
    assert!(gossip.promote(id('A'), &[(id('B'), 5), (id('C'), 6), (id('D'), 7), (id('Z'), 8)]));
    let stands = |name| gossip.member(id(name)).map(|m| (m.status, m.up_number)).unwrap();
    assert_eq!(stands('B'), (Status::Up, Some(5)));
    assert_eq!(stands('C'), (Status::Up, Some(6)));
    assert_eq!(stands('D'), (Status::Leaving, Some(4)));
}

#[test]
fn removal_leaves_only_a_tombstone() {
    let mut gossip = state("A B C; seen A B C; A>B B>C");
    gossip.host(id('B'), NameSet::new(), true);
    assert!(gossip.remove(id('A'), &[id('B')]));
    assert_eq!(gossip.tombstones().collect::<Vec<_>>(), [(id('B'), 4)]);
    assert!(gossip.reachability().is_all_reachable());
    assert_eq!(gossip.version().dots.keys().collect::<Vec<_>>(), [&id('A')]);
    assert_eq!(gossip.admit_member(id('A'), joiner(2, 2)), Err(JoinRefused::Removed(id('B'))));
}

#[test]
fn refused_join_states_the_reason() {
    let mut gossip = state("A B");
    let restarted = |incarnation| {
        let old = joiner(2, 9);
        Member { node: NodeId { incarnation: ReplicaId::new(incarnation), ..old.node }, ..old }
    };
    let refused = gossip.admit_member(id('A'), restarted(77));
    assert_eq!(refused, Err(JoinRefused::OtherIncarnation(id('B'))));
    let unnamed = Member { roles: [""].into_iter().collect(), ..joiner(5, 9) };
    assert!(matches!(gossip.admit_member(id('A'), unnamed), Err(JoinRefused::Invalid(_))));
    assert!(gossip.prepare_for_full_shutdown(id('A')));
    assert_eq!(gossip.admit_member(id('A'), joiner(5, 9)), Err(JoinRefused::PreparingForShutdown));
    assert!(gossip.promotable().is_empty());
    assert_eq!(gossip.len(), 2);
}

#[test]
fn joiner_is_always_admitted_as_joining() {
    let mut gossip = state("A");
    let bold = Member { status: Status::Up, up_number: Some(0), ..joiner(2, 9) };
    assert_eq!(gossip.admit_member(id('A'), bold), Ok(Joined::Added));
    let let_in = gossip.member(id('B')).unwrap();
    assert_eq!((let_in.status, let_in.up_number), (Status::Joining, None));
}

#[test]
fn next_stamp_exceeds_all_stamps_of_the_state() {
    let mut gossip = state("A B C");
    assert_eq!(gossip.next_stamp(), 4);
    gossip.remove(id('A'), &[id('B'), id('C')]);
    assert_eq!(gossip.tombstones().collect::<Vec<_>>(), [(id('B'), 4), (id('C'), 5)]);
    assert_eq!(gossip.next_stamp(), 6);
    gossip.forget_up_to(id('A'), 5);
    assert_eq!((gossip.tombstones().len(), gossip.next_stamp()), (0, 6));
}

#[test]
fn tombstone_is_dropped_at_its_age() {
    let at = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
    let day = Duration::from_secs(86_400);
    let (mut tracker, mut gossip) = (Tombstones::new(), state("A B C D"));
    gossip.remove(id('A'), &[id('B')]);
    assert_eq!(tracker.due(at(100), &gossip, day), None);
    gossip.remove(id('A'), &[id('C')]);
    assert_eq!(tracker.due(at(200), &gossip, day), None);
    assert_eq!(tracker.due(at(86_499), &gossip, day), None);
    assert_eq!(tracker.due(at(86_500), &gossip, day), Some(5), "B, whose removal was stamped 5");
    assert_eq!(tracker.due(at(86_599), &gossip, day), Some(5));
    assert_eq!(tracker.due(at(86_600), &gossip, day), Some(6), "C as well");
    gossip.forget_up_to(id('A'), 5);
    assert_eq!(gossip.tombstones().collect::<Vec<_>>(), [(id('C'), 6)]);
    assert_eq!(tracker.due(at(86_600), &gossip, day), Some(6));
}

#[test]
fn young_tombstone_keeps_those_with_higher_stamps() {
    let at = |secs: u64| Instant::from_nanos(secs * 1_000_000_000);
    let (mut tracker, mut one, mut other) = (Tombstones::new(), state("A B C"), state("A B C D"));
    one.remove(id('A'), &[id('C')]);
    other.remove(id('B'), &[id('D')]);
    let age = Duration::from_secs(10);
    assert_eq!(tracker.due(at(0), &other, age), None);
    one.merge(&other); // C stamped 4, received now; D stamped 5, held for 10 s
    assert_eq!(tracker.due(at(10), &one, age), None);
    assert_eq!(tracker.due(at(20), &one, age), Some(5));
}

#[test]
fn tombstones_beyond_the_limit_are_dropped_early() {
    let mut gossip = state("A B");
    gossip.content.tombstones =
        (0..TOMBSTONES_MAX as u64).map(|n| (ReplicaId::new(1_000 + n), 10 + n)).collect();
    assert!(gossip.remove(id('A'), &[id('B')]));
    assert_eq!(gossip.tombstones().len(), TOMBSTONES_MAX);
    assert_eq!(gossip.forgotten(), 10);
    assert!(gossip.is_removed(ReplicaId::new(1_000), 9), "dropped, but still removed");
    assert!(gossip.is_removed(id('B'), 2));
}

#[test]
fn only_single_incarnations_are_promotable() {
    let mut gossip = state("A Bj Cj Dw");
    let c = Arc::make_mut(gossip.content.members.get_mut(&id('C')).unwrap());
    c.node.peer = node(1).peer; // a new incarnation of A, admitted by another node
    let names: Vec<_> = gossip.promotable().iter().map(|member| member.incarnation()).collect();
    assert_eq!(names, [id('B'), id('D')]);
    assert_eq!(gossip.incarnations_of(node(1).peer).count(), 2);
}

#[test]
fn resume_restores_own_records_with_newer_versions() {
    // C was admitted by a side that considered A Down, was told to leave there, and is now admitted
    // by A.
    let mut former = state("Ad B Cj; C>B C>D");
    let own = Arc::make_mut(former.content.members.get_mut(&id('C')).unwrap());
    own.status = Status::Leaving;
    let mut anew = state("A B Cj");
    anew.resume(id('C'), &former);
    let statuses: Vec<_> = anew.members().map(|member| member.status).collect();
    assert_eq!(statuses, [Status::Up, Status::Up, Status::Leaving]);
    let accused: Vec<_> = anew.reachability().accused_by(id('C')).collect();
    assert_eq!(accused, [id('B')], "D is not a member here");
    assert!(anew.version().get(&id('C')) > former.version().get(&id('C')));
    assert_eq!(anew.seen(), &BTreeSet::from([id('C')]));
    // A node that still has the earlier verdicts of C does not override the later ones.
    assert!(anew.acquit(id('C'), id('B')));
    let mut other = state("A B Cj; C>B C>A");
    other.merge(&anew);
    assert!(other.reachability().is_all_reachable());
}
