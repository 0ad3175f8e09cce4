//! LWW registers: the order of writes. Hybrid clocks, saturation, stale writes, guarded terms,
//! first write wins, and versions of the caller.

use std::time::Duration;

use ostraca_ddata::clock::{HybridClock, HybridTimestamp, WallTime};
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::edit::{Author, EditError};
use ostraca_ddata::types::{Causal, LWWMap, LWWRegister, ORMap, ORSet, Stamp, Term};
use proptest::prelude::*;

type Register = Causal<LWWRegister<u8>>;

const fn at(replica: u64, time: u64) -> Author {
    Author::new(ReplicaId::new(replica), HybridTimestamp::from_raw(time))
}

fn guarded(replica: u64, number: u64) -> Author {
    let term = Term { number, owner: ReplicaId::new(replica) };
    Author { term: Some(term), ..at(replica, 1_000_000) }
}

fn set(register: &mut Register, author: Author, value: u8) {
    register.edit(author, |register| register.set(&value)).unwrap();
}

fn get(register: &Register) -> Option<u8> {
    register.value().get().unwrap()
}

fn stamp(register: &Register) -> Stamp {
    register.value().stamp().unwrap()
}

fn merged(a: &Register, b: &Register) -> Register {
    let mut merged = a.clone();
    merged.merge(b);
    let mut other_way = b.clone();
    other_way.merge(a);
    assert_eq!(merged, other_way);
    merged
}

#[test]
fn later_hybrid_time_wins_among_concurrent_writes() {
    let (mut a, mut b) = (Register::new(), Register::new());
    set(&mut a, at(2, 10), 1);
    set(&mut b, at(1, 11), 2);
    let both = merged(&a, &b);
    assert_eq!((get(&both), both.value().siblings()), (Some(2), 2));
    assert_eq!(both.value().writer(), Some(ReplicaId::new(1)));
}

#[test]
fn causally_later_write_wins_over_clocks() {
    let mut a = Register::new();
    set(&mut a, at(1, 1_000), 1);
    let mut b = a.clone();
    set(&mut b, at(2, 3), 2); // its clock is far behind
    assert_eq!(stamp(&b).time, HybridTimestamp::from_raw(1_001));
    assert_eq!(get(&merged(&a, &b)), Some(2));
    assert_eq!(merged(&a, &b).value().siblings(), 1);
}

proptest! {
    /// Stamps rise along any chain of writes that have seen each other, even if clocks jump.
    #[test]
    fn stamps_rise_along_causality(times in proptest::collection::vec((0..3_u64, 0..50_u64), 1..40)) {
        let mut register = Register::new();
        let mut last = None;
        for (replica, time) in times {
            set(&mut register, at(replica, time), 0);
            let now = Some(stamp(&register));
            prop_assert!(now > last);
            last = now;
        }
    }
}

#[test]
fn hybrid_stamps_order_by_wall_time_then_counter() {
    let mut clock = HybridClock::new(Duration::from_secs(60));
    let wall = WallTime::from_millis(7);
    let stamps: Vec<_> = (0..=65_536).map(|_| clock.tick(wall)).collect();
    assert!(stamps.is_sorted_by(|a, b| a < b));
    assert_eq!(stamps[0], HybridTimestamp::at(wall));
    assert_eq!(stamps[65_536], HybridTimestamp::at(WallTime::from_millis(8)), "borrowed");
    assert!(clock.tick(WallTime::from_millis(9)) > stamps[65_536]);
}

#[test]
fn clock_adopts_remote_stamps_within_the_skew_only() {
    let mut clock = HybridClock::new(Duration::from_millis(100));
    let wall = WallTime::from_millis(1_000);
    let near = HybridTimestamp::at(WallTime::from_millis(1_100));
    assert_eq!(clock.observe(wall, near), Ok(Duration::from_millis(100)));
    assert_eq!(clock.tick(wall), near.next());
    let far = HybridTimestamp::at(WallTime::from_millis(1_101));
    assert!(clock.observe(wall, far).is_err());
    assert_eq!(clock.tick(wall), near.next().next(), "not dragged forward");
}

#[test]
fn register_at_highest_stamp_can_be_overwritten() {
    let mut a = Register::new();
    set(&mut a, at(1, u64::MAX), 1); // a clock at the maximum
    let mut b = a.clone();
    set(&mut b, at(2, 5), 2);
    assert_eq!(stamp(&b).time, HybridTimestamp::MAX);
    assert_eq!(get(&merged(&a, &b)), Some(2));
    set(&mut b, at(1, 6), 3);
    assert_eq!(get(&merged(&a, &b)), Some(3));
}

#[test]
fn highest_stamps_are_ordered_by_replica_id() {
    let (mut a, mut b) = (Register::new(), Register::new());
    set(&mut a, at(1, u64::MAX), 1);
    set(&mut b, at(2, u64::MAX), 2);
    assert_eq!(get(&merged(&a, &b)), Some(2));
}

#[test]
fn a_guarded_write_beats_every_ordinary_one() {
    let (mut a, mut b) = (Register::new(), Register::new());
    set(&mut a, at(9, u64::MAX), 1);
    set(&mut b, guarded(1, 1), 2);
    let mut both = merged(&a, &b);
    assert_eq!(get(&both), Some(2));
    assert_eq!(stamp(&both).time, HybridTimestamp::from_raw(1), "sequence numbers, no clock");
    let ordinary = both.edit(at(9, u64::MAX), |register| register.set(&3));
    assert!(matches!(ordinary, Err(EditError::Stale { .. })));
    assert_eq!(get(&both), Some(2));
}

