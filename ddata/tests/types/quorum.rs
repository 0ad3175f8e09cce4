//! Majority writes and reads at the level of the types: every later majority read shows each change
//! that a majority has acknowledged, removals included, with late and lost deltas and gossip in
//! between. The causal delta rule guarantees this; without it the same property must fail.

use ostraca_ddata::types::Causal;
use ostraca_ddata::types::delta::{Delta, Repair};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::cases::{self, Case};
use crate::model::{Action, History, Known, Writer};
use crate::world::{Checked, Op, actions, author, dots_of, id, more};

/// One step of a cluster. Numbers are taken modulo the number of replicas or deltas.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A change whose delta is sent to all replicas without waiting for acknowledgements.
    Local { who: u8, op: Op },
    /// A change that succeeds when a majority has applied its delta; the others receive it late.
    Majority { who: u8, op: Op, skip: u8 },
    /// A delta arrives late. A `Lack` is not answered.
    Late { to: u8, which: u8 },
    /// Anti-entropy: a repair, or the full state.
    Gossip { from: u8, to: u8 },
    /// A majority is read and merged.
    Read { skip: u8 },
}

fn life() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u8>(), more()).prop_map(|(who, op)| Step::Local { who, op }),
        4 => (any::<u8>(), more(), any::<u8>())
            .prop_map(|(who, op, skip)| Step::Majority { who, op, skip }),
        4 => (any::<u8>(), any::<u8>()).prop_map(|(to, which)| Step::Late { to, which }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Step::Gossip { from, to }),
        3 => any::<u8>().prop_map(|skip| Step::Read { skip }),
    ];
    proptest::collection::vec(step, 1..=40)
}

/// Applies a delta to a replica; returns whether it was accepted.
type Apply<C> = fn(&mut Causal<<C as Case>::Data>, &Delta) -> bool;

struct Cluster<C: Case> {
    replicas: Vec<Causal<C::Data>>,
    history: History,
    sent: Vec<Delta>,
    acked: Known,
    apply: Apply<C>,
}

impl<C: Case> Cluster<C> {
    /// A majority: consecutive replicas from `skip` on, modulo the number of replicas.
    fn majority(&self, skip: u8) -> Vec<usize> {
        let n = self.replicas.len();
        (0..=n / 2).map(|i| (usize::from(skip) + i) % n).collect()
    }

    fn step(&mut self, step: Step) -> Checked {
        let n = self.replicas.len();
        match step {
            Step::Local { who, op } => self.change(usize::from(who) % n, op).map(|_| ()),
            Step::Majority { who, op, skip } => self.write(usize::from(who) % n, op, skip),
            Step::Late { to, which } if !self.sent.is_empty() => {
                let delta = &self.sent[usize::from(which) % self.sent.len()];
                (self.apply)(&mut self.replicas[usize::from(to) % n], delta);
                Ok(())
            }
            Step::Late { .. } => Ok(()),
            Step::Gossip { from, to } => {
                self.gossip(usize::from(from) % n, usize::from(to) % n);
                Ok(())
            }
            Step::Read { skip } => self.read(skip),
        }
    }

    fn change(&mut self, who: usize, op: Op) -> Result<(Delta, Known), TestCaseError> {
        let actions = actions::<C>(op);
        let mut known = dots_of(self.replicas[who].context());
        let made = self.replicas[who].edit(author(who, op.time()), |edit| {
            actions.iter().try_for_each(|action| match action {
                Action::Write { path, value } => C::write(edit, path, *value),
                Action::Remove { prefix } => C::remove(edit, prefix),
            })
        });
        let ((), delta) = made.map_err(|error| TestCaseError::fail(error.to_string()))?;
        let dots = dots_of(self.replicas[who].context()).difference(&known).copied().collect();
        let writer = Writer { replica: id(who).get(), time: op.time().into() };
        if self.history.act(&mut known, writer, C::LEAF, &actions) != dots {
            // Without the causal delta rule a replica can hold overwritten entries.
            return Err(TestCaseError::reject("a change saw what was overwritten"));
        }
        if !delta.is_empty() {
            self.sent.push(delta.clone());
        }
        Ok((delta, dots))
    }

    fn write(&mut self, who: usize, op: Op, skip: u8) -> Checked {
        let (delta, dots) = self.change(who, op)?;
        let peers = self.majority(skip).into_iter().filter(|peer| *peer != who);
        for peer in peers.take(self.replicas.len() / 2).collect::<Vec<_>>() {
            if !(self.apply)(&mut self.replicas[peer], &delta) {
                self.gossip(who, peer); // a Lack is answered with a repair immediately
            }
            prop_assert!(dots.is_subset(&dots_of(self.replicas[peer].context())));
        }
        self.acked.extend(dots);
        Ok(())
    }

