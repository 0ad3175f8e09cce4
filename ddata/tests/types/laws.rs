//! Laws for every type. `laws! { name: Case }` creates a module of tests for each. Every state is
//! reached by a random history, and every step is compared with the model.

use ostraca_ddata::types::Causal;
use ostraca_ddata::types::delta::Delta;
use proptest::prelude::*;

use crate::cases::{self, Case};
use crate::model::Known;
use crate::world::{Checked, Op, Run, Sent, World, more, plain, wild};

fn join<C: Case>(a: &Causal<C::Data>, b: &Causal<C::Data>) -> Causal<C::Data> {
    let mut joined = a.clone();
    joined.merge(b);
    joined
}

/// A merge is commutative, associative and idempotent: in content, context and bytes.
fn merge_is_a_join<C: Case>(run: &Run) -> Checked {
    let world = World::<C>::after(run)?;
    let [a, b, c] = [0, 1, 2].map(|i| &world.replicas[i].causal);
    let (ab, ba) = (join::<C>(a, b), join::<C>(b, a));
    prop_assert_eq!(&ab, &ba);
    prop_assert_eq!(ab.encode(), ba.encode());
    let (left, right) = (join::<C>(&ab, c), join::<C>(a, &join::<C>(b, c)));
    prop_assert_eq!(&left, &right);
    prop_assert_eq!(left.encode(), right.encode());
    prop_assert_eq!(&join::<C>(a, a), a);
    prop_assert_eq!(&join::<C>(&left, a), &left);
    Ok(())
}

/// A delta applied to a replica that knows the author's past has the effect of the author's state.
fn a_delta_is_a_small_state<C: Case>(run: &Run, op: Op) -> Checked {
    let mut world = World::<C>::after(run)?;
    world.merge(0, 1)?;
    let sent = world.edit(0, op)?;
    let after = world.replicas[0].causal.clone();
    for to in 1..run.replicas {
        let before = world.replicas[to].clone();
        if world.receive(to, &sent)? {
            let merged = join::<C>(&world.replicas[to].causal, &after);
            prop_assert_eq!(&merged, &join::<C>(&before.causal, &after));
            if to == 1 {
                prop_assert_eq!(&world.replicas[to].causal, &merged);
            }
        } else {
            prop_assert!(to > 1, "refused although everything was known");
        }
    }
    Ok(())
}

/// One repair corrects a replica that received deltas late, duplicated, in any order, or not at
/// all.
fn a_late_replica_catches_up<C: Case>(run: &Run, fates: &[u8]) -> Checked {
    let mut world = World::<C>::after(run)?;
    world.heal()?;
    let late = world.replicas.len();
    world.replicas.push(crate::world::Replica { causal: Causal::new(), known: Known::new() });
    let sent = world.sent.clone();
    for fate in fates.iter().filter(|_| !sent.is_empty()) {
        world.receive(late, &sent[usize::from(*fate) % sent.len()])?;
    }
    world.repair(0, late)?;
    prop_assert_eq!(&world.replicas[late].causal, &world.replicas[0].causal);
    Ok(())
}

/// Deltas joined in any order have the same effect as single ones.
fn joined_deltas_equal_single_deltas<C: Case>(run: &Run, picks: &[u8]) -> Checked {
    let mut world = World::<C>::after(run)?;
    let ordinary: Vec<Sent> =
        world.sent.iter().filter(|s| s.meant_for.is_none()).cloned().collect();
    let parts: Vec<_> = picks.iter().filter_map(|p| ordinary.get(usize::from(*p) % 41)).collect();
    let Some((first, rest)) = parts.split_first() else { return Ok(()) };
    let mut joined: Delta = first.delta.clone();
    for part in rest {
        joined.join(&part.delta);
    }
    prop_assert_eq!(
        &Delta::decode(&joined.encode(), world.replicas[0].causal.state().shape()),
        &Ok(joined.clone())
    );
    let (whole, single) = (0, 1);
    world.merge(whole, single)?;
    world.merge(single, whole)?;
    let applied = world.replicas[whole].causal.apply(&joined);
    let dots: Known = parts.iter().flat_map(|part| part.dots.iter().copied()).collect();
    let lacks = world.history.lacks(&world.replicas[whole].known, &dots);
    prop_assert_eq!(applied.is_err(), lacks);
    if applied.is_ok() {
        world.replicas[whole].known.extend(&dots);
        for _ in 0..parts.len() {
            for part in &parts {
                world.receive(single, part)?;
            }
        }
        prop_assert_eq!(&world.replicas[whole].causal, &world.replicas[single].causal);
    }
    Ok(())
}

