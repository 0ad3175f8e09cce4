//! Messages about acknowledged decisions: `Host` to the home, `Release` to every predecessor and
//! `Announce` to all regions (docs/protocol/sharding.md#speak-after-the-acknowledgement). `Host`
//! and `Release` are repeated until the home confirms, because each may be lost
//! (docs/protocol/sharding.md#repeat-until-hosted).

use ostraca_ddata::clock::Now;

use super::Coordinator;
use crate::sharding::fault_injection::ShardingFault;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{HostShard, ReleaseShard, ShardRoute};

impl Coordinator {
    /// Sends `Release` to each predecessor and `Host` to the home, at the end of the batch. Every
    /// predecessor must answer, not only the last home; otherwise the new home would wait forever
    /// (docs/protocol/sharding.md#release-every-predecessor). Leaves out regions that are out of
    /// the configuration; others need not be registered, and get the message also if they have
    /// answered or the decision is settled. A decision without a home causes `Release` only. Does
    /// nothing for a shard without an acknowledged decision.
    pub(super) fn speak(&mut self, shard: ShardId) {
        let Some(record) = self.records.get(&shard) else { return };
        let ShardHome { generation, region, after, epoch } = record.home().clone();
        let last = after.iter().max_by_key(|(_, at)| **at).map(|(id, _)| *id);
        for (id, listed) in after.iter().map(|(id, listed)| (*id, *listed)) {
            let told =
                !self.fault_injection.has(ShardingFault::ReleaseLastHomeOnly) || last == Some(id);
            if told && !record.is_out(id, &self.installed) {
                self.outbound.release(id, ReleaseShard { shard, generation, to: region, listed });
            }
        }
        if let Some(home) = region
            && !record.is_out(home, &self.installed)
        {
            self.outbound.host(home, HostShard { shard, generation, after: after.into(), epoch });
        }
    }

    /// Tells all registered regions, proxies included, the home of the shard, or that it has none.
    /// This changes routes only and is sent once. Does nothing for a shard without an acknowledged
    /// decision.
    pub(super) fn announce(&mut self, shard: ShardId) {
        let Some(route) = self.route(shard) else { return };
        for region in self.regions.keys() {
            self.outbound.announce(*region, route);
        }
    }

    /// The home by the decision that a quorum holds, also if it is lost; `None` if there is no
    /// decision.
    pub(super) fn route(&self, shard: ShardId) -> Option<ShardRoute> {
        let home = self.records.get(&shard)?.home();
        Some(ShardRoute { shard, generation: home.generation, home: home.region })
    }

    /// Sends the messages of unsettled decisions that are due again; the next pause is twice as
    /// long, up to the longest one. The caller calls it at each tick of an active coordinator.
    pub(super) fn repeat(&mut self, now: Now) {
        for shard in self.repeats.take_due(now.mono, self.config.repeat) {
            self.speak(shard);
        }
    }

    /// Handles `Hosted`: a region hosts a shard at `at`. Settles the decision if the region is its
    /// home and `at` its generation. Every report, also of a region that is not registered, raises
    /// the highest generation that was ever hosted, which is not checked against decisions. Ignores
    /// a shard without an acknowledged decision.
    pub(super) fn confirmed(&mut self, now: Now, shard: ShardId, from: RegionId, at: Generation) {
        let record = self.records.get_mut(&shard);
        if record.is_some_and(|record| record.confirmed(from, at)) {
            self.settled(now, shard);
        }
    }

    /// The newest acknowledged decision of a shard is carried out, which its record shows already:
    /// ends its repetition, notes that in the history, marks the shard as changed, and answers stop
    /// requests for the shard, unless another decision about it waits or is being written.
    pub(super) fn settled(&mut self, now: Now, shard: ShardId) {
        self.pending_decisions.touch(shard);
        self.repeats.end(shard);
        if let Some(record) = self.records.get(&shard) {
            let generation = record.home().generation;
            self.note_settled(now, shard, generation);
            self.tell_stopped(shard);
        }
    }
}
