//! Which payload a start takes (spec/sharding.md §5 R5, spec/reference/order.md H5): that of the
//! latest stay, and no other. A stay that ended by removal has none.

use bytes::Bytes;

use crate::sharding::bug::{Bug, Canary};
use crate::sharding::ids::{Generation, RegionId};

/// A stay of the shard that has ended, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) from: RegionId,
    key: Generation,
    pub(super) payload: Option<Bytes>,
}

impl Carried {
    /// What a stay up to generation `key` left.
    pub(super) const fn new(from: RegionId, key: Generation, payload: Option<Bytes>) -> Self {
        Self { from, key, payload }
    }
}

/// The payload to take, and, if the latest stay left nothing, what must be counted as lost: it
/// may have been handled by whoever hosted last.
pub(super) fn choose(candidates: Vec<Carried>, canary: Canary) -> (Option<Bytes>, Vec<Carried>) {
    let mut candidates = candidates;
    candidates.sort_by_key(|carried| carried.key);
    if canary.has(Bug::PayloadOfLowest) {
        candidates.reverse();
    }
    let latest = candidates.pop().and_then(|carried| carried.payload);
    let lost = if latest.is_none() { candidates } else { Vec::new() };
    (latest, lost)
}
