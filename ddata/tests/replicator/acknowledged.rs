//! The rule "Leaning changes await everything"
//! (docs/protocol/replication.md#leaning-changes-await-everything): a replica acknowledges a change
//! that found something done already only if it holds that, too. The tests use three machines
//! without a simulator and decide which messages arrive.

use ostraca_ddata::data::Value;
use ostraca_ddata::fault_injection::{FaultInjection, ReplicatorFault};
use ostraca_ddata::replicator::config::ReplicatorConfig;
use ostraca_ddata::replicator::request::{
    ReplicatorReply, ReplicatorRequest, RequestError, RequestId, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{AckScope, Body, EntryContent, Nack};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{
    Flag, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORSet, ReplicatedData, Term, User,
};

use crate::bare::{Bare, Words, change, get, guarded, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch};

/// The machine that makes changes, one that acknowledges them, and one that receives nothing.
const AUTHOR: usize = 0;
const WITNESS: usize = 1;
const THIRD: usize = 2;

struct Three([Bare; 3]);

impl Three {
    fn new() -> Self {
        Self::with_bug(FaultInjection::none())
    }

    fn with_bug(fault_injection: FaultInjection) -> Self {
        Self([0, 1, 2].map(|n| {
            let mut bare = Bare::with_bug(peer(n), ReplicatorConfig::default(), fault_injection);
            bare.found(first_epoch(3));
            bare.sent();
            bare
        }))
    }

    /// Delivers the messages that one machine has sent to this other one and drops the rest.
    /// Returns whether a message was delivered.
    fn says(&mut self, from: usize, to: usize) -> bool {
        let sent = self.0[from].sent().into_iter();
        let bodies: Vec<Body> =
            sent.filter(|(of, _)| *of == peer(to)).map(|(_, body)| body).collect();
        let any = !bodies.is_empty();
        bodies.into_iter().for_each(|body| self.0[to].hear(from, body));
        any
    }

    /// Delivers messages between two machines until there are none. Messages to the third are lost.
    fn talk(&mut self, one: usize, other: usize) {
        for _ in 0..100 {
            if !(self.says(one, other) | self.says(other, one)) {
                return;
            }
        }
        panic!("{one} and {other} never stop sending");
    }

    /// Makes a change that all three machines hold.
    fn known_to_all(&mut self, request: ReplicatorRequest) {
        let id = self.0[AUTHOR].ask(request);
        let (push, entries) = self.0[AUTHOR].push_to_all(3);
        for n in [WITNESS, THIRD] {
            let entries = entries.clone().into();
            self.0[n].hear(AUTHOR, Body::Write { push, whole: true, entries });
            self.says(n, AUTHOR);
        }
        assert!(matches!(self.0[AUTHOR].answer(id), Some(Ok(_))));
    }

    /// Makes a change at the author only: its messages are lost.
    fn lost(&mut self, request: ReplicatorRequest) {
        let answer = self.0[AUTHOR].now(request);
        assert!(answer.is_ok(), "{answer:?}");
        self.0[AUTHOR].sent();
    }

    /// Makes changes in one batch, which the witness, and so a majority, acknowledges.
    fn acknowledged(&mut self, requests: Vec<ReplicatorRequest>) {
        let ids: Vec<RequestId> = self.0[AUTHOR].batch(requests);
        self.talk(AUTHOR, WITNESS);
        for id in ids {
            let answer = self.0[AUTHOR].answer(id);
            assert!(
                matches!(
                    answer,
                    Some(Ok(ReplicatorReply::Updated { .. } | ReplicatorReply::Deleted { .. }))
                ),
                "{answer:?}"
            );
        }
    }

    /// The value that a majority without the author reads.
    fn read_by_the_others(&mut self) -> Option<Value> {
        let id = self.0[THIRD].ask(get("k", READ_MAJORITY));
        self.talk(THIRD, WITNESS);
        match self.0[THIRD].answer(id) {
            Some(Ok(ReplicatorReply::Got { value, .. })) => value,
            Some(Err(_)) | None => panic!("two of three are a majority"),
            Some(Ok(other)) => panic!("{other:?}"),
        }
    }

    /// The words that a majority without the author reads.
    fn words(&mut self) -> Vec<String> {
        let set = self.read_by_the_others().and_then(|value| value.get::<Words>());
        let mut words: Vec<String> = set.map_or_else(Vec::new, |set| set.elements().unwrap());
        words.sort_unstable();
        words
    }
}

fn remove(word: &str, to: To) -> ReplicatorRequest {
    let word = word.to_owned();
    change::<Words, _>("k", to, move |set| set.remove(&word))
}

fn delete(to: To) -> ReplicatorRequest {
    ReplicatorRequest::Delete { key: "k".into(), consistency: to }
}

/// One closure removes an element that is removed already, and inserts another one.
fn removed_beside_an_insertion(three: &mut Three) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![change::<Words, _>("k", WRITE_MAJORITY, |set| {
        assert!(!set.remove("tea")?, "it is removed here already");
        set.insert("rum")
    })]);
}

