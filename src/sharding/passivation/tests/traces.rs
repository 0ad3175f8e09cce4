//! Exact traces of the strategies, L1 to L12, with the behaviour of Pekko's strategies. `each(1,
//! 1..=20, ..)` sends a message to each of the entities 1 to 20 of shard 1. L5, L8, L10 and L12 are
//! taken from Pekko's own specifications.

use super::super::settings::{
    self, Composite, FrequencySketch, HillClimbing, LeastFrequentlyUsed, PassivationStrategy,
    Policy, Segmented,
};
use super::super::{Limited, PassivationPolicy};
use super::{Shards, none};

fn past(first: u32, stops: impl Fn(u32) -> u32) -> impl Fn(u32) -> Vec<u32> {
    move |id| if id >= first { vec![stops(id)] } else { vec![] }
}

fn table(stops: &[(u32, u32)]) -> impl Fn(u32) -> Vec<u32> {
    move |id| stops.iter().filter(|(of, _)| *of == id).map(|(_, stopped)| *stopped).collect()
}

fn areas(passivation: &PassivationPolicy) -> (Vec<u32>, [Vec<u32>; 2]) {
    match &passivation.limited {
        Limited::ByTwo(composite) => composite.areas(),
        Limited::By(replacement) => (vec![], [replacement.level(0), replacement.level(1)]),
        Limited::No => (vec![], [vec![], vec![]]),
    }
}

fn ids(of: std::ops::RangeInclusive<u32>) -> Vec<u32> {
    of.collect()
}

#[test]
fn l1_lru_stops_the_oldest_of_each_shard_by_its_share() {
    let mut region = Shards::of(10, PassivationStrategy::LeastRecentlyUsed);
    region.each(1, 1..=20, past(11, |id| id - 10));
    region.each(2, [21], |_| ids(11..=15));
    region.each(1, 1..=20, |id| vec![if id <= 5 { id + 15 } else { id - 5 }]);
    region.each(2, 21..=24, none);
    region.each(3, [31], |_| vec![16, 17, 21]);
    region.each(2, 25..=30, past(25, |id| id - 3));
    region.each(3, 31..=40, past(34, |id| id - 3));
    for (shard, id) in [(1, 19), (2, 29), (3, 39)] {
        region.stopped(shard, id);
    }
    for (i, stops) in [(1, None), (2, Some([18, 28, 38])), (3, Some([20, 30, 40]))] {
        for (shard, of) in [(1, 0), (2, 1), (3, 2)] {
            let stop = stops.map(|stops| stops[of]);
            region.each(shard, [10 * shard + i], |_| stop.into_iter().collect());
        }
    }
}

#[test]
fn l2_least_recently_used_follows_its_limit_down_and_up() {
    let mut region = Shards::of(10, PassivationStrategy::LeastRecentlyUsed);
    region.each(1, 1..=20, past(11, |id| id - 10));
    region.each(2, [21], |_| ids(11..=15));
    assert_eq!(region.set_limit(6), [16, 17]);
    region.each(1, 1..=10, |id| vec![if id < 4 { id + 17 } else { id - 3 }]);
    assert_eq!(region.set_limit(12), [0_u32; 0]);
    region.each(1, 11..=20, past(14, |id| id - 6));
    assert_eq!(areas(region.shard(1)).1[0], ids(15..=20));
}

#[test]
fn l3_segmented_protects_entities_used_twice() {
    let mut region = Shards::of(10, PassivationStrategy::Segmented);
    region.each(1, 1..=20, past(11, |id| id - 10));
    assert_eq!(areas(region.shard(1)).1, [ids(11..=20), vec![]]);
    region.each(1, 11..=20, none);
    assert_eq!(areas(region.shard(1)).1, [ids(11..=12), ids(13..=20)]);
    region.each(1, 1..=5, table(&[(1, 11), (2, 12), (3, 1), (4, 2), (5, 3)]));
    region.each(2, [21], |_| vec![4, 5, 13, 14, 15]);
    assert_eq!(areas(region.shard(1)).1, [vec![16], ids(17..=20)]);
    region.each(1, (11..=20).rev(), |id| match id {
        16..=20 => vec![],
        15 => vec![20],
        _ => vec![id + 1],
    });
    assert_eq!(areas(region.shard(1)).1, [vec![11], vec![19, 18, 17, 16]]);
}

