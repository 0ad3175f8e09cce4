//! C4: Host to the home, Release to everybody who may still host, Announce to all; the first two
//! again until the home confirms.

use ostraca_ddata::clock::Now;

use super::Coordinator;
use crate::sharding::bug::Bug;
use crate::sharding::home::ShardHome;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{HostShard, ReleaseShard, ShardRoute};

impl Coordinator {
    /// Says what the decision demands.
    pub(super) fn speak(&mut self, shard: ShardId) {
        let Some(record) = self.records.get(&shard) else { return };
        let ShardHome { generation, region, after, epoch } = record.home().clone();
        let last = after.iter().max_by_key(|(_, at)| **at).map(|(id, _)| *id);
        for (id, listed) in after.iter().map(|(id, listed)| (*id, *listed)) {
            let told = !self.canary.has(Bug::ReleaseLastHomeOnly) || last == Some(id);
            if told && !record.is_out(id, &self.installed) {
                self.mail.release(id, ReleaseShard { shard, generation, to: region, listed });
            }
        }
        if let Some(home) = region
            && !record.is_out(home, &self.installed)
        {
            self.mail.host(home, HostShard { shard, generation, after: after.into(), epoch });
        }
    }

    /// Tells everybody where the shard lives: routes only, said once.
    pub(super) fn announce(&mut self, shard: ShardId) {
        let Some(route) = self.route(shard) else { return };
        for region in self.regions.keys() {
            self.mail.announce(*region, route);
        }
    }

    pub(super) fn route(&self, shard: ShardId) -> Option<ShardRoute> {
        let home = self.records.get(&shard)?.home();
        Some(ShardRoute { shard, generation: home.generation, home: home.region })
    }

    /// Says again what is not confirmed.
    pub(super) fn repeat(&mut self, now: Now) {
        for shard in self.repeats.take_due(now.mono, self.config.repeat) {
            self.speak(shard);
        }
    }

    /// A region hosts a shard.
    pub(super) fn confirmed(&mut self, now: Now, shard: ShardId, from: RegionId, at: Generation) {
        let record = self.records.get_mut(&shard);
        if record.is_some_and(|record| record.confirmed(from, at)) {
            self.settled(now, shard);
        }
    }

    pub(super) fn settled(&mut self, now: Now, shard: ShardId) {
        self.desk.touch(shard);
        self.repeats.end(shard);
        if let Some(record) = self.records.get(&shard) {
            let generation = record.home().generation;
            self.note_settled(now, shard, generation);
            self.tell_stopped(shard);
        }
    }
}
