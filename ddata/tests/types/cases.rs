//! The replicated types under test: how to write, remove and read each of them through its public
//! API. Knows neither histories nor expected results.

use std::collections::BTreeMap;

use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{
    DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORMultiMap, ORSet,
    PNCounter, PNCounterMap, ReplicatedData, User,
};
use serde::{Deserialize, Serialize};

use crate::model::{Leaf, View};

/// A replicated type under test.
pub(crate) trait Case: 'static {
    type Data: DataType;
    /// Effect of a write on a leaf of the type.
    const LEAF: Leaf;
    /// Length of a path to a leaf.
    const DEPTH: usize;
    /// Lengths of the path prefixes that can be removed.
    const REMOVES: &'static [usize];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], value: i64) -> Result<(), EditError>;

    fn remove(_edit: &mut Edit<'_, Self::Data>, _prefix: &[u8]) -> Result<(), EditError> {
        unreachable!("only asked for what `REMOVES` names")
    }

    fn read(data: &Self::Data) -> View;

    /// Converts a drawn number to a value.
    fn value(drawn: u8) -> i64 {
        drawn.into()
    }

    /// The reading of a value without live content.
    fn unwritten() -> View {
        View::new()
    }
}

fn one(value: i64) -> View {
    View::from([(vec![], vec![value])])
}

fn small(value: i128) -> i64 {
    i64::try_from(value).expect("the tests count small")
}

pub(crate) struct FlagCase;

impl Case for FlagCase {
    type Data = Flag;
    const LEAF: Leaf = Leaf::Once;
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, Flag>, _path: &[u8], _value: i64) -> Result<(), EditError> {
        edit.switch_on().map(|_| ())
    }

    fn read(flag: &Flag) -> View {
        if flag.is_on() { View::from([(vec![], vec![])]) } else { View::new() }
    }
}

pub(crate) struct GCounterCase;

impl Case for GCounterCase {
    type Data = GCounter;
    const LEAF: Leaf = Leaf::Total;
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, GCounter>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.increment(u128::from(value.unsigned_abs()))
    }

    fn read(counter: &GCounter) -> View {
        one(i64::try_from(counter.value()).expect("the tests count small"))
    }

    fn unwritten() -> View {
        one(0)
    }
}

pub(crate) struct PNCounterCase;

impl Case for PNCounterCase {
    type Data = PNCounter;
    const LEAF: Leaf = Leaf::Total;
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, PNCounter>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.add(value.into())
    }

    fn value(drawn: u8) -> i64 {
        i64::from(drawn) - 2
    }

    fn read(counter: &PNCounter) -> View {
        one(small(counter.value()))
    }

    fn unwritten() -> View {
        one(0)
    }
}

pub(crate) struct GSetCase;

impl Case for GSetCase {
    type Data = GSet<u8>;
    const LEAF: Leaf = Leaf::Once;
    const DEPTH: usize = 1;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, GSet<u8>>, path: &[u8], _value: i64) -> Result<(), EditError> {
        edit.insert(&path[0]).map(|_| ())
    }

    fn read(set: &GSet<u8>) -> View {
        set.iter().map(|element| (vec![element.unwrap()], vec![])).collect()
    }
}

pub(crate) struct ORSetCase;

impl Case for ORSetCase {
    type Data = ORSet<u8>;
    const LEAF: Leaf = Leaf::Member;
    const DEPTH: usize = 1;
    const REMOVES: &'static [usize] = &[1, 1, 0];

    fn write(edit: &mut Edit<'_, ORSet<u8>>, path: &[u8], _value: i64) -> Result<(), EditError> {
        edit.insert(&path[0]).map(|_| ())
    }

    fn remove(edit: &mut Edit<'_, ORSet<u8>>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [element, ..] => edit.remove(element).map(|_| ()),
        }
    }

    fn read(set: &ORSet<u8>) -> View {
        set.iter().map(|element| (vec![element.unwrap()], vec![])).collect()
    }
}

pub(crate) struct LWWRegisterCase;

