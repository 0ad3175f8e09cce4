//! Laws of the merge, for states of random histories and for random states.

use ostraca_ddata::sim::seeds;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::history::{World, any_state};
use super::*;
use crate::cluster::gossip::merge::MergeRelation;
use crate::cluster::gossip::wire;

fn merged(one: &Gossip, other: &Gossip) -> Gossip {
    let mut both = one.clone();
    both.merge(other);
    both
}

fn is_a_join(a: &Gossip, b: &Gossip, c: &Gossip) {
    let ab = merged(a, b);
    assert_eq!(ab, merged(b, a), "not commutative");
    assert_eq!(merged(&ab, c), merged(a, &merged(b, c)), "not associative");
    assert_eq!(merged(a, a), *a, "not idempotent");
    assert_eq!(merged(a, &ab), ab, "the merge does not contain its inputs");
    assert_eq!(merged(&ab, b), ab, "the merge does not contain its inputs");
    assert_eq!((a.digest() == b.digest()), (a.content == b.content), "digests are wrong");
    for removed in [a, b].into_iter().flat_map(Gossip::tombstones).map(|(id, _)| id) {
        assert!(!ab.contains(removed), "{removed} is back");
    }
    let decoded = wire::decode::<Gossip>(&wire::encode(&ab)).expect("a merge is well formed");
    assert_eq!(decoded, ab);
}

#[test]
fn random_states_merge_to_upper_bound() {
    for seed in seeds("random_states_merge_to_upper_bound", 3_000) {
        let rng = &mut SmallRng::seed_from_u64(seed.value);
        let [a, b, c] = std::array::from_fn(|_| any_state(rng));
        is_a_join(&a, &b, &c);
    }
}

#[test]
fn related_states_merge_to_upper_bound() {
    for seed in seeds("related_states_merge_to_upper_bound", 200) {
        let mut world = World::new(seed.value).steps(150);
        for _ in 0..30 {
            let mut any = || world.past[world.rng.random_range(0..world.past.len())].clone();
            is_a_join(&any(), &any(), &any());
        }
    }
}

#[test]
fn members_of_the_seen_set_have_held_the_state() {
    for seed in seeds("members_of_the_seen_set_have_held_the_state", 200) {
        let world = World::new(seed.value).steps(150);
        for state in &world.past {
            for observer in state.seen() {
                assert!(world.held[observer].contains(&state.digest()), "{observer} never had it");
            }
        }
    }
}

#[test]
fn removed_incarnation_stays_out_of_every_merge() {
    let (mut runs, mut forgotten) = (0, 0);
    for seed in seeds("removed_incarnation_stays_out_of_every_merge", 200) {
        runs += 1;
        let mut world = World::new(seed.value).steps(150);
        for _ in 0..30 {
            let mut any = || world.past[world.rng.random_range(0..world.past.len())].clone();
            let (one, other) = (any(), any());
            let both = merged(&one, &other);
            for (&id, &since) in &world.since {
                if one.is_removed(id, since) {
                    assert!(both.is_removed(id, since) && !both.contains(id), "{id} is back");
                    forgotten += usize::from(other.contains(id) && since <= one.forgotten());
                }
            }
        }
    }
    assert!(forgotten > 0 || runs < 100, "no state contained a forgotten member");
}

#[test]
fn merge_reports_relation_and_seen_set() {
    let seen = |gossip: &Gossip| gossip.seen().iter().copied().collect::<Vec<_>>();
    let (a, b, c) = (id('A'), id('B'), id('C'));
    let old = state("A B C; seen A B");
    let mut new = old.clone();
    new.move_to(c, b, Status::Leaving).unwrap();

    let mut same = old.clone();
    assert_eq!(same.merge(&state("A B C; seen C")), MergeRelation::Same);
    assert_eq!(seen(&same), [a, b, c]);
    let mut one = old.clone();
    assert_eq!((one.merge(&new), seen(&one)), (MergeRelation::TheirsNewer, vec![c]));
    let mut one = new.clone();
    assert_eq!((one.merge(&old), seen(&one)), (MergeRelation::OursNewer, vec![c]));
    let mut other = old;
    other.accuse(a, c, ReachabilityStatus::Unreachable);
    assert_eq!((other.merge(&new), seen(&other)), (MergeRelation::Both, vec![]));
}

#[test]
fn equal_members_are_shared() {
    let mut one = state("A B");
    let mut other = one.clone();
    let theirs = Arc::clone(other.member(id('B')).unwrap());
    other.move_to(id('A'), id('A'), Status::Leaving).unwrap();
    one.merge(&other);
    assert!(Arc::ptr_eq(one.member(id('B')).unwrap(), &theirs));
    assert!(Arc::ptr_eq(one.member(id('A')).unwrap(), other.member(id('A')).unwrap()));
}

#[test]
#[should_panic(expected = "separately founded clusters never merge")]
fn merging_two_clusters_panics() {
    let mut ours = state("A");
    let mut theirs = state("A");
    theirs.content.cluster = ClusterId(2);
    ours.merge(&theirs);
}

#[test]
fn versions_compare_with_missing_entries_as_zero() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let clock = |entries: &[(char, u64)]| VClock {
        dots: entries.iter().map(|&(name, count)| (id(name), count)).collect(),
    };
    let table: [(&[_], &[_], _); 6] = [
        (&[], &[], Some(Equal)),
        (&[('A', 1)], &[], Some(Greater)),
        (&[('A', 1)], &[('A', 2)], Some(Less)),
        (&[('A', 1)], &[('A', 1), ('B', 1)], Some(Less)),
        (&[('A', 1)], &[('B', 1)], None),
        (&[('A', 2), ('B', 1)], &[('A', 1), ('B', 2)], None),
    ];
    for (one, other, expected) in table {
        assert_eq!(clock(one).partial_cmp(&clock(other)), expected, "{one:?} {other:?}");
    }
}
