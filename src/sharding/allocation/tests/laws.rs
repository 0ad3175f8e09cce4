//! Laws of continuous balancing: it ends, balanced, with the fewest moves, within the limit of
//! moves in flight.

use std::collections::BTreeMap;

use proptest::{prop_assert, prop_assert_eq, proptest};

use super::super::{Allocations, LeastShard, Move};
use super::{candidate, counts, done, region, sizes, started};

/// Starts all proposed moves and ends the oldest one, until nothing moves. Returns all moves.
fn settle(strategy: &LeastShard, mut seen: Allocations) -> (Allocations, Vec<Move>) {
    let mut all: Vec<Move> = Vec::new();
    for _ in 0..10_000 {
        let moves = strategy.rebalance(&seen);
        seen = started(seen, &moves);
        check_window(strategy, &seen);
        all.extend(moves);
        if seen.moving.pop_first().is_none() {
            return (seen, all);
        }
    }
    panic!("does not end: {:?}", counts(&seen));
}

fn check_window(strategy: &LeastShard, seen: &Allocations) {
    let mut in_flight = BTreeMap::new();
    for moving in seen.moving.values() {
        *in_flight.entry((0, moving.to)).or_insert(0) += 1;
        *in_flight.entry((1, moving.from.expect("a source"))).or_insert(0) += 1;
    }
    assert!(in_flight.values().all(|&moves| moves <= strategy.max_moves_in_flight));
}

/// The smallest number of moves that balances: the surplus of the largest regions.
fn fewest_moves(given: &[usize]) -> usize {
    let mut given = given.to_vec();
    given.sort_unstable_by(|a, b| b.cmp(a));
    let (total, regions) = (given.iter().sum::<usize>(), given.len());
    let part = |at: usize| total / regions + usize::from(at < total % regions);
    given.iter().enumerate().map(|(at, size)| size.saturating_sub(part(at))).sum()
}

proptest! {
    #[test]
    fn sizes_end_within_one_of_each_other_with_the_fewest_moves(
        given in proptest::collection::vec(0..60_usize, 1..12), window in 1..20_usize,
    ) {
        let strategy = LeastShard { max_moves_in_flight: window };
        let (seen, moves) = settle(&strategy, sizes(&given));
        let after = counts(&seen);
        prop_assert_eq!(after.iter().sum::<usize>(), given.iter().sum::<usize>());
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
        prop_assert_eq!(moves.len(), fewest_moves(&given));
    }

    #[test]
    fn joining_node_moves_only_its_own_share(
        regions in 1..12_usize, total in 0..400_usize,
    ) {
        let part = |at| total / regions + usize::from(at < total % regions);
        let mut seen = sizes(&(0..regions).map(part).collect::<Vec<_>>());
        seen.regions.insert(region(99), candidate(99, []));
        let (seen, moves) = settle(&LeastShard::default(), seen);
        prop_assert_eq!(moves.len(), total / (regions + 1));
        prop_assert!(moves.iter().all(|of| of.to == region(99)));
        let after = counts(&seen);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
    }

    #[test]
    fn leaving_node_moves_only_its_own_shards(
        regions in 2..12_usize, total in 0..400_usize, leaver in 0..12_usize,
    ) {
        let part = |at| total / regions + usize::from(at < total % regions);
        let mut seen = sizes(&(0..regions).map(part).collect::<Vec<_>>());
        let leaver = region((leaver % regions) as u64 + 1);
        let leaving = seen.regions.get_mut(&leaver).expect("it is there");
        leaving.draining = true;
        let own = leaving.shards.len();
        let moves = LeastShard::default().rebalance(&seen);
        prop_assert_eq!(moves.len(), own);
        prop_assert!(moves.iter().all(|of| of.from == leaver));
        let mut seen = done(seen, &moves);
        prop_assert_eq!(LeastShard::default().rebalance(&seen), []);
        seen.regions.remove(&leaver);
        let after = counts(&seen);
        prop_assert!(after.iter().max().unwrap() - after.iter().min().unwrap() <= 1, "{after:?}");
    }

    #[test]
    fn every_mixture_of_nodes_comes_to_rest(
        nodes in proptest::collection::vec((0..30_usize, 0..5_u8), 1..10),
    ) {
        let mut seen = sizes(&nodes.iter().map(|(size, _)| *size).collect::<Vec<_>>());
        for (of, (_, kind)) in seen.regions.values_mut().zip(&nodes) {
            match kind {
                0 => of.draining = true,
                1 => of.reachable = false,
                2 => of.version = super::AppVersion::new("0.9"),
                _ => {}
            }
        }
        let mut moved = 0;
        let targets = seen.targets();
        for _ in 0..100 {
            let moves = LeastShard::default().rebalance(&seen);
            moved += moves.len();
            prop_assert!(moves.iter().all(|of| targets.contains(&of.to)));
            if moves.is_empty() {
                break;
            }
            seen = done(seen, &moves);
        }
        prop_assert_eq!(LeastShard::default().rebalance(&seen), []);
        prop_assert!(moved <= nodes.iter().map(|(size, _)| size).sum(), "nothing moves twice");
        let emptied = |of: &super::Candidate| of.shards.is_empty() || !of.is_leaving();
        prop_assert!(targets.is_empty() || seen.regions.values().all(emptied));
    }
}
