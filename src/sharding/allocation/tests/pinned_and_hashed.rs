//! Tests of consistent hashing (C1 to C8) and of pinned shards (X1 to X5), numbered like the cases
//! for Pekko's strategies.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    AllocationReason, AllocationStrategy, Allocations, Candidate, ConsistentHashing, External,
    Moving,
};
use super::{address, candidate, counts, done, in_progress, region, shards, sizes, started};
use crate::cluster::member::Status;
use crate::sharding::ids::ShardId;

const RING: ConsistentHashing = ConsistentHashing { rebalance_limit: 0 };

/// `count` regions, with each of 1,000 shards on the region that hashing assigns.
fn settled(count: usize) -> Allocations {
    let mut seen = sizes(&vec![0; count]);
    for number in 1..=1_000 {
        let shard = ShardId::new(number);
        let (to, why) = ConsistentHashing::allocate(shard, &seen).expect("all of them may host");
        assert_eq!(why, AllocationReason::Ring);
        seen.regions.get_mut(&to).expect("it is there").shards.push(shard);
    }
    seen
}

#[test]
fn c1_c2_c3_hashing_is_even_stable_and_equal_for_all_types() {
    let seen = settled(10);
    assert_eq!(counts(&settled(10)), counts(&seen));
    assert!(counts(&seen).iter().all(|count| (70..=130).contains(count)), "{:?}", counts(&seen));
    assert_eq!(AllocationStrategy::ConsistentHashing(RING).rebalance(&seen), []);
}

#[test]
fn c4_hashing_moves_only_shards_of_the_changed_node() {
    let mut seen = settled(10);
    seen.regions.insert(region(11), candidate(11, []));
    let moves = RING.rebalance(&seen);
    assert!((60..=130).contains(&moves.len()), "{}", moves.len());
    assert!(moves.iter().all(|of| of.to == region(11)));
    let mut seen = done(seen, &moves);
    seen.regions.get_mut(&region(3)).expect("it is there").draining = true;
    let own: Vec<u32> = seen.regions[&region(3)].shards.iter().map(|shard| shard.get()).collect();
    let moved: BTreeSet<u32> = shards(&RING.rebalance(&seen)).into_iter().collect();
    assert_eq!(moved, own.into_iter().collect());
}

#[test]
fn c5_c6_two_a_round_and_none_that_moves_already() {
    let ring = ConsistentHashing { rebalance_limit: 2 };
    let seen = sizes(&[100, 0, 0]);
    let first = ring.rebalance(&seen);
    assert_eq!(first.len(), 2);
    let seen = super::started(seen, &first);
    assert_eq!(ring.rebalance(&seen), []);
    let all = RING.rebalance(&seen);
    assert!(first.iter().all(|of| all.iter().all(|other| other.shard != of.shard)));
}

#[test]
fn first_allocations_do_not_count_as_moves_of_hashing() {
    let mut seen = sizes(&[100, 0, 0]);
    seen.moving.insert(ShardId::new(100), Moving { from: None, to: region(1) });
    assert_eq!(ConsistentHashing { rebalance_limit: 2 }.rebalance(&seen).len(), 2);
}

#[test]
fn c7_hashing_waits_while_the_cluster_is_unsettled() {
    let mut seen = sizes(&[100, 0, 0]);
    seen.regions.get_mut(&region(3)).expect("it is there").status = Status::WeaklyUp;
    assert_eq!(RING.rebalance(&seen), []);
    assert!(ConsistentHashing::allocate(ShardId::new(200), &seen).is_some());
}

#[test]
fn c8_a_strategy_of_ones_own_can_hash_another_key() {
    let seen = sizes(&[0, 0, 0]);
    let by_tens = |shard: u64| ConsistentHashing::owner(shard / 10, &seen);
    assert_eq!((by_tens(40), by_tens(40)), (by_tens(49), by_tens(43)));
}

fn pinned(pins: &[(u32, u64)]) -> External {
    let pin = |&(shard, node): &(u32, u64)| (ShardId::new(shard), address(node));
    External { pinned: Some(pins.iter().map(pin).collect()), ..External::default() }
}

#[test]
fn x1_to_x4_shard_goes_to_its_pin_else_to_the_asker() {
    let seen = sizes(&[5, 5, 0]);
    let table = [
        (pinned(&[]), AllocationReason::Asked, 2),
        (pinned(&[(99, 1)]), AllocationReason::Pinned, 1),
        (pinned(&[(99, 77)]), AllocationReason::Absent { pinned: address(77) }, 2),
        (External::default(), AllocationReason::Asked, 2), // the pins could not be read
    ];
    for (external, why, to) in table {
        let answer = external.allocate(ShardId::new(99), Some(region(2)), &seen);
        assert_eq!(answer, Some((region(to), why)), "{external:?}");
    }
    for asker in [None, Some(region(42))] {
        let answer = pinned(&[]).allocate(ShardId::new(99), asker, &seen);
        assert_eq!(
            answer,
            Some((region(3), AllocationReason::Fewest { shards: 0 })),
            "nobody, or a proxy"
        );
    }
}

#[test]
fn a_pin_to_a_node_that_may_not_host_waits_and_is_counted() {
    let external = pinned(&[(1, 2), (2, 2), (3, 77), (99, 2)]);
    let mut seen = sizes(&[3, 3]);
    assert_eq!(external.absent(&seen), BTreeMap::from([(address(77), 1)]));
    for change in [
        |candidate: &mut Candidate| candidate.draining = true,
        |candidate: &mut Candidate| candidate.reachable = false,
        |candidate: &mut Candidate| candidate.status = Status::Leaving,
    ] {
        seen = sizes(&[3, 3]);
        change(seen.regions.get_mut(&region(2)).expect("it is there"));
        assert_eq!(external.rebalance(&seen), []);
        let (home, why) = external.allocate(ShardId::new(99), None, &seen).expect("1 may");
        assert_eq!((home, why), (region(1), AllocationReason::Absent { pinned: address(2) }));
        let absent = BTreeMap::from([(address(2), 3), (address(77), 1)]);
        assert_eq!(external.absent(&seen), absent);
    }
}

#[test]
fn pinned_moves_are_bounded_per_source_and_target() {
    let all: Vec<(u32, u64)> = (1..=9).map(|shard| (shard, 3)).collect();
    let external = External { max_moves_in_flight: 2, ..pinned(&all) };
    let mut seen = sizes(&[6, 3, 0]);
    for round in 0.. {
        let moves = external.rebalance(&seen);
        if moves.is_empty() {
            assert_eq!((round, counts(&seen)), (5, vec![0, 0, 9]));
            return;
        }
        assert!(moves.len() <= 2, "{moves:?}");
        let under_way = started(seen.clone(), &moves);
        assert_eq!(external.rebalance(&under_way), [], "no more until these are over");
        seen = done(seen, &moves);
    }
}

#[test]
fn x5_new_pin_moves_the_shard_if_that_node_is_there() {
    let seen = sizes(&[2, 2]);
    let moved = |pins: &[(u32, u64)]| shards(&pinned(pins).rebalance(&seen));
    assert_eq!(moved(&[]), [0_u32; 0]);
    assert_eq!(moved(&[(1, 1)]), [0_u32; 0]);
    assert_eq!(moved(&[(1, 2), (3, 1)]), [1, 3]);
    assert_eq!(moved(&[(1, 77)]), [0_u32; 0]);
    assert_eq!(External::default().rebalance(&seen), []);
    let seen = in_progress(sizes(&[2, 2]), &[1]);
    assert_eq!(shards(&pinned(&[(1, 1), (2, 2)]).rebalance(&seen)), [2]);
}
