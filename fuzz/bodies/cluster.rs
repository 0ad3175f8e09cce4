//! Arbitrary bytes as messages of membership and leases: each decodes or is refused, without a panic,
//! and a decoded message encodes to bytes that decode to the same message.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use ostraca::cluster::gossip::wire::{decode, encode};
use ostraca::cluster::lease::LeaseMessage;
use ostraca::cluster::wire::ClusterMessage;

/// Returns a hash of the kinds of the messages that the bytes are.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    if let Ok(message) = decode::<ClusterMessage>(bytes) {
        discriminant(&message).hash(&mut outcome);
        let again =
            decode::<ClusterMessage>(&encode(&message)).expect("an encoded message decodes");
        assert_eq!(again, message);
    }
    decode::<LeaseMessage>(bytes).is_ok().hash(&mut outcome);
    outcome.finish()
}
