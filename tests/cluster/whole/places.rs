//! Maps places of a simulation to addresses and nodes.

use ostraca::cluster::member::Address;
use ostraca_ddata::id::{NodeId, PeerKey, ReplicaId};

/// The address of the node at a place.
pub(crate) fn address(place: usize) -> Address {
    Address::new(format!("/ip4/10.0.0.{place}/tcp/7000")).expect("short")
}

/// Another name of the same place.
pub(crate) fn alias(place: usize) -> Address {
    Address::new(format!("/dns4/n{place}/tcp/7000")).expect("short")
}

pub(crate) fn addresses(places: impl IntoIterator<Item = usize>) -> Vec<Address> {
    places.into_iter().map(address).collect()
}

/// One name that resolves to all these places.
pub(crate) fn name_of_all(places: impl IntoIterator<Item = usize>) -> Address {
    let places: Vec<String> = places.into_iter().map(|place| place.to_string()).collect();
    Address::new(format!("/dns4/n{}/tcp/7000", places.join("-"))).expect("short")
}

/// The places that an address resolves to.
pub(super) fn dialled(address: &Address) -> Vec<usize> {
    let host = address.as_str().split('/').nth(2).unwrap_or_default();
    let places = host.strip_prefix("10.0.0.").or_else(|| host.strip_prefix('n'));
    places.into_iter().flat_map(|places| places.split('-')).flat_map(str::parse).collect()
}

/// The node at a place in one of its lives. Without a data directory each life is another peer.
pub(crate) fn node_at(place: usize, life: u32, keeps: bool) -> NodeId {
    let mut key = [(place + 1) as u8; 32];
    key[0] = (place >> 8) as u8;
    if !keeps {
        key[28..].copy_from_slice(&life.to_be_bytes());
    }
    let incarnation = ReplicaId::new((u64::from(life) << 16) | (place as u64 + 1));
    NodeId { peer: PeerKey::new(key), incarnation }
}

pub(crate) fn place_of(node: NodeId) -> usize {
    place_of_id(node.incarnation)
}

pub(super) fn place_of_id(id: ReplicaId) -> usize {
    (id.get() & 0xffff) as usize - 1
}
