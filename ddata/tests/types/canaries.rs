//! Planted faults that the laws must detect. The fault `NoRuleR` is in `quorum`, with its property.

use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::edit::{Author, EditError};
use ostraca_ddata::types::{Causal, LWWMap, LWWRegister, Term};

const fn with(bug: ReplicatorFault, replica: u64) -> Author {
    let author = Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(1));
    Author { fault_injection: FaultInjection::with(bug), ..author }
}

/// A delta with its sender's whole context: the law about contexts of deltas fails for the first
/// one.
#[test]
fn known_failure_15_whole_context_delta_is_detected() {
    let author = with(ReplicatorFault::DeltaWithWholeContext, 1);
    let mut a = Causal::<LWWMap<u8, u8>>::new();
    let (_, first) = a.edit(author, |map| map.insert(&1, &1)).unwrap();
    let mut b = Causal::<LWWMap<u8, u8>>::new();
    b.apply(&first).unwrap();
    let (_, second) = a.edit(author, |map| map.insert(&2, &2)).unwrap();
    assert_eq!(second.dots().len(), 2, "it speaks of more than it made");
    b.apply(&second).unwrap();
    assert_eq!(a.context(), b.context());
    assert_ne!(a, b, "equal contexts, unequal states: the other key is gone");
    assert_eq!(b.value().get(&1).unwrap(), None);
}

fn in_term(author: Author, number: u64) -> Author {
    Author { term: Some(Term { number, owner: author.replica }), ..author }
}

#[test]
fn a_missing_stale_check_is_caught() {
    let write = |bug| {
        let mut register = Causal::<LWWRegister<u8>>::new();
        register.edit(in_term(with(bug, 2), 2), |register| register.set(&1)).unwrap();
        register.edit(in_term(with(bug, 1), 1), |register| register.set(&9))
    };
    assert!(matches!(write(ReplicatorFault::NoRuleR), Err(EditError::Stale { .. })));
    assert!(
        write(ReplicatorFault::NoStaleCheck).is_ok(),
        "the old owner has overwritten its successor"
    );
}

#[test]
fn a_removable_guarded_key_is_caught() {
    let remove = |bug| {
        let author = in_term(with(bug, 1), 1);
        let mut map = Causal::<LWWMap<u8, u8>>::new();
        map.edit(author, |map| map.insert(&1, &1)).unwrap();
        map.edit(author, |map| map.remove(&1))
    };
    assert!(matches!(remove(ReplicatorFault::NoRuleR), Err(EditError::GuardedRemove)));
    assert!(remove(ReplicatorFault::GuardedKeyRemoved).is_ok());
}
