//! The bytes of every type, as they lie on disks and travel between releases: a delta and a whole
//! state of each, by two replicas, with something removed.

use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::{Delta, State};
use ostraca_ddata::types::edit::{Author, Edit, EditError};
use ostraca_ddata::types::{
    DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORMultiMap, ORSet,
    PNCounter, PNCounterMap,
};

fn author(replica: u64, tick: u64) -> Author {
    let time = HybridTimestamp::from_raw((1_700_000_000_000 << 16) + tick);
    Author::new(ReplicaId::new(replica), time)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Change<T> = fn(&mut Edit<'_, T>) -> Result<(), EditError>;

/// The last change's delta, and the state after all of them, of two replicas in turn.
fn lines<T: DataType>(edits: &[Change<T>]) -> String {
    let shape = T::shape();
    let mut state = State::new(shape.clone());
    let mut last = None;
    for (at, edit) in edits.iter().enumerate() {
        let replica = if at % 2 == 0 { 7 } else { 300 };
        let made = state.edit::<T, ()>(author(replica, at as u64), edit);
        last = Some(made.expect("a change").1);
    }
    let delta = last.expect("a change").encode();
    let whole = state.encode();
    assert!(Delta::decode(&delta, &shape).is_ok(), "{shape}");
    assert_eq!(State::decode(&whole, &shape), Ok(state), "{shape}");
    format!("{shape} delta {}\n{shape} state {}\n", hex(&delta), hex(&whole))
}

fn sets() -> String {
    [
        lines::<Flag>(&[|flag| flag.switch_on().map(drop)]),
        lines::<GSet<String>>(&[|set| set.insert("a").map(drop), |set| set.insert("b").map(drop)]),
        lines::<ORSet<String>>(&[
            |set| set.insert("a").map(drop),
            |set| set.insert("b").map(drop),
            |set| set.remove("a").map(drop),
        ]),
    ]
    .concat()
}

fn numbers() -> String {
    [
        lines::<GCounter>(&[|count| count.increment(3), |count| count.increment(1 << 70)]),
        lines::<PNCounter>(&[|count| count.add(3), |count| count.add(-5)]),
        lines::<PNCounterMap<String>>(&[
            |counts| counts.add("a", 3),
            |counts| counts.add("b", -5),
            |counts| counts.remove("a").map(drop),
        ]),
    ]
    .concat()
}

fn registers() -> String {
    [
        lines::<LWWRegister<String>>(&[|it| it.set("one"), |it| it.set("two")]),
        lines::<LWWRegister<u64>>(&[|it| it.set_at(9, &1)]),
        lines::<MVRegister<String>>(&[|it| it.set("one"), |it| it.set("two")]),
        lines::<LWWMap<String, u32>>(&[
            |map| map.insert("a", &1),
            |map| map.insert("b", &2),
            |map| map.remove("a").map(drop),
        ]),
    ]
    .concat()
}

fn maps() -> String {
    [
        lines::<ORMultiMap<String, u32>>(&[
            |map| map.bind("a", &1).map(drop),
            |map| map.bind("a", &2).map(drop),
            |map| map.unbind("a", &1).map(drop),
        ]),
        lines::<ORMap<String, ORMap<String, PNCounter>>>(&[
            |map| map.update("a", |inner| inner.update("x", |count| count.add(3))),
            |map| map.update("b", |inner| inner.update("y", |count| count.add(-5))),
            |map| map.remove("a").map(drop),
        ]),
    ]
    .concat()
}

#[test]
fn the_bytes_of_every_type_stay_what_they_are() {
    let golden = [sets(), numbers(), registers(), maps()].concat();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/values.hex");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, &golden).expect("written");
    }
    let kept = std::fs::read_to_string(path).expect("tests/golden/values.hex");
    assert_eq!(
        golden, kept,
        "disks and other nodes hold the old bytes: a change needs a new layout"
    );
}
