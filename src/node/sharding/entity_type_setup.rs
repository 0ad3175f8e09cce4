//! Start of an entity type: [`EntityTypeSetup`], and the start methods of [`Sharding`].

use std::fmt;
use std::sync::Arc;

use super::{NotStarted, Sharding, StartingType};
use crate::cluster::member::NAME_BYTES_MAX;
use crate::sharding::allocation::ShardAllocationStrategy;
use crate::sharding::config::ShardingConfig as Settings;
use crate::sharding::entity::{Entity, Supervision};
use crate::sharding::extractor::{ByMessage, Extractor, HashExtractor};
use crate::sharding::fault_injection::ShardingFaultInjection;
use crate::sharding::ids::{EntityId, EntityType};
use crate::sharding::machines::Hosts;
use crate::sharding::shard_region::{RegionSetup, ShardRegion};

/// Setup of an entity type; [`new`](Self::new) takes the required parts.
pub struct EntityTypeSetup<E: Entity> {
    /// Name of the type, equal on all nodes: 1 to 128 bytes without a slash. Checked at the start.
    pub name: String,
    /// Creates a new instance of the entity with the given id.
    pub factory: Box<dyn Fn(&EntityId) -> E + Send + Sync>,
    /// Reaction to a panic of an entity.
    pub supervision: Supervision,
    /// Maps ids to shards and messages to ids, and defines the number of shards. `None`: the hash
    /// and the number of shards from the settings, and no message has an id of its own. Must be
    /// equal on all nodes.
    pub extractor: Option<Arc<dyn Extractor<E::Message>>>,
    /// Settings of this type. `None`: those of the node's `[cluster.sharding]`.
    pub settings: Option<Settings>,
    /// Strategy that allocates and rebalances shards. `None`: the strategy from the settings. It is
    /// called on the node that coordinates the type, so set it on every node that may coordinate.
    pub allocation_strategy: Option<Arc<dyn ShardAllocationStrategy>>,
}

impl<E: Entity> EntityTypeSetup<E> {
    /// Creates a setup with the settings of the node and the defaults. Checks nothing.
    #[must_use]
    pub fn new(name: &str, factory: impl Fn(&EntityId) -> E + Send + Sync + 'static) -> Self {
        Self {
            name: name.to_owned(),
            factory: Box::new(factory),
            supervision: Supervision::default(),
            extractor: None,
            settings: None,
            allocation_strategy: None,
        }
    }
}

