//! Shards that the program wants to stop: asked of the coordinator until it says that they have
//! (spec/sharding.md §13).

use std::collections::BTreeMap;
use std::time::Duration;

use ostraca_ddata::clock::{Instant, Now};
use ostraca_ddata::id::ReplicaId;

use super::port::RegionOutput;
use super::{Out, Region};
use crate::sharding::ids::ShardId;
use crate::sharding::wire::{SHARD_BYTES, ToCoordinator, in_messages};

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopping {
    until: BTreeMap<ShardId, Instant>, // ≤ shards
    ask_at: Instant,
}

impl Stopping {
    /// There is a coordinator that was not asked yet.
    pub(super) fn again(&mut self, now: Instant) {
        self.ask_at = now;
    }

    /// When to ask or to give up.
    pub(super) fn next(&self, registered: bool) -> Option<Instant> {
        let asks = registered.then_some(self.ask_at).filter(|_| !self.until.is_empty());
        self.until.values().min().copied().into_iter().chain(asks).min()
    }
}

impl Region {
    /// Shards that are to stop and have not yet, as far as is known here.
    pub fn stopping(&self) -> impl Iterator<Item = ShardId> + '_ {
        self.stopping.until.keys().copied()
    }

    pub(super) fn wish_stop(&mut self, now: Now, shards: Vec<ShardId>, within: Duration) {
        let until = now.mono + within;
        for shard in shards {
            if self.is_shard(shard) {
                let known = self.stopping.until.entry(shard).or_insert(until);
                *known = (*known).max(until);
            }
        }
        self.stopping.ask_at = now.mono;
    }

    /// The coordinator says so; another one is asked, too.
    pub(super) fn stopped(&mut self, from: ReplicaId, shards: &[ShardId], out: &mut Out) {
        if self.registration.coordinator() != Some(from) {
            return;
        }
        let before = self.stopping.until.len();
        for shard in shards {
            self.stopping.until.remove(shard);
        }
        if self.stopping.until.len() < before {
            out.push(RegionOutput::Stopped);
        }
    }

    pub(super) fn stop_others(&mut self, now: Now, out: &mut Out) {
        let before = self.stopping.until.len();
        self.stopping.until.retain(|_, until| *until > now.mono);
        if self.stopping.until.len() < before {
            out.push(RegionOutput::Stopped);
        }
        let due = !self.stopping.until.is_empty() && self.stopping.ask_at <= now.mono;
        let to = self.registration.coordinator().filter(|_| self.registration.is_registered());
        if let (true, Some(to)) = (due, to) {
            self.stopping.ask_at = now.mono + self.config.retry;
            let shards = self.stopping.until.keys().copied().collect();
            for shards in in_messages(shards, self.config.cut.words, |_| SHARD_BYTES) {
                self.mail.say(to, ToCoordinator::Stop(shards));
            }
        }
    }
}
