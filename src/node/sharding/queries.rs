//! Queries about entity types: homes of shards and the decisions behind them, live entities,
//! counts.
//!
//! Some queries read this node's machines; cluster queries ask all regions of a type
//! (docs/protocol/sharding.md#queries-and-stops).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{Sharding, ShardingUnavailable, end_of_wait};
use crate::sharding::explanation::{DecisionReports, Explanation, ExplanationSubject, Topic};
use crate::sharding::ids::{EntityId, EntityType, InvalidName, RegionId, ShardId};
use crate::sharding::machines::{
    ClusterQuery, ClusterQueryResult, ClusterShardingStats, ShardingInput, TypeMachines,
};
use crate::sharding::region::{HostingPhase, Region, RegionInput};

/// Pause before the home of a shard is looked up and asked again, after the shard did not live
/// there or the home did not answer. Also the margin between the deadline of
/// [`Sharding::stop_shards`] and that of the region.
const AGAIN: Duration = Duration::from_millis(50);

/// Maximum time for one answer from a home, within the timeout of the query; after that the home is
/// looked up again, because the shard may have another one by then.
const HOME_ANSWERS: Duration = Duration::from_secs(1);

/// Why a query about an entity type failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingQueryError {
    /// The name is not valid for an entity type or an entity.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The type was not started on this node.
    #[error(
        "{entity_type} was not started on this node: start it, or start_proxy to only route; {}",
        hosted(.host)
    )]
    NotStarted {
        /// Name of the entity type.
        entity_type: EntityType,
        /// A node that hosts the type; `None` if this node knows none, or has not looked.
        host: Option<RegionId>,
    },
    /// The last known home of the shard did not answer in time, or the shard does not live there.
    #[error("{home}, the home of shard {shard}, did not answer within {waited:?}; ask again")]
    NoAnswer {
        /// Number of the shard.
        shard: ShardId,
        /// The home of the shard, as far as this node knows.
        home: RegionId,
        /// The timeout of the query.
        waited: Duration,
    },
    /// The type has no shard with this number. Nothing was done.
    #[error("{entity_type} has the shards 0 to {}: there is no {shard}", shards - 1)]
    NoShard {
        /// Name of the entity type.
        entity_type: EntityType,
        /// The number that does not exist; the highest one if there are several.
        shard: ShardId,
        /// Number of shards of the type; at least 1.
        shards: u32,
    },
    /// Shards did not stop in time. This request is given up, but some may still stop.
    #[error(
        "{left} shards have not stopped within {waited:?}: a handler may run long, or no \
         coordinator is known; some may still stop"
    )]
    NotStopped {
        /// Number of shards that have not stopped; all, if it is not known which have stopped in
        /// time.
        left: usize,
        /// The timeout of the query.
        waited: Duration,
    },
    /// The node has stopped, or was started without membership. For queries about this node's
    /// region also if the region has left, because the node leaves.
    #[error(transparent)]
    Unanswered(#[from] ShardingUnavailable),
}

/// The end of the message of [`ShardingQueryError::NotStarted`]: the node that hosts the type or,
/// without a known one, where the caller can find it.
fn hosted(host: &Option<RegionId>) -> String {
    match host {
        Some(host) => format!("{host} hosts it"),
        None => "Cluster::members shows what each member hosts".to_owned(),
    }
}

/// State of a shard on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardState {
    /// Whether the shard lives here or is being drained, and by which decision it came.
    pub run: HostingPhase,
    /// Number of its entities, including those that only have buffered messages or a state that a
    /// move has transferred.
    pub entities: u64,
}

/// State of the region of a type on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionState {
    /// Shards that live on this node or are being drained here.
    pub shards: BTreeMap<ShardId, ShardState>, // ≤ number-of-shards
}

impl RegionState {
    /// Number of entities of all its shards.
    #[must_use]
    pub fn entities(&self) -> u64 {
        self.shards.values().map(|shard| shard.entities).sum()
    }
}

