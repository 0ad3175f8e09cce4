//! What an acknowledged change promises beyond its own dots: what its author found done already is
//! held by whoever acknowledges it (I2). Three machines without a simulator: a test says which of
//! them hear of each other.

use ostraca_ddata::bug::{Bug, Canary};
use ostraca_ddata::data::Value;
use ostraca_ddata::replicator::config::Config;
use ostraca_ddata::replicator::request::{
    Reply, Request, RequestError, RequestId, WriteConsistency as To,
};
use ostraca_ddata::replicator::wire::{Body, Content, Nack, Scope};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{
    Flag, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORSet, ReplicatedData, Term, User,
};

use crate::bare::{Bare, Words, change, get, guarded, insert, peer};
use crate::cluster::{READ_MAJORITY, WRITE_MAJORITY, first_epoch};

/// The machine where changes are made, one that acknowledges them, and one that hears of nothing.
const AUTHOR: usize = 0;
const WITNESS: usize = 1;
const THIRD: usize = 2;

struct Three([Bare; 3]);

impl Three {
    fn new() -> Self {
        Self::with_bug(Canary::none())
    }

    fn with_bug(canary: Canary) -> Self {
        Self([0, 1, 2].map(|n| {
            let mut bare = Bare::with_bug(peer(n), Config::default(), canary);
            bare.found(first_epoch(3));
            bare.sent();
            bare
        }))
    }

    /// What one machine has to say reaches only this other; the rest is lost. Says whether there
    /// was anything.
    fn says(&mut self, from: usize, to: usize) -> bool {
        let sent = self.0[from].sent().into_iter();
        let bodies: Vec<Body> =
            sent.filter(|(of, _)| *of == peer(to)).map(|(_, body)| body).collect();
        let any = !bodies.is_empty();
        bodies.into_iter().for_each(|body| self.0[to].hear(from, body));
        any
    }

    /// Two machines talk until both have said everything; what is meant for the third is lost.
    fn talk(&mut self, one: usize, other: usize) {
        for _ in 0..100 {
            if !(self.says(one, other) | self.says(other, one)) {
                return;
            }
        }
        panic!("{one} and {other} never come to an end");
    }

    /// A change that all three hold.
    fn known_to_all(&mut self, request: Request) {
        let id = self.0[AUTHOR].ask(request);
        let (push, entries) = self.0[AUTHOR].push_to_all(3);
        for n in [WITNESS, THIRD] {
            let entries = entries.clone().into();
            self.0[n].hear(AUTHOR, Body::Write { push, whole: true, entries });
            self.says(n, AUTHOR);
        }
        assert!(matches!(self.0[AUTHOR].answer(id), Some(Ok(_))));
    }

    /// A change at the author only: what it sends is lost.
    fn lost(&mut self, request: Request) {
        let answer = self.0[AUTHOR].now(request);
        assert!(answer.is_ok(), "{answer:?}");
        self.0[AUTHOR].sent();
    }

    /// Changes of one batch, acknowledged by the witness and so by a majority.
    fn acknowledged(&mut self, requests: Vec<Request>) {
        let ids: Vec<RequestId> = self.0[AUTHOR].batch(requests);
        self.talk(AUTHOR, WITNESS);
        for id in ids {
            let answer = self.0[AUTHOR].answer(id);
            assert!(
                matches!(answer, Some(Ok(Reply::Updated { .. } | Reply::Deleted { .. }))),
                "{answer:?}"
            );
        }
    }

    /// What a majority without the author reads.
    fn read_by_the_others(&mut self) -> Option<Value> {
        let id = self.0[THIRD].ask(get("k", READ_MAJORITY));
        self.talk(THIRD, WITNESS);
        match self.0[THIRD].answer(id) {
            Some(Ok(Reply::Got { value, .. })) => value,
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

fn remove(word: &str, to: To) -> Request {
    let word = word.to_owned();
    change::<Words, _>("k", to, move |set| set.remove(&word))
}

fn delete(to: To) -> Request {
    Request::Delete { key: "k".into(), consistency: to }
}

/// One closure removes what is removed already, and inserts.
fn removed_beside_an_insertion(three: &mut Three) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![change::<Words, _>("k", WRITE_MAJORITY, |set| {
        assert!(!set.remove("tea")?, "it is gone here");
        set.insert("rum")
    })]);
}

/// What is removed here was inserted after a removal that nobody heard of.
fn removed_twice(three: &mut Three) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![insert("k", "tea", WRITE_MAJORITY)]);
    three.acknowledged(vec![remove("tea", WRITE_MAJORITY)]);
}

