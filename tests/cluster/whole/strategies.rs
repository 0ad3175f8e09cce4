//! Downing strategies, for worlds of five nodes with one role.

use std::collections::BTreeSet;

use ostraca::cluster::config::{ClusterConfig, Downing, DowningStrategyName};
use ostraca::cluster::downing::{LeaderRoles, QuorumLeader, RoleLeaderRoles, StaticQuorum};

use super::{World, addresses};

const ROLE: &str = "worker";

/// Strategies that remove members when the network splits, without an external system.
pub(crate) const STRATEGIES: [DowningStrategyName; 9] = [
    DowningStrategyName::StaticQuorum,
    DowningStrategyName::KeepMajority,
    DowningStrategyName::KeepOldest,
    DowningStrategyName::Oldest,
    DowningStrategyName::QuorumLeader,
    DowningStrategyName::MajorityLeader,
    DowningStrategyName::LeaderRoles,
    DowningStrategyName::RoleLeaderRoles,
    DowningStrategyName::AutoDown,
];

fn roles() -> BTreeSet<String> {
    [ROLE.to_owned()].into()
}

/// Settings with this strategy; three of five nodes are a quorum.
pub(crate) fn downing(strategy: DowningStrategyName) -> Downing {
    Downing {
        strategy,
        static_quorum: StaticQuorum { quorum_size: 3, ..StaticQuorum::default() },
        quorum_leader: QuorumLeader { quorum_size: 3, ..QuorumLeader::default() },
        leader_roles: LeaderRoles { target_roles: roles() },
        role_leader_roles: RoleLeaderRoles { leader_role: ROLE.into(), target_roles: roles() },
        ..Downing::default()
    }
}

impl World {
    /// Nodes with these settings, the role that the strategies name, and the first three as seeds.
    pub(crate) fn with_downing(downing: Downing) -> Self {
        Self::with(move |_| ClusterConfig {
            seeds: addresses(0..3),
            roles: roles(),
            downing: downing.clone(),
            ..ClusterConfig::default()
        })
    }
}
