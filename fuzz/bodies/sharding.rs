//! Arbitrary bytes as messages between the machines of sharding, singletons and surveys: each decodes
//! or is refused, without a panic.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use ostraca::ddata::id::ReplicaId;
use ostraca::node::routes::sharding::{CLUSTER_QUERY, SHARDING, SINGLETON, decode};

/// Returns a hash of the kinds of the messages that the bytes are.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    for part in [SHARDING, SINGLETON, CLUSTER_QUERY] {
        let heard = decode(ReplicaId::new(2), (part, "counter"), bytes);
        heard.ok().as_ref().map(discriminant).hash(&mut outcome);
    }
    outcome.finish()
}
