//! Shards with slow handlers, as the regions that host them report: planned moves leave them out
//! (docs/protocol/sharding.md#planned-moves-leave-out-slow-handlers).
//!
//! A shard leaves a region only after its last handler has ended. A move that is begun while a
//! handler does not end would keep all entities of the shard waiting, up to `handoff-timeout`.

use std::collections::BTreeSet;

use super::Coordinator;
use crate::sharding::ids::{RegionId, ShardId};
use crate::sharding::wire::SLOW_SHARDS_MAX;

impl Coordinator {
    /// Shards whose planned home, as in [`has_slow_handler`](Self::has_slow_handler), reports that
    /// a handler has run there for `slow-handler-after`. Reports of other regions do not count.
    pub fn with_slow_handlers(&self) -> impl Iterator<Item = ShardId> + '_ {
        let reports = self.slow.iter();
        let all = reports.flat_map(|(from, shards)| shards.iter().map(|shard| (*from, *shard)));
        all.filter(|(from, shard)| self.planned(*shard) == Some(*from)).map(|(_, shard)| shard)
    }

    /// Whether the shard's planned home, which is its present one unless the shard moves, reports a
    /// slow handler in it.
    #[must_use]
    pub fn has_slow_handler(&self, shard: ShardId) -> bool {
        let slow = self.planned(shard).and_then(|home| self.slow.get(&home));
        slow.is_some_and(|slow| slow.contains(&shard))
    }

    /// Notes a region's shards with slow handlers. A report replaces the previous one; an empty one
    /// removes it. Shards that the type does not have, and those after the first
    /// [`SLOW_SHARDS_MAX`], are dropped and not counted. After a change the next
    /// [`take_changed`](Self::take_changed) returns `None`: anything may have changed.
    pub(super) fn note_slow_handlers(&mut self, from: RegionId, shards: Vec<ShardId>) {
        let shards = shards.into_iter().filter(|shard| shard.get() < self.config.shards);
        let shards: BTreeSet<ShardId> = shards.take(SLOW_SHARDS_MAX).collect();
        let before = match shards.is_empty() {
            true => self.slow.remove(&from),
            false => self.slow.insert(from, shards),
        };
        if before.as_ref() != self.slow.get(&from) {
            self.pending_decisions.touch_all();
        }
    }
}