#[test]
fn l4_segmented_follows_its_limit_down_and_up() {
    let mut region = Shards::of(20, PassivationStrategy::Segmented);
    region.each(1, 1..=30, past(21, |id| id - 20));
    region.each(2, [31], |_| ids(11..=20));
    assert_eq!(region.set_limit(10), ids(21..=25));
    region.each(1, 1..=10, |id| vec![if id < 6 { id + 25 } else { id - 5 }]);
    assert_eq!(region.set_limit(30), [0_u32; 0]);
    region.each(1, 11..=30, past(21, |id| id - 15));
    assert_eq!(areas(region.shard(1)).1[0], ids(16..=30));
}

#[test]
fn l5_most_recently_used_stops_the_one_used_just_before() {
    let mut region = Shards::of(10, PassivationStrategy::MostRecentlyUsed);
    region.each(1, 1..=20, past(11, |id| id - 1));
    region.each(2, [21], |_| vec![20, 9, 8, 7, 6]);
    region.each(1, 1..=20, past(6, |id| id - 1));
    region.each(2, 22..=24, none);
    region.each(3, [31], |_| vec![20, 4, 24]);
    region.each(2, 24..=30, past(24, |id| id - 1));
    region.each(3, 31..=40, past(34, |id| id - 1));
    for (shard, id) in [(1, 2), (2, 22), (3, 32)] {
        region.stopped(shard, id);
    }
    region.each(1, 12..=14, past(13, |id| id - 1));
    region.each(2, 23..=25, past(24, |id| id - 1));
    region.each(3, 34..=36, past(35, |id| id - 1));
}

#[test]
fn l5_most_recently_used_follows_its_limit_down_and_up() {
    let mut region = Shards::of(10, PassivationStrategy::MostRecentlyUsed);
    region.each(1, 1..=20, past(11, |id| id - 1));
    region.each(2, [21], |_| vec![20, 9, 8, 7, 6]);
    assert_eq!(region.set_limit(6), [5, 4]);
    region.each(1, 1..=10, past(4, |id| id - 1));
    assert_eq!(region.set_limit(12), [0_u32; 0]);
    region.each(1, 11..=20, past(14, |id| id - 1));
    assert_eq!(areas(region.shard(1)).1[0], [1, 2, 10, 11, 12, 20]);
}

const fn one_to_four(id: u32) -> u32 {
    (id - 1) % 4 + 1
}

#[test]
fn l6_l7_lfu_stops_smallest_count_then_oldest() {
    let mut region = Shards::of(10, PassivationStrategy::LeastFrequentlyUsed);
    let stops =
        [(11, 1), (12, 5), (13, 9), (14, 13), (15, 2), (16, 6), (17, 10), (18, 17), (19, 14)];
    let stops = [&stops[..], &[(20, 18)]].concat();
    region.often(1, 1..=20, one_to_four, table(&stops));
    region.each(2, [21], |_| vec![3, 7, 11, 15, 19]);
    let stops = |id| vec![if one_to_four(id) == 1 { id + 3 } else { id - 1 }];
    region.often(1, 1..=20, one_to_four, stops);
    region.each(2, 21..=24, none);
    region.each(3, [31], |_| vec![4, 8, 22]);
    let stops = [(22, 23), (23, 24), (24, 22), (25, 21), (26, 25), (27, 26), (28, 23), (29, 27)];
    region.often(2, 21..=30, one_to_four, table(&[&stops[..], &[(30, 29)]].concat()));
    let stops = [(34, 32), (35, 31), (36, 35), (37, 36), (38, 34), (39, 38), (40, 39)];
    region.often(3, 31..=40, |id| 5 - one_to_four(id), table(&stops));
    for (shard, id) in [(1, 16), (2, 24), (3, 33)] {
        region.stopped(shard, id);
    }
    region.often(1, 11..=13, |id| id - 10, table(&[(13, 11)]));
    region.often(2, 21..=23, |id| id - 20, table(&[(22, 21), (23, 30)]));
    region.often(3, 31..=33, |id| id - 30, table(&[(32, 40), (33, 31)]));
}

