//! Encodings: equal knowledge gives equal bytes (P60), sizes, and refusal of malformed bytes.
//!
//! Decoding allocates at most a small multiple of the input by construction: the reader accepts a
//! count only if the remaining bytes can hold that many items of their smallest size, and
//! containers grow with the items that were read. Nothing is reserved for an announced length. A
//! counting allocator would need `unsafe`; instead the test announces a length of 2^62 at every
//! place of a length, which would abort a decoder that trusted it.
//!
//! | part of P60 | test |
//! |---|---|
//! | keys, messages, durable envelope, timeouts, small cache | in the tests of the Replicator |
//! | a GSet of 10,000 in 80,000 B, an ORSet in 50,000 B | Pekko's ORSet is compressed, and its GSet has no dots; our bounds are uncompressed, per element |

use std::collections::BTreeSet;

use ostraca_ddata::encoded::{DecodeError, Encoded};
use ostraca_ddata::types::delta::{Delta, KeyState};
use ostraca_ddata::types::shape::Shape;
use ostraca_ddata::types::{Causal, DataType, GSet, LWWMap, LWWRegister, MVRegister, ORSet};
use proptest::prelude::*;

use crate::cases::{self, Case};
use crate::world::{Checked, Run, World, author, wild};

const SHAPES: [&str; 15] = [
    "flag",
    "g-counter",
    "pn-counter",
    "g-set",
    "or-set",
    "lww-register",
    "mv-register",
    "user/highest",
    "lww-map",
    "pn-counter-map",
    "or-multi-map",
    "or-map/lww-register",
    "or-map/or-set",
    "or-map/or-map/lww-register",
    "or-map/or-map/or-map/or-map/or-map/or-map/or-map/or-map/or-map/or-map/or-set",
];

fn shapes() -> impl Strategy<Value = Shape> {
    proptest::sample::select(&SHAPES[..]).prop_map(|name| name.parse().unwrap())
}

/// Bytes that have the version and a table of two replicas.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![4 => 0..4_u8, 1 => any::<u8>()];
    proptest::collection::vec(small, 0..120).prop_map(|body| {
        let mut bytes = vec![1, 2, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(body);
        bytes
    })
}