impl<E: Entity> fmt::Debug for EntityTypeSetup<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntityTypeSetup").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Sharding {
    /// Starts an entity type on this node, or returns its handle if it was started before; the
    /// first setup then stays in force, and the new one is dropped. The handle can be used at once:
    /// messages sent before this node has joined a cluster are buffered.
    ///
    /// On a node without the type's `role` the region only routes. If the future is dropped after
    /// its first poll, the type is started all the same.
    ///
    /// # Errors
    /// [`NotStarted`]; this call has started nothing then. Also for a type that was started before,
    /// it is [`NotStarted::Stopped`] once the node has stopped.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Default)]
    /// struct Counter(i64);
    ///
    /// #[derive(Serialize, Deserialize)]
    /// enum Command {
    ///     Add(i64),
    ///     Get(Reply<i64>),
    /// }
    ///
    /// impl Entity for Counter {
    ///     type Message = Command;
    ///     async fn handle(&mut self, command: Command, _: &mut Context<'_, Self>) {
    ///         match command {
    ///             Command::Add(n) => self.0 += n,
    ///             Command::Get(reply) => reply.send(self.0),
    ///         }
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::start(Config::default()).await?; // a cluster of its own
    /// let counters = node.sharding().start("counter", |_id| Counter::default()).await?;
    /// counters.entity("alice").tell(Command::Add(2))?;
    /// assert_eq!(counters.entity("alice").ask(Command::Get).await?, 2);
    /// node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn start<E: Entity>(
        &self,
        name: &str,
        factory: impl Fn(&EntityId) -> E + Send + Sync + 'static,
    ) -> Result<ShardRegion<E>, NotStarted> {
        self.start_with(EntityTypeSetup::new(name, factory)).await
    }

    /// Starts an entity type with a complete setup; see [`start`](Self::start).
    ///
    /// # Errors
    /// [`NotStarted`]; this call has started nothing then.
    pub async fn start_with<E: Entity>(
        &self,
        setup: EntityTypeSetup<E>,
    ) -> Result<ShardRegion<E>, NotStarted> {
        let region = self.make(setup, Hosts::Shards)?;
        self.settled().await?;
        Ok(region)
    }

    /// Starts a proxy for an entity type: this node routes messages but hosts no shard of the type.
    /// If [`start`](Self::start) has started the type here, returns that handle instead, and the
    /// node continues to host the type.
    ///
    /// The proxy uses the node's settings of the type and no extractor of the program. If the hosts
    /// use another extractor or number of shards, no coordinator registers the proxy, and its
    /// messages wait (`sharding.settings_differ`). For such a type call
    /// [`start_proxy_with`](Self::start_proxy_with).
    ///
    /// # Errors
    /// [`NotStarted`]; this call has started nothing then.
    pub async fn start_proxy<E: Entity>(&self, name: &str) -> Result<ShardRegion<E>, NotStarted> {
        let factory = |_: &EntityId| -> E { unreachable!("no shard ever starts at a proxy") };
        self.start_proxy_with(EntityTypeSetup::new(name, factory)).await
    }

    /// Starts a proxy with a complete setup; see [`start_proxy`](Self::start_proxy). Extractor and
    /// settings must be those of the hosts: the coordinator registers no region with other ones
    /// (event `sharding.settings_differ` of the log), and a proxy that is not registered learns no
    /// homes, so its messages wait. The factory is never called; supervision and allocation
    /// strategy have no effect.
    ///
    /// # Errors
    /// [`NotStarted`]; this call has started nothing then.
    ///
    /// # Example
    /// ```
    /// use ostraca::node::sharding::NotStarted;
    /// use ostraca::prelude::*;
    /// use ostraca::sharding::config::ShardingConfig;
    /// # struct Order;
    /// # impl Entity for Order {
    /// #     type Message = ();
    /// #     async fn handle(&mut self, (): (), _: &mut Context<'_, Self>) {}
    /// # }
    ///
    /// /// Used by hosts and proxies, so that their settings are equal.
    /// fn orders() -> EntityTypeSetup<Order> {
    ///     let settings = ShardingConfig { number_of_shards: 100, ..ShardingConfig::default() };
    ///     EntityTypeSetup { settings: Some(settings), ..EntityTypeSetup::new("order", |_| Order) }
    /// }
    ///
    /// async fn host(node: &Node) -> Result<ShardRegion<Order>, NotStarted> {
    ///     node.sharding().start_with(orders()).await
    /// }
    ///
    /// async fn proxy(node: &Node) -> Result<ShardRegion<Order>, NotStarted> {
    ///     node.sharding().start_proxy_with(orders()).await
    /// }
    /// ```
    pub async fn start_proxy_with<E: Entity>(
        &self,
        setup: EntityTypeSetup<E>,
    ) -> Result<ShardRegion<E>, NotStarted> {
        let region = self.make(setup, Hosts::Nothing)?;
        self.settled().await?;
        Ok(region)
    }

    /// Checks a setup and starts the type, unless it was started before; does not wait for the
    /// machines. The name and the extractor's name are checked, in this order, even for a type that
    /// was started before; all other checks follow in [`start_type`](Self::start_type). An
    /// extractor of the program replaces `number-of-shards` of the settings. Its methods and the
    /// name of the strategy are called before the lock of the started types is taken. The region is
    /// published last, also that of an earlier start, so that references in received messages find
    /// it only after the machines' queue holds its start.
    fn make<E: Entity>(
        &self,
        setup: EntityTypeSetup<E>,
        hosts: Hosts,
    ) -> Result<ShardRegion<E>, NotStarted> {
        let EntityTypeSetup {
            name,
            factory,
            supervision,
            extractor,
            settings,
            allocation_strategy: strategy,
        } = setup;
        let entity_type = EntityType::new(&name)?;
        let mut settings = settings.unwrap_or_else(|| self.0.settings.of(&entity_type));
        if let Some(extractor) = &extractor {
            settings.number_of_shards = extractor.shards();
        }
        let name = extractor.as_ref().map(|extractor| extractor.name().into_owned());
        let name = name.unwrap_or_else(|| settings.extractor.name().to_owned());
        if name.len() > NAME_BYTES_MAX {
            return Err(NotStarted::LongExtractor { bytes: name.len() });
        }
        let strategy = strategy.map(|strategy| (strategy.name().into(), strategy));
        let spec = StartingType { extractor: name.into(), strategy, hosts };
        let region = self.start_type(&entity_type, settings, spec, |settings, world| {
            let extractor = extractor.unwrap_or_else(|| {
                let hash = HashExtractor::new(settings.extractor, settings.number_of_shards);
                let hash = hash.expect("the settings are checked");
                Arc::new(ByMessage::new(hash, |_: &E::Message| None))
            });
            let setup = RegionSetup {
                entity_type: entity_type.clone(),
                me: self.0.me,
                settings,
                message_bytes_max: self.0.message_bytes_max,
                supervision,
                extractor,
                factory,
                asks: self.0.asks.clone(),
                fault_injection: ShardingFaultInjection::none(),
            };
            let region = ShardRegion::new(setup, world);
            let hosting = region.hosting();
            (region, hosting)
        })?;
        region.publish(); // later inputs reach the machines after the start of this region
        Ok(region)
    }
}
