//! Behaviours of `ORMap` and `ORMultiMap` that Pekko's tests verify, for our types. A removed key
//! starts again from an empty value, so Pekko's "usual anomalies" have one correct result, whatever
//! the timing. The numbers P44 to P55 count Pekko's behaviours.
//!
//! | behaviour | test |
//! |---|---|
//! | P46 delta dot equals state dot | a delta's dots are in its author's context after the edit |
//! | P49 the coalescing table's inner forms | a group is one delta; tests compare its effect |
//! | P51 `put` over an existing ORSet throws | `replace` replaces it deliberately |
//! | P54 the plain variant loses a concurrent removal | there is only one variant, and it keeps the removal |
//! | P55 hidden empty sets | none: a key without content does not exist |

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{
    Causal, DataType, Flag, GCounter, GSet, ORMap, ORMultiMap, ORSet, PNCounter,
};

use crate::pekko_leaves::merged;
use crate::world::author;

type Sets = Causal<ORMap<u8, ORSet<u8>>>;
type Multi = Causal<ORMultiMap<u8, u8>>;
type Content = BTreeMap<u8, Vec<u8>>;

fn add(map: &mut Sets, who: usize, key: u8, element: u8) -> Delta {
    map.edit(author(who, 0), |map| map.update(&key, |set| set.insert(&element))).unwrap().1
}

fn take(map: &mut Sets, who: usize, key: u8, element: u8) -> Delta {
    map.edit(author(who, 0), |map| map.update(&key, |set| set.remove(&element))).unwrap().1
}

fn remove(map: &mut Sets, who: usize, key: u8) -> Delta {
    map.edit(author(who, 0), |map| map.remove(&key)).unwrap().1
}

fn replace(map: &mut Sets, who: usize, key: u8, element: u8) -> Delta {
    map.edit(author(who, 0), |map| map.replace(&key, |set| set.insert(&element))).unwrap().1
}

fn of(map: &Sets) -> Content {
    let sorted = |set: ORSet<u8>| set.elements::<BTreeSet<u8>>().unwrap().into_iter().collect();
    map.value().iter().map(|(key, set)| (key.unwrap(), sorted(set))).collect()
}

fn content<const N: usize>(entries: [(u8, &[u8]); N]) -> Content {
    entries.into_iter().map(|(key, elements)| (key, elements.to_vec())).collect()
}

/// Makes two concurrent changes on two replicas from one start. Merges them as states and, in both
/// orders, as deltas; all three results must agree.
fn concurrently(
    start: &Sets,
    left: impl Fn(&mut Sets) -> Delta,
    right: impl Fn(&mut Sets) -> Delta,
) -> Content {
    let (mut a, mut b) = (start.clone(), start.clone());
    let (of_a, of_b) = (left(&mut a), right(&mut b));
    let by_state = merged(&a, &b);
    for deltas in [[&of_a, &of_b], [&of_b, &of_a]] {
        let mut by_delta = start.clone();
        for delta in deltas {
            by_delta.apply(delta).unwrap();
        }
        assert_eq!(by_delta, by_state);
    }
    of(&by_state)
}

#[test]
fn p44_keys_can_be_added_again_and_values_merge() {
    let mut a = Sets::new();
    add(&mut a, 0, 1, 10);
    remove(&mut a, 0, 1);
    assert!(a.value().is_empty() && !a.value().contains_key(&1));
    add(&mut a, 0, 1, 11);
    let mut b = Sets::new();
    add(&mut b, 1, 1, 12);
    add(&mut b, 1, 2, 20);
    assert_eq!(of(&merged(&a, &b)), content([(1, &[11, 12]), (2, &[20])]));
}

#[test]
fn p45_content_of_removed_or_replaced_key_stays_removed() {
    let mut start = Sets::new();
    add(&mut start, 0, 1, 10);
    let late = start.clone();
    let mut removed = start.clone();
    remove(&mut removed, 0, 1);
    add(&mut removed, 0, 1, 11);
    assert_eq!(of(&merged(&removed, &late)), content([(1, &[11])]));
    let mut replaced = start;
    replace(&mut replaced, 0, 1, 12);
    assert_eq!(of(&merged(&replaced, &late)), content([(1, &[12])]));
}

#[test]
fn p46_a_deltas_dots_are_those_of_its_authors_state() {
    let mut a = Sets::new();
    let delta = add(&mut a, 0, 1, 10);
    let mut b = Sets::new();
    b.apply(&delta).unwrap();
    assert_eq!(b.context(), a.context());
    assert!(a.context().includes_all(delta.dots()));
}

