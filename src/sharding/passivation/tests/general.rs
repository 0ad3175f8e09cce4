//! Tests of idleness, busy entities and limits, under every strategy.

use std::collections::BTreeSet;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::settings::{self, PassivationStrategy};
use super::super::{Access, PassivationPolicy, Slot, Use};
use super::hash;

const LIMITED: [PassivationStrategy; 5] = [
    PassivationStrategy::LeastRecentlyUsed,
    PassivationStrategy::Segmented,
    PassivationStrategy::MostRecentlyUsed,
    PassivationStrategy::LeastFrequentlyUsed,
    PassivationStrategy::Composite,
];

fn at(millis: u64) -> Instant {
    Instant::from_nanos(millis * 1_000_000)
}

fn passivation(strategy: PassivationStrategy, limit: usize, idle: Duration) -> PassivationPolicy {
    let settings = settings::PassivationConfig {
        strategy,
        active_entity_limit: limit,
        idle_timeout: idle,
        ..Default::default()
    };
    PassivationPolicy::new(&settings)
}

/// Sends a message for `id` at `now` while no entity is busy; returns the entities that stop.
fn touch(passivation: &mut PassivationPolicy, now: Instant, id: u32) -> Vec<Slot> {
    let mut stop = Vec::new();
    let access = Access { now, slot: Slot(id), hash: hash(id.into()) };
    passivation.touched(access, &mut |_| false, &mut stop);
    stop
}

fn tick(passivation: &mut PassivationPolicy, now: Instant) -> Vec<Slot> {
    let mut stop = Vec::new();
    passivation.tick(now, &mut |_| Use::Idle, &mut stop);
    stop
}

#[test]
fn p1_no_stop_before_timeout_and_messages_restart_it() {
    let mut passivation = passivation(PassivationStrategy::Idle, 1, Duration::from_millis(1_000));
    assert_eq!(passivation.next_deadline(), None);
    touch(&mut passivation, at(0), 1);
    touch(&mut passivation, at(100), 2);
    assert_eq!(passivation.next_deadline(), Some(at(500)));
    assert_eq!(tick(&mut passivation, at(500)), []);
    touch(&mut passivation, at(600), 1);
    assert_eq!(tick(&mut passivation, at(1_000)), []);
    assert_eq!(tick(&mut passivation, at(1_500)), [Slot(2)]);
    assert_eq!(tick(&mut passivation, at(2_000)), [Slot(1)]);
    assert_eq!(passivation.next_deadline(), None);
    touch(&mut passivation, at(9_000), 2);
    assert_eq!(passivation.next_deadline(), Some(at(9_500)));
}

#[test]
fn p2_idleness_works_beside_every_limit() {
    for strategy in LIMITED {
        let mut passivation = passivation(strategy, 3, Duration::from_millis(1_000));
        (1..=3).for_each(|id| assert_eq!(touch(&mut passivation, at(0), id), []));
        let mut stopped = Vec::new();
        for millis in [500, 1_000, 1_500, 2_000, 2_500] {
            if millis <= 1_500 {
                assert_eq!(touch(&mut passivation, at(millis), 3), [], "{strategy:?}");
            }
            stopped.push(tick(&mut passivation, at(millis)));
        }
        let (both, third) = (vec![Slot(1), Slot(2)], vec![Slot(3)]);
        assert_eq!(stopped, [vec![], both, vec![], vec![], third], "{strategy:?}");
        assert_eq!(passivation.counted(), 0, "{strategy:?}");
    }
}

#[test]
fn p3_strategy_none_stops_no_entity() {
    let mut passivation = passivation(PassivationStrategy::None, 1, Duration::from_millis(1));
    (1..=100).for_each(|id| assert_eq!(touch(&mut passivation, at(0), id), []));
    assert_eq!(passivation.next_deadline(), None);
    assert_eq!(tick(&mut passivation, at(1_000_000)), []);
}

#[test]
fn p4_slot_of_a_self_stopped_entity_is_free() {
    for strategy in LIMITED {
        let mut passivation = passivation(strategy, 3, Duration::from_secs(1));
        (1..=3).for_each(|id| assert_eq!(touch(&mut passivation, at(0), id), []));
        passivation.stopped(Slot(2));
        assert_eq!(touch(&mut passivation, at(0), 4), [], "{strategy:?}");
        assert_eq!(touch(&mut passivation, at(0), 5).len(), 1, "{strategy:?}");
        assert_eq!(tick(&mut passivation, at(2_000)).len(), 3, "{strategy:?}");
    }
}

#[test]
fn a_busy_entity_is_told_to_stop_once_it_is_no_longer_busy() {
    let mut passivation =
        passivation(PassivationStrategy::LeastRecentlyUsed, 2, Duration::from_secs(1));
    let mut stop = Vec::new();
    for id in 1..=3 {
        let access = Access { now: at(0), slot: Slot(id), hash: 0 };
        passivation.touched(access, &mut |slot| slot == Slot(1), &mut stop);
    }
    assert_eq!((stop.as_slice(), passivation.leaving.len()), (&[][..], 1));
    passivation.rested(Slot(1), &mut stop);
    passivation.rested(Slot(2), &mut stop);
    assert_eq!(stop, [Slot(1)], "no further message is needed");
    assert_eq!((passivation.counted(), passivation.leaving.len()), (2, 0));
}

