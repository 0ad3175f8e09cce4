//! Outgoing messages of one batch of inputs, joined per receiver and kind.

use std::collections::{BTreeMap, BTreeSet};

use ostraca_ddata::id::ReplicaId;

use super::CoordinatorOutbox;
use super::port::CoordinatorOutput;
use crate::sharding::ids::{Generation, RegionId, ShardId};
use crate::sharding::wire::{
    HOSTED_BYTES, HostShard, ROUTE_BYTES, ReleaseShard, ShardRoute, ShardingMessage, ToRegion,
    WISH_BYTES, in_messages,
};

/// Maximum bytes per shard in `Host` (plus `LISTED_BYTES` per predecessor) and in `Release`.
const HOST_BYTES: usize = 96;
const LISTED_BYTES: usize = 48;
const RELEASE_BYTES: usize = 128;

/// Messages for one region, by kind.
#[derive(Clone, Debug, Default)]
struct RegionBatch {
    release: Vec<ReleaseShard>,
    host: Vec<HostShard>,
    announce: Vec<ShardRoute>,
    stopped: Vec<(ShardId, u64)>, // with the number of the request
    hosted: Vec<(ShardId, Generation)>,
}

/// Messages that the coordinator sends at the end of the batch. The methods named after a message
/// add one entry to it; the entries keep their order, and duplicates are not removed.
#[derive(Clone, Debug, Default)]
pub(super) struct CoordinatorOutboundBatch {
    batches: BTreeMap<RegionId, RegionBatch>, // ≤ regions
    registered: BTreeSet<RegionId>, // answered with `RegisterAck` in this batch; ≤ regions
}

impl CoordinatorOutboundBatch {
    /// Notes a registration, and returns whether it is the region's first one in the batch. A
    /// registration of many shards comes in parts, and one answer suffices for all.
    pub(super) fn is_first_part_of_registration(&mut self, from: RegionId) -> bool {
        self.registered.insert(from)
    }

    pub(super) fn host(&mut self, to: RegionId, word: HostShard) {
        self.batches.entry(to).or_default().host.push(word);
    }

    pub(super) fn release(&mut self, to: RegionId, word: ReleaseShard) {
        self.batches.entry(to).or_default().release.push(word);
    }

    pub(super) fn announce(&mut self, to: RegionId, route: ShardRoute) {
        self.batches.entry(to).or_default().announce.push(route);
    }

    pub(super) fn stopped(&mut self, to: RegionId, shard: ShardId, wish: u64) {
        self.batches.entry(to).or_default().stopped.push((shard, wish));
    }

    pub(super) fn hosted(&mut self, to: RegionId, shard: ShardId, at: Generation) {
        self.batches.entry(to).or_default().hosted.push((shard, at));
    }

    /// Sends everything and begins a new batch. Regions follow by id. To each, `Release` goes
    /// first, because it begins the longest work, then `Host`, `Announce`, `Stopped`, `Hosted`.
    /// Messages of one kind are joined up to `bytes_max` bytes, by estimated lengths; a longer
    /// entry goes alone.
    pub(super) fn flush(&mut self, bytes_max: usize, out: &mut CoordinatorOutbox) {
        let host_bytes = |word: &HostShard| HOST_BYTES + LISTED_BYTES * word.after.len();
        self.registered.clear();
        for (to, batch) in std::mem::take(&mut self.batches) {
            let RegionBatch { release, host, announce, stopped, hosted } = batch;
            let mut say = |word| send(to.replica(), word, out);
            for words in in_messages(release, bytes_max, |_| RELEASE_BYTES) {
                say(ToRegion::Release(words));
            }
            for words in in_messages(host, bytes_max, host_bytes) {
                say(ToRegion::Host(words));
            }
            for routes in in_messages(announce, bytes_max, |_| ROUTE_BYTES) {
                say(ToRegion::Announce(routes.into_iter().collect()));
            }
            for shards in in_messages(stopped, bytes_max, |_| WISH_BYTES) {
                say(ToRegion::Stopped(shards));
            }
            for shards in in_messages(hosted, bytes_max, |_| HOSTED_BYTES) {
                say(ToRegion::Hosted(shards));
            }
        }
    }
}

/// Sends a message at once, ahead of those that wait for the end of the batch.
pub(super) fn send(to: ReplicaId, word: ToRegion, out: &mut CoordinatorOutbox) {
    out.push(CoordinatorOutput::Send { to, message: ShardingMessage::Region(word) });
}
