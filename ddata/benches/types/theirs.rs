//! The `crdts` crate's types under the same measurements, where it has one of the same job.
//!
//! Its operations are compared with our deltas, although they must be applied in causal order, which
//! ours need not, and `MVReg` for our registers: `Map<_, LWWReg>` does not compile.

use std::cell::RefCell;

use crdts::{CmRDT, CvRDT, MVReg, Map, Orswot, PNCounter};
use criterion::BatchSize;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{AHEAD, Group, WRITERS, key, ratio, scattered};

/// One of the crate's types: how entry `key` is written.
pub(crate) struct Theirs<C: CmRDT> {
    write: fn(&C, u64, String) -> C::Op,
}

pub(crate) const ORSWOT: Theirs<Orswot<String, u64>> =
    Theirs { write: |set, writer, key| set.add(key, set.read_ctx().derive_add_ctx(writer)) };
pub(crate) const REGISTERS: Theirs<Map<String, MVReg<u64, u64>, u64>> = Theirs {
    write: |map, writer, key| {
        let context = map.read_ctx().derive_add_ctx(writer);
        map.update(key, context, |register, context| register.write(7, context))
    },
};
pub(crate) const SETS: Theirs<Map<String, Orswot<u64, u64>, u64>> = Theirs {
    write: |map, writer, key| {
        let context = map.read_ctx().derive_add_ctx(writer);
        map.update(key, context, |set, context| set.add(7, context))
    },
};
pub(crate) const COUNTERS: Theirs<Map<String, PNCounter<u64>, u64>> = Theirs {
    write: |map, writer, key| {
        let context = map.read_ctx().derive_add_ctx(writer);
        map.update(key, context, |counter, _| counter.inc(writer))
    },
};

impl<C> Theirs<C>
where
    C: CmRDT + CvRDT + Clone + Default + Serialize + DeserializeOwned,
    C::Op: Clone + Serialize + DeserializeOwned,
{
    pub(crate) fn filled(&self, entries: std::ops::Range<usize>, mask: u64) -> C {
        let mut value = C::default();
        for entry in entries {
            self.edit(&mut value, WRITERS[entry % 3] ^ mask, entry);
        }
        value
    }

    pub(crate) fn edit(&self, value: &mut C, writer: u64, entry: usize) -> C::Op {
        let op = (self.write)(value, writer, key(entry));
        value.apply(op.clone());
        op
    }

    pub(crate) fn update(&self, group: &mut Group<'_>, value: &RefCell<C>, count: usize) {
        let mut next = scattered(count);
        group.bench_function("crdts", |b| {
            b.iter(|| drop(self.edit(&mut value.borrow_mut(), WRITERS[0], next())));
        });
    }

    pub(crate) fn delta(&self, group: &mut Group<'_>, value: &RefCell<C>, count: usize) {
        let receiver = RefCell::new(value.borrow().clone());
        let mut next = scattered(count);
        group.bench_function("crdts", |b| {
            let ahead = || {
                let op = self.edit(&mut value.borrow_mut(), WRITERS[0], next());
                rmp_serde::to_vec(&op).expect("it encodes")
            };
            let merge = |bytes: Vec<u8>| {
                let op: C::Op = rmp_serde::from_slice(&bytes).expect("its own bytes");
                receiver.borrow_mut().apply(op);
            };
            b.iter_batched(ahead, merge, AHEAD);
        });
    }

    /// One entry changed, as for ours: the longest operation, and decoding and applying one.
    pub(crate) fn acceptance(&self, count: usize) -> (usize, f64) {
        let mut value = self.filled(0..count, 0);
        let mut receiver = value.clone();
        let mut next = scattered(count);
        ratio::deltas(
            || {
                let op = self.edit(&mut value, WRITERS[1], next());
                rmp_serde::to_vec(&op).expect("it encodes")
            },
            |bytes| {
                let op: C::Op = rmp_serde::from_slice(bytes).expect("its own bytes");
                receiver.apply(op);
            },
        )
    }

    pub(crate) fn merge(group: &mut Group<'_>, mine: &C, other: &C) {
        group.bench_function("crdts", |b| {
            let copies = || (mine.clone(), Some(other.clone()));
            let merge = |(mine, other): &mut (C, Option<C>)| {
                mine.merge(other.take().expect("each pair is merged once"));
            };
            b.iter_batched_ref(copies, merge, BatchSize::PerIteration);
        });
    }

    pub(crate) fn encode(group: &mut Group<'_>, value: &C) {
        group.bench_function("crdts", |b| b.iter(|| rmp_serde::to_vec(value)));
    }

    pub(crate) fn decode(group: &mut Group<'_>, value: &C) {
        let bytes = rmp_serde::to_vec(value).expect("it encodes");
        group.bench_function("crdts", |b| b.iter(|| rmp_serde::from_slice::<C>(&bytes)));
    }
}