/// What empties the key finds only some of what others still hold.
fn emptied(three: &mut Three, request: Request) {
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.known_to_all(insert("k", "rum", WRITE_MAJORITY));
    three.lost(remove("tea", To::Local));
    three.acknowledged(vec![request]);
}

fn clear() -> Request {
    change::<Words, _>("k", WRITE_MAJORITY, |set| set.clear())
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_removal_that_found_nothing_is_read_though_its_closure_also_inserted() {
    let mut three = Three::new();
    removed_beside_an_insertion(&mut three);
    assert_eq!(three.words(), ["rum"]);
}

#[test]
fn a_removal_is_read_though_it_found_only_what_was_inserted_after_a_removal() {
    let mut three = Three::new();
    removed_twice(&mut three);
    assert_eq!(three.words(), NOTHING);
}

#[test]
fn a_deleted_or_cleared_key_is_read_as_empty_though_some_of_it_was_removed_before() {
    for request in [delete(WRITE_MAJORITY), clear()] {
        let mut three = Three::new();
        emptied(&mut three, request);
        assert_eq!(three.words(), NOTHING);
    }
}

/// What the tests above are for: acknowledged by who holds the delta, all of it is read again.
#[test]
fn where_a_delta_stands_for_all_a_majority_reads_what_was_removed() {
    type Case = (fn(&mut Three), &'static [&'static str]);
    let cases: [Case; 4] = [
        (removed_beside_an_insertion, &["rum", "tea"]),
        (removed_twice, &["tea"]),
        (|three| emptied(three, delete(WRITE_MAJORITY)), &["tea"]),
        (|three| emptied(three, clear()), &["tea"]),
    ];
    for (case, shown) in cases {
        let mut three = Three::with_bug(Canary::with(Bug::DeltaStandsForAll));
        case(&mut three);
        assert_eq!(three.words(), shown);
    }
}

