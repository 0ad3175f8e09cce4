//! Hash of entity ids for look-ups within a shard, with one random key per process.
//!
//! End users often choose entity ids. If an attacker can compute the hash, they can generate
//! thousands of ids with equal hashes in seconds, and every look-up of one compares all of them
//! under the shard's lock. `RandomState` (SipHash-1-3 in today's std) has a 128-bit key, and no way
//! to find collisions without the key is known. A seeded XXH3 would be faster, but there are inputs
//! that collide under many seeds.
//!
//! The hash never leaves the process. The shard of an entity is chosen by another hash, without a
//! key, because all nodes must compute the same shard; see [`extractor`](super::extractor).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Hashes an entity id, with the key that the first call in the process draws. Equal for all types
/// and shards; stable only within one process.
#[inline]
pub(super) fn hash(id: &[u8]) -> u64 {
    let mut hasher = KEY.build_hasher();
    hasher.write(id);
    hasher.finish()
}
