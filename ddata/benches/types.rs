//! What each data type costs: a local update, a delta and a full state merged, encoding and
//! decoding, memory; beside the `crdts` crate's type of the same job and what the machine could
//! do at best, all in one run.
//!
//! `cargo bench -p ostraca-ddata --bench types`; a filter picks groups, e.g. `-- lww_map`. Values
//! have keys of 16 characters and three writers. "limit" is a plain `BTreeMap` that does the same
//! to its entries, or a copy of the same bytes.

#![expect(clippy::print_stdout, reason = "the figures are the result")]

mod ratio;
#[path = "types/theirs.rs"]
mod theirs;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;

use crdts::{CmRDT, CvRDT};
use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion};
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::id::ReplicaId;
use ostraca_ddata::types::delta::Delta;
use ostraca_ddata::types::edit::{Author, Edit, EditError};
use ostraca_ddata::types::{
    Causal, DataType, GCounter, LWWMap, LWWRegister, MVRegister, ORMap, ORSet, PNCounter,
    PNCounterMap,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use theirs::Theirs;

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Deltas made ahead of each measured stretch.
const AHEAD: BatchSize = BatchSize::NumIterations(1_024);

/// Random ids, as incarnations have them.
const WRITERS: [u64; 3] = [0x5bd1_e995_97f4_a7c5, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];

/// A type under measurement: how entry `key` is written.
struct Subject<T> {
    name: &'static str,
    write: fn(&mut Edit<'_, T>, &str, u64) -> Result<(), EditError>,
}

fn key(entry: usize) -> String {
    format!("entity-{entry:09}")
}

fn author(writer: usize) -> Author {
    Author::new(ReplicaId::new(WRITERS[writer % 3]), HybridTimestamp::from_raw(7 << 40))
}

/// Entries in an order that meets each once and no neighbour after the other.
fn scattered(count: usize) -> impl FnMut() -> usize {
    let mut at = 0;
    move || {
        at = (at + 61_803) % count;
        at
    }
}

impl<T: DataType> Subject<T> {
    fn filled(&self, entries: std::ops::Range<usize>) -> Causal<T> {
        let mut value = Causal::new();
        for entry in entries {
            self.edit(&mut value, entry, entry);
        }
        value
    }

    fn edit(&self, value: &mut Causal<T>, writer: usize, entry: usize) -> Delta {
        let edited = value.edit(author(writer), |edit| (self.write)(edit, &key(entry), 7));
        edited.expect("nothing refuses this").1
    }

    /// What all types are measured for, beside the crate's type of the same job.
    fn bench<C>(&self, c: &mut Criterion, count: usize, theirs: &Theirs<C>)
    where
        C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
        C::Op: Clone + Serialize + DeserializeOwned,
    {
        let name = |what: &str| format!("{}/{what}/{count}", self.name);
        let value = RefCell::new(self.filled(0..count));
        let rival = RefCell::new(theirs.filled(0..count, 0));
        let mut plain = plain(0..count);
        compare(c, &name("update"), |group| {
            let mut next = scattered(count);
            group.bench_function("limit", |b| b.iter(|| plain.insert(key(next()), black_box(8))));
            theirs.update(group, &rival, count);
            self.updates(group, &value, count);
        });
        compare(c, &name("update-while-held"), |group| self.held(group, &value, count));
        compare(c, &name("decode+merge-delta"), |group| {
            plain_deltas(group, &mut plain, count);
            theirs.delta(group, &rival, count);
            self.deltas(group, &value, count);
        });
        let size = self.edit(&mut value.borrow_mut(), 0, 0).encode().len();
        println!("{}: {size} B encoded", name("decode+merge-delta"));
        drop(plain);
        self.bytes::<C>(c, count, &value.borrow(), &rival.borrow());
        self.merges(c, count, theirs, &mut value.borrow_mut(), &mut rival.borrow_mut());
    }

    fn updates(&self, group: &mut Group<'_>, value: &RefCell<Causal<T>>, count: usize) {
        let mut next = scattered(count);
        group.bench_function("ours", |b| {
            b.iter(|| drop(self.edit(&mut value.borrow_mut(), 0, next())));
        });
    }

    /// The first update after somebody took a snapshot: what a persistent map is for.
    fn held(&self, group: &mut Group<'_>, value: &RefCell<Causal<T>>, count: usize) {
        let mut next = scattered(count);
        group.bench_function("ours", |b| {
            let take = || value.borrow().value();
            let update = |_held: &mut T| drop(self.edit(&mut value.borrow_mut(), 0, next()));
            b.iter_batched_ref(take, update, BatchSize::PerIteration);
        });
    }

    fn deltas(&self, group: &mut Group<'_>, value: &RefCell<Causal<T>>, count: usize) {
        let receiver = Causal::<T>::decode(&value.borrow().encode()).expect("our own bytes");
        let receiver = RefCell::new(receiver);
        let mut next = scattered(count);
        group.bench_function("ours", |b| {
            let ahead = || self.edit(&mut value.borrow_mut(), 0, next()).encode();
            let merge = |bytes: Vec<u8>| receive(&mut receiver.borrow_mut(), &bytes);
            b.iter_batched(ahead, merge, AHEAD);
        });
    }

    fn bytes<C>(&self, c: &mut Criterion, count: usize, value: &Causal<T>, rival: &C)
    where
        C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
        C::Op: Clone + Serialize + DeserializeOwned,
    {
        let bytes = value.encode();
        println!("{}/{count}: {:.1} B per entry encoded", self.name, per(bytes.len(), count));
        compare(c, &format!("{}/encode/{count}", self.name), |group| {
            group.bench_function("limit", |b| b.iter(|| black_box(&bytes).clone()));
            Theirs::encode(group, rival);
            group.bench_function("ours", |b| b.iter(|| value.encode()));
        });
        compare(c, &format!("{}/decode/{count}", self.name), |group| {
            group.bench_function("limit", |b| b.iter(|| plain(0..count)));
            Theirs::decode(group, rival);
            group.bench_function("ours", |b| b.iter(|| Causal::<T>::decode(black_box(&bytes))));
        });
    }

    /// Full states: equal, in one entry different, in all.
    fn merges<C>(
        &self,
        c: &mut Criterion,
        count: usize,
        theirs: &Theirs<C>,
        value: &mut Causal<T>,
        rival: &mut C,
    ) where
        C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
        C::Op: Clone + Serialize + DeserializeOwned,
    {
        let name = |what: &str| format!("{}/{what}/{count}", self.name);
        let copy = Causal::<T>::decode(&value.encode()).expect("our own bytes");
        let their_copy = rival.clone();
        let (mine, other) = (plain(0..count), plain(0..count));
        let merge_ours = |group: &mut Group<'_>, other: &Causal<T>| {
            group.bench_function("ours", |b| {
                let merge = |mine: &mut Causal<T>| mine.merge(other);
                b.iter_batched_ref(|| copy.clone(), merge, BatchSize::PerIteration);
            });
        };
        compare(c, &name("merge-equal"), |group| {
            group.bench_function("limit", |b| b.iter(|| black_box(&mine) == black_box(&other)));
            Theirs::merge(group, &their_copy, rival);
            merge_ours(group, value);
        });
        self.edit(value, 1, 0);
        theirs.edit(rival, WRITERS[1], 0);
        compare(c, &name("merge-1-differs"), |group| {
            group.bench_function("limit", |b| b.iter(|| black_box(&mine) == black_box(&other)));
            Theirs::merge(group, &their_copy, rival);
            merge_ours(group, value);
        });
        let others = relabelled(&self.filled(count..2 * count));
        let rivals = theirs.filled(count..2 * count, 1);
        let others_plain = plain(count..2 * count);
        compare(c, &name("merge-disjoint"), |group| {
            group.bench_function("limit", |b| {
                let add = |mine: &mut BTreeMap<String, u64>| {
                    mine.extend(others_plain.iter().map(|(key, value)| (key.clone(), *value)));
                };
                b.iter_batched_ref(|| mine.clone(), add, BatchSize::PerIteration);
            });
            Theirs::merge(group, &their_copy, &rivals);
            merge_ours(group, &others);
        });
    }

    /// One entry changed: what the design promises (spec DESIGN §6).
    fn acceptance<C>(&self, count: usize, theirs: &Theirs<C>)
    where
        C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
        C::Op: Clone + Serialize + DeserializeOwned,
    {
        let mut value = self.filled(0..count);
        let mut receiver = Causal::<T>::decode(&value.encode()).expect("our own bytes");
        let mut next = scattered(count);
        let (bytes, took) = ratio::deltas(
            || self.edit(&mut value, 1, next()).encode(),
            |bytes| receive(&mut receiver, bytes),
        );
        let (their_bytes, theirs_took) = theirs.acceptance(count);
        println!(
            "{}: one entry changed in {count}: {bytes} B (≤ 150), decode+merge {} (≤ 10 µs); \
             crdts, in order only: {their_bytes} B, {}",
            self.name,
            ratio::time(took),
            ratio::time(theirs_took)
        );
    }

    /// Resident memory per entry, before anything else has stretched the heap.
    fn memory<C>(&self, count: usize, theirs: &Theirs<C>) -> (Causal<T>, C)
    where
        C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
        C::Op: Clone + Serialize + DeserializeOwned,
    {
        let (value, ours) = ratio::grown(|| self.filled(0..count));
        let (rival, their) = ratio::grown(|| theirs.filled(0..count, 0));
        let (ours, their) = (per(ours, count), per(their, count));
        println!("{}: {ours:.0} B of memory per entry of {count}, crdts {their:.0} B", self.name);
        (value, rival)
    }
}

/// What a replica does with the bytes of a delta.
fn receive<T: DataType>(receiver: &mut Causal<T>, bytes: &[u8]) {
    let delta = Delta::decode(bytes, &T::shape()).expect("our own bytes");
    receiver.apply(&delta).expect("in order");
}

fn compare(c: &mut Criterion, name: &str, run: impl FnOnce(&mut Group<'_>)) {
    let mut group = c.benchmark_group(name);
    run(&mut group);
    group.finish();
    ratio::print(name, &["limit", "crdts"]);
}

fn plain_deltas(group: &mut Group<'_>, plain: &mut BTreeMap<String, u64>, count: usize) {
    let mut next = scattered(count);
    group.bench_function("limit", |b| {
        let ahead = || rmp_serde::to_vec(&(key(next()), 8_u64)).expect("it encodes");
        let insert = |bytes: Vec<u8>| {
            let (key, value): (String, u64) = rmp_serde::from_slice(&bytes).expect("our own bytes");
            plain.insert(key, value)
        };
        b.iter_batched(ahead, insert, AHEAD);
    });
}

fn per(whole: usize, count: usize) -> f64 {
    whole as f64 / count as f64
}

/// The same value as if three other replicas had written it.
fn relabelled<T: DataType>(value: &Causal<T>) -> Causal<T> {
    let mut bytes = value.encode();
    for writer in WRITERS {
        let (old, new) = (writer.to_le_bytes(), (writer ^ 1).to_le_bytes());
        if let Some(at) = bytes.windows(8).position(|window| window == old) {
            bytes[at..at + 8].copy_from_slice(&new);
        }
    }
    Causal::decode(&bytes).expect("the table of replicas only has other names")
}

fn plain(entries: std::ops::Range<usize>) -> BTreeMap<String, u64> {
    entries.map(|entry| (key(entry), 7)).collect()
}

/// One value that does not grow: registers and counters.
fn small<T: DataType>(
    c: &mut Criterion,
    name: &str,
    write: fn(&mut Edit<'_, T>) -> Result<(), EditError>,
) {
    let edit = |value: &mut Causal<T>, writer| {
        value.edit(author(writer), write).expect("nothing refuses this").1
    };
    let value = RefCell::new(Causal::<T>::new());
    (0..3).for_each(|writer| drop(edit(&mut value.borrow_mut(), writer)));
    compare(c, &format!("{name}/update"), |group| {
        group.bench_function("ours", |b| b.iter(|| drop(edit(&mut value.borrow_mut(), 0))));
    });
    let receiver = RefCell::new(value.borrow().clone());
    compare(c, &format!("{name}/decode+merge-delta"), |group| {
        group.bench_function("ours", |b| {
            let ahead = || edit(&mut value.borrow_mut(), 0).encode();
            let merge = |bytes: Vec<u8>| receive(&mut receiver.borrow_mut(), &bytes);
            b.iter_batched(ahead, merge, AHEAD);
        });
    });
    let delta = edit(&mut value.borrow_mut(), 0).encode();
    let state = value.borrow().encode();
    println!("{name}: delta {} B, state of 3 writers {} B", delta.len(), state.len());
}

const OR_SET: Subject<ORSet<String>> =
    Subject { name: "or_set", write: |set, key, _| set.insert(key).map(|_| ()) };
const LWW_MAP: Subject<LWWMap<String, u64>> =
    Subject { name: "lww_map", write: |map, key, value| map.insert(key, &value) };
const OR_MAP_LWW: Subject<ORMap<String, LWWRegister<u64>>> = Subject {
    name: "or_map_of_registers",
    write: |map, key, value| map.update(key, |register| register.set(&value)),
};
const OR_MAP_SETS: Subject<ORMap<String, ORSet<u64>>> = Subject {
    name: "or_map_of_or_sets",
    write: |map, key, value| map.update(key, |set| set.insert(&value).map(|_| ())),
};
const PN_COUNTER_MAP: Subject<PNCounterMap<String>> =
    Subject { name: "pn_counter_map", write: |map, key, _| map.add(key, 1) };

fn main() {
    let all: &[usize] = if ratio::measuring() { &[1_000, 10_000, 100_000] } else { &[100] };
    let largest = all.last().copied().unwrap_or(100);
    println!("memory and acceptance, {largest} entries");
    drop((
        OR_SET.memory(largest, &theirs::ORSWOT),
        LWW_MAP.memory(largest, &theirs::REGISTERS),
        OR_MAP_SETS.memory(largest, &theirs::SETS),
        PN_COUNTER_MAP.memory(largest, &theirs::COUNTERS),
    ));
    OR_MAP_LWW.acceptance(largest, &theirs::REGISTERS);
    OR_MAP_SETS.acceptance(largest, &theirs::SETS);
    OR_SET.acceptance(largest, &theirs::ORSWOT);
    LWW_MAP.acceptance(largest, &theirs::REGISTERS);
    PN_COUNTER_MAP.acceptance(largest, &theirs::COUNTERS);
    let mut c = ratio::criterion();
    small::<GCounter>(&mut c, "g_counter", |counter| counter.increment(1));
    small::<PNCounter>(&mut c, "pn_counter", |counter| counter.add(1));
    small::<LWWRegister<u64>>(&mut c, "lww_register", |register| register.set(&7));
    small::<MVRegister<u64>>(&mut c, "mv_register", |register| register.set(&7));
    for &count in all {
        println!("filling values of {count} entries");
        OR_SET.bench(&mut c, count, &theirs::ORSWOT);
        LWW_MAP.bench(&mut c, count, &theirs::REGISTERS);
        OR_MAP_SETS.bench(&mut c, count, &theirs::SETS);
        PN_COUNTER_MAP.bench(&mut c, count, &theirs::COUNTERS);
    }
    c.final_summary();
}
