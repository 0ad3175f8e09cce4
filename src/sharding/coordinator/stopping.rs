//! Shards that somebody wants to stop: they live nowhere, by a decision like any other, until a
//! message needs them again (spec/sharding.md §13).
//!
//! A shard that stops gets no home before it has: a region that never heard of the stop would take
//! a new decision over with everything that runs, and its confirmation would pass for the end.

use ostraca_ddata::clock::Now;

use super::Coordinator;
use super::takeover::words;
use crate::sharding::ids::{RegionId, ShardId};

impl Coordinator {
    /// Stops these, and tells who asked of each once its entities have ended. Asked again it stops
    /// nothing twice, unless the answer was lost and the shard has come to live again.
    pub(super) fn stop_shards(&mut self, now: Now, from: RegionId, wishes: &[(ShardId, u64)]) {
        let why = words("somebody wanted it to stop");
        for (shard, wish) in wishes.iter().copied() {
            if shard.get() >= self.config.shards {
                self.stats.strange += 1;
                continue;
            }
            let waits = self.stops.get(&shard).is_some_and(|wanted| !wanted.is_empty());
            if !waits && !self.is_over(shard) && self.planned(shard).is_some() {
                self.wish_move(now, shard, None, &why);
                if self.desk.planned(shard) != Some(None) {
                    continue; // not now: it is asked for again
                }
            }
            let known = self.stops.entry(shard).or_default().entry(from).or_default();
            *known = wish.max(*known);
            if self.is_over(shard) {
                self.tell_stopped(shard);
            }
        }
    }

    /// Whether a shard is to have ended before it gets a home again.
    pub(super) fn is_stopping(&self, shard: ShardId) -> bool {
        let waits = self.stops.get(&shard).is_some_and(|wanted| !wanted.is_empty());
        waits && self.planned(shard).is_none() && !self.is_over(shard)
    }

    /// Whether nothing of a shard runs anywhere, and nothing is decided that would change it.
    fn is_over(&self, shard: ShardId) -> bool {
        let record = self.records.get(&shard);
        let rests = record.is_none_or(|it| it.is_settled() && it.home().region.is_none());
        rests && self.desk.planned(shard).is_none()
    }

    /// A decision is carried out: whoever lived there before has ended. One that is still to be
    /// written may be the stop itself.
    pub(super) fn tell_stopped(&mut self, shard: ShardId) {
        if self.desk.planned(shard).is_some() {
            return;
        }
        for (region, wish) in self.stops.remove(&shard).into_iter().flatten() {
            self.mail.stopped(region, shard, wish);
        }
    }
}