impl Case for LWWRegisterCase {
    type Data = LWWRegister<i64>;
    const LEAF: Leaf = Leaf::Register;
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, Self::Data>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.set(&value)
    }

    fn read(register: &LWWRegister<i64>) -> View {
        register.get().unwrap().map(one).unwrap_or_default()
    }
}

pub(crate) struct MVRegisterCase;

impl Case for MVRegisterCase {
    type Data = MVRegister<i64>;
    const LEAF: Leaf = Leaf::Siblings;
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, Self::Data>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.set(&value)
    }

    fn read(register: &MVRegister<i64>) -> View {
        let mut values: Vec<i64> = register.values().unwrap();
        values.sort_unstable();
        if values.is_empty() { View::new() } else { View::from([(vec![], values)]) }
    }
}

pub(crate) struct LWWMapCase;

impl Case for LWWMapCase {
    type Data = LWWMap<u8, i64>;
    const LEAF: Leaf = Leaf::Register;
    const DEPTH: usize = 1;
    const REMOVES: &'static [usize] = &[1, 1, 0];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], value: i64) -> Result<(), EditError> {
        edit.insert(&path[0], &value)
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [key, ..] => edit.remove(key).map(|_| ()),
        }
    }

    fn read(map: &LWWMap<u8, i64>) -> View {
        let entries: BTreeMap<u8, i64> = map.entries().unwrap();
        entries.into_iter().map(|(key, value)| (vec![key], vec![value])).collect()
    }
}

pub(crate) struct PNCounterMapCase;

impl Case for PNCounterMapCase {
    type Data = PNCounterMap<u8>;
    const LEAF: Leaf = Leaf::Total;
    const DEPTH: usize = 1;
    const REMOVES: &'static [usize] = &[1];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], value: i64) -> Result<(), EditError> {
        edit.add(&path[0], value.into())
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        edit.remove(&prefix[0]).map(|_| ())
    }

    fn value(drawn: u8) -> i64 {
        i64::from(drawn) - 2
    }

    fn read(map: &PNCounterMap<u8>) -> View {
        let entries: BTreeMap<u8, i128> = map.entries().unwrap();
        entries.into_iter().map(|(key, value)| (vec![key], vec![small(value)])).collect()
    }
}

pub(crate) struct ORMultiMapCase;

impl Case for ORMultiMapCase {
    type Data = ORMultiMap<u8, u8>;
    const LEAF: Leaf = Leaf::Member;
    const DEPTH: usize = 2;
    const REMOVES: &'static [usize] = &[2, 1, 0];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], _value: i64) -> Result<(), EditError> {
        edit.bind(&path[0], &path[1]).map(|_| ())
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [key] => edit.remove(key).map(|_| ()),
            [key, value, ..] => edit.unbind(key, value).map(|_| ()),
        }
    }

    fn read(map: &ORMultiMap<u8, u8>) -> View {
        let bindings = map.iter().flat_map(|(key, set)| {
            let (key, values) = (key.unwrap(), set.elements::<Vec<u8>>().unwrap());
            values.into_iter().map(move |value| (vec![key, value], vec![]))
        });
        bindings.collect()
    }
}

pub(crate) struct MapOfSetsCase;

impl Case for MapOfSetsCase {
    type Data = ORMap<u8, ORSet<u8>>;
    const LEAF: Leaf = Leaf::Member;
    const DEPTH: usize = 2;
    const REMOVES: &'static [usize] = &[2, 1, 0];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], _value: i64) -> Result<(), EditError> {
        edit.update(&path[0], |set| set.insert(&path[1]).map(|_| ()))
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [key @ 0] => edit.update(key, |set| set.clear().map(|_| ())), // another spelling
            [key] => edit.remove(key).map(|_| ()),
            [key, element, ..] => edit.update(key, |set| set.remove(element).map(|_| ())),
        }
    }

    fn read(map: &ORMap<u8, ORSet<u8>>) -> View {
        let elements = map.iter().flat_map(|(key, set)| {
            let (key, elements) = (key.unwrap(), set.elements::<Vec<u8>>().unwrap());
            elements.into_iter().map(move |element| (vec![key, element], vec![]))
        });
        elements.collect()
    }
}

