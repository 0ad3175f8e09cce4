//! Histories that broke an early version of the kernel, smallest first. The laws found them; they
//! stand here so that nobody has to find them again.

use ostraca_ddata::causal::CausalContext;
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::{Delta, Repair};
use ostraca_ddata::types::edit::Author;
use ostraca_ddata::types::{Causal, ORSet};

const A: Author = Author::new(ReplicaId::new(1), HybridTimestamp::from_raw(1));

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

/// An addition and its removal come joined, so nothing live is overwritten on arrival. A repair
/// from there must still tell a third replica that the addition is gone.
#[test]
fn a_removal_that_came_with_its_addition_is_passed_on() {
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
