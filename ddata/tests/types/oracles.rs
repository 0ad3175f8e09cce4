//! Comparison with the correct types of the `crdts` crate on full-state merges: equal readings for
//! the same random history. The crate's `Map` is not a valid oracle (see `crate_bugs`).

use std::collections::BTreeSet;

use crdts::{CmRDT, CvRDT};
use ostraca_ddata::types::{Causal, GCounter, GSet, MVRegister, ORSet, PNCounter};
use proptest::prelude::*;

use crate::world::{author, id};

const REPLICAS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Replica, element or value, and kind of change.
    Change(usize, u8, u8),
    /// Source and target.
    Merge(usize, usize),
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..REPLICAS, 0..4_u8, 0..8_u8).prop_map(|(who, x, what)| Step::Change(who, x, what)),
        2 => (0..REPLICAS, 0..REPLICAS).prop_map(|(from, to)| Step::Merge(from, to)),
    ];
    proptest::collection::vec(step, 1..=60)
}

/// One replica of our type and one of the crate's type.
#[derive(Clone)]
struct Pair<T, O> {
    ours: Causal<T>,
    theirs: O,
}

fn pairs<T: ostraca_ddata::types::DataType, O: Default + Clone>() -> Vec<Pair<T, O>> {
    vec![Pair { ours: Causal::new(), theirs: O::default() }; REPLICAS]
}

fn merge<T, O>(pairs: &mut [Pair<T, O>], from: usize, to: usize)
where
    T: ostraca_ddata::types::DataType,
    O: CvRDT + Clone,
{
    let other = pairs[from].clone();
    pairs[to].ours.merge(&other.ours);
    pairs[to].theirs.merge(other.theirs);
}

proptest! {
    #[test]
    fn an_or_set_reads_as_orswot(history in history()) {
        let mut pairs = pairs::<ORSet<u8>, crdts::Orswot<u8, u64>>();
        for step in history {
            match step {
                Step::Merge(from, to) => merge(&mut pairs, from, to),
                Step::Change(who, x, what) => {
                    let Pair { ours, theirs } = &mut pairs[who];
                    let op = match what {
                        0..=3 => {
                            ours.edit(author(who, 0), |set| set.insert(&x)).unwrap();
                            theirs.add(x, theirs.read_ctx().derive_add_ctx(id(who).get()))
                        }
                        4..=6 => {
                            ours.edit(author(who, 0), |set| set.remove(&x)).unwrap();
                            theirs.rm(x, theirs.contains(&x).derive_rm_ctx())
                        }
                        _ => {
                            ours.edit(author(who, 0), |set| set.clear()).unwrap();
                            let all: Vec<u8> = theirs.read().val.into_iter().collect();
                            theirs.rm_all(all, theirs.read_ctx().derive_rm_ctx())
                        }
                    };
                    theirs.apply(op);
                }
            }
            for pair in &pairs {
                let theirs: BTreeSet<u8> = pair.theirs.read().val.into_iter().collect();
                prop_assert_eq!(pair.ours.value().elements::<BTreeSet<u8>>().unwrap(), theirs);
            }
        }
    }

    #[test]
    fn an_mv_register_reads_as_mvreg(history in history()) {
        let mut pairs = pairs::<MVRegister<u8>, crdts::MVReg<u8, u64>>();
        for step in history {
            match step {
                Step::Merge(from, to) => merge(&mut pairs, from, to),
                Step::Change(who, x, _) => {
                    let Pair { ours, theirs } = &mut pairs[who];
                    ours.edit(author(who, 0), |register| register.set(&x)).unwrap();
                    theirs.apply(theirs.write(x, theirs.read_ctx().derive_add_ctx(id(who).get())));
                }
            }
            for pair in &pairs {
                let mut ours: Vec<u8> = pair.ours.value().values().unwrap();
                let mut theirs = pair.theirs.read().val;
                ours.sort_unstable();
                theirs.sort_unstable();
                prop_assert_eq!(ours, theirs);
            }
        }
    }

    #[test]
    fn a_g_set_reads_as_theirs(history in history()) {
        let mut pairs = pairs::<GSet<u8>, crdts::GSet<u8>>();
        for step in history {
            match step {
                Step::Merge(from, to) => merge(&mut pairs, from, to),
                Step::Change(who, x, _) => {
                    pairs[who].ours.edit(author(who, 0), |set| set.insert(&x)).unwrap();
                    pairs[who].theirs.insert(x);
                }
            }
            for pair in &pairs {
                let ours: BTreeSet<u8> = pair.ours.value().elements().unwrap();
                prop_assert_eq!(ours, pair.theirs.read());
            }
        }
    }

    #[test]
    fn counters_read_as_theirs(history in history()) {
        let mut grow = pairs::<GCounter, crdts::GCounter<u64>>();
        let mut both = pairs::<PNCounter, crdts::PNCounter<u64>>();
        for step in history {
            match step {
                Step::Merge(from, to) => {
                    merge(&mut grow, from, to);
                    merge(&mut both, from, to);
                }
                Step::Change(who, x, what) => {
                    let (steps, actor) = (u64::from(x), id(who).get());
                    let Pair { ours, theirs } = &mut grow[who];
                    ours.edit(author(who, 0), |counter| counter.increment(x.into())).unwrap();
                    theirs.apply(theirs.inc_many(actor, steps));
                    let Pair { ours, theirs } = &mut both[who];
                    let up = what < 4;
                    let by = if up { i128::from(x) } else { -i128::from(x) };
                    ours.edit(author(who, 0), |counter| counter.add(by)).unwrap();
                    let down = |theirs: &crdts::PNCounter<u64>| theirs.dec_many(actor, steps);
                    let op = if up { theirs.inc_many(actor, steps) } else { down(theirs) };
                    theirs.apply(op);
                }
            }
            for (grow, both) in grow.iter().zip(&both) {
                prop_assert_eq!(grow.ours.value().value().to_string(), grow.theirs.read().to_string());
                prop_assert_eq!(both.ours.value().value().to_string(), both.theirs.read().to_string());
            }
        }
    }
}