#[test]
fn l7_least_frequently_used_follows_its_limit_down_and_up() {
    let mut region = Shards::of(10, PassivationStrategy::LeastFrequentlyUsed);
    region.each(1, 1..=20, past(11, |id| id - 10));
    region.each(2, [21], |_| ids(11..=15));
    assert_eq!(region.set_limit(6), [16, 17]);
    region.each(1, 1..=10, |id| vec![if id < 4 { id + 17 } else { id - 3 }]);
    assert_eq!(region.set_limit(12), [0_u32; 0]);
    region.each(1, 11..=20, past(14, |id| id - 6));
}

#[test]
fn l8_dynamic_aging_lets_newcomers_replace_old_favourites() {
    let settings = settings::PassivationConfig {
        strategy: PassivationStrategy::LeastFrequentlyUsed,
        least_frequently_used: LeastFrequentlyUsed { dynamic_aging: true },
        ..Default::default()
    };
    let mut region = Shards::new(10, settings);
    region.often(1, 1..=2, |_| 5, none);
    region.often(1, 3..=5, |_| 10, none);
    region.each(1, 6..=20, past(11, |id| id - 5));
    region.each(2, [21], |_| ids(16..=20));
    // The age is 3; counts 5, 5, 10, 10, 10.
    region.each(1, 6..=10, table(&[(6, 1), (7, 2), (8, 6), (9, 7), (10, 8)]));
    region.each(1, 11..=15, table(&[(11, 9), (12, 10), (13, 11), (14, 12), (15, 13)]));
    region.each(1, 16..=20, table(&[(16, 3), (17, 4), (18, 5), (19, 14), (20, 15)]));
}

/// Makes the sketch so wide that it does not err here, because the traces assume exact counts.
fn composite(limit: usize, mut composite: Composite) -> Shards {
    composite.frequency_sketch.width_multiplier = 64;
    let strategy = PassivationStrategy::Composite;
    Shards::new(limit, settings::PassivationConfig { strategy, composite, ..Default::default() })
}

#[test]
fn l9_window_and_filter_keep_frequently_used_entities() {
    let mut region = composite(
        20,
        Composite {
            main: Policy::Segmented(Segmented { proportions: vec![0.25, 0.75] }),
            window_proportion: 0.2,
            minimum_window_proportion: 0.2,
            maximum_window_proportion: 0.2,
            ..Default::default()
        },
    );
    region.each(1, 1..=40, past(21, |id| id - 4));
    assert_eq!(areas(region.shard(1)), (ids(37..=40), [ids(1..=16), vec![]]));
    region.each(1, 1..=20, past(17, |id| id + 20));
    assert_eq!(areas(region.shard(1)), (ids(17..=20), [ids(1..=4), ids(5..=16)]));
    region.often(1, 17..=20, |_| 5, none);
    region.each(1, 21..=24, past(21, |id| id - 20));
    region.each(1, 25..=28, past(25, |id| id - 4));
    assert_eq!(areas(region.shard(1)), (ids(25..=28), [ids(17..=20), ids(5..=16)]));
    region.each(2, [41], |_| vec![25, 26, 17, 18, 19, 20, 5, 6, 7, 8]);
    assert_eq!(areas(region.shard(1)), (vec![27, 28], [vec![9, 10], ids(11..=16)]));
    region.each(1, 17..=20, table(&[(17, 27), (18, 28), (19, 9), (20, 10)]));
    assert_eq!(areas(region.shard(1)), (vec![19, 20], [vec![17, 18], ids(11..=16)]));
}

