//! Shards where the program says: pins, for types whose `allocation-strategy` is `external`
//! (spec/sharding.md §11). What is Akka's external allocation client, `updateShardLocations` and
//! `shardLocations`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{QueryError, Sharding, Unanswered};
use crate::cluster::member::Address;
use crate::node::control::machine::Control;
use crate::node::replicator::{GetError, ReadMajority, UpdateError, WriteMajority};
use crate::sharding::allocation::pins::{self, PinsKey, Wanted};
use crate::sharding::ids::{EntityType, RegionId, ShardId};

/// Why pins were not, or perhaps not, changed or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The type is not known here, or has no such shard. Nothing was pinned.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Its strategy would not look at them. Nothing was pinned.
    #[error(
        "{entity_type} follows no pins: set its allocation-strategy = \"external\" on all nodes; \
         nothing was pinned"
    )]
    NotExternal {
        /// Which.
        entity_type: EntityType,
    },
    /// Too few nodes hold the change, or none; it says which.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// Too few nodes have answered.
    #[error(transparent)]
    Get(#[from] GetError),
}

impl From<Unanswered> for PinError {
    fn from(unanswered: Unanswered) -> Self {
        Self::Query(unanswered.into())
    }
}

/// Where a shard is pinned to, and how far that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The address of a node, as members have it.
    pub address: Address,
    /// The region there; `None`: no node there may host the type now, and the pin waits for one.
    pub region: Option<RegionId>,
    /// Where the shard lives, as far as this node knows.
    pub home: Option<RegionId>,
}

impl Pin {
    /// Whether the shard lives where it is pinned to.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.home.is_some() && self.home == self.region
    }
}

impl Sharding {
    /// Pins shards of a type to addresses of nodes. Ends when a majority of the nodes holds that:
    /// from then on every coordinator knows it, whatever becomes of this node. Shards that live
    /// elsewhere move there, `least-shard.max-moves-in-flight` at a time; those without a home
    /// get theirs there. An earlier pin of the same shard is replaced, by the clocks of the nodes
    /// that set the two.
    ///
    /// An address is that of a [`Member`](crate::cluster::member::Member), of one that may come
    /// later, too: until a node there hosts the type, the shard lives where it is, or, without a
    /// home, where it is asked for; [`pins`](Self::pins) and the event `sharding.pins_wait` say
    /// that it waits. The next node at the address gets it.
    ///
    /// The type's `allocation-strategy` must be `external`. Pins are replicated data of the cluster
    /// under `sharding/<type>/pins`: they last as long as the cluster.
    ///
    /// # Errors
    /// [`PinError`]; its sentences say whether something was pinned.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// use ostraca::sharding::config::StrategyName;
    /// # struct Bell;
    /// # impl Entity for Bell {
    /// #     type Message = Reply<()>;
    /// #     async fn handle(&mut self, ring: Reply<()>, _: &mut Context<'_, Self>) {
    /// #         ring.send(());
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut config = Config::default();
    /// config.sharding.allocation_strategy = StrategyName::External;
    /// let node = Node::start(config).await?;
    /// node.cluster().up().await?;
    /// let here = node.cluster().members()[0].address.clone();
    /// let (sharding, bells) = (node.sharding(), node.sharding().start("bell", |_| Bell).await?);
    /// let shard = bells.entity("big").shard();
    /// sharding.pin_shards("bell", [(shard, here)], secs(5)).await?;
    /// bells.entity("big").ask(|reply| reply).await?;
    /// let pins = sharding.pins("bell", secs(5)).await?;
    /// assert_eq!(pins[&shard].home, Some(node.cluster().me().incarnation.into()));
    /// sharding.unpin_shards("bell", [shard], secs(5)).await?;
    /// assert!(sharding.pins("bell", secs(5)).await?.is_empty());
    /// # node.stop().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn pin_shards(
        &self,
        entity_type: &str,
        pins: impl IntoIterator<Item = (ShardId, Address)>,
        within: Duration,
    ) -> Result<(), PinError> {
        let wanted = pins.into_iter().map(|(shard, address)| (shard, Some(address))).collect();
        self.change_pins(entity_type, wanted, within).await
    }

    /// Removes pins. The shards stay where they are until something else moves them. Ends when a
    /// majority of the nodes holds that.
    ///
    /// # Errors
    /// [`PinError`]; its sentences say whether something was changed.
    pub async fn unpin_shards(
        &self,
        entity_type: &str,
        shards: impl IntoIterator<Item = ShardId>,
        within: Duration,
    ) -> Result<(), PinError> {
        let wanted = shards.into_iter().map(|shard| (shard, None)).collect();
        self.change_pins(entity_type, wanted, within).await
    }

    async fn change_pins(
        &self,
        entity_type: &str,
        wanted: Wanted,
        within: Duration,
    ) -> Result<(), PinError> {
        let entity_type = self.known_here(entity_type)?;
        let named = entity_type.clone();
        let follows = move |control: &Control| {
            let of_type = control.machines().of(&named);
            of_type.and_then(|it| Some((it.region()?.number_of_shards(), it.follows_pins())))
        };
        let (shards, follows) = self.look(follows).await?.ok_or(Unanswered)?;
        if !follows {
            return Err(PinError::NotExternal { entity_type });
        }
        if let Some(&shard) = wanted.keys().next_back().filter(|shard| shard.get() >= shards) {
            return Err(QueryError::NoShard { entity_type, shard, shards }.into());
        }
        let key = PinsKey::new(&entity_type);
        let (level, replicator) = (WriteMajority::within(within), &self.0.replicator);
        replicator.update(key.key(), level, move |edit| pins::change(edit, &wanted)).await?;
        Ok(())
    }

    /// Where shards of a type are pinned to, as a majority of the nodes holds it, and how far that
    /// is, as this node knows.
    ///
    /// # Errors
    /// [`PinError`]. Nothing was changed.
    pub async fn pins(
        &self,
        entity_type: &str,
        within: Duration,
    ) -> Result<BTreeMap<ShardId, Pin>, PinError> {
        let entity_type = self.known_here(entity_type)?;
        let key = PinsKey::new(&entity_type);
        let pins = self.0.replicator.get(key.key(), ReadMajority::within(within)).await?;
        let Some(pins) = pins else { return Ok(BTreeMap::new()) };
        let named = entity_type.clone();
        let regions = self.look(move |control| regions(control, &named)).await?;
        let pin = |(shard, address): (ShardId, Address)| {
            let region = regions.get(&address).copied();
            let home = self.0.hostings.home(&entity_type, shard);
            (shard, Pin { address, region, home })
        };
        Ok(pins::of(&pins, u32::MAX).into_iter().map(pin).collect())
    }
}

/// Regions that may host a type, by the addresses of their nodes.
fn regions(control: &Control, entity_type: &EntityType) -> BTreeMap<Address, RegionId> {
    let Some(state) = control.membership().state() else { return BTreeMap::new() };
    let regions = control.machines().regions(entity_type);
    let able = regions.filter_map(|region| {
        let member = state.members.get(&region.replica())?;
        state.may_take(region.replica()).then(|| (member.address.clone(), region))
    });
    able.collect()
}
