//! Tests of the strategies: reference vectors as tables, general laws as properties.

mod laws;
mod pinned_and_hashed;
mod rounds;
mod slow_handlers;
mod targets;

use std::collections::BTreeMap;

use ostraca_ddata::id::ReplicaId;

use super::{AllocationReason, Allocations, AppVersion, Candidate, Move, Moving};
use crate::cluster::member::{Address, Status};
use crate::sharding::ids::{RegionId, ShardId};

pub(super) fn region(number: u64) -> RegionId {
    RegionId::new(ReplicaId::new(number))
}

pub(super) fn address(number: u64) -> Address {
    Address::new(format!("/ip4/10.0.0.{number}/tcp/7000")).expect("a valid address")
}

pub(super) fn candidate(number: u64, shards: impl IntoIterator<Item = u32>) -> Candidate {
    Candidate {
        status: Status::Up,
        reachable: true,
        draining: false,
        version: AppVersion::new("1.0"),
        address: address(number),
        shards: shards.into_iter().map(ShardId::new).collect(),
    }
}

/// Regions 1, 2, … with these numbers of shards. Shards are numbered from 1 across the regions.
pub(super) fn sizes(counts: &[usize]) -> Allocations {
    let mut next = 1;
    let regions = (1..).zip(counts).map(|(number, &count)| {
        let first = next;
        next += u32::try_from(count).expect("few shards");
        (region(number), candidate(number, first..next))
    });
    Allocations { regions: regions.collect(), ..Allocations::default() }
}

pub(super) fn counts(seen: &Allocations) -> Vec<usize> {
    seen.regions.values().map(|candidate| candidate.shards.len()).collect()
}

/// The allocations while `moves` are in flight.
pub(super) fn started(mut seen: Allocations, moves: &[Move]) -> Allocations {
    for Move { shard, from, to, .. } in moves {
        let source = &mut seen.regions.get_mut(from).expect("a region that is there").shards;
        let at = source.iter().position(|other| other == shard).expect("it is there");
        source.remove(at);
        seen.regions.get_mut(to).expect("a region that is there").shards.push(*shard);
        let moving = Moving { from: Some(*from), to: *to };
        assert_eq!(seen.moving.insert(*shard, moving), None, "{shard} moves twice");
    }
    seen
}

/// The allocations after `moves` have ended.
pub(super) fn done(seen: Allocations, moves: &[Move]) -> Allocations {
    let mut seen = started(seen, moves);
    seen.moving.clear();
    seen
}

/// Adds moves in flight of these shards to the last region.
pub(super) fn in_progress(seen: Allocations, shards: &[u32]) -> Allocations {
    let to = *seen.regions.keys().next_back().expect("there are regions");
    let homes: BTreeMap<ShardId, RegionId> = seen.homes().collect();
    let moves: Vec<Move> = shards
        .iter()
        .map(|&shard| {
            let shard = ShardId::new(shard);
            Move { shard, from: homes[&shard], to, why: AllocationReason::Drain }
        })
        .collect();
    started(seen, &moves)
}

pub(super) fn shards(moves: &[Move]) -> Vec<u32> {
    moves.iter().map(|of| of.shard.get()).collect()
}
