//! Sums over all keys, maintained with every change: what two replicas compare first.
//!
//! A key's item is a keyed hash of its name and of the digest of its context, never of its
//! content. Items add up in 65,536 buckets by the key's hash, buckets in 256 tops, tops in a root,
//! so a change costs three additions and equal replicas compare one number, for one key or a
//! million. A copy costs 256 pointers: a sealed snapshot keeps one.

use std::sync::Arc;

use crate::encoded::hash_of;
use crate::key::KeyName;

/// Leaves under one top, and tops.
pub(super) const FANOUT: usize = 256;

/// See the module's page.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    root: u64,
    tops: Vec<(u64, Arc<[u64; FANOUT]>)>, // always FANOUT
}

impl Default for Sums {
    fn default() -> Self {
        Self { root: 0, tops: vec![(0, Arc::new([0; FANOUT])); FANOUT] }
    }
}

/// The bucket of a key with this hash: its 16 highest bits, so that buckets are ranges of the
/// store's order.
pub(super) const fn bucket(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The bucket of a key.
pub(super) fn bucket_of(key: &KeyName) -> u16 {
    bucket(hash_of(key.as_str().as_bytes()))
}

impl Sums {
    /// Replaces one key's item; 0 stands for "no item".
    pub(super) fn replace(&mut self, hash: u64, old: u64, new: u64) {
        let change = new.wrapping_sub(old);
        let bucket = bucket(hash);
        let (top, leaves) = &mut self.tops[usize::from(bucket >> 8)];
        self.root = self.root.wrapping_add(change);
        *top = top.wrapping_add(change);
        let leaf = &mut Arc::make_mut(leaves)[usize::from(bucket & 0xff)];
        *leaf = leaf.wrapping_add(change);
    }

    pub(super) const fn root(&self) -> u64 {
        self.root
    }

    pub(super) fn tops(&self) -> Vec<u64> {
        self.tops.iter().map(|(top, _)| *top).collect()
    }

    pub(super) fn top(&self, top: u8) -> u64 {
        self.tops[usize::from(top)].0
    }

    pub(super) fn leaves(&self, top: u8) -> &[u64; FANOUT] {
        &self.tops[usize::from(top)].1
    }
}
