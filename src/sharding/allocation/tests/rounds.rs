//! Reference vectors of Pekko's least-shard strategy: A1 to A18 for its newer algorithm (A9 and A13
//! have no counterpart here), B1 to B4 for its older one.

use proptest::{prop_assert, proptest};

use super::super::{AllocationStrategy, Allocations, AppVersion, LeastShardRounds, Moving};
use super::{counts, done, in_progress, region, shards, sizes};
use crate::cluster::member::Status;
use crate::sharding::ids::ShardId;

/// The newer algorithm: the absolute limit is above 0.
fn newer(absolute: usize, relative: f64) -> LeastShardRounds {
    LeastShardRounds {
        rebalance_absolute_limit: absolute,
        rebalance_relative_limit: relative,
        ..Default::default()
    }
}

fn unlimited() -> LeastShardRounds {
    newer(usize::MAX, 1.0)
}

/// The older algorithm: the absolute limit is 0, which is its default.
fn older(rebalance_threshold: usize, max_simultaneous_rebalance: usize) -> LeastShardRounds {
    LeastShardRounds { rebalance_threshold, max_simultaneous_rebalance, ..Default::default() }
}

#[test]
fn a1_a_shard_goes_to_the_region_with_the_fewest() {
    let strategy = AllocationStrategy::Rounds(unlimited());
    for (given, expected) in [([0, 0, 0], 1), ([2, 1, 1], 2), ([2, 1, 0], 3)] {
        // The requesting region, 9, hosts nothing and is no candidate.
        let (to, _) = strategy
            .allocate(ShardId::new(99), Some(region(9)), &sizes(&given))
            .expect("all of them may host");
        assert_eq!(to, region(expected), "{given:?}");
    }
}

#[test]
fn a2_to_a8_the_newer_algorithm_without_limits_round_by_round() {
    // Shards per region, and the shards that each round moves; shards are numbered from region 1.
    let table: [(&[usize], &[&[u32]]); 7] = [
        (&[1, 2, 0], &[&[2], &[]]),
        (&[2, 0, 0], &[&[1], &[]]),
        (&[1, 1, 0], &[&[]]),
        (&[3, 0, 0], &[&[1, 2], &[]]),
        (&[4, 4, 0], &[&[1, 5], &[]]),
        (&[4, 4, 2], &[&[1], &[]]),
        (&[5, 5, 0], &[&[1, 6], &[2], &[]]),
    ];
    for (given, rounds) in table {
        let mut seen = sizes(given);
        for expected in rounds {
            let moves = unlimited().rebalance(&seen);
            assert_eq!(shards(&moves), *expected, "{given:?} at {:?}", counts(&seen));
            seen = done(seen, &moves);
        }
    }
}

#[test]
fn a10_a11_the_newer_algorithm_keeps_both_limits() {
    assert_eq!(shards(&newer(3, 1.0).rebalance(&sizes(&[1, 9, 0]))), [2, 3, 4]);
    assert_eq!(shards(&newer(usize::MAX, 0.3).rebalance(&sizes(&[1, 9, 0]))), [2, 3, 4]);
}

#[test]
fn a12_the_newer_algorithm_waits_until_all_moves_are_over() {
    let seen = in_progress(sizes(&[10, 0, 0]), &[1]);
    assert_eq!(unlimited().rebalance(&seen), []);
}

#[test]
fn first_allocations_delay_no_round() {
    let mut seen = sizes(&[10, 0, 0]);
    seen.moving.insert(ShardId::new(10), Moving { from: None, to: region(1) });
    assert_eq!(shards(&newer(3, 1.0).rebalance(&seen)), [1, 2, 3]);
    assert_eq!(shards(&older(1, 1).rebalance(&seen)), [1]);
}

#[test]
fn b1_the_older_algorithm_moves_one_shard_at_a_threshold_of_one() {
    // Shards per region, those that move already, and those that are chosen.
    let table: [(&[usize], &[u32], &[u32]); 10] = [
        (&[2, 0, 0], &[], &[1]),
        (&[2, 0, 0], &[1], &[]),
        (&[1, 1, 0], &[], &[]),
        (&[1, 2, 0], &[], &[2]),
        (&[3, 0, 0], &[], &[1]),
        (&[3, 0, 0], &[1], &[2]),
        (&[4, 4, 0], &[], &[1]),
        (&[4, 4, 0], &[1], &[5]),
        (&[4, 4, 2], &[], &[1]),
        (&[4, 4, 2], &[1], &[5]),
    ];
    for (given, moving, expected) in table {
        let seen = in_progress(sizes(given), moving);
        assert_eq!(chosen(&older(1, 10), &seen), expected, "{given:?}, {moving:?}");
    }
}

