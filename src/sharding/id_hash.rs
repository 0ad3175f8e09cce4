//! The hash by which a shard finds an entity: keyed at random, once per process.
//!
//! End users often choose entity ids. Under a hash that an attacker can compute, thousands of ids
//! with one hash are made in seconds, and each look-up among them compares all of them under the
//! shard's lock. SipHash-1-3 has a 128-bit key and no known way to find collisions without it. A
//! seeded XXH3 would be faster, but has inputs that collide under many seeds.
//!
//! The value never leaves the process. It does not choose the shard: all nodes must agree about
//! that, see [`extractor`](super::extractor).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The hash of an entity id, equal for equal ids in one process.
#[inline]
pub(super) fn hash(id: &[u8]) -> u64 {
    let mut hasher = KEY.build_hasher();
    hasher.write(id);
    hasher.finish()
}
