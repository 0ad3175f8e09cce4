//! Pins: where somebody wants shards to be, as replicated data of the cluster beside the guarded
//! homes (spec/sharding.md §11).
//!
//! Written with a majority and read with one by whoever begins to coordinate, so that a pin that
//! was acknowledged is known to every later coordinator. A pin is a wish: it starts no shard.

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::data::Value;
use ostraca_ddata::key::{Key, Pattern};
use ostraca_ddata::replicator::request::{
    ReadConsistency, Request, SubscriptionId, Update, WriteConsistency,
};
use ostraca_ddata::types::edit::{Edit, EditError};
use ostraca_ddata::types::{DataType as _, LWWMap};

use crate::cluster::member::Address;
use crate::sharding::ids::{EntityType, ShardId};

/// What the replicated map of pins holds. Of two pins of a shard the later one counts, by the
/// clocks of the nodes that set them.
pub type Pins = LWWMap<ShardId, Address>;

/// What a coordinator's node asks of the Replicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AskPins {
    /// To be told of every change.
    Watch,
    /// Whether this node's copy is as new as a majority's: it is, once that is answered.
    Catch {
        /// How long to wait.
        within: Duration,
    },
    /// This node's copy.
    Read,
}

/// Where the pins of one entity type are kept.
#[derive(Clone, Debug)]
pub struct PinsKey(Key<Pins>);

impl PinsKey {
    /// Those of a type.
    #[must_use]
    pub fn new(entity_type: &EntityType) -> Self {
        Self(Key::new(&format!("sharding/{entity_type}/pins")))
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &Key<Pins> {
        &self.0
    }

    /// The request that carries out what is asked. `id` names the subscription.
    #[must_use]
    pub fn request(&self, id: SubscriptionId, ask: AskPins) -> Request {
        let key = self.0.name().clone();
        let consistency = match ask {
            AskPins::Watch => {
                return Request::Subscribe { subscription: id, pattern: Pattern::Exact(key) };
            }
            AskPins::Catch { within } => ReadConsistency::majority(within),
            AskPins::Read => ReadConsistency::Local,
        };
        Request::Get { key, shape: Some(Pins::shape()), consistency }
    }

    /// The request that changes pins, [`change`] on a majority.
    #[must_use]
    pub fn changing(&self, wanted: Wanted, within: Duration) -> Request {
        let change = move |pins: &mut Edit<'_, Pins>| change(pins, &wanted);
        Request::Update(Update::new(&self.0, WriteConsistency::majority(within), change))
    }
}

/// Pins to be set, and removed where there is none.
pub type Wanted = BTreeMap<ShardId, Option<Address>>;

/// Sets some pins and removes others.
///
/// # Errors
/// [`EditError`] of the map.
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

/// What a map of pins says of the shards that there are. What does not decode is none: nobody but
/// a program that writes to the key itself makes such a pin.
#[must_use]
pub fn of(pins: &Pins, shards: u32) -> BTreeMap<ShardId, Address> {
    let read = pins.iter().flatten();
    read.filter(|(shard, _)| shard.get() < shards).collect()
}

/// The same of what the Replicator tells; `None` if it holds other data.
#[must_use]
pub fn told(value: &Value, shards: u32) -> Option<BTreeMap<ShardId, Address>> {
    value.get::<Pins>().map(|pins| of(&pins, shards))
}
