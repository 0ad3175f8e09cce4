//! Behaviours of counters, sets, flag and registers that Pekko's tests verify, for our types. The
//! numbers P26 to P32 count Pekko's behaviours.
//!
//! | behaviour | test |
//! |---|---|
//! | P27 "merge carries no delta", "cleanup drops late slots" | none: a merge creates no delta, and folding of departed replicas is not implemented (docs/protocol/replication.md#forgetting-needs-a-decision) |
//! | P27, P28 prune moves the slot | none: a dot never moves to another replica |
//! | P30 `VersionVector` | our causal context, a `crdts::VClock` with dots beyond gaps: `p30_…`, and `causal.rs` |
//! | P31 "equal timestamps → lower address" | the *higher* replica id; the reverse clock is `set_first` |

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::types::{
    Causal, DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, PNCounter, PNCounterMap,
};

use crate::world::{author, id};

/// Merges in both directions, compares the results and returns one.
pub(crate) fn merged<T: DataType>(a: &Causal<T>, b: &Causal<T>) -> Causal<T> {
    let (mut ab, mut ba) = (a.clone(), b.clone());
    ab.merge(b);
    ba.merge(a);
    assert_eq!(ab, ba, "merging must not depend on the direction");
    ab
}

#[test]
fn p26_a_flag_once_on_stays_on() {
    let (off, mut on) = (Causal::<Flag>::new(), Causal::<Flag>::new());
    assert!(on.edit(author(0, 0), |flag| flag.switch_on()).unwrap().0);
    let (changed, delta) = on.edit(author(0, 0), |flag| flag.switch_on()).unwrap();
    assert!(!changed && delta.is_empty());
    assert!(!off.value().is_on());
    assert!(merged(&on, &off).value().is_on());
    assert!(merged(&on, &on).value().is_on());
}

#[test]
fn p27_a_g_counter_sums_its_replicas_and_deltas_are_states() {
    let (mut a, mut b) = (Causal::<GCounter>::new(), Causal::<GCounter>::new());
    let mut by_delta = b.clone();
    for n in [3, 4] {
        let (_, delta) = a.edit(author(0, 0), |counter| counter.increment(n)).unwrap();
        by_delta.apply(&delta).unwrap();
        by_delta.apply(&delta).unwrap(); // again: a total, not an addition
    }
    assert_eq!(by_delta, a);
    let (_, of_b) = b.edit(author(1, 0), |counter| counter.increment(10)).unwrap();
    by_delta.apply(&of_b).unwrap();
    assert_eq!(merged(&a, &b).value().value(), 17);
    assert_eq!(by_delta, merged(&a, &b));
    assert_eq!(by_delta.value().replicas(), 2);
    let (_, nothing) = a.edit(author(0, 0), |counter| counter.increment(0)).unwrap();
    assert!(nothing.is_empty());
}

#[test]
fn p27_g_counter_overflow_is_an_error() {
    let (mut a, mut b) = (Causal::<GCounter>::new(), Causal::<GCounter>::new());
    a.edit(author(0, 0), |counter| counter.increment(u128::MAX)).unwrap();
    assert!(a.edit(author(0, 0), |counter| counter.increment(1)).is_err());
    b.edit(author(1, 0), |counter| counter.increment(5)).unwrap();
    let mut both = merged(&a, &b);
    assert_eq!(both.value().value(), u128::MAX, "saturates");
    assert!(both.edit(author(1, 0), |counter| counter.increment(1)).is_err());
    assert_eq!(Causal::<GCounter>::decode(&both.encode()).unwrap(), both);
}

#[test]
fn p28_a_pn_counter_goes_below_zero_and_deltas_are_states() {
    let (mut a, mut b) = (Causal::<PNCounter>::new(), Causal::<PNCounter>::new());
    let (_, down) = a.edit(author(0, 0), |counter| counter.add(-5)).unwrap();
    let (_, up) = a.edit(author(0, 0), |counter| counter.increment()).unwrap();
    assert_eq!(a.value().value(), -4);
    b.apply(&down).unwrap();
    assert_eq!(b.value().value(), -5);
    b.edit(author(1, 0), |counter| counter.decrement()).unwrap();
    b.apply(&up).unwrap();
    assert_eq!(b.value().value(), -5);
    assert_eq!(merged(&a, &b), b);
}

#[test]
fn p28_pn_counter_reaches_both_ends_of_i128() {
    for (end, step) in [(i128::MAX, 1), (i128::MIN, -1)] {
        let mut counter = Causal::<PNCounter>::new();
        counter.edit(author(0, 0), |counter| counter.add(end)).unwrap();
        assert_eq!(counter.value().value(), end);
        assert!(counter.edit(author(0, 0), |counter| counter.add(step)).is_err());
        assert!(counter.edit(author(1, 0), |counter| counter.add(step)).is_err());
        assert_eq!(Causal::<PNCounter>::decode(&counter.encode()).unwrap(), counter);
    }
}

#[test]
fn p29_g_sets_unite_and_their_deltas_need_no_order() {
    let (mut a, mut b) = (Causal::<GSet<u8>>::new(), Causal::<GSet<u8>>::new());
    let mut deltas = Vec::new();
    for element in [1, 2, 3] {
        deltas.push(a.edit(author(0, 0), |set| set.insert(&element)).unwrap().1);
    }
    let (new, nothing) = a.edit(author(0, 0), |set| set.insert(&1)).unwrap();
    assert!(!new && nothing.is_empty());
    for element in [3, 4] {
        deltas.push(b.edit(author(1, 0), |set| set.insert(&element)).unwrap().1);
    }
    let mut backwards = Causal::<GSet<u8>>::new();
    for delta in deltas.iter().rev().chain(&deltas) {
        backwards.apply(delta).unwrap();
    }
    let both = merged(&a, &b);
    assert_eq!(both.value().elements::<BTreeSet<u8>>().unwrap(), BTreeSet::from([1, 2, 3, 4]));
    assert_eq!(backwards, both);
}

