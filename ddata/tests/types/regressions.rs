//! Histories that broke an early version of the crate, shortest first. The laws found them; these
//! tests keep them.

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::{Delta, Repair};
use ostraca_ddata::types::edit::{Author, EditError};
use ostraca_ddata::types::{Causal, LWWMap, ORMap, ORSet};

const A: Author = Author::new(ReplicaId::new(1), HybridTimestamp::from_raw(1));
const B: Author = Author::new(ReplicaId::new(2), HybridTimestamp::from_raw(1));

type Set = Causal<ORSet<u8>>;

fn add(set: &mut Set, author: Author, element: u8) -> Delta {
    set.edit(author, |set| set.insert(&element)).unwrap().1
}

fn remove(set: &mut Set, author: Author, element: u8) -> Delta {
    set.edit(author, |set| set.remove(&element)).unwrap().1
}

fn repair(from: &Set, peer: &CausalContext) -> Delta {
    match from.repair(peer) {
        Repair::Delta(delta) => delta,
        other => panic!("expected a repair by delta, got {other:?}"),
    }
}

/// An addition and its removal arrive joined, so nothing live is overwritten on arrival. A repair
/// from that replica must still remove the addition at a third one.
#[test]
fn removal_joined_with_its_addition_is_propagated() {
    let (mut a, mut b, mut c) = (Set::new(), Set::new(), Set::new());
    let added = add(&mut a, A, 7);
    let mut both = added.clone();
    both.join(&remove(&mut a, A, 7));
    b.apply(&both).unwrap();
    c.apply(&added).unwrap();
    c.apply(&repair(&b, c.context())).unwrap();
    assert!(!c.value().contains(&7), "the removal is in the context, the element is still there");
    assert_eq!((&c, &c), (&a, &b));
}

/// A record of two removals is sent to a peer that knows one of them. Another replica that accepts
/// the repair would lose, without its replacement, the entry that the peer has replaced.
#[test]
fn repair_for_one_peer_erases_nothing_at_another() {
    let mut a = Causal::<LWWMap<u8, u8>>::new();
    let (_, first) = a.edit(A, |map| map.insert(&1, &10)).unwrap();
    let (_, second) = a.edit(A, |map| map.insert(&2, &20)).unwrap();
    let (mut bystander, mut peer, mut b) = (Causal::new(), Causal::new(), Causal::new());
    for replica in [&mut bystander, &mut peer, &mut b] {
        let replica: &mut Causal<LWWMap<u8, u8>> = replica;
        replica.apply(&first).unwrap();
        replica.apply(&second).unwrap();
    }
    let (_, overwritten) = a.edit(A, |map| map.insert(&1, &11)).unwrap();
    let (_, removed) = a.edit(A, |map| map.remove(&2)).unwrap();
    peer.apply(&overwritten).unwrap();
    let mut both = overwritten;
    both.join(&removed);
    b.apply(&both).unwrap();
    let Repair::Delta(for_peer) = b.repair(peer.context()) else { panic!("by delta") };

    let refused = bystander.apply(&for_peer).unwrap_err();
    assert_eq!(refused.context, *bystander.context());
    assert_eq!(bystander.value().get(&1).unwrap(), Some(10));
    peer.apply(&for_peer).unwrap();
    assert_eq!(peer, a);
}

/// Two concurrent removals of one element: a replica that received the second has no record of it.
/// A repair with only the second is correct for a peer that knows the first, and for no other
/// replica.
#[test]
fn repair_that_needs_another_removal_is_refused() {
    let (mut a, mut b) = (Set::new(), Set::new());
    let added = add(&mut a, A, 7);
    b.apply(&added).unwrap();
    let mut bystander = b.clone();
    let of_a = remove(&mut a, A, 7);
    let of_b = remove(&mut b, B, 7);
    let mut peer = bystander.clone();
    peer.apply(&of_a).unwrap();
    a.apply(&of_b).unwrap(); // nothing is live here now

    let for_peer = repair(&a, peer.context());
    assert!(bystander.apply(&for_peer).is_err());
    assert!(bystander.value().contains(&7), "refused: nothing was changed");
    peer.apply(&for_peer).unwrap();
    bystander.apply(&repair(&a, bystander.context())).unwrap();
    assert_eq!((&peer, &bystander), (&a, &a));
}

/// A state that received only the second delta of each replica: as many runs in the cloud as deltas
/// may add.
fn strays(replicas: std::ops::Range<u64>) -> Set {
    let mut known = Set::new();
    for replica in replicas {
        let author = Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(1));
        let mut origin = Set::new();
        add(&mut origin, author, 1);
        known.apply(&add(&mut origin, author, 2)).unwrap();
    }
    known
}

/// Two replicas with a thousand gaps each. A repair must not be refused because of their sum,
/// because later repairs would be refused as well, and the result must be decodable.
#[test]
fn replicas_with_many_gaps_repair_each_other() {
    let (mut a, mut b) = (strays(0..1_000), strays(1_000..2_000));
    a.apply(&repair(&b, a.context())).unwrap();
    b.merge(&a);
    assert_eq!(a, b);
    assert_eq!(Set::decode(&a.encode()).unwrap(), a);
    let mut newcomer = Set::new();
    newcomer.apply(&repair(&a, newcomer.context())).unwrap();
    assert_eq!(newcomer, a);

    let author = Author::new(ReplicaId::new(5_000), HybridTimestamp::from_raw(1));
    let mut origin = Set::new();
    add(&mut origin, author, 1);
    assert!(a.apply(&add(&mut origin, author, 2)).is_err(), "deltas that come early are refused");
}

/// Writing the new value fails after the old one was removed, and the closure ignores the error.
#[test]
fn failed_replacement_fails_the_whole_edit() {
    let mut map = Causal::<ORMap<u8, ORSet<u8>>>::new();
    map.edit(A, |map| map.update(&1, |set| set.insert(&1))).unwrap();
    let before = map.encode();
    let edited = map.edit(A, |map| {
        let _ = map.replace(&1, |_| Err::<(), _>(EditError::custom("no")));
        Ok(())
    });
    assert!(matches!(edited, Err(EditError::Torn)));
    assert_eq!(map.encode(), before);
}

/// Dots are collected in hash order; an early version moved all others for each inserted dot.
#[test]
fn delete_of_a_large_set_lists_every_dot_once() {
    let mut set = Causal::<ORSet<u32>>::new();
    set.edit(A, |set| {
        (0..20_000_u32).try_for_each(|element| {
            set.insert(&element)?;
            set.insert(&u32::MAX)?;
            set.remove(&u32::MAX).map(|_| ())
        })
    })
    .unwrap();
    let delta = set.delete(A);
    assert_eq!((delta.overwritten().len(), delta.overwritten().runs().len()), (20_000, 20_000));
    assert!(set.state().is_bottom());
}
