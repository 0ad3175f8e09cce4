//! Tests of the order of suitability (vector A13) and of the choice of targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{AllocationReason, Allocations, AppVersion, LeastShard, Move, Moving};
use super::{candidate, counts, done, in_progress, region, shards, sizes};
use crate::cluster::member::Status;
use crate::sharding::ids::ShardId;

#[test]
fn a13_not_leaving_then_newest_then_fewest() {
    let mut seen = sizes(&[5, 1, 0, 0, 0]);
    let set = |seen: &mut Allocations, number, change: fn(&mut super::Candidate)| {
        change(seen.regions.get_mut(&region(number)).expect("it is there"));
    };
    set(&mut seen, 3, |of| of.version = AppVersion::new("0.9"));
    set(&mut seen, 4, |of| of.status = Status::Leaving);
    set(&mut seen, 5, |of| of.draining = true);
    seen.regions.insert(region(9), candidate(9, []));
    assert_eq!(seen.by_suitability(), [9, 2, 1, 3, 4, 5].map(region));
    assert_eq!(seen.fewest(), Some((region(9), AllocationReason::Fewest { shards: 0 })));
}

#[test]
fn node_that_may_not_host_is_no_target() {
    let unable: [fn(&mut super::Candidate); 6] = [
        |of| of.status = Status::Joining,
        |of| of.status = Status::WeaklyUp,
        |of| of.status = Status::Exiting,
        |of| of.status = Status::Down,
        |of| of.reachable = false,
        |of| of.draining = true,
    ];
    for change in unable {
        let mut seen = sizes(&[3, 0]);
        change(seen.regions.get_mut(&region(2)).expect("it is there"));
        assert_eq!(seen.fewest().map(|(to, _)| to), Some(region(1)));
        let moves = LeastShard::default().rebalance(&seen);
        assert!(moves.iter().all(|of| of.to == region(1)), "{moves:?}");
    }
    assert_eq!(Allocations::default().fewest(), None);
}

#[test]
fn new_node_is_filled_while_others_are_unsettled() {
    let mut seen = sizes(&[10, 10, 10, 0, 0]);
    seen.regions.get_mut(&region(5)).expect("it is there").status = Status::Joining;
    seen.regions.get_mut(&region(3)).expect("it is there").reachable = false;
    let moves = LeastShard::default().rebalance(&seen);
    assert_eq!(counts(&done(seen, &moves)), [7, 7, 10, 6, 0]);
}

#[test]
fn rolling_update_moves_shards_to_newest_nodes_only() {
    let mut seen = sizes(&[12, 10, 2, 0]);
    seen.regions.get_mut(&region(4)).expect("it is there").version = AppVersion::new("1.1");
    let moves = LeastShard::default().rebalance(&seen);
    assert!(moves.iter().all(|of| of.to == region(4)), "{moves:?}");
    assert_eq!(counts(&done(seen, &moves)), [8, 7, 2, 7]);
}

#[test]
fn a_node_that_leaves_is_emptied_in_one_batch_and_evenly() {
    let mut seen = sizes(&[100, 3, 1, 0]);
    seen.regions.get_mut(&region(1)).expect("it is there").draining = true;
    let moves = LeastShard::default().rebalance(&seen);
    assert_eq!(moves.len(), 100);
    assert!(moves.iter().all(|of| of.from == region(1) && of.why == AllocationReason::Drain));
    assert_eq!(counts(&done(seen, &moves)), [0, 35, 35, 34]);
}

#[test]
fn moves_in_flight_are_bounded_per_source_and_target() {
    assert_eq!(LeastShard::default().rebalance(&sizes(&[100, 0])).len(), 16);
    let seen = in_progress(sizes(&[100, 0]), &(1..=10).collect::<Vec<_>>());
    assert_eq!(shards(&LeastShard::default().rebalance(&seen)), [11, 12, 13, 14, 15, 16]);
    // The window is per source and per target: two sources fill two targets side by side.
    assert_eq!(LeastShard::default().rebalance(&sizes(&[100, 100, 0, 0])).len(), 32);
}

#[test]
fn first_allocations_leave_room_for_moves_to_their_target() {
    let mut seen = sizes(&[100, 16]);
    let first = Moving { from: None, to: region(2) };
    seen.moving.extend((101..=116).map(|shard| (ShardId::new(shard), first)));
    assert_eq!(LeastShard::default().rebalance(&seen).len(), 16);
}

#[test]
fn invalid_moves_of_an_answer_are_dropped() {
    let mut seen = sizes(&[4, 0, 0]);
    seen.regions.get_mut(&region(3)).expect("it is there").version = AppVersion::new("0.9");
    let moving = Moving { from: None, to: region(1) };
    seen.moving.insert(ShardId::new(3), moving);
    let answer = BTreeMap::from([
        (ShardId::new(1), region(2)),
        (ShardId::new(2), region(7)),  // unknown region
        (ShardId::new(3), region(2)),  // moves already
        (ShardId::new(4), region(3)),  // runs an older program
        (ShardId::new(99), region(2)), // unknown shard
    ]);
    let why: Arc<str> = "mine".into();
    let expected = Move {
        shard: ShardId::new(1),
        from: region(1),
        to: region(2),
        why: AllocationReason::Custom(Arc::clone(&why)),
    };
    assert_eq!(seen.valid_moves(&answer, &why), [expected]);
}
