//! Orders about the places of shards on the whole node: drain it, or look at the balance now.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use tokio::time::Instant;

use super::{QueryError, Sharding, Unanswered};
use crate::sharding::coordinator::Phase;
use crate::sharding::ids::EntityType;
use crate::sharding::machines::{Input, TypeMachines};

/// Between two looks at the shards that are left on a draining node.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How far a node has drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Shards that still live on the node, in number, by type; types without any are left out.
    pub left: BTreeMap<EntityType, usize>, // ≤ types that a node starts
}

impl Drained {
    /// Whether no shard is left.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }
}

/// Why the coordinator of a type does not look at the balance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebalanceError {
    /// The type is not known here, or the node has stopped.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The coordinator runs on another node, or nowhere at the moment. Nothing was done.
    #[error("this node does not coordinate {entity_type}: nothing was done")]
    NotCoordinator {
        /// The type.
        entity_type: EntityType,
        /// The node of its coordinator, as far as it is known here.
        at: Option<ReplicaId>,
    },
}

impl Sharding {
    /// Gives away all shards of this node, which stays a member: no shard is allocated to it from
    /// now on, coordinators that run here move to other nodes, and each coordinator moves the
    /// shards that live here as its strategy does it. Shards that no other node may host stay.
    /// Ends when none is left or after `timeout`; the node keeps draining after that. Lasts until
    /// [`stop_draining`](Self::stop_draining) or a restart of the node.
    ///
    /// # Errors
    /// [`Unanswered`] if the node stops before.
    pub async fn drain(&self, timeout: Duration) -> Result<Drained, Unanswered> {
        self.tell(Input::Drain)?;
        let until = Instant::now() + timeout;
        loop {
            let drained = self.left().await?;
            if drained.is_done() || Instant::now() >= until {
                return Ok(drained);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends a [`drain`](Self::drain): this node may host shards again. Without effect in a node
    /// that leaves its cluster. Returns the shards that live here.
    ///
    /// # Errors
    /// [`Unanswered`] if the node has stopped.
    pub async fn stop_draining(&self) -> Result<Drained, Unanswered> {
        self.tell(Input::StopDraining)?;
        self.left().await
    }

    async fn left(&self) -> Result<Drained, Unanswered> {
        self.look(|control| {
            let hosted = |of_type: &TypeMachines| {
                of_type.region().map_or(0, |region| region.hosted().count())
            };
            let types = control.machines().types();
            let counted = types.map(|(name, of_type)| (name.clone(), hosted(of_type)));
            Drained { left: counted.filter(|(_, shards)| *shards > 0).collect() }
        })
        .await
    }

    /// Has the coordinator of a type look at the balance now, without waiting for
    /// `rebalance-interval`. The allocation strategy decides what moves, within its limits.
    ///
    /// # Errors
    /// [`RebalanceError::NotCoordinator`] on all nodes but that of the coordinator.
    pub async fn rebalance(&self, entity_type: &str) -> Result<(), RebalanceError> {
        let entity_type = self.known_here(entity_type)?;
        let named = entity_type.clone();
        let at = self.look(move |control| {
            let machines = control.machines();
            let of_type = machines.of(&named);
            let coordinator = of_type.and_then(TypeMachines::coordinator);
            let acts = coordinator.is_some_and(|it| it.phase() == Phase::Active);
            (acts, of_type.and_then(TypeMachines::coordinator_at))
        });
        let (acts, at) = at.await.map_err(QueryError::from)?;
        if !acts {
            return Err(RebalanceError::NotCoordinator { entity_type, at });
        }
        Ok(self.tell(Input::Rebalance(entity_type)).map_err(QueryError::from)?)
    }
}
