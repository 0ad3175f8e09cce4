//! Arbitrary bytes as messages of membership, leases, sharding, singletons and the management
//! protocol: each decodes or is refused, without a panic.

use ostraca::cluster::gossip::wire::{decode, encode};
use ostraca::cluster::lease::LeaseMessage;
use ostraca::cluster::wire::ClusterMessage;
use ostraca::ddata::encoded::from_msgpack;
use ostraca::ddata::id::ReplicaId;
use ostraca::management::wire::{Answer, Request};
use ostraca::node::wiring::sharding::{SHARDING, SINGLETON, SURVEY, hear};

pub(crate) fn run(bytes: &[u8]) {
    if let Ok(message) = decode::<ClusterMessage>(bytes) {
        let again =
            decode::<ClusterMessage>(&encode(&message)).expect("an encoded message decodes");
        assert_eq!(again, message);
    }
    let _ = decode::<LeaseMessage>(bytes);
    for part in [SHARDING, SINGLETON, SURVEY] {
        let _ = hear(ReplicaId::new(2), (part, "counter"), bytes);
    }
    let _ = from_msgpack::<Request>(bytes);
    let _ = from_msgpack::<Answer>(bytes);
}