/// After any history and repairs, all replicas have the state that the model expects.
fn all_replicas_converge<C: Case>(run: &Run) -> Checked {
    let mut world = World::<C>::after(run)?;
    world.heal()?;
    let all: Known = world.history.events.keys().copied().collect();
    prop_assert_eq!(&world.replicas[0].known, &all);
    Ok(())
}

/// A repair has the effect of a full merge, whichever records its maker has dropped.
fn a_repair_is_the_full_merge<C: Case>(run: &Run, forget: u8) -> Checked {
    let mut world = World::<C>::after(run)?;
    for who in 0..run.replicas {
        for _ in 0..forget % 6 {
            world.replicas[who].causal.forget_record();
        }
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0)] {
        world.repair(from, to)?;
    }
    Ok(())
}

/// A misdirected repair is refused or correct.
fn misdirected_repair_does_no_harm<C: Case>(run: &Run) -> Checked {
    let mut world = World::<C>::after(run)?;
    for from in 0..run.replicas {
        for meant in 0..run.replicas {
            for to in 0..run.replicas {
                world.stray(from, meant, to)?;
            }
        }
    }
    world.heal()
}

/// A delete erases exactly the entries that its replica had seen.
fn delete_erases_only_seen_entries<C: Case>(run: &Run, who: u8) -> Checked {
    let mut world = World::<C>::after(run)?;
    let who = usize::from(who) % run.replicas;
    let seen = world.replicas[who].known.clone();
    world.step(&crate::world::Step::Delete { who: who as u8 })?;
    world.heal()?;
    let live = world.history.live(&world.replicas[0].known);
    prop_assert!(live.iter().all(|(dot, _)| !seen.contains(dot)));
    let unseen: Known =
        world.history.events.keys().filter(|dot| !seen.contains(dot)).copied().collect();
    let alone = world.history.live(&unseen).len();
    prop_assert_eq!(live.len(), alone, "what was concurrent with the delete lives");
    Ok(())
}

/// Encoding and decoding preserve states and deltas.
fn encodings_round_trip<C: Case>(run: &Run) -> Checked {
    let world = World::<C>::after(run)?;
    let shape = world.replicas[0].causal.state().shape().clone();
    for replica in &world.replicas {
        let back = Causal::decode(&replica.causal.encode());
        prop_assert_eq!(back.as_ref(), Ok(&replica.causal));
    }
    for sent in &world.sent {
        let bytes = sent.delta.encode();
        let back = Delta::decode(&bytes, &shape);
        prop_assert_eq!(back.as_ref(), Ok(&sent.delta));
        prop_assert_eq!(back.unwrap().encode(), bytes);
    }
    Ok(())
}

macro_rules! laws {
    ($($name:ident: $case:ty),+ $(,)?) => {$(
        mod $name {
            use super::*;

            proptest! {
                #[test]
                fn merge_is_a_join(run in wild()) {
                    super::merge_is_a_join::<$case>(&run)?;
                }

                #[test]
                fn a_delta_is_a_small_state(run in plain(), op in more()) {
                    super::a_delta_is_a_small_state::<$case>(&run, op)?;
                }

                #[test]
                fn a_late_replica_catches_up(run in wild(), fates in any::<[u8; 24]>()) {
                    super::a_late_replica_catches_up::<$case>(&run, &fates)?;
                }

                #[test]
                fn joined_deltas_equal_single_deltas(run in plain(), picks in any::<[u8; 8]>()) {
                    super::joined_deltas_equal_single_deltas::<$case>(&run, &picks)?;
                }

                #[test]
                fn all_replicas_converge(run in wild()) {
                    super::all_replicas_converge::<$case>(&run)?;
                }

                #[test]
                fn a_repair_is_the_full_merge(run in wild(), forget in any::<u8>()) {
                    super::a_repair_is_the_full_merge::<$case>(&run, forget)?;
                }

                #[test]
                fn misdirected_repair_does_no_harm(run in wild()) {
                    super::misdirected_repair_does_no_harm::<$case>(&run)?;
                }

                #[test]
                fn delete_erases_only_seen_entries(run in wild(), who in any::<u8>()) {
                    super::delete_erases_only_seen_entries::<$case>(&run, who)?;
                }

                #[test]
                fn encodings_round_trip(run in wild()) {
                    super::encodings_round_trip::<$case>(&run)?;
                }
            }
        }
    )+};
}

laws! {
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
