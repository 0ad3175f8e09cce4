//! Known failures of other projects that concern data types.

use std::collections::BTreeMap;

use crdts::{CmRDT, CvRDT, LWWReg};
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::encoded::Encoded;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::Repair;
use ostraca_ddata::types::edit::Author;
use ostraca_ddata::types::{Causal, DataType, GCounter, LWWMap, LWWRegister, ORSet};
use serde::{Deserialize, Serialize};

const fn at(replica: u64, time: u64) -> Author {
    Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(time))
}

fn filled(author: Author, keys: u8) -> Causal<LWWMap<u8, u8>> {
    let mut map = Causal::<LWWMap<u8, u8>>::new();
    for key in 0..keys {
        map.edit(author, |map| map.insert(&key, &key)).unwrap();
    }
    map
}

/// Sends a repair, or the full state if the repair requires it.
fn gossip<T: DataType>(from: &Causal<T>, to: &mut Causal<T>) {
    match from.repair(to.context()) {
        Repair::Nothing => {}
        Repair::Delta(delta) => {
            to.apply(&delta).expect("a repair fits the peer it was made for");
        }
        Repair::Full => {
            to.merge(from);
        }
    }
}

#[test]
fn known_failure_09_equal_stamps_are_settled_by_the_replica_id() {
    let (mut theirs_a, mut theirs_b) =
        (LWWReg { val: 'a', marker: 5 }, LWWReg { val: 'b', marker: 5 });
    let sent = theirs_a.clone();
    CvRDT::merge(&mut theirs_a, theirs_b.clone());
    CvRDT::merge(&mut theirs_b, sent);
    assert_eq!((theirs_a.val, theirs_b.val), ('a', 'b'), "the crate's replicas differ for ever");

    let (mut a, mut b) = (Causal::<LWWRegister<char>>::new(), Causal::<LWWRegister<char>>::new());
    let (_, of_a) = a.edit(at(1, 5), |register| register.set(&'a')).unwrap();
    let (_, of_b) = b.edit(at(2, 5), |register| register.set(&'b')).unwrap();
    a.apply(&of_b).unwrap();
    b.apply(&of_a).unwrap();
    assert_eq!(a.value().get().unwrap(), Some('b'));
    assert_eq!(a, b);
}

#[test]
fn known_failure_12_restarted_node_is_a_new_replica() {
    let mut theirs = crdts::GCounter::<&str>::new();
    theirs.apply(theirs.inc_many("10.0.0.1", 3));
    let mut restarted = crdts::GCounter::<&str>::new(); // the id is the address, the state is lost
    restarted.apply(restarted.inc_many("10.0.0.1", 2));
    CvRDT::merge(&mut theirs, restarted);
    assert_eq!(theirs.read(), 3_u8.into(), "the crate's counter lost two");

    let (before, after) = (at(1, 0), at(2, 0)); // two incarnations of one node
    let mut peer = Causal::<GCounter>::new();
    let mut node = Causal::<GCounter>::new();
    let (_, early) = node.edit(before, |counter| counter.increment(3)).unwrap();
    peer.apply(&early).unwrap();
    let mut node = Causal::<GCounter>::new(); // restarted without its state
    let (_, late) = node.edit(after, |counter| counter.increment(2)).unwrap();
    peer.apply(&late).unwrap();
    gossip(&peer, &mut node);
    assert_eq!((peer.value().value(), node.value().value()), (5, 5));
    assert_eq!(node, peer);

    let mut set = Causal::<ORSet<u8>>::new();
    let (_, first) = set.edit(before, |set| set.insert(&1)).unwrap();
    let mut again = Causal::<ORSet<u8>>::new();
    let (_, second) = again.edit(after, |set| set.insert(&2)).unwrap();
    again.apply(&first).unwrap();
    set.apply(&second).unwrap();
    assert_eq!(set, again);
    assert_eq!(set.value().len(), 2);
}

#[test]
fn known_failure_13_a_deleted_key_is_not_resurrected_by_gossip() {
    let mut a = Causal::<ORSet<u8>>::new();
    let (_, added) = a.edit(at(1, 0), |set| set.insert(&7)).unwrap();
    let mut absent = a.clone(); // does not receive the delete
    let deleted = a.delete(at(1, 0));
    let mut b = Causal::<ORSet<u8>>::new();
    b.apply(&added).unwrap();
    b.apply(&deleted).unwrap();

    b.merge(&absent); // an old full state
    b.apply(&added).unwrap(); // an old delta
    gossip(&absent, &mut b); // an old peer's repair
    assert!(b.state().is_bottom());
    gossip(&b, &mut absent);
    assert!(absent.state().is_bottom());

    absent.edit(at(3, 0), |set| set.insert(&8)).unwrap(); // the key can be used again
    gossip(&absent, &mut a);
    assert_eq!(a.value().elements::<Vec<u8>>().unwrap(), [8]);
}

#[test]
fn known_failure_15_partial_delta_keeps_unnamed_keys() {
    let mut a = filled(at(1, 0), 10);
    let mut b = a.clone();
    let (_, delta) = a.edit(at(1, 1), |map| map.insert(&3, &99)).unwrap();
    assert_eq!((delta.dots().len(), delta.overwritten().len()), (1, 1), "its own dots only");
    b.apply(&delta).unwrap();
    assert_eq!(b.value().len(), 10);
    assert_eq!(b, a);
    let mut stranger = Causal::<LWWMap<u8, u8>>::new();
    assert!(stranger.apply(&delta).is_err(), "a replica without its past refuses it");
}

#[test]
fn known_failure_16_lost_deltas_are_repaired() {
    let mut a = filled(at(1, 0), 5);
    let mut away = a.clone();
    a.edit(at(1, 1), |map| map.insert(&0, &50)).unwrap(); // dropped
    a.edit(at(1, 2), |map| map.remove(&1)).unwrap(); // dropped
    let (_, seen) = a.edit(at(1, 3), |map| map.insert(&0, &51)).unwrap();
    let lack = away.apply(&seen).unwrap_err();
    assert_eq!(lack.context, *away.context());
    gossip(&a, &mut away);
    assert_eq!(away, a);

    a.edit(at(1, 4), |map| map.remove(&2)).unwrap();
    while a.state().records() > 0 {
        a.forget_record();
    }
    assert_eq!(a.repair(away.context()), Repair::Full, "behind the ring: the full state");
    gossip(&a, &mut away);
    assert_eq!(away, a);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Before {
    name: String,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct After {
    name: String,
    #[serde(default)]
    shards: u32,
}

#[test]
fn known_failure_28_a_value_survives_an_added_field_both_ways() {
    let before = Before { name: "a".into() };
    let after = After { name: "a".into(), shards: 7 };
    let positional = rmp_serde::to_vec(&after).unwrap();
    assert!(rmp_serde::from_slice::<Before>(&positional).is_err(), "the positional form does not");

    let newer: After = Encoded::new(&before).unwrap().decode().unwrap();
    assert_eq!(newer, After { name: "a".into(), shards: 0 });
    let older: Before = Encoded::new(&after).unwrap().decode().unwrap();
    assert_eq!(older, before);

    let mut map = Causal::<LWWMap<String, After>>::new();
    map.edit(at(1, 0), |map| map.insert("k", &after)).unwrap();
    let old_release = Causal::<LWWMap<String, Before>>::decode(&map.encode()).unwrap();
    let entries: BTreeMap<String, Before> = old_release.value().entries().unwrap();
    assert_eq!(entries["k"], before);
}
