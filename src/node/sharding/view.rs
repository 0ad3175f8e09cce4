//! An entity type on this node at one moment: what an operator wants to look at.

use ostraca_ddata::id::ReplicaId;

use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{EntityType, RegionId, ShardId};
use crate::sharding::machines::{Hosts, TypeMachines};
use crate::sharding::region::{Region, Run};

/// See the module's page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeView {
    /// Which.
    pub entity_type: EntityType,
    /// Whether it hosts or only routes.
    pub hosts: Hosts,
    /// Shards that the type has, in number, as this node has set it.
    pub number_of_shards: u32,
    /// Whether the coordinator knows this node's region now.
    pub registered: bool,
    /// Where the coordinator runs, as far as is known.
    pub coordinator: Option<ReplicaId>,
    /// Shards that live here or are being drained, by number.
    pub shards: Vec<(ShardId, Run)>,
    /// Where every shard with a home lives, if the coordinator runs here; else nothing.
    pub homes: Vec<(ShardId, RegionId)>,
}

impl TypeView {
    /// `None`: the program has not started it here.
    pub(super) fn of(entity_type: &EntityType, machines: &TypeMachines) -> Option<Self> {
        let records = machines.coordinator().into_iter().flat_map(Coordinator::records);
        let homes = records.filter_map(|(shard, record)| Some((shard, record.home().region?)));
        Some(Self {
            entity_type: entity_type.clone(),
            hosts: machines.hosts()?,
            number_of_shards: machines.region()?.number_of_shards(),
            registered: machines.region().is_some_and(Region::is_registered),
            coordinator: machines.coordinator_at(),
            shards: machines.region()?.hosted().collect(),
            homes: homes.collect(),
        })
    }
}
