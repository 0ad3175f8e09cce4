//! Allocation strategies that a program supplies, and the questions and answers exchanged with
//! them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use super::Allocations;
use crate::sharding::ids::{RegionId, ShardId};

/// Future of a strategy's answer. The answer is dropped if the cluster has changed so that it no
/// longer applies.
pub type StrategyFuture<T> = Pin<Box<dyn Future<Output = Result<T, StrategyError>> + Send>>;

/// Failure of a strategy. No decision is made, and the strategy is asked again.
#[derive(Debug, thiserror::Error)]
#[error("the allocation strategy failed: {0}; nothing was moved, it will be asked again")]
pub struct StrategyError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl StrategyError {
    /// An error with this cause.
    #[must_use]
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// An allocation strategy supplied by the program: it chooses homes for shards and proposes moves.
/// It is given to an entity type by [`EntityTypeSetup`](crate::node::sharding::EntityTypeSetup), on
/// every node that may run the type's coordinator.
///
/// The coordinator asks at most one question of each kind at a time: for a home when a shard needs
/// one, and for moves when regions or homes have changed (at most once a second) and every
/// `rebalance-interval`. The answers run on the program's runtime and may wait for other systems.
///
/// An error, a panic, no answer within 5 s, or a home that is none of the
/// [targets](Allocations::targets) changes nothing. The strategy is asked again after 100 ms,
/// doubled up to 5 s with each failure in a row, about another shard first if several wait. Invalid
/// moves, such as one to a region that is no target, are left out of an answer without a failure.
///
/// The strategy also chooses new homes for the shards of a lost or leaving node. The shards of a
/// leaving node do not wait for long, because the node would lose what it does not hand over in
/// time: after a failure, or once the strategy had 3 s for all of them together, they go to the
/// nodes with the fewest shards. A strategy that answers within 10 ms thus places about 300 shards
/// of a leaving node; it can move the others later.
///
/// The snapshot `seen` is updated in place between questions. If the strategy still holds it by
/// then, it is copied, so drop it with the answer.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
///
/// use ostraca::sharding::allocation::{
///     Allocations, ShardAllocationStrategy, StrategyError, StrategyFuture,
/// };
/// use ostraca::sharding::ids::{RegionId, ShardId};
///
/// /// Ten shards that follow each other live together.
/// struct ByTens;
///
/// impl ByTens {
///     fn home(shard: ShardId, seen: &Allocations) -> Option<RegionId> {
///         let targets: Vec<RegionId> = seen.targets().into_iter().collect();
///         targets.get(shard.get() as usize / 10 % targets.len().max(1)).copied()
///     }
/// }
///
/// impl ShardAllocationStrategy for ByTens {
///     fn allocate(
///         &self,
///         shard: ShardId,
///         _: Option<RegionId>,
///         seen: Arc<Allocations>,
///     ) -> StrategyFuture<RegionId> {
///         let home = Self::home(shard, &seen);
///         Box::pin(async move { home.ok_or_else(|| StrategyError::new("there is no node")) })
///     }
///
///     fn rebalance(&self, seen: Arc<Allocations>) -> StrategyFuture<BTreeMap<ShardId, RegionId>> {
///         let misplaced = seen.homes().filter_map(|(shard, at)| {
///             Self::home(shard, &seen).filter(|to| *to != at).map(|to| (shard, to))
///         });
///         let moves: BTreeMap<ShardId, RegionId> = misplaced.take(10).collect();
///         Box::pin(async move { Ok(moves) })
///     }
/// }
/// ```
pub trait ShardAllocationStrategy: Send + Sync + 'static {
    /// Name of the strategy, shown as the reason of its decisions. Called once, when the type
    /// starts.
    fn name(&self) -> &str {
        "the program's strategy"
    }

    /// Chooses one of the [targets](Allocations::targets) for a shard without a home. `asker` has
    /// messages for the shard; it is `None` if the home is lost or leaves, or if all shards are
    /// allocated in advance. The asker may be no target: a proxy, which is not in `seen.regions`,
    /// or a region of an older program version. Not called while there is no target.
    fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: Arc<Allocations>,
    ) -> StrategyFuture<RegionId>;

    /// Proposes shards to move, with their new homes. Shards in `seen.moving` are not moved again,
    /// and those in `seen.with_slow_handlers` stay; so do shards without a home. An empty answer
    /// changes nothing. The number of moves is not limited here. Also called without a target.
    fn rebalance(&self, seen: Arc<Allocations>) -> StrategyFuture<BTreeMap<ShardId, RegionId>>;
}

/// A question to the program's own strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum StrategyRequest {
    /// Asks for a home, see [`allocate`](ShardAllocationStrategy::allocate).
    Home {
        /// The shard without a home.
        shard: ShardId,
        /// The region that has messages for it; `None` if the home is lost or leaves, or if all
        /// shards are allocated in advance.
        asker: Option<RegionId>,
        /// The cluster as the coordinator sees it.
        seen: Arc<Allocations>,
    },
    /// Asks for moves, see [`rebalance`](ShardAllocationStrategy::rebalance).
    Moves {
        /// The cluster as the coordinator sees it.
        seen: Arc<Allocations>,
    },
}

/// The answer of the program's own strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum StrategyAnswer {
    /// The chosen home, in answer to [`StrategyRequest::Home`].
    Home(RegionId),
    /// The proposed moves, in answer to [`StrategyRequest::Moves`].
    Moves(BTreeMap<ShardId, RegionId>),
}

impl StrategyRequest {
    /// Passes the question to `strategy`.
    ///
    /// # Errors
    /// The strategy's own error. The time limit is the caller's.
    pub async fn of(
        self,
        strategy: &dyn ShardAllocationStrategy,
    ) -> Result<StrategyAnswer, StrategyError> {
        match self {
            Self::Home { shard, asker, seen } => {
                strategy.allocate(shard, asker, seen).await.map(StrategyAnswer::Home)
            }
            Self::Moves { seen } => strategy.rebalance(seen).await.map(StrategyAnswer::Moves),
        }
    }
}