#[test]
fn b2_b3_the_older_algorithm_at_higher_thresholds_and_its_limit() {
    let at = |threshold, most, given: &[usize], moving: &[u32]| {
        chosen(&older(threshold, most), &in_progress(sizes(given), moving))
    };
    assert_eq!(at(2, 10, &[1, 2, 0], &[]), [0_u32; 0]);
    assert_eq!(at(2, 10, &[1, 3, 0], &[]), [2]);
    assert_eq!(at(2, 10, &[1, 3, 0], &[2]), [0_u32; 0]);
    assert_eq!(at(2, 10, &[2, 2, 0], &[]), [0_u32; 0]);
    assert_eq!(at(2, 10, &[3, 3, 0], &[]), [1]);
    assert_eq!(at(2, 10, &[3, 3, 0], &[1]), [4]);
    assert_eq!(at(2, 10, &[3, 3, 0], &[1, 4]), [0_u32; 0]);
    assert_eq!(at(2, 10, &[4, 4, 0], &[]), [1, 2]);
    assert_eq!(at(2, 10, &[4, 4, 0], &[1, 2]), [5, 6]);
    assert_eq!(at(2, 10, &[4, 4, 0], &[1, 2, 5, 6]), [0_u32; 0]);
    assert_eq!(at(2, 10, &[5, 5, 0], &[]), [1, 2]);
    assert_eq!(at(2, 10, &[5, 5, 0], &[1, 2]), [6, 7]);
    assert_eq!(at(2, 10, &[5, 5, 0], &[1, 2, 6, 7]), [3]);
    assert_eq!(at(3, 2, &[1, 10, 0], &[]), [2, 3]);
    assert_eq!(at(3, 2, &[1, 10, 0], &[2, 3]), [0_u32; 0]);
}

/// The chosen shards, without the regions that they move to: Pekko's older vectors name none.
fn chosen(rounds: &LeastShardRounds, seen: &Allocations) -> Vec<u32> {
    rounds.chosen(seen).into_iter().map(ShardId::get).collect()
}

#[test]
fn a14_to_a17_b4_no_round_while_the_cluster_is_unsettled() {
    let unsettle: [fn(&mut Allocations); 5] = [
        |seen| seen.regions.values_mut().next().expect("one").version = AppVersion::new("2.0"),
        |seen| seen.regions.values_mut().next().expect("one").reachable = false,
        |seen| seen.regions.values_mut().next().expect("one").status = Status::Joining,
        |seen| seen.regions.values_mut().next().expect("one").status = Status::WeaklyUp,
        |seen| seen.others_unsettled = true,
    ];
    for unsettle in unsettle {
        let mut seen = sizes(&[10, 0, 0]);
        unsettle(&mut seen);
        for rounds in [unlimited(), older(1, 10)] {
            assert_eq!(rounds.rebalance(&seen), []);
            let home = AllocationStrategy::Rounds(rounds).allocate(
                ShardId::new(99),
                Some(region(1)),
                &seen,
            );
            assert!(home.is_some());
        }
    }
    for rounds in [unlimited(), older(1, 10)] {
        assert_eq!(rounds.rebalance(&Allocations::default()), [], "no regions");
    }
}

/// Up to `regions` regions with up to `shards` shards each.
fn any_sizes(
    regions: usize,
    shards: usize,
) -> impl proptest::strategy::Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..=shards, 1..=regions)
}

/// Runs rounds until one moves nothing; fails if more than `most` rounds move shards. [`done`]
/// fails if a round moves a shard twice, or from a region that does not host it.
fn settle(rounds: &LeastShardRounds, given: &[usize], most: usize) -> Vec<usize> {
    let mut seen = sizes(given);
    for _ in 0..=most {
        let moves = rounds.rebalance(&seen);
        if moves.is_empty() {
            return counts(&seen);
        }
        seen = done(seen, &moves);
    }
    panic!("{given:?} is not settled after {most} rounds: {:?}", counts(&seen));
}

proptest! {
    #[test]
    fn a18_two_rounds_balance_five_regions(given in any_sizes(5, 20)) {
        let after = settle(&unlimited(), &given, 2);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
    }

    #[test]
    fn a18_five_rounds_balance_twenty_regions(given in any_sizes(20, 200)) {
        let after = settle(&unlimited(), &given, 5);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
    }

    #[test]
    fn a18_rounds_with_limits_balance_in_the_end(given in any_sizes(20, 20)) {
        let after = settle(&newer(20, 0.1), &given, 20);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
    }

    #[test]
    fn the_older_algorithm_ends_within_its_threshold(
        given in any_sizes(6, 12), threshold in 1..4_usize,
    ) {
        let after = settle(&older(threshold, 10), &given, 100);
        let difference = after.iter().max().unwrap() - after.iter().min().unwrap();
        prop_assert!(difference <= threshold, "{after:?}");
    }
}
