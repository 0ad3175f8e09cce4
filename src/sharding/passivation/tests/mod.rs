//! Tests of passivation: exact traces, properties of all strategies, and hit rates.

mod general;
mod hill;
mod hit_rates;
mod traces;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ostraca_ddata::clock::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::settings::{self, LimitScope, PassivationStrategy};
use super::{Access, PassivationPolicy, Slot};

/// A region with the limit split over its shards, as in Pekko; entities are identified by number.
pub(super) struct Shards {
    settings: settings::PassivationConfig,
    limit: usize,
    shards: BTreeMap<u32, PassivationPolicy>,
}

impl Shards {
    pub(super) fn new(limit: usize, settings: settings::PassivationConfig) -> Self {
        let settings = settings::PassivationConfig {
            scope: LimitScope::Shard,
            idle_timeout: Duration::ZERO,
            active_entity_limit: limit,
            ..settings
        };
        assert_eq!(settings.wrong(), None);
        Self { settings, limit, shards: BTreeMap::new() }
    }

    pub(super) fn of(limit: usize, strategy: PassivationStrategy) -> Self {
        Self::new(limit, settings::PassivationConfig { strategy, ..Default::default() })
    }

    /// Sends a message to an entity; returns the entities that stop for it.
    pub(super) fn access(&mut self, shard: u32, id: u32) -> Vec<u32> {
        let mut stop = Vec::new();
        if !self.shards.contains_key(&shard) {
            self.shards.insert(shard, PassivationPolicy::new(&self.settings));
            stop = self.share_out();
        }
        let passivation = self.shards.get_mut(&shard).expect("inserted above");
        let mut slots = Vec::new();
        let access = Access { slot: Slot(id), hash: hash(id.into()), now: Instant::default() };
        passivation.touched(access, &mut |_| false, &mut slots);
        stop.extend(slots.into_iter().map(Slot::get));
        stop
    }

    pub(super) fn set_limit(&mut self, limit: usize) -> Vec<u32> {
        self.limit = limit;
        self.share_out()
    }

    pub(super) fn stopped(&mut self, shard: u32, id: u32) {
        self.shards.get_mut(&shard).expect("a shard that runs").stopped(Slot(id));
    }

    pub(super) fn shard(&self, shard: u32) -> &PassivationPolicy {
        &self.shards[&shard]
    }

    fn share_out(&mut self) -> Vec<u32> {
        let limit = PassivationPolicy::share(self.limit, self.shards.len());
        let mut stop = Vec::new();
        for passivation in self.shards.values_mut() {
            passivation.set_limit(limit, &mut |_| false, &mut stop);
        }
        stop.into_iter().map(Slot::get).collect()
    }

    /// Sends one message to each of `ids`; `stops` returns the entities expected to stop for an id.
    pub(super) fn each(
        &mut self,
        shard: u32,
        ids: impl IntoIterator<Item = u32>,
        stops: impl Fn(u32) -> Vec<u32>,
    ) {
        for id in ids {
            assert_eq!(self.access(shard, id), stops(id), "shard {shard}, entity {id}");
        }
    }

    /// Sends `times(id)` messages to each of `ids`; `stops` returns those expected to stop for the
    /// first one.
    pub(super) fn often(
        &mut self,
        shard: u32,
        ids: RangeInclusive<u32>,
        times: impl Fn(u32) -> u32,
        stops: impl Fn(u32) -> Vec<u32>,
    ) {
        for id in ids {
            for time in 1..=times(id) {
                let expected = if time == 1 { stops(id) } else { Vec::new() };
                assert_eq!(self.access(shard, id), expected, "shard {shard}, entity {id}");
            }
        }
    }
}

pub(super) fn hash(id: u64) -> u64 {
    xxh3_64(&id.to_le_bytes())
}

pub(super) fn none(_: u32) -> Vec<u32> {
    Vec::new()
}