/// The removed element was inserted after an earlier removal that no other replica has received.
fn removed_twice(three: &mut Three) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![insert("k", "tea", WRITE_MAJORITY)]);
    three.acknowledged(vec![remove("tea", WRITE_MAJORITY)]);
}

/// The request empties the key, but finds only some of the elements that others still hold.
fn emptied(three: &mut Three, request: ReplicatorRequest) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.known_to_all(insert("k", "rum", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![request]);
}

fn clear() -> ReplicatorRequest {
    change::<Words, _>("k", WRITE_MAJORITY, |set| set.clear())
}

const NOTHING: [&str; 0] = [];

#[test]
fn removal_beside_an_insertion_is_seen_by_majority_read() {
    let mut three = Three::new();
    removed_beside_an_insertion(&mut three);
    assert_eq!(three.words(), ["rum"]);
}

#[test]
fn removal_after_a_lost_removal_is_seen_by_majority_read() {
    let mut three = Three::new();
    removed_twice(&mut three);
    assert_eq!(three.words(), NOTHING);
}

#[test]
fn emptied_key_is_read_as_empty_despite_a_lost_removal() {
    for request in [delete(WRITE_MAJORITY), clear()] {
        let mut three = Three::new();
        emptied(&mut three, request);
        assert_eq!(three.words(), NOTHING);
    }
}

/// The failures without the rule: if replicas that hold only the delta acknowledge it, a majority
/// read shows the removed elements.
#[test]
fn without_the_probe_a_majority_reads_removed_elements() {
    type Case = (fn(&mut Three), &'static [&'static str]);
    let cases: [Case; 4] = [
        (removed_beside_an_insertion, &["rum", "tea"]),
        (removed_twice, &["tea"]),
        (|three| emptied(three, delete(WRITE_MAJORITY)), &["tea"]),
        (|three| emptied(three, clear()), &["tea"]),
    ];
    for (case, shown) in cases {
        let mut three = Three::with_bug(FaultInjection::with(ReplicatorFault::DeltaStandsForAll));
        case(&mut three);
        assert_eq!(three.words(), shown);
    }
}