pub(crate) struct MapOfMapsCase;

impl Case for MapOfMapsCase {
    type Data = ORMap<u8, ORMap<u8, LWWRegister<i64>>>;
    const LEAF: Leaf = Leaf::Register;
    const DEPTH: usize = 2;
    const REMOVES: &'static [usize] = &[2, 1, 0];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], value: i64) -> Result<(), EditError> {
        edit.update(&path[0], |inner| inner.update(&path[1], |register| register.set(&value)))
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [key @ 0] => edit.update(key, |inner| inner.clear().map(|_| ())),
            [key] => edit.remove(key).map(|_| ()),
            [key, inner, ..] => edit.update(key, |map| map.remove(inner).map(|_| ())),
        }
    }

    fn read(map: &Self::Data) -> View {
        let registers = map.iter().flat_map(|(key, inner)| {
            let key = key.unwrap();
            let entries: Vec<_> =
                inner.iter().map(|(k, r)| (k.unwrap(), r.get().unwrap().unwrap())).collect();
            entries.into_iter().map(move |(k, value)| (vec![key, k], vec![value]))
        });
        registers.collect()
    }
}

pub(crate) struct MapOfCountersCase;

impl Case for MapOfCountersCase {
    type Data = ORMap<u8, PNCounter>;
    const LEAF: Leaf = Leaf::Total;
    const DEPTH: usize = 1;
    const REMOVES: &'static [usize] = &[1, 1, 0];

    fn write(edit: &mut Edit<'_, Self::Data>, path: &[u8], value: i64) -> Result<(), EditError> {
        edit.update(&path[0], |counter| counter.add(value.into()))
    }

    fn remove(edit: &mut Edit<'_, Self::Data>, prefix: &[u8]) -> Result<(), EditError> {
        match prefix {
            [] => edit.clear().map(|_| ()),
            [key, ..] => edit.remove(key).map(|_| ()),
        }
    }

    fn value(drawn: u8) -> i64 {
        i64::from(drawn) - 2
    }

    fn read(map: &Self::Data) -> View {
        map.iter().map(|(key, n)| (vec![key.unwrap()], vec![small(n.value())])).collect()
    }
}

/// A set of small numbers as bits. It sends whole values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bits(pub(crate) i64);

impl ReplicatedData for Bits {
    const NAME: &'static str = "bits";

    fn merge(&mut self, other: &Self) {
        self.0 |= other.0;
    }
}

/// The highest number so far. It sends deltas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Highest(pub(crate) i64);

impl ReplicatedData for Highest {
    const NAME: &'static str = "highest";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.max(other.0);
    }

    fn delta(_before: &Self, after: &Self) -> Option<Self> {
        Some(after.clone())
    }
}

pub(crate) struct UserCase;

impl Case for UserCase {
    type Data = User<Bits>;
    const LEAF: Leaf = Leaf::Lattice {
        join: |a, b| a | b,
        raise: |before, bit| before | 1 << (bit & 15),
        deltas: false,
    };
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, Self::Data>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.change_with(|bits| {
            bits.0 |= 1 << (value & 15);
            Ok(())
        })
    }

    fn read(user: &Self::Data) -> View {
        one(user.get().unwrap().0)
    }

    fn unwritten() -> View {
        one(0)
    }
}

pub(crate) struct UserDeltaCase;

impl Case for UserDeltaCase {
    type Data = User<Highest>;
    const LEAF: Leaf =
        Leaf::Lattice { join: i64::max, raise: |before, by| before + by.abs(), deltas: true };
    const DEPTH: usize = 0;
    const REMOVES: &'static [usize] = &[];

    fn write(edit: &mut Edit<'_, Self::Data>, _path: &[u8], value: i64) -> Result<(), EditError> {
        edit.change_with(|highest| {
            highest.0 += value.abs();
            Ok(())
        })
    }

    fn read(user: &Self::Data) -> View {
        one(user.get().unwrap().0)
    }

    fn unwritten() -> View {
        one(0)
    }
}
