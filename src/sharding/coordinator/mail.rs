//! What a coordinator says in one batch, joined per receiver.

use std::collections::BTreeMap;

use ostraca_ddata::id::ReplicaId;

use super::Out;
use super::port::CoordinatorOutput;
use crate::sharding::ids::{RegionId, ShardId};
use crate::sharding::wire::{HostShard, ReleaseShard, ShardRoute, ShardingMessage, ToRegion};

#[derive(Clone, Debug, Default)]
struct Letter {
    release: Vec<ReleaseShard>,
    host: Vec<HostShard>,
    announce: Vec<ShardRoute>,
    stopped: Vec<ShardId>,
}

/// Messages of one batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Mail {
    letters: BTreeMap<RegionId, Letter>, // ≤ regions
}

impl Mail {
    pub(super) fn host(&mut self, to: RegionId, word: HostShard) {
        self.letters.entry(to).or_default().host.push(word);
    }

    pub(super) fn release(&mut self, to: RegionId, word: ReleaseShard) {
        self.letters.entry(to).or_default().release.push(word);
    }

    pub(super) fn announce(&mut self, to: RegionId, route: ShardRoute) {
        self.letters.entry(to).or_default().announce.push(route);
    }

    pub(super) fn stopped(&mut self, to: RegionId, shard: ShardId) {
        self.letters.entry(to).or_default().stopped.push(shard);
    }

    /// Sends everything: releases first, they start the longest work.
    pub(super) fn flush(&mut self, out: &mut Out) {
        for (to, letter) in std::mem::take(&mut self.letters) {
            let Letter { release, host, announce, stopped } = letter;
            if !release.is_empty() {
                send(to.replica(), ToRegion::Release(release), out);
            }
            if !host.is_empty() {
                send(to.replica(), ToRegion::Host(host), out);
            }
            if !announce.is_empty() {
                let table = announce.into_iter().collect();
                send(to.replica(), ToRegion::Announce(table), out);
            }
            if !stopped.is_empty() {
                send(to.replica(), ToRegion::Stopped(stopped), out);
            }
        }
    }
}

pub(super) fn send(to: ReplicaId, word: ToRegion, out: &mut Out) {
    out.push(CoordinatorOutput::Send { to, message: ShardingMessage::Region(word) });
}
