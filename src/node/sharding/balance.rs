//! Administrative orders: drain this node, or rebalance a type immediately.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::id::ReplicaId;
use tokio::time::Instant;

use super::{Sharding, ShardingQueryError, ShardingUnavailable, end_of_wait};
use crate::sharding::coordinator::CoordinatorPhase;
use crate::sharding::ids::EntityType;
use crate::sharding::machines::{ShardingInput, TypeMachines};

/// Interval between two checks of the shards that are left on a draining node.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Progress of draining a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainProgress {
    /// Number of shards that the node still hosts or drains, by type; types without such shards are
    /// left out.
    pub left: BTreeMap<EntityType, usize>, // ≤ types that a node starts
    /// Whether the node drains: after [`Sharding::drain`], and in a shutdown, which begins with a
    /// drain. Coordinators that know this give it no further shards.
    pub draining: bool,
}

impl DrainProgress {
    /// Whether no shard is left, whether the node drains or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left.is_empty()
    }
}

/// Why a rebalance was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebalanceError {
    /// The type was not started on this node, or the node has stopped.
    #[error(transparent)]
    Query(#[from] ShardingQueryError),
    /// No active coordinator runs on this node: it runs on another node or nowhere at the moment,
    /// or it is still taking over here. Nothing was done.
    #[error("this node does not coordinate {entity_type}: nothing was done; {}", remedy(.at))]
    NotCoordinator {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The other node of its coordinator, if this node knows it. `None` also while the
        /// coordinator of this node takes over.
        at: Option<ReplicaId>,
    },
}

impl RebalanceError {
    /// The error of node `me`, which knows that the coordinator runs or takes over at node `at`. If
    /// that is `me`, its coordinator is not active, and the error names no node.
    fn not_coordinator(entity_type: EntityType, me: ReplicaId, at: Option<ReplicaId>) -> Self {
        Self::NotCoordinator { entity_type, at: at.filter(|at| *at != me) }
    }
}

/// The end of the message of [`RebalanceError::NotCoordinator`]: what the caller can do.
fn remedy(coordinator: &Option<ReplicaId>) -> String {
    match coordinator {
        Some(coordinator) => format!("call it on {coordinator}, which does"),
        None => "this node knows no coordinator now, try again".to_owned(),
    }
}

impl Sharding {
    /// Moves all shards of this node to other nodes; the node stays a member. It announces by
    /// gossip that it drains. Coordinators that have heard this allocate no shard to it and move
    /// the shards that live here as their strategy decides; coordinators that run here move to
    /// other nodes. Shards that no other node may host stay.
    ///
    /// Returns when no shard is left or after `timeout`, with the shards that are left then; the
    /// node keeps draining, until [`stop_draining`](Self::stop_draining) or a restart of the node.
    /// The first check is at once, so a node without shards returns before any coordinator has
    /// heard of the drain, and may still get a shard. Called again, it only waits.
    ///
    /// # Errors
    /// [`ShardingUnavailable`] if the node stops before that or has stopped.
    pub async fn drain(&self, timeout: Duration) -> Result<DrainProgress, ShardingUnavailable> {
        self.tell(ShardingInput::Drain)?;
        let until = end_of_wait(timeout);
        loop {
            let drained = self.left().await?;
            if drained.is_done() || Instant::now() >= until {
                return Ok(drained);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends a [`drain`](Self::drain): this node may host shards again. Has no effect on a node that
    /// is stopping or leaving its cluster, which [`DrainProgress::draining`] shows. Returns the
    /// shards that live here.
    ///
    /// # Errors
    /// [`ShardingUnavailable`] if the node has stopped.
    pub async fn stop_draining(&self) -> Result<DrainProgress, ShardingUnavailable> {
        self.tell(ShardingInput::StopDraining)?;
        self.left().await
    }

    /// Counts the shards that this node hosts or drains, after all inputs that were queued before.
    async fn left(&self) -> Result<DrainProgress, ShardingUnavailable> {
        self.look(|control| {
            let hosted = |of_type: &TypeMachines| {
                of_type.region().map_or(0, |region| region.hosted().count())
            };
            let machines = control.machines();
            let counted = machines.types().map(|(name, of_type)| (name.clone(), hosted(of_type)));
            DrainProgress {
                left: counted.filter(|(_, shards)| *shards > 0).collect(),
                draining: machines.is_draining(),
            }
        })
        .await
    }

    /// Makes the coordinator of a type check the balance now instead of after `rebalance-interval`.
    /// The allocation strategy decides which shards move, within its limits; it may move none.
    /// Returns when the order is queued, before any shard moves. If the coordinator ends before it
    /// handles the order, the order is lost and this returns `Ok` all the same.
    ///
    /// # Errors
    /// [`RebalanceError::Query`], checked first, if the name is invalid, the type was not started
    /// here, or the node has stopped; [`RebalanceError::NotCoordinator`] on every node except that
    /// of the active coordinator.
    pub async fn rebalance(&self, entity_type: &str) -> Result<(), RebalanceError> {
        let entity_type = self.known_here(entity_type).await?;
        let named = entity_type.clone();
        let at = self.look(move |control| {
            let machines = control.machines();
            let of_type = machines.of(&named);
            let coordinator = of_type.and_then(TypeMachines::coordinator);
            let acts = coordinator.is_some_and(|it| it.phase() == CoordinatorPhase::Active);
            (acts, of_type.and_then(TypeMachines::coordinator_at))
        });
        let (acts, at) = at.await.map_err(ShardingQueryError::from)?;
        if !acts {
            let me = self.0.me.replica();
            return Err(RebalanceError::not_coordinator(entity_type, me, at));
        }
        Ok(self.tell(ShardingInput::Rebalance(entity_type)).map_err(ShardingQueryError::from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_rebalance_names_only_another_node() {
        let entity_type = EntityType::new("bell").expect("a name");
        let [me, other] = [1, 7].map(ReplicaId::new);
        let refused = |at| RebalanceError::not_coordinator(entity_type.clone(), me, at).to_string();
        let text = "this node does not coordinate bell: nothing was done; ";
        assert_eq!(refused(Some(other)), format!("{text}call it on {other}, which does"));
        for at in [None, Some(me)] {
            let again = format!("{text}this node knows no coordinator now, try again");
            assert_eq!(refused(at), again, "this node's own coordinator takes over, or none is");
        }
    }
}
