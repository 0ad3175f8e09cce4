//! Histories in which the `crdts` crate gives wrong results. The tests pin its results, so that a
//! changed release is noticed, and check ours.

use std::collections::BTreeSet;

use crdts::{CmRDT, CvRDT, MVReg, Map, Orswot};
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::{Delta, Repair};
use ostraca_ddata::types::edit::Author;
use ostraca_ddata::types::{Causal, LWWMap, MVRegister, ORMap, ORSet};

const A: Author = at(1);
const B: Author = at(2);
const C: Author = at(3);

const fn at(replica: u64) -> Author {
    Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(1))
}

type TheirMap = Map<u8, MVReg<u8, u64>, u64>;
type OurMap = Causal<ORMap<u8, MVRegister<u8>>>;

fn their_put(map: &mut TheirMap, actor: u64, key: u8, value: u8) {
    let ctx = map.read_ctx().derive_add_ctx(actor);
    map.apply(map.update(key, ctx, |register, ctx| register.write(value, ctx)));
}

fn their_values(map: &TheirMap, key: u8) -> Vec<u8> {
    let mut values = map.get(&key).val.map(|register| register.read().val).unwrap_or_default();
    values.sort_unstable();
    values
}

fn our_put(map: &mut OurMap, author: Author, key: u8, value: u8) {
    map.edit(author, |map| map.update(&key, |register| register.set(&value))).unwrap();
}

fn our_values(map: &OurMap, key: u8) -> Vec<u8> {
    let mut values: Vec<u8> =
        map.value().get(&key).map(|register| register.values().unwrap()).unwrap_or_default();
    values.sort_unstable();
    values
}

fn merged<M: CvRDT + Clone>(a: &M, b: &M) -> M {
    let mut merged = a.clone();
    CvRDT::merge(&mut merged, b.clone());
    merged
}

