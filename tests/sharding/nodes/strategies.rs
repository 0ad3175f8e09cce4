//! Asynchronous allocation strategies under faults: the built-in external one, whose pins change
//! all the time, and a strategy of the program that fails in every possible way.

use std::collections::BTreeMap;

use ostraca::sharding::allocation::pins::{PinsKey, Wanted};
use ostraca::sharding::config::{AllocationStrategyName, ShardingConfig as Settings};
use ostraca::sharding::ids::ShardId;
use ostraca::sharding::machines::Hosts;
use ostraca_ddata::replicator::port::ReplicatorInput;
use ostraca_ddata::replicator::request::RequestId;
use ostraca_ddata::sim::{Faults, NodeIndex, RandomStream, on_all_cores};

use super::chaos::{self, AT_REST, Scenario};
use super::{Cluster, SECOND, SHARDS, counter, settings, shards};
use crate::whole::entities::Order;
use crate::whole::{Command, World, address};

/// A place where no node ever runs.
const NOWHERE: usize = 77;

fn pinned() -> Order {
    let name = AllocationStrategyName::External;
    let settings = Settings { allocation_strategy: name, ..*settings() };
    Order::Start(counter(), Box::new(settings), Hosts::Shards)
}

fn own() -> Order {
    Order::StartOwn(counter(), settings())
}

impl Cluster {
    /// A program on this node pins shards to places, or removes pins.
    fn pin(&mut self, at: usize, pins: impl IntoIterator<Item = (ShardId, Option<usize>)>) {
        let to = |(shard, place): (ShardId, Option<usize>)| (shard, place.map(address));
        let wanted: Wanted = pins.into_iter().map(to).collect();
        let request = PinsKey::new(&counter()).changing(wanted, SECOND);
        self.told += 1;
        let asked = ReplicatorInput::Request { id: RequestId(self.told), request };
        self.sim.command(NodeIndex::new(at), Command::Data(Box::new(asked)));
    }
}

/// The final pin of a shard. The pin of shard 0 is never met.
fn at_last(shard: ShardId) -> usize {
    if shard.get() == 0 { NOWHERE } else { shard.get() as usize % 5 }
}

fn disturb(it: &mut Cluster, chance: &mut RandomStream) {
    let living: Vec<usize> = it.sim.processes().map(|(at, _)| at.get()).collect();
    if living.is_empty() || !chance.chance(0.2) {
        return;
    }
    let at = *chance.pick(&living);
    let places = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(NOWHERE), None];
    let count = chance.below(3) + 1;
    let pin = |_| (ShardId::new(chance.below(u64::from(SHARDS)) as u32), *chance.pick(&places));
    let pins: BTreeMap<_, _> = (0..count).map(pin).collect();
    it.pin(at, pins);
}

fn misplaced(it: &Cluster) -> Option<String> {
    let homes = it.homes();
    let wrong = homes.iter().filter(|(shard, at)| at_last(**shard) != **at && shard.get() != 0);
    let wrong: Vec<_> = wrong.collect();
    (!wrong.is_empty()).then(|| format!("not where they are pinned to: {wrong:?}"))
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn changing_pins_under_faults_are_met_in_the_end() {
    let scenario = Scenario {
        start: pinned,
        disturb,
        at_last: |it| it.pin(0, shards().map(|shard| (shard, Some(at_last(shard))))),
        unrest: misplaced,
    };
    let name = "changing_pins_under_faults_are_met_in_the_end";
    let run = |seed| chaos::run(seed, scenario).unwrap_or_else(|failure| panic!("{failure}"));
    let totals = on_all_cores(name, 4, run);
    let of = |mark| totals.marks.count(mark);
    let (starts, handled, waits) = (of("starts"), of("handled"), of("pins wait"));
    eprintln!("{} seeds, {starts} starts, {handled} handled, {waits} waits", totals.runs);
    totals.must_have_hit(["handled", "starts", "pins wait", AT_REST]);
}

#[test]
#[expect(clippy::print_stderr, reason = "the figures are the result")]
fn strategy_that_fails_in_every_way_does_no_harm() {
    let scenario = Scenario { start: own, disturb: |_, _| {}, at_last: |_| {}, unrest: |_| None };
    let name = "strategy_that_fails_in_every_way_does_no_harm";
    let run = |seed| chaos::run(seed, scenario).unwrap_or_else(|failure| panic!("{failure}"));
    let totals = on_all_cores(name, 4, run);
    let of = |mark| totals.marks.count(mark);
    let fates = ["good", "fails", "late", "silent", "vanished"];
    let told = fates.map(|fate| format!("{fate} {}", of(fate)));
    let (starts, handled) = (of("starts"), of("handled"));
    eprintln!("{} seeds, {starts} starts, {handled} handled; {}", totals.runs, told.join(", "));
    totals.must_have_hit(fates);
    totals.must_have_hit(["handled", "starts", "strategy failed", AT_REST]);
}

#[test]
fn pin_waits_for_its_node_under_later_coordinators() {
    for seed in 0..5 {
        let (places, world) = ((4, 3), World::new(3));
        let mut it = Cluster::starting(pinned, seed, places, Faults::none(), world);
        it.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
        it.pin(1, shards().map(|shard| (shard, Some(3))));
        it.want_all(1);
        it.until(20, "all at the asking node", |it| it.sizes([1]) == [SHARDS as usize]);
        let coordinates = (0..3).find(|place| it.acts(*place)).expect("one does");
        it.sim.crash(NodeIndex::new(coordinates));
        it.until(60, "another one acts", |it| {
            (0..3).any(|place| place != coordinates && it.acts(place))
        });
        it.sim.restart(NodeIndex::new(3));
        it.host(3);
        it.until(60, "all shards at their pins", |it| it.sizes([3]) == [SHARDS as usize]);
        assert!(it.sim.observer().pins_absent > 0, "seed {seed}");
    }
}

#[test]
fn shard_whose_pin_is_removed_stays() {
    let world = World::new(3);
    let mut it = Cluster::starting(pinned, 1, (3, 3), Faults::none(), world);
    it.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
    let evenly = |shard: ShardId| (shard, Some(shard.get() as usize % 3));
    it.pin(2, shards().map(evenly));
    it.want_all(1);
    it.until(20, "each shard at its pin", |it| it.sizes([0, 1, 2]) == [4, 4, 4]);
    it.pin(0, shards().map(|shard| (shard, None)));
    let starts = it.sim.observer().starts;
    it.sim.try_run_for(30 * SECOND).expect("nothing is wrong");
    assert_eq!((it.sizes([0, 1, 2]), it.sim.observer().starts), ([4, 4, 4], starts));
}
