//! Nodes find each other, found one cluster, and let others in.

use std::collections::BTreeSet;

use ostraca_ddata::sim::NodeIndex;

use super::super::whole::World;
use super::{agree, at, calm, until};

#[test]
fn three_seeds_found_one_cluster_and_a_fourth_node_joins_it() {
    let mut sim = calm(1, 4, 3, World::new(3));
    until(&mut sim, 5, |sim| agree(sim, &[0, 1, 2]));
    let founded = sim.now();
    sim.restart(NodeIndex::new(3));
    until(&mut sim, 5, |sim| agree(sim, &[0, 1, 2, 3]));
    let joined = sim.now() - founded;
    println!("founded after {founded}, joined in {joined:?}");
    let clusters: BTreeSet<_> = (0..4)
        .filter_map(|place| at(&sim, place).membership.gossip().map(|gossip| gossip.cluster()))
        .collect();
    assert_eq!(clusters.len(), 1);
}
