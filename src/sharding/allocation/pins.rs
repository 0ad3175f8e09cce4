//! Pins: the addresses at which shards should be hosted, as a replicated map of the type next to
//! its guarded homes (docs/protocol/sharding.md#allocation).
//!
//! Pins are written to a majority. A node that becomes coordinator reads them from a majority once,
//! so it knows every pin acknowledged before. A pin is a preference: it starts no shard by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::{Key, Pattern};
use ostraca_ddata::replicator::request::{
    ReadConsistency, ReplicatorRequest, SubscriptionId, Update, WriteConsistency,
};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{DataType as _, LWWMap};

use crate::cluster::member::Address;
use crate::sharding::ids::{EntityType, ShardId};

/// The replicated map of pins. Of two pins of one shard the later one counts, by the wall clocks of
/// the nodes that set them.
pub type Pins = LWWMap<ShardId, Address>;

/// A request of the coordinator's node to the Replicator about pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PinsRequest {
    /// Subscribe to changes of the pins.
    Watch,
    /// Update the local copy from a majority: a success means that this is done. The answer's value
    /// is not used; [`Read`](Self::Read) follows, also after a failure.
    Catch {
        /// Maximum time to wait.
        within: Duration,
    },
    /// Read the local copy.
    Read,
}

/// The key of the pins of one entity type.
#[derive(Clone, Debug)]
pub struct PinsKey(Key<Pins>);

impl PinsKey {
    /// The key of this type.
    #[must_use]
    pub fn new(entity_type: &EntityType) -> Self {
        Self(Key::new(&format!("sharding/{entity_type}/pins")))
    }

    /// The Replicator's key of these pins.
    #[must_use]
    pub const fn key(&self) -> &Key<Pins> {
        &self.0
    }

    /// The request that carries out `ask`: a subscription, or a read from a majority or of the
    /// local copy. `id` names the subscription and is used for [`Watch`](PinsRequest::Watch) only.
    #[must_use]
    pub fn request(&self, id: SubscriptionId, ask: PinsRequest) -> ReplicatorRequest {
        let key = self.0.name().clone();
        let consistency = match ask {
            PinsRequest::Watch => {
                return ReplicatorRequest::Subscribe {
                    subscription: id,
                    pattern: Pattern::Exact(key),
                };
            }
            PinsRequest::Catch { within } => ReadConsistency::majority(within),
            PinsRequest::Read => ReadConsistency::Local,
        };
        ReplicatorRequest::Get { key, shape: Some(Pins::shape()), consistency }
    }

    /// A request that applies [`change`] to the pins and writes them to a majority. Pins of shards
    /// that `wanted` does not name stay. If the change fails, none of it is applied.
    #[must_use]
    pub fn changing(&self, wanted: Wanted, within: Duration) -> ReplicatorRequest {
        let change = move |pins: &mut Edit<'_, Pins>| change(pins, &wanted);
        ReplicatorRequest::Update(Update::new(&self.0, WriteConsistency::majority(within), change))
    }
}

/// Changes of pins: an address pins the shard, `None` removes its pin.
pub type Wanted = BTreeMap<ShardId, Option<Address>>;

/// Applies changes to the pins, in the order of the shards. A removal removes only a pin that this
/// replica has seen; a shard without a pin is no error. Shard numbers are not checked here.
///
/// # Errors
/// [`EditError`] of the map, at the first change that fails. The caller must then drop the whole
/// edit, as the Replicator does: it contains the changes before.
pub fn change(pins: &mut Edit<'_, Pins>, wanted: &Wanted) -> Result<(), EditError> {
    for (shard, address) in wanted {
        match address {
            Some(address) => pins.insert(shard, address)?,
            None => {
                pins.remove(shard)?;
            }
        }
    }
    Ok(())
}

/// The pins of all shards below `shards`. Entries that do not decode are left out: only a program
/// that writes to the key directly can create them.
#[must_use]
pub fn of(pins: &Pins, shards: u32) -> BTreeMap<ShardId, Address> {
    let read = pins.iter().flatten();
    read.filter(|(shard, _)| shard.get() < shards).collect()
}

/// [`of`] for a value of the Replicator; `None` if the key holds data of another type.
#[must_use]
pub fn told(value: &Value, shards: u32) -> Option<BTreeMap<ShardId, Address>> {
    value.get::<Pins>().map(|pins| of(&pins, shards))
}
