//! Counters, totals and stamps at the ends of their ranges. A regular change of any decodable state
//! gives a decodable state or is refused.
//!
//! The dots of a replica count its changes of one key since the start of its process. 2^62 changes
//! take 146 years at one per nanosecond, so only a malicious peer sends such a dot. A dot of
//! another replica does no harm, because a replica only increases its own counter. The Replicator
//! refuses dots of this replica that it has not made (`counters` in its tests).

use ostraca_ddata::causal::COUNTER_MAX;
use ostraca_ddata::clock::HybridTimestamp;
use ostraca_ddata::types::delta::{Delta, KeyState};
use ostraca_ddata::types::edit::{Author, EditError};
use ostraca_ddata::types::{Causal, DataType, GCounter, LWWRegister, PNCounter};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::cases::{self, Case};
use crate::model::Action;
use crate::world::{Checked, Op, Run, World, actions, author, id, more, wild};

/// A delta that contains only dots of a replica up to `last` and no entries.
fn claim<T: DataType>(replica: usize, last: u64) -> Delta {
    let nothing_seen = Causal::<T>::new().encode();
    let empty_store = &nothing_seen[5..]; // after version, replicas, vector, cloud, fold level
    let mut bytes = vec![1, 1];
    bytes.extend(id(replica).get().to_le_bytes());
    bytes.extend([1, 0, 1]); // one run, of the first replica, from dot 1 on ...
    let mut rest = last - 1;
    while rest >= 0x80 {
        bytes.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes.extend([0, 0]); // ... that overwrites nothing and is not a repair
    bytes.extend(empty_store);
    Delta::decode(&bytes, &T::shape()).expect("well formed")
}

fn act<C: Case>(causal: &mut Causal<C::Data>, author: Author, op: Op) -> Result<Delta, EditError> {
    let made = causal.edit(author, |edit| {
        for action in actions::<C>(op) {
            match action {
                Action::Write { path, value } => C::write(edit, &path, value)?,
                Action::Remove { prefix } => C::remove(edit, &prefix)?,
            }
        }
        Ok(())
    });
    made.map(|((), delta)| delta)
}

/// Raises a replica's dots close to the maximum; then this replica and another one change the
/// value.
fn stays_decodable<C: Case>(run: &Run, left: u64, op: Op) -> Checked {
    let shape = C::Data::shape();
    for replica in &World::<C>::after(run)?.replicas {
        let mut causal = replica.causal.clone();
        prop_assert!(causal.apply(&claim::<C::Data>(0, COUNTER_MAX - left)).is_ok());
        for who in [0, 1, 0, 0, 0] {
            let before = causal.clone();
            let changed = act::<C>(&mut causal, author(who, 3), op);
            prop_assert_eq!(KeyState::decode(&causal.encode(), &shape), Ok(causal.state().clone()));
            match changed {
                Ok(delta) if delta.is_empty() => {}
                Ok(delta) => prop_assert!(Delta::decode(&delta.encode(), &shape).is_ok()),
                Err(EditError::NoDotLeft { replica }) => {
                    prop_assert_eq!((replica, &causal), (id(0), &before));
                    prop_assert!(left < 20, "it has dots left");
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
        let deleted = causal.delete(author(0, 3));
        prop_assert_eq!(KeyState::decode(&causal.encode(), &shape), Ok(causal.state().clone()));
        prop_assert!(deleted.is_empty() || Delta::decode(&deleted.encode(), &shape).is_ok());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changes_near_the_last_dot_stay_decodable(
        run in wild(),
        left in prop_oneof![0..5_u64, 20..1_000_u64],
        op in more(),
    ) {
        stays_decodable::<cases::FlagCase>(&run, left, op)?;
        stays_decodable::<cases::GCounterCase>(&run, left, op)?;
        stays_decodable::<cases::PNCounterCase>(&run, left, op)?;
        stays_decodable::<cases::ORSetCase>(&run, left, op)?;
        stays_decodable::<cases::LWWRegisterCase>(&run, left, op)?;
        stays_decodable::<cases::MVRegisterCase>(&run, left, op)?;
        stays_decodable::<cases::LWWMapCase>(&run, left, op)?;
        stays_decodable::<cases::PNCounterMapCase>(&run, left, op)?;
    }
}

#[test]
fn change_beyond_the_last_dot_is_refused() {
    let mut counter = Causal::<PNCounter>::new();
    counter.apply(&claim::<PNCounter>(0, COUNTER_MAX - 1)).expect("builds on nothing");
    counter.edit(author(0, 0), |counter| counter.increment()).expect("one dot is left");
    let refused = counter.edit(author(0, 0), |counter| counter.increment());
    assert!(matches!(refused, Err(EditError::NoDotLeft { replica }) if replica == id(0)));
    assert!(counter.delete(author(0, 0)).is_empty());
    counter.edit(author(1, 0), |counter| counter.increment()).expect("its own dots are few");
    assert_eq!(counter.value().value(), 2);
    assert_eq!(Causal::decode(&counter.encode()), Ok(counter));
}

/// Regression: the delta of a delete without a dot had no dots, but contained the live entries.
#[test]
fn delete_beyond_the_last_dot_adds_nothing_to_a_join() {
    let mut counter = Causal::<PNCounter>::new();
    counter.apply(&claim::<PNCounter>(0, COUNTER_MAX - 1)).expect("builds on nothing");
    counter.edit(author(0, 0), |counter| counter.increment()).expect("one dot is left");
    let deleted = counter.delete(author(0, 0));
    let edited = counter.edit(author(1, 0), |counter| counter.increment());
    let (_, change) = edited.expect("its own dots are few");
    let mut joined = change.clone();
    joined.join(&deleted);
    assert_eq!(joined, change);
    assert_eq!(Delta::decode(&joined.encode(), &PNCounter::shape()), Ok(change));
}

/// Regression: the positive and the negative totals saturated before they were subtracted.
#[test]
fn counter_saturates_only_in_the_result() {
    const MAX: i128 = i128::MAX;
    const MIN: i128 = i128::MIN;
    let value_of = |adds: &[i128]| {
        let mut all = Causal::<PNCounter>::new();
        for (who, n) in adds.iter().enumerate() {
            let mut one = Causal::<PNCounter>::new();
            one.edit(author(who, 0), |counter| counter.add(*n)).expect("a total of one replica");
            all.merge(&one);
        }
        all.value().value()
    };
    assert_eq!(value_of(&[MAX, MAX, MAX, MIN, MIN]), MAX - 2);
    assert_eq!(value_of(&[MAX, 1]), MAX);
    assert_eq!(value_of(&[MAX, 1, -2]), MAX - 1);
    assert_eq!(value_of(&[MIN, -1]), MIN);
    assert_eq!(value_of(&[MIN, 1]), MIN + 1);
    assert_eq!(value_of(&[-5, 3]), -2);
}

fn extreme() -> impl Strategy<Value = i128> {
    prop_oneof![
        Just(i128::MAX),
        Just(i128::MIN),
        Just(i128::MAX - 1),
        Just(i128::MIN + 1),
        -3..3_i128,
        any::<i128>(),
    ]
}

/// Each replica counts separately, so that the sum may overflow; then one counts further.
fn totals<T: DataType + PartialEq>(
    adds: &[i128],
    more: i128,
    add: impl Fn(&mut Causal<T>, Author, i128) -> Result<(), EditError>,
) -> Checked {
    let mut all = Causal::<T>::new();
    for (who, n) in adds.iter().enumerate() {
        let mut one = Causal::<T>::new();
        add(&mut one, author(who, 0), *n).expect("a total of one replica");
        all.merge(&one);
    }
    let before = all.clone();
    match add(&mut all, author(0, 0), more) {
        Ok(()) => {}
        Err(EditError::Overflow) => prop_assert_eq!(&all, &before, "nothing is changed"),
        Err(other) => return Err(TestCaseError::fail(other.to_string())),
    }
    prop_assert_eq!(Causal::decode(&all.encode()), Ok(all));
    Ok(())
}

proptest! {
    /// A total may jump, because users add any number. An overflow is an error of the change that
    /// causes it.
    #[test]
    fn totals_overflow_only_at_the_caller(
        adds in proptest::collection::vec(extreme(), 0..4),
        more in extreme(),
    ) {
        totals::<PNCounter>(&adds, more, |causal, author, n| {
            causal.edit(author, |edit| edit.add(n)).map(|_| ())
        })?;
        totals::<GCounter>(&adds, more, |causal, author, n| {
            causal.edit(author, |edit| edit.increment(n.unsigned_abs())).map(|_| ())
        })?;
    }

    /// A later write replaces a register with the maximum stamp, and the result decodes.
    #[test]
    fn register_is_written_over_the_last_stamp(times in [any::<u64>(), any::<u64>()]) {
        let [first, second] = times.map(|time| if time % 2 == 0 { u64::MAX } else { time });
        let at = |who, time| Author { time: HybridTimestamp::from_raw(time), ..author(who, 0) };
        let mut register = Causal::<LWWRegister<u8>>::new();
        register.edit(at(1, first), |edit| edit.set(&1)).expect("nothing is there");
        register.edit(at(0, second), |edit| edit.set(&2)).expect("what it overwrites was seen");
        prop_assert_eq!(register.value().get().expect("a number"), Some(2));
        prop_assert_eq!(Causal::decode(&register.encode()), Ok(register));
    }
}