/// By the versions of their callers an older value stands above a newer one: what was deleted in
/// between must be known to be deleted.
#[test]
fn a_write_of_a_lower_version_is_read_after_a_higher_one_was_deleted() {
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

/// As above, but the author holds something that was written after the deletion.
#[test]
fn a_write_over_a_lower_version_is_read_after_a_higher_one_was_deleted() {
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
fn a_first_write_is_read_after_an_earlier_one_was_deleted() {
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
fn an_element_of_a_growing_set_that_was_there_already_is_read_beside_a_new_one() {
    type Grows = GSet<String>;
    let add = |to| change::<Grows, _>("k", to, |set| set.insert("tea"));
    let mut three = Three::new();
    three.lost(add(To::Local));
    three.acknowledged(vec![change::<Grows, _>("k", WRITE_MAJORITY, |set| {
        assert!(!set.insert("tea")?, "it is here");
        set.insert("rum")
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Grows>()).expect("a set");
    assert!(read.contains("tea") && read.contains("rum"), "{read:?}");
}

#[test]
fn what_was_found_done_within_a_map_is_read_beside_what_was_not() {
    type Flags = ORMap<u32, Flag>;
    let mut three = Three::new();
    three.lost(change::<Flags, _>("k", To::Local, |map| map.update(&1, |flag| flag.switch_on())));
    three.acknowledged(vec![change::<Flags, _>("k", WRITE_MAJORITY, |map| {
        assert!(!map.update(&1, |flag| flag.switch_on())?, "it is on here");
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
        assert!(!map.update(&1, |set| set.remove(&7))?, "it is gone here");
        map.update(&1, |set| set.insert(&8))
    })]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Nested>()).expect("a map");
    let numbers: Vec<u32> = read.get(&1).expect("a set").elements().unwrap();
    assert_eq!(numbers, [8]);
}

/// As the pins of a shard's allocation are changed: some are set and others removed at once.
#[test]
fn an_entry_that_was_found_removed_is_read_as_removed_beside_one_that_was_written() {
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
fn a_change_and_what_changes_nothing_are_one_push_that_nobody_lacks_anything_of() {
    for first in [0, 1] {
        let mut three = Three::new();
        three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
        three.known_to_all(remove("tea", WRITE_MAJORITY));
        let mut both = vec![insert("k", "rum", WRITE_MAJORITY), remove("tea", WRITE_MAJORITY)];
        both.rotate_left(first);
        let ids = three.0[AUTHOR].batch(both);
        let (push, entries) = three.0[AUTHOR].push_to_all(3);
        let kinds: Vec<bool> =
            entries.iter().map(|entry| matches!(entry.content, Content::Probe(_))).collect();
        assert_eq!(kinds, [false, true], "the change, then the question");
        let whole = Body::Write { push, whole: true, entries: entries.into() };
        three.0[WITNESS].hear(AUTHOR, whole);
        three.talk(AUTHOR, WITNESS);
        assert_eq!(three.0[WITNESS].replicator.stats().lacks, 0);
        assert!(ids.iter().all(|id| matches!(three.0[AUTHOR].answer(*id), Some(Ok(_)))));
    }
}

/// Who lacks what both entries of a key build on gets one repair, not two.
#[test]
fn who_lacks_something_of_a_leaning_change_is_repaired_once() {
    let mut three = Three::new();
    three.known_to_all(insert("k", "tea", WRITE_MAJORITY));
    three.lost(insert("k", "rum", To::Local));
    three.acknowledged(vec![delete(WRITE_MAJORITY)]);
    assert_eq!(three.0[AUTHOR].replicator.stats().repairs, 1);
    assert_eq!(three.words(), NOTHING);
}

/// The hot path asks nothing: whoever holds the delta holds all that is promised.
#[test]
fn insertions_additions_and_plain_writes_ask_for_nothing_but_their_delta() {
    use ostraca_ddata::types::{GCounter, PNCounter, PNCounterMap};
    let requests: [fn(u64) -> Request; 9] = [
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
            assert!(matches!(&entries[..], [entry] if matches!(entry.content, Content::Delta(_))));
        }
    }
}

// ── types whose callers say what a change is ──

/// As if by a user: what was added and not removed.
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

/// What a function found done is in no part of a user's type that is written; nor is what was
/// deleted before.
#[test]
fn a_users_type_is_read_as_its_function_left_it() {
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
fn a_register_of_many_values_is_read_without_those_that_were_deleted_before_a_write() {
    type Values = MVRegister<u64>;
    let set = |n: u64| change::<Values, _>("k", WRITE_MAJORITY, move |register| register.set(&n));
    let mut three = Three::new();
    three.known_to_all(set(1));
    three.lost(delete(To::Local));
    three.acknowledged(vec![set(2)]);
    let read = three.read_by_the_others().and_then(|value| value.get::<Values>());
    assert_eq!(read.expect("a register").values::<Vec<u64>>().unwrap(), [2]);
}

// ── the change and the question beside it, on their way ──

/// In a message of its own the question would overtake its change, which goes in pieces.
#[test]
fn a_change_above_a_frame_takes_its_question_along() {
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
fn without_deltas_the_whole_state_answers_the_question_too() {
    let config = Config { delta_enabled: false, ..Config::default() };
    let mut bare = Bare::with(3, config);
    let ids = bare.batch(vec![insert("k", "tea", WRITE_MAJORITY), remove("rum", WRITE_MAJORITY)]);
    let (push, entries) = bare.push_to_all(3);
    assert!(matches!(&entries[..], [entry] if matches!(entry.content, Content::Full(_))));
    bare.hear(1, crate::bare::ack(push));
    assert!(ids.iter().all(|id| matches!(bare.answer(*id), Some(Ok(_)))));
}

/// The question may be refused where the change itself is held: it is not nowhere.
#[test]
fn a_refused_question_does_not_say_that_its_change_is_nowhere() {
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
    assert_eq!(entries.len(), 2, "the change, then the question");
    for n in [1, 2] {
        let nacks = vec![(0, Nack::FencedYetHeld(at(2))), (1, Nack::Fenced(at(2)))];
        bare.hear(n, Body::Ack { push, scope: Scope::All, counts: true, nacks });
    }
    let fenced = RequestError::Fenced { current: at(2), nowhere: false };
    assert_eq!(bare.answer(id), Some(Err(fenced)));
}
