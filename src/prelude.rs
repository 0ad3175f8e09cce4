//! The names that most programs with Ostraca need: `use ostraca::prelude::*`.

pub use libp2p::Multiaddr;
pub use ostraca_ddata::data::Registry;
pub use ostraca_ddata::key::Key;
pub use ostraca_ddata::replicator::request::{ReadConsistency, WriteConsistency};
pub use ostraca_ddata::types::edit::{Edit, EditError};
pub use ostraca_ddata::types::{
    DataType, Flag, GCounter, GSet, LWWMap, LWWRegister, MVRegister, ORMap, ORMultiMap, ORSet,
    PNCounter, PNCounterMap, ReplicatedData, User,
};

pub use crate::cluster::events::{ClusterEvent, ClusterState};
pub use crate::cluster::member::{Member, Status};
pub use crate::config::Config;
pub use crate::node::Node;
pub use crate::node::cluster::{Cluster, ClusterEvents, ClusterView};
pub use crate::node::replicator::{
    Change, DeleteError, GetError, KeyChange, ReadAll, ReadFrom, ReadLocal, ReadMajority,
    ReadMajorityPlus, Replicator, UpdateError, WriteAll, WriteLocal, WriteMajority,
    WriteMajorityPlus, WriteTo, secs,
};
pub use crate::node::sharding::{EntityTypeSetup, Sharding};
pub use crate::node::shutdown::{CoordinatedShutdown, Phase, Reason};
pub use crate::sharding::context::Context;
pub use crate::sharding::entity::{Entity, Supervision};
pub use crate::sharding::entity_ref::{AskError, EntityRef, TellError};
pub use crate::sharding::fencing::FencingToken;
pub use crate::sharding::reply::Reply;
pub use crate::sharding::shard_region::ShardRegion;
