//! Stop requests for shards. A stopped shard has no home, by an ordinary decision, until a message
//! needs it again (docs/protocol/sharding.md#a-stopping-shard-gets-no-home).
//!
//! A stopping shard gets no home before it has stopped. Otherwise a region that never received the
//! `Release` would adopt the new decision with everything that runs, and its confirmation would
//! pass for the end of the stop.

use ostraca_ddata::clock::Now;

use super::Coordinator;
use super::takeover::reason;
use crate::sharding::ids::{RegionId, ShardId};

impl Coordinator {
    /// Handles `Stop`: plans that these shards have no home, and answers each once its entities
    /// have ended. A repeated request does not stop a shard twice, unless the answer was lost and
    /// the shard got a home again. A shard that runs nowhere is answered in this batch.
    ///
    /// Several regions may wait for one stop; of each, the highest request number counts. The first
    /// request is dropped, and counted as `refused`, while the shard is planned to get a home or
    /// the cluster prepares for shutdown, because the region repeats it. Counts shards that the
    /// type does not have as `strange`. The sender need not be registered. The caller ignores the
    /// message unless the coordinator is active.
    pub(super) fn stop_shards(&mut self, now: Now, from: RegionId, wishes: &[(ShardId, u64)]) {
        let why = reason("a stop was requested");
        for (shard, wish) in wishes.iter().copied() {
            if shard.get() >= self.config.shards {
                self.stats.strange += 1;
                continue;
            }
            let waits = self.stops.get(&shard).is_some_and(|wanted| !wanted.is_empty());
            if !waits && !self.is_over(shard) && self.planned(shard).is_some() {
                self.wish_move(now, shard, None, &why);
                if self.pending_decisions.planned(shard) != Some(None) {
                    continue; // refused for now; the region repeats its request
                }
            }
            let known = self.stops.entry(shard).or_default().entry(from).or_default();
            *known = wish.max(*known);
            if self.is_over(shard) {
                self.tell_stopped(shard);
            }
        }
    }

    /// Whether a shard must end before it gets a home again: a stop was requested, no planned
    /// decision gives it a home, and its former homes have not all ended.
    pub(super) fn is_stopping(&self, shard: ShardId) -> bool {
        let waits = self.stops.get(&shard).is_some_and(|wanted| !wanted.is_empty());
        waits && self.planned(shard).is_none() && !self.is_over(shard)
    }

    /// Whether nothing of a shard runs anywhere, by a settled decision without a home, and no
    /// decision about it waits or is being written. `true` for a shard that never had a decision.
    fn is_over(&self, shard: ShardId) -> bool {
        let record = self.records.get(&shard);
        let rests = record.is_none_or(|it| it.is_settled() && it.home().region.is_none());
        rests && self.pending_decisions.planned(shard).is_none()
    }

    /// A decision is carried out, so the previous home has ended: answers the requests for the
    /// shard at the end of the batch and forgets them, also if the decision has a home. Does
    /// nothing while another decision waits or is being written, because that may be the stop
    /// itself.
    pub(super) fn tell_stopped(&mut self, shard: ShardId) {
        if self.pending_decisions.planned(shard).is_some() {
            return;
        }
        for (region, wish) in self.stops.remove(&shard).into_iter().flatten() {
            self.outbound.stopped(region, shard, wish);
        }
    }
}