#[test]
fn a_message_for_an_entity_that_waits_to_stop_keeps_it() {
    let mut passivation =
        passivation(PassivationStrategy::LeastRecentlyUsed, 2, Duration::from_secs(1));
    let mut stop = Vec::new();
    for id in [1, 2, 3, 1] {
        let access = Access { now: at(0), slot: Slot(id), hash: 0 };
        passivation.touched(access, &mut |slot| slot == Slot(1), &mut stop);
    }
    assert_eq!((stop, passivation.leaving.len()), (vec![Slot(2)], 0));
    assert_eq!(touch(&mut passivation, at(0), 4), [Slot(3)]);
}

#[test]
fn an_entity_that_handles_one_message_for_hours_is_not_idle() {
    let mut passivation = passivation(PassivationStrategy::Idle, 1, Duration::from_secs(1));
    touch(&mut passivation, at(0), 1);
    let mut stop = Vec::new();
    passivation.tick(at(5_000), &mut |_| Use::Busy, &mut stop);
    assert_eq!(stop, []);
    assert_eq!(tick(&mut passivation, at(5_500)), []);
    assert_eq!(tick(&mut passivation, at(6_000)), [Slot(1)]);
}

#[test]
fn pending_timer_keeps_idle_entity_but_not_over_limit() {
    for strategy in LIMITED {
        let mut passivation = passivation(strategy, 1, Duration::from_secs(1));
        touch(&mut passivation, at(0), 1);
        let mut stop = Vec::new();
        passivation.tick(at(9_000), &mut |_| Use::Timed, &mut stop);
        assert_eq!(stop, [], "{strategy:?}");
        assert_eq!(touch(&mut passivation, at(9_000), 2).len(), 1, "{strategy:?}");
    }
}

/// Random histories of accesses, stops, limits and idleness, with random busy entities.
#[test]
fn limit_holds_for_idle_entities_without_repeated_stops() {
    for (strategy, seed) in LIMITED.into_iter().flat_map(|s| (0..40).map(move |seed| (s, seed))) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut limit = rng.random_range(1..30);
        let mut passivation = passivation(strategy, limit, Duration::from_millis(200));
        let mut active: BTreeSet<Slot> = BTreeSet::new();
        let mut busy: BTreeSet<Slot> = BTreeSet::new();
        let mut now = 0;
        for _ in 0..2_000 {
            now += rng.random_range(0..4);
            let mut stop = Vec::new();
            let mut is_busy = |slot| busy.contains(&slot);
            let slot = Slot(rng.random_range(0..60));
            match rng.random_range(0..20) {
                0 => {
                    limit = rng.random_range(1..30);
                    passivation.set_limit(limit, &mut is_busy, &mut stop);
                }
                1 => {
                    passivation.stopped(slot);
                    active.remove(&slot);
                }
                2 => {
                    let mut uses = |slot| if is_busy(slot) { Use::Busy } else { Use::Idle };
                    passivation.tick(at(now), &mut uses, &mut stop);
                }
                _ => {
                    let access = Access { now: at(now), slot, hash: hash(slot.get().into()) };
                    passivation.touched(access, &mut is_busy, &mut stop);
                    active.insert(slot);
                }
            }
            for slot in stop {
                assert!(!busy.contains(&slot), "{strategy:?}, seed {seed}: busy {slot}");
                assert!(active.remove(&slot), "{strategy:?}, seed {seed}: {slot} twice");
            }
            let counted = passivation.counted();
            assert!(counted <= limit, "{strategy:?}, seed {seed}: {counted} of {limit}");
            let all = counted + passivation.leaving.len();
            assert_eq!(all, active.len(), "{strategy:?}, seed {seed}");
            let toggled = Slot(rng.random_range(0..60));
            if busy.remove(&toggled) {
                let mut stop = Vec::new();
                passivation.rested(toggled, &mut stop);
                stop.iter().for_each(|slot| assert!(active.remove(slot), "{slot} twice"));
            } else if busy.len() < 10 {
                busy.insert(toggled);
            }
        }
        busy.clear();
        let mut stop = Vec::new();
        passivation.tick(at(now), &mut |_| Use::Idle, &mut stop);
        assert_eq!(passivation.leaving.len(), 0, "{strategy:?}, seed {seed}");
    }
}

#[test]
fn user_limits_are_clamped_to_their_bounds() {
    for strategy in LIMITED {
        let mut passivation = passivation(strategy, 3, Duration::ZERO);
        touch(&mut passivation, at(0), 1);
        for limit in [0, usize::MAX, 1] {
            passivation.set_limit(limit, &mut |_| false, &mut Vec::new());
            assert!((1..=settings::ACTIVE_ENTITIES_MAX).contains(&passivation.limit));
        }
        assert_eq!(passivation.counted(), 1, "{strategy:?}");
    }
}

#[test]
fn idle_interval_sets_the_pause_between_checks() {
    for (idle_interval, expected) in [(None, 500), (Some(Duration::from_millis(100)), 100)] {
        let mut passivation = PassivationPolicy::new(&settings::PassivationConfig {
            strategy: PassivationStrategy::Idle,
            idle_timeout: Duration::from_millis(1_000),
            idle_interval,
            ..Default::default()
        });
        touch(&mut passivation, at(0), 1);
        assert_eq!(passivation.next_deadline(), Some(at(expected)));
    }
}