/// A state or delta that decodes must also be usable without a panic.
fn take(bytes: &[u8], shape: &Shape) {
    let mut states = vec![KeyState::new(shape.clone())];
    if let Ok(state) = KeyState::decode(bytes, shape) {
        assert_eq!(KeyState::decode(&state.encode(), shape), Ok(state.clone()));
        states.push(state);
    }
    if let Ok(delta) = Delta::decode(bytes, shape) {
        assert_eq!(Delta::decode(&delta.encode(), shape), Ok(delta.clone()));
        let mut twice = delta.clone();
        twice.join(&delta);
        for state in &mut states {
            let _ = state.apply(&delta);
            let _ = state.apply(&twice);
        }
    }
    let all = states.clone();
    for state in &mut states {
        for other in &all {
            let _ = state.repair(other.context());
            state.merge(other);
            state.forget_record();
        }
        state.delete(author(0, 0));
        assert!(state.is_bottom());
        assert!(!state.encode().is_empty());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        shape in shapes(),
    ) {
        take(&bytes, &shape);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn plausible_bytes_never_panic(bytes in plausible(), shape in shapes()) {
        take(&bytes, &shape);
    }
}

/// Flips bits in, and truncates, the encodings of the states and deltas of a history.
fn damaged<C: Case>(run: &Run, flips: &[(u16, u8)], cut: u16) -> Checked {
    let world = World::<C>::after(run)?;
    let shape = C::Data::shape();
    let states: Vec<_> = world.replicas.iter().map(|r| r.causal.encode()).collect();
    let deltas: Vec<_> = world.sent.iter().map(|sent| sent.delta.encode()).collect();
    for bytes in &states {
        let kept = &bytes[..usize::from(cut) % bytes.len()];
        prop_assert!(KeyState::decode(kept, &shape).is_err(), "a part of a state is no state");
    }
    for bytes in &deltas {
        let kept = &bytes[..usize::from(cut) % bytes.len()];
        prop_assert!(Delta::decode(kept, &shape).is_err(), "a part of a delta is no delta");
    }
    for bytes in states.iter().chain(&deltas) {
        for (at, with) in flips {
            let mut damaged = bytes.clone();
            damaged[usize::from(*at) % bytes.len()] ^= with;
            take(&damaged, &shape);
        }
    }
    Ok(())
}

fn flips() -> impl Strategy<Value = Vec<(u16, u8)>> {
    proptest::collection::vec((any::<u16>(), 1..=255_u8), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damaged_bytes_never_panic(run in wild(), flips in flips(), cut in any::<u16>()) {
        damaged::<cases::ORSetCase>(&run, &flips, cut)?;
        damaged::<cases::LWWMapCase>(&run, &flips, cut)?;
        damaged::<cases::PNCounterMapCase>(&run, &flips, cut)?;
        damaged::<cases::MapOfMapsCase>(&run, &flips, cut)?;
        damaged::<cases::UserDeltaCase>(&run, &flips, cut)?;
    }
}

/// Announces a length of 2^62 at every place of a length: it is refused, and nothing is allocated.
#[test]
fn huge_announced_length_is_refused_at_every_place() {
    const HUGE: [u8; 9] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40];
    let mut map = Causal::<LWWMap<String, String>>::new();
    let long = "v".repeat(100);
    let (_, delta) = map
        .edit(author(0, 1), |map| {
            map.insert("key", &long)?;
            map.insert("other", "value")
        })
        .unwrap();
    let shape = map.state().shape();
    for bytes in [map.encode(), delta.encode()] {
        for at in 0..bytes.len() {
            let huge = [&bytes[..at], &HUGE, &bytes[at + 1..]].concat();
            let (state, delta) = (KeyState::decode(&huge, shape), Delta::decode(&huge, shape));
            assert!(state.is_err() || state.unwrap().encode().len() <= 2 * huge.len());
            assert!(delta.is_err() || delta.unwrap().encode().len() <= 2 * huge.len());
        }
    }
    for name in SHAPES {
        let bare = [&[1, 0], &HUGE[..]].concat();
        assert_eq!(KeyState::decode(&bare, &name.parse().unwrap()), Err(DecodeError::Truncated));
    }
}

#[test]
fn other_layout_version_and_trailing_bytes_are_errors() {
    let mut set = Causal::<ORSet<u8>>::new();
    set.edit(author(0, 0), |set| set.insert(&1)).unwrap();
    let mut bytes = set.encode();
    bytes.push(0);
    assert_eq!(Causal::<ORSet<u8>>::decode(&bytes), Err(DecodeError::Trailing { left: 1 }));
    bytes[0] = 9;
    assert_eq!(Causal::<ORSet<u8>>::decode(&bytes), Err(DecodeError::Version { found: 9 }));
}

#[test]
fn a_value_of_another_type_is_an_error_when_it_is_read() {
    let mut register = Causal::<LWWRegister<String>>::new();
    register.edit(author(0, 0), |register| register.set("text")).unwrap();
    let other = Causal::<LWWRegister<u64>>::decode(&register.encode()).unwrap();
    let error = other.value().get().unwrap_err();
    assert_eq!((error.len, error.expected), (5, "u64"));
}

#[test]
fn value_that_nests_too_deeply_is_refused() {
    #[derive(Debug, serde::Deserialize)]
    struct Nest(#[expect(dead_code, reason = "only its depth matters")] Vec<Nest>);
    assert!(Encoded::from_bytes(&[0x91; 4_000]).decode::<Nest>().is_err());
}

/// Merges three states in all six orders; all results must have equal bytes.
fn p60<T: DataType>(states: &[Causal<T>; 3]) {
    let mut seen = BTreeSet::new();
    for [x, y, z] in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut merged = states[x].clone();
        merged.merge(&states[y]);
        merged.merge(&states[z]);
        seen.insert(merged.encode());
    }
    assert_eq!(seen.len(), 1);
}

#[test]
fn p60_equal_content_has_equal_bytes_in_any_order() {
    let sets = [0, 1, 2].map(|who| {
        let mut set = Causal::<ORSet<String>>::new();
        for element in ["tea", "milk", "sugar", "a string that is too long to stand inline"] {
            set.edit(author(who, 0), |set| set.insert(element)).unwrap();
        }
        set
    });
    p60(&sets);
    let registers = [0, 1, 2].map(|who| {
        let mut register = Causal::<MVRegister<u8>>::new();
        register.edit(author(who, 0), |register| register.set(&1)).unwrap();
        register
    });
    p60(&registers);

    let mut a = Causal::<LWWMap<u16, u16>>::new();
    let mut deltas = Vec::new();
    for key in 0..500 {
        deltas.push(a.edit(author(0, 0), |map| map.insert(&key, &key)).unwrap().1);
    }
    for key in (0..500).step_by(3) {
        deltas.push(a.edit(author(0, 0), |map| map.remove(&key)).unwrap().1);
    }
    let (mut forwards, mut backwards) = (Causal::<LWWMap<u16, u16>>::new(), a.clone());
    for delta in &deltas {
        forwards.apply(delta).unwrap();
    }
    backwards.merge(&forwards);
    assert_eq!(forwards.encode(), a.encode());
    assert_eq!(backwards.encode(), a.encode());
}

#[test]
fn p60_set_of_ten_thousand_elements_is_small() {
    let (mut grow, mut or) = (Causal::<GSet<String>>::new(), Causal::<ORSet<String>>::new());
    let elements: Vec<_> = (10_000..20_000).map(|n: u32| n.to_string()).collect();
    grow.edit(author(0, 0), |set| elements.iter().try_for_each(|e| set.insert(e).map(|_| ())))
        .unwrap();
    or.edit(author(0, 0), |set| elements.iter().try_for_each(|e| set.insert(e).map(|_| ())))
        .unwrap();
    // Six bytes of element, one of length, and at most four of dot.
    assert!(grow.encode().len() <= 11 * 10_000 + 40, "{}", grow.encode().len());
    assert_eq!(or.encode().len(), grow.encode().len());
}
