//! Arbitrary bytes as requests of tools and answers of nodes: each decodes or is refused, without a
//! panic.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use ostraca::ddata::encoded::from_peer;
use ostraca::management::wire::{AdminRequest, AdminResponse};

/// Returns a hash of the kinds of the messages that the bytes are.
pub(crate) fn run(bytes: &[u8]) -> u64 {
    let mut outcome = DefaultHasher::new();
    let request = from_peer::<AdminRequest>(bytes).ok();
    request.as_ref().map(discriminant).hash(&mut outcome);
    let answer = from_peer::<AdminResponse>(bytes).ok();
    answer.as_ref().map(discriminant).hash(&mut outcome);
    outcome.finish()
}
