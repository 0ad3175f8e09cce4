//! [`TypeView`]: snapshot of an entity type on this node, for operators.

use ostraca_ddata::id::ReplicaId;

use crate::sharding::coordinator::Coordinator;
use crate::sharding::ids::{EntityType, RegionId, ShardId};
use crate::sharding::machines::{Hosts, TypeMachines};
use crate::sharding::region::{HostingPhase, Region};

/// Snapshot of an entity type on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeView {
    /// Name of the type.
    pub entity_type: EntityType,
    /// Whether this node may host shards of the type or only routes messages, as a proxy or because
    /// it lacks the type's role.
    pub hosts: Hosts,
    /// Number of shards of the type, as configured on this node.
    pub number_of_shards: u32,
    /// Whether this node's region is registered with the coordinator now; proxies register too.
    pub registered: bool,
    /// The node of the coordinator, if this node knows it, registered or not.
    pub coordinator: Option<ReplicaId>,
    /// Shards that live on this node or are being drained here, in the order of their numbers.
    pub shards: Vec<(ShardId, HostingPhase)>,
    /// Homes of all shards that have one; empty unless the coordinator runs on this node and has
    /// read them.
    pub homes: Vec<(ShardId, RegionId)>,
}

impl TypeView {
    /// Takes a snapshot; `None` if the program has not started the type on this node. A node that
    /// leaves or is out still gives one.
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