#[test]
fn l10_l11_without_window_newcomer_must_beat_the_oldest() {
    let mut region = composite(
        10,
        Composite {
            main: Policy::LeastRecentlyUsed,
            window_proportion: 0.0,
            minimum_window_proportion: 0.0,
            maximum_window_proportion: 0.0,
            ..Default::default()
        },
    );
    region.each(1, 1..=20, past(11, |id| id));
    region.often(1, 11..=20, |_| 5, |id| vec![id - 10]);
    for id in 1..=10 {
        region.each(1, [id, id], |id| vec![id]);
    }
    region.each(2, [21], |_| ids(11..=15));
    region.each(1, 1..=10, past(1, |id| if id <= 5 { id + 15 } else { id }));
    assert_eq!(areas(region.shard(1)).1[0].len(), 5);
}

fn climbing() -> Shards {
    climbing_to(1.0)
}

/// The share of the window is a tenth at first, and at most `maximum_window_proportion`.
fn climbing_to(maximum_window_proportion: f64) -> Shards {
    composite(
        10,
        Composite {
            main: Policy::LeastRecentlyUsed,
            window_proportion: 0.1,
            minimum_window_proportion: 0.1,
            maximum_window_proportion,
            hill_climbing: HillClimbing {
                adjust_multiplier: 2.0,
                initial_step: 0.4,
                restart_threshold: 0.8,
                step_decay: 0.5,
            },
            frequency_sketch: FrequencySketch { reset_multiplier: 100.0, ..Default::default() },
        },
    )
}

#[test]
fn l12_window_follows_the_hit_rate() {
    let mut region = climbing();
    let window = |region: &Shards| areas(region.shard(1)).0;
    region.often(1, 1..=10, |_| 10, none);
    assert_eq!(areas(region.shard(1)), (vec![10], [ids(1..=9), vec![]]));
    region.each(1, 11..=20, past(11, |id| id - 1));
    for _ in 2..=4 {
        region.each(1, 11..=20, |id| vec![if id == 11 { 20 } else { id - 1 }]);
    }
    assert_eq!(areas(region.shard(1)), (vec![20, 1, 2, 3, 4], [ids(5..=9), vec![]]));
    region.often(
        1,
        21..=30,
        |_| 2,
        |id| match id {
            21 => vec![20],
            22..=25 => vec![id - 21],
            _ => vec![id - 5],
        },
    );
    assert_eq!(window(&region), [26, 27, 28, 29, 30, 5, 6]);
    region.often(1, 21..=24, |_| 5, |id| vec![id + 5]);
    let before = [30, 5, 6, 21, 22, 23, 24, 7];
    assert_eq!(window(&region), before);
    region.each(1, 31..=40, |id| vec![*before.get(id as usize - 31).unwrap_or(&(id - 8))]);
    region.each(1, 31..=40, |id| vec![if id <= 38 { id + 2 } else { id - 8 }]);
    assert_eq!(areas(region.shard(1)), (ids(34..=40), [vec![8, 9, 33], vec![]]));
    region.often(1, 41..=50, |_| 2, |id| vec![id - 7]);
    assert_eq!(window(&region), [48, 49, 50]);
    region.often(1, 51..=60, |_| 2, |id| vec![id - 3]);
    let main = vec![8, 9, 33, 44, 45, 46, 47, 58, 59];
    assert_eq!(areas(region.shard(1)), (vec![60], [main, vec![]]));
    region.each(1, 61..=70, |id| vec![id - 1]);
}

/// The first accesses of L12, after which the window has five entities without a maximum.
#[test]
fn window_grows_to_its_maximum() {
    for (maximum, expected) in [(1.0, 5), (0.2, 2)] {
        let mut region = climbing_to(maximum);
        for id in 1..=10 {
            (0..10).for_each(|_| _ = region.access(1, id));
        }
        for _ in 1..=4 {
            (11..=20).for_each(|id| _ = region.access(1, id));
        }
        assert_eq!(areas(region.shard(1)).0.len(), expected, "{maximum}");
    }
}
