//! Strategies that a program brings itself, and what is said between them and the machines.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use super::Allocations;
use crate::sharding::ids::{RegionId, ShardId};

/// What a strategy of the program's own answers with; dropped if the world has changed by then.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, StrategyError>> + Send>>;

/// Why a strategy has no answer. Nothing changes, and it is asked again.
#[derive(Debug, thiserror::Error)]
#[error("the allocation strategy failed: {0}; nothing was moved, it will be asked again")]
pub struct StrategyError(#[source] pub Box<dyn std::error::Error + Send + Sync>);

impl StrategyError {
    /// It failed, since this happened.
    #[must_use]
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

/// A strategy of the program's own: where shards go, and which move. Given to an entity type by
/// [`EntityTypeSetup`](crate::node::sharding::EntityTypeSetup), on every node that may coordinate
/// it.
///
/// The coordinator asks one question at a time of each kind: for homes whenever a shard needs one,
/// for moves when regions or homes have changed (once a second at most) and every
/// `rebalance-interval`. It asks on the program's runtime, where a strategy may wait for others. An
/// error, a panic, no answer within 5 s, and a region that is not there (any more) leave things as
/// they are; after 100 ms, doubling to 5 s while nothing but that comes, it is asked again, about
/// another shard first if several wait. Shards of a node that leaves or is lost are asked about like
/// new ones; but those of one that leaves go to the nodes with the fewest after a failure, and once the
/// strategy has had 3 s for all of them together, since a node would lose what it does not hand over in
/// time. So a strategy whose answers take 10 ms places about 300 shards of a node that leaves; what it
/// wants elsewhere it can move later.
///
/// What it is shown is kept from one question to the next, and copied if the strategy still holds it by
/// then: let go of it with the answer.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
///
/// use ostraca::sharding::allocation::{
///     Allocations, Answer, ShardAllocationStrategy, StrategyError,
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
///     ) -> Answer<RegionId> {
///         let home = Self::home(shard, &seen);
///         Box::pin(async move { home.ok_or_else(|| StrategyError::new("there is no node")) })
///     }
///
///     fn rebalance(&self, seen: Arc<Allocations>) -> Answer<BTreeMap<ShardId, RegionId>> {
///         let misplaced = seen.homes().filter_map(|(shard, at)| {
///             Self::home(shard, &seen).filter(|to| *to != at).map(|to| (shard, to))
///         });
///         let moves: BTreeMap<ShardId, RegionId> = misplaced.take(10).collect();
///         Box::pin(async move { Ok(moves) })
///     }
/// }
/// ```
pub trait ShardAllocationStrategy: Send + Sync + 'static {
    /// What decisions are remembered to be made by.
    fn name(&self) -> &str {
        "the program's strategy"
    }

    /// The region for a shard without a home, one of `seen.regions`. `asker` has messages for it;
    /// `None`: its home is lost or leaves, or all shards are allocated at once.
    fn allocate(
        &self,
        shard: ShardId,
        asker: Option<RegionId>,
        seen: Arc<Allocations>,
    ) -> Answer<RegionId>;

    /// Shards to move, and where to. Those in `seen.moving` are not moved again.
    fn rebalance(&self, seen: Arc<Allocations>) -> Answer<BTreeMap<ShardId, RegionId>>;
}

/// A question to a strategy of the program's own.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// [`allocate`](ShardAllocationStrategy::allocate).
    Home {
        /// Which shard.
        shard: ShardId,
        /// Who has messages for it.
        asker: Option<RegionId>,
        /// What it may know.
        seen: Arc<Allocations>,
    },
    /// [`rebalance`](ShardAllocationStrategy::rebalance).
    Moves {
        /// What it may know.
        seen: Arc<Allocations>,
    },
}

/// What a strategy of the program's own says.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    /// To [`Asked::Home`].
    Home(RegionId),
    /// To [`Asked::Moves`].
    Moves(BTreeMap<ShardId, RegionId>),
}

impl Asked {
    /// Asks a strategy.
    ///
    /// # Errors
    /// As the strategy says.
    pub async fn of(self, strategy: &dyn ShardAllocationStrategy) -> Result<Advice, StrategyError> {
        match self {
            Self::Home { shard, asker, seen } => {
                strategy.allocate(shard, asker, seen).await.map(Advice::Home)
            }
            Self::Moves { seen } => strategy.rebalance(seen).await.map(Advice::Moves),
        }
    }
}