#[test]
fn p47_removal_keeps_concurrent_updates() {
    let mut start = Sets::new();
    add(&mut start, 0, 1, 10);
    add(&mut start, 0, 2, 20);
    let gone = |map: &mut Sets| remove(map, 0, 1);
    let two = &[20][..];
    assert_eq!(concurrently(&start, gone, |m| add(m, 1, 1, 11)), content([(1, &[11]), (2, two)]));
    assert_eq!(concurrently(&start, gone, |m| add(m, 1, 1, 10)), content([(1, &[10]), (2, two)]));
    assert_eq!(concurrently(&start, gone, |m| take(m, 1, 1, 10)), content([(2, two)]));
    assert_eq!(concurrently(&start, gone, |m| remove(m, 1, 1)), content([(2, two)]));
    assert_eq!(
        concurrently(&start, gone, |m| replace(m, 1, 1, 12)),
        content([(1, &[12]), (2, two)])
    );
    let other_key = |map: &mut Sets| add(map, 1, 2, 21);
    assert_eq!(concurrently(&start, gone, other_key), content([(2, &[20, 21])]));
    let several = |map: &mut Sets| {
        let mut joined = add(map, 1, 1, 11);
        joined.join(&add(map, 1, 1, 12));
        joined.join(&take(map, 1, 1, 11));
        joined
    };
    assert_eq!(concurrently(&start, gone, several), content([(1, &[12]), (2, two)]));
    let gone_and_back = |map: &mut Sets| {
        let mut joined = remove(map, 0, 1);
        joined.join(&add(map, 0, 1, 13));
        joined
    };
    let expected = content([(1, &[11, 13]), (2, two)]);
    assert_eq!(concurrently(&start, gone_and_back, |m| add(m, 1, 1, 11)), expected);
}

#[test]
fn p47_grow_only_values_are_reset_by_a_removal_too() {
    let mut a = Causal::<ORMap<u8, GSet<u8>>>::new();
    let insert = |element: u8| {
        move |map: &mut Edit<'_, ORMap<u8, GSet<u8>>>| map.update(&1, |set| set.insert(&element))
    };
    a.edit(author(0, 0), insert(10)).unwrap();
    let mut b = a.clone();
    a.edit(author(0, 0), |map| map.remove(&1)).unwrap();
    b.edit(author(1, 0), insert(11)).unwrap();
    let both = merged(&a, &b).value().get(&1).unwrap();
    assert_eq!(both.elements::<Vec<u8>>().unwrap(), [11]);
}

#[test]
fn p48_order_of_seeing_a_removal_makes_no_difference() {
    let mut start = Sets::new();
    add(&mut start, 0, 1, 10);
    let (mut a, mut b, mut c) = (start.clone(), start.clone(), start);
    let removed = remove(&mut a, 0, 1);
    b.apply(&removed).unwrap();
    add(&mut b, 1, 1, 11); // has seen the removal
    add(&mut c, 2, 1, 12); // has not
    let expected = content([(1, &[11, 12])]);
    assert_eq!(of(&merged(&merged(&a, &b), &c)), expected);
    assert_eq!(of(&merged(&merged(&c, &a), &b)), expected);
    assert_eq!(of(&merged(&merged(&b, &c), &a)), expected);
}

#[test]
fn p49_joined_deltas_equal_single_deltas_and_states() {
    type Change = fn(&mut Sets) -> Delta;
    let rows: [&[Change]; 5] = [
        &[|m| replace(m, 0, 1, 10), |m| add(m, 0, 1, 11)],
        &[|m| replace(m, 0, 1, 10), |m| replace(m, 0, 1, 11)],
        &[|m| replace(m, 0, 1, 10), |m| add(m, 0, 1, 11), |m| add(m, 0, 1, 12)],
        &[|m| add(m, 0, 1, 10), |m| add(m, 0, 2, 20), |m| add(m, 0, 1, 11)],
        &[|m| add(m, 0, 1, 10), |m| remove(m, 0, 2), |m| add(m, 0, 3, 30)],
    ];
    for row in rows {
        let mut start = Sets::new();
        add(&mut start, 1, 1, 99);
        add(&mut start, 1, 2, 98);
        let (mut a, mut single, mut grouped) = (start.clone(), start.clone(), start.clone());
        let deltas: Vec<Delta> = row.iter().map(|change| change(&mut a)).collect();
        let mut group = deltas[0].clone();
        for delta in &deltas[1..] {
            group.join(delta);
        }
        for delta in &deltas {
            single.apply(delta).unwrap();
        }
        grouped.apply(&group).unwrap();
        assert_eq!((&single, &grouped, &merged(&start, &a)), (&a, &a, &a));
    }
}

