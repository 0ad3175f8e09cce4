//! Behaviours of `ORSet` that Pekko's tests verify, for our type. The numbers P33 to P43 count
//! Pekko's behaviours.
//!
//! | behaviour | test |
//! |---|---|
//! | P36 "later adds fold into the last", the group's inner structure | a group is one delta; the law `joined_deltas_equal_single_deltas` compares it with single deltas |
//! | P41 (negative) a skipped delta loses an element | the opposite here: nothing is lost |
//! | P42 `subtractDots`, `mergeCommonKeys`, `mergeDisjointKeys` | internal functions that we do not have; the tests cover their purpose |
//! | P43 vector entries of unrelated nodes | a delta contains its own dots only |

use std::collections::BTreeSet;

use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::{Causal, ORSet};

use crate::pekko_leaves::merged;
use crate::world::{author, id};

type Set = Causal<ORSet<u8>>;

fn add(set: &mut Set, who: usize, element: u8) -> Delta {
    set.edit(author(who, 0), |set| set.insert(&element)).unwrap().1
}

fn remove(set: &mut Set, who: usize, element: u8) -> Delta {
    set.edit(author(who, 0), |set| set.remove(&element)).unwrap().1
}

fn clear(set: &mut Set, who: usize) -> Delta {
    set.edit(author(who, 0), |set| set.clear()).unwrap().1
}

fn of(set: &Set) -> Vec<u8> {
    set.value().elements::<BTreeSet<u8>>().unwrap().into_iter().collect()
}

fn with(who: usize, elements: &[u8]) -> Set {
    let mut set = Set::new();
    for element in elements {
        add(&mut set, who, *element);
    }
    set
}

#[test]
fn p33_elements_can_be_added_again_after_removal() {
    let mut set = Set::new();
    for _ in 0..20 {
        assert!(set.edit(author(0, 0), |set| set.insert(&1)).unwrap().0);
        assert!(!set.edit(author(0, 0), |set| set.insert(&1)).unwrap().0, "there already");
        assert_eq!(of(&set), [1]);
        assert!(set.edit(author(0, 0), |set| set.remove(&1)).unwrap().0);
        assert!(!set.edit(author(0, 0), |set| set.remove(&1)).unwrap().0, "gone already");
        assert_eq!(of(&set), []);
    }
}

#[test]
fn p34_disjoint_and_overlapping_sets_unite() {
    assert_eq!(of(&merged(&with(0, &[1, 2]), &with(1, &[3, 4]))), [1, 2, 3, 4]);
    assert_eq!(of(&merged(&with(0, &[1, 2, 3]), &with(1, &[2, 3, 4]))), [1, 2, 3, 4]);
}

#[test]
fn p34_an_addition_wins_over_a_removal_that_has_not_seen_it() {
    let mut a = with(0, &[1, 2]);
    let mut b = with(1, &[1]);
    remove(&mut a, 0, 1);
    assert_eq!(of(&merged(&a, &b)), [1, 2], "of another replica");
    let mut b2 = with(0, &[1, 2]);
    add(&mut b2, 1, 1);
    assert_eq!(of(&merged(&a, &b2)), [1, 2], "renewed at another replica");
    b.merge(&a);
    remove(&mut b, 1, 1);
    assert_eq!(of(&merged(&a, &b)), [2], "a removal that has seen it wins");
}

#[test]
fn p35_folded_additions_and_concurrent_additions_of_one_element() {
    let (mut a, mut b) = (Set::new(), Set::new());
    let (_, folded) = a
        .edit(author(0, 0), |set| {
            set.insert(&1)?;
            set.insert(&2)?;
            set.insert(&3)
        })
        .unwrap();
    assert_eq!(folded.dots().len(), 3);
    let of_b = add(&mut b, 1, 2);
    let mut c = Set::new();
    c.apply(&of_b).unwrap();
    c.apply(&folded).unwrap();
    assert_eq!(c, merged(&a, &b));
    let removed = remove(&mut a, 0, 2); // has seen its own dot only
    c.apply(&removed).unwrap();
    assert_eq!(of(&c), [1, 2, 3], "the other dot keeps it");
    assert_eq!(c, merged(&a, &b));
}

#[test]
fn p36_a_group_of_additions_and_removals_is_one_delta() {
    let mut a = Set::new();
    let mut group = add(&mut a, 0, 1);
    for delta in [add(&mut a, 0, 2), remove(&mut a, 0, 1), add(&mut a, 0, 3)] {
        group.join(&delta);
    }
    let mut b = Set::new();
    b.apply(&group).unwrap();
    assert_eq!(of(&b), [2, 3]);
    assert_eq!(b, a);
}

