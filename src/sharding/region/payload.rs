//! Which payload a start takes (spec/sharding.md §5 R5, spec/reference/order.md H5): that of the
//! latest stay, and no other. A stay that ended by removal has none.
//!
//! A region that was removed and not heard may have hosted up to what the decision lists, or was
//! only named. Who hosted before it and is a member still vouches for the latter: until it had
//! sealed its payload nobody else could start, so who was named last before that never did.

use bytes::Bytes;

use crate::sharding::bug::{Bug, Canary};
use crate::sharding::ids::{Generation, RegionId};

/// A stay of the shard that has ended, and what it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) from: RegionId,
    key: Generation,
    pub(super) payload: Option<Bytes>,
    end: End,
}

/// How it is known that a stay has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Its region says so. Until this decision nobody else can have hosted, if it vouches for that.
    Told(Option<Generation>),
    /// Its region was removed; there may have been no such stay.
    Removed,
}

impl Carried {
    /// What a stay at generation `key` left, by its region's own word; it sealed that when it had
    /// heard of `sealed`, if it can vouch for others.
    pub(super) const fn told(
        from: RegionId,
        key: Generation,
        payload: Option<Bytes>,
        sealed: Option<Generation>,
    ) -> Self {
        Self { from, key, payload, end: End::Told(sealed) }
    }

    /// A stay up to generation `key` left nothing.
    pub(super) const fn removed(from: RegionId, key: Generation) -> Self {
        Self { from, key, payload: None, end: End::Removed }
    }

    /// Whether nobody who was named last at `listed` has hosted since this stay.
    fn vouches(&self, listed: Generation) -> bool {
        matches!(self.end, End::Told(Some(sealed)) if self.key < listed && listed < sealed)
    }
}

/// The payload to take, and, if the latest stay ended by removal, what must be counted as lost: it
/// may have been handled by whoever hosted last. (Who hosted last and says so took what others
/// still hold, or counted it.)
pub(super) fn choose(candidates: Vec<Carried>, canary: Canary) -> (Option<Bytes>, Vec<Carried>) {
    let is_removed = |carried: &Carried| carried.end == End::Removed;
    let (mut removed, mut candidates): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(is_removed);
    if !canary.has(Bug::NamedCountsAsHosted) {
        removed.retain(|carried| !candidates.iter().any(|told| told.vouches(carried.key)));
    }
    if canary.has(Bug::EmptyDoesNotCount) {
        candidates.retain(|told| told.payload.is_some());
    }
    candidates.append(&mut removed);
    candidates.sort_by_key(|carried| carried.key);
    if canary.has(Bug::PayloadOfLowest) {
        candidates.reverse();
    }
    let Some(latest) = candidates.pop() else { return (None, Vec::new()) };
    let lost = if latest.end == End::Removed { candidates } else { Vec::new() };
    (latest.payload, lost)
}