    fn gossip(&mut self, from: usize, to: usize) {
        let from = self.replicas[from].clone();
        let to = &mut self.replicas[to];
        match from.repair(to.context()) {
            Repair::Nothing => {}
            Repair::Delta(delta) => assert!((self.apply)(to, &delta), "a repair for this peer"),
            Repair::Full => {
                to.merge(&from);
            }
        }
    }

    /// The read value must equal that of a reader that knows the acknowledged changes and all
    /// changes that they overwrite, transitively.
    fn read(&self, skip: u8) -> Checked {
        let mut seen = Causal::<C::Data>::new();
        for replica in self.majority(skip) {
            seen.merge(&self.replicas[replica]);
        }
        let mut known = dots_of(seen.context());
        prop_assert!(self.acked.is_subset(&known), "an acknowledged change is not known");
        known.extend(self.history.closure(&self.acked));
        let view = self.history.view(&known, C::LEAF);
        let expected = if view.is_empty() { C::unwritten() } else { view };
        prop_assert_eq!(C::read(&seen.value()), expected, "an acknowledged change is not seen");
        Ok(())
    }
}

fn live<C: Case>(replicas: usize, life: &[Step], apply: Apply<C>) -> Checked {
    let mut cluster = Cluster::<C> {
        replicas: (0..replicas).map(|_| Causal::new()).collect(),
        history: History::default(),
        sent: Vec::new(),
        acked: Known::new(),
        apply,
    };
    for step in life {
        cluster.step(*step)?;
    }
    (0..5).try_for_each(|skip| cluster.read(skip))
}

fn by_rule_r<C: Case>(replica: &mut Causal<C::Data>, delta: &Delta) -> bool {
    replica.apply(delta).is_ok()
}

fn acked_is_seen<C: Case>(replicas: usize, life: &[Step]) -> Checked {
    live::<C>(replicas, life, by_rule_r::<C>).map_err(|error| match error {
        TestCaseError::Reject(reason) | TestCaseError::Fail(reason) => TestCaseError::Fail(reason),
    })
}

macro_rules! acked_is_seen {
    ($($name:ident: $case:ty),+ $(,)?) => {$(
        mod $name {
            use super::*;

            proptest! {
                #[test]
                fn majority_of_three_reads_acknowledged_changes(life in life()) {
                    acked_is_seen::<$case>(3, &life)?;
                }

                #[test]
                fn majority_of_five_reads_acknowledged_changes(life in life()) {
                    acked_is_seen::<$case>(5, &life)?;
                }
            }
        }
    )+};
}

acked_is_seen! {
    flag: cases::FlagCase,
    g_counter: cases::GCounterCase,
    pn_counter: cases::PNCounterCase,
    g_set: cases::GSetCase,
    or_set: cases::ORSetCase,
    lww_register: cases::LWWRegisterCase,
    mv_register: cases::MVRegisterCase,
    lww_map: cases::LWWMapCase,
    pn_counter_map: cases::PNCounterMapCase,
    or_multi_map: cases::ORMultiMapCase,
    map_of_sets: cases::MapOfSetsCase,
    map_of_maps: cases::MapOfMapsCase,
    map_of_counters: cases::MapOfCountersCase,
    user: cases::UserCase,
    user_with_deltas: cases::UserDeltaCase,
}

/// The fault `NoRuleR`: the property above without the causal delta rule, on the same histories.
#[cfg(feature = "canaries")]
mod fault_injection {
    use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

    use super::*;

    fn without_rule_r<C: Case>(replica: &mut Causal<C::Data>, delta: &Delta) -> bool {
        replica.apply_without_rule_r(delta);
        true
    }

    /// Whether the fault is detected. The histories are the same on every run, so detection does
    /// not depend on luck.
    fn is_caught<C: Case>(replicas: usize) -> bool {
        let config = Config {
            cases: 2_000,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let caught = TestRunner::new_with_rng(config, rng).run(&life(), |life| {
            match live::<C>(replicas, &life, without_rule_r::<C>) {
                Err(TestCaseError::Reject(_)) => Ok(()), // ended early without a violation
                outcome => outcome,
            }
        });
        let Err(TestError::Fail(reason, _)) = caught else { return false };
        assert!(reason.message().contains("an acknowledged change is not seen"), "{reason}");
        true
    }

    #[test]
    fn missing_causal_delta_rule_is_detected() {
        assert!(is_caught::<cases::ORSetCase>(3));
        assert!(is_caught::<cases::ORSetCase>(5));
        assert!(is_caught::<cases::LWWMapCase>(3));
        assert!(is_caught::<cases::MVRegisterCase>(3));
        assert!(is_caught::<cases::ORMultiMapCase>(3));
        assert!(is_caught::<cases::MapOfSetsCase>(3));
        assert!(is_caught::<cases::PNCounterMapCase>(3));
    }
}
