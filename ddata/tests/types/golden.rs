//! Golden bytes of the state, a delta and a repair of every type, in `tests/golden/values.hex`.
//! They are in messages and on disk, so a change of them needs a new layout version.
//!
//! `UPDATE_EXPECT=1` rewrites the file.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use ostraca_ddata::causal::{CausalContext, Dot};
use ostraca_ddata::encoded::VERSION;
use ostraca_ddata::replicator::wire::ContextBytes;
use ostraca_ddata::types::delta::{Delta, KeyState, Repair};
use ostraca_ddata::types::edit::{Author, Edit, EditError};
use ostraca_ddata::types::shape::Shape;
use ostraca_ddata::types::{
    Causal, DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORMultiMap,
    ORSet, PNCounter, PNCounterMap, Term, User,
};

use crate::cases::Highest;
use crate::world::author;

type Change<T> = fn(&mut Edit<'_, T>) -> Result<(), EditError>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Bytes of one type after changes by two replicas: the state, the last delta, and the repair for a
/// replica that has seen only the first change, or none if there is only one change.
fn lines<T: DataType>(changes: &[Change<T>]) -> Vec<(String, Vec<u8>)> {
    let authors = (0..).map(|n: u8| author(usize::from(n % 2), n));
    under(authors, "", changes)
}

fn under<T: DataType>(
    authors: impl Iterator<Item = Author>,
    suffix: &str,
    changes: &[Change<T>],
) -> Vec<(String, Vec<u8>)> {
    let shape = T::shape();
    let mut value = Causal::<T>::new();
    let (mut behind, mut last) = (CausalContext::new(), Vec::new());
    for (change, author) in changes.iter().zip(authors) {
        last = value.edit(author, change).unwrap().1.encode();
        if behind.is_empty() && changes.len() > 1 {
            behind = value.context().clone();
        }
    }
    let Repair::Delta(repair) = value.repair(&behind) else { panic!("{shape}: no repair") };
    let all = [("state", value.encode()), ("delta", last), ("repair", repair.encode())];
    all.map(|(what, bytes)| (format!("{shape}{suffix}-{what}"), bytes)).into()
}

fn highest(edit: &mut Edit<'_, User<Highest>>, n: i64) -> Result<(), EditError> {
    edit.change_with(|highest| {
        highest.0 = n;
        Ok(())
    })
}

fn registers() -> Vec<(String, Vec<u8>)> {
    let guarded =
        |n| Author { term: Some(Term { number: 5, owner: crate::world::id(0) }), ..author(0, n) };
    [
        lines::<LWWRegister<String>>(&[|r| r.set("tea"), |r| r.set("milk")]),
        under::<LWWRegister<u8>>((0..).map(guarded), "-guarded", &[|r| r.set(&1), |r| r.set(&2)]),
        lines::<MVRegister<u8>>(&[|r| r.set(&1), |r| r.set(&200)]),
        lines::<User<Highest>>(&[|h| highest(h, 3), |h| highest(h, 4)]),
    ]
    .concat()
}

fn maps() -> Vec<(String, Vec<u8>)> {
    type Sets = ORMap<u8, ORSet<u8>>;
    let inner = |m: &mut Edit<'_, Sets>| m.update(&1, |set| set.insert(&1)).map(drop);
    [
        lines::<LWWMap<u8, u8>>(&[
            |m| m.insert(&1, &1),
            |m| m.insert(&2, &2),
            |m| m.remove(&1).map(drop),
        ]),
        lines::<PNCounterMap<u8>>(&[|m| m.add(&1, 300), |m| m.add(&1, -2), |m| m.add(&2, 1)]),
        lines::<ORMultiMap<u8, u8>>(&[
            |m| m.bind(&1, &1).map(drop),
            |m| m.bind(&1, &2).map(drop),
            |m| m.unbind(&1, &1).map(drop),
        ]),
        lines::<Sets>(&[inner, |m| m.remove(&1).map(drop), inner]),
    ]
    .concat()
}

/// A context with gaps: a vector and dots beyond gaps.
fn context() -> Vec<u8> {
    let mut context = CausalContext::new();
    for (replica, counter) in [(0, 1), (0, 2), (1, 300), (2, 9), (2, 10)] {
        context.insert(Dot { actor: crate::world::id(replica), counter });
    }
    let bytes = rmp_serde::to_vec(&ContextBytes::new(&context)).unwrap();
    assert_eq!((bytes[0], usize::from(bytes[1])), (0xc4, bytes.len() - 2));
    bytes[2..].to_vec()
}

fn values() -> Vec<(String, Vec<u8>)> {
    [
        vec![("context".to_owned(), context())],
        lines::<Flag>(&[|f| f.switch_on().map(drop)]),
        lines::<GCounter>(&[|c| c.increment(1), |c| c.increment(u128::MAX / 2)]),
        lines::<PNCounter>(&[|c| c.add(1), |c| c.add(i128::MIN + 1)]),
        lines::<GSet<u8>>(&[|s| s.insert(&1).map(drop), |s| s.insert(&2).map(drop)]),
        lines::<ORSet<String>>(&[
            |s| s.insert("tea").map(drop),
            |s| s.insert("a text that is too long to stand inline").map(drop),
            |s| s.remove("tea").map(drop),
        ]),
        registers(),
        maps(),
    ]
    .concat()
}

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/values.hex");

#[test]
fn golden_bytes_of_every_value_are_unchanged() {
    let line = |(name, bytes): &(String, Vec<u8>)| format!("{name} {}\n", hex(bytes));
    let golden: String = values().iter().map(line).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(KEPT, &golden).unwrap();
    }
    let kept = std::fs::read_to_string(KEPT).unwrap();
    assert_eq!(VERSION, 1, "a new layout has golden bytes of its own");
    assert!(golden == kept, "disks and other nodes hold the old bytes: a change needs a version");
}

/// Whether a line of an enum's body begins a variant.
fn is_variant(line: &str) -> bool {
    line.strip_prefix("    ").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

#[test]
fn every_shape_has_golden_bytes_that_round_trip() {
    let mut roots = BTreeSet::new();
    for (name, bytes) in values().into_iter().skip(1) {
        let (shape, what) = name.rsplit_once('-').unwrap();
        let shape: Shape = shape.trim_end_matches("-guarded").parse().unwrap();
        roots.insert(shape.to_string().split('/').next().unwrap().to_owned());
        let again = match what {
            "state" => KeyState::decode(&bytes, &shape).unwrap().encode(),
            _ => Delta::decode(&bytes, &shape).unwrap().encode(),
        };
        assert_eq!(again, bytes, "{name}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/types/shape.rs");
    let source = std::fs::read_to_string(path).unwrap();
    let (_, rest) = source.split_once("pub enum Shape {").unwrap();
    let (declared, _) = rest.split_once("\n}").unwrap();
    let due = declared.lines().filter(|line| is_variant(line)).count();
    assert_eq!((roots.len(), due), (12, 12), "a shape without golden bytes");
}
