//! Choice of the payload that a start takes: the payload of the latest tenure and no other. A
//! tenure that ended by removal of its region left none
//! (docs/protocol/sharding.md#a-start-takes-one-payload).
//!
//! A removed region that sent no release may have hosted up to the generation in `after`, or was
//! only named. A member that hosted before it can prove the latter: nobody could start before that
//! member had sealed its payload, so a region that was last named before the seal never hosted
//! (docs/protocol/sharding.md#a-member-vouches-for-named-regions).

use bytes::Bytes;

use crate::sharding::fault_injection::{ShardingFault, ShardingFaultInjection};
use crate::sharding::ids::{Generation, RegionId};

/// An ended tenure of the shard and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PayloadCandidate {
    pub(super) from: RegionId,
    key: Generation, // of the tenure; for a removed region the highest one that it may have had
    pub(super) payload: Option<Bytes>, // `None`: the tenure ended with nothing to hand over
    end: TenureEnd,
}

/// Why a tenure counts as ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TenureEnd {
    /// Its region released the shard. With a `sealed` generation the region also vouches that
    /// nobody hosted between its last tenure and that decision.
    Told(Option<Generation>),
    /// Its region was removed. The tenure may never have existed.
    Removed,
}

impl PayloadCandidate {
    /// A tenure at generation `key` whose region released the shard. `sealed` is the highest
    /// generation that the region knew when it sealed the payload; `None` if it cannot vouch for
    /// others.
    pub(super) const fn told(
        from: RegionId,
        key: Generation,
        payload: Option<Bytes>,
        sealed: Option<Generation>,
    ) -> Self {
        Self { from, key, payload, end: TenureEnd::Told(sealed) }
    }

    /// A possible tenure up to generation `key` of a removed region. It left no payload.
    pub(super) const fn removed(from: RegionId, key: Generation) -> Self {
        Self { from, key, payload: None, end: TenureEnd::Removed }
    }

    /// Whether this tenure proves that a region which was last named at `listed` has not hosted
    /// since: its payload was sealed after that decision, which came after the tenure. A removed
    /// region proves nothing.
    fn vouches(&self, listed: Generation) -> bool {
        matches!(self.end, TenureEnd::Told(Some(sealed)) if self.key < listed && listed < sealed)
    }
}

/// Returns the payload of the latest tenure, `None` if it left none, and the candidates whose
/// payloads are lost, also those without a payload. A removed region that a member vouches for does
/// not count as a tenure. Of equal generations that of a removed region is the latest.
///
/// If the latest tenure ended by removal, there is no payload, and all others are lost: the caller
/// must count their payloads, because the removed region may have handled them. If the latest host
/// released the shard itself, none is lost: it had taken or counted the payloads that others still
/// keep. Without candidates both results are empty.
pub(super) fn choose(
    candidates: Vec<PayloadCandidate>,
    fault_injection: ShardingFaultInjection,
) -> (Option<Bytes>, Vec<PayloadCandidate>) {
    let is_removed = |carried: &PayloadCandidate| carried.end == TenureEnd::Removed;
    let (mut removed, mut candidates): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(is_removed);
    if !fault_injection.has(ShardingFault::NamedCountsAsHosted) {
        removed.retain(|carried| !candidates.iter().any(|told| told.vouches(carried.key)));
    }
    if fault_injection.has(ShardingFault::EmptyDoesNotCount) {
        candidates.retain(|told| told.payload.is_some());
    }
    candidates.append(&mut removed);
    candidates.sort_by_key(|carried| carried.key);
    if fault_injection.has(ShardingFault::PayloadOfLowest) {
        candidates.reverse();
    }
    let Some(latest) = candidates.pop() else { return (None, Vec::new()) };
    let lost = if latest.end == TenureEnd::Removed { candidates } else { Vec::new() };
    (latest.payload, lost)
}
