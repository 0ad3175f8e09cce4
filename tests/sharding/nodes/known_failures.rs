//! Failures that other implementations of sharding shipped, shown not to happen on whole nodes. The
//! numbers are those of the list in `tests/sharding/coverage.rs`.

use ostraca::sharding::coordinator::Coordinator;
use ostraca::sharding::machines::Hosts;
use ostraca_ddata::sim::NodeIndex;

use super::{Cluster, SECOND, SHARDS, counter, settings};
use crate::whole::entities::Order;

impl Cluster {
    fn coordinator(&self) -> Option<(usize, &Coordinator)> {
        let acting = |(node, _): &(NodeIndex, _)| self.acts(node.get());
        let (node, process) = self.sim.processes().find(acting)?;
        Some((node.get(), process.machines.of(&counter())?.coordinator()?))
    }

    pub(super) fn coordinates(&self) -> usize {
        self.coordinator().expect("a coordinator acts").0
    }
}

#[test]
fn known_failure_34_a_silent_node_of_three_stops_no_allocation() {
    for seed in 0..5 {
        let mut cluster = Cluster::calm(seed, 3, 3);
        let registered = |it: &Cluster| (0..3).all(|place| it.is_registered(place));
        cluster.until(20, "all are registered", registered);
        let coordinates = cluster.coordinates();
        let silent = (coordinates + 1) % 3;
        cluster.sim.pause(NodeIndex::new(silent), 20 * SECOND);
        cluster.want_all(coordinates);
        let decided = |it: &Cluster| it.coordinator().map_or(0, |(_, it)| it.records().count());
        cluster.until(2, "every shard has a home", |it| decided(it) == SHARDS as usize);
        let members = cluster.at(coordinates).machines.regions(&counter()).count();
        assert_eq!(members, 3, "no node was removed for it");
    }
}

#[test]
fn known_failure_35_a_frozen_bystander_holds_up_no_move() {
    for seed in 0..5 {
        let mut cluster = Cluster::of_three(seed, 4);
        cluster.sim.restart(NodeIndex::new(3));
        cluster.order(3, Order::Start(counter(), settings(), Hosts::Nothing));
        cluster.until(20, "the proxy is registered", |it| it.is_registered(3));
        cluster.sim.pause(NodeIndex::new(3), 30 * SECOND);
        let leaver = (cluster.coordinates() + 1) % 3;
        cluster.leave(leaver);
        // A drain takes up to 3 s here, everything else less than a second.
        cluster.until(5, "its shards are hosted elsewhere", |it| {
            let homes = it.homes();
            homes.len() == SHARDS as usize && homes.values().all(|place| *place != leaver)
        });
    }
}
