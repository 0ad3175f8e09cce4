//! Numbers near their maximum: a hostile member sends dots, totals and stamps near the highest
//! value, and the next honest change must still decode elsewhere.

use ostraca_ddata::causal::COUNTER_MAX;
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::replicator::request::{ReplicatorReply, RequestError, WriteConsistency as To};
use ostraca_ddata::replicator::wire::{Body, Entry, EntryContent, Nack};
use ostraca_ddata::types::edit::{Author, EditError};
use ostraca_ddata::types::{Causal, DataType, LWWRegister, PNCounter};

use crate::bare::{Bare, Words, change, insert, peer};
use crate::input::other;

type Name = LWWRegister<String>;

/// A value whose context contains every dot of `raised` up to `last`, after `change` was applied.
fn near_last<T: DataType>(
    raised: ReplicaId,
    last: u64,
    change: impl FnOnce(&mut Causal<T>),
) -> Causal<T> {
    let nothing_seen = Causal::<T>::new().encode();
    let mut bytes = vec![1, 1]; // version, one replica: ...
    bytes.extend(raised.get().to_le_bytes());
    bytes.extend([1, 0]); // ... whose dots are all seen, up to ...
    let mut rest = last;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes.extend(&nothing_seen[3..]); // ... with no stray dots and nothing that lives
    let mut value = Causal::decode(&bytes).expect("the bytes are well formed");
    change(&mut value);
    value
}

fn entry<T: DataType>(key: &str, value: &Causal<T>) -> Entry {
    let content = EntryContent::Full(value.encode().into());
    let shape = T::shape().to_string().into();
    Entry { index: 0, key: key.into(), shape, guard: None, content }
}

fn at(replica: ReplicaId, time: HybridTimestamp) -> Author {
    Author::new(replica, time)
}

/// The refusals in the answer to a write of this entry by member 1.
fn answered(bare: &mut Bare, entry: Entry) -> Vec<(u32, Nack)> {
    bare.sent();
    bare.hear(1, Body::Write { push: 9, whole: true, entries: vec![entry].into() });
    let acks = bare.sent().into_iter().filter_map(|(_, body)| match body {
        Body::Ack { nacks, .. } => Some(nacks),
        _ => None,
    });
    acks.flatten().collect()
}

/// Whether another member accepts these entries, or asks for a repair.
fn is_taken(entries: Vec<Entry>) -> bool {
    let mut third = other(2);
    let repaired = |nack: &Nack| matches!(nack, Nack::Lack(_)); // asks for the rest
    third.hear(0, Body::Write { push: 3, whole: true, entries: entries.into() });
    let nacks = third.sent().into_iter().filter_map(|(_, body)| match body {
        Body::Ack { nacks, .. } => Some(nacks),
        _ => None,
    });
    nacks.flatten().all(|(_, nack)| repaired(&nack)) && third.replicator.stats().undecodable == 0
}

/// Makes an honest change here and returns the pushed entries.
fn pushed_change(bare: &mut Bare, key: &str) -> Vec<Entry> {
    bare.sent();
    bare.now(insert(key, "tea", To::Local)).expect("the change is made");
    bare.pushes().remove(0).2
}

#[test]
fn claims_of_own_dots_are_refused_and_counted() {
    let mut bare = Bare::of(3);
    for (n, key) in ["new", "held"].into_iter().enumerate() {
        if key == "held" {
            pushed_change(&mut bare, key);
        }
        let claim = near_last::<Words>(peer(0), COUNTER_MAX, |_| {});
        assert_eq!(answered(&mut bare, entry(key, &claim)), [(0, Nack::Undecodable)]);
        assert_eq!(bare.replicator.stats().undecodable, n as u64 + 1);
        assert!(is_taken(pushed_change(&mut bare, &format!("{key}-later"))));
        let entries = pushed_change(&mut bare, key);
        assert!(is_taken(entries), "{key}");
    }
}

#[test]
fn last_dots_of_others_leave_own_changes_decodable() {
    for liar in [peer(1), peer(2)] {
        let mut bare = Bare::of(3);
        let claim = near_last::<Words>(liar, COUNTER_MAX - 1, |set| {
            let author = at(liar, HybridTimestamp::default());
            set.edit(author, |set| set.insert("coffee")).expect("one dot is left");
        });
        assert_eq!(answered(&mut bare, entry("k", &claim)), []);
        assert!(is_taken(pushed_change(&mut bare, "k")));
        assert!(bare.holds("k", "tea") && bare.holds("k", "coffee"));
    }
}

#[test]
fn total_near_the_end_fails_only_the_add_that_overflows() {
    let mut bare = Bare::of(3);
    let claim = near_last::<PNCounter>(peer(1), 1, |counter| {
        let author = at(peer(1), HybridTimestamp::default());
        counter.edit(author, |counter| counter.add(i128::MAX)).expect("within range");
    });
    assert_eq!(answered(&mut bare, entry("k", &claim)), []);
    let overflow = bare.now(change::<PNCounter, _>("k", To::Local, |counter| counter.add(1)));
    let Err(RequestError::ModifyFailure(error)) = overflow else { panic!("{overflow:?}") };
    assert!(matches!(*error.0, EditError::Overflow), "{}", error.0);
    bare.sent();
    let counted = bare.now(change::<PNCounter, _>("k", To::Local, |counter| counter.add(-1)));
    assert!(matches!(counted, Ok(ReplicatorReply::Updated { .. })), "{counted:?}");
    assert!(is_taken(bare.pushes().remove(0).2));
}

#[test]
fn last_stamp_of_a_clock_does_not_block_a_register() {
    let mut bare = Bare::of(3);
    let claim = near_last::<Name>(peer(1), 1, |name| {
        name.edit(at(peer(1), HybridTimestamp::MAX), |name| name.set("mallory")).expect("empty");
    });
    assert_eq!(answered(&mut bare, entry("k", &claim)), []);
    assert_eq!(bare.replicator.stats().impossible_clocks, 1);
    bare.sent();
    let set = bare.now(change::<Name, _>("k", To::Local, |name| name.set("alice")));
    assert!(set.is_ok(), "{set:?}");
    assert!(is_taken(bare.pushes().remove(0).2));
    let value = bare.replicator.peek(&"k".into()).and_then(|value| value.get::<Name>());
    assert_eq!(value.expect("the register exists").get().expect("text"), Some("alice".to_owned()));
}
