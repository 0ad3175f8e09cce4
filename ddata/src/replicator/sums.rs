//! The digest tree of a replica, which anti-entropy compares first.
//!
//! A key's item is a keyed hash of its name and of the digest of its causal context, never of its
//! content. Items are summed in 65,536 buckets by the hash of the key, buckets in 256 tops, tops in
//! one root. A change therefore costs three additions, and two equal replicas compare one number,
//! whether they hold one key or a million. Leaves are shared: a copy of the tree, such as the one
//! in a sealed snapshot, costs 256 pointers. See
//! docs/protocol/replication.md#digests-hash-contexts-under-a-secret-seed.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::encoded::hash_of;
use crate::key::KeyName;

/// Number of tops, and of leaves (buckets) under each top.
pub(super) const FANOUT: usize = 256;

/// Sums (modulo 2^64) of the items of all keys: root, tops and leaves.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    root: u64,
    tops: Vec<u64>,                  // always FANOUT
    leaves: Vec<Arc<[u64; FANOUT]>>, // below each top
}

/// The sums of no keys, all 0.
impl Default for Sums {
    fn default() -> Self {
        let empty = Arc::new([0; FANOUT]); // shared until something is added
        Self { root: 0, tops: vec![0; FANOUT], leaves: vec![empty; FANOUT] }
    }
}

/// The bucket of a key with this hash: its 16 highest bits, so that buckets are ranges of the
/// store's order.
pub(super) const fn bucket(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The bucket of a key, by the hash of its name.
pub(super) fn bucket_of(key: &KeyName) -> u16 {
    bucket(hash_of(key.as_str().as_bytes()))
}

/// The item of a key, a keyed hash. `seed` is the secret one of the configuration, the same at all
/// members; if it changes, all items are computed anew. `context` is the digest of the key's
/// context under it. The result may be 0 by chance, which does no harm: it adds nothing.
///
/// The name is hashed under the seed, too. Two names that collide in the unkeyed hash of the
/// store's order can be found in seconds, and keys that were written equally often have equal
/// contexts. If their items were equal, a replica that lacks one of the keys would compare as equal
/// to a replica that lacks the other.
pub(super) fn item(key: &KeyName, context: u64, seed: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&xxh3_64_with_seed(key.as_str().as_bytes(), seed).to_le_bytes());
    bytes[8..].copy_from_slice(&context.to_le_bytes());
    xxh3_64_with_seed(&bytes, seed)
}

impl Sums {
    /// Replaces the item of a key with this hash in root, top and leaf. 0 means "no item". `old`
    /// must be the item that was added for the key, otherwise the sums stay wrong until they are
    /// recomputed; nothing checks it. A leaf block that a snapshot shares is copied first.
    pub(super) fn replace(&mut self, hash: u64, old: u64, new: u64) {
        let change = new.wrapping_sub(old);
        let bucket = bucket(hash);
        let at = usize::from(bucket >> 8);
        self.root = self.root.wrapping_add(change);
        self.tops[at] = self.tops[at].wrapping_add(change);
        let leaf = &mut Arc::make_mut(&mut self.leaves[at])[usize::from(bucket & 0xff)];
        *leaf = leaf.wrapping_add(change);
    }

    pub(super) const fn root(&self) -> u64 {
        self.root
    }

    pub(super) fn tops(&self) -> &[u64] {
        &self.tops
    }

    /// The sums of the 256 buckets under a top.
    pub(super) fn leaves(&self, top: u8) -> &[u64; FANOUT] {
        &self.leaves[usize::from(top)]
    }
}

/// Number of sums compared at once, because nearly all are equal.
const TOGETHER: usize = 16;

/// The places at which two lists of FANOUT sums differ, in ascending order, with both sums (mine
/// first). The caller has checked the lengths: places that only one list has are left out.
pub(super) fn differing<'a>(
    mine: &'a [u64],
    theirs: &'a [u64],
) -> impl Iterator<Item = (u8, u64, u64)> + 'a {
    let parts = mine.chunks(TOGETHER).zip(theirs.chunks(TOGETHER));
    let parts = (0..=u8::MAX).step_by(TOGETHER).zip(parts).filter(|(_, (a, b))| a != b);
    let sums = parts.flat_map(|(first, (a, b))| (first..=u8::MAX).zip(a.iter().zip(b)));
    sums.filter(|(_, (a, b))| a != b).map(|(at, (a, b))| (at, *a, *b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two names with one hash in the store's order.
    const COLLIDING: [&str; 2] = [
        "aatejfdaaaaaaaaatbefiiaaaaaaaaaafwpmhvbaaaaaaaaaqjhdrubaaaaaaaaa\
         yrztvbbaaaaaaaaalrvyiidaaaaaaaaaxeucmbaaaaaaaaaahmjmoteaaaaaaaaa",
        "acqmdwcaaaaaaaaavhprjncaaaaaaaaacmreyxdaaaaaaaaakttkrtfaaaaaaaaa\
         ofzvxlaaaaaaaaaavtmxjgdaaaaaaaaaqkifqacaaaaaaaaafgminbgaaaaaaaaa",
    ];

    #[test]
    fn names_that_collide_unkeyed_have_different_items() {
        let [one, other] = COLLIDING.map(KeyName::new);
        let hash = |key: &KeyName| hash_of(key.as_str().as_bytes());
        assert_eq!(hash(&one), hash(&other), "the fixture collides");
        for seed in [1, 7, u64::MAX] {
            assert_ne!(item(&one, 9, seed), item(&other, 9, seed), "seed {seed}");
        }
    }

    #[test]
    fn differing_finds_every_difference() {
        let mine: Vec<u64> = (0..256).collect();
        assert_eq!(differing(&mine, &mine).count(), 0);
        let mut theirs = mine.clone();
        for at in [0, 15, 16, 17, 128, 254, 255] {
            theirs[at] += 1_000;
        }
        let found: Vec<_> = differing(&mine, &theirs).collect();
        let expected = [0_u8, 15, 16, 17, 128, 254, 255];
        assert_eq!(found, expected.map(|at| (at, u64::from(at), u64::from(at) + 1_000)));
    }
}