#[test]
fn p37_removal_removes_only_seen_additions() {
    let mut a = with(0, &[1]);
    let mut b = a.clone();
    let old_removal = remove(&mut a, 0, 1);
    add(&mut b, 1, 1);
    b.apply(&old_removal).unwrap();
    assert_eq!(of(&b), [1], "added again elsewhere");
    a.merge(&b);
    add(&mut a, 0, 1);
    a.apply(&old_removal).unwrap();
    assert_eq!(of(&a), [1], "an old delta does nothing");
}

#[test]
fn p38_clear_removes_seen_elements_by_state_and_delta() {
    let mut a = with(0, &[1, 2, 3]);
    let (mut b, mut by_delta) = (a.clone(), a.clone());
    let cleared = clear(&mut a, 0);
    assert!(a.value().is_empty());
    let concurrent = add(&mut b, 1, 2);
    by_delta.apply(&concurrent).unwrap();
    by_delta.apply(&cleared).unwrap();
    assert_eq!(of(&by_delta), [2]);
    assert_eq!(by_delta, merged(&a, &b));
    let later = add(&mut a, 0, 9);
    by_delta.apply(&later).unwrap();
    by_delta.apply(&cleared).unwrap();
    assert_eq!(of(&by_delta), [2, 9], "an old clear removes no later addition");
    assert!(clear(&mut Set::new(), 0).is_empty(), "clearing nothing is no change");
}

#[test]
fn p39_element_of_two_origins_needs_removal_of_both_dots() {
    let (a, b) = (with(0, &[1]), with(1, &[1]));
    let mut knows_one = a.clone();
    remove(&mut knows_one, 0, 1);
    assert_eq!(of(&merged(&knows_one, &b)), [1]);
    assert_eq!(of(&merged(&merged(&knows_one, &b), &a)), [1]);
    let mut knows_both = merged(&a, &b);
    remove(&mut knows_both, 2, 1);
    assert_eq!(of(&merged(&merged(&knows_both, &a), &b)), []);
    let mut renewed = b.clone();
    add(&mut renewed, 1, 1);
    assert_eq!(of(&merged(&knows_both, &renewed)), [1]);
}

#[test]
fn p40_three_interleaved_nodes_agree_by_state_and_delta() {
    let mut nodes = [Set::new(), Set::new(), Set::new()];
    let d1 = add(&mut nodes[0], 0, 1);
    let d2 = add(&mut nodes[0], 0, 2);
    nodes[1].apply(&d1).unwrap();
    nodes[1].apply(&d2).unwrap();
    let d3 = remove(&mut nodes[1], 1, 2);
    let d4 = add(&mut nodes[1], 1, 3);
    assert!(nodes[2].apply(&d3).is_err(), "too early: refused, not half-merged");
    let d5 = add(&mut nodes[2], 2, 2); // concurrent with the removal
    nodes[2].apply(&d4).unwrap();
    let by_state = merged(&merged(&nodes[0], &nodes[1]), &nodes[2]);
    for node in &mut nodes {
        for delta in [&d2, &d4, &d1, &d5, &d3] {
            let _ = node.apply(delta);
        }
        node.apply(&d3).unwrap();
        assert_eq!(*node, by_state);
    }
    assert_eq!(of(&by_state), [1, 2, 3]);
    let d6 = remove(&mut nodes[0], 0, 2);
    nodes[2].apply(&d6).unwrap();
    nodes[2].merge(&nodes[1].clone());
    assert_eq!(of(&nodes[2]), [1, 3], "removed, and does not come back");
}

#[test]
fn p41_a_skipped_delta_loses_nothing() {
    let mut a = Set::new();
    let first = add(&mut a, 0, 1);
    add(&mut a, 0, 2); // never arrives as a delta
    let third = add(&mut a, 0, 3);
    let mut b = Set::new();
    b.apply(&first).unwrap();
    b.apply(&third).unwrap();
    assert_eq!(of(&b), [1, 3]);
    assert_eq!(of(&merged(&a, &b)), [1, 2, 3]);
}

#[test]
fn p42_element_removed_at_both_origins_vanishes() {
    let (mut a, mut b, mut c) = (with(0, &[1, 2]), with(1, &[1, 3]), Set::new());
    c.merge(&a);
    c.merge(&b); // knows both dots of 1, and removes nothing
    remove(&mut a, 0, 1);
    remove(&mut b, 1, 1);
    let nodes = [&a, &b, &c];
    for [x, y, z] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(of(&merged(&merged(nodes[x], nodes[y]), nodes[z])), [2, 3]);
    }
}

#[test]
fn p43_removal_contains_no_dots_of_unrelated_replicas() {
    let mut a = with(0, &[1]);
    a.merge(&with(1, &[2]));
    let mut c = with(0, &[1]);
    c.apply(&remove(&mut a, 0, 1)).unwrap();
    assert_eq!(c.context().vector().get(&id(1)), 0);
    assert_eq!(of(&merged(&c, &with(1, &[2]))), [2], "so that one's element still comes");
}
