//! Settings of an entity type whose effect only several nodes show.

use ostraca::sharding::config::{AllWord, MajorityPlus, ShardingConfig as Settings};
use ostraca::sharding::machines::{Hosts, TypeMachines};
use ostraca_ddata::sim::{Faults, NodeIndex};

use super::{Cluster, SECOND, SHARDS, counter, settings};
use crate::whole::World;
use crate::whole::entities::Order;

/// Number of shards whose home a coordinator writes within two seconds while another node of three
/// is silent.
fn written_beside_a_silent_node(write_majority_plus: MajorityPlus) -> usize {
    let settings = Settings { write_majority_plus, ..*settings() };
    let start = move || Order::Start(counter(), Box::new(settings.clone()), Hosts::Shards);
    let mut it = Cluster::starting(start, 1_u64, (3, 3), Faults::none(), World::new(3));
    it.until(20, "all are registered", |it| (0..3).all(|place| it.is_registered(place)));
    let coordinates = it.coordinates();
    it.sim.pause(NodeIndex::new((coordinates + 1) % 3), 20 * SECOND);
    it.want_all(coordinates);
    it.sim.try_run_for(2 * SECOND).expect("nothing is wrong");
    let of_type = it.at(coordinates).machines.of(&counter());
    let coordinator = of_type.and_then(TypeMachines::coordinator);
    coordinator.expect("the type is started").records().count()
}

/// Two of three replicas are a majority.
#[test]
fn write_of_homes_waits_for_the_configured_replicas() {
    assert_eq!(written_beside_a_silent_node(MajorityPlus::Some(0)), SHARDS as usize);
    for all_three in [MajorityPlus::Some(1), MajorityPlus::All(AllWord::All)] {
        assert_eq!(written_beside_a_silent_node(all_three), 0, "{all_three:?}");
    }
}