/// Updates one value of a map of `V`s and compares the results by delta and by state.
fn p50<V: DataType>(change: impl Fn(&mut Edit<'_, V>) -> Result<(), EditError>) -> V {
    let (mut a, mut b) = (Causal::<ORMap<u8, V>>::new(), Causal::<ORMap<u8, V>>::new());
    for _ in 0..2 {
        let (_, delta) = a.edit(author(0, 0), |map| map.update(&1, &change)).unwrap();
        b.apply(&delta).unwrap();
        assert_eq!(b, a);
    }
    b.value().get(&1).unwrap()
}

#[test]
fn p50_values_of_every_type_replicate_by_delta() {
    assert!(p50::<GSet<u8>>(|set| set.insert(&1).map(|_| ())).contains(&1));
    assert!(p50::<ORSet<u8>>(|set| set.insert(&1).map(|_| ())).contains(&1));
    assert_eq!(p50::<GCounter>(|counter| counter.increment(2)).value(), 4);
    assert_eq!(p50::<PNCounter>(|counter| counter.add(-2)).value(), -4);
    assert!(p50::<Flag>(|flag| flag.switch_on().map(|_| ())).is_on());
}

#[test]
fn p51_replacing_a_set_removes_only_seen_elements() {
    let mut start = Sets::new();
    add(&mut start, 0, 1, 10);
    let put = |map: &mut Sets| replace(map, 0, 1, 11);
    assert_eq!(concurrently(&start, put, |m| add(m, 1, 1, 12)), content([(1, &[11, 12])]));
}

#[test]
fn p52_clear_and_add_in_one_update_replaces_the_content() {
    let mut start = Sets::new();
    add(&mut start, 0, 1, 10);
    let renew = |map: &mut Sets| {
        map.edit(author(0, 0), |map| {
            map.update(&1, |set| {
                set.clear()?;
                set.insert(&11)
            })
        })
        .unwrap()
        .1
    };
    assert_eq!(concurrently(&start, renew, |m| add(m, 1, 1, 12)), content([(1, &[11, 12])]));
    let mut a = start.clone();
    remove(&mut a, 0, 1);
    a.merge(&start);
    add(&mut a, 0, 1, 13);
    assert_eq!(of(&merged(&a, &start)), content([(1, &[13])]), "remove, merge, put");
}

fn bindings(map: &Multi) -> Content {
    let sorted = |set: ORSet<u8>| set.elements::<BTreeSet<u8>>().unwrap().into_iter().collect();
    map.value().iter().map(|(key, set)| (key.unwrap(), sorted(set))).collect()
}

fn bind(map: &mut Multi, who: usize, key: u8, value: u8) -> Delta {
    map.edit(author(who, 0), |map| map.bind(&key, &value)).unwrap().1
}

fn unbind(map: &mut Multi, who: usize, key: u8, value: u8) -> Delta {
    map.edit(author(who, 0), |map| map.unbind(&key, &value)).unwrap().1
}

#[test]
fn p53_a_multi_map_binds_unbinds_and_forgets_empty_keys() {
    let mut a = Multi::new();
    bind(&mut a, 0, 1, 10);
    bind(&mut a, 0, 1, 11);
    unbind(&mut a, 0, 1, 10);
    assert_eq!(bindings(&a), content([(1, &[11])]));
    assert!(a.value().contains(&1, &11) && !a.value().contains(&1, &10));
    unbind(&mut a, 0, 1, 11);
    assert!(a.value().is_empty() && a.value().get(&1).is_none(), "gone with its last value");
    assert!(unbind(&mut a, 0, 7, 70).is_empty(), "unbinding what is not there creates nothing");
    let mut b = Multi::new();
    bind(&mut b, 1, 1, 12);
    bind(&mut a, 0, 1, 13);
    bind(&mut a, 0, 2, 20);
    let mut both = merged(&a, &b);
    assert_eq!(bindings(&both), content([(1, &[12, 13]), (2, &[20])]));
    both.edit(author(0, 0), |map| map.remove(&1)).unwrap();
    assert_eq!(bindings(&both), content([(2, &[20])]));
    both.edit(author(0, 0), |map| map.clear()).unwrap();
    assert!(both.state().is_bottom());
}

#[test]
fn p54_a_concurrent_unbinding_is_not_lost() {
    let mut a = Multi::new();
    bind(&mut a, 0, 1, 10);
    bind(&mut a, 0, 1, 11);
    let mut b = a.clone();
    unbind(&mut a, 0, 1, 10);
    bind(&mut b, 1, 1, 12);
    assert_eq!(bindings(&merged(&a, &b)), content([(1, &[11, 12])]));
}

#[test]
fn p55_binding_survives_concurrent_removal_alone() {
    let mut start = Multi::new();
    bind(&mut start, 0, 1, 10);
    let (mut a, mut b) = (start.clone(), start.clone());
    let (_, removed) = a.edit(author(0, 0), |map| map.remove(&1)).unwrap();
    let bound = bind(&mut b, 1, 1, 11);
    let both = merged(&a, &b);
    assert_eq!(bindings(&both), content([(1, &[11])]));
    for deltas in [[&removed, &bound], [&bound, &removed]] {
        let mut c = start.clone();
        for delta in deltas {
            c.apply(delta).unwrap();
        }
        assert_eq!(c, both);
    }
    let mut joined = removed;
    joined.join(&bound);
    let mut c = start;
    c.apply(&joined).unwrap();
    assert_eq!(c, both);
}