/// The causal relation of one context to another.
fn standing(a: &CausalContext, b: &CausalContext) -> &'static str {
    match (a.includes(b), b.includes(a)) {
        (true, true) => "same",
        (true, false) => "after",
        (false, true) => "before",
        (false, false) => "concurrent",
    }
}

/// The context of a history with this number of changes by each of three replicas.
fn seen(changes: [u64; 3]) -> CausalContext {
    let mut context = CausalContext::new();
    for (who, count) in changes.into_iter().enumerate() {
        for _ in 0..count {
            let before = context.clone();
            let dot = context.next_dot(id(who));
            context.insert(dot);
            assert_eq!(
                context.minus(&before).len(),
                1,
                "a change grows its own entry and no other"
            );
        }
    }
    context
}

#[test]
fn p30_contexts_are_partially_ordered_and_merge_dominates() {
    let cases = [
        ([0, 0, 0], [0, 0, 0], "same"),
        ([0, 0, 0], [1, 0, 0], "before"),
        ([2, 1, 0], [2, 1, 0], "same"),
        ([2, 1, 0], [2, 2, 0], "before"),
        ([2, 1, 1], [2, 1, 0], "after"),
        ([1, 2, 0], [2, 1, 0], "concurrent"),
        ([1, 0, 0], [0, 1, 0], "concurrent"),
        ([3, 1, 1], [1, 3, 0], "concurrent"),
    ];
    for (a, b, due) in cases {
        let (one, two) = (seen(a), seen(b));
        assert_eq!(standing(&one, &two), due, "{a:?} {b:?}");
        let (mut ab, mut ba) = (one.clone(), two.clone());
        ab.merge(&two);
        ba.merge(&one);
        assert_eq!((standing(&ab, &ba), ab.digest(7)), ("same", ba.digest(7)));
        assert!(ab.includes(&one) && ab.includes(&two));
        assert_eq!(ab, seen([0, 1, 2].map(|n| a[n].max(b[n]))), "and holds no more");
        let merged = ab.clone();
        ab.insert(ab.next_dot(id(2)));
        assert_eq!(standing(&merged, &ab), "before");
    }
}

#[test]
fn p31_a_hundred_writes_in_a_row_are_read_in_order() {
    let mut register = Causal::<LWWRegister<u8>>::new();
    for value in 0..100 {
        register.edit(author(0, 0), |register| register.set(&value)).unwrap();
        assert_eq!(register.value().get().unwrap(), Some(value));
    }
    assert_eq!(register.value().siblings(), 1);
}

#[test]
fn p31_later_write_wins_and_ties_are_broken_symmetrically() {
    let written = |replica, time| {
        let mut register = Causal::<LWWRegister<u8>>::new();
        let author = author(replica, time);
        register.edit(author, |register| register.set(&(author.replica.get() as u8))).unwrap();
        register
    };
    assert_eq!(merged(&written(0, 2), &written(2, 1)).value().get().unwrap(), Some(70));
    assert_eq!(merged(&written(0, 2), &written(2, 2)).value().get().unwrap(), Some(90));
    assert_eq!(merged(&written(2, 2), &written(0, 2)).value().get().unwrap(), Some(90));
}

#[test]
fn p32_in_an_lww_map_a_concurrent_write_defeats_a_removal() {
    let mut a = Causal::<LWWMap<String, u8>>::new();
    let mut by_delta = Causal::<LWWMap<String, u8>>::new();
    let (_, first) = a.edit(author(0, 1), |map| map.insert("k", &1)).unwrap();
    let mut b = a.clone();
    let (was_there, removed) = a.edit(author(0, 2), |map| map.remove("k")).unwrap();
    assert!(was_there && !a.value().contains_key("k"));
    let (_, written) = b.edit(author(1, 0), |map| map.insert("k", &2)).unwrap();
    let both = merged(&a, &b);
    let entries: BTreeMap<String, u8> = both.value().entries().unwrap();
    assert_eq!(entries, BTreeMap::from([("k".to_owned(), 2)]), "the new value");
    for delta in [&first, &removed, &written] {
        by_delta.apply(delta).unwrap();
    }
    assert_eq!(by_delta, both);
    assert!(!a.edit(author(0, 3), |map| map.remove("absent")).unwrap().0);
}

#[test]
fn p32_concurrent_change_keeps_its_replicas_whole_total() {
    let mut a = Causal::<PNCounterMap<u8>>::new();
    a.edit(author(0, 0), |map| map.add(&1, 10)).unwrap();
    let mut b = a.clone();
    b.edit(author(1, 0), |map| map.add(&1, 5)).unwrap();
    a.merge(&b);
    let (_, removed) = a.edit(author(0, 0), |map| map.remove(&1)).unwrap();
    assert_eq!(a.value().get(&1), None);
    let (_, added) = b.edit(author(1, 0), |map| map.add(&1, 1)).unwrap();
    let both = merged(&a, &b);
    assert_eq!(both.value().get(&1), Some(6), "its old five and the new one; not A's ten");
    a.apply(&added).unwrap();
    b.apply(&removed).unwrap();
    assert_eq!((&a, &b), (&both, &both));
    a.edit(author(0, 0), |map| map.remove(&1)).unwrap();
    a.edit(author(0, 0), |map| map.add(&1, 2)).unwrap();
    assert_eq!(a.value().get(&1), Some(2), "a removed counter starts anew");
}