/// C puts k0; A merges C; A puts k2 = 0, then k0; C puts k2 = 1; B merges A; A removes k2.
#[test]
fn their_map_is_not_associative_and_ours_is() {
    let (mut a, mut c) = (TheirMap::new(), TheirMap::new());
    their_put(&mut c, 3, 0, 5);
    CvRDT::merge(&mut a, c.clone());
    their_put(&mut a, 1, 2, 0);
    their_put(&mut a, 1, 0, 6);
    their_put(&mut c, 3, 2, 1);
    let b = a.clone();
    a.apply(a.rm(2, a.get(&2).derive_rm_ctx()));
    assert_eq!(their_values(&merged(&merged(&a, &b), &c), 2), [1]);
    assert_eq!(their_values(&merged(&a, &merged(&b, &c)), 2), [0, 1], "the removed value is back");

    let (mut a, mut c) = (OurMap::new(), OurMap::new());
    our_put(&mut c, C, 0, 5);
    a.merge(&c);
    our_put(&mut a, A, 2, 0);
    our_put(&mut a, A, 0, 6);
    our_put(&mut c, C, 2, 1);
    let b = a.clone();
    a.edit(A, |map| map.remove(&2)).unwrap();
    let (left, right) = (merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
    assert_eq!(left, right);
    assert_eq!(our_values(&left, 2), [1]);
}

/// The second addition of an actor arrives before its first.
#[test]
fn reordered_ops_lose_data_in_orswot_only() {
    let mut origin = Orswot::<u8, u64>::new();
    let first = origin.add(1, origin.read_ctx().derive_add_ctx(1));
    origin.apply(first.clone());
    let second = origin.add(2, origin.read_ctx().derive_add_ctx(1));
    origin.apply(second.clone());
    let mut late = Orswot::<u8, u64>::new();
    late.apply(second);
    late.apply(first);
    assert!(!late.contains(&1).val, "the first is lost");
    CvRDT::merge(&mut late, origin.clone());
    assert!(!late.contains(&1).val, "a full-state merge does not bring it back");
    CvRDT::merge(&mut origin, late);
    assert!(!origin.contains(&1).val, "and the merge back deletes it at its origin");

    let mut origin = Causal::<ORSet<u8>>::new();
    let (_, first) = origin.edit(A, |set| set.insert(&1)).unwrap();
    let (_, second) = origin.edit(A, |set| set.insert(&2)).unwrap();
    let mut late = Causal::<ORSet<u8>>::new();
    late.apply(&second).unwrap();
    assert_eq!(late.value().elements::<Vec<u8>>().unwrap(), [2]);
    let mut mended = late.clone();
    late.apply(&first).unwrap();
    mended.merge(&origin);
    assert_eq!((&late, &mended), (&origin, &origin));
}

/// A state with one entry is used as a delta, with its whole clock.
#[test]
fn partial_state_as_delta_deletes_entries_in_orswot_only() {
    let (mut origin, mut peer) = (Orswot::<u8, u64>::new(), Orswot::<u8, u64>::new());
    for element in [1, 2] {
        let op = origin.add(element, origin.read_ctx().derive_add_ctx(1));
        origin.apply(op.clone());
        peer.apply(op);
    }
    origin.apply(origin.add(3, origin.read_ctx().derive_add_ctx(1)));
    let mut partial = origin.clone();
    partial.apply(partial.rm_all([1, 2], partial.read_ctx().derive_rm_ctx()));
    CvRDT::merge(&mut peer, partial);
    assert_eq!(peer.read().val.into_iter().collect::<Vec<_>>(), [3]);

    let (mut origin, mut peer) = (Causal::<ORSet<u8>>::new(), Causal::<ORSet<u8>>::new());
    for element in [1, 2, 3] {
        let (_, delta) = origin.edit(A, |set| set.insert(&element)).unwrap();
        peer.apply(&delta).unwrap();
    }
    assert_eq!(peer.value().elements::<BTreeSet<u8>>().unwrap(), BTreeSet::from([1, 2, 3]));
}

/// `validate_op` of their map refuses the second key ever written (rust-crdt #159).
#[test]
fn their_map_refuses_a_valid_second_key_and_ours_accepts() {
    let mut map = TheirMap::new();
    their_put(&mut map, 1, 0, 1);
    let ctx = map.read_ctx().derive_add_ctx(1);
    let second = map.update(1, ctx, |register, ctx| register.write(2, ctx));
    assert!(map.validate_op(&second).is_err());

    let (mut map, mut peer) = (OurMap::new(), OurMap::new());
    for key in [0, 1] {
        let (_, delta) =
            map.edit(A, |map| map.update(&key, |register| register.set(&key))).unwrap();
        assert!(peer.validate_op(&delta).is_ok());
        CmRDT::apply(&mut peer, delta);
    }
    assert_eq!(peer, map);
}

/// Two concurrent writes, one of them removed with its key: their ops and merges disagree.
#[test]
fn ops_and_merges_disagree_in_their_map_only() {
    let (mut a, mut c) = (OurMap::new(), OurMap::new());
    let (mut by_delta, mut by_state) = (OurMap::new(), OurMap::new());
    let put = |map: &mut OurMap, author, key: u8, value: u8| {
        map.edit(author, |map| map.update(&key, |register| register.set(&value))).unwrap().1
    };
    let mut deltas = vec![put(&mut c, C, 0, 5)];
    a.merge(&c);
    deltas.push(put(&mut a, A, 2, 0));
    deltas.push(put(&mut a, A, 0, 6));
    deltas.push(put(&mut c, C, 2, 1));
    deltas.push(a.edit(A, |map| map.remove(&2)).unwrap().1);
    for delta in &deltas {
        by_delta.apply(delta).unwrap();
    }
    by_state.merge(&a);
    by_state.merge(&c);
    assert_eq!(by_delta, by_state);
    assert_eq!(our_values(&by_delta, 2), [1]);

    let mut ops = Vec::new();
    let (mut a, mut c) = (TheirMap::new(), TheirMap::new());
    let their_op = |map: &mut TheirMap, actor, key, value| {
        let ctx = map.read_ctx().derive_add_ctx(actor);
        let op = map.update(key, ctx, |register: &MVReg<u8, u64>, ctx| register.write(value, ctx));
        map.apply(op.clone());
        op
    };
    ops.push(their_op(&mut c, 3, 0, 5));
    CvRDT::merge(&mut a, c.clone());
    ops.push(their_op(&mut a, 1, 2, 0));
    ops.push(their_op(&mut a, 1, 0, 6));
    let b = a.clone();
    ops.push(their_op(&mut c, 3, 2, 1));
    let removed = a.rm(2, a.get(&2).derive_rm_ctx());
    a.apply(removed.clone());
    ops.push(removed);
    let mut by_op = TheirMap::new();
    ops.into_iter().for_each(|op| by_op.apply(op));
    let by_state = merged(&merged(&a, &b), &c);
    assert_eq!((their_values(&by_op, 2), their_values(&by_state, 2)), (vec![0, 1], vec![1]));
}

/// The smallest history that loses an acknowledged removal in plain delta-state CRDTs: its delta
/// contains the dots that it removed, but not those that these had overwritten.
#[test]
fn causal_delta_rule_keeps_acknowledged_removal() {
    type Registers = Causal<LWWMap<u8, u8>>;
    let (mut a, mut b, mut c) = (Registers::new(), Registers::new(), Registers::new());
    let (_, b1) = b.edit(B, |map| map.insert(&0, &1)).unwrap();
    a.apply(&b1).unwrap();
    let (_, a1) = a.edit(A, |map| map.insert(&0, &2)).unwrap(); // not delivered yet
    let (_, a2): (bool, Delta) = a.edit(A, |map| map.remove(&0)).unwrap(); // WriteMajority: A, B

    let lack = b.apply(&a2).unwrap_err();
    assert_eq!(lack.context, *b.context(), "no ack, but a question");
    let Repair::Delta(repair) = a.repair(&lack.context) else { panic!("by delta") };
    b.apply(&repair).unwrap(); // now B acknowledges
    assert!(b.context().includes_all(a2.dots()));

    c.merge(&b); // ReadMajority from B and C
    assert_eq!(c.value().get(&0).unwrap(), None, "the acknowledged removal is seen");
    b.apply(&a1).unwrap(); // late, and harmless
    assert_eq!(b.value().get(&0).unwrap(), None);
}

/// The same four steps without the rule: the removed key reappears in all three replicas.
#[cfg(feature = "canaries")]
#[test]
fn removed_key_returns_without_causal_delta_rule() {
    type Registers = Causal<LWWMap<u8, u8>>;
    let (mut a, mut b, mut c) = (Registers::new(), Registers::new(), Registers::new());
    let (_, b1) = b.edit(B, |map| map.insert(&0, &1)).unwrap();
    a.apply(&b1).unwrap();
    a.edit(A, |map| map.insert(&0, &2)).unwrap();
    let (_, a2) = a.edit(A, |map| map.remove(&0)).unwrap();
    b.apply_without_rule_r(&a2);
    c.merge(&b);
    assert_eq!(c.value().get(&0).unwrap(), Some(1));
}

/// A has the winning write and B the losing one; C saw the winner and removed it.
#[test]
fn concurrent_losers_are_kept_so_merges_are_associative() {
    type Registers = Causal<LWWMap<u8, u8>>;
    let (mut a, mut b) = (Registers::new(), Registers::new());
    let late = Author::new(ReplicaId::new(1), HybridTimestamp::from_raw(9));
    a.edit(late, |map| map.insert(&0, &1)).unwrap();
    b.edit(B, |map| map.insert(&0, &2)).unwrap();
    let mut c = a.clone();
    c.edit(C, |map| map.remove(&0)).unwrap();
    let (left, right) = (merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
    assert_eq!(left, right);
    assert_eq!(merged(&a, &b).value().get(&0).unwrap(), Some(1));
    assert_eq!(left.value().get(&0).unwrap(), Some(2));
}
