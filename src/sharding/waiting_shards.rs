//! Shards whose messages wait for room in a lane, and the turns in which they send them once the
//! lane has room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::entity::Entity;
use super::gate::MailboxLimitCheck;
use super::ids::{RegionId, ShardId};
use super::runtime::Runtime;

/// Bytes after which the turn of a shard ends that sends to a lane with room again, so that other
/// shards have theirs. The message that reaches this number is still sent.
const TURN_BYTES: usize = 64 << 10;

/// Shards of one entity type that wait for room, by the region at the other end of the lane.
#[derive(Default)]
pub(super) struct WaitingShards {
    lanes: Mutex<BTreeMap<RegionId, LaneQueue>>, // ≤ regions whose lane was full
}

/// Shards that wait for room in one lane.
#[derive(Default)]
struct LaneQueue {
    waiting: BTreeSet<ShardId>, // ≤ shards
    last: Option<ShardId>,      // got the first turn when the lane had room last
}

impl WaitingShards {
    /// Adds a shard: the lane to `to` has no room for one of its messages. Must be added before the
    /// last try to send it, so that room which is reported meanwhile reaches the shard.
    ///
    /// Adds nothing if `is_removed`: the removal of `to` is not reported again, so that nothing
    /// would free the entry.
    pub(super) fn add(&self, to: RegionId, shard: ShardId, is_removed: impl FnOnce() -> bool) {
        let mut lanes = self.lanes();
        // Under the lock: a removal that begins after this check is followed by `remove`.
        if !is_removed() {
            lanes.entry(to).or_default().waiting.insert(shard);
        }
    }

    /// Forgets the lane to a region that left the configuration. From before this call on,
    /// `is_removed` of [`add`](Self::add) must be true for the region.
    pub(super) fn remove(&self, region: RegionId) {
        self.lanes().remove(&region);
    }

    /// Takes all shards that wait for the lane to `to`, in the order of their turns; none if the
    /// lane is unknown. They no longer wait then: a shard that is refused again adds itself again.
    fn take(&self, to: RegionId) -> VecDeque<ShardId> {
        self.lanes().get_mut(&to).map(LaneQueue::take).unwrap_or_default()
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<RegionId, LaneQueue>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LaneQueue {
    /// Takes all waiting shards, in the order of their numbers, beginning behind the first one of
    /// the last call. So the first one changes each time, because the lane may have room for one
    /// only.
    fn take(&mut self) -> VecDeque<ShardId> {
        let mut before = std::mem::take(&mut self.waiting);
        let after = match self.last {
            Some(last) => before.split_off(&ShardId::new(last.get() + 1)),
            None => BTreeSet::new(),
        };
        let turns: VecDeque<ShardId> = after.into_iter().chain(before).collect();
        self.last = turns.front().copied();
        turns
    }
}

impl<E: Entity> Runtime<E> {
    /// The lane to `to` has room. Shards send their waiting messages in turns of [`TURN_BYTES`],
    /// each under its own lock, until the lane refuses its message or none waits; a refused shard
    /// waits for the next report. A shard that uses another lane by now sends down that. Then all
    /// callers that wait for room, on whatever lane, may try again, also if no shard waited.
    pub(super) fn room(self: &Arc<Self>, to: RegionId) {
        let mut turns = self.waiting_shards.take(to);
        while let Some(id) = turns.pop_front() {
            let Some(shard) = self.shard(id) else { continue };
            if shard.pass(self, MailboxLimitCheck::Exempt, |gate, gate_effects| {
                gate.room(TURN_BYTES, gate_effects)
            }) {
                turns.push_back(id);
            }
        }
        self.room_here();
    }
}

#[cfg(test)]
mod tests {
    use ostraca_ddata::id::ReplicaId;

    use super::*;

    #[test]
    fn removed_region_gets_no_entry_again() {
        let (waiting, shard) = (WaitingShards::default(), ShardId::new(3));
        let region = RegionId::new(ReplicaId::new(7));
        waiting.add(region, shard, || false);
        assert_eq!(waiting.take(region), [shard]);
        waiting.add(region, shard, || false);
        waiting.remove(region);
        waiting.add(region, shard, || true);
        assert!(waiting.lanes().is_empty(), "nothing would free the entry");
    }
}