#[test]
fn a_higher_term_beats_a_longer_sequence_of_a_lower_one() {
    let (mut old, mut new) = (Register::new(), Register::new());
    for value in 0..20 {
        set(&mut old, guarded(1, 1), value);
    }
    set(&mut new, guarded(2, 2), 99);
    let both = merged(&old, &new);
    assert_eq!(get(&both), Some(99));
    assert_eq!(stamp(&both).term, Term { number: 2, owner: ReplicaId::new(2) });
}

#[test]
fn stale_owner_that_saw_its_successor_is_refused() {
    let mut register = Register::new();
    set(&mut register, guarded(2, 2), 1);
    let before = register.encode();
    let refused = register.edit(guarded(1, 1), |register| register.set(&7)).unwrap_err();
    let EditError::Stale { attempted, live } = refused else { panic!("{refused:?}") };
    assert!(attempted < live);
    assert_eq!(register.encode(), before);
}

#[test]
fn equal_term_numbers_of_two_owners_are_different_terms() {
    let mut register = Register::new();
    set(&mut register, guarded(2, 5), 1);
    assert!(register.edit(guarded(1, 5), |register| register.set(&7)).is_err());
    set(&mut register, guarded(3, 5), 2);
    assert_eq!(get(&register), Some(2));
}

#[test]
fn guarded_sequence_restarts_in_each_term() {
    let mut register = Register::new();
    for (author, seq) in [(guarded(1, 1), 1), (guarded(1, 1), 2), (guarded(1, 3), 1)] {
        set(&mut register, author, 0);
        assert_eq!(stamp(&register).time, HybridTimestamp::from_raw(seq));
    }
}

#[test]
fn keys_of_guarded_maps_are_not_removable() {
    let mut map = Causal::<LWWMap<u8, Option<u8>>>::new();
    map.edit(guarded(1, 1), |map| map.insert(&1, &Some(1))).unwrap();
    let removed = map.edit(guarded(1, 1), |map| map.remove(&1));
    assert!(matches!(removed, Err(EditError::GuardedRemove)));
    let cleared = map.edit(guarded(1, 1), |map| map.clear());
    assert!(matches!(cleared, Err(EditError::GuardedRemove)));
    map.edit(guarded(1, 1), |map| map.insert(&1, &None)).unwrap(); // the alternative to a removal
    assert_eq!(map.value().get(&1).unwrap(), Some(None));

    let mut map = Causal::<ORMap<u8, LWWRegister<u8>>>::new();
    map.edit(guarded(1, 1), |map| map.update(&1, |register| register.set(&1))).unwrap();
    let replaced = map.edit(guarded(1, 1), |map| map.replace(&1, |register| register.set(&2)));
    assert!(matches!(replaced, Err(EditError::GuardedRemove)));
}

#[test]
fn only_registers_and_maps_of_registers_can_be_guarded() {
    let refused = Causal::<ORSet<u8>>::new().edit(guarded(1, 1), |set| set.insert(&1));
    assert!(matches!(refused, Err(EditError::NotGuardable)));
}

#[test]
fn set_first_keeps_the_earliest_write() {
    let (mut a, mut b) = (Register::new(), Register::new());
    let first = |register: &mut Register, author, value: u8| {
        register.edit(author, |register| register.set_first(&value)).unwrap()
    };
    assert!(first(&mut a, at(1, 20), 1).0);
    assert!(first(&mut b, at(2, 10), 2).0, "the first as far as this replica knows");
    let mut both = merged(&a, &b);
    assert_eq!(get(&both), Some(2), "the earlier of the two");
    let (won, delta) = first(&mut both, at(3, 1), 3);
    assert!(!won && delta.is_empty(), "a no-op, not an error");
    assert_eq!(get(&both), Some(2));
}

#[test]
fn set_at_takes_rising_versions_only() {
    let mut register = Register::new();
    register.edit(at(1, 999), |register| register.set_at(5, &1)).unwrap();
    for version in [4, 5] {
        let refused = register.edit(at(2, 999), |register| register.set_at(version, &2));
        assert!(matches!(refused, Err(EditError::Stale { .. })));
    }
    register.edit(at(2, 0), |register| register.set_at(6, &3)).unwrap();
    assert_eq!((get(&register), stamp(&register).time.raw()), (Some(3), 6));
    let mut concurrent = Register::new();
    concurrent.edit(at(3, 0), |register| register.set_at(7, &4)).unwrap();
    assert_eq!(get(&merged(&register, &concurrent)), Some(4));
}

/// Regression: the highest version could be written over itself, as if a clock had reached it.
#[test]
fn highest_version_is_not_set_over_itself() {
    let mut register = Register::new();
    register.edit(at(1, 0), |register| register.set_at(u64::MAX, &1)).unwrap();
    let refused = register.edit(at(2, 0), |register| register.set_at(u64::MAX, &2));
    assert!(matches!(refused, Err(EditError::Stale { .. })));
    assert_eq!(get(&register), Some(1));
}

#[test]
fn error_within_an_edit_changes_nothing() {
    let mut map = Causal::<LWWMap<u8, u8>>::new();
    map.edit(at(1, 0), |map| map.insert(&1, &1)).unwrap();
    let before = map.encode();
    let failed = map.edit(at(1, 1), |map| {
        map.insert(&1, &2)?;
        map.remove(&1)?;
        Err::<(), _>(EditError::custom("no"))
    });
    assert!(matches!(failed, Err(EditError::Custom(_))));
    assert_eq!(map.encode(), before);
}