/// With versions chosen by the caller an older value has a higher stamp than a newer one, so the
/// deletion between them must be known.
#[test]
fn lower_version_is_read_after_a_deletion() {
    type Number = LWWRegister<u64>;
    let set_at = |version: u64, value: u64| {
        change::<Number, _>("k", WRITE_MAJORITY, move |r| r.set_at(version, &value))
    };
    let mut three = Three::new();
    three.known_to_all(set_at(5, 50));
    three.lost(delete(To::Local));
    three.acknowledged(vec![set_at(1, 10)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Number>());
    assert_eq!(read.and_then(|register| register.get().unwrap()), Some(10));
}

/// As above, but the author also holds a value that was written after the deletion.
#[test]
fn overwritten_lower_version_is_read_after_a_deletion() {
    type Number = LWWRegister<u64>;
    let set_at = |version: u64, value: u64, to| {
        change::<Number, _>("k", to, move |r| r.set_at(version, &value))
    };
    let mut three = Three::new();
    three.known_to_all(set_at(5, 50, WRITE_MAJORITY));
    three.lost(delete(To::Local));
    three.0[AUTHOR].ask(set_at(1, 10, To::Local));
    three.talk(AUTHOR, WITNESS);
    three.acknowledged(vec![set_at(2, 20, WRITE_MAJORITY)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Number>());
    assert_eq!(read.and_then(|register| register.get().unwrap()), Some(20));
}

#[test]
fn first_write_is_read_after_a_deletion() {
    type Number = LWWRegister<u64>;
    let set_first =
        |value: u64| change::<Number, _>("k", WRITE_MAJORITY, move |r| r.set_first(&value));
    let mut three = Three::new();
    three.known_to_all(set_first(50));
    three.lost(delete(To::Local));
    three.0.iter_mut().for_each(|bare| bare.pass(crate::cluster::millis(10)));
    three.0[AUTHOR].sent();
    three.acknowledged(vec![set_first(10)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Number>());
    assert_eq!(read.and_then(|register| register.get().unwrap()), Some(10));
}

#[test]
fn present_element_of_a_gset_is_read_beside_a_new_one() {
    type Grows = GSet<String>;
    let add = |to| change::<Grows, _>("k", to, |set| set.insert("tea"));
    let mut three = Three::new();
    three.lost(add(To::Local));
    three.acknowledged(vec![change::<Grows, _>("k", WRITE_MAJORITY, |set| {
        assert!(!set.insert("tea")?, "the element is here already");
        set.insert("rum")
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Grows>()).expect("a set");
    assert!(read.contains("tea") && read.contains("rum"), "{read:?}");
}

#[test]
fn work_found_done_within_a_map_is_read() {
    type Flags = ORMap<u32, Flag>;
    let mut three = Three::new();
    three.lost(change::<Flags, _>("k", To::Local, |map| map.update(&1, |flag| flag.switch_on())));
    three.acknowledged(vec![change::<Flags, _>("k", WRITE_MAJORITY, |map| {
        assert!(!map.update(&1, |flag| flag.switch_on())?, "the flag is on here already");
        map.update(&2, |flag| flag.switch_on())
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Flags>()).expect("a map");
    assert!(read.contains_key(&1) && read.contains_key(&2), "{read:?}");

    type Nested = ORMap<u32, ORSet<u32>>;
    let insert = |n: u32| {
        let f = move |map: &mut ostraca_ddata::types::edit::Edit<'_, Nested>| {
            map.update(&1, |set| set.insert(&n))
        };
        change::<Nested, _>("k", WRITE_MAJORITY, f)
    };
    let mut three = Three::new();
    three.known_to_all(insert(7));
    three.lost(change::<Nested, _>("k", To::Local, |map| map.update(&1, |set| set.remove(&7))));
    three.acknowledged(vec![change::<Nested, _>("k", WRITE_MAJORITY, |map| {
        assert!(!map.update(&1, |set| set.remove(&7))?, "it is removed here already");
        map.update(&1, |set| set.insert(&8))
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Nested>()).expect("a map");
    let numbers: Vec<u32> = read.get(&1).expect("a set").elements().unwrap();
    assert_eq!(numbers, [8]);
}

/// The pins of a shard's allocation are changed this way: some are set and others removed at once.
#[test]
fn removed_map_entry_is_read_as_removed_beside_a_write() {
    type Pins = LWWMap<u32, u64>;
    let mut three = Three::new();
    three.known_to_all(change::<Pins, _>("k", WRITE_MAJORITY, |pins| pins.insert(&1, &100)));
    three.lost(change::<Pins, _>("k", To::Local, |pins| pins.remove(&1)));
    three.acknowledged(vec![change::<Pins, _>("k", WRITE_MAJORITY, |pins| {
        pins.remove(&1)?;
        pins.insert(&2, &200)
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Pins>()).expect("a map");
    let entries: Vec<(u32, u64)> = read.entries().unwrap();
    assert_eq!(entries, [(2, 200)]);
}

#[test]
fn change_and_probe_of_a_key_are_one_push() {
    for first in [0, 1] {
        let mut three = Three::new();
        three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
        three.known_to_all(remove("tea", WRITE_MAJORITY));
        let mut both = vec![insert("k", "rum", WRITE_MAJORITY), remove("tea", WRITE_MAJORITY)];
        both.rotate_left(first);
        let ids = three.0[AUTHOR].batch(both);
        let (push, entries) = three.0[AUTHOR].push_to_all(3);
        let kinds: Vec<bool> =
            entries.iter().map(|entry| matches!(entry.content, EntryContent::Probe(_))).collect();
        assert_eq!(kinds, [false, true], "the change, then the probe");
        let whole = Body::Write { push, whole: true, entries: entries.into() };
        three.0[WITNESS].hear(AUTHOR, whole);
        three.talk(AUTHOR, WITNESS);
        assert_eq!(three.0[WITNESS].replicator.stats().lacks, 0);
        assert!(ids.iter().all(|id| matches!(three.0[AUTHOR].answer(*id), Some(Ok(_)))));
    }
}

/// A replica that lacks something that both entries of a key build on gets one repair, not two.
#[test]
fn lack_of_change_and_probe_causes_one_repair() {
    let mut three = Three::new();
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(insert("k", "rum", To::Local));
    three.acknowledged(vec![delete(WRITE_MAJORITY)]);
    assert_eq!(three.0[AUTHOR].replicator.stats().repairs, 1);
    assert_eq!(three.words(), NOTHING);
}

/// The hot path needs no probe: a replica that holds the delta holds all that is promised.
#[test]
fn insertions_additions_and_writes_push_no_probe() {
    use ostraca_ddata::types::{GCounter, PNCounter, PNCounterMap};
    let requests: [fn(u64) -> ReplicatorRequest; 9] = [
        |n| insert("k", &n.to_string(), WRITE_MAJORITY),
        |n| change::<GSet<u64>, _>("k", WRITE_MAJORITY, move |set| set.insert(&n)),
        |_| change::<GCounter, _>("k", WRITE_MAJORITY, |counter| counter.increment(1)),
        |_| change::<PNCounter, _>("k", WRITE_MAJORITY, |counter| counter.add(-1)),
        |_| change::<PNCounterMap<u32>, _>("k", WRITE_MAJORITY, |map| map.add(&1, 1)),
        |n| change::<LWWRegister<u64>, _>("k", WRITE_MAJORITY, move |register| register.set(&n)),
        |n| change::<LWWMap<u32, u64>, _>("k", WRITE_MAJORITY, move |map| map.insert(&1, &n)),
        |n| {
            change::<ORMap<u32, LWWRegister<u64>>, _>("k", WRITE_MAJORITY, move |map| {
                map.update(&1, |register| register.set(&n))
            })
        },
        |n| {
            change::<ORMap<u32, Flag>, _>("k", WRITE_MAJORITY, move |map| {
                map.update(&u32::try_from(n).unwrap(), |flag| flag.switch_on())
            })
        },
    ];
    for request in requests {
        let mut bare = Bare::of(3);
        for n in 1..=3 {
            bare.ask(request(n));
            let (_, entries) = bare.push_to_all(3);
            assert!(
                matches!(&entries[..], [entry] if matches!(entry.content, EntryContent::Delta(_)))
            );
        }
    }
}

// ── types whose callers say what a change is ──

/// A type as a user may write it: elements that were added and not removed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TwoPhase {
    added: std::collections::BTreeSet<u32>,
    removed: std::collections::BTreeSet<u32>,
}

impl ReplicatedData for TwoPhase {
    const NAME: &'static str = "two-phase";

    fn merge(&mut self, other: &Self) {
        self.added.extend(&other.added);
        self.removed.extend(&other.removed);
    }
}

/// A change of a user type writes only this replica's part, which contains neither work that the
/// function found done nor earlier deletions.
#[test]
fn user_type_is_read_without_deleted_contributions() {
    type Own = User<TwoPhase>;
    let add = |n: u32, to| {
        change::<Own, _>("k", to, move |own| {
            own.change_with(|set| {
                set.added.insert(n);
                Ok(())
            })
        })
    };
    let mut three = Three::new();
    three.known_to_all(add(1, WRITE_MAJORITY));
    three.lost(delete(To::Local));
    three.acknowledged(vec![add(2, WRITE_MAJORITY)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Own>()).expect("a value");
    assert_eq!(read.get().unwrap().added, [2].into());
}

#[test]
fn mv_register_is_read_without_values_deleted_before() {
    type Values = MVRegister<u64>;
    let set = |n: u64| change::<Values, _>("k", WRITE_MAJORITY, move |register| register.set(&n));
    let mut three = Three::new();
    three.known_to_all(set(1));
    three.lost(delete(To::Local));
    three.acknowledged(vec![set(2)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Values>());
    assert_eq!(read.expect("a register").values::<Vec<u64>>().unwrap(), [2]);
}

// ── a change and its probe in flight ──

/// In a message of its own the probe would overtake its change, which is sent in pieces.
#[test]
fn probe_is_cut_together_with_a_large_change() {
    let mut bare = Bare::of(3);
    let large = "x".repeat(100_000);
    bare.ask(change::<Words, _>("k", WRITE_MAJORITY, move |set| {
        set.remove("tea")?;
        set.insert(large.as_str())
    }));
    let pieces = |(to, body)| (to == peer(1)).then_some(matches!(body, Body::Part { .. }));
    let sent: Vec<bool> = bare.sent().into_iter().filter_map(pieces).collect();
    assert!(sent.len() > 1 && sent.iter().all(|is_piece| *is_piece), "{sent:?}");
    assert_eq!(bare.replicator.stats().pushes_open, 1);
}

#[test]
fn without_deltas_the_full_state_replaces_the_probe() {
    let config = ReplicatorConfig { delta_enabled: false, ..ReplicatorConfig::default() };
    let mut bare = Bare::with(3, config);
    let ids = bare.batch(vec![insert("k", "tea", WRITE_MAJORITY), remove("rum", WRITE_MAJORITY)]);
    let (push, entries) = bare.push_to_all(3);
    assert!(matches!(&entries[..], [entry] if matches!(entry.content, EntryContent::Full(_))));
    bare.hear(1, crate::bare::ack(push));
    assert!(ids.iter().all(|id| matches!(bare.answer(*id), Some(Ok(_)))));
}

/// A replica may refuse the probe although it holds the change, so the write is not `nowhere`.
#[test]
fn refused_probe_does_not_mean_nowhere() {
    type Firsts = ORMap<u32, LWWRegister<u32>>;
    let at = |number| Term { number, owner: peer(0) };
    let mut bare = Bare::of(3);
    let write = |f: fn(&mut Edit<'_, Firsts>) -> Result<bool, EditError>| {
        guarded::<Firsts, _>(("g-", at(1)), "g-1", WRITE_MAJORITY, f)
    };
    bare.ask(write(|map| map.update(&1, |register| register.set_first(&1))));
    bare.sent();
    let id = bare.ask(write(|map| {
        map.update(&1, |register| register.set_first(&2))?; // it is written
        map.update(&2, |register| register.set_first(&2))
    }));
    let (push, entries) = bare.push_to_all(3);
    assert_eq!(entries.len(), 2, "the change, then the probe");
    for n in [1, 2] {
        let nacks = vec![(0, Nack::FencedYetHeld(at(2))), (1, Nack::Fenced(at(2)))];
        bare.hear(n, Body::Ack { push, scope: AckScope::All, counts: true, nacks });
    }
    let fenced = RequestError::Fenced { current: at(2), nowhere: false };
    assert_eq!(bare.answer(id), Some(Err(fenced)));
}