impl Sharding {
    /// Returns the shards of a type on this node, with their number of entities. A proxy has none,
    /// and neither has a region that has left. The entities are counted shortly after the shards
    /// are read: a shard that has left in between has 0.
    ///
    /// # Errors
    /// [`ShardingQueryError`] if the type was not started here, or the node has stopped.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::start(Config::default()).await?;
    /// let bells = node.sharding().start("bell", |_id| Bell).await?;
    /// bells.entity("big").ask(|reply| reply).await?;
    /// assert_eq!(node.sharding().region_state("bell").await?.entities(), 1);
    /// let home = bells.shard_home(bells.entity("big").shard()).expect("it has answered");
    /// assert_eq!(home.replica(), node.cluster().me().incarnation);
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn region_state(&self, entity_type: &str) -> Result<RegionState, ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        let named = entity_type.clone();
        let hosted = self.look(move |control| {
            let region = control.machines().of(&named).and_then(TypeMachines::region);
            region.into_iter().flat_map(Region::hosted).collect::<Vec<_>>()
        });
        let hosted = hosted.await?;
        let entities = self.0.region_registry.count(&entity_type);
        let state = |(shard, run)| {
            (shard, ShardState { run, entities: entities.get(&shard).copied().unwrap_or(0) })
        };
        Ok(RegionState { shards: hosted.into_iter().map(state).collect() })
    }

    /// Asks all regions of a type, this node's included, for the number of entities in each of
    /// their shards. Silent regions are asked again each second. Returns when all have answered, or
    /// after `timeout`; the result names the regions that have not answered. Regions whose nodes
    /// are removed meanwhile are named, but not waited for. Without a known region it returns at
    /// once, empty. Beyond 1,024 queries of this node at a time, it returns at once, with all
    /// regions unanswered.
    ///
    /// # Errors
    /// [`ShardingQueryError`] if the type was not started here, or the node stops.
    pub async fn cluster_sharding_stats(
        &self,
        entity_type: &str,
        timeout: Duration,
    ) -> Result<ClusterShardingStats, ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        match self.cluster_query(entity_type, ClusterQuery::Count, timeout).await? {
            ClusterQueryResult::Counted(stats) => Ok(stats),
            _ => Ok(ClusterShardingStats::default()), // never: the answer matches the question
        }
    }

    /// Asks the nodes that the question concerns, and waits for the answers for `within` at most:
    /// `Count` asks all hosts of the type, `Why` also the coordinator's node and this one, and
    /// `Exists` only the region that it names, as [`entity_exists`](Self::entity_exists) does in a
    /// loop. When the time is over, the result holds the answers that have arrived; this is no
    /// error. Beyond [`QUERIES_MAX`](crate::sharding::machines::QUERIES_MAX) queries at a time, a
    /// result without answers comes at once. Does not check that the type was started here. The
    /// query runs to its end even if this future is dropped.
    ///
    /// # Errors
    /// [`ShardingQueryError::Unanswered`] if the machines have ended or end meanwhile.
    async fn cluster_query(
        &self,
        entity_type: EntityType,
        question: ClusterQuery,
        within: Duration,
    ) -> Result<ClusterQueryResult, ShardingQueryError> {
        let (id, answer) = self.0.region_registry.await_cluster_query();
        self.tell(ShardingInput::Query { id, entity_type, question, within })?;
        Ok(answer.await.map_err(|_| ShardingUnavailable)?)
    }

    /// Explains why a shard, or the shard of an entity, lives where it lives, or which shards came
    /// to a node and left it. The result holds the newest decisions that this node's coordinator
    /// and region remember, and those of all nodes that host the type and answer within `timeout`;
    /// it names the nodes that do not. Each coordinator and each region reports at most the 64
    /// newest matching decisions. They remember `remembered-decisions`, and none from before a
    /// restart. The result is no error if no node answers, or remembers a decision. Its home is the
    /// one that this node knows after the answers; about a node there is neither shard nor home,
    /// and a node that is no member is no error.
    ///
    /// # Errors
    /// [`ShardingQueryError`] if the type was not started here or has no such shard, or the node
    /// stops. Once this node's region has left, the number of a shard is not checked.
    ///
    /// # Example
    /// ```
    /// use ostraca::node::sharding::ExplanationSubject;
    /// use ostraca::prelude::*;
    /// # use std::time::Duration;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::start(Config::default()).await?;
    /// let bells = node.sharding().start("bell", |_id| Bell).await?;
    /// bells.entity("big").ask(|reply| reply).await?;
    /// let sharding = node.sharding();
    /// let big = ExplanationSubject::entity("big")?;
    /// let why = sharding.explain("bell", big, Duration::from_secs(1)).await?;
    /// println!("{why}"); // entity "big" of bell is in shard 412, which lives on 5ad8…
    /// assert_eq!(why.shard, Some(bells.entity("big").shard()));
    /// assert_eq!(why.home, Some(node.cluster().me().incarnation.into()));
    /// assert_eq!(why.decisions.len(), 1);
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn explain(
        &self,
        entity_type: &str,
        about: ExplanationSubject,
        timeout: Duration,
    ) -> Result<Explanation, ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        if let ExplanationSubject::Shard(shard) = about
            && let Ok(shards) = self.of_region(&entity_type, Region::number_of_shards).await
            && shard.get() >= shards
        {
            return Err(ShardingQueryError::NoShard { entity_type, shard, shards });
        }
        let shard = match &about {
            ExplanationSubject::Shard(shard) => Some(*shard),
            ExplanationSubject::Entity(id) => self.0.region_registry.shard(&entity_type, id),
            ExplanationSubject::Node(_) => None,
        };
        let topic = match (&about, shard) {
            (ExplanationSubject::Node(node), _) => Topic::Region(RegionId::new(*node)),
            (_, Some(shard)) => Topic::Shard(shard),
            (_, None) => return Err(self.not_started(entity_type).await),
        };
        let found =
            self.cluster_query(entity_type.clone(), ClusterQuery::Why(topic), timeout).await?;
        let recalled = match found {
            ClusterQueryResult::Recalled(recalled) => recalled,
            _ => DecisionReports::default(), // never: the answer matches the question
        };
        let home = shard.and_then(|shard| self.0.region_registry.home(&entity_type, shard));
        Ok(Explanation { shard, home, ..Explanation::new(entity_type, about, recalled) })
    }

    /// The home of a shard, by the newest acknowledged decision that this node knows. `None` if the
    /// shard has no home yet, its home is lost, this node's region has not been registered yet, or
    /// there is no such shard. Does not wait. After the node has stopped, it is the last home known
    /// before.
    ///
    /// # Errors
    /// [`ShardingQueryError::Name`] if the name is invalid, [`ShardingQueryError::NotStarted`],
    /// without a host, if the type was not started here.
    pub fn shard_home(
        &self,
        entity_type: &str,
        shard: ShardId,
    ) -> Result<Option<RegionId>, ShardingQueryError> {
        let entity_type = self.started_here(entity_type)?;
        Ok(self.0.region_registry.home(&entity_type, shard))
    }

    /// Whether an entity is live on any node: it runs, has buffered messages, or has a state that a
    /// move has transferred. Does not start the entity. Returns `false` as well, without asking, if
    /// this node knows no home of its shard, at the begin or later. Looks up the home and asks
    /// again, for `timeout` at most, while the home does not answer within a second or the shard
    /// does not live there.
    ///
    /// # Errors
    /// [`ShardingQueryError::NoAnswer`] if no home of the shard answers within `timeout`; others,
    /// checked first, if the type was not started here, `id` is not valid, or the node stops.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # use std::time::Duration;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = Node::start(Config::default()).await?;
    /// let bells = node.sharding().start("bell", |_id| Bell).await?;
    /// let second = Duration::from_secs(1);
    /// assert!(!node.sharding().entity_exists("bell", "big", second).await?);
    /// bells.entity("big").ask(|reply| reply).await?;
    /// assert!(node.sharding().entity_exists("bell", "big", second).await?);
    /// let shard = bells.entity("big").shard();
    /// node.sharding().stop_shards("bell", [shard], second).await?;
    /// assert!(!node.sharding().entity_exists("bell", "big", second).await?);
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn entity_exists(
        &self,
        entity_type: &str,
        id: &str,
        timeout: Duration,
    ) -> Result<bool, ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        let entity = EntityId::new(id)?;
        let region_registry = &self.0.region_registry;
        let Some(shard) = region_registry.shard(&entity_type, &entity) else {
            return Err(self.not_started(entity_type).await);
        };
        let until = end_of_wait(timeout);
        loop {
            let Some(at) = region_registry.home(&entity_type, shard) else { return Ok(false) };
            let question = ClusterQuery::Exists { entity: entity.clone(), at };
            let left = until.saturating_duration_since(Instant::now());
            if let ClusterQueryResult::Lives(Some(lives)) =
                self.cluster_query(entity_type.clone(), question, left.min(HOME_ANSWERS)).await?
            {
                return Ok(lives);
            }
            if Instant::now() >= until {
                return Err(ShardingQueryError::NoAnswer { shard, home: at, waited: timeout });
            }
            tokio::time::sleep(AGAIN.min(left)).await; // the shard starts there or has moved on
        }
    }

    /// Stops shards, on any node. Their entities end as for a move, with the stop message and
    /// within `handoff-timeout`; buffered messages are kept for the next start. A stopped shard has
    /// no home until a message needs it. Returns when all shards have stopped, those that did not
    /// run included; some may have started again by then. Returns at once if there are no `shards`;
    /// one that is named twice counts once. If another call has requested the stop of a shard with
    /// a later end, that shard counts as not stopped until both are done. If the future is dropped,
    /// the shards stop all the same.
    ///
    /// # Errors
    /// In this order: the name is invalid or the type was not started here; the node has stopped or
    /// left; [`ShardingQueryError::NoShard`], without a stop of the others;
    /// [`ShardingQueryError::NotStopped`] if the stop takes longer than `timeout`. The node may
    /// also stop or leave during the wait.
    pub async fn stop_shards(
        &self,
        entity_type: &str,
        shards: impl IntoIterator<Item = ShardId>,
        timeout: Duration,
    ) -> Result<(), ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        let wanted: BTreeSet<ShardId> = shards.into_iter().collect();
        let shards = self.of_region(&entity_type, Region::number_of_shards).await?;
        if let Some(shard) = wanted.last().copied().filter(|shard| shard.get() >= shards) {
            return Err(ShardingQueryError::NoShard { entity_type, shard, shards });
        }
        let asked = wanted.len();
        let mut progress = self.0.region_registry.progress();
        let until = end_of_wait(timeout);
        // The region's deadline is later than this one, so that a shard that is missing from its
        // list before this deadline has stopped and was not given up.
        let (shards, within) = (wanted.iter().copied().collect(), timeout.saturating_add(AGAIN));
        let fact = RegionInput::Stop { shards, within };
        self.tell(ShardingInput::Fact { entity_type: entity_type.clone(), fact })?;
        loop {
            let wanted = wanted.clone();
            let stopping = move |region: &Region| {
                region.stopping().filter(|shard| wanted.contains(shard)).count()
            };
            let left = self.of_region(&entity_type, stopping).await?;
            let late = Instant::now().saturating_duration_since(until);
            let changed = tokio::time::timeout_at(until, progress.changed());
            match (left, late < AGAIN) {
                (0, true) => return Ok(()),
                (0, false) => {
                    return Err(ShardingQueryError::NotStopped { left: asked, waited: timeout });
                }
                _ => {}
            }
            match changed.await {
                Ok(Ok(())) if !progress.borrow().ended => {}
                Ok(_) => return Err(ShardingUnavailable.into()),
                Err(_) => return Err(ShardingQueryError::NotStopped { left, waited: timeout }),
            }
        }
    }

    /// Reads the region of a type on this node. Fails if the machines have not started the type, or
    /// its region has left: it has handed over everything or has stopped. Also fails, as
    /// [`look`](Self::look), if the machines have ended.
    async fn of_region<T: Send + 'static>(
        &self,
        entity_type: &EntityType,
        say: impl FnOnce(&Region) -> T + Send + 'static,
    ) -> Result<T, ShardingUnavailable> {
        let named = entity_type.clone();
        self.look(move |control| {
            let region = control.machines().of(&named).and_then(TypeMachines::region);
            region.filter(|region| !region.has_left()).map(say)
        })
        .await?
        .ok_or(ShardingUnavailable)
    }

    /// The regions that host a type, as announced by the members: also those that host no shard at
    /// the moment, drain or are unreachable, and this node's own. Proxies are not included. Empty
    /// before this node has joined a cluster.
    ///
    /// # Errors
    /// [`ShardingQueryError`] if the type was not started here, or the node has stopped.
    pub async fn current_regions(
        &self,
        entity_type: &str,
    ) -> Result<BTreeSet<RegionId>, ShardingQueryError> {
        let entity_type = self.known_here(entity_type).await?;
        Ok(self.look(move |control| control.machines().regions(&entity_type).collect()).await?)
    }

    /// Returns the name of a type that was started on this node, at once and also after the node
    /// has stopped. The error for another type names a node that hosts it, if this node knows one;
    /// for that it asks the machines. An invalid name is reported first.
    pub(super) async fn known_here(
        &self,
        entity_type: &str,
    ) -> Result<EntityType, ShardingQueryError> {
        match self.started_here(entity_type) {
            Err(ShardingQueryError::NotStarted { entity_type, .. }) => {
                Err(self.not_started(entity_type).await)
            }
            known => known,
        }
    }

    /// Like [`known_here`](Self::known_here), without waiting: the error names no host.
    fn started_here(&self, entity_type: &str) -> Result<EntityType, ShardingQueryError> {
        let entity_type = EntityType::new(entity_type)?;
        if self.started().contains_key(&entity_type) {
            Ok(entity_type)
        } else {
            Err(ShardingQueryError::NotStarted { entity_type, host: None })
        }
    }

    /// Makes the error for a type that was not started here, with the known host of the type that
    /// has the lowest id; with none if the machines have ended.
    async fn not_started(&self, entity_type: EntityType) -> ShardingQueryError {
        let named = entity_type.clone();
        let host = self.look(move |control| control.machines().regions(&named).next()).await;
        ShardingQueryError::NotStarted { entity_type, host: host.unwrap_or_default() }
    }
}
