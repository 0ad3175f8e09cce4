//! Pins: the program chooses the nodes of shards, for types whose `allocation-strategy` is
//! `external`.
//!
//! They correspond to Akka's external allocation client (`updateShardLocations`, `shardLocations`);
//! see docs/protocol/sharding.md#allocation.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Sharding, ShardingQueryError, ShardingUnavailable, end_of_wait};
use crate::cluster::member::Address;
use crate::node::control::machine::Control;
use crate::node::replicator::{GetError, ReadMajority, Replicator, UpdateError, WriteMajority};
use crate::sharding::allocation::pins::{self, PinsKey, Wanted};
use crate::sharding::ids::{EntityType, RegionId, ShardId};

/// Why pins were not changed, may not have been changed, or could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The type was not started on this node, has no such shard, or the node has stopped. Nothing
    /// was pinned.
    #[error(transparent)]
    Query(#[from] ShardingQueryError),
    /// The strategy of the type ignores pins. Nothing was pinned.
    #[error(
        "{entity_type} follows no pins: set its allocation-strategy = \"external\" on all nodes; \
         nothing was pinned"
    )]
    NotExternal {
        /// Name of the entity type.
        entity_type: EntityType,
    },
    /// The write to the replicated data failed; its message states whether the change may be made.
    /// Also if the read before a removal took all the time.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The read of the replicated data failed. Nothing was changed.
    #[error(transparent)]
    Get(#[from] GetError),
}

impl From<ShardingUnavailable> for PinError {
    fn from(unanswered: ShardingUnavailable) -> Self {
        Self::Query(unanswered.into())
    }
}

/// The node to which a shard is pinned, and whether the shard lives there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Address of the node to which the shard is pinned.
    pub address: Address,
    /// The region at that address; `None` while no node at the address may host the type, because
    /// there is none, or it does not offer the type, drains, is not Up or is unreachable.
    pub region: Option<RegionId>,
    /// The present home of the shard, as far as this node knows; `None` if it knows none.
    pub home: Option<RegionId>,
}

impl Pin {
    /// Whether the shard lives where it is pinned to, by the knowledge of this node. `false` also
    /// if the shard lives there, but its node drains or is unreachable, because
    /// [`region`](Self::region) is `None` then.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.home.is_some() && self.home == self.region
    }
}

impl Sharding {
    /// Pins shards of a type to addresses of nodes. Returns when a majority of the nodes holds the
    /// pins, so that every coordinator will know them, even if this node fails. Shards that live
    /// elsewhere move to the pinned nodes, `least-shard.max-moves-in-flight` at a time; shards
    /// without a home are allocated there. A later pin of a shard replaces an earlier one, by the
    /// clocks of the nodes that set them. If `pins` names a shard twice, the last address counts.
    ///
    /// An address is that of a present or future [`Member`](crate::cluster::member::Member). Until
    /// a node at the address hosts the type, the shard stays where it is or, without a home, is
    /// allocated where it is requested; [`pins`](Self::pins) and the event `sharding.pins_wait`
    /// report such pins. The next node at the address gets the shard.
    ///
    /// The type's `allocation-strategy` must be `external`. Pins are stored as replicated data
    /// under `sharding/<type>/pins` and last as long as the cluster.
    ///
    /// # Errors
    /// [`PinError`]; its message states whether shards were pinned. In this order: an invalid or
    /// unknown type, [`PinError::NotExternal`], the highest shard if it does not exist, the write.
    ///
    /// # Example
    /// ```
    /// use ostraca::prelude::*;
    /// use ostraca::sharding::config::AllocationStrategyName;
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
    /// config.sharding.allocation_strategy = AllocationStrategyName::External;
    /// let node = Node::start(config).await?;
    /// node.cluster().wait_until_up().await?;
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

    /// Removes pins. Returns when a majority of the nodes holds the change. Every pin that was
    /// acknowledged before is removed; one that is set at the same time may stay. A shard without a
    /// pin is no error. The shards stay where they are until another decision moves them.
    ///
    /// # Errors
    /// [`PinError`] as of [`pin_shards`](Self::pin_shards), with [`PinError::Get`] before the
    /// write; its message states whether pins were changed.
    pub async fn unpin_shards(
        &self,
        entity_type: &str,
        shards: impl IntoIterator<Item = ShardId>,
        within: Duration,
    ) -> Result<(), PinError> {
        let wanted = shards.into_iter().map(|shard| (shard, None)).collect();
        self.change_pins(entity_type, wanted, within).await
    }

    /// Sets and removes pins, all in one write to a majority. Nothing is written unless the type
    /// was started here, the strategy of this node follows pins, and every shard exists, checked in
    /// this order. The error names the highest shard of `wanted`. The checks do not count against
    /// `within`.
    async fn change_pins(
        &self,
        entity_type: &str,
        wanted: Wanted,
        within: Duration,
    ) -> Result<(), PinError> {
        let entity_type = self.known_here(entity_type).await?;
        let named = entity_type.clone();
        let follows = move |control: &Control| {
            let of_type = control.machines().of(&named);
            of_type.and_then(|it| Some((it.region()?.number_of_shards(), it.follows_pins())))
        };
        let (shards, follows) = self.look(follows).await?.ok_or(ShardingUnavailable)?;
        if !follows {
            return Err(PinError::NotExternal { entity_type });
        }
        if let Some(&shard) = wanted.keys().next_back().filter(|shard| shard.get() >= shards) {
            return Err(ShardingQueryError::NoShard { entity_type, shard, shards }.into());
        }
        let key = PinsKey::new(&entity_type);
        write_pins(&self.0.replicator, &key, wanted, within).await
    }

