//! Shards with slow handlers stay where they are, whatever the strategy.

use std::collections::BTreeMap;

use proptest::{prop_assert, proptest};

use super::super::{AllocationStrategy, ConsistentHashing, External, LeastShard, LeastShardRounds};
use super::{address, shards, sizes};
use crate::sharding::ids::ShardId;

fn strategies(shards: u32) -> [AllocationStrategy; 5] {
    let newer = LeastShardRounds { rebalance_absolute_limit: 20, ..LeastShardRounds::default() };
    let pinned = (1..=shards).map(|shard| (ShardId::new(shard), address(1))).collect();
    [
        AllocationStrategy::LeastShard(LeastShard::default()),
        AllocationStrategy::Rounds(LeastShardRounds::default()),
        AllocationStrategy::Rounds(newer),
        AllocationStrategy::ConsistentHashing(ConsistentHashing::default()),
        AllocationStrategy::External(External { pinned: Some(pinned), max_moves_in_flight: 0 }),
    ]
}

proptest! {
    #[test]
    fn no_strategy_moves_a_shard_with_a_slow_handler(
        given in proptest::collection::vec(0..30_usize, 2..8),
        slow in proptest::collection::btree_set(1..200_u32, 0..60),
    ) {
        let mut seen = sizes(&given);
        seen.with_slow_handlers = slow.iter().copied().map(ShardId::new).collect();
        for strategy in strategies(200) {
            let moves = shards(&strategy.rebalance(&seen));
            prop_assert!(moves.iter().all(|shard| !slow.contains(shard)), "{strategy:?}: {moves:?}");
        }
        let all: BTreeMap<_, _> = seen.homes().map(|(shard, _)| (shard, super::region(1))).collect();
        let sensible = shards(&seen.valid_moves(&all, &"test".into()));
        prop_assert!(sensible.iter().all(|shard| !slow.contains(shard)), "{sensible:?}");
    }
}

#[test]
fn other_shards_move_in_place_of_those_with_slow_handlers() {
    let mut seen = sizes(&[4, 0]);
    seen.with_slow_handlers = [1, 2].map(ShardId::new).into();
    let [least, rounds, newer, ..] = strategies(4);
    assert_eq!(shards(&least.rebalance(&seen)), [3, 4]);
    assert_eq!(shards(&rounds.rebalance(&seen)), [3], "one a round");
    assert_eq!(shards(&newer.rebalance(&seen)), [3], "a tenth, at least one");
}