    /// Reads the pins of a type from a majority of the nodes. The regions and homes in the result
    /// are those that this node knows, read after the pins. Works for every strategy: a type that
    /// follows no pins may still have stored ones. Empty if no pin is set. Stored pins of shards
    /// that the type does not have are contained.
    ///
    /// # Errors
    /// [`PinError`], but never [`PinError::NotExternal`].
    pub async fn pins(
        &self,
        entity_type: &str,
        within: Duration,
    ) -> Result<BTreeMap<ShardId, Pin>, PinError> {
        let entity_type = self.known_here(entity_type).await?;
        let key = PinsKey::new(&entity_type);
        let pins = self.0.replicator.get(key.key(), ReadMajority::within(within)).await?;
        let Some(pins) = pins else { return Ok(BTreeMap::new()) };
        let named = entity_type.clone();
        let regions = self.look(move |control| regions(control, &named)).await?;
        let pin = |(shard, address): (ShardId, Address)| {
            let region = regions.get(&address).copied();
            let home = self.0.region_registry.home(&entity_type, shard);
            (shard, Pin { address, region, home })
        };
        Ok(pins::of(&pins, u32::MAX).into_iter().map(pin).collect())
    }
}

/// Writes changes of pins to a majority.
///
/// A removal has an effect only on the pins that this replica has seen. With at least one removal
/// it therefore first reads the pins of a majority, which updates the local copy. The write gets
/// the rest of `within`, perhaps nothing. If the read fails, nothing is written.
async fn write_pins(
    replicator: &Replicator,
    key: &PinsKey,
    wanted: Wanted,
    within: Duration,
) -> Result<(), PinError> {
    let until = end_of_wait(within);
    if wanted.values().any(Option::is_none) {
        replicator.get(key.key(), ReadMajority::within(within)).await?;
    }
    let level = WriteMajority::within(until.saturating_duration_since(Instant::now()));
    replicator.update(key.key(), level, move |edit| pins::change(edit, &wanted)).await?;
    Ok(())
}

/// Regions that may host the type, by the addresses of their nodes. Nodes that drain, are not Up or
/// are unreachable are left out. Of two such nodes at one address the one with the higher id
/// remains. Empty as long as this node knows no cluster.
fn regions(control: &Control, entity_type: &EntityType) -> BTreeMap<Address, RegionId> {
    let Some(state) = control.membership().state() else { return BTreeMap::new() };
    let regions = control.machines().regions(entity_type);
    let able = regions.filter_map(|region| {
        let member = state.members.get(&region.replica())?;
        state.may_take(region.replica()).then(|| (member.address.clone(), region))
    });
    able.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ostraca_ddata::data::Registry;
    use ostraca_ddata::fault_injection::FaultInjection;
    use ostraca_ddata::id::ReplicaId;
    use ostraca_ddata::replicator::ReplicatorParameters;
    use ostraca_ddata::replicator::config::ReplicatorConfig;
    use ostraca_ddata::replicator::epoch::{Epoch, EpochId, EpochSettings};

    use super::*;
    use crate::node::parts::{ReplicatorSetup, start_replicator};
    use crate::node::routes::Fact;

    /// Two of three replicas never answer. The removal fails before it changes anything.
    #[tokio::test]
    async fn removal_needs_the_pins_of_a_majority() {
        let machine = ReplicatorParameters {
            me: ReplicaId::new(1),
            config: ReplicatorConfig::default(),
            registry: Registry::new(),
            seed: 1,
            fault_injection: FaultInjection::none(),
        };
        let part = start_replicator(ReplicatorSetup::new(machine), ()).await.expect("in memory");
        let id = EpochId { generation: 1, number: 1 };
        let members = (1..=3).map(ReplicaId::new).collect();
        let epoch = Epoch::founding(id, members, EpochSettings::default()).expect("distinct");
        part.facts.tell(Fact::Found(Arc::new(epoch)));
        let key = PinsKey::new(&EntityType::new("bell").expect("a name"));
        let write = |to: Option<Address>| {
            let wanted = Wanted::from([(ShardId::new(3), to)]);
            write_pins(&part.handle, &key, wanted, Duration::from_millis(1))
        };
        let here = Address::new("/ip4/10.0.0.1/tcp/1").expect("short");
        let pinned = write(Some(here)).await;
        assert!(matches!(pinned, Err(PinError::Update(_))), "{pinned:?}");
        let removed = write(None).await;
        assert!(matches!(removed, Err(PinError::Get(_))), "{removed:?}");
    }
}
